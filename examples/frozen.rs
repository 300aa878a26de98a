//! Weights that do not change: packed once, held once.
//!
//! ```text
//! cargo run --release -p oxyfuel --example frozen
//! ```

use oxyfuel::nn::{Linear, Module};
use oxyfuel::{Code, DType, Device, Options, Result, Tensor, Tensors};
use std::time::{Duration, Instant};

#[derive(Clone, Tensors)]
struct Model {
    up: Linear,
    down: Linear,
}

fn forward(x: &Tensor, model: &Model) -> Tensor {
    model.down.forward(&model.up.forward(x).gelu())
}

/// The shortest of some calls.
fn shortest(call: impl Fn() -> Result<Tensor>) -> Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        call()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

fn held() -> Result<usize> {
    Ok(Device::cpu().memory_summary()?.ours.live)
}

fn main() -> Result<()> {
    let x = Tensor::randn(&[64, 1024], DType::F32, 0);
    let model = Model {
        up: Linear::new(1024, 4096, true, DType::F32, 1),
        down: Linear::new(4096, 1024, true, DType::F32, 2),
    };
    let mut bias = model.down.bias.clone().expect("a layer with a bias");

    // Weights that may change are brought into the order that kernels read at every call.
    let plain = oxyfuel::jit(forward, Options::default())?;
    println!(
        "as they are: {:?} a call",
        shortest(|| plain.call((&x, &model)))?
    );

    // Frozen ones were at the first call.
    let mut frozen = oxyfuel::jit(forward, Options::default())?.freeze_with(model)?;
    println!("frozen: {:?} a call", shortest(|| frozen.call((&x,)))?);

    // A change is noticed before anything runs.
    bias.add_(1.0)?;
    let stale = frozen.call((&x,)).map(drop).expect_err("a stale handle");
    assert_eq!(stale.code, Code::StaleFrozen);
    frozen.refreeze()?;

    // Memory has them once when the originals are let go.
    let before = held()?;
    frozen.release()?;
    println!("released: {} MiB", (before - held()?) >> 20);
    frozen.call((&x,))?;
    println!("{}", frozen.explain().variants[0].notes.join("\n"));
    Ok(())
}
