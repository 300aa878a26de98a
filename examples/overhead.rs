//! What a call costs beside its work: relu(x + b) * 2 on 1000 elements.
//!
//! ```text
//! cargo run --release -p oxyfuel --example overhead
//! ```

use oxyfuel::{DType, Options, Result, Tensor};
use std::time::Instant;

fn f(x: &Tensor, b: &Tensor) -> Tensor {
    (x + b).relu() * 2.0
}

/// Median nanoseconds of a call, over batches long enough for the clock.
fn time(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    const BATCH: u32 = 200;
    let mut times = Vec::new();
    for round in 0..60 {
        let start = Instant::now();
        for _ in 0..BATCH {
            call()?;
        }
        if round >= 10 {
            times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH));
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> Result<()> {
    let x = Tensor::randn(&[1000], DType::F32, 0);
    let b = Tensor::randn(&[1000], DType::F32, 1);
    let compiled = oxyfuel::compile(f, Options::default())?;
    let mut out = [compiled.call_one(&[&x, &b])?];
    let held = compiled.call_one(&[&x, &b])?;
    let mut bound = compiled.bind(&[&x, &b], &[&held])?;
    println!("eager, three calls: {:6.0} ns", time(|| f(&x, &b).check())?);
    println!(
        "compiled:           {:6.0} ns",
        time(|| compiled.call(&[&x, &b]).map(drop))?
    );
    println!(
        "compiled, in place: {:6.0} ns",
        time(|| compiled.call_into(&[&x, &b], &mut out))?
    );
    println!("bound:              {:6.0} ns", time(|| bound.call())?);
    Ok(())
}
