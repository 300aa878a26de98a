//! Lowered programs, run by the tile interpreter, against the meaning of the graph they came from.

use oxyfuel_base::{DType, Expr, Scalar, Symbol};
use oxyfuel_graph::{Graph, HostTensor, Node, ValueId, parse};
use oxyfuel_kernel::interp::{Arg, run};
use oxyfuel_kernel::ir::ParamKind;
use oxyfuel_lower::{
    Argument, Lowered, Rounding, gather, gathers, has_kernel, join, join_arguments, joins,
    lower_group,
};
use oxyfuel_plan::{MatrixUnit, OperandHome, TargetDesc};
use oxyfuel_schedule::{Schedule, schedule};
use oxyfuel_transform::{decompose_but, simplify};

fn cpu() -> TargetDesc {
    TargetDesc {
        name: "small cpu".into(),
        isa: "test".into(),
        vector_bytes: 64,
        warp_lanes: 1,
        max_warps: 1,
        max_cluster: 1,
        registers: 32,
        workers: 2,
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        shared_bytes: 0,
        tiles_spill: true,
        powers_of_two: true,
        storage_floats: vec![],
        narrowed: vec![],
        tensor_copies: false,
        matrix_units: vec![],
        product_library: false,
    }
}

fn amx() -> TargetDesc {
    let unit = MatrixUnit {
        a: DType::BF16,
        b: DType::BF16,
        acc: DType::F32,
        m: 16,
        n: 16,
        k: 32,
        operands: OperandHome::Memory,
        b_pack: 2,
        accumulators: 4,
        asynchronous: false,
        warps: 1,
    };
    TargetDesc {
        matrix_units: vec![unit],
        ..cpu()
    }
}

const STORAGE_FLOATS: [DType; 4] = [DType::F8E4M3, DType::F8E5M2, DType::F4E2M1, DType::E8M0];

fn gpu() -> TargetDesc {
    let unit = MatrixUnit {
        a: DType::BF16,
        b: DType::BF16,
        acc: DType::F32,
        m: 64,
        n: 256,
        k: 16,
        operands: OperandHome::Shared,
        b_pack: 1,
        accumulators: 1,
        asynchronous: true,
        warps: 4,
    };
    TargetDesc {
        name: "small gpu".into(),
        vector_bytes: 0,
        warp_lanes: 32,
        max_warps: 32,
        max_cluster: 8,
        registers: 255,
        workers: 16,
        shared_bytes: 227 << 10,
        tiles_spill: false,
        powers_of_two: true,
        storage_floats: STORAGE_FLOATS.to_vec(),
        narrowed: vec![DType::F8E4M3, DType::F8E5M2],
        tensor_copies: true,
        matrix_units: vec![unit],
        ..cpu()
    }
}

/// One whose matrix unit is that of a warp, and that has no engine for copies.
fn older_gpu() -> TargetDesc {
    let unit = |dtype| MatrixUnit {
        a: dtype,
        b: dtype,
        acc: DType::F32,
        m: 16,
        n: 8,
        k: 16,
        operands: OperandHome::Registers,
        b_pack: 1,
        accumulators: 16,
        asynchronous: false,
        warps: 1,
    };
    TargetDesc {
        name: "older gpu".into(),
        shared_bytes: 99 << 10,
        max_cluster: 1,
        powers_of_two: true,
        narrowed: vec![],
        tensor_copies: false,
        matrix_units: vec![unit(DType::BF16), unit(DType::F16)],
        ..gpu()
    }
}

/// A cheap deterministic spread of values.
fn input(dtype: DType, shape: &[i64], seed: u64) -> HostTensor {
    let n: i64 = shape.iter().product();
    let value = |i: i64| {
        let x = (i as u64)
            .wrapping_add(seed << 32)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            >> 40;
        let unit = x as f64 / (1u64 << 24) as f64;
        if dtype.is_float() {
            unit * 4.0 - 2.0
        } else {
            (unit * 7.0).floor()
        }
    };
    HostTensor::from_f64(dtype, shape, &(0..n).map(value).collect::<Vec<_>>()).unwrap()
}

/// Runs every group of the graph and compares the outputs.
fn agree(text: &str, target: &TargetDesc, tolerance: f64) {
    agree_at(text, target, tolerance, &[]);
}

/// Numbers for the symbols of a graph, in order.
fn number(graph: &Graph, sizes: &[i64], size: &Expr) -> i64 {
    let symbols = graph.symbols.iter().map(|symbol| symbol.symbol);
    let known: Vec<(Symbol, i64)> = symbols.zip(sizes.iter().copied()).collect();
    let value = |symbol| known.iter().find(|(known, _)| *known == symbol);
    size.eval(&|symbol| value(symbol).map(|(_, value)| *value))
        .unwrap()
}

/// The same for these numbers.
fn agree_at(text: &str, target: &TargetDesc, tolerance: f64, sizes: &[i64]) {
    let source = parse("test", text).unwrap();
    let stays = |node: &Node| target.is_simt() && has_kernel(&source, node, target);
    let graph = simplify(&decompose_but(&source, &stays).unwrap()).unwrap();
    let plan = schedule(&graph, target).unwrap();
    let inputs: Vec<HostTensor> = source
        .inputs
        .iter()
        .enumerate()
        .map(|(i, &v)| {
            let ty = source.ty(v);
            let shape: Vec<i64> = ty.shape.iter().map(|d| number(&source, sizes, d)).collect();
            input(ty.dtype, &shape, i as u64 + 1)
        })
        .collect();
    let expected = oxyfuel_graph::run(&source, &inputs).unwrap();
    let mut memory: Memory = graph
        .inputs
        .iter()
        .copied()
        .zip(inputs.iter().map(|t| t.data.clone()))
        .collect();
    for (i, group) in plan.groups.iter().enumerate() {
        let lowered = group
            .alternatives
            .iter()
            .find_map(|&s| {
                lower_group(
                    &graph,
                    &plan,
                    group,
                    s,
                    target,
                    Rounding::Everywhere,
                    &format!("k{i}"),
                )
                .ok()
            })
            .unwrap_or_else(|| {
                lower_group(
                    &graph,
                    &plan,
                    group,
                    group.alternatives[0],
                    target,
                    Rounding::Everywhere,
                    "k",
                )
                .unwrap()
            });
        oxyfuel_kernel::verify(&lowered.mapped)
            .unwrap_or_else(|e| panic!("{e}\n{}", lowered.mapped));
        launch_at(&graph, &lowered, &mut memory, sizes);
    }
    judge_at(&graph, &plan, &memory, &expected, tolerance, sizes);
}

type Memory = std::collections::BTreeMap<ValueId, Vec<u8>>;

/// Runs a kernel by the tile interpreter.
fn launch(graph: &Graph, lowered: &Lowered, memory: &mut Memory) {
    launch_at(graph, lowered, memory, &[]);
}

fn launch_at(graph: &Graph, lowered: &Lowered, memory: &mut Memory, sizes: &[i64]) {
    let number = |size: &Expr| number(graph, sizes, size);
    // Storage floats are bytes to a kernel that computes with their codes.
    let dtype = |at: usize| match &lowered.mapped.params[at].kind {
        ParamKind::Buffer(buffer) => buffer.dtype,
        other => panic!("{other:?}"),
    };
    let arguments = lowered.arguments.iter();
    let arguments = arguments.filter(|argument| !matches!(argument, Argument::TensorMap));
    let mut buffers: Vec<Vec<u8>> = arguments
        .clone()
        .map(|argument| match argument {
            Argument::Value(v) => {
                let ty = graph.ty(*v);
                let bytes = number(&ty.numel()) as usize * ty.dtype.size();
                let known = memory.get(v).cloned();
                known.unwrap_or_else(|| vec![0; bytes])
            }
            Argument::Workspace(bytes) => vec![0; number(bytes) as usize],
            Argument::Size(_) | Argument::TensorMap => vec![],
        })
        .collect();
    let mut args: Vec<Arg> = buffers
        .iter_mut()
        .zip(arguments.clone())
        .enumerate()
        .map(|(at, (bytes, argument))| match argument {
            Argument::Size(size) => Arg::Scalar(Scalar::from(number(size))),
            _ => Arg::Buffer {
                dtype: dtype(at),
                bytes,
            },
        })
        .collect();
    run(&lowered.mapped, &mut args).unwrap_or_else(|e| panic!("{e}\n{}", lowered.mapped));
    drop(args);
    for (argument, bytes) in arguments.zip(buffers) {
        if let Argument::Value(v) = argument {
            memory.insert(*v, bytes);
        }
    }
}

/// Compares the outputs of a graph.
fn judge(graph: &Graph, plan: &Schedule, memory: &Memory, expected: &[HostTensor], tolerance: f64) {
    judge_at(graph, plan, memory, expected, tolerance, &[]);
}

fn judge_at(
    graph: &Graph,
    plan: &Schedule,
    memory: &Memory,
    expected: &[HostTensor],
    tolerance: f64,
    sizes: &[i64],
) {
    for (out, expected) in graph.outputs.iter().zip(expected) {
        let ty = graph.ty(out.value);
        let shape: Vec<i64> = ty.shape.iter().map(|d| number(graph, sizes, d)).collect();
        let got = HostTensor::new(
            ty.dtype,
            &shape,
            memory[&plan.placements.root(out.value)].clone(),
        )
        .unwrap();
        for (i, (a, b)) in got.to_f64().into_iter().zip(expected.to_f64()).enumerate() {
            let close = (a - b).abs() <= tolerance * b.abs().max(1.0)
                || (a.is_nan() && b.is_nan())
                || a == b;
            assert!(
                close,
                "element {i}: {a} instead of {b}\n{}",
                plan.display(graph)
            );
        }
    }
}

fn everywhere(text: &str, tolerance: f64) {
    for target in [cpu(), amx(), gpu()] {
        agree(text, &target, tolerance);
    }
}

/// A graph and tensors for its inputs.
fn given(text: &str) -> (Graph, Vec<HostTensor>) {
    let graph = parse("test", text).unwrap();
    let inputs = (graph.inputs.iter().zip(1..)).map(|(&v, seed)| {
        let ty = graph.ty(v);
        let shape: Vec<i64> = ty.shape.iter().map(|d| d.as_const().unwrap()).collect();
        input(ty.dtype, &shape, seed)
    });
    let inputs = inputs.collect();
    (graph, inputs)
}

/// All groups of a graph as one kernel; equal programs share their code.
fn agree_side_by_side(text: &str, programs: usize, target: &TargetDesc) {
    let (graph, inputs) = given(text);
    let plan = schedule(&graph, target).unwrap();
    let expected = oxyfuel_graph::run(&graph, &inputs).unwrap();
    let given = inputs.iter().map(|t| t.data.clone());
    let mut memory: Memory = graph.inputs.iter().copied().zip(given).collect();
    let mut parts: Vec<(Lowered, Vec<Vec<Argument>>)> = Vec::new();
    for group in &plan.groups {
        let rounding = Rounding::Everywhere;
        let strategy = group.alternatives[0];
        let lowered = lower_group(&graph, &plan, group, strategy, target, rounding, "k").unwrap();
        assert!(joins(&lowered).is_some(), "{}", lowered.mapped);
        let arguments = lowered.arguments.clone();
        match parts
            .iter_mut()
            .find(|(other, _)| other.mapped == lowered.mapped)
        {
            Some((_, sets)) => sets.push(arguments),
            None => parts.push((lowered, vec![arguments])),
        }
    }
    assert_eq!(parts.len(), programs);
    let counted: Vec<(&Lowered, usize)> = parts.iter().map(|(l, sets)| (l, sets.len())).collect();
    let mut joined = join("joined", &counted).unwrap();
    let sets = parts
        .iter()
        .map(|(_, sets)| sets.iter().map(|set| &set[..]).collect());
    joined.arguments = join_arguments(&sets.collect::<Vec<_>>());
    oxyfuel_kernel::verify(&joined.mapped).unwrap_or_else(|e| panic!("{e}\n{}", joined.mapped));
    launch(&graph, &joined, &mut memory);
    judge(&graph, &plan, &memory, &expected, 0.0);
}

#[test]
fn work_on_tensors_of_its_own_is_one_kernel() {
    let text = "graph @f(%a: f32[40, 70] cpu, %b: f32[40, 70] cpu, %c: f32[3000] cpu, %d: f32[3000] cpu, %e: f32[40, 70] cpu, %f: f32[40, 70] cpu, %g: f32[70, 40] cpu, %h: f32[40, 70] cpu) {
  %x: f32[40, 70] = sub %a, %b
  %y: f32[3000] = sub %c, %d
  %z: f32[40, 70] = sub %e, %f
  %t: f32[40, 70] = permute %g, dims=[1, 0]
  %u: f32[40, 70] = sub %t, %h
  return %x, %y, %z, %u
}";
    agree_side_by_side(text, 3, &cpu());
    // A transpose has blocks of another size on a GPU.
    let (straight, _) = text.split_once("  %t").unwrap();
    let straight = format!("{straight}  return %x, %y, %z\n}}");
    agree_side_by_side(&straight, 2, &gpu());
}

/// Kernels of unlike numbers of warps and phases as those of one. Here they know nothing of each other: what one leaves for the next is the same memory on a device, and buffers apart in the interpreter.
#[test]
fn phases_of_several_kernels_are_those_of_one() {
    let text =
        "graph @f(%a: i32[64, 64] cpu, %b: i32[9] cpu, %c: i64[20000] cpu, %d: i32[3, 5000] cpu) {
  %s: i32[64, 1] = amax %a, dims=[1], keepdim=true
  %x: i32[64, 64] = sub %a, %s
  %y: i32[9] = neg %b
  %z: i64[20000] = cumsum %c, dim=0
  %u: i32[3] = amax %d, dims=[1], keepdim=false
  return %x, %y, %z, %u
}";
    let target = gpu();
    let (graph, inputs) = given(text);
    let plan = schedule(&graph, &target).unwrap();
    let expected = oxyfuel_graph::run(&graph, &inputs).unwrap();
    let bytes = inputs.iter().map(|t| t.data.clone());
    let mut memory: Memory = graph.inputs.iter().copied().zip(bytes).collect();
    let lowered = plan.groups.iter().map(|group| {
        let (strategy, rounding) = (group.alternatives[0], Rounding::Everywhere);
        lower_group(&graph, &plan, group, strategy, &target, rounding, "k").unwrap()
    });
    let parts: Vec<Lowered> = lowered.collect();
    let warps: Vec<u32> = parts.iter().map(|p| p.mapped.geometry.warps).collect();
    assert!(warps.iter().any(|w| *w != warps[0]), "{warps:?}");
    assert!(parts.iter().all(|part| gathers(part, 8).is_some()));
    let mut all = gather("all", &parts.iter().collect::<Vec<_>>(), 8).unwrap();
    all.arguments = parts.iter().flat_map(|p| p.arguments.clone()).collect();
    let phases: usize = parts.iter().map(|part| part.mapped.phases.len()).sum();
    assert_eq!((all.mapped.phases.len(), all.mapped.gathered), (phases, 8));
    assert!(phases > parts.len(), "one of them has several");
    oxyfuel_kernel::verify(&all.mapped).unwrap_or_else(|e| panic!("{e}\n{}", all.mapped));
    let text = all.mapped.to_string();
    let again = oxyfuel_kernel::parse::parse("again", &text).unwrap();
    assert_eq!(again.to_string(), text);
    launch(&graph, &all, &mut memory);
    judge(&graph, &plan, &memory, &expected, 0.0);
}

#[test]
fn what_fills_a_machine_is_not_gathered() {
    let target = gpu();
    let one = |text: &str| {
        let (graph, _) = given(text);
        let plan = schedule(&graph, &target).unwrap();
        let (group, rounding) = (&plan.groups[0], Rounding::Everywhere);
        let mut ways = group.alternatives.iter().filter_map(|&strategy| {
            lower_group(&graph, &plan, group, strategy, &target, rounding, "k").ok()
        });
        ways.next().unwrap()
    };
    let rows = |n| {
        one(&format!(
            "graph @f(%a: f32[{n}, 512] cpu) {{\n  %s: f32[{n}] = sum %a, dims=[1], keepdim=false\n  return %s\n}}"
        ))
    };
    assert!(gathers(&rows(8), 8).is_some());
    assert_eq!(gathers(&rows(4096), 8), None);
    let product = one(
        "graph @f(%a: bf16[128, 64] cpu, %b: bf16[64, 256] cpu) {\n  %c: bf16[128, 256] = mm %a, %b\n  return %c\n}",
    );
    assert_eq!(
        gathers(&product, 8),
        None,
        "the matrix unit has copies of its own"
    );
}

#[test]
fn sums_of_rows_are_one_kernel() {
    let text = "graph @f(%a: i32[40, 70] cpu, %b: i32[9, 300] cpu, %c: i32[40, 70] cpu) {
  %x: i32[40] = amax %a, dims=[1], keepdim=false
  %y: i32[9] = amax %b, dims=[1], keepdim=false
  %z: i32[40] = amax %c, dims=[1], keepdim=false
  return %x, %y, %z
}";
    agree_side_by_side(text, 2, &cpu());
}

#[test]
fn softmax_of_rows() {
    everywhere(
        "graph @f(%x: f32[5, 300] cpu) {\n  %y: f32[5, 300] = _softmax %x, dim=1\n  return %y\n}",
        1e-6,
    );
}

#[test]
fn softmax_of_columns() {
    everywhere(
        "graph @f(%x: f32[40, 70] cpu) {\n  %y: f32[40, 70] = _softmax %x, dim=0\n  return %y\n}",
        1e-6,
    );
}

#[test]
fn a_row_too_long_for_registers() {
    agree(
        "graph @f(%x: f32[2, 40001] cpu) {\n  %y: f32[2, 40001] = _log_softmax %x, dim=1\n  return %y\n}",
        &gpu(),
        1e-5,
    );
}

/// Threads that meet nothing but minus infinity before the others have numbers, rows that wide accesses fit, and the parts of a row behind its whole pieces.
#[test]
fn a_long_row_in_one_reading() {
    let masked = |dtype: &str, n: i64| {
        format!(
            "graph @f(%x: {dtype}[2, {n}] cpu) {{\n %1: {dtype}[] = full value=1.96875\n %2: bool[2, {n}] = lt %x, %1\n \
             %3: {dtype}[] = full value=-inf\n %4: {dtype}[2, {n}] = where %2, %3, %x\n \
             %5: {dtype}[2, {n}] = _softmax %4, dim=1\n return %5\n}}"
        )
    };
    agree(&masked("f32", 40961), &gpu(), 1e-6);
    agree(&masked("f32", 33792), &gpu(), 1e-6);
    agree(&masked("bf16", 34824), &gpu(), 1e-2);
    let text = "graph @f(%x: bf16[2, 40968] cpu) {\n %1: bf16[2, 40968] = _log_softmax %x, dim=1\n return %1\n}";
    agree(text, &gpu(), 1e-1);
}

/// A warp a row, and gates that are rounded between their steps.
#[test]
fn rows_of_warps_and_pairs() {
    let text = "graph @f(%x: bf16[256, 768] cpu align 64, %w: bf16[768] cpu align 64) {\n \
                %1: bf16[256, 768] = add %x, %w\n %2: bf16[256, 768] = tanh %1\n %3: bf16[256, 768] = mul %2, %w\n \
                %4: bf16[256, 768] = _softmax %3, dim=1\n return %3, %4\n}";
    agree(text, &gpu(), 1e-2);
}

#[test]
fn a_cut_reduction() {
    everywhere(
        "graph @f(%x: f32[100003] cpu) {\n  %s: f32[] = sum %x, dims=[0], keepdim=false\n  %y: f32[] = sqrt %s\n  return %y\n}",
        1e-4,
    );
    let walked = "graph @f(%x: f32[1000003] cpu, %y: f32[40001, 33] cpu) {
  %a: f32[1000003] = abs %x
  %s: f32[] = sum %a, dims=[0], keepdim=false
  %m: f32[] = amax %x, dims=[0], keepdim=false
  %c: f32[33] = sum %y, dims=[0], keepdim=false
  return %s, %m, %c
}";
    agree(walked, &gpu(), 1e-4);
}

#[test]
fn a_sum_down_columns() {
    everywhere(
        "graph @f(%x: f32[300, 129] cpu) {\n  %s: f32[129] = sum %x, dims=[0], keepdim=false\n  return %s\n}",
        1e-5,
    );
}

/// Columns that the caches do not hold are summed some rows at a time: blocks of columns and rows that are cut short, work before and behind, several results of one reading.
#[test]
fn sums_down_columns_that_come_from_memory() {
    let target = TargetDesc {
        l2_bytes: 4 << 10,
        ..cpu()
    };
    let text = "graph @f(%x: f32[150, 300] cpu, %w: bf16[2, 70, 640] cpu) {
  %a: f32[150, 300] = abs %x
  %s: f32[300] = sum %a, dims=[0], keepdim=false
  %m: f32[300] = amax %x, dims=[0], keepdim=false
  %y: f32[300] = mul %s, %m
  %b: bf16[2, 640] = sum %w, dims=[1], keepdim=false
  return %s, %y, %b
}";
    let graph = parse("test", text).unwrap();
    let plan = schedule(&graph, &target).unwrap();
    let walks = |group: &oxyfuel_schedule::Group| {
        let strategy = group.alternatives[0];
        let rounding = Rounding::Everywhere;
        let lowered = lower_group(&graph, &plan, group, strategy, &target, rounding, "k").unwrap();
        lowered.mapped.to_string().contains("step 16")
    };
    assert!(plan.groups.iter().all(walks));
    agree(text, &target, 2e-2);
}

#[test]
fn a_sum_down_columns_of_what_is_stored() {
    let text = "graph @f(%x: bf16[700, 150] cpu, %y: bf16[700, 150] cpu) {
  %a: bf16[700, 150] = mul %x, %y
  %b: bf16[700, 150] = tanh %a
  %s: bf16[1, 150] = sum %b, dims=[0], keepdim=true
  %t: bf16[1, 150] = neg %s
  return %b, %t
}";
    everywhere(text, 1e-2);
}

#[test]
fn layer_norm_in_bf16() {
    everywhere(
        "graph @f(%x: bf16[7, 96] cpu, %w: bf16[96] cpu) {\n  %y: bf16[7, 96], %m: f32[7, 1], %r: f32[7, 1] = native_layer_norm %x, %w, %w, rank=1, eps=1e-5\n  return %y, %m\n}",
        1e-2,
    );
}

#[test]
fn a_transposed_operand() {
    everywhere(
        "graph @f(%x: f32[130, 130] cpu) {\n  %t: f32[130, 130] = permute %x, dims=[1, 0]\n  %y: f32[130, 130] = add %x, %t\n  return %y\n}",
        0.0,
    );
}

#[test]
fn a_group_scale_broadcasts_inside_the_kernel() {
    everywhere(
        "graph @f(%m: i8[64, 32] cpu, %e: u8[64] cpu) {
  %c: f32[64, 32] = _to_copy %m
  %f: f32[64] = _to_copy %e
  %s: f32[64] = exp2 %f
  %v: f32[64, 1] = view %s
  %p: f32[64, 32] = mul %c, %v
  %y: bf16[64, 32] = _to_copy %p
  return %y
}",
        0.0,
    );
}

#[test]
fn concatenation_and_a_write_into_a_slice() {
    everywhere(
        "graph @f(%a: f32[3, 4] cpu, %b: f32[3, 5] cpu) {
  %c: f32[3, 9] = cat %a, %b, dim=1
  %y: f32[3, 9] = slice_scatter %c, %a, dim=1, start=2, end=6, step=1
  return %y
}",
        0.0,
    );
}

#[test]
fn embedding_and_gather() {
    everywhere(
        "graph @f(%w: f32[8, 70] cpu, %i: i64[2, 3] cpu, %j: i64[8, 70] cpu) {
  %e: f32[2, 3, 70] = embedding %w, %i
  %r: f32[2, 3, 70] = relu %e
  %g: f32[8, 70] = gather %w, %j, dim=0
  return %r, %g
}",
        0.0,
    );
}

#[test]
fn a_reshape_that_must_copy() {
    everywhere(
        "graph @f(%x: f32[6, 10] cpu) {
  %t: f32[10, 6] = permute %x, dims=[1, 0]
  %v: f32[60] = view %t
  %y: f32[60] = exp %v
  return %y
}",
        1e-6,
    );
}

#[test]
fn products() {
    let sizes = [
        (1, 7, 5),
        (33, 70, 65),
        (100, 64, 96),
        (130, 72, 264),
        (1, 64, 264),
        (130, 64, 1),
        (1, 8, 1),
    ];
    for (m, k, n) in sizes {
        for dtype in ["f32", "bf16"] {
            let text = format!(
                "graph @f(%a: {dtype}[{m}, {k}] cpu align 16, %b: {dtype}[{k}, {n}] cpu align 16, %c: {dtype}[{n}] cpu) {{
  %p: {dtype}[{m}, {n}] = addmm %c, %a, %b, beta=1, alpha=1
  %y: {dtype}[{m}, {n}] = gelu %p
  return %y
}}"
            );
            everywhere(&text, if dtype == "f32" { 1e-4 } else { 2e-2 });
        }
    }
}

/// Few rows times a weight that is stored by its outputs: several shares of the depth and one, columns and rows that do not fill their blocks, rows that lie further apart.
/// Rows of sums wait for several chunks of the depth, for the last rows of a band, in several instances.
#[test]
fn rows_of_products_are_reduced() {
    let target = TargetDesc {
        workers: 1,
        l1_bytes: 2 << 10,
        l2_bytes: 48 << 10,
        ..cpu()
    };
    let text = "graph @f(%x: f32[3, 83, 90] cpu, %w: f32[3, 90, 67] cpu, %r: f32[83, 67] cpu) {
  %p: f32[3, 83, 67] = bmm %x, %w
  %s: f32[3, 83, 67] = add %p, %r
  %y: f32[3, 83, 67] = _log_softmax %s, dim=2
  %m: f32[3, 83] = mean %p, dims=[2], keepdim=false
  return %y, %m
}";
    let mut graph = parse("test", text).unwrap();
    graph = decompose_but(&graph, &|_| false).unwrap();
    let plan = schedule(&simplify(&graph).unwrap(), &target).unwrap();
    assert_eq!(plan.groups.len(), 1);
    agree(text, &target, 1e-4);
}

#[test]
fn products_of_few_rows_on_a_gpu() {
    for (m, k, n) in [
        (1, 32, 16),
        (3, 96, 24),
        (8, 256, 40),
        (16, 1024, 32),
        (17, 160, 100),
        (32, 512, 64),
    ] {
        for dtype in ["bf16", "f16"] {
            let text = format!(
                "graph @f(%a: {dtype}[{m}, {k}] cpu align 16, %w: {dtype}[{n}, {k}] cpu align 16, %c: {dtype}[{n}] cpu, %r: {dtype}[{m}, {n}] cpu) {{
  %t: {dtype}[{k}, {n}] = permute %w, dims=[1, 0]
  %p: {dtype}[{m}, {n}] = addmm %c, %a, %t, beta=1, alpha=1
  %g: {dtype}[{m}, {n}] = gelu %p
  %y: {dtype}[{m}, {n}] = add %g, %r
  return %y
}}"
            );
            agree(&text, &gpu(), 2e-2);
        }
    }
    let apart = "graph @f(%a: bf16[6, 128] cpu align 16, %w: bf16[48, 64] cpu align 16) {
  %s: bf16[6, 64] = slice %a, dim=1, start=64, end=128, step=1
  %t: bf16[64, 48] = permute %w, dims=[1, 0]
  %y: bf16[6, 48] = mm %s, %t
  return %y
}";
    agree(apart, &gpu(), 2e-2);
}

#[test]
fn batched_products_of_views() {
    everywhere(
        "graph @f(%a: f32[3, 40, 50] cpu, %b: f32[3, 60, 50] cpu) {
  %t: f32[3, 50, 60] = permute %b, dims=[0, 2, 1]
  %y: f32[3, 40, 60] = bmm %a, %t
  return %y
}",
        1e-4,
    );
}

/// Products through shared memory: one and several, every order of their operands, sizes that do not fill their blocks, blocks small and large.
#[test]
fn products_through_shared_memory_on_a_gpu() {
    for (batch, m, k, n) in [
        (1, 64, 32, 64),
        (3, 70, 50, 90),
        (2, 17, 100, 33),
        (20, 130, 40, 129),
    ] {
        for dtype in ["f32", "f64", "bf16", "f16"] {
            for (a, b) in [(false, false), (true, false), (false, true), (true, true)] {
                if batch == 20 && (a || dtype == "f16") {
                    continue;
                }
                let operand = |name: &str, turned: bool, rows: i64, cols: i64| match turned {
                    false => (
                        format!("%{name}: {dtype}[{batch}, {rows}, {cols}] cpu"),
                        format!("%{name}"),
                        String::new(),
                    ),
                    true => (
                        format!("%{name}: {dtype}[{batch}, {cols}, {rows}] cpu"),
                        format!("%{name}t"),
                        format!(
                            "  %{name}t: {dtype}[{batch}, {rows}, {cols}] = permute %{name}, dims=[0, 2, 1]\n"
                        ),
                    ),
                };
                let (a_in, a, a_view) = operand("a", a, m, k);
                let (b_in, b, b_view) = operand("b", b, k, n);
                let text = format!(
                    "graph @f({a_in}, {b_in}, %c: {dtype}[{m}, 1] cpu) {{\n{a_view}{b_view}  %p: {dtype}[{batch}, {m}, {n}] = bmm {a}, {b}\n  %y: {dtype}[{batch}, {m}, {n}] = mul %p, %c\n  return %y\n}}"
                );
                let tolerance = match dtype {
                    "bf16" => 4e-2,
                    "f16" => 1e-2,
                    _ => 1e-4,
                };
                agree(&text, &older_gpu(), tolerance);
            }
        }
    }
}

/// Files that every target runs, on GPUs with one matrix unit and the other, where these have a kernel for every such op. Returns how many those are.
fn files_on_a_gpu(op: &str, takes: impl Fn(&str) -> bool) -> usize {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/run");
    let mut kept = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !takes(path.file_stem().unwrap().to_str().unwrap()) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let start = text.find("sym s0").or(text.find("graph @")).unwrap();
        let end = text.find("\n}").unwrap() + 2;
        // Those of symbols name the numbers of each run.
        let runs = text[end..].lines().filter_map(|line| {
            let (_, sizes) = line.split_once(" sizes ")?;
            Some(sizes.split(", ").map(|n| n.parse().unwrap()).collect())
        });
        let mut runs: Vec<Vec<i64>> = runs.collect();
        let text = &text[start..end];
        if !text.starts_with("sym") {
            runs = vec![vec![]];
        }
        let tolerance = if text.contains("bf16") { 1e-1 } else { 1e-3 };
        let graph = parse("test", text).unwrap();
        for target in [gpu(), older_gpu()] {
            let mut nodes = graph.nodes.values().filter(|node| node.op.name() == op);
            if nodes.all(|node| has_kernel(&graph, node, &target)) {
                kept += 1;
                for sizes in &runs {
                    agree_at(text, &target, tolerance, sizes);
                }
            }
        }
    }
    kept
}

#[test]
fn attention_on_a_gpu() {
    let kept = files_on_a_gpu("sdpa", |name| {
        name.starts_with("sdpa_") && !name.contains("backward")
    });
    assert!(kept >= 26, "{kept} graphs kept their attention");
}

/// One kernel for any batch and length against what interprets the op: numbers of keys and queries around a block, none of them, heads that share, every order in memory, and masks that are repeated.
#[test]
fn attention_of_any_length_on_a_gpu() {
    let operands = |dtype: &str| {
        format!(
            "%q: {dtype}[s0, 4, s1, 24] cpu, %l: {dtype}[s2, s0, 2, 24] cpu, %v: {dtype}[s0, 2, 40, s2] cpu"
        )
    };
    let views = |dtype: &str| {
        format!(
            "  %k: {dtype}[s0, 2, s2, 24] = permute %l, dims=[1, 2, 0, 3]
  %w: {dtype}[s0, 2, s2, 40] = permute %v, dims=[0, 1, 3, 2]
"
        )
    };
    for (dtype, tolerance) in [("f32", 1e-4), ("bf16", 6e-2), ("f16", 1e-2)] {
        for (mask, causal) in [
            (None, false),
            (None, true),
            (Some("bool[s0, 1, s1, s2]"), false),
            (Some("f32[1, 4, 1, s2]"), false),
        ] {
            let (more, given) = match mask {
                Some(mask) => {
                    let mask = mask.replace("f32", dtype);
                    (format!(", %m: {mask} cpu"), ", %m")
                }
                None => (String::new(), ""),
            };
            let text = format!(
                "sym s0: 0..\nsym s1: 0..\nsym s2: 0..\ngraph @f({}{more}) {{\n{}  %y: {dtype}[s0, 4, s1, 40], %s: f32[s0, 4, s1] = sdpa %q, %k, %w{given}, causal={causal}, scale=0.2\n  return %y, %s\n}}",
                operands(dtype),
                views(dtype)
            );
            for target in [gpu(), older_gpu()] {
                let graph = parse("test", &text).unwrap();
                let mut nodes = graph.nodes.values();
                assert!(nodes.any(|node| has_kernel(&graph, node, &target)));
                for sizes in [
                    [2, 70, 130],
                    [1, 64, 64],
                    [1, 1, 65],
                    [3, 63, 1],
                    [2, 5, 0],
                    [2, 0, 7],
                    [0, 3, 3],
                ] {
                    agree_at(&text, &target, tolerance, &sizes);
                }
            }
        }
    }
}

/// Lines, images and volumes, with padding, strides, dilations and groups, from both orders of memory, and work on their results.
#[test]
fn convolutions_on_a_gpu() {
    let kept = files_on_a_gpu("convolution", |name| name.starts_with("convolution"));
    assert!(kept >= 12, "{kept} files");
    // Images, channels of a group, outputs of a group, groups; sizes, kernel, stride, padding, dilation.
    type Case = (i64, [i64; 3], Vec<[i64; 5]>);
    let cases: [Case; 6] = [
        (2, [3, 70, 1], vec![[9, 3, 1, 1, 1], [11, 3, 1, 1, 1]]),
        (1, [20, 16, 2], vec![[12, 3, 2, 1, 1], [14, 1, 1, 0, 1]]),
        (1, [40, 130, 1], vec![[20, 3, 1, 2, 2], [13, 3, 1, 0, 1]]),
        (3, [17, 33, 1], vec![[100, 5, 3, 2, 1]]),
        (
            1,
            [4, 18, 2],
            vec![[5, 3, 1, 1, 1], [6, 2, 2, 0, 1], [7, 3, 1, 1, 1]],
        ),
        (2, [64, 64, 1], vec![[8, 1, 1, 0, 1], [8, 1, 1, 0, 1]]),
    ];
    for (images, [channels, outputs, groups], axes) in cases {
        for dtype in ["f32", "bf16", "f64"] {
            for last in [false, true] {
                let all = |sizes: &[i64]| {
                    let sizes: Vec<String> = sizes.iter().map(i64::to_string).collect();
                    sizes.join(", ")
                };
                let of = |at: usize| axes.iter().map(|axis| axis[at]).collect::<Vec<i64>>();
                let (size, kernel, stride) = (of(0), of(1), of(2));
                let (padding, dilation) = (of(3), of(4));
                let out: Vec<i64> = (axes.iter())
                    .map(|[n, k, s, p, d]| (n + 2 * p - d * (k - 1) - 1) / s + 1)
                    .collect();
                let rank = axes.len() + 2;
                let x = [vec![images, channels * groups], size.clone()].concat();
                let w = [vec![outputs * groups, channels], kernel].concat();
                let y = [vec![images, outputs * groups], out].concat();
                let (x_in, view) = match last {
                    false => (x.clone(), String::new()),
                    true => {
                        let turned = [vec![images], size, vec![channels * groups]].concat();
                        let mut dims = vec![0, rank as i64 - 1];
                        dims.extend(1..rank as i64 - 1);
                        let view = format!(
                            "  %xt: {dtype}[{}] = permute %x, dims=[{}]\n",
                            all(&x),
                            all(&dims)
                        );
                        (turned, view)
                    }
                };
                let name = if last { "%xt" } else { "%x" };
                let bias = [vec![outputs * groups], vec![1; rank - 2]].concat();
                let (yt, bt) = (all(&y), all(&bias));
                let text = format!(
                    "graph @f(%x: {dtype}[{}] cpu, %w: {dtype}[{}] cpu, %b: {dtype}[{bt}] cpu, %r: {dtype}[{yt}] cpu) {{\n{view}  %c: {dtype}[{yt}] = convolution {name}, %w, stride=[{}], padding=[{}], dilation=[{}], groups={groups}\n  %d: {dtype}[{yt}] = add %c, %b\n  %e: {dtype}[{yt}] = add %d, %r\n  %y: {dtype}[{yt}] = relu %e\n  return %y\n}}",
                    all(&x_in),
                    all(&w),
                    all(&stride),
                    all(&padding),
                    all(&dilation)
                );
                let graph = parse("test", &text).unwrap();
                let kept =
                    (graph.nodes.values()).any(|node| has_kernel(&graph, node, &older_gpu()));
                assert!(kept, "{text}");
                agree(
                    &text,
                    &older_gpu(),
                    if dtype == "bf16" { 1e-1 } else { 1e-3 },
                );
            }
        }
    }
}

/// Every storage float, made of other numbers and read again: instructions of the machine, or arithmetic on bytes where it lacks them.
#[test]
fn storage_floats_everywhere() {
    let mut targets = vec![older_gpu()];
    targets.extend([cpu(), gpu()]);
    for name in ["f8e4m3", "f8e5m2", "f4e2m1", "e8m0"] {
        let text = format!(
            "graph @f(%x: f32[3, 300] cpu, %h: bf16[3, 300] cpu, %c: {name}[3, 300] cpu) {{
  %0: f32[] = full value=300.0
  %1: f32[3, 300] = mul %x, %0
  %2: {name}[3, 300] = _to_copy %1
  %3: {name}[3, 300] = _to_copy %h
  %4: f32[3, 300] = _to_copy %2
  %5: f32[3, 300] = _to_copy %c
  %6: f32[3, 300] = add %4, %5
  %7: {name}[300, 3] = permute %c, dims=[1, 0]
  %8: {name}[300, 3] = clone %7
  return %2, %3, %6, %8
}}"
        );
        for target in &targets {
            agree(&text, target, 0.0);
        }
        let product = format!(
            "graph @f(%a: bf16[64, 32] cpu, %b: bf16[32, 64] cpu) {{
  %1: bf16[64, 64] = mm %a, %b
  %2: bf16[64, 64] = relu %1
  %3: {name}[64, 64] = _to_copy %2
  return %3
}}"
        );
        for target in &targets {
            agree(&product, target, 0.0);
        }
    }
}

/// Rows in order on a GPU: in shared memory, in a workspace, and only so many places of long rows, with many equal elements among the integers.
#[test]
fn rows_in_order_on_a_gpu() {
    let little = TargetDesc {
        shared_bytes: 24 << 10,
        ..gpu()
    };
    let whole = |dtype: &str, n: i64, descending: bool| {
        format!(
            "graph @f(%x: {dtype}[3, {n}] cpu) {{\n  %y: i64[3, {n}] = argsort %x, dim=1, descending={descending}\n  return %y\n}}"
        )
    };
    for (dtype, n) in [
        ("f32", 2),
        ("i32", 37),
        ("bf16", 300),
        ("i64", 129),
        ("f32", 4097),
    ] {
        agree(&whole(dtype, n, n % 2 == 0), &gpu(), 0.0);
    }
    agree(&whole("f32", 3000, true), &little, 0.0);
    agree(&whole("f32", 9000, true), &gpu(), 0.0);
    let first = |dtype: &str, n: i64, wanted: i64, descending: bool| {
        format!(
            "graph @f(%x: {dtype}[2, {n}] cpu) {{
  %o: i64[2, {n}] = argsort %x, dim=1, descending={descending}
  %s: i64[2, {wanted}] = slice %o, dim=1, start=0, end={wanted}, step=1
  %y: i64[2, {wanted}] = neg %s
  return %y
}}"
        )
    };
    for (dtype, n, wanted) in [
        ("f32", 5000, 100),
        ("i32", 4096, 1024),
        ("f64", 700, 1),
        ("u8", 6001, 33),
        ("f32", 33000, 5),
    ] {
        agree(&first(dtype, n, wanted, n % 2 == 0), &gpu(), 0.0);
    }
}

/// Rows that are shorter than a part, just cut, and cut into many parts that end anywhere; sums, products and extremes, and work before and behind them.
#[test]
fn running_sums_of_long_rows_on_a_gpu() {
    let sums = |rows: i64, n: i64| {
        format!(
            "graph @f(%x: f32[{rows}, {n}] cpu, %y: f32[{rows}, 1] cpu) {{
  %a: f32[{rows}, {n}] = mul %x, %y
  %b: f32[{rows}, {n}] = cumsum %a, dim=1
  %c: f32[{rows}, {n}] = add %b, %y
  return %c
}}"
        )
    };
    for (rows, n) in [(1, 3000), (1, 16_385), (3, 40_001), (1, 65_536)] {
        agree(&sums(rows, n), &gpu(), 1e-6);
    }
    agree(
        "graph @f(%x: i64[20001] cpu, %y: f32[20001] cpu) {
  %a: i64[20001] = cumsum %x, dim=0
  %s: f32[20001] = sin %y
  %b: f32[20001] = cumprod %s, dim=0
  return %a, %b
}",
        &gpu(),
        1e-5,
    );
    // The sums of sums need all of the first ones: one block has the row.
    agree(
        "graph @f(%x: f32[20000] cpu) {
  %a: f32[20000] = cumsum %x, dim=0
  %b: f32[20000] = cumsum %a, dim=0
  return %b
}",
        &gpu(),
        1e-5,
    );
}

/// Elements for one place, with indices that occur again and again: single ones, in rows, in slices, and in slices of an inner dim; the last stays. Of those whose order is open, all are the same.
#[test]
fn elements_for_one_place() {
    everywhere(
        "graph @f(%x: f32[9] cpu, %y: f32[300] cpu, %i: i64[300] cpu, %u: f32[3, 9] cpu, %v: f32[3, 40] cpu, %j: i32[3, 40] cpu) {
  %a: f32[9] = scatter %x, %y, %i, dim=0
  %b: f32[3, 9] = scatter %u, %v, %j, dim=1
  return %a, %b
}",
        0.0,
    );
    everywhere(
        "graph @f(%x: f32[2, 9, 70] cpu, %y: f32[2, 40, 70] cpu, %i: i64[40] cpu, %z: f32[1, 9] cpu) {
  %v: i64[1, 40, 1] = view %i
  %e: i64[2, 40, 70] = expand %v
  %a: f32[2, 9, 70] = scatter %x, %y, %e, dim=1
  %s: f32[40, 9] = expand %z
  %w: f32[9, 9] = full value=0.5
  %b: f32[9, 9] = index_put %w, %s, %i, dim=0
  %t: f32[9, 40] = permute %s, dims=[1, 0]
  %c: f32[9, 9] = index_put %w, %t, %i, dim=1
  return %a, %b, %c
}",
        0.0,
    );
}

/// Rows that are added to others by an index that names the same ones again and again, in order: by a block of a GPU for each of them, or, of very many elements, by blocks with places of their own.
#[test]
fn rows_added_at_places() {
    everywhere(
        "graph @f(%x: f32[23, 70] cpu, %y: f32[600, 70] cpu, %i: i64[600] cpu, %u: f32[5, 23] cpu, %v: f32[5, 400] cpu, %j: i64[400] cpu) {
  %c: i64[600, 1] = view %i
  %e: i64[600, 70] = expand %c
  %a: f32[23, 70] = scatter %x, %y, %e, reduce=\"sum\", dim=0
  %b: f32[23, 70] = scatter %x, %y, %e, reduce=\"amax\", dim=0
  %d: i64[1, 400] = view %j
  %g: i64[5, 400] = expand %d
  %h: f32[5, 23] = scatter %u, %v, %g, reduce=\"sum\", dim=1
  return %a, %b, %h
}",
        0.0,
    );
    let text = "graph @f(%x: f32[5000, 3] cpu, %y: f32[500, 3] cpu, %i: i64[500] cpu, %v: f32[33000, 3] cpu, %j: i64[33000] cpu) {
  %c: i64[500, 1] = view %i
  %d: i64[500, 3] = expand %c
  %a: f32[5000, 3] = scatter %x, %y, %d, reduce=\"sum\", dim=0
  %e: i64[33000, 1] = view %j
  %g: i64[33000, 3] = expand %e
  %b: f32[5000, 3] = scatter %x, %v, %g, reduce=\"sum\", dim=0
  return %a, %b
}";
    agree(text, &gpu(), 0.0);
}

/// Numbers and positions that are added, copied or put somewhere, in any shape.
#[test]
fn sources_in_any_shape() {
    everywhere(
        "graph @f(%x: f32[3, 4] cpu) {
  %a: i64[12] = arange start=3, step=2
  %v: i64[3, 4] = view %a
  %t: i64[4, 3] = permute %v, dims=[1, 0]
  %c: i64[4, 6] = cat %t, %t, dim=1
  %f: f32[3, 4] = _to_copy %v
  %s: f32[3, 4] = add %f, %x
  return %c, %s
}",
        0.0,
    );
    everywhere(
        "graph @f(%x: f32[7, 700] cpu) {
  %o: f32[7, 4] = full value=1.5
  %w: f32[7, 700] = slice_scatter %x, %o, dim=1, start=8, end=12, step=1
  %p: f32[300] = arange start=0.5, step=0.25
  %n: i64[300] = arange start=900, step=-3
  %z: f32[1000] = full value=0.0
  %y: f32[1000] = index_put %z, %p, %n, dim=0
  return %w, %y
}",
        0.0,
    );
}
