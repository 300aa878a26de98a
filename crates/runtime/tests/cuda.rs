//! The CUDA device. Without a driver there is one thing to test: that it is said clearly. With one, each test runs on
//! the first GPU. Where `OXYFUEL_NEED_GPU` is set, as `gpu-test` does, a GPU that is not there is a failure.

use oxyfuel_base::{Arena, Code, DType, Expr};
use oxyfuel_plan::{
    ArgRef, Artefact, Buffer, BufferHome, BufferId, Cost, Gemm, GemmOperand, InputSpec, Kernel,
    KernelId, KernelPhase, OutputSpec, Plan, Provenance, PtxModule, Step, TensorMapSpec,
};
use oxyfuel_runtime::cuda::{CubinStore, CudaDevice, EventUse};
use oxyfuel_runtime::device::{ArgKind, Device, Grid, Launch, LoadedKernel, Stream};
use oxyfuel_runtime::execute::Program;
use oxyfuel_runtime::memory::HostAllocator;
use oxyfuel_runtime::storage::Storage;
use oxyfuel_runtime::tensor::Tensor;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// `out[i] = a[i] + b[i]`, one block of 32 elements an instance.
const ADD: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 out)
{
    .reg .b64 %d<8>;
    .reg .b32 %r<4>;
    .reg .f32 %f<4>;
    ld.param.u64 %d0, [a];
    ld.param.u64 %d1, [b];
    ld.param.u64 %d2, [out];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %tid.x;
    mad.lo.s32 %r2, %r0, 32, %r1;
    mul.wide.u32 %d3, %r2, 4;
    add.s64 %d4, %d0, %d3;
    add.s64 %d5, %d1, %d3;
    add.s64 %d6, %d2, %d3;
    ld.global.f32 %f0, [%d4];
    ld.global.f32 %f1, [%d5];
    add.f32 %f2, %f0, %f1;
    st.global.f32 [%d6], %f2;
    ret;
}
";

/// Copies a box of 4 x 32 elements at row 2 through shared memory by a tensor map.
const BOX: &str = "
.version 8.0
.target sm_90
.address_size 64
.visible .entry box(.param .u64 in, .param .align 64 .b8 map[128], .param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b64 %d<8>;
    .reg .b32 %r<8>;
    .reg .f32 %f<4>;
    .shared .align 128 .b8 tile[512];
    .shared .align 8 .b64 barrier;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, barrier;
    mov.u32 %r2, tile;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra start;
    mbarrier.init.shared.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared.b64 %d0, [%r1], 512;
    mov.b64 %d1, map;
    cvta.param.u64 %d1, %d1;
    mov.u32 %r3, 0;
    mov.u32 %r4, 2;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1, {%r3, %r4}], [%r1];
start:
    bar.sync 0;
wait:
    mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;
    @!%p1 bra wait;
    ld.param.u64 %d2, [out];
    shl.b32 %r5, %r0, 2;
    add.u32 %r6, %r2, %r5;
    ld.shared.f32 %f0, [%r6];
    mul.wide.u32 %d3, %r0, 4;
    add.s64 %d4, %d2, %d3;
    st.global.f32 [%d4], %f0;
    ret;
}
";

/// Two blocks of a cluster each write what number they have in it.
const PAIR: &str = "
.version 8.0
.target sm_90
.address_size 64
.visible .entry pair(.param .u64 out)
.reqntid 1024,1,1
.explicitcluster
.reqnctapercluster 2,1,1
{
    .reg .b64 %d<4>;
    .reg .b32 %r<4>;
    ld.param.u64 %d0, [out];
    mov.u32 %r0, %cluster_ctarank;
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %d1, %r1, 4;
    add.s64 %d2, %d0, %d1;
    st.global.u32 [%d2], %r0;
    ret;
}
";

/// Leaves its mark at the beginning of its third argument, which no product writes.
const OWN: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry own(.param .u64 a, .param .u64 b, .param .u64 c)
{
    .reg .b64 %d<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %d0, [c];
    mov.u32 %r0, 0x6b72616d;
    st.global.u32 [%d0], %r0;
    ret;
}
";

/// The first GPU, or `None` after making sure that its absence is a sentence.
fn gpu(store: Option<Arc<dyn CubinStore>>) -> Option<Arc<CudaDevice>> {
    match CudaDevice::new(0, store) {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(
                std::env::var_os("OXYFUEL_NEED_GPU").is_none(),
                "a GPU is needed: {error}"
            );
            assert!(
                matches!(error.code, Code::NoDriver | Code::NoDevice),
                "{error}"
            );
            assert!(!error.message.is_empty());
            None
        }
    }
}

fn module(text: &str, entry: &str, threads: u32, tensor_maps: Vec<TensorMapSpec>) -> PtxModule {
    PtxModule {
        text: text.into(),
        entries: vec![entry.into()],
        threads,
        cluster: [1, 1, 1],
        shared_bytes: 0,
        persistent_blocks: vec![0],
        dependent: false,
        tensor_maps,
    }
}

fn ramp(shape: &[i64], step: f32) -> Tensor {
    let count = shape.iter().product::<i64>();
    let values: Vec<f32> = (0..count).map(|i| i as f32 * step).collect();
    Tensor::from_slice(&HostAllocator::default(), &values, shape).unwrap()
}

/// A plan of one kernel over buffers of these shapes; the last one is the output.
fn plan(ptx: PtxModule, grid: i64, shapes: &[&[i64]], map_after_first: bool) -> Plan {
    let mut buffers: Arena<BufferId, Buffer> = Arena::new();
    let mut args = vec![];
    let mut inputs = vec![];
    let mut outputs = vec![];
    for (index, shape) in shapes.iter().enumerate() {
        let is_output = index + 1 == shapes.len();
        let home = if is_output {
            BufferHome::Output(0)
        } else {
            BufferHome::Input(index as u32)
        };
        let bytes = Expr::constant(shape.iter().product::<i64>() * 4);
        let buffer = buffers.push(Buffer {
            name: format!("b{index}"),
            home,
            bytes,
            align: 64,
            first_step: 0,
            last_step: 0,
            tensor: None,
        });
        args.push(ArgRef::Buffer {
            buffer,
            offset: Expr::ZERO,
        });
        let strides = (0..shape.len())
            .map(|dim| Expr::constant(shape[dim + 1..].iter().product::<i64>()))
            .collect();
        let shape = shape.iter().map(|extent| Expr::constant(*extent)).collect();
        if is_output {
            outputs.push(OutputSpec {
                dtype: DType::F32,
                shape,
                strides,
                buffer,
                offset: Expr::ZERO,
                alias: None,
            });
        } else {
            inputs.push(InputSpec {
                name: format!("i{index}"),
                dtype: DType::F32,
                shape,
                strides,
                align: 16,
                buffer,
            });
        }
    }
    if map_after_first {
        args.insert(1, ArgRef::TensorMap);
    }
    let mut kernels: Arena<KernelId, Kernel> = Arena::new();
    let kernel = kernels.push(Kernel {
        name: ptx.entries[0].clone(),
        program: String::new(),
        artefact: Artefact::Ptx(ptx),
        phases: vec![KernelPhase {
            grid: vec![Expr::constant(grid)],
            min_chunk: 1,
        }],
        provenance: Provenance::default(),
        cost: Cost::NOTHING,
        members: 1,
        written: vec![],
        rounds: 1,
        gemm: None,
        note: None,
    });
    Plan {
        name: "gpu".into(),
        isa: "sm_80".into(),
        symbols: vec![],
        limits: vec![],
        inputs,
        outputs,
        buffers,
        arena_bytes: Expr::ZERO,
        kernels,
        steps: vec![Step::Launch { kernel, args }],
    }
}

#[test]
fn a_device_that_does_not_exist_is_a_sentence() {
    let error = CudaDevice::new(4000, None).unwrap_err();
    assert!(
        matches!(error.code, Code::NoDriver | Code::NoDevice),
        "{error}"
    );
}

#[test]
fn memory_goes_there_and_back() {
    let Some(gpu) = gpu(None) else { return };
    let device = gpu.clone() as Arc<dyn Device>;
    let host = ramp(&[7, 9], 1.0);
    let there = host.to_device(&device).unwrap();
    assert_eq!(
        there.to_vec::<f32>().unwrap(),
        host.to_vec::<f32>().unwrap()
    );
    let view = there.permute(&[1, 0]).unwrap().slice(0, 1, 8, 3).unwrap();
    let same = host.permute(&[1, 0]).unwrap().slice(0, 1, 8, 3).unwrap();
    assert_eq!(view.to_vec::<f32>().unwrap(), same.to_vec::<f32>().unwrap());
    let pinned = gpu.pinned(1000).unwrap();
    assert_eq!(pinned.borrow().unwrap().bytes().unwrap(), [0; 1000]);
    let (free, total) = gpu.memory_info().unwrap();
    assert!(
        free <= total && gpu.info().multiprocessors > 0,
        "{:?}",
        gpu.info()
    );
    assert_eq!(gpu.allocate(1 << 55).unwrap_err().code, Code::OutOfMemory);
    drop((there, view));
    assert!(gpu.memory_stats().cached > 0);
    gpu.trim();
}

#[test]
fn a_plan_runs_on_the_gpu() {
    let Some(gpu) = gpu(None) else { return };
    let device = gpu.clone() as Arc<dyn Device>;
    let plan = plan(
        module(ADD, "add", 32, vec![]),
        4,
        &[&[128], &[128], &[128]],
        false,
    );
    let program = Program::new(Arc::new(plan), device.clone()).unwrap();
    let (a, b) = (
        ramp(&[128], 1.0).to_device(&device).unwrap(),
        ramp(&[128], 10.0).to_device(&device).unwrap(),
    );
    let (outputs, times) = program.profile(&[&a, &b]).unwrap();
    assert_eq!(
        outputs[0].to_vec::<f32>().unwrap(),
        ramp(&[128], 11.0).to_vec::<f32>().unwrap()
    );
    assert_eq!(times.len(), 1);
    assert_eq!(
        program.call(&[&a, &ramp(&[128], 1.0)]).unwrap_err().code,
        Code::DeviceMismatch
    );
    let stream = gpu.new_stream().unwrap();
    let out = gpu.allocate(512).unwrap();
    gpu.synchronize().unwrap();
    // SAFETY: the buffers are as the plan says and live until the stream is done.
    unsafe {
        program.call_raw(
            &[],
            &[a.address(), b.address()],
            &[out.address()],
            stream.handle(),
        )
    }
    .unwrap();
    stream.synchronize().unwrap();
    let mut bytes = [0; 512];
    gpu.copy_out(&out, 0, &mut bytes).unwrap();
    assert_eq!(bytes[4..8], 11f32.to_le_bytes());
    let start = gpu.mark(Stream::default()).unwrap();
    let end = gpu.mark(Stream::default()).unwrap();
    assert!(gpu.elapsed(&start, &end).unwrap().as_millis() < 1000);
}

#[test]
fn refused_code_says_why() {
    let Some(gpu) = gpu(None) else { return };
    let error = gpu
        .load_ptx(&module(
            ".version 8.0\n.target sm_80\nnonsense",
            "x",
            32,
            vec![],
        ))
        .unwrap_err();
    assert_eq!(error.code, Code::LinkFailed);
    assert!(error.message.len() > 60, "{error}");
    assert!(
        gpu.load_ptx(&module(ADD, "no_such_entry", 32, vec![]))
            .is_err()
    );
    // The device still works.
    let info = gpu
        .load_ptx(&module(ADD, "add", 32, vec![]))
        .unwrap()
        .info()
        .unwrap();
    assert!(
        info[0].registers > 0 && info[0].local_bytes == 0 && info[0].blocks_per_multiprocessor > 0
    );
}

#[test]
fn the_device_holds_as_many_clusters_as_have_room() {
    let Some(gpu) = gpu(None) else { return };
    let kernel = gpu.load_ptx(&module(ADD, "add", 32, vec![])).unwrap();
    assert_eq!(kernel.info().unwrap()[0].clusters, None);
    if gpu.info().capability < (9, 0) {
        return;
    }
    let ptx = PtxModule {
        cluster: [2, 1, 1],
        ..module(PAIR, "pair", 1024, vec![])
    };
    let kernel = gpu.load_ptx(&ptx).unwrap();
    let info = kernel.info().unwrap()[0];
    let clusters = info.clusters.unwrap();
    let blocks = info.blocks_per_multiprocessor * gpu.info().multiprocessors;
    // Where multiprocessors are grouped unevenly some blocks find no partner.
    assert!(clusters > 0 && 2 * clusters <= blocks, "{info:?}");
    assert!(4 * clusters > blocks, "{info:?} of {blocks} blocks");
    // Two instances are two clusters of two blocks each.
    let out = gpu.allocate(512).unwrap();
    let grid = Grid {
        extents: [2, 1, 1],
        min_chunk: 1,
    };
    let launch = Launch {
        words: &[out.address()],
        kinds: &[ArgKind::Buffer { bytes: 512 }],
        grids: &[grid],
        maps: &[],
        stream: Stream::default(),
    };
    // SAFETY: the buffer outlives the synchronisation.
    unsafe { kernel.launch(&launch) }.unwrap();
    gpu.synchronize().unwrap();
    let mut bytes = [0; 16];
    gpu.copy_out(&out, 0, &mut bytes).unwrap();
    let ranks: Vec<u8> = bytes.iter().step_by(4).copied().collect();
    assert_eq!(ranks, [0, 1, 0, 1]);
}

/// Sizes of the products below: all differ, so that no exchange of operands goes unseen.
const SIZES: [usize; 3] = [48, 64, 32];

/// A product `[m, k] x [k, n]` of small whole numbers on the GPU, which every dtype holds exactly, by a kernel whose own code computes none. `None`: that code ran.
fn product(gpu: &Arc<CudaDevice>, dtype: DType, acc: DType, c: [i64; 2]) -> Option<Vec<u8>> {
    let [m, n, k] = SIZES;
    let bytes = |value: i32| match dtype {
        DType::F64 => f64::from(value).to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        // The upper half of an f32.
        _ => (value as f32).to_le_bytes()[2..].to_vec(),
    };
    let a = |i: usize, l: usize| ((i * 5 + l * 3) % 7) as i32 - 3;
    let b = |l: usize, j: usize| ((l * 2 + j * 3) % 5) as i32 - 2;
    let all = |rows: usize, cols: usize, at: &dyn Fn(usize, usize) -> i32| -> Vec<u8> {
        (0..rows * cols)
            .flat_map(|place| bytes(at(place / cols, place % cols)))
            .collect()
    };
    let sum = |i: usize, j: usize| (0..k).map(|l| a(i, l) * b(l, j)).sum();
    let expected = all(m, n, &sum);
    let given = [all(m, k, &a), all(k, n, &b), vec![0; expected.len()]];
    let memory = given.each_ref().map(|bytes| {
        let storage = gpu.allocate(bytes.len()).unwrap();
        gpu.copy_in(bytes, &storage, 0).unwrap();
        storage
    });
    let operand = |param, strides| GemmOperand {
        param,
        dtype,
        offset: 0,
        batch_stride: 0,
        strides,
        align: 16,
    };
    let [m, n, k] = SIZES.map(|size| size as i64);
    let shapes: [&[i64]; 3] = [&[m, k], &[k, n], &[m, n]];
    let plan = plan(module(OWN, "own", 32, vec![]), 1, &shapes, false);
    let mut kernel = plan.kernels.values().next().unwrap().clone();
    kernel.gemm = Some(Gemm {
        batch: 1,
        m,
        n,
        k,
        a: operand(0, [k, 1]),
        b: operand(1, [n, 1]),
        c: operand(2, c),
        acc,
        tf32: false,
    });
    let loaded = gpu.load(&kernel).unwrap();
    let grid = Grid {
        extents: [1, 1, 1],
        min_chunk: 1,
    };
    let launch = Launch {
        words: &memory.each_ref().map(Storage::address),
        kinds: &given
            .each_ref()
            .map(|bytes| ArgKind::Buffer { bytes: bytes.len() }),
        grids: &[grid],
        maps: &[],
        stream: Stream::default(),
    };
    // SAFETY: the buffers hold the operands and outlive the synchronisation.
    unsafe { loaded.launch(&launch) }.unwrap();
    gpu.synchronize().unwrap();
    let mut found = vec![0; expected.len()];
    gpu.copy_out(&memory[2], 0, &mut found).unwrap();
    if found.starts_with(b"mark") {
        return None;
    }
    assert!(found == expected, "{dtype}: the product is another one");
    Some(found)
}

/// A kernel that is a product falls back to its own code without a word, so who computed it is told by what that code leaves.
#[test]
fn products_are_the_library_s_where_there_is_one_and_it_takes_them() {
    let Some(gpu) = gpu(None) else { return };
    let rows = [SIZES[1] as i64, 1];
    for (dtype, acc) in [
        (DType::F32, DType::F32),
        (DType::BF16, DType::F32),
        (DType::F64, DType::F64),
    ] {
        let by_library = product(&gpu, dtype, acc, rows).is_some();
        assert_eq!(by_library, gpu.has_product_library(), "{dtype}");
    }
    // It writes no results by columns, and has no such sums: the kernel's own code runs.
    let columns = [1, SIZES[0] as i64];
    assert_eq!(product(&gpu, DType::F32, DType::F32, columns), None);
    assert_eq!(product(&gpu, DType::BF16, DType::BF16, rows), None);
}

#[derive(Debug, Default)]
struct Store(Mutex<HashMap<(String, String), Vec<u8>>>);

impl CubinStore for Store {
    fn get(&self, ptx: &str, tag: &str) -> Option<Vec<u8>> {
        self.0
            .lock()
            .unwrap()
            .get(&(ptx.into(), tag.into()))
            .cloned()
    }
    fn put(&self, ptx: &str, tag: &str, cubin: &[u8]) {
        self.0
            .lock()
            .unwrap()
            .insert((ptx.into(), tag.into()), cubin.to_vec());
    }
}

#[test]
fn compiled_code_is_kept_and_damage_is_survived() {
    let store = Arc::new(Store::default());
    let Some(gpu) = gpu(Some(store.clone())) else {
        return;
    };
    let add = module(ADD, "add", 32, vec![]);
    gpu.load_ptx(&add).unwrap();
    let kept: Vec<Vec<u8>> = store.0.lock().unwrap().values().cloned().collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(&kept[0][..4], b"\x7fELF");
    gpu.load_ptx(&add).unwrap();
    store
        .0
        .lock()
        .unwrap()
        .values_mut()
        .for_each(|cubin| *cubin = b"\x7fELF and then nothing at all".repeat(8));
    gpu.load_ptx(&add).unwrap();
}

#[test]
fn a_tensor_map_moves_a_box() {
    let Some(gpu) = gpu(None) else { return };
    if gpu.info().capability < (9, 0) {
        return;
    }
    let device = gpu as Arc<dyn Device>;
    let map = TensorMapSpec {
        param: 1,
        buffer_param: 0,
        dtype: DType::F32,
        dims: vec![Expr::constant(8), Expr::constant(64)],
        strides: vec![Expr::constant(64), Expr::ONE],
        boxed: vec![4, 32],
        swizzle_bytes: 0,
    };
    let plan = plan(
        module(BOX, "box", 128, vec![map]),
        1,
        &[&[8, 64], &[4, 32]],
        true,
    );
    let program = Program::new(Arc::new(plan), device.clone()).unwrap();
    let host = ramp(&[8, 64], 1.0);
    let outputs = program.call(&[&host.to_device(&device).unwrap()]).unwrap();
    let expected = host.slice(0, 2, 6, 1).unwrap().slice(1, 0, 32, 1).unwrap();
    assert_eq!(
        outputs[0].to_vec::<f32>().unwrap(),
        expected.to_vec::<f32>().unwrap()
    );
}

/// `out = a + b` over 128 elements on a stream.
fn add_on(kernel: &dyn LoadedKernel, words: &[u64; 3], stream: Stream) -> oxyfuel_base::Result<()> {
    let grid = Grid {
        extents: [4, 1, 1],
        min_chunk: 1,
    };
    let launch = Launch {
        words,
        kinds: &[ArgKind::Buffer { bytes: 512 }; 3],
        grids: &[grid],
        maps: &[],
        stream,
    };
    // SAFETY: each test gives three buffers of 512 bytes that outlive its synchronisation.
    unsafe { kernel.launch(&launch) }
}

fn floats(gpu: &CudaDevice, storage: &Storage) -> Vec<f32> {
    let mut bytes = [0; 512];
    gpu.copy_out(storage, 0, &mut bytes).unwrap();
    let words = bytes.chunks_exact(4);
    words
        .map(|word| f32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

#[test]
fn recorded_work_is_replayed_on_other_memory() {
    let Some(gpu) = gpu(None) else { return };
    let device = gpu.clone() as Arc<dyn Device>;
    let kernel = gpu.load_ptx(&module(ADD, "add", 32, vec![])).unwrap();
    let (a, b) = (
        ramp(&[128], 1.0).to_device(&device).unwrap(),
        ramp(&[128], 10.0).to_device(&device).unwrap(),
    );
    let (first, second) = (gpu.allocate(512).unwrap(), gpu.allocate(512).unwrap());
    gpu.synchronize().unwrap();
    let stream = gpu.new_stream().unwrap();
    let twice = |into: &Storage| {
        // The second launch reads what the first has written.
        gpu.record(&stream, || {
            let into = into.address();
            add_on(&kernel, &[a.address(), b.address(), into], stream.handle())?;
            add_on(&kernel, &[into, b.address(), into], stream.handle())
        })
    };
    let recorded = twice(&first).unwrap();
    assert_eq!(recorded.len().unwrap(), 2);
    let mut replay = recorded.instantiate().unwrap();
    assert_eq!(replay.kernels(), 2);
    replay.upload(stream.handle()).unwrap();
    let launch = |replay: &mut oxyfuel_runtime::cuda::Replay| {
        // SAFETY: the buffers live until the stream is done.
        unsafe { replay.launch(stream.handle()) }.unwrap();
        stream.synchronize().unwrap();
    };
    launch(&mut replay);
    let expected = |step: f32| ramp(&[128], step).to_vec::<f32>().unwrap();
    assert_eq!(floats(&gpu, &first), expected(21.0));
    // Other words for both launches.
    let to = second.address();
    replay
        .set_words(0, &[b.address(), b.address(), to])
        .unwrap();
    replay.set_words(1, &[to, a.address(), to]).unwrap();
    launch(&mut replay);
    assert_eq!(floats(&gpu, &second), expected(21.0));
    assert_eq!(floats(&gpu, &first), expected(21.0));
    // The words of other recorded work, and none of a different shape.
    assert!(replay.update(&twice(&second).unwrap()).unwrap());
    launch(&mut replay);
    assert_eq!(floats(&gpu, &second), expected(21.0));
    let once = gpu.record(&stream, || {
        add_on(&kernel, &[a.address(), a.address(), to], stream.handle())
    });
    assert!(!replay.update(&once.unwrap()).unwrap());
}

#[test]
fn a_recording_that_waits_is_broken_and_the_stream_works_on() {
    let Some(gpu) = gpu(None) else { return };
    let stream = gpu.new_stream().unwrap();
    let error = gpu.record(&stream, || stream.synchronize()).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken, "{error}");
    stream.synchronize().unwrap();
    let empty = gpu.record(&stream, || Ok(())).unwrap();
    assert!(empty.is_empty().unwrap());
}

#[test]
fn a_recording_that_another_stream_joins_has_to_wait_for_it() {
    let Some(gpu) = gpu(None) else { return };
    let device = gpu.clone() as Arc<dyn Device>;
    let kernel = gpu.load_ptx(&module(ADD, "add", 32, vec![])).unwrap();
    let a = ramp(&[128], 1.0).to_device(&device).unwrap();
    let (one, two) = (gpu.allocate(512).unwrap(), gpu.allocate(512).unwrap());
    gpu.synchronize().unwrap();
    let (stream, other) = (gpu.new_stream().unwrap(), gpu.new_stream().unwrap());
    let (a, one_at, two_at) = (a.address(), one.address(), two.address());
    let fork = |joins: bool| {
        gpu.record(&stream, || {
            add_on(&kernel, &[a, a, one_at], stream.handle())?;
            other.wait_for(&stream.record(EventUse::Order)?)?;
            add_on(&kernel, &[one_at, a, two_at], other.handle())?;
            match joins {
                true => stream.wait_for(&other.record(EventUse::Order)?),
                false => Ok(()),
            }
        })
    };
    let error = fork(false).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken, "{error}");
    let said = error.message.contains("another stream took part");
    assert!(said && error.help.is_some(), "{error}");
    // Both streams do what they are asked for, and the device too.
    let expected = |step: f32| ramp(&[128], step).to_vec::<f32>().unwrap();
    add_on(&kernel, &[a, a, one_at], stream.handle()).unwrap();
    stream.synchronize().unwrap();
    add_on(&kernel, &[one_at, a, two_at], other.handle()).unwrap();
    other.synchronize().unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(floats(&gpu, &one), expected(2.0));
    assert_eq!(floats(&gpu, &two), expected(3.0));
    // And the same work is recorded where the other stream is waited for.
    add_on(&kernel, &[a, a, two_at], stream.handle()).unwrap();
    let mut replay = fork(true).unwrap().instantiate().unwrap();
    assert_eq!(replay.kernels(), 2);
    // SAFETY: the buffers live until the stream is done.
    unsafe { replay.launch(stream.handle()) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(floats(&gpu, &two), expected(3.0));
}

#[test]
fn pools_streams_and_events_work_in_order() {
    let Some(gpu) = gpu(None) else { return };
    let stream = Arc::new(gpu.new_stream().unwrap());
    let pool = gpu.pool(0).unwrap();
    pool.keep(1 << 20).unwrap();
    let block = pool.allocate(1 << 16, &stream).unwrap();
    let (from, to) = (gpu.pinned(1 << 16).unwrap(), gpu.pinned(1 << 16).unwrap());
    from.borrow_mut().unwrap().bytes().unwrap().fill(0x5a);
    let start = stream.record(EventUse::Timing).unwrap();
    // SAFETY: both host buffers and the block live until the stream is done.
    unsafe {
        let bytes = 1 << 16;
        let handle = stream.handle();
        gpu.write_async(block.address(), from.address() as *const u8, bytes, handle)
            .unwrap();
        gpu.read_async(block.address(), to.address() as *mut u8, bytes, handle)
            .unwrap();
    }
    let end = stream.record(EventUse::Timing).unwrap();
    let other = gpu.new_stream().unwrap();
    let order = stream.record(EventUse::Order).unwrap();
    other.wait_for(&order).unwrap();
    other.synchronize().unwrap();
    assert!(order.is_done().unwrap() && stream.is_done().unwrap());
    assert_eq!(to.borrow().unwrap().bytes().unwrap()[1000], 0x5a);
    assert!(start.milliseconds_to(&end).unwrap() >= 0.0);
    let stats = pool.stats().unwrap();
    assert!(stats.used >= 1 << 16 && stats.reserved >= stats.used && stats.used_high >= stats.used);
    drop(block);
    stream.synchronize().unwrap();
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().unwrap().reserved, 0);
    assert_eq!(
        pool.allocate(1 << 50, &stream).unwrap_err().code,
        Code::OutOfMemory
    );
}

/// Writes where nothing is.
const WILD: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry wild(.param .u64 a, .param .u64 b, .param .u64 out)
{
    .reg .b64 %d<2>;
    mov.u64 %d0, 64;
    st.global.u64 [%d0], %d0;
    ret;
}
";

/// A fault loses the device for the process, so it happens in a process of its own: this test, started by itself.
#[test]
fn a_fault_has_a_code_of_its_own() {
    const CHILD: &str = "OXYFUEL_TEST_FAULT";
    let Some(gpu) = gpu(None) else { return };
    if std::env::var_os(CHILD).is_none() {
        let test = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(test);
        let child = child.args(["--exact", "a_fault_has_a_code_of_its_own"]);
        // Its words are kept apart: whoever counts results reads those of this process.
        let done = child.env(CHILD, "1").output().unwrap();
        assert!(done.status.success(), "{done:?}");
        return;
    }
    let wild = Kernel {
        name: "wild".into(),
        program: String::new(),
        artefact: Artefact::Ptx(module(WILD, "wild", 32, vec![])),
        phases: vec![],
        provenance: Provenance {
            ops: vec!["scatter".into()],
            lines: vec!["model.rs:7".into()],
            sources: vec![],
        },
        cost: Cost::NOTHING,
        members: 1,
        written: vec![],
        rounds: 1,
        gemm: None,
        note: None,
    };
    let well = gpu.load_ptx(&module(ADD, "add", 32, vec![])).unwrap();
    let memory = gpu.allocate(512).unwrap();
    add_on(&well, &[memory.address(); 3], Stream::default()).unwrap();
    gpu.synchronize().unwrap();
    let wild = gpu.load(&wild).unwrap();
    add_on(&*wild, &[0; 3], Stream::default()).unwrap();
    let error = gpu.synchronize().unwrap_err();
    assert_eq!(error.code, Code::KernelFault, "{error}");
    assert!(
        error
            .message
            .ends_with("in kernel wild (scatter at model.rs:7) on cuda:0"),
        "{error}"
    );
    assert!(error.help.unwrap().contains("new process"));
    assert_eq!(gpu.allocate(1 << 20).unwrap_err().code, Code::KernelFault);
}
