//! Every example through the emitter, and through NVIDIA's assembler where it is at hand.
//!
//! `OXYFUEL_PTXAS` names the assembler, or `ptxas` on the PATH. Without one the texts are only emitted, except under `CI=true`, where that fails.

use std::path::PathBuf;
use std::process::Command;

use oxyfuel_base::DType;
use oxyfuel_kernel::ir::Program;
use oxyfuel_ptx::{Target, emit, examples};

fn ptxas() -> Option<PathBuf> {
    let named = std::env::var_os("OXYFUEL_PTXAS").map(PathBuf::from);
    let on_path = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path)
            .map(|dir| dir.join("ptxas"))
            .find(|file| file.is_file())
    });
    let found = named.or(on_path);
    assert!(
        found.is_some() || std::env::var("CI").as_deref() != Ok("true"),
        "no ptxas: set OXYFUEL_PTXAS"
    );
    found
}

/// Emits for `target` and assembles; returns what the assembler says of registers and spills.
fn assemble(name: &str, program: &Program, target: &str) -> String {
    oxyfuel_kernel::verify(program).unwrap();
    let artefact = emit(program, Target::by_name(target).unwrap()).unwrap();
    if let Some(dir) = std::env::var_os("OXYFUEL_PTX_OUT") {
        std::fs::write(
            PathBuf::from(dir).join(format!("{name}.{target}.ptx")),
            &artefact.text,
        )
        .unwrap();
    }
    let Some(ptxas) = ptxas() else {
        return String::new();
    };
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("k.ptx"), dir.path().join("k.cubin"));
    std::fs::write(&input, &artefact.text).unwrap();
    let run = Command::new(ptxas)
        .arg(format!("-arch={target}"))
        .args(["-v", "-o"])
        .arg(&output)
        .arg(&input)
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&run.stderr).into_owned() + &String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success(),
        "{name} for {target}: {said}\n{}",
        artefact.text
    );
    assert!(
        said.contains(" 0 bytes spill stores"),
        "{name} for {target} spills: {said}"
    );
    println!(
        "{name} {target}: {}",
        said.lines()
            .filter(|line| line.contains("Used"))
            .collect::<Vec<_>>()
            .join(" ")
    );
    said
}

#[test]
fn pointwise() {
    for target in ["sm_80", "sm_90a"] {
        assemble(
            "add_relu_mul",
            &examples::add_relu_mul(1 << 28, 8, 4).unwrap(),
            target,
        );
        assemble(
            "add_relu_mul_even_tail",
            &examples::add_relu_mul(10_000_000, 8, 4).unwrap(),
            target,
        );
        assemble(
            "add_relu_mul_odd_tail",
            &examples::add_relu_mul(1_000_003, 8, 4).unwrap(),
            target,
        );
    }
}

#[test]
fn decode() {
    for target in ["sm_80", "sm_90a"] {
        assemble(
            "mxint8_decode",
            &examples::mxint8_decode(1 << 28, 8, 1).unwrap(),
            target,
        );
    }
}

#[test]
fn rows() {
    for target in ["sm_80", "sm_90a"] {
        assemble(
            "softmax",
            &examples::softmax(DType::BF16, 16384, 4096, 4).unwrap(),
            target,
        );
        assemble(
            "softmax_short",
            &examples::softmax(DType::F32, 100, 1000, 4).unwrap(),
            target,
        );
    }
}

#[test]
fn product() {
    let said = assemble(
        "matmul",
        &examples::matmul(4096, 4096, 4096, 3, 16).unwrap(),
        "sm_90a",
    );
    assert!(!said.contains("serialized"), "{said}");
}
