//! Captured functions that overwrite what they are given.

use oxyfuel::{DType, Options, Tensor, compile};

fn counting(shape: &[i64]) -> Tensor {
    let count: i64 = shape.iter().product();
    Tensor::arange(0, count, 1, DType::F32).reshape(shape)
}

#[test]
fn an_argument_is_updated_in_place_by_every_call() {
    let step = |p: &Tensor, g: &Tensor| {
        let mut p = p.clone();
        let old = &p * 1.5;
        p.copy_(&(&p - g * 0.5)).map(|()| old + p)
    };
    let f = compile(step, Options::default()).unwrap();
    let (p, g) = (counting(&[3, 4]), Tensor::ones(&[3, 4], DType::F32));
    let first = f.call_one(&[&p, &g]).unwrap().to_vec::<f32>().unwrap();
    let second = f.call_one(&[&p, &g]).unwrap().to_vec::<f32>().unwrap();
    for (i, (&a, &b)) in first.iter().zip(&second).enumerate() {
        let x = i as f32;
        assert_eq!((a, b), (x * 2.5 - 0.5, (x - 0.5) * 2.5 - 0.5));
    }
    assert_eq!(p.to_vec::<f32>().unwrap()[..2], [-1.0, 0.0]);
    let mut out = [Tensor::ones(&[3, 4], DType::F32)];
    f.call_into(&[&p, &g], &mut out).unwrap();
    assert_eq!(out[0].to_vec::<f32>().unwrap()[0], -3.0);
    assert_eq!(p.to_vec::<f32>().unwrap()[0], -1.5);
}

#[test]
fn a_cache_gets_its_new_row() {
    let step = |cache: &Tensor, row: &Tensor| {
        let mut cache = cache.clone();
        let updated = cache.slice_scatter(row, 0, 2, 3, 1);
        cache.copy_(&updated).map(|()| cache.sum(&[0], false))
    };
    let f = compile(step, Options::default()).unwrap();
    let (cache, row) = (counting(&[4, 3]), Tensor::full(&[1, 3], -1, DType::F32));
    let sum = f.call_one(&[&cache, &row]).unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [11.0, 14.0, 17.0]);
    let rows = cache.to_vec::<f32>().unwrap();
    assert_eq!(rows[..6], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(rows[6..], [-1.0, -1.0, -1.0, 9.0, 10.0, 11.0]);
}

#[test]
fn two_arguments_change_places() {
    let swap = |x: &Tensor, y: &Tensor| {
        let (mut x, mut y) = (x.clone(), y.clone());
        let old = x.clone() + 0.0;
        x.copy_(&y)?;
        y.copy_(&old).map(|()| y)
    };
    let f = compile(swap, Options::default()).unwrap();
    let (x, y) = (counting(&[5]), Tensor::ones(&[5], DType::F32));
    f.call(&[&x, &y]).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 5]);
    assert_eq!(y.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let into_view = |x: &Tensor| {
        let mut part = x.slice(0, 0, 2, 1);
        part.copy_(&x.slice(0, 2, 4, 1)).map(|()| part)
    };
    let x = counting(&[4]);
    let error = compile(into_view, Options::default())
        .unwrap()
        .call(&[&x])
        .unwrap_err();
    assert!(error.to_string().contains("copy_ into a view"), "{error}");
    let old_view = |x: &Tensor| {
        let mut y = x.clone();
        let view = y.slice(0, 0, 2, 1);
        y.copy_(&(x * 2.0)).map(|()| view + 1.0)
    };
    let error = compile(old_view, Options::default())
        .unwrap()
        .call(&[&x])
        .unwrap_err();
    assert!(error.to_string().contains("taken before"), "{error}");
    let held = x.clone();
    let into_captured = move |y: &Tensor| {
        let mut held = held.clone();
        held.copy_(&(y * 2.0)).map(|()| held)
    };
    let error = compile(into_captured, Options::default()).unwrap();
    let error = error.call(&[&x]).unwrap_err();
    assert!(error.to_string().contains("captured"), "{error}");
    assert_eq!(x.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0]);
}
