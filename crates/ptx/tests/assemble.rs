//! Every example through the emitter, and through NVIDIA's assembler where it is at hand.

use oxyfuel_base::DType;
use oxyfuel_kernel::examples as kernels;
use oxyfuel_kernel::ir::Program;
use oxyfuel_ptx::{Target, emit, examples};
use oxyfuel_testkit::ptxas;

/// Emits for `target` and assembles; returns the assembler's report.
fn assemble(name: &str, program: &Program, target: &str) -> String {
    oxyfuel_kernel::verify(program).unwrap();
    let desc = Target::by_name(target).unwrap().describe(132, 50 << 20);
    let module = emit(program, &desc).unwrap();
    let Some(tool) = ptxas::find() else {
        return String::new();
    };
    let accepted = ptxas::assemble(&tool, &module.text, target)
        .unwrap_or_else(|said| panic!("{name} for {target}: {said}\n{}", module.text));
    assert_eq!(
        accepted.spilled_bytes, 0,
        "{name} for {target} spills: {}",
        accepted.report
    );
    accepted.report
}

#[test]
fn pointwise() {
    for target in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a"] {
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
    for target in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a"] {
        assemble(
            "mxint8_decode",
            &examples::mxint8_decode(1 << 28, 8, 1).unwrap(),
            target,
        );
    }
}

#[test]
fn rows() {
    for target in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a"] {
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

#[test]
fn product_of_unknown_sizes() {
    for epilogue in [kernels::Epilogue::Staged, kernels::Epilogue::Direct] {
        let stages = if epilogue == kernels::Epilogue::Staged {
            3
        } else {
            4
        };
        let tile = kernels::WgmmaTile {
            stages,
            epilogue,
            ..kernels::WgmmaTile::LARGE
        };
        let said = assemble(
            "wgmma_matmul",
            &kernels::wgmma_matmul(tile).unwrap(),
            "sm_90a",
        );
        assert!(!said.contains("serialized"), "{said}");
    }
}

#[test]
fn product_of_single_warps() {
    for target in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a"] {
        assemble(
            "warp_matmul",
            &examples::warp_matmul(128, 256, 64).unwrap(),
            target,
        );
    }
}
