//! Prints the machine code of the tile IR's example programs: `cargo run -p oxyfuel-x86 --features listing --example listing -- softmax`.

use oxyfuel_base::DType;
use oxyfuel_kernel::examples;
use oxyfuel_x86::{Level, compile};

fn main() {
    let name = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "bias_relu".into());
    let level = if std::env::args().any(|a| a == "avx2") {
        Level::AVX2
    } else {
        Level::AVX512
    };
    let program = match name.as_str() {
        "bias_gelu" => examples::bias_gelu(DType::F32, 1024),
        "softmax" => examples::softmax(DType::F32, 1024),
        "sum64" => sum64(),
        "mxint8_decode" => examples::mxint8_decode(32, 4096),
        _ => examples::bias_relu(DType::F32, 1024, 4096),
    };
    match program.and_then(|p| compile(&p, level)) {
        Ok(artefact) => println!(
            "{}{:?}, {} bytes of scratch",
            artefact.listing(),
            artefact.stats,
            artefact.scratch_bytes
        ),
        Err(e) => eprintln!("{e}"),
    }
}

fn sum64() -> oxyfuel_base::Result<oxyfuel_kernel::ir::Program> {
    use oxyfuel_kernel::builder::KernelBuilder;
    use oxyfuel_kernel::ir::BufferMode;
    let k = KernelBuilder::new("sum");
    let x = k.buffer("x", DType::I64, BufferMode::Read, 2);
    let y = k.buffer("y", DType::F32, BufferMode::Write, 2);
    k.phase([1], |k| {
        let t = k.load(x.at(0).shape([1, 2]));
        k.store(
            y.at(0).shape([1, 2]),
            t.sum(1).broadcast_to([1, 2]).cast(DType::F32),
        );
    });
    k.finish()
}
