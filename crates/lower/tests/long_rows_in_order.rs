//! Long rows in order on a GPU, digit by digit, run by the tile interpreter, against a stable sort.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use oxyfuel_base::{DType, Expr, Scalar, Symbol};
use oxyfuel_graph::{Graph, HostTensor, ValueId, parse};
use oxyfuel_kernel::interp::{Arg, run};
use oxyfuel_kernel::ir::ParamKind;
use oxyfuel_lower::{Argument, Lowered, Rounding, lower_group};
use oxyfuel_plan::TargetDesc;
use oxyfuel_schedule::{Group, Schedule, schedule};

fn gpu() -> TargetDesc {
    TargetDesc {
        name: "small gpu".into(),
        isa: "test".into(),
        vector_bytes: 0,
        warp_lanes: 32,
        max_warps: 32,
        max_cluster: 1,
        registers: 255,
        workers: 16,
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        shared_bytes: 227 << 10,
        tiles_spill: false,
        powers_of_two: true,
        storage_floats: vec![],
        narrowed: vec![],
        tensor_copies: false,
        matrix_units: vec![],
        product_library: false,
    }
}

/// Elements of which many are equal or of a kind of their own: both zeros, NaN, infinities, extremes; and some are any bits at all.
fn elements(dtype: DType, shape: &[i64], seed: u64) -> HostTensor {
    let (size, bits) = (dtype.size(), dtype.bits());
    let special = |value: f64| dtype.is_float().then(|| Scalar::F(value).to_bits(dtype));
    let mut kinds: Vec<u64> = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.5, -1.5]
        .into_iter()
        .filter_map(special)
        .collect();
    kinds.extend([
        0,
        1,
        1 << (bits - 1),
        u64::MAX >> (64 - bits),
        5 << (bits - 4),
    ]);
    let count: i64 = shape.iter().product();
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut element = |_| match next() {
        some if some % 3 == 0 => kinds[(some >> 8) as usize % kinds.len()],
        some => some >> (64 - bits),
    };
    let data = (0..count).flat_map(|i| element(i).to_le_bytes()[..size].to_vec());
    HostTensor::new(dtype, shape, data.collect()).unwrap()
}

fn compare(dtype: DType, a: &Scalar, b: &Scalar) -> Ordering {
    match (a, b) {
        (Scalar::F(a), Scalar::F(b)) => match (a.is_nan(), b.is_nan()) {
            (false, false) => a.partial_cmp(b).unwrap(),
            (a, b) => a.cmp(&b),
        },
        (Scalar::I(a), Scalar::I(b)) if dtype == DType::U64 => (*a as u64).cmp(&(*b as u64)),
        (Scalar::I(a), Scalar::I(b)) => a.cmp(b),
        other => panic!("{other:?}"),
    }
}

/// Positions that put the dim of a tensor in order.
fn sorted(x: &HostTensor, dim: usize, descending: bool) -> Vec<i64> {
    let numbers: Vec<Scalar> = x.scalars().collect();
    let size = |dims: &[i64]| dims.iter().product::<i64>() as usize;
    let (length, step) = (x.shape[dim] as usize, size(&x.shape[dim + 1..]));
    let mut result = vec![0; numbers.len()];
    for row in 0..size(&x.shape[..dim]) * step {
        let first = row / step * length * step + row % step;
        let mut order: Vec<usize> = (0..length).collect();
        order.sort_by(|&a, &b| {
            let order = compare(
                x.dtype,
                &numbers[first + a * step],
                &numbers[first + b * step],
            );
            if descending { order.reverse() } else { order }
        });
        for (place, at) in order.into_iter().enumerate() {
            result[first + place * step] = at as i64;
        }
    }
    result
}

/// The kernels of a graph.
fn lowered(graph: &Graph) -> (Schedule, Vec<Lowered>) {
    let target = gpu();
    let plan = schedule(graph, &target).unwrap();
    let lower = |group: &Group| {
        let (strategy, rounding) = (group.alternatives[0], Rounding::Everywhere);
        lower_group(graph, &plan, group, strategy, &target, rounding, "k").unwrap()
    };
    let kernels: Vec<Lowered> = plan.groups.iter().map(lower).collect();
    for kernel in &kernels {
        oxyfuel_kernel::verify(&kernel.mapped).unwrap();
    }
    (plan, kernels)
}

/// Phases of the kernel that has most.
fn phases(kernels: &[Lowered]) -> usize {
    let phases = kernels.iter().map(|kernel| kernel.mapped.phases.len());
    phases.max().unwrap_or(0)
}

/// Runs a graph of one input and one output, and returns what it stores and how many phases its longest kernel has.
fn stored(text: &str, x: &HostTensor, sizes: &[i64]) -> (usize, Vec<i64>) {
    let graph = parse("test", text).unwrap();
    let (plan, kernels) = lowered(&graph);
    let value = |symbol: Symbol| sizes.get(symbol.0 as usize).copied();
    let number = |size: &Expr| size.eval(&value).unwrap();
    let mut memory: BTreeMap<ValueId, Vec<u8>> = BTreeMap::new();
    memory.insert(graph.inputs[0], x.data.clone());
    for kernel in &kernels {
        let mut buffers: Vec<(DType, Vec<u8>)> = Vec::new();
        for (argument, param) in kernel.arguments.iter().zip(&kernel.mapped.params) {
            let ParamKind::Buffer(buffer) = &param.kind else {
                continue;
            };
            let bytes = match argument {
                Argument::Value(v) => memory.get(v).cloned().unwrap_or_else(|| {
                    let ty = graph.ty(*v);
                    vec![0xff; number(&ty.numel()) as usize * ty.dtype.size()]
                }),
                Argument::Workspace(len) => vec![0xff; number(len) as usize],
                Argument::Size(_) | Argument::TensorMap => panic!("{argument:?} of a buffer"),
            };
            buffers.push((buffer.dtype, bytes));
        }
        let mut places = buffers.iter_mut();
        let arg = |argument: &Argument| match argument {
            Argument::Size(size) => Arg::Scalar(Scalar::I(number(size))),
            Argument::Value(_) | Argument::Workspace(_) | Argument::TensorMap => {
                let (dtype, bytes) = places.next().unwrap();
                Arg::Buffer {
                    dtype: *dtype,
                    bytes,
                }
            }
        };
        let mut args: Vec<Arg<'_>> = kernel.arguments.iter().map(arg).collect();
        run(&kernel.mapped, &mut args).unwrap();
        drop(args);
        let values = kernel.arguments.iter();
        let values = values.filter(|argument| !matches!(argument, Argument::Size(_)));
        for (argument, (_, bytes)) in values.zip(buffers) {
            if let Argument::Value(v) = argument {
                memory.insert(*v, bytes);
            }
        }
    }
    let out = &memory[&plan.placements.root(graph.outputs[0].value)];
    let position = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
    (phases(&kernels), out.chunks(8).map(position).collect())
}

fn argsort(dtype: DType, shape: &[i64], dim: usize, descending: bool) -> String {
    let dims: Vec<String> = shape.iter().map(i64::to_string).collect();
    let dims = dims.join(", ");
    format!(
        "graph @f(%x: {dtype}[{dims}] cpu) {{\n  %y: i64[{dims}] = argsort %x, dim={dim}, descending={descending}\n  return %y\n}}"
    )
}

/// Sorts a dim of a tensor, in so many phases.
fn agree(dtype: DType, shape: &[i64], dim: usize, descending: bool, phases: usize) {
    let text = argsort(dtype, shape, dim, descending);
    let x = elements(dtype, shape, 1);
    let (made, got) = stored(&text, &x, &[]);
    assert_eq!(made, phases, "{text}");
    assert!(got == sorted(&x, dim, descending), "{text}");
}

/// Rows of a length that only the call knows.
fn agree_symbolic(dtype: DType, sizes: &[[i64; 2]], descending: bool, phases: usize) {
    let text = format!(
        "sym s0: 0..\nsym s1: 0.. hint 5000\ngraph @f(%x: {dtype}[s0, s1] cpu) {{\n  %y: i64[s0, s1] = argsort %x, dim=1, descending={descending}\n  return %y\n}}"
    );
    for &sizes in sizes {
        let x = elements(dtype, &sizes, 2);
        let (made, got) = stored(&text, &x, &sizes);
        assert_eq!(made, phases, "{text}");
        assert!(got == sorted(&x, 1, descending), "{text} of {sizes:?}");
    }
}

/// Three phases a digit of eight bits: as many digits as the numbers have, be they halves or not.
#[test]
fn every_dtype() {
    for (dtype, digits) in [
        (DType::F64, 8),
        (DType::F32, 4),
        (DType::F16, 3),
        (DType::BF16, 2),
        (DType::I64, 8),
        (DType::I32, 4),
        (DType::I16, 2),
        (DType::I8, 1),
        (DType::U64, 8),
        (DType::U32, 4),
        (DType::U16, 2),
        (DType::U8, 1),
    ] {
        for descending in [false, true] {
            agree_symbolic(dtype, &[[1, 2100]], descending, 3 * digits);
        }
    }
}

/// No rows or no elements, one tile, several, whole ones and just cut.
#[test]
fn lengths_of_the_call() {
    let sizes = [
        [0, 5],
        [3, 0],
        [1, 1],
        [5, 2],
        [3, 100],
        [2, 2047],
        [1, 2048],
        [2, 2049],
        [1, 4096],
        [1, 8195],
    ];
    agree_symbolic(DType::F32, &sizes, true, 12);
    agree_symbolic(DType::I8, &sizes, false, 3);
}

/// Known lengths: whole tiles, any number of them, rows along and across memory.
#[test]
fn lengths_that_are_known() {
    agree(DType::F32, &[10_240], 0, false, 12);
    agree(DType::BF16, &[2, 8448], 1, true, 6);
    agree(DType::U8, &[9001, 3], 0, true, 3);
    agree(DType::I16, &[2, 8500, 2], 1, false, 6);
}

/// More tiles than threads of a block that counts a value.
#[test]
fn many_tiles() {
    agree(DType::U8, &[600_001], 0, false, 3);
}

/// Rows that shared memory has room for are sorted there, where they are short or many.
#[test]
fn rows_of_a_block_each() {
    for (shape, made) in [
        ([3, 8192], 1),
        ([16, 8193], 1),
        ([15, 8193], 12),
        ([16, 20_000], 12),
    ] {
        let graph = parse("test", &argsort(DType::F32, &shape, 1, false)).unwrap();
        assert_eq!(phases(&lowered(&graph).1), made, "{shape:?}");
    }
}

/// Places of which nobody reads the last: too many to be chosen first.
#[test]
fn the_first_places() {
    let text = "graph @f(%x: i32[2, 9000] cpu) {
  %o: i64[2, 9000] = argsort %x, dim=1, descending=false
  %s: i64[2, 5000] = slice %o, dim=1, start=0, end=5000, step=1
  %y: i64[2, 5000] = neg %s
  return %y
}";
    let x = elements(DType::I32, &[2, 9000], 3);
    let (made, got) = stored(text, &x, &[]);
    assert_eq!(made, 12);
    let all = sorted(&x, 1, false);
    let first = all.chunks(9000).flat_map(|row| row[..5000].iter());
    assert!(got == first.map(|at| -at).collect::<Vec<_>>());
}
