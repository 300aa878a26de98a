//! Capture, compile, explain.
//!
//! ```text
//! cargo run --release -p oxyfuel --example quickstart
//! ```

use oxyfuel::{DType, Options, Result, Tensor};
use std::time::Instant;

/// A function of tensors: it runs eagerly, and it can be compiled.
fn bias_gelu_norm(x: &Tensor, bias: &Tensor, weight: &Tensor) -> Tensor {
    let hidden = (x + bias).gelu();
    hidden.layer_norm(weight.shape(), Some(weight), None, 1e-5)
}

fn main() -> Result<()> {
    let x = Tensor::randn(&[512, 1024], DType::F32, 0);
    let bias = Tensor::randn(&[1024], DType::F32, 1);
    let weight = Tensor::randn(&[1024], DType::F32, 2);

    // Eager: each operation is a kernel of its own and a trip through memory.
    let eager = bias_gelu_norm(&x, &bias, &weight);

    // Compiled: captured and compiled at the first call, in milliseconds.
    let f = oxyfuel::compile(bias_gelu_norm, Options::default())?;
    let start = Instant::now();
    let compiled = f.call_one(&[&x, &bias, &weight])?;
    println!("first call, compile included: {:?}", start.elapsed());

    let worst = (&eager - &compiled).abs().amax(&[], false).item()?;
    println!("largest difference to eager: {worst}");

    // Another shape is another variant, and `explain` says why it exists.
    let half = x.slice(0, 0, 256, 1);
    f.call_one(&[&half, &bias, &weight])?;
    println!("\n{}", f.explain());

    let time = |name: &str, run: &dyn Fn() -> Result<Tensor>| -> Result<()> {
        for _ in 0..10 {
            run()?;
        }
        let mut times = Vec::new();
        for _ in 0..50 {
            let start = Instant::now();
            run()?;
            times.push(start.elapsed());
        }
        times.sort();
        println!("{name:>9}: {:?} a call (median of 50)", times[25]);
        Ok(())
    };
    time("eager", &|| bias_gelu_norm(&x, &bias, &weight).try_ok())?;
    time("compiled", &|| f.call_one(&[&x, &bias, &weight]))?;

    // Mistakes surface as coded errors with the line that made them.
    let error = bias_gelu_norm(&x, &weight.slice(0, 0, 10, 1), &weight).check();
    println!("\n{}", error.expect_err("10 biases for 1024 columns"));
    Ok(())
}
