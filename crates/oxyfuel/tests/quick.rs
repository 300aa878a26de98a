//! First light.
use oxyfuel::{DType, Options, Tensor};

#[test]
fn eager_and_compiled() {
    let x = Tensor::randn(&[8, 16], DType::F32, 0);
    let b = Tensor::randn(&[16], DType::F32, 1);
    let eager = (&x + &b).relu() * 2.0;
    let f = oxyfuel::compile(
        |x: &Tensor, b: &Tensor| (x + b).relu() * 2.0,
        Options::default(),
    )
    .unwrap();
    let y = f.call_one(&[&x, &b]).unwrap();
    println!("{}", f.explain());
    assert_eq!(eager.to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap());
}
