//! Mistakes: each is a coded error with the user's line, and nothing panics.

use oxyfuel::{Code, DType, Device, Error, Options, Tensor, compile, compile_graph};
use std::sync::Mutex;

fn x() -> Tensor {
    Tensor::ones(&[2, 3], DType::F32)
}

fn expect(error: Error, code: Code, line: u32) {
    assert_eq!(error.code, code, "{error}");
    let at = error
        .at
        .clone()
        .unwrap_or_else(|| panic!("no place: {error}"));
    assert!(at.file.ends_with("errors.rs"), "{error}");
    // A formatted statement spans a few lines, and the operator stands on one of them.
    assert!(at.line.abs_diff(line) <= 4, "{error}, not {line}");
}

#[test]
fn eager_mistakes_have_code_and_line() {
    let cases = [
        (
            &x() + &Tensor::ones(&[4], DType::F32),
            Code::ShapeMismatch,
            line!(),
        ),
        (x().matmul(&x()), Code::ShapeMismatch, line!()),
        (x().reshape(&[4]), Code::ShapeMismatch, line!()),
        (x().permute(&[0, 0]), Code::DimOutOfRange, line!()),
        (x().sum(&[5], false), Code::DimOutOfRange, line!()),
        (x().select(0, 7), Code::IndexOutOfRange, line!()),
        (x().narrow(1, 2, 2), Code::IndexOutOfRange, line!()),
        (x() & x(), Code::UnsupportedDType, line!()),
        (x().unsqueeze(0).t(), Code::RankMismatch, line!()),
        (Tensor::cat(&[], 0), Code::ArityMismatch, line!()),
        (
            Tensor::from_slice(&[1f32, 2.0], &[3]),
            Code::ShapeMismatch,
            line!(),
        ),
        (
            Tensor::zeros(&[-1], DType::F32),
            Code::InvalidArgument,
            line!(),
        ),
        (
            Tensor::zeros(&[i64::MAX, 4], DType::F32),
            Code::SizeOverflow,
            line!(),
        ),
        (
            Tensor::zeros(&[1 << 50], DType::F32),
            Code::OutOfMemory,
            line!(),
        ),
        (
            Tensor::randn(&[1 << 50], DType::F32, 0),
            Code::OutOfMemory,
            line!(),
        ),
        (
            Tensor::arange(0, 10, 0, DType::I64),
            Code::InvalidArgument,
            line!(),
        ),
        (
            Tensor::randint(3, 3, &[1], DType::I64, 0),
            Code::InvalidArgument,
            line!(),
        ),
    ];
    for (tensor, code, line) in cases {
        expect(tensor.check().unwrap_err(), code, line);
    }
}

#[test]
fn windows_that_no_number_counts_are_refused() {
    let x = Tensor::ones(&[1, 4, 4], DType::F32);
    let far = [i64::MAX, i64::MAX / 2, i64::MIN, -1];
    for n in far {
        for (size, step, padding, dilation) in [
            ([2, n], [1, 1], [0, 0], [1, 1]),
            ([2, 2], [1, n], [0, 0], [1, 1]),
            ([2, 2], [1, 1], [0, n], [1, 1]),
            ([2, 2], [1, 1], [0, 0], [1, n]),
            ([2, n], [1, 1], [0, n / 2], [1, 1]),
            ([0, 2], [1, 1], [0, 0], [1, 1]),
        ] {
            let pooled = x.max_pool2d(size, step, padding, dilation);
            expect(
                pooled.check().unwrap_err(),
                Code::InvalidArgument,
                line!() - 6,
            );
        }
    }
}

#[test]
fn the_first_mistake_travels() {
    let bad = x().matmul(&x()); // here
    let line = line!() - 1;
    let later = (&bad + 1.0).relu().reshape(&[99]).softmax(17);
    expect(
        later.to_vec::<f32>().unwrap_err(),
        Code::ShapeMismatch,
        line,
    );
    expect(later.item().unwrap_err(), Code::ShapeMismatch, line);
    expect(later.dims::<2>().unwrap_err(), Code::ShapeMismatch, line);
    let f = compile(|x: &Tensor| x.relu(), Options::default()).unwrap();
    expect(f.call(&[&later]).unwrap_err(), Code::ShapeMismatch, line);
    assert_eq!((later.shape(), later.numel()), (&[][..], 0));
}

#[test]
fn larger_than_memory_when_computed() {
    // A view of one element that pretends to be a petabyte.
    let huge = Tensor::ones(&[1], DType::F32).expand(&[1 << 48]);
    expect(
        (&huge + 1.0).check().unwrap_err(),
        Code::OutOfMemory,
        line!(),
    );
    let overflow = Tensor::ones(&[1, 1], DType::F32).expand(&[1 << 40, 1 << 40]);
    assert_eq!(overflow.check().unwrap_err().code, Code::SizeOverflow);
}

#[test]
fn mistakes_inside_of_a_closure_point_into_it() {
    let line = line!() + 1;
    let f = compile(
        |x: &Tensor, y: &Tensor| x.matmul(y).relu(),
        Options::default(),
    )
    .unwrap();
    expect(
        f.call(&[&x(), &x()]).unwrap_err(),
        Code::ShapeMismatch,
        line,
    );
    // The same function is fine with other arguments.
    assert_eq!(f.call_one(&[&x(), &x().t()]).unwrap().shape(), [2, 2]);
}

#[test]
fn reading_a_traced_tensor_is_data_dependent_under_fullgraph() {
    let options = Options {
        fullgraph: true,
        ..Options::default()
    };
    let line = line!() + 2;
    let f = compile(
        |x: &Tensor| x.to_vec::<f32>().map(|v| x * f64::from(v[0])),
        options.clone(),
    )
    .unwrap();
    expect(f.call(&[&x()]).unwrap_err(), Code::DataDependent, line);
    let f = compile(
        |x: &Tensor| x.sum(&[], false).item().map(|_| x.clone()),
        options.clone(),
    )
    .unwrap();
    assert_eq!(f.call(&[&x()]).unwrap_err().code, Code::DataDependent);
    let line = line!() + 2;
    let f = compile(
        |x: &Tensor| oxyfuel::disable(&(x + 1.0), |x| x * 2.0),
        options,
    )
    .unwrap();
    expect(f.call(&[&x()]).unwrap_err(), Code::DataDependent, line);
}

#[test]
fn a_traced_tensor_outside_is_a_leak() {
    static KEPT: Mutex<Option<Tensor>> = Mutex::new(None);
    let f = compile(
        |x: &Tensor| {
            *KEPT.lock().unwrap() = Some(x + 1.0);
            x.relu()
        },
        Options::default(),
    )
    .unwrap();
    f.call(&[&x()]).unwrap();
    let kept = KEPT.lock().unwrap().clone().unwrap();
    expect(kept.to_vec::<f32>().unwrap_err(), Code::TraceLeak, line!());
    expect((&kept + 1.0).check().unwrap_err(), Code::TraceLeak, line!());
    let line = line!() + 1;
    let g = compile(move |x: &Tensor| x + &kept, Options::default()).unwrap();
    expect(g.call(&[&x()]).unwrap_err(), Code::TraceLeak, line);
}

#[test]
fn wrong_arity() {
    let f = compile(|x: &Tensor, y: &Tensor| (x + y, x - y), Options::default()).unwrap();
    expect(f.call(&[&x()]).unwrap_err(), Code::ArityMismatch, line!());
    expect(
        f.call_one(&[&x(), &x()]).unwrap_err(),
        Code::ArityMismatch,
        line!(),
    );
    let mut one = [x()];
    expect(
        f.call_into(&[&x(), &x()], &mut one).unwrap_err(),
        Code::ArityMismatch,
        line!(),
    );
    let mut wrong = [x(), x().t()];
    expect(
        f.call_into(&[&x(), &x()], &mut wrong).unwrap_err(),
        Code::ShapeMismatch,
        line!(),
    );
}

#[test]
fn options_are_checked() {
    let mut options = Options::default();
    assert_eq!(
        options.set("modus", "x").unwrap_err().code,
        Code::UnknownOption
    );
    options.target = "sm_1".to_owned();
    let error = compile(|x: &Tensor| x.relu(), options.clone()).unwrap_err();
    assert_eq!(error.code, Code::InvalidOption);
    options.target = "sm_90a".to_owned();
    let f = compile(|x: &Tensor| x.relu(), options).unwrap();
    expect(f.call(&[&x()]).unwrap_err(), Code::DeviceMismatch, line!());
}

#[test]
fn a_graph_on_several_devices_is_refused() {
    for (a, b) in [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:1")] {
        let text = format!(
            "graph @f(%x: f32[3] {a}, %y: f32[3] {b}) {{
  %z: f32[3] = add %x, %y
  return %z
}}"
        );
        let graph = oxyfuel::parse_graph("mixed", &text).unwrap();
        let error = compile_graph(graph, Options::default()).unwrap_err();
        assert_eq!(error.code, Code::DeviceMismatch);
        assert!(
            error.message.contains(&format!("on {a} and {b}")) && error.help.is_some(),
            "{error}"
        );
    }
}

#[test]
fn no_driver_is_a_sentence() {
    if Device::cuda(0).check().is_ok() {
        return;
    }
    expect(
        x().to_device(Device::cuda(0)).check().unwrap_err(),
        Code::NoDriver,
        line!(),
    );
    assert_eq!(x().to_device(Device::cpu()).device(), Device::Cpu);
}

#[test]
fn an_index_outside_is_no_crash() {
    let table = Tensor::randn(&[8, 4], DType::F32, 0);
    for far in [8i64, 99, -9, 1 << 40, i64::MIN, i64::MAX] {
        let index = Tensor::from_slice(&[0i64, far], &[2]);
        let picked = [
            table.index_select(0, &index),
            Tensor::embedding(&index, &table),
            table.gather(0, &index.unsqueeze(1).expand(&[2, 4])),
        ];
        for picked in picked {
            // Compiled code brings an index to the nearest row: never a read outside of the table.
            let (rows, all) = (
                picked.to_vec::<f32>().unwrap(),
                table.to_vec::<f32>().unwrap(),
            );
            let nearest = if far < 0 { 0 } else { 7 * 4 };
            assert_eq!(rows[..4], all[..4]);
            assert_eq!(rows[4..], all[nearest..nearest + 4]);
        }
    }
}
