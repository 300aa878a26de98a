//! Where the values of a plan lie, and what becomes of the memory of results and operands.

use oxyfuel_base::{Code, DType, Expr};
use oxyfuel_engine::{Executable, Options, Target, compile, cpu_device};
use oxyfuel_graph::HostTensor;
use oxyfuel_plan::{BufferHome, Plan};
use oxyfuel_runtime::tensor::Tensor;

/// Four products, of which two live at once: the second is computed where the last will be.
const CHAIN: &str = "graph @f(%x: f32[24, 24] cpu) {
  %a: f32[24, 24] = mm %x, %x
  %b: f32[24, 24] = mm %a, %x
  %c: f32[24, 24] = mm %b, %x
  %d: f32[24, 24] = mm %c, %x
  return %d
}";

fn options() -> Options {
    Options {
        threads: 1,
        ..Options::default()
    }
}

fn plan(text: &str) -> Plan {
    let graph = oxyfuel_graph::parse("test", text).unwrap();
    let target = Target::host(&options()).unwrap();
    compile(&graph, &target, &options(), false).unwrap().plan
}

fn product(a: &[f32], b: &[f32], n: usize) -> Vec<f32> {
    let element = |i: usize| (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]).sum();
    (0..n * n).map(element).collect()
}

#[test]
fn what_lies_in_a_result_is_computed_there_however_the_call_is_made() {
    let plan = plan(CHAIN);
    let within = |home: &BufferHome| matches!(home, BufferHome::Within { .. });
    assert!(plan.buffers.values().any(|buffer| within(&buffer.home)));
    let device = cpu_device(&options());
    let executable = Executable::load(plan, Default::default(), device.clone()).unwrap();
    let values: Vec<f32> = (0..24 * 24).map(|i| (i % 7) as f32 - 3.0).collect();
    let x = Tensor::from_slice(device.memory(), &values, &[24, 24]).unwrap();
    let expected = (0..4).fold(values.clone(), |a, _| product(&a, &values, 24));
    let check = |y: &Tensor| assert_eq!(y.to_vec::<f32>().unwrap(), expected);
    // Sums of small integers are exact in any order.
    let mut outputs = executable.run(&[&x]).unwrap();
    check(&outputs[0]);
    outputs[0].copy_from(&x).unwrap();
    executable.run_into(&[&x], &mut outputs).unwrap();
    check(&outputs[0]);
    let given = Tensor::from_slice(device.memory(), &values, &[24, 24]).unwrap();
    check(&executable.run_given(&[&given], &[true]).unwrap()[0]);
    let y = Tensor::from_slice(device.memory(), &values, &[24, 24]).unwrap();
    let mut bound = executable.bind(&[&x], &[Some(&y)]).unwrap();
    for _ in 0..2 {
        bound.call().unwrap();
        check(&y);
    }
    assert_eq!(x.to_vec::<f32>().unwrap(), values);
}

#[test]
fn a_result_that_is_touched_while_its_memory_is_anothers_is_refused() {
    let good = plan(CHAIN);
    oxyfuel_plan::verify(&good).unwrap();
    let tenant = |plan: &Plan| {
        let mut buffers = plan.buffers.iter();
        let found = buffers.find_map(|(id, buffer)| match buffer.home {
            BufferHome::Within { buffer, .. } => Some((id, buffer)),
            _ => None,
        });
        found.unwrap()
    };
    let (id, owner) = tenant(&good);
    let spoil: [fn(&mut Plan, _, _); 4] = [
        // It lives until the result is written.
        |plan, id, owner| plan.buffers[id].last_step = plan.buffers[owner].first_step,
        // It is dead before its reader runs.
        |plan, id, _| plan.buffers[id].last_step = plan.buffers[id].first_step,
        |plan, id, _| plan.buffers[id].bytes = plan.buffers[id].bytes.clone() * 2,
        // What it lies in is no result.
        |plan, id, owner| {
            plan.buffers[owner].home = BufferHome::Arena { offset: 0.into() };
            let _ = id;
        },
    ];
    for spoil in spoil {
        let mut bad = good.clone();
        spoil(&mut bad, id, owner);
        assert_eq!(
            oxyfuel_plan::verify(&bad).unwrap_err().code,
            Code::InvalidPlan
        );
    }
}

/// Two results of one kernel over its two operands, and one over an operand that lies in the result; sides that no vector divides.
const OVER: &str = "graph @f(%x: i64[67, 131] cpu) {
  %a: i64[67, 131] = cumsum %x, dim=1
  %b: i64[67, 131] = cumsum %x, dim=0
  %c: i64[67, 131] = sub %a, %b
  %d: i64[67, 131] = mul %a, %b
  %e: i64[67, 131] = cumsum %c, dim=1
  %f: i64[67, 131] = cumsum %d, dim=1
  %g: i64[67, 131] = sub %e, %f
  return %g
}";

#[test]
fn results_over_operands_are_those_beside_them() {
    let graph = oxyfuel_graph::parse("test", OVER).unwrap();
    let values: Vec<i64> = (0..67 * 131).map(|i| i * 31 % 17 - 8).collect();
    let bytes: Vec<f64> = values.iter().map(|&v| v as f64).collect();
    let x = HostTensor::from_f64(DType::I64, &[67, 131], &bytes).unwrap();
    let expected = oxyfuel_graph::run(&graph, &[x]).unwrap();
    let expected: Vec<i64> = (0..values.len())
        .map(|i| expected[0].get(i).as_i64())
        .collect();
    for threads in [1, 3] {
        let options = Options {
            threads,
            ..Options::default()
        };
        let target = Target::host(&options).unwrap();
        let plan = compile(&graph, &target, &options, false).unwrap().plan;
        // %c and %d lie in %a and %b, %e and %g in the result.
        assert_eq!(plan.buffers.len(), 5);
        let device = cpu_device(&options);
        let executable = Executable::load(plan, Default::default(), device.clone()).unwrap();
        let x = Tensor::from_slice(device.memory(), &values, &[67, 131]).unwrap();
        let y = &executable.run(&[&x]).unwrap()[0];
        assert_eq!(y.to_vec::<i64>().unwrap(), expected);
    }
}

/// Rows longer than any cache, long reductions over several axes, sorts, scans, and products of every kind of operand.
const LARGE: [&str; 11] = [
    "graph @f(%x: f32[64, 50257] cpu) {
  %y: f32[64, 50257] = _log_softmax %x, dim=1
  return %y
}",
    "graph @f(%x: bf16[512, 16384] cpu) {
  %y: bf16[512, 16384], %m: f32[512, 1], %r: f32[512, 1] = native_layer_norm %x, rank=1, eps=1e-5
  return %y, %m, %r
}",
    "graph @f(%x: f32[64, 256, 3136] cpu) {
  %y: f32[256] = var %x, dims=[0, 2], correction=1.0, keepdim=false
  return %y
}",
    "graph @f(%x: f32[16, 1000000] cpu) {
  %y: f32[16, 1000000] = cumsum %x, dim=1
  return %y
}",
    "graph @f(%x: f32[4, 1000000] cpu) {
  %y: i64[4, 1000000] = argsort %x, dim=1, descending=false
  return %y
}",
    "graph @f(%x: f32[2048, 4096] cpu, %w: f32[4096, 8192] cpu) {
  %y: f32[2048, 8192] = mm %x, %w
  %z: f32[2048, 8192] = relu %y
  return %z
}",
    "graph @f(%x: bf16[2048, 4096] cpu, %w: bf16[4096, 8192] cpu) {
  %y: bf16[2048, 8192] = mm %x, %w
  return %y
}",
    "graph @f(%x: f32[4096, 4096] cpu) {
  %t: f32[4096, 4096] = permute %x, dims=[1, 0]
  %y: f32[4096, 4096] = add %x, %t
  %s: f32[4096] = sum %y, dims=[0], keepdim=false
  return %y, %s
}",
    "graph @f(%x: f32[64, 8000000] cpu) {
  %y: f32[64, 8000000] = _softmax %x, dim=1
  return %y
}",
    "graph @f(%x: f32[2000000, 64] cpu) {
  %m: f32[1, 64] = mean %x, dims=[0], keepdim=true
  %c: f32[2000000, 64] = sub %x, %m
  %e: f32[2000000, 64] = exp %c
  %s: f32[1, 64] = sum %e, dims=[0], keepdim=true
  %y: f32[2000000, 64] = div %e, %s
  return %y
}",
    "graph @f(%q: f32[2, 8, 4096, 256] cpu, %k: f32[2, 8, 4096, 256] cpu) {
  %y: f32[2, 8, 4096, 256], %l: f32[2, 8, 4096] = sdpa %q, %k, %k, causal=true, scale=0.1
  return %y
}",
];

/// What a plan does not count, each worker's scratch, has a bound.
#[test]
fn scratch_of_a_worker_is_at_most_four_mebibytes() {
    for text in LARGE {
        let plan = plan(text);
        let explanation = oxyfuel_engine::explain(&plan, &Default::default(), &Default::default());
        let scratch = explanation.memory.scratch_bytes;
        assert!(scratch <= 4 << 20, "{scratch} bytes for {text}");
    }
}

/// Attention over so many positions, by name, and as many again in a cache. Four heads of 64 columns.
fn attentions(s: &str, twice: &str) -> Vec<(&'static str, String)> {
    let qkv = |dtype: &str| {
        format!(
            "%q: {dtype}[1, 4, {s}, 64] cpu, %k: {dtype}[1, 4, {s}, 64] cpu, %v: {dtype}[1, 4, {s}, 64] cpu"
        )
    };
    let forward = |dtype: &str, more: &str, mask: &str, causal: bool| {
        format!(
            "graph @f({}{more}) {{
  %y: {dtype}[1, 4, {s}, 64], %l: f32[1, 4, {s}] = sdpa %q, %k, %v{mask}, causal={causal}, scale=0.125
  return %y
}}",
            qkv(dtype)
        )
    };
    let backward = |dtype: &str, causal: bool| {
        format!(
            "graph @f({}, %g: {dtype}[1, 4, {s}, 64] cpu) {{
  %y: {dtype}[1, 4, {s}, 64], %l: f32[1, 4, {s}] = sdpa %q, %k, %v, causal={causal}, scale=0.125
  %dq: {dtype}[1, 4, {s}, 64], %dk: {dtype}[1, 4, {s}, 64], %dv: {dtype}[1, 4, {s}, 64] = sdpa_backward %g, %q, %k, %v, %y, %l, causal={causal}, scale=0.125
  return %y, %dq, %dk, %dv
}}",
            qkv(dtype)
        )
    };
    // The scores of all heads, masked to what is not after them.
    let written = format!(
        "  %q3: f32[4, {s}, 64] = view %q
  %k3: f32[4, {s}, 64] = view %k
  %v3: f32[4, {s}, 64] = view %v
  %t: f32[4, 64, {s}] = permute %k3, dims=[0, 2, 1]
  %p: f32[4, {s}, {s}] = bmm %q3, %t
  %p4: f32[1, 4, {s}, {s}] = view %p
  %c: f32[] = full value=0.125
  %s: f32[1, 4, {s}, {s}] = mul %p4, %c
  %i: i64[{s}] = arange start=0, step=1
  %r: i64[{s}, 1] = view %i
  %m: bool[{s}, {s}] = ge %r, %i
  %n: f32[] = full value=-inf
  %x: f32[1, 4, {s}, {s}] = where %m, %s, %n
  %w: f32[1, 4, {s}, {s}] = _softmax %x, dim=3
  %w3: f32[4, {s}, {s}] = view %w
  %o: f32[4, {s}, 64] = bmm %w3, %v3"
    );
    let gradients = format!(
        "  %wt: f32[4, {s}, {s}] = permute %w3, dims=[0, 2, 1]
  %dv: f32[4, {s}, 64] = bmm %wt, %g
  %vt: f32[4, 64, {s}] = permute %v3, dims=[0, 2, 1]
  %dp: f32[4, {s}, {s}] = bmm %g, %vt
  %dp4: f32[1, 4, {s}, {s}] = view %dp
  %gy: f32[1, 4, {s}, {s}] = mul %dp4, %w
  %su: f32[1, 4, {s}, 1] = sum %gy, dims=[3], keepdim=true
  %sh: f32[1, 4, {s}, {s}] = mul %w, %su
  %ds: f32[1, 4, {s}, {s}] = sub %gy, %sh
  %z: f32[] = full value=0.0
  %dm: f32[1, 4, {s}, {s}] = where %m, %ds, %z
  %dc: f32[1, 4, {s}, {s}] = mul %dm, %c
  %dc3: f32[4, {s}, {s}] = view %dc
  %dq: f32[4, {s}, 64] = bmm %dc3, %k3
  %qt: f32[4, 64, {s}] = permute %q3, dims=[0, 2, 1]
  %dt: f32[4, 64, {s}] = bmm %qt, %dc3
  %dk: f32[4, {s}, 64] = permute %dt, dims=[0, 2, 1]"
    );
    // New positions behind those of a cache of twice as many.
    let cached = |rows: &str, dtype: &str| {
        format!(
            "graph @f(%q: {dtype}[1, 4, {rows}, 64] cpu, %k: {dtype}[1, 4, {twice}, 64] cpu, %v: {dtype}[1, 4, {twice}, 64] cpu, %m: bool[1, 1, {rows}, {s}] cpu) {{
  %kr: {dtype}[1, 4, {s}, 64] = slice %k, dim=2, start=0, end={s}, step=1
  %vr: {dtype}[1, 4, {s}, 64] = slice %v, dim=2, start=0, end={s}, step=1
  %y: {dtype}[1, 4, {rows}, 64], %l: f32[1, 4, {rows}] = sdpa %q, %kr, %vr, %m, causal=false, scale=0.125
  return %y
}}"
        )
    };
    let mask = format!(", %m: bool[1, 1, 1, {s}] cpu");
    vec![
        ("forward", forward("f32", "", "", false)),
        ("causal forward", forward("f32", "", "", true)),
        ("masked forward", forward("f32", &mask, ", %m", false)),
        ("forward of bf16", forward("bf16", "", "", true)),
        ("backward", backward("f32", false)),
        ("causal backward", backward("f32", true)),
        ("backward of bf16", backward("bf16", true)),
        (
            "written out",
            format!("graph @f({}) {{\n{written}\n  return %o\n}}", qkv("f32")),
        ),
        (
            "written out with gradients",
            format!(
                "graph @f({}, %g: f32[4, {s}, 64] cpu) {{\n{written}\n{gradients}\n  return %o, %dq, %dk, %dv\n}}",
                qkv("f32")
            ),
        ),
        ("prefill", cached(s, "f32")),
        ("prefill of bf16", cached(s, "bf16")),
        ("decode", cached("1", "f32")),
        ("decode of bf16", cached("1", "bf16")),
    ]
}

/// Nothing of as many elements as there are scores: twice the positions take at most twice the memory, on every kind of CPU.
#[test]
fn attention_takes_memory_by_its_length_and_not_by_its_square() {
    let cpus = || Target::all().filter(Target::can_interpret);
    let plan = |text: &str, target: &Target| {
        let graph = oxyfuel_graph::parse("test", text).unwrap();
        compile(&graph, target, &options(), false).unwrap().plan
    };
    // Little memory is the host's own; buffers lie in it one by one.
    let held = |plan: &Plan| {
        let hosts = plan
            .buffers
            .values()
            .filter_map(|buffer| match buffer.home {
                BufferHome::Host => buffer.bytes.as_const(),
                _ => None,
            });
        plan.arena_bytes.as_const().unwrap() + hosts.sum::<i64>()
    };
    const LENGTH: i64 = 1024;
    let [s, t, u] = [1, 2, 4].map(|times| (times * LENGTH).to_string());
    for ((name, short), (_, long)) in attentions(&s, &t).iter().zip(&attentions(&t, &u)) {
        for target in cpus() {
            let [short, long] = [short, long].map(|text| plan(text, &target));
            let [once, twice] = [&short, &long].map(held);
            let on = target.name();
            assert!(
                twice <= 2 * once + 4096,
                "{name} on {on}: {once} bytes, then {twice}"
            );
            // The scores of one head.
            let most = 4 * (2 * LENGTH) * (2 * LENGTH);
            for buffer in long.buffers.values() {
                let made = !matches!(buffer.home, BufferHome::Input(_));
                let bytes = buffer.bytes.as_const().unwrap();
                assert!(
                    !made || bytes < most,
                    "{name} on {on}: {} has {bytes} bytes",
                    buffer.name
                );
            }
            let explained =
                oxyfuel_engine::explain(&long, &Default::default(), &Default::default());
            assert!(
                explained.memory.scratch_bytes < most as u64,
                "{name} on {on}"
            );
        }
    }
}

/// The same where only a call knows the length.
#[test]
fn attention_of_any_length_takes_memory_by_its_length_too() {
    for (name, text) in attentions("s0", "2*s0") {
        let graph = format!("sym s0: 2..\n{text}");
        let graph = oxyfuel_graph::parse("test", &graph).unwrap();
        for target in Target::all().filter(Target::can_interpret) {
            let plan = compile(&graph, &target, &options(), false).unwrap().plan;
            let held = |length: i64| {
                let bytes = |size: &Expr| size.eval(&|_| Some(length)).unwrap();
                let hosts = plan.buffers.values().map(|buffer| match buffer.home {
                    BufferHome::Host => bytes(&buffer.bytes),
                    _ => 0,
                });
                bytes(&plan.arena_bytes) + hosts.sum::<i64>()
            };
            let [once, twice] = [1024, 2048].map(held);
            let on = target.name();
            // Chunks and blocks are filled up.
            assert!(
                twice <= 2 * once + (64 << 10),
                "{name} on {on}: {once} bytes, then {twice}"
            );
        }
    }
}

/// On cards that are not there, too, in launches that one call makes. Gradients are composed there, of scores in memory.
#[test]
fn attention_of_any_length_takes_memory_by_its_length_on_gpus() {
    use oxyfuel_runtime::device::Device;
    use oxyfuel_runtime::null::{NullCall, NullDevice, h200, small_card};
    let forward = attentions("s0", "2*s0")
        .into_iter()
        .filter(|(name, text)| !text.contains("sdpa_backward") && !name.contains("gradients"));
    let mut count = 0;
    for (name, text) in forward {
        let graph = format!("sym s0: 2..\n{text}");
        let graph = oxyfuel_graph::parse("test", &graph).unwrap();
        for card in [h200(), small_card()] {
            let target = Target::of_gpu(&card, "").unwrap();
            let plan = compile(&graph, &target, &options(), false).unwrap().plan;
            let on = target.name();
            let held = |length: i64| {
                let device = NullDevice::of(card.clone(), 0);
                let executable =
                    Executable::load(plan.clone(), Default::default(), device.clone()).unwrap();
                let inputs = graph.inputs.iter().map(|&input| {
                    let ty = graph.ty(input);
                    let sizes = ty.shape.iter().map(|d| d.eval(&|_| Some(length)).unwrap());
                    let shape: Vec<i64> = sizes.collect();
                    Tensor::empty_on(&*device, ty.dtype, &shape).unwrap()
                });
                let inputs: Vec<Tensor> = inputs.collect();
                let stats = || device.memory_summary().unwrap().ours;
                let before = stats().live;
                executable.run(&inputs.iter().collect::<Vec<_>>()).unwrap();
                let calls = device.calls();
                let is_attention = |call: &&NullCall| matches!(call, NullCall::Launch(kernel, ..) if kernel.contains("sdpa"));
                assert_eq!(
                    calls.iter().filter(is_attention).count(),
                    1,
                    "{name} on {on}"
                );
                stats().peak - before
            };
            let [once, twice] = [1024, 2048].map(held);
            assert!(
                twice <= 2 * once + (64 << 10),
                "{name} on {on}: {once} bytes, then {twice}"
            );
            count += 1;
        }
    }
    assert!(count >= 10, "{count}");
}
