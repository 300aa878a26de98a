//! Plans on devices: machine code, interpreter and null, with everything that can be wrong about a call.

use oxyfuel_base::{Arena, Code, DType, Expr, Result, Scalar, Symbol, err};
use oxyfuel_plan::{
    ArgRef, Artefact, Buffer, BufferHome, BufferId, Cost, CpuFeatures, InputSpec, Kernel, KernelId,
    KernelPhase, MachineCode, OutputSpec, Plan, Provenance, Step, SymbolBinding, SymbolSource,
};
use oxyfuel_runtime::code::CodeOptions;
use oxyfuel_runtime::cpu::CpuDevice;
use oxyfuel_runtime::device::{Device, Grid, Stream};
use oxyfuel_runtime::execute::Program;
use oxyfuel_runtime::memory::HostAllocator;
use oxyfuel_runtime::null::{NullCall, NullDevice};
use oxyfuel_runtime::pool::{Pool, PoolOptions};
use oxyfuel_runtime::profile::{Category, compiling, profile};
use oxyfuel_runtime::runner::{KernelRunner, PreparedKernel, RunnerArg};
use oxyfuel_runtime::storage::Storage;
use oxyfuel_runtime::tensor::Tensor;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// Counts what this thread asks for, to show that a steady call asks for nothing.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// `out[i] = a[i] + b[i]` for f32: pointers to a, b and out in the first three words.
const ADD: &[u8] = &[
    0x4c, 0x8b, 0x07, // mov r8, [rdi]
    0x4c, 0x8b, 0x4f, 0x08, // mov r9, [rdi+8]
    0x4c, 0x8b, 0x57, 0x10, // mov r10, [rdi+16]
    0x48, 0x39, 0xca, // cmp rdx, rcx
    0x73, 0x17, // jae end
    0xf3, 0x41, 0x0f, 0x10, 0x04, 0x90, // movss xmm0, [r8+rdx*4]
    0xf3, 0x41, 0x0f, 0x58, 0x04, 0x91, // addss xmm0, [r9+rdx*4]
    0xf3, 0x41, 0x0f, 0x11, 0x04, 0x92, // movss [r10+rdx*4], xmm0
    0x48, 0xff, 0xc2, // inc rdx
    0xeb, 0xe4, // jmp cmp
    0xc3, // ret
];

/// The same in Rust.
#[derive(Debug)]
struct AddRunner;

impl KernelRunner for AddRunner {
    fn prepare(&self, kernel: &Kernel) -> Result<Box<dyn PreparedKernel>> {
        assert_eq!(kernel.program, "add");
        Ok(Box::new(AddRunner))
    }
}

impl PreparedKernel for AddRunner {
    fn run(&self, grids: &[Grid], memory: &mut [&mut [u8]], args: &[RunnerArg]) -> Result<()> {
        assert_eq!(grids.len(), 1);
        let place = |arg: &RunnerArg, i: usize| match arg {
            RunnerArg::Buffer {
                region,
                offset,
                bytes,
            } => {
                assert!(i * 4 + 4 <= *bytes);
                (*region, offset + i * 4)
            }
            RunnerArg::Index(_) | RunnerArg::Literal(..) => panic!("not a buffer"),
        };
        for i in 0..grids[0].total() as usize {
            let read = |memory: &[&mut [u8]], (region, at): (usize, usize)| {
                f32::from_le_bytes(memory[region][at..at + 4].try_into().unwrap())
            };
            let sum = read(memory, place(&args[0], i)) + read(memory, place(&args[1], i));
            let (region, at) = place(&args[2], i);
            memory[region][at..at + 4].copy_from_slice(&sum.to_le_bytes());
        }
        Ok(())
    }

    fn compare(&self, _arg: usize, ours: &[u8], expected: &[u8]) -> Result<()> {
        assert_eq!(ours, expected);
        Ok(())
    }
}

fn cpu(threads: usize) -> Arc<dyn Device> {
    let pool = Arc::new(Pool::new(PoolOptions::with_threads(threads)));
    let runner = Arc::new(AddRunner) as Arc<dyn KernelRunner>;
    Arc::new(CpuDevice::new(
        pool,
        HostAllocator::default(),
        CodeOptions::default(),
        Some(runner),
    ))
}

fn add_kernel(machine_code: bool, grid: Expr) -> Kernel {
    let code = MachineCode {
        code: ADD.to_vec(),
        entries: vec![0],
        scratch_bytes: 100,
        needs: CpuFeatures::default(),
    };
    Kernel {
        name: "add".into(),
        program: "add".into(),
        artefact: if machine_code {
            Artefact::MachineCode(code)
        } else {
            Artefact::Interpreted
        },
        phases: vec![KernelPhase {
            grid: vec![grid],
            min_chunk: 16,
        }],
        provenance: Provenance::default(),
        cost: Cost::NOTHING,
        members: 1,
        written: vec![],
        rounds: 1,
        gemm: None,
        note: None,
    }
}

/// `(a + b) + a`, over `n` elements, through a buffer of the arena.
struct Build {
    plan: Plan,
    arena: BufferId,
    out: BufferId,
}

fn build(n: Expr, symbols: Vec<SymbolBinding>, machine_code: bool) -> Build {
    let bytes = n.clone() * 4;
    let mut buffers: Arena<BufferId, Buffer> = Arena::new();
    let mut buffer = |name: &str, home, first_step, last_step| {
        buffers.push(Buffer {
            name: name.into(),
            home,
            bytes: bytes.clone(),
            align: 64,
            first_step,
            last_step,
            tensor: None,
        })
    };
    let a = buffer("a", BufferHome::Input(0), 0, 1);
    let b = buffer("b", BufferHome::Input(1), 0, 0);
    let arena = buffer(
        "sum",
        BufferHome::Arena {
            offset: Expr::constant(64),
        },
        0,
        1,
    );
    let out = buffer("out", BufferHome::Output(0), 1, 1);
    let mut kernels: Arena<KernelId, Kernel> = Arena::new();
    let kernel = kernels.push(add_kernel(machine_code, n.clone()));
    let launch = |ids: [BufferId; 3]| Step::Launch {
        kernel,
        args: ids
            .map(|buffer| ArgRef::Buffer {
                buffer,
                offset: Expr::ZERO,
            })
            .to_vec(),
    };
    let input = |name: &str, buffer| InputSpec {
        name: name.into(),
        dtype: DType::F32,
        shape: vec![n.clone()],
        strides: vec![Expr::ONE],
        align: 4,
        buffer,
    };
    let output = OutputSpec {
        dtype: DType::F32,
        shape: vec![n.clone()],
        strides: vec![Expr::ONE],
        buffer: out,
        offset: Expr::ZERO,
        alias: None,
    };
    let plan = Plan {
        name: "test".into(),
        isa: "any".into(),
        symbols,
        limits: vec![],
        inputs: vec![input("a", a), input("b", b)],
        outputs: vec![output],
        arena_bytes: n.clone() * 4 + 64,
        kernels,
        steps: vec![launch([a, b, arena]), launch([arena, a, out])],
        buffers,
    };
    Build { plan, arena, out }
}

fn fixed(n: i64, machine_code: bool) -> Plan {
    build(Expr::constant(n), vec![], machine_code).plan
}

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_slice(&HostAllocator::default(), values, &[values.len() as i64]).unwrap()
}

fn ramp(n: usize, step: f32) -> Tensor {
    tensor(&(0..n).map(|i| i as f32 * step).collect::<Vec<_>>())
}

fn expected(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| i as f32 + i as f32 * 10.0 + i as f32)
        .collect()
}

fn program(plan: Plan, device: &Arc<dyn Device>) -> Result<Program> {
    Program::new(Arc::new(plan), device.clone())
}

/// Machine code where there is some, the interpreter everywhere.
fn kinds() -> Vec<bool> {
    if cfg!(target_arch = "x86_64") {
        vec![true, false]
    } else {
        vec![false]
    }
}

#[test]
fn a_plan_runs_as_machine_code_and_interpreted() {
    for machine_code in kinds() {
        for n in [1, 7, 1000] {
            let program = program(fixed(n as i64, machine_code), &cpu(3)).unwrap();
            for _ in 0..3 {
                let outputs = program.call(&[&ramp(n, 1.0), &ramp(n, 10.0)]).unwrap();
                assert_eq!(outputs[0].to_vec::<f32>().unwrap(), expected(n));
            }
        }
    }
}

#[test]
fn symbols_come_from_the_inputs() {
    let symbol = Symbol(0);
    let binding = SymbolBinding {
        symbol,
        source: SymbolSource::Extent { input: 0, dim: 0 },
        min: 0,
        max: 300,
    };
    for machine_code in kinds() {
        let plan = build(Expr::symbol(symbol), vec![binding.clone()], machine_code).plan;
        let program = program(plan, &cpu(2)).unwrap();
        for n in [3, 300, 3, 0, 64] {
            let outputs = program.call(&[&ramp(n, 1.0), &ramp(n, 10.0)]).unwrap();
            assert_eq!(outputs[0].to_vec::<f32>().unwrap(), expected(n));
        }
        assert_eq!(
            program
                .call(&[&ramp(3, 1.0), &ramp(4, 1.0)])
                .unwrap_err()
                .code,
            Code::ShapeMismatch
        );
        // The code relies on the range.
        assert_eq!(
            program
                .call(&[&ramp(301, 1.0), &ramp(301, 1.0)])
                .unwrap_err()
                .code,
            Code::ShapeMismatch
        );
        assert_eq!(program.output_bytes(&[5]).unwrap(), [20]);
    }
}

#[test]
fn threads_call_one_program() {
    let program = program(fixed(500, kinds()[0]), &cpu(2)).unwrap();
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                for _ in 0..50 {
                    let outputs = program.call(&[&ramp(500, 1.0), &ramp(500, 10.0)]).unwrap();
                    assert_eq!(outputs[0].to_vec::<f32>().unwrap(), expected(500));
                }
            });
        }
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_steady_call_asks_for_no_memory() {
    let program = program(fixed(1000, true), &cpu(2)).unwrap();
    let (a, b, out) = (ramp(1000, 1.0), ramp(1000, 10.0), ramp(1000, 0.0));
    // SAFETY: all three tensors are as the plan says, and used by nobody else.
    let call = || unsafe {
        program.call_raw(
            &[],
            &[a.address(), b.address()],
            &[out.address()],
            Stream::default(),
        )
    };
    for _ in 0..3 {
        call().unwrap();
    }
    let before = ASKED.get();
    for _ in 0..100 {
        call().unwrap();
    }
    assert_eq!(ASKED.get() - before, 0);
    assert_eq!(out.to_vec::<f32>().unwrap(), expected(1000));
}

#[test]
fn wrong_calls_are_coded() {
    let device = cpu(1);
    let program = program(fixed(4, kinds()[0]), &device).unwrap();
    let good = ramp(4, 1.0);
    let code = |inputs: &[&Tensor]| program.call(inputs).unwrap_err().code;
    assert_eq!(code(&[&good]), Code::ArityMismatch);
    assert_eq!(code(&[&good, &ramp(5, 1.0)]), Code::ShapeMismatch);
    let ints = Tensor::from_slice(&HostAllocator::default(), &[1i32, 2, 3, 4], &[4]).unwrap();
    assert_eq!(code(&[&good, &ints]), Code::DTypeMismatch);
    assert_eq!(
        code(&[&good, &ramp(8, 1.0).slice(0, 0, 8, 2).unwrap()]),
        Code::LayoutMismatch
    );
    let null = NullDevice::new(0) as Arc<dyn Device>;
    assert_eq!(
        code(&[&good, &good.to_device(&null).unwrap()]),
        Code::DeviceMismatch
    );
    let writing = good.storage().borrow_mut().unwrap();
    assert_eq!(code(&[&good, &ramp(4, 1.0)]), Code::DataRace);
    drop(writing);
    program.call(&[&good, &good]).unwrap();
}

#[test]
fn bad_plans_are_refused() {
    let refuse = |change: &dyn Fn(&mut Build)| {
        let mut build = build(Expr::constant(4), vec![], true);
        change(&mut build);
        program(build.plan, &cpu(1)).unwrap_err().code
    };
    assert_eq!(
        refuse(&|b| b.plan.arena_bytes = Expr::constant(8)),
        Code::InvalidPlan
    );
    assert_eq!(
        refuse(&|b| b.plan.arena_bytes = Expr::constant(-8)),
        Code::InvalidPlan
    );
    assert_eq!(
        refuse(&|b| b.plan.outputs[0].buffer = b.arena),
        Code::InvalidPlan
    );
    assert_eq!(
        refuse(&|b| b.plan.buffers[b.arena].home = BufferHome::Arena { offset: Expr::ONE }),
        Code::InvalidPlan
    );
    assert_eq!(
        refuse(&|b| b.plan.inputs[0].buffer = b.out),
        Code::InvalidPlan
    );
    let beyond = |b: &mut Build| {
        let args = vec![ArgRef::Buffer {
            buffer: b.out,
            offset: Expr::constant(17),
        }];
        b.plan.steps.push(Step::Launch {
            kernel: KernelId(0),
            args,
        });
    };
    assert_eq!(refuse(&beyond), Code::InvalidPlan);
    let copy = |b: &mut Build| {
        b.plan.steps.push(Step::Copy {
            src: b.arena,
            dst: b.out,
            bytes: Expr::constant(17),
        });
    };
    assert_eq!(refuse(&copy), Code::InvalidPlan);
    if cfg!(target_arch = "x86_64") {
        let entries = |entries: Vec<u32>| {
            move |b: &mut Build| match &mut b.plan.kernels[KernelId(0)].artefact {
                Artefact::MachineCode(code) => code.entries = entries.clone(),
                Artefact::Interpreted | Artefact::Ptx(_) => unreachable!(),
            }
        };
        assert_eq!(refuse(&entries(vec![])), Code::InvalidPlan);
        assert_eq!(refuse(&entries(vec![ADD.len() as u32])), Code::InvalidPlan);
    }
}

/// Refused when it is loaded: a call would end the process.
#[cfg(target_arch = "x86_64")]
#[test]
fn code_of_another_processor_is_refused() {
    let avx2 = CpuFeatures {
        avx2: true,
        ..CpuFeatures::default()
    };
    let tiles = CpuFeatures {
        amx_tile: true,
        ..avx2
    };
    let device = |features| -> Arc<dyn Device> {
        let pool = Arc::new(Pool::new(PoolOptions::with_threads(1)));
        let (memory, code) = (HostAllocator::default(), CodeOptions::default());
        Arc::new(CpuDevice::new(pool, memory, code, None).with_features(features))
    };
    let loaded = |needs, features| {
        let mut plan = fixed(4, true);
        match &mut plan.kernels[KernelId(0)].artefact {
            Artefact::MachineCode(code) => code.needs = needs,
            Artefact::Interpreted | Artefact::Ptx(_) => unreachable!(),
        }
        program(plan, &device(features))
    };
    assert!(loaded(avx2, avx2).is_ok() && loaded(avx2, tiles).is_ok());
    for (needs, features, what) in [
        (tiles, avx2, "amx-tile"),
        (avx2, CpuFeatures::default(), "avx2"),
    ] {
        let error = loaded(needs, features).unwrap_err();
        assert_eq!(error.code, Code::UnsupportedDevice);
        assert!(error.message.contains(what), "{error}");
        assert!(error.help.is_some(), "{error}");
    }
}

#[test]
fn absurd_sizes_are_refused() {
    let program = program(fixed(1 << 50, false), &cpu(1)).unwrap();
    let huge = ramp(1, 1.0).expand(&[1 << 50]).unwrap();
    // The inputs' strides do not match, and no memory was asked for.
    assert_eq!(
        program.call(&[&huge, &huge]).unwrap_err().code,
        Code::LayoutMismatch
    );
    // SAFETY: the call ends before any address is used, for want of an arena.
    let raw = unsafe { program.call_raw(&[], &[0, 0], &[0], Stream::default()) };
    assert_eq!(raw.unwrap_err().code, Code::OutOfMemory);
}

/// `a += b`, with the new `a` as output.
fn in_place(machine_code: bool) -> Plan {
    let mut plan = fixed(4, machine_code);
    let (a, b) = (plan.inputs[0].buffer, plan.inputs[1].buffer);
    let args = [a, b, a]
        .map(|buffer| ArgRef::Buffer {
            buffer,
            offset: Expr::ZERO,
        })
        .to_vec();
    plan.steps = vec![Step::Launch {
        kernel: KernelId(0),
        args,
    }];
    plan.outputs[0].buffer = a;
    plan.outputs[0].alias = Some(0);
    plan
}

#[test]
fn written_inputs_are_returned_and_must_not_overlap() {
    for machine_code in kinds() {
        let program = program(in_place(machine_code), &cpu(1)).unwrap();
        let both = ramp(12, 1.0);
        let part = |at: i64| both.slice(0, at, at + 4, 1).unwrap();
        let outputs = program.call(&[&part(4), &part(8)]).unwrap();
        assert_eq!(
            outputs[0].to_vec::<f32>().unwrap(),
            [12.0, 14.0, 16.0, 18.0]
        );
        assert!(outputs[0].storage().is_same(both.storage()));
        assert_eq!(
            both.to_vec::<f32>().unwrap()[4..9],
            [12.0, 14.0, 16.0, 18.0, 8.0]
        );
        assert_eq!(
            program.call(&[&part(4), &part(6)]).unwrap_err().code,
            Code::AliasedInputs
        );
        assert_eq!(
            program.call(&[&part(4), &part(4)]).unwrap_err().code,
            Code::AliasedInputs
        );
        // Every borrow was given back.
        assert!(both.storage().borrow_mut().is_ok());
    }
}

#[test]
fn constants_copies_and_scalars() {
    let Build { mut plan, out, .. } = build(Expr::constant(4), vec![], kinds()[0]);
    let bytes: Vec<u8> = [1f32, 2.0, 3.0, 4.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let constant = plan.buffers.push(Buffer {
        name: "c".into(),
        home: BufferHome::Constant(bytes),
        bytes: Expr::constant(16),
        align: 64,
        first_step: 0,
        last_step: 9,
        tensor: None,
    });
    // Scalars after the three pointers are ignored by the kernel.
    let mut args = [constant, plan.inputs[0].buffer, out]
        .map(|buffer| ArgRef::Buffer {
            buffer,
            offset: Expr::ZERO,
        })
        .to_vec();
    args.push(ArgRef::Index(Expr::constant(-3)));
    args.push(ArgRef::Literal {
        dtype: DType::I32,
        value: Scalar::I(-1),
    });
    args.push(ArgRef::Literal {
        dtype: DType::F32,
        value: Scalar::F(1.0),
    });
    plan.steps = vec![
        Step::Launch {
            kernel: KernelId(0),
            args,
        },
        Step::Copy {
            src: constant,
            dst: plan.buffers.ids().nth(2).unwrap(),
            bytes: Expr::constant(16),
        },
    ];
    plan.outputs.push(OutputSpec {
        buffer: constant,
        ..plan.outputs[0].clone()
    });

    let mut outputs = program(plan.clone(), &cpu(1))
        .unwrap()
        .call(&[&ramp(4, 10.0), &ramp(4, 0.0)])
        .unwrap();
    assert_eq!(outputs[0].to_vec::<f32>().unwrap(), [1.0, 12.0, 23.0, 34.0]);
    assert_eq!(outputs[1].to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    outputs[1].copy_from(&ramp(4, 0.0)).unwrap();

    let null = NullDevice::new(0);
    let device = null.clone() as Arc<dyn Device>;
    let on_null = |tensor: Tensor| tensor.to_device(&device).unwrap();
    program(plan, &device)
        .unwrap()
        .call(&[&on_null(ramp(4, 10.0)), &on_null(ramp(4, 0.0))])
        .unwrap();
    let launched = null.calls().into_iter().find_map(|call| match call {
        NullCall::Launch(_, words, grids) => Some((words, grids)),
        _ => None,
    });
    let (words, grids) = launched.unwrap();
    assert_eq!(
        words[3..],
        [-3i64 as u64, -1i64 as u64, u64::from(1f32.to_bits())]
    );
    assert_eq!(grids, [[4, 1, 1]]);
}

#[test]
fn the_null_device_records_everything() {
    let null = NullDevice::new(3);
    let device = null.clone() as Arc<dyn Device>;
    let program = program(fixed(16, true), &device).unwrap();
    let (a, b) = (
        ramp(16, 1.0).to_device(&device).unwrap(),
        ramp(16, 1.0).to_device(&device).unwrap(),
    );
    let outputs = program.call(&[&a, &b]).unwrap();
    assert_eq!(outputs[0].device().to_string(), "null:3");
    assert_eq!(outputs[0].to_vec::<f32>().unwrap(), [0.0; 16]);
    let calls = null.calls();
    assert_eq!(calls[0], NullCall::Load("add".into()));
    assert_eq!(
        calls
            .iter()
            .filter(|call| matches!(call, NullCall::Launch(..)))
            .count(),
        2
    );
}

/// A slice of what has no elements begins anywhere: there is nothing to read behind the end.
#[test]
fn nothing_is_read_from_anywhere() {
    let device = NullDevice::new(0) as Arc<dyn Device>;
    let storage = device.allocate(0).unwrap();
    device.copy_in(&[], &storage, 4).unwrap();
    device.copy_out(&storage, 4, &mut []).unwrap();
    let refused = device.copy_out(&storage, 0, &mut [0]).unwrap_err();
    assert_eq!(refused.code, Code::IndexOutOfRange);
}

/// As a driver refuses what would break a recording, so that what goes wrong on a GPU goes wrong here.
#[test]
fn the_null_device_records_work_and_refuses_what_would_break_it() {
    let null = NullDevice::new(0);
    let device = null.clone() as Arc<dyn Device>;
    let [a, b] = [(); 2].map(|()| device.allocate(64).unwrap());
    let copy = |from: &Storage, to: &Storage, stream| {
        // SAFETY: both are memory of the device of that length.
        unsafe { device.move_bytes(from.address(), to.address(), 64, stream) }
    };
    let copied = NullCall::Move(a.address(), b.address(), 64);
    let before = null.calls().len();
    let mut work = device
        .record_work(false, &mut |stream| {
            assert!(device.is_recording(stream));
            let refused = [
                device.allocate(64).map(drop),
                device.synchronize(),
                device.copy_in(&[0; 64], &a, 0),
                device.copy_out(&a, 0, &mut [0; 64]),
                copy(&a, &b, Stream::default()),
            ];
            for refused in refused {
                assert_eq!(refused.unwrap_err().code, Code::CaptureBroken);
            }
            // Other threads go on.
            std::thread::scope(|scope| scope.spawn(|| device.synchronize()).join())
                .unwrap()
                .unwrap();
            copy(&a, &b, stream)
        })
        .unwrap();
    let asked = null.calls().split_off(before);
    assert_eq!(asked, [NullCall::Synchronize, NullCall::Record(0, 1)]);
    for _ in 0..2 {
        // SAFETY: both storages live.
        unsafe { work.launch(Stream::default()) }.unwrap();
        assert_eq!(
            null.calls().last(),
            Some(&NullCall::Replay(vec![copied.clone()]))
        );
    }
    // What fails leaves nothing behind.
    let error = device.record_work(true, &mut |_| {
        device.allocate(64)?;
        Err(err!(InvalidArgument, "no more"))
    });
    assert_eq!(error.unwrap_err().code, Code::InvalidArgument);
    device.synchronize().unwrap();
}

#[test]
fn two_devices_of_a_kind_do_not_mix() {
    let [zero, one] = [0, 1].map(|index| NullDevice::new(index) as Arc<dyn Device>);
    let program = program(fixed(16, true), &zero).unwrap();
    let [a, b] = [&zero, &one].map(|device| ramp(16, 1.0).to_device(device).unwrap());
    let error = program.call(&[&a, &b]).unwrap_err();
    assert_eq!(error.code, Code::DeviceMismatch);
    assert!(
        error.message.ends_with("is on null:1, not null:0"),
        "{error}"
    );
}

#[test]
fn a_device_is_waited_for_after_each_kernel_where_that_is_asked() {
    let null = NullDevice::new(0);
    let device = null.clone() as Arc<dyn Device>;
    let mut program = program(fixed(16, true), &device).unwrap();
    program.wait_for_each(true);
    let x = ramp(16, 1.0).to_device(&device).unwrap();
    let before = null.calls().len();
    program.call(&[&x, &x]).unwrap();
    let calls = null.calls().split_off(before);
    let order: Vec<bool> = calls
        .iter()
        .filter_map(|call| match call {
            NullCall::Launch(..) => Some(true),
            NullCall::Synchronize => Some(false),
            _ => None,
        })
        .collect();
    assert_eq!(order, [true, false, true, false]);
}

#[test]
fn a_profile_says_where_time_went() {
    let device = cpu(1);
    let program = program(fixed(4096, true), &device).unwrap();
    let x = ramp(4096, 1.0);
    let (_, profile) = profile(|| {
        compiling("made", || std::thread::sleep(Duration::from_millis(2)));
        for _ in 0..3 {
            program.call(&[&x, &x]).unwrap();
        }
    })
    .unwrap();
    assert_eq!(profile.wall(), profile.device() + profile.overhead());
    assert!(profile.compile() >= Duration::from_millis(2));
    assert_eq!(profile.total, profile.wall() + profile.compile());
    let rows = profile.rows();
    let row = |name: &str, category| {
        let found = rows
            .iter()
            .find(|row| row.name == name && row.category == category);
        found.unwrap()
    };
    let plan = row(&program.plan().name, Category::Call);
    let kernel = row("add", Category::Pointwise);
    assert_eq!((plan.calls, kernel.calls), (3, 6));
    assert!(kernel.self_device > Duration::ZERO && kernel.self_device == kernel.total_device);
    assert!(kernel.total_device <= plan.total_device && plan.self_host <= plan.total_host);
    assert_eq!(profile.launches(), [(Category::Pointwise, 6)]);
    // Parts lie within what they are parts of, on the host's clock.
    for span in &profile.spans {
        let Some(parent) = span.parent.map(|parent| &profile.spans[parent]) else {
            continue;
        };
        assert!(span.begin >= parent.begin);
        assert!(span.begin + span.host <= parent.begin + parent.host);
    }
    let text = profile.to_string();
    assert!(text.starts_with("wall ") && text.contains("launches: 6 pointwise"));
    let trace = profile.chrome_trace();
    for part in [
        "\"name\":\"host\"",
        "\"name\":\"cpu\"",
        "\"cat\":\"compile\"",
    ] {
        assert!(trace.contains(part), "{trace}");
    }
    // Two rows of metadata, one compile, three calls, six kernels in two rows.
    assert_eq!(trace.matches("\"ph\"").count(), 2 + 1 + 3 + 12);
    // Nothing is seen outside.
    program.call(&[&x, &x]).unwrap();
    let (_, empty) = oxyfuel_runtime::profile::profile(|| ()).unwrap();
    assert!(empty.spans.is_empty());
}

/// One kernel of two phases: `tmp = a + b` with the first three words, `out = tmp + a` with the next three.
#[cfg(target_arch = "x86_64")]
#[test]
fn phases_run_one_after_the_other() {
    let n = 4096;
    let Build {
        mut plan,
        arena,
        out,
    } = build(Expr::constant(n), vec![], true);
    let mut code = ADD.to_vec();
    code.extend([0x48, 0x83, 0xc7, 0x18, 0xeb, 0xd2]); // add rdi, 24; jmp to the start
    let entries = vec![0, ADD.len() as u32];
    let kernel = &mut plan.kernels[KernelId(0)];
    kernel.artefact = Artefact::MachineCode(MachineCode {
        code,
        entries,
        scratch_bytes: 0,
        needs: CpuFeatures::default(),
    });
    kernel.phases.push(kernel.phases[0].clone());
    let (a, b) = (plan.inputs[0].buffer, plan.inputs[1].buffer);
    let args = [a, b, arena, arena, a, out]
        .map(|buffer| ArgRef::Buffer {
            buffer,
            offset: Expr::ZERO,
        })
        .to_vec();
    plan.steps = vec![Step::Launch {
        kernel: KernelId(0),
        args,
    }];
    let program = program(plan, &cpu(3)).unwrap();
    for _ in 0..20 {
        let outputs = program
            .call(&[&ramp(n as usize, 1.0), &ramp(n as usize, 10.0)])
            .unwrap();
        assert_eq!(outputs[0].to_vec::<f32>().unwrap(), expected(n as usize));
    }
}

#[test]
fn a_profile_names_the_steps() {
    let program = program(fixed(1000, kinds()[0]), &cpu(1)).unwrap();
    let (outputs, times) = program
        .profile(&[&ramp(1000, 1.0), &ramp(1000, 10.0)])
        .unwrap();
    assert_eq!(outputs[0].to_vec::<f32>().unwrap(), expected(1000));
    assert_eq!(
        times
            .iter()
            .map(|time| (time.step, time.name.as_str()))
            .collect::<Vec<_>>(),
        [(0, "add"), (1, "add")]
    );
}

#[cfg(target_arch = "x86_64")]
#[test]
fn bound_calls_ask_for_nothing_and_ordinary_ones_for_their_outputs() {
    let program = Arc::new(program(fixed(1000, true), &cpu(2)).unwrap());
    let (a, b, out) = (ramp(1000, 1.0), ramp(1000, 10.0), ramp(1000, 0.0));
    let asked = |call: &mut dyn FnMut()| {
        (0..3).for_each(|_| call());
        let before = ASKED.get();
        (0..100).for_each(|_| call());
        ASKED.get() - before
    };
    let mut bound = program.bind(&[&a, &b], &[Some(&out)]).unwrap();
    assert_eq!(asked(&mut || bound.call().unwrap()), 0);
    assert_eq!(out.to_vec::<f32>().unwrap(), expected(1000));
    // The list of outputs; the memory of the one is that of the call before.
    let ordinary = asked(&mut || drop(program.call(&[&a, &b]).unwrap()));
    assert_eq!(ordinary, 100);
    // Also where the last result is held while the next is computed.
    let mut last = program.call(&[&a, &b]).unwrap();
    let in_turn = asked(&mut || last = program.call(&[&a, &b]).unwrap());
    assert_eq!(in_turn, 100);
    assert_eq!(last[0].to_vec::<f32>().unwrap(), expected(1000));
    // Which outputs are computed in place.
    let mut outputs = [ramp(1000, 0.0)];
    let into = asked(&mut || program.call_into(&[&a, &b], &mut outputs).unwrap());
    assert_eq!(into, 100);
}

#[test]
fn memory_of_a_result_is_used_again_only_when_nobody_holds_it() {
    let program = program(fixed(4, kinds()[0]), &cpu(1)).unwrap();
    let (a, b) = (ramp(4, 1.0), ramp(4, 10.0));
    let call = || program.call(&[&a, &b]).unwrap().remove(0);
    let address = |tensor: &Tensor| tensor.storage().address();
    let (first, second) = (call(), call());
    let view = first.slice(0, 1, 3, 1).unwrap();
    let held = [address(&first), address(&second)];
    assert!(first.storage().is_same(view.storage()) && !first.storage().is_unique());
    assert!(second.storage().is_unique());
    drop(first);
    // The view holds the memory of the first still.
    let third = call();
    assert!(!held.contains(&address(&third)));
    drop((view, second));
    let again = [call(), call()];
    assert_eq!(
        held.map(|known| again.iter().any(|tensor| address(tensor) == known)),
        [true; 2]
    );
    // What a program gave out before it went is a tensor like any other.
    drop(program);
    for tensor in again.iter().chain([&third]) {
        assert_eq!(tensor.to_vec::<f32>().unwrap(), expected(4));
        assert!(tensor.storage().is_unique());
    }
}

#[test]
fn bound_tensors_are_checked_once_and_held_at_every_call() {
    for machine_code in kinds() {
        let whole = Arc::new(program(fixed(4, machine_code), &cpu(1)).unwrap());
        let (a, b, out) = (ramp(4, 1.0), ramp(4, 10.0), ramp(4, 0.0));
        let code = |inputs: &[&Tensor], outputs: &[Option<&Tensor>]| {
            whole.bind(inputs, outputs).unwrap_err().code
        };
        assert_eq!(code(&[&a], &[Some(&out)]), Code::ArityMismatch);
        assert_eq!(code(&[&a, &b], &[]), Code::ArityMismatch);
        assert_eq!(code(&[&a, &b], &[None]), Code::ArityMismatch);
        assert_eq!(
            code(&[&a, &ramp(5, 1.0)], &[Some(&out)]),
            Code::ShapeMismatch
        );
        assert_eq!(code(&[&a, &b], &[Some(&ramp(5, 1.0))]), Code::ShapeMismatch);
        assert_eq!(code(&[&a, &b], &[Some(&b)]), Code::AliasedInputs);
        let mut bound = whole.bind(&[&a, &b], &[Some(&out)]).unwrap();
        let reading = out.storage().borrow().unwrap();
        assert_eq!(bound.call().unwrap_err().code, Code::DataRace);
        drop(reading);
        bound.call().unwrap();
        assert_eq!(out.to_vec::<f32>().unwrap(), expected(4));
        // What a refused call had borrowed was given back.
        assert!(a.storage().borrow_mut().is_ok());

        let writes = Arc::new(program(in_place(machine_code), &cpu(1)).unwrap());
        let own = |output| writes.bind(&[&a, &b], &[output]).map(|_| ());
        assert_eq!(own(Some(&out)).unwrap_err().code, Code::InvalidArgument);
        let mut bound = writes.bind(&[&a, &b], &[None]).unwrap();
        bound.call().unwrap();
        bound.call().unwrap();
        assert_eq!(a.to_vec::<f32>().unwrap(), [0.0, 21.0, 42.0, 63.0]);
    }
}

#[test]
fn an_output_takes_the_memory_of_an_input_that_was_given() {
    for machine_code in kinds() {
        let memory = HostAllocator::default();
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(
            Arc::new(Pool::new(PoolOptions::with_threads(1))),
            memory.clone(),
            CodeOptions::default(),
            Some(Arc::new(AddRunner)),
        ));
        let program = program(fixed(1000, machine_code), &device).unwrap();
        let values = |step: f32| (0..1000).map(|i| i as f32 * step).collect::<Vec<_>>();
        let new = |step: f32| Tensor::from_slice(&memory, &values(step), &[1000]).unwrap();
        let (a, b) = (new(1.0), new(10.0));
        drop(program.call(&[&a, &b]).unwrap());
        let (live, place) = (memory.stats().live, b.address());
        // The second step reads `a`, so only `b` is free when it writes.
        let outputs = program.call_given(&[&a, &b], &[true, true]).unwrap();
        drop(b);
        assert_eq!(outputs[0].address(), place);
        assert_eq!(memory.stats().live, live);
        assert_eq!(outputs[0].to_vec::<f32>().unwrap(), expected(1000));
        assert_eq!(a.to_vec::<f32>().unwrap(), values(1.0));
        // Held by somebody else, or not given.
        let b = new(10.0);
        let held = b.clone();
        for given in [&[false, true], &[true, false]] {
            let outputs = program.call_given(&[&a, &b], given).unwrap();
            assert_ne!(outputs[0].address(), b.address());
        }
        assert_eq!(held.to_vec::<f32>().unwrap(), values(10.0));
    }
}
