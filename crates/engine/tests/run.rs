//! Graphs run, and say why they do not.

use oxyfuel_base::Code;
use oxyfuel_engine::{Executable, Mode, Options, Target, compile, cpu_device};
use oxyfuel_runtime::cpu::CpuDevice;
use oxyfuel_runtime::tensor::Tensor;
use std::sync::Arc;

const SOFTMAX: &str = "graph @f(%x: f32[3, 5] cpu, %b: f32[5] cpu) {
  %s: f32[3, 5] = add %x, %b
  %y: f32[3, 5] = _softmax %s, dim=1
  return %y
}";

fn options() -> Options {
    Options {
        threads: 2,
        verify: true,
        ..Options::default()
    }
}

fn load(text: &str, target: &Target, device: &Arc<CpuDevice>) -> Executable {
    let graph = oxyfuel_graph::parse("test", text).unwrap();
    let compiled = compile(&graph, target, &options(), false).unwrap();
    Executable::load(compiled.plan, compiled.record, device.clone()).unwrap()
}

fn tensor(device: &CpuDevice, shape: &[i64], values: impl Fn(i64) -> f32) -> Tensor {
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count).map(values).collect();
    Tensor::from_slice(device.memory(), &values, shape).unwrap()
}

/// Softmax of x + b over rows of five.
fn expected(x: &[f32], b: &[f32]) -> Vec<f32> {
    let row = |row: &[f32]| {
        let e: Vec<f64> = row
            .iter()
            .zip(b)
            .map(|(x, b)| f64::from(x + b).exp())
            .collect();
        let sum: f64 = e.iter().sum();
        e.iter().map(|e| (e / sum) as f32).collect::<Vec<_>>()
    };
    x.chunks(5).flat_map(row).collect()
}

#[test]
fn every_cpu_target_of_this_machine_runs() {
    let device = cpu_device(&options());
    let x = tensor(&device, &[3, 5], |i| i as f32 * 0.3 - 1.0);
    let b = tensor(&device, &[5], |i| 1.0 - i as f32);
    let expected = expected(&x.to_vec().unwrap(), &b.to_vec().unwrap());
    for target in Target::all().filter(|target| target.can_interpret() && target.supported_here()) {
        let executable = load(SOFTMAX, &target, &device);
        let close = |y: Vec<f32>| {
            for (y, e) in y.iter().zip(&expected) {
                assert!((y - e).abs() < 1e-6, "{}: {y} and {e}", target.name());
            }
        };
        close(executable.run(&[&x, &b]).unwrap()[0].to_vec().unwrap());
        let mut out = [Tensor::zeros(device.memory(), x.dtype(), &[3, 5]).unwrap()];
        executable.run_into(&[&x, &b], &mut out).unwrap();
        close(out[0].to_vec().unwrap());
        // A target laid out differently is filled by a copy.
        let turned = Tensor::zeros(device.memory(), x.dtype(), &[5, 3]).unwrap();
        let mut out = [turned.permute(&[1, 0]).unwrap()];
        executable.run_into(&[&x, &b], &mut out).unwrap();
        close(out[0].to_vec().unwrap());
    }
}

#[test]
fn what_lies_beside_a_given_output_stays() {
    let device = cpu_device(&options());
    let target = Target::host(&options()).unwrap();
    // The slice is the first part of what is computed, and the given tensor the first part of its memory.
    let text = "graph @f(%x: f32[20] cpu) {
  %y: f32[20] = neg %x
  %z: f32[4] = slice %y, dim=0, start=0, end=4, step=1
  return %z
}";
    let executable = load(text, &target, &device);
    let x = tensor(&device, &[20], |i| i as f32);
    let whole = tensor(&device, &[20], |_| 7.0);
    let mut out = [whole.slice(0, 0, 4, 1).unwrap()];
    executable.run_into(&[&x], &mut out).unwrap();
    let wanted: Vec<f32> = (0..20)
        .map(|i| if i < 4 { -(i as f32) } else { 7.0 })
        .collect();
    assert_eq!(whole.to_vec::<f32>().unwrap(), wanted);
}

/// Functions and casts for which levels of the machine have instructions of their own.
const TO_THE_BIT: &str = "graph @f(%x: f32[32, 2048] cpu) {
  %e: f32[32, 2048] = exp %x
  %f: f32[32, 2048] = exp2 %x
  %s: f32[32, 2048] = sigmoid %x
  %b: bf16[32, 2048] = _to_copy %x
  %m: f32[32, 1] = amax %x, dims=[1], keepdim=true
  %c: f32[32, 2048] = sub %x, %m
  %p: f32[32, 2048] = exp %c
  %t: f32[32, 1] = sum %p, dims=[1], keepdim=true
  %y: f32[32, 2048] = div %p, %t
  return %e, %f, %s, %b, %y
}";

#[test]
fn every_level_gives_the_same_bits() {
    let device = cpu_device(&options());
    // A walk over all floats, and one over the arguments whose exponentials are denormal or just above.
    let x = tensor(&device, &[32, 2048], |i| match i % 2 {
        0 => f32::from_bits((i as u32).wrapping_mul(65_521)),
        _ => -150.0 + i as f32 / 1024.0,
    });
    let machine = Target::all().filter(|target| target.supported_here());
    // What kind of NaN it is means nothing.
    let bits = |y: &Tensor| -> Vec<u32> {
        let number = |v: &f32| if v.is_nan() { u32::MAX } else { v.to_bits() };
        y.to_vec::<f32>().unwrap().iter().map(number).collect()
    };
    let mut first = None;
    for target in machine.filter(|target| target.name().starts_with("avx")) {
        let outputs = load(TO_THE_BIT, &target, &device).run(&[&x]).unwrap();
        // The order of the sum of the last one is a level's own.
        let floats: Vec<Vec<u32>> = outputs[..3].iter().map(bits).collect();
        let halves = outputs[3].to_bytes().unwrap();
        let half = |bytes: &[u8]| match u16::from_le_bytes([bytes[0], bytes[1]]) {
            nan if nan & 0x7fff > 0x7f80 => u16::MAX,
            number => number,
        };
        let all = (floats, halves.chunks(2).map(half).collect::<Vec<_>>());
        assert!(
            *first.get_or_insert_with(|| all.clone()) == all,
            "{}",
            target.name()
        );
    }
}

#[test]
fn guards_give_every_reason() {
    let device = cpu_device(&options());
    let executable = load(SOFTMAX, &Target::interpreter(), &device);
    let x = tensor(&device, &[3, 5], |i| i as f32);
    let b = tensor(&device, &[5], |i| i as f32);
    assert_eq!(executable.check(&[&x, &b]), Ok(()));

    let turned = tensor(&device, &[5, 3], |i| i as f32)
        .permute(&[1, 0])
        .unwrap();
    let longs = Tensor::from_slice(device.memory(), &[1i64, 2, 3, 4], &[4]).unwrap();
    let mismatches = executable.check(&[&turned, &longs]).unwrap_err();
    let reasons: Vec<(Code, &str)> = mismatches
        .iter()
        .map(|m| (m.code, m.reason.as_str()))
        .collect();
    assert_eq!(
        reasons,
        [
            (
                Code::LayoutMismatch,
                "the stride of dim 0 of input x is 1, not 5"
            ),
            (
                Code::LayoutMismatch,
                "the stride of dim 1 of input x is 3, not 1"
            ),
            (Code::DTypeMismatch, "input b is i64, not f32"),
            (Code::ShapeMismatch, "dim 0 of input b is 4, not 5"),
        ]
    );
    assert_eq!(
        executable.check(&[&x]).unwrap_err()[0].code,
        Code::ArityMismatch
    );
    assert!(executable.run(&[&turned, &b]).is_err());
}

#[test]
fn gpu_plans_load_on_the_null_device() {
    use oxyfuel_runtime::null::NullDevice;
    let text = "graph @f(%x: f32[3, 5] cpu, %b: f32[5] cpu) {
  %s: f32[3, 5] = add %x, %b
  %r: f32[3, 5] = relu %s
  %m: f32[3, 1] = amax %r, dims=[1], keepdim=true
  %y: f32[3, 5] = sub %r, %m
  return %y
}";
    let graph = oxyfuel_graph::parse("test", text).unwrap();
    for name in ["sm_80", "sm_90a"] {
        let target = Target::by_name(name).unwrap();
        let compiled = compile(&graph, &target, &options(), false).unwrap();
        let device = NullDevice::new(0);
        let executable = Executable::load(compiled.plan, compiled.record, device.clone()).unwrap();
        let x = Tensor::empty_on(&*device, oxyfuel_base::DType::F32, &[3, 5]).unwrap();
        let b = Tensor::empty_on(&*device, oxyfuel_base::DType::F32, &[5]).unwrap();
        let y = executable.run(&[&x, &b]).unwrap();
        assert_eq!(y[0].shape(), [3, 5]);
    }
}

/// What is written for a card of few multiprocessors asks for fewer blocks, and what does not fit into its memory is refused with what the plan needs and what is free.
#[test]
fn cards_differ_in_their_multiprocessors_and_their_memory() {
    use oxyfuel_runtime::device::Device;
    use oxyfuel_runtime::null::{NullCall, NullDevice, h200, small_card};
    let run = |card: &Arc<NullDevice>, op: &str, rows: i64| {
        let text = format!("graph @f(%x: f32[{rows}, 1024] cpu) {{\n  {op}\n  return %y\n}}");
        let graph = oxyfuel_graph::parse("test", &text.replace("ROWS", &rows.to_string())).unwrap();
        let target = Target::of_gpu(card.info(), "").unwrap();
        let compiled = compile(&graph, &target, &options(), false).unwrap();
        let executable = Executable::load(compiled.plan, compiled.record, card.clone()).unwrap();
        let x = Tensor::empty_on(&**card, oxyfuel_base::DType::F32, &[rows, 1024]).unwrap();
        let before = card.memory_summary().unwrap().ours.live;
        let result = executable.run(&[&x]).map(drop);
        (result, before, card.memory_summary().unwrap().ours.live)
    };
    let sum = "%y: f32[] = sum %x, dims=[0, 1], keepdim=false";
    let exp = "%y: f32[ROWS, 1024] = exp %x";
    let blocks = |card: &NullDevice| {
        let launched = card.calls().into_iter().filter_map(|call| match call {
            NullCall::Launch(_, _, grids) => grids.iter().map(|g| g.iter().product::<u64>()).max(),
            _ => None,
        });
        launched.collect::<Vec<u64>>()
    };
    let (large, small) = (NullDevice::of(h200(), 0), NullDevice::of(small_card(), 0));
    for card in [&large, &small] {
        run(card, sum, 4096).0.unwrap();
    }
    let [most, fewest] = [&large, &small].map(|card| blocks(card).into_iter().max());
    assert!(most > fewest, "{most:?} {fewest:?}");
    // 2.5 GiB go in, and as many come out.
    let rows = 5 << 17;
    run(&large, exp, rows).0.unwrap();
    let (result, before, after) = run(&small, exp, rows);
    let error = result.unwrap_err();
    assert_eq!(error.code, Code::OutOfMemory);
    let said = error.to_string();
    let (need, free) = (5u64 << 29, 3u64 << 29);
    assert!(
        said.contains(&format!("needs {need} bytes"))
            && said.contains(&format!("{free} of {} are free", 4u64 << 30)),
        "{said}"
    );
    assert_eq!(before, after);
    run(&small, exp, 4096).0.unwrap();
}

/// Small kernels that need each other are one launch, unless calls are recorded or the host waits after each kernel; and a plan of the one is not found for the other.
#[test]
fn kernels_are_gathered_where_calls_are_launched_one_by_one() {
    let graph = oxyfuel_graph::parse("test", CHAIN).unwrap();
    let target = Target::by_name("sm_90a").unwrap();
    let launches = |options: &Options| {
        let plan = compile(&graph, &target, options, false).unwrap().plan;
        plan.steps.len()
    };
    let plain = options();
    let recorded = Options {
        mode: Mode::ReduceOverhead,
        ..options()
    };
    let waiting = Options {
        launch_blocking: true,
        ..options()
    };
    assert_eq!(launches(&plain), 1);
    assert!(launches(&recorded) > 1);
    assert_eq!(launches(&waiting), launches(&recorded));
    assert_ne!(plain.key(), recorded.key());
    assert_ne!(plain.key(), waiting.key());
}

/// A sum that everything waits for, so that intermediates must live in memory.
const CHAIN: &str = "graph @chain(%x: f32[64, 64] cpu) {
  %a: f32[64, 64] = sin %x
  %s: f32[] = sum %a, dims=[0, 1], keepdim=false
  %b: f32[64, 64] = mul %a, %s
  %t: f32[64] = sum %b, dims=[0], keepdim=false
  %c: f32[64, 64] = sub %b, %t
  return %c
}";

/// What a plan says that a call takes is what the allocator sees: nothing hidden, nothing twice. The sizes are size classes of the allocator's.
#[test]
fn the_planned_peak_is_the_measured_one() {
    let options = Options {
        threads: 1,
        ..Options::default()
    };
    let device = cpu_device(&options);
    let x = tensor(&device, &[64, 64], |i| i as f32 * 0.001);
    let target = Target::host(&options).unwrap();
    let graph = oxyfuel_graph::parse("test", CHAIN).unwrap();
    let compiled = compile(&graph, &target, &options, false).unwrap();
    let executable = Executable::load(compiled.plan, compiled.record, device.clone()).unwrap();
    let planned = executable.program().planned_bytes().unwrap();
    let (result, arena) = (64 * 64 * 4, planned - 64 * 64 * 4);
    let before = device.memory().stats().live;
    let outputs = executable.run(&[&x]).unwrap();
    let after = device.memory().stats();
    let class = |bytes: usize| match bytes {
        0 => 512,
        // Size classes are eighths of a power of two.
        bytes => bytes.next_multiple_of((1 << bytes.ilog2()) / 8).max(512),
    };
    assert_eq!(after.live - before, class(arena) + class(result));
    assert_eq!(after.peak, after.live);
    drop(outputs);
    assert_eq!(device.memory().stats().live - before, class(arena));
}

#[test]
fn a_limit_refuses_before_anything_runs_and_names_the_largest_buffers() {
    let compiler = |memory_limit| {
        let options = Options {
            memory_limit,
            ..options()
        };
        oxyfuel_engine::Compiler::new(options).unwrap()
    };
    let graph = oxyfuel_graph::parse("test", CHAIN).unwrap();
    let planned = compiler(0).compile(&graph).unwrap();
    let planned = planned.program().planned_bytes().unwrap();
    let error = compiler(planned - 1).compile(&graph).unwrap_err();
    assert_eq!(error.code, Code::MemoryLimit);
    assert!(error.message.contains(&planned.to_string()), "{error}");
    let help = error.help.unwrap();
    assert!(help.contains("c (result, 16384 bytes"), "{help}");
    compiler(planned).compile(&graph).unwrap();

    // Where sizes are symbolic the call is refused, and smaller ones run.
    let text = "sym s0: 1..4096
graph @f(%x: f32[s0] cpu) {
  %y: f32[s0] = sin %x
  return %y
}";
    let graph = oxyfuel_graph::parse("test", text).unwrap();
    let compiler = compiler(400);
    let executable = compiler.compile(&graph).unwrap();
    let device = cpu_device(&options());
    let run = |n| executable.run(&[&tensor(&device, &[n], |i| i as f32)]);
    assert_eq!(run(100).unwrap().len(), 1);
    assert_eq!(run(101).unwrap_err().code, Code::MemoryLimit);
}

#[test]
fn columns_that_come_from_memory_are_summed_some_rows_at_a_time() {
    // More than the second-level caches hold; the last rows and columns are no whole block.
    let (rows, cols) = (3001, 1500);
    let text = format!(
        "graph @f(%x: f32[{rows}, {cols}] cpu) {{
  %s: f32[{cols}] = sum %x, dims=[0], keepdim=false
  %m: f32[{cols}] = amax %x, dims=[0], keepdim=false
  return %s, %m
}}"
    );
    let options = |target: &str| Options {
        threads: 2,
        target: target.to_owned(),
        ..Options::default()
    };
    let device = cpu_device(&options(""));
    let x = tensor(&device, &[rows, cols], |i| {
        ((i * 7919) % 10007) as f32 - 5000.0
    });
    let values = x.to_vec::<f32>().unwrap();
    let graph = oxyfuel_graph::parse("test", &text).unwrap();
    for name in ["avx2", "avx512"] {
        let target = Target::host(&options(name)).unwrap();
        if !target.supported_here() {
            continue;
        }
        let compiled = compile(&graph, &target, &options(name), false).unwrap();
        let executable = Executable::load(compiled.plan, compiled.record, device.clone()).unwrap();
        let results = executable.run(&[&x]).unwrap();
        let [sums, largest] = [0, 1].map(|i| results[i].to_vec::<f32>().unwrap());
        for c in 0..cols as usize {
            let column = || values.iter().skip(c).step_by(cols as usize);
            // Whole numbers whose sums f32 holds exactly, in any order.
            let sum: f64 = column().map(|x| f64::from(*x)).sum();
            assert_eq!(f64::from(sums[c]), sum, "{name}: column {c}");
            let most = column().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(largest[c], most, "{name}: column {c}");
        }
    }
}

#[test]
fn long_rows_are_stored_while_the_next_ones_are_reduced() {
    // More than the caches hold, in a number of rows that leaves some for a shorter instance.
    let (rows, cols) = (171, 50257);
    let text = format!(
        "graph @f(%x: f32[{rows}, {cols}] cpu) {{
  %y: f32[{rows}, {cols}] = _log_softmax %x, dim=1
  return %y
}}"
    );
    let options = |target: &str| Options {
        threads: 2,
        target: target.to_owned(),
        ..Options::default()
    };
    let device = cpu_device(&options(""));
    let value = |i: i64| ((i * 7919) % 10007) as f32 / 700.0 - i as f32 / 1e7;
    let x = tensor(&device, &[rows, cols], value);
    let graph = oxyfuel_graph::parse("test", &text).unwrap();
    for name in ["avx2", "avx512"] {
        let target = Target::host(&options(name)).unwrap();
        if !target.supported_here() {
            continue;
        }
        let compiled = compile(&graph, &target, &options(name), false).unwrap();
        let executable = Executable::load(compiled.plan, compiled.record, device.clone()).unwrap();
        let y = executable.run(&[&x]).unwrap()[0].to_vec::<f32>().unwrap();
        let rows = x.to_vec::<f32>().unwrap();
        for (x, y) in rows.chunks(cols as usize).zip(y.chunks(cols as usize)) {
            let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let powers = x.iter().map(|x| f64::from(x - largest).exp());
            let log = powers.sum::<f64>().ln();
            for (x, y) in x.iter().zip(y) {
                // Two roundings near 20 and those of a sum of 50,257; a row stored with another one's results is off by 5e-3.
                let exact = f64::from(*x) - f64::from(largest) - log;
                assert!(
                    (f64::from(*y) - exact).abs() < 1e-5,
                    "{name}: {y} and {exact}"
                );
            }
        }
    }
}
