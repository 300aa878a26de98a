//! What a step of AdamW takes over the parameters of a model (GPT-2's shapes at several widths), written in place; and over one tensor of as many elements, which is the least it could take.
//!
//! ```text
//! cargo run --release -p oxyfuel --example optimizer                    # on the CPU
//! cargo run --release -p oxyfuel --example optimizer -- cuda            # on the first GPU
//! cargo run --release -p oxyfuel --example optimizer -- cuda recorded   # recorded and launched as one
//! ```

use oxyfuel::{DType, Device, Mode, Options, Result, Tensor, Tensors, jit};
use std::time::Instant;

/// Parameters, gradients and both moments.
#[derive(Tensors)]
struct State {
    parameters: Vec<Tensor>,
    gradients: Vec<Tensor>,
    means: Vec<Tensor>,
    squares: Vec<Tensor>,
}

fn adamw(state: &State) -> Result<()> {
    for (i, g) in state.gradients.iter().enumerate() {
        let (mut p, mut m, mut v) = (
            state.parameters[i].clone(),
            state.means[i].clone(),
            state.squares[i].clone(),
        );
        let mean = &m * 0.9 + g * 0.1;
        let square = &v * 0.999 + g * g * 0.001;
        let step = &mean / &(square.sqrt() + 1e-8);
        let parameter = &p * (1.0 - 1e-5) - step * 1e-3;
        p.copy_(&parameter)?;
        m.copy_(&mean)?;
        v.copy_(&square)?;
    }
    Ok(())
}

fn state(shapes: &[Vec<i64>], device: Device) -> State {
    let tensors = |seed: u64| {
        let numbered = shapes.iter().zip(seed..);
        let tensor = |(shape, seed): (&Vec<i64>, u64)| Tensor::randn(shape, DType::F32, seed);
        numbered
            .map(|it| tensor(it).abs().to_device(device))
            .collect()
    };
    State {
        parameters: tensors(0),
        gradients: tensors(1000),
        means: tensors(2000),
        squares: tensors(3000),
    }
}

/// GPT-2's 148 tensors at a width.
fn gpt2(n: i64) -> Vec<Vec<i64>> {
    let mut shapes = vec![vec![50257 * n / 768, n], vec![1024 * n / 768, n]];
    for _ in 0..12 {
        let (bias, wide) = (vec![n], vec![4 * n]);
        shapes.extend([bias.clone(), bias.clone(), vec![n, 3 * n], vec![3 * n]]);
        shapes.extend([vec![n, n], bias.clone(), bias.clone(), bias.clone()]);
        shapes.extend([vec![n, 4 * n], wide, vec![4 * n, n], bias]);
    }
    shapes.extend([vec![n], vec![n]]);
    shapes
}

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let is = |word: &str| given.iter().any(|arg| arg == word);
    let device = if is("cuda") {
        Device::cuda(0)
    } else {
        Device::cpu()
    };
    let options = Options {
        mode: if is("recorded") {
            Mode::ReduceOverhead
        } else {
            Mode::Default
        },
        ..Options::default()
    };
    let near = |n: i64, step: i64| (0..100).map(|i| vec![n + step * i]).collect();
    let sets: [(&str, Vec<Vec<i64>>); 7] = [
        ("GPT-2", gpt2(768)),
        ("a third as wide", gpt2(256)),
        ("an eighth", gpt2(96)),
        ("a 24th", gpt2(32)),
        ("100 of 1,000 and more", near(1000, 1)),
        ("100 of 20,000 and more", near(20_000, 16)),
        ("100 of 70,000 and more", near(70_000, 16)),
    ];
    for (name, shapes) in sets {
        let total: i64 = shapes
            .iter()
            .map(|shape| shape.iter().product::<i64>())
            .sum();
        let (many, one) = (state(&shapes, device), state(&[vec![total]], device));
        let (of_many, of_one) = (jit(adamw, options.clone())?, jit(adamw, options.clone())?);
        let time = |call: &dyn Fn() -> Result<()>| -> Result<f64> {
            let start = Instant::now();
            call()?;
            device.synchronize()?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        let rounds = usize::try_from(200_000_000 / total)
            .unwrap_or(0)
            .clamp(12, 500);
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..rounds + 4 {
            let a = time(&|| of_many.call((&many,)).map(drop))?;
            let b = time(&|| of_one.call((&one,)).map(drop))?;
            if round >= 4 {
                for (times, time) in times.iter_mut().zip([a, b, a / b]) {
                    times.push(time);
                }
            }
        }
        let [many, one, ratio] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        let explained = of_many.explain();
        let kernels = explained
            .variants
            .iter()
            .flat_map(|variant| &variant.kernels);
        let launches: usize = kernels.map(|kernel| kernel.launches).sum();
        println!(
            "{name:>22}: {} tensors in {launches} launches {many:9.1} us, one tensor {one:9.1} us, {ratio:.2} times",
            shapes.len()
        );
    }
    Ok(())
}
