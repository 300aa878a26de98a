//! Mapped tile programs to PTX text.
//!
//! [`emit`] takes a mapped [`Program`] and gives a [`PtxModule`]: one entry a phase or one of all, and what a launch must know. Nothing here is
//! written for one kernel: what comes out follows from ops, layouts, and the facts that are known of integers.
//!
//! | module | what lives there |
//! |---|---|
//! | [`target`] | one row a target: features, lowest PTX version |
//! | `asm` | registers, instructions, sharing of equal ones |
//! | `fact`, `int` | what is known of integers; index arithmetic in 32 bits where that proves enough |
//! | `place`, `value` | layouts as tables; how elements live in registers |
//! | `scalar`, `cast` | instructions for elementwise ops and conversions |
//! | `access`, `memory` | addresses, wide accesses, bounds; loads, stores, atomics |
//! | `reduce` | reductions and changes of layout |
//! | `mma`, `matrices` | products on matrix units; their operands and results in shared memory |
//! | `asynchronous` | barriers, the tensor copy engine |
//! | `cluster`, `gathered` | blocks that carry one instance; blocks that run all phases |
//! | `emit`, `ops`, `control` | the walk over phases and ops; loops, branches, roles |
//! | [`examples`] | mapped programs to start from |
#![forbid(unsafe_code)]

mod access;
mod asm;
mod asynchronous;
mod cast;
mod cluster;
mod control;
mod emit;
pub mod examples;
mod fact;
mod gathered;
mod int;
mod matrices;
mod memory;
mod mma;
mod ops;
mod place;
mod reduce;
mod scalar;
mod shared;
pub mod target;
mod value;

pub use target::{TARGETS, Target};

use oxyfuel_base::{Result, ensure, err};
use oxyfuel_kernel::ir::{Form, ParamKind, Program, Swizzle};
use oxyfuel_plan::{PtxModule, TargetDesc, TensorMapSpec};

/// The PTX of a mapped program for the target whose name is the description's `isa`. The program must have passed its verifier; what the target cannot
/// express is an error, never a panic.
pub fn emit(program: &Program, desc: &TargetDesc) -> Result<PtxModule> {
    let target = Target::by_name(&desc.isa)?;
    emit_for(program, target, desc.workers).map_err(|error| {
        error.context(format_args!("kernel @{} for {}", program.name, target.name))
    })
}

fn emit_for(program: &Program, target: &'static Target, workers: u32) -> Result<PtxModule> {
    ensure!(
        program.form == Form::Mapped,
        InvalidKernel,
        "only mapped programs can be emitted"
    );
    let mut module = PtxModule {
        text: String::new(),
        entries: Vec::new(),
        threads: program.geometry.lanes * program.geometry.warps,
        cluster: emit::launched_cluster(program),
        shared_bytes: 0,
        persistent_blocks: Vec::new(),
        dependent: target.dependent_launch,
        tensor_maps: tensor_maps(program)?,
    };
    let entries = match program.gathered {
        0 => (0..program.phases.len()).map(Some).collect(),
        _ => vec![None],
    };
    let mut version = target.ptx;
    for number in entries {
        let (text, entry) = emit::emit_entry(program, number, target)?;
        version = version.max(entry.version);
        module.text.push('\n');
        module.text.push_str(&text);
        module.entries.push(entry.name);
        module.shared_bytes = module.shared_bytes.max(entry.dynamic_shared);
        let blocks = entry
            .persistent
            .map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX).min(workers));
        module.persistent_blocks.push(blocks);
    }
    let (major, minor) = version;
    let head = format!(
        ".version {major}.{minor}\n.target {}\n.address_size 64\n",
        target.name
    );
    module.text.insert_str(0, &head);
    Ok(module)
}

fn tensor_maps(program: &Program) -> Result<Vec<TensorMapSpec>> {
    let mut maps = Vec::new();
    for (i, param) in program.params.iter().enumerate() {
        let ParamKind::TensorMap(map) = &param.kind else {
            continue;
        };
        let found = program.params.iter().enumerate().find_map(|(at, p)| {
            let ParamKind::Buffer(buffer) = &p.kind else {
                return None;
            };
            (p.value == map.buffer).then_some((at, buffer.dtype))
        });
        let (buffer, dtype) = found.ok_or_else(|| {
            err!(
                InvalidKernel,
                "tensor map {} describes no buffer",
                param.name
            )
        })?;
        let boxed = map.boxed.iter().map(|extent| u32::try_from(*extent));
        maps.push(TensorMapSpec {
            param: i as u32,
            buffer_param: buffer as u32,
            dtype,
            dims: map.dims.clone(),
            strides: map.strides.clone(),
            boxed: boxed
                .collect::<Result<_, _>>()
                .map_err(|_| err!(InvalidKernel, "a box of {:?}", map.boxed))?,
            swizzle_bytes: swizzle_span(map.swizzle)?,
        });
    }
    Ok(maps)
}

/// Bytes of a row under a swizzle that the copy engine knows.
fn swizzle_span(swizzle: Option<Swizzle>) -> Result<u32> {
    match swizzle {
        None => Ok(0),
        Some(Swizzle::B32) => Ok(32),
        Some(Swizzle::B64) => Ok(64),
        Some(Swizzle::B128) => Ok(128),
        Some(other) => Err(err!(
            NoLowering,
            "the copy engine has no swizzle like {other:?}"
        )),
    }
}
