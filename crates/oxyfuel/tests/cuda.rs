//! Tensors of a GPU, where there is one; without one, only the sentence that says so.

use oxyfuel::{Code, DType, Device, Options, Tensor, compile};

fn gpu() -> Option<Device> {
    let device = Device::cuda(0);
    match device.check() {
        Ok(()) => Some(device),
        Err(error) => {
            assert!(
                [Code::NoDriver, Code::NoDevice, Code::DriverCall].contains(&error.code),
                "{error}"
            );
            None
        }
    }
}

fn close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape());
    for (a, b) in a.to_f64().unwrap().iter().zip(b.to_f64().unwrap()) {
        assert!((a - b).abs() <= 1e-5 + 1e-5 * b.abs(), "{a} {b}");
    }
}

#[test]
fn tensors_travel() {
    let Some(gpu) = gpu() else { return };
    let x = Tensor::randn(&[33, 65], DType::F32, 0);
    let there = x.to_device(gpu);
    assert_eq!(there.device(), gpu);
    assert_eq!(there.t().to_f64().unwrap(), x.t().to_f64().unwrap());
    assert_eq!(
        there.to_device(Device::Cpu).to_f64().unwrap(),
        x.to_f64().unwrap()
    );
}

#[test]
fn eager_and_compiled_agree_with_the_processor() {
    let Some(gpu) = gpu() else { return };
    let x = Tensor::randn(&[64, 256], DType::F32, 0);
    let b = Tensor::randn(&[256], DType::F32, 1);
    let (gx, gb) = (x.to_device(gpu), b.to_device(gpu));
    close(&(&gx + &gb), &(&x + &b));
    let f = compile(
        |x: &Tensor, b: &Tensor| (x + b).relu() * 2.0,
        Options::default(),
    )
    .unwrap();
    close(
        &f.call_one(&[&gx, &gb]).unwrap(),
        &f.call_one(&[&x, &b]).unwrap(),
    );
    let f = compile(
        |x: &Tensor, b: &Tensor| (x * b).softmax(-1),
        Options::default(),
    )
    .unwrap();
    close(
        &f.call_one(&[&gx, &gb]).unwrap(),
        &f.call_one(&[&x, &b]).unwrap(),
    );
    let explanation = f.explain();
    let devices: Vec<bool> = explanation
        .variants
        .iter()
        .map(|variant| variant.target.starts_with("sm_"))
        .collect();
    assert_eq!(devices, [true, false], "{explanation}");
    assert!(explanation.variants[1].reasons[0].contains("move it with to_device()"));
}

#[test]
fn devices_do_not_mix() {
    let Some(gpu) = gpu() else { return };
    let x = Tensor::ones(&[4], DType::F32);
    let mixed = &x + &x.to_device(gpu);
    assert_eq!(mixed.check().unwrap_err().code, Code::DeviceMismatch);
}
