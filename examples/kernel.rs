//! A kernel of your own: softmax over rows, written in tiles, checked in the interpreter, run as machine code.
//!
//! ```text
//! cargo run --release -p oxyfuel --example kernel
//! ```

use oxyfuel::kernel::{Argument, BufferMode, KernelBuilder, Program, Symbol};
use oxyfuel::{DType, Options, Result, Tensor};

/// Softmax along rows of `cols` elements, one row an instance.
fn softmax(cols: i64) -> Result<Program> {
    let k = KernelBuilder::new("row_softmax");
    let rows = k.symbol("rows", Symbol(0));
    let x = k.buffer("x", DType::F32, BufferMode::Read, rows.expr() * cols);
    let y = k.buffer("y", DType::F32, BufferMode::Write, rows.expr() * cols);
    k.phase([rows.expr()], |k| {
        let base = k.program_id(0) * cols;
        let row = k.load(x.at(&base).shape([cols]));
        let e = (&row - row.max(0)).exp();
        k.store(y.at(&base).shape([cols]), &e / e.sum(0));
    });
    k.finish()
}

fn main() -> Result<()> {
    let program = softmax(1000)?;
    println!("{program}");

    let kernel = oxyfuel::kernel::compile(&program, Options::default())?;
    match kernel.note() {
        None => println!("{} lines of machine code", kernel.listing().lines().count()),
        Some(why) => println!("interpreted: {why}"),
    }

    let x = Tensor::randn(&[64, 1000], DType::F32, 0);
    let y = Tensor::zeros(&[64, 1000], DType::F32);
    let arguments = [Argument::from(64), (&x).into(), (&y).into()];
    kernel.check(&arguments)?;
    kernel.launch(&arguments)?;
    let worst = (&y - x.softmax(-1)).abs().amax(&[], false).item()?;
    println!("largest difference to softmax: {worst}");

    // One row too many: found before anything runs.
    let arguments = [Argument::from(65), (&x).into(), (&y).into()];
    println!("{}", kernel.launch(&arguments).expect_err("65 rows in 64"));
    Ok(())
}
