//! Tensors of a GPU, where there is one; without one, only the sentences that say so. Where `OXYFUEL_NEED_GPU` is set, as `gpu-test` does,
//! a GPU that is not there is a failure.

use oxyfuel::kernel::{self, Argument, BufferMode, KernelBuilder, Symbol};
use oxyfuel::{
    Category, Code, CudaGraphs, DType, Device, Mode, Options, PlanOrigin, Result, Tensor, compile,
    cuda, jit, nn, structure,
};
use oxyfuel_runtime::cuda::CudaDevice;
use std::time::Duration;

#[path = "cuda/maths.rs"]
mod maths;

fn gpu() -> Option<Device> {
    let device = Device::cuda(0);
    match device.check() {
        Ok(()) => Some(device),
        Err(error) => {
            assert!(
                std::env::var_os("OXYFUEL_NEED_GPU").is_none(),
                "a GPU is needed: {error}"
            );
            assert!(
                [Code::NoDriver, Code::NoDevice, Code::DriverCall].contains(&error.code),
                "{error}"
            );
            None
        }
    }
}

fn randn(shape: &[i64], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F32, seed)
}

fn close(name: &str, a: &Tensor, b: &Tensor) {
    assert_eq!((a.shape(), a.dtype()), (b.shape(), b.dtype()), "{name}");
    for (a, b) in a.to_f64().unwrap().iter().zip(b.to_f64().unwrap()) {
        let same = (a - b).abs() <= 1e-4 + 1e-4 * b.abs() || (a.is_nan() && b.is_nan());
        assert!(same, "{name}: {a} {b}");
    }
}

#[test]
fn what_is_not_there_is_said_at_the_line_that_asks() {
    let here = line!();
    let asked = [
        Device::cuda(4000).check(),
        Device::cuda(4000).synchronize(),
        Device::cuda(4000).memory_summary().map(drop),
        Device::cuda(4000).trim().map(drop),
        randn(&[2], 0).to_device(Device::cuda(4000)).check(),
        structure::to_device(&vec![randn(&[2], 0)], Device::cuda(4000)).map(drop),
    ];
    for (number, asked) in asked.into_iter().enumerate() {
        let error = asked.unwrap_err();
        assert!(
            [Code::NoDriver, Code::NoDevice].contains(&error.code),
            "{error}"
        );
        assert!(error.help.is_some());
        let at = error.at.unwrap();
        assert!(at.file.ends_with("cuda.rs"), "{at}");
        assert_eq!(at.line, here + 2 + number as u32);
    }
}

#[test]
fn the_processor_has_a_summary_too() {
    let held = Tensor::zeros(&[1 << 20], DType::F32);
    let summary = Device::cpu().memory_summary().unwrap();
    assert!(summary.total > 0 && summary.ours.live >= 4 << 20);
    assert!(summary.to_string().contains("in use by us"), "{summary}");
    drop(held);
}

#[test]
fn tensors_travel() {
    let Some(gpu) = gpu() else { return };
    let x = randn(&[33, 65], 0);
    let there = x.to_device(gpu);
    assert_eq!(there.device(), gpu);
    assert_eq!(there.t().to_f64().unwrap(), x.t().to_f64().unwrap());
    assert_eq!(
        there.to_device(Device::Cpu).to_f64().unwrap(),
        x.to_f64().unwrap()
    );
}

type Program = fn(&Tensor, &Tensor) -> Tensor;

/// Programs over `x: [24, 40]` and `y: [24, 40]`: one of each kind of kernel.
const PROGRAMS: &[(&str, Program)] = &[
    ("pointwise", |x, y| (x * 2.0 + y).relu().exp() - 1.0),
    ("broadcast", |x, y| x + y.slice(0, 0, 1, 1)),
    ("where", |x, y| x.gt(y).where_(x, 0.5)),
    ("cast", |x, y| (x * y).to(DType::BF16).to(DType::F32)),
    ("softmax", |x, y| (x * y).softmax(-1)),
    ("log_softmax of columns", |x, y| (x + y).log_softmax(0)),
    ("layer_norm", |x, y| {
        x.layer_norm(&[40], Some(&y.select(0, 0)), None, 1e-5)
    }),
    ("rms_norm", |x, y| {
        x.rms_norm(&[40], Some(&y.select(0, 1)), 1e-6)
    }),
    ("sum of all", |x, y| (x * y).sum(&[], false)),
    ("mean of rows", |x, y| (x + y).mean(&[1], true)),
    ("amax of columns", |x, y| (x - y).amax(&[0], false)),
    ("var", |x, _| x.var(&[1], 1.0, false)),
    ("argmax", |x, y| (x + y).argmax(1, false)),
    ("cumsum", |x, _| x.cumsum(1)),
    ("sort", |x, _| x.sort(1, true).0),
    ("topk", |x, _| x.topk(5, 1, true).0),
    ("transpose", |x, y| (x.t() + y.t()).contiguous()),
    ("cat", |x, y| Tensor::cat(&[x, y], 1) * 2.0),
    ("flip", |x, _| x.flip(&[1])),
    ("gather", |x, y| x.gather(1, &y.argsort(1, false))),
    ("index_select", |x, y| {
        x.index_select(0, &y.argmax(0, false).to(DType::I64).remainder(24))
    }),
    ("scatter_add", |x, y| {
        x.scatter_add(1, &y.argsort(1, false), y)
    }),
    ("tril", |x, y| (x + y).tril(0)),
    ("matmul", |x, y| x.matmul(&y.t())),
    ("matmul and work", |x, y| {
        x.matmul(&y.t()).gelu().sum(&[1], false)
    }),
    ("bmm", |x, y| {
        let (a, b) = (x.reshape(&[4, 6, 40]), y.reshape(&[4, 6, 40]));
        a.bmm(&b.transpose(1, 2))
    }),
    ("attention", |x, y| {
        let heads = |t: &Tensor| t.reshape(&[1, 24, 2, 20]).transpose(1, 2);
        let (q, k) = (heads(x), heads(y));
        let weights = (q.matmul(&k.transpose(2, 3)) * 0.2).softmax(-1);
        weights.matmul(&k)
    }),
    ("norm", |x, y| (x - y).norm(2.0, &[1], false)),
    ("logsumexp", |x, _| x.logsumexp(&[1], false)),
    ("one_hot", |x, _| x.argmax(1, false).one_hot(40)),
    ("normalize", |x, _| x.normalize(2.0, 1, 1e-12)),
    ("mse_loss", |x, y| x.mse_loss(y, oxyfuel::Reduction::Mean)),
    ("zeros_like", |x, y| x.zeros_like() + y),
];

#[test]
fn compiled_programs_agree_with_the_processor() {
    let Some(gpu) = gpu() else { return };
    let (x, y) = (randn(&[24, 40], 0), randn(&[24, 40], 1));
    let (gx, gy) = (x.to_device(gpu), y.to_device(gpu));
    let mut failed = Vec::new();
    for (name, program) in PROGRAMS {
        let f = compile(*program, Options::default()).unwrap();
        let expected = f.call_one(&[&x, &y]).unwrap();
        match f.call_one(&[&gx, &gy]) {
            Ok(found) => {
                assert_eq!(found.device(), gpu, "{name}");
                close(name, &found, &expected);
            }
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn eager_operations_agree_with_the_processor() {
    let Some(gpu) = gpu() else { return };
    let (x, y) = (randn(&[24, 40], 2), randn(&[24, 40], 3));
    let (gx, gy) = (x.to_device(gpu), y.to_device(gpu));
    for (name, program) in PROGRAMS {
        let found = program(&gx, &gy);
        found
            .check()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        close(name, &found, &program(&x, &y));
    }
}

#[test]
fn each_device_has_a_variant_of_its_own() {
    let Some(gpu) = gpu() else { return };
    let (x, b) = (randn(&[64, 256], 0), randn(&[256], 1));
    let (gx, gb) = (x.to_device(gpu), b.to_device(gpu));
    let f = compile(
        |x: &Tensor, b: &Tensor| (x * b).softmax(-1),
        Options::default(),
    )
    .unwrap();
    let found = f.call_one(&[&gx, &gb]).unwrap();
    close("softmax", &found, &f.call_one(&[&x, &b]).unwrap());
    let explanation = f.explain();
    let devices: Vec<bool> = explanation
        .variants
        .iter()
        .map(|variant| variant.target.starts_with("sm_"))
        .collect();
    assert_eq!(devices, [true, false], "{explanation}");
    assert!(explanation.variants[1].reasons[0].contains("move it with to_device()"));
}

#[test]
fn sizes_that_change_are_served() {
    let Some(gpu) = gpu() else { return };
    let f = compile(|x: &Tensor| (x * 3.0).softmax(-1), Options::default()).unwrap();
    for rows in [3, 7, 20, 33, 100] {
        let x = randn(&[rows, 70], rows as u64);
        let found = f.call_one(&[&x.to_device(gpu)]).unwrap();
        close(
            &format!("{rows} rows"),
            &found,
            &x.clone().mul(3.0).softmax(-1),
        );
    }
}

#[test]
fn models_move_and_run() {
    let Some(gpu) = gpu() else { return };
    let model = nn::Linear::new(40, 16, true, DType::F32, 0);
    let there = structure::to_device(&model, gpu).unwrap();
    let f = jit(
        |model: &nn::Linear, x: &Tensor| nn::Module::forward(model, x).relu(),
        Options::default(),
    )
    .unwrap();
    let x = randn(&[8, 40], 1);
    let found = f.call((&there, &x.to_device(gpu))).unwrap();
    close("linear", &found, &f.call((&model, &x)).unwrap());
    // The model stayed behind.
    let error = f.call((&model, &x.to_device(gpu))).unwrap_err();
    assert_eq!(error.code, Code::DeviceMismatch, "{error}");
}

/// Whether the vendor's library of products is there.
fn has_library() -> bool {
    CudaDevice::new(0, None).unwrap().has_product_library()
}

/// Large enough for the vendor's library of products, where there is one.
#[test]
fn large_products_agree_with_the_processor() {
    let Some(gpu) = gpu() else { return };
    let (x, w, b) = (
        randn(&[130, 200], 0),
        randn(&[264, 200], 1),
        randn(&[264], 2),
    );
    let linear = |x: &Tensor, w: &Tensor, b: &Tensor| (x.matmul(&w.t()) + b).relu();
    let batched = |x: &Tensor, w: &Tensor, _: &Tensor| {
        let x = x.reshape(&[2, 65, 200]);
        x.matmul(&w.reshape(&[2, 132, 200]).transpose(1, 2)) * 0.5
    };
    let turned =
        |x: &Tensor, w: &Tensor, _: &Tensor| x.t().contiguous().t().matmul(&w.t().contiguous()).t();
    let rounded = |x: &Tensor, w: &Tensor, _: &Tensor| {
        let [x, w] = [x, w].map(|t| (t * 0.1).to(DType::F64));
        x.matmul(&w.t()).to(DType::F32)
    };
    let there = [&x, &w, &b].map(|t| t.to_device(gpu));
    let check = |name: &str, f: &dyn Fn(&Tensor, &Tensor, &Tensor) -> Tensor, found: &Tensor| {
        let expected = f(&x, &w, &b);
        let (found, expected) = (found.to_f64().unwrap(), expected.to_f64().unwrap());
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() <= 1e-3 + 1e-4 * b.abs(), "{name}: {a} {b}");
        }
    };
    let arguments = [&there[0], &there[1], &there[2]];
    let f = compile(linear, Options::default()).unwrap();
    check("linear", &linear, &f.call_one(&arguments).unwrap());
    check("linear, again", &linear, &f.call_one(&arguments).unwrap());
    // What is the library's is a kernel that is a product and nothing else; ours has the work behind it.
    let report = f.explain();
    let alone = |ops: &[String]| ops == ["mm"];
    let kernels = &report.variants[0].kernels;
    assert_eq!(
        kernels.iter().any(|kernel| alone(&kernel.ops)),
        has_library(),
        "{report}"
    );
    let f = compile(batched, Options::default()).unwrap();
    check("batched", &batched, &f.call_one(&arguments).unwrap());
    let f = compile(turned, Options::default()).unwrap();
    check("turned", &turned, &f.call_one(&arguments).unwrap());
    let f = compile(rounded, Options::default()).unwrap();
    check("f64", &rounded, &f.call_one(&arguments).unwrap());
    // What is recorded follows its tensors, whoever computes the product.
    let f = compile(linear, replaying()).unwrap();
    for call in 0..6 {
        let moved = [&x, &w, &b].map(|t| t.to_device(gpu));
        let given = if call < 4 { &there } else { &moved };
        let found = f.call_one(&[&given[0], &given[1], &given[2]]).unwrap();
        check("launched as one", &linear, &found);
    }
    let notes = f.explain().variants[0].notes.join("\n");
    assert!(notes.contains("5 of 6 calls launched as one"), "{notes}");
    let f = compile(linear, Options::default()).unwrap();
    let mut step = cuda::capture(
        move |x: &Tensor, y: &Tensor, z: &Tensor| f.call_one(&[x, y, z]),
        &arguments,
        2,
    )
    .unwrap();
    for _ in 0..3 {
        let moved = [&x, &w, &b].map(|t| t.to_device(gpu));
        let found = step.replay(&[&moved[0], &moved[1], &moved[2]]).unwrap();
        check("recorded", &linear, &found[0]);
    }
}

#[test]
fn products_are_rounded_to_tf32_where_that_is_asked_for_and_not_elsewhere() {
    let Some(gpu) = gpu() else { return };
    let [x, w] = [0, 1].map(|seed| randn(&[512, 512], seed));
    let exact = x.to(DType::F64).matmul(&w.to(DType::F64)).to_f64().unwrap();
    let length = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
    let there = [&x, &w].map(|t| t.to_device(gpu));
    let error = |tf32: bool, mode: Mode| {
        let options = Options {
            tf32,
            mode,
            ..Options::default()
        };
        let f = compile(|x: &Tensor, w: &Tensor| x.matmul(w), options).unwrap();
        let results = (0..4).map(|_| f.call_one(&[&there[0], &there[1]]).unwrap());
        let found = results.last().unwrap().to_f64().unwrap();
        let apart: Vec<f64> = found.iter().zip(&exact).map(|(a, b)| a - b).collect();
        length(&apart) / length(&exact)
    };
    for mode in [Mode::Default, Mode::ReduceOverhead] {
        let precise = error(false, mode);
        assert!(precise < 1e-5, "{mode:?}: {precise}");
        // Ten bits of each operand are some ten thousandths of a result. Where there is no library of products, kernels of ours are as precise as ever.
        let rounded = error(true, mode);
        let expected = if has_library() { 1e-5..2e-3 } else { 0.0..1e-5 };
        assert!(expected.contains(&rounded), "{mode:?}: {rounded}");
    }
}

/// `y = relu(x) * factor`, a block of 256 elements an instance.
fn scaled() -> kernel::Program {
    let k = KernelBuilder::new("scaled");
    let n = k.symbol("n", Symbol(0));
    let factor = k.scalar("factor", DType::F32);
    let x = k.buffer("x", DType::F32, BufferMode::Read, n.expr());
    let y = k.buffer("y", DType::F32, BufferMode::Write, n.expr());
    k.phase([n.expr().ceildiv(256)], |k| {
        let base = k.program_id(0) * 256;
        let left = n.tile() - &base;
        let from = x.at(&base).shape([256]).valid(0, &left);
        let value = k.load(from).maximum(0.0) * &factor;
        k.store(y.at(&base).shape([256]).valid(0, &left), &value);
    });
    k.finish().unwrap()
}

#[test]
fn a_kernel_of_a_user_runs_where_its_tensors_are() {
    let Some(gpu) = gpu() else { return };
    let kernel = kernel::compile(&scaled(), Options::default()).unwrap();
    for n in [1, 255, 256, 1000, 70_001] {
        let here = randn(&[n], 3);
        for (device, factor) in [(gpu, 2.0), (Device::cpu(), 2.0), (gpu, -0.5), (gpu, 2.0)] {
            let x = here.to_device(device);
            let y = Tensor::zeros(&[n], DType::F32).to_device(device);
            let arguments = [Argument::from(n), factor.into(), (&x).into(), (&y).into()];
            if n <= 256 {
                kernel.check(&arguments).unwrap();
            }
            kernel.launch(&arguments).unwrap();
            assert_eq!(y.device(), device);
            let expected = (here.relu() * factor).to_vec::<f32>().unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), expected, "{n} on {device}");
        }
    }
    // Tensors of two devices, and code for another machine than theirs.
    let (x, y) = (
        randn(&[8], 3),
        Tensor::zeros(&[8], DType::F32).to_device(gpu),
    );
    let mixed = [Argument::from(8), 2.0.into(), (&x).into(), (&y).into()];
    let error = kernel.launch(&mixed).unwrap_err();
    assert_eq!(error.code, Code::DeviceMismatch, "{error}");
    assert!(error.message.contains("y is on cuda:0") && error.help.is_some());
    let options = Options {
        target: "interpreter".to_owned(),
        ..Options::default()
    };
    let elsewhere = kernel::compile(&scaled(), options).unwrap();
    let x = x.to_device(gpu);
    let arguments = [Argument::from(8), 2.0.into(), (&x).into(), (&y).into()];
    let error = elsewhere.launch(&arguments).unwrap_err();
    assert_eq!(error.code, Code::DeviceMismatch, "{error}");
    assert_eq!(y.to_vec::<f32>().unwrap(), [0.0; 8]);
    kernel.launch(&arguments).unwrap();
    let expected = (x.relu() * 2.0).to_vec::<f32>().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), expected);
}

#[test]
fn devices_do_not_mix() {
    let Some(gpu) = gpu() else { return };
    let x = Tensor::ones(&[4], DType::F32);
    let mixed = &x + &x.to_device(gpu);
    assert_eq!(mixed.check().unwrap_err().code, Code::DeviceMismatch);
    let f = compile(|a: &Tensor, b: &Tensor| a + b, Options::default()).unwrap();
    let error = f.call(&[&x, &x.to_device(gpu)]).unwrap_err();
    assert_eq!(error.code, Code::DeviceMismatch);
    assert!(error.help.is_some(), "{error}");
    for target in ["avx2", "sm_999"] {
        let options = Options {
            target: target.to_owned(),
            ..Options::default()
        };
        let made = compile(|a: &Tensor| a + 1.0, options);
        let called = made.and_then(|f| f.call(&[&x.to_device(gpu)]).map(drop));
        let code = called.unwrap_err().code;
        assert!([Code::DeviceMismatch, Code::InvalidOption].contains(&code));
    }
}

#[test]
fn machine_code_is_found_on_disk() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        cache_dir: Some(folder.path().join("cache")),
        ..Options::default()
    };
    let x = randn(&[100], 0).to_device(gpu);
    let cubins = || {
        let entries = std::fs::read_dir(folder.path().join("cache")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".cubin")).count()
    };
    let (mut origins, mut kept) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let f = compile(|x: &Tensor| x.sin() * 2.0, options.clone()).unwrap();
        f.call(&[&x]).unwrap();
        kept.push(cubins());
        // The first explanation of a process measures the GPU, by kernels that are kept as well.
        origins.push(f.explain().variants[0].origin);
        kept.push(cubins());
    }
    assert_eq!((kept[0], kept[2]), (1, kept[1]));
    assert_eq!(origins, [PlanOrigin::Compiled, PlanOrigin::Disk]);
}

#[test]
fn a_call_that_does_not_fit_says_so_and_leaves_nothing() {
    let Some(gpu) = gpu() else { return };
    let x = Tensor::zeros(&[1 << 20], DType::F32).to_device(gpu);
    let before = gpu.memory_summary().unwrap();
    let f = compile(
        |x: &Tensor| (x.reshape(&[1 << 20, 1]) + x.reshape(&[1, 1 << 20])) * 2.0,
        Options::default(),
    )
    .unwrap();
    let error = f.call(&[&x]).unwrap_err();
    assert_eq!(error.code, Code::OutOfMemory, "{error}");
    assert!(
        error.message.contains("needs 4398046511104 bytes"),
        "{error}"
    );
    let after = gpu.memory_summary().unwrap();
    assert_eq!(after.ours.live, before.ours.live);
    assert_eq!(after.ours.cached, 0);
    // The device works on.
    close("sum", &x.sum(&[], false), &Tensor::scalar(0.0, DType::F32));
}

#[test]
fn calls_that_have_to_be_launched_as_one_are_or_say_why_not() {
    let Some(gpu) = gpu() else { return };
    let program = |x: &Tensor| x.matmul(&x.t()).softmax(-1).matmul(x) * 2.0;
    let required = |cudagraph_memory_limit: usize| Options {
        cudagraphs: CudaGraphs::Require,
        cudagraph_memory_limit,
        ..Options::default()
    };
    let f = compile(program, required(0)).unwrap();
    // The second size has a plan for all further ones, and is the one that is recorded there.
    for rows in [64, 64, 64, 96, 96, 96, 64] {
        let x = randn(&[rows, 32], 7);
        let found = f.call_one(&[&x.to_device(gpu)]).unwrap();
        close("required", &found, &program(&x));
    }
    let other = randn(&[80, 32], 7).to_device(gpu);
    let error = f.call(&[&other]).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken, "{error}");
    assert!(
        error.message.contains("its sizes changed from") && error.help.is_some(),
        "{error}"
    );
    let report = f.explain();
    let said =
        |variant: usize, what: &str| report.variants[variant].notes.join("\n").contains(what);
    assert!(said(0, "3 of 4 calls launched as one"), "{report}");
    assert!(
        said(
            1,
            "2 of 3 calls launched as one, recorded 1 times, 1 recordings of"
        ),
        "{report}"
    );
    // A recording above the limit, where it is required and where it is not.
    let x = randn(&[64, 32], 7).to_device(gpu);
    let f = compile(program, required(1)).unwrap();
    f.call(&[&x]).unwrap();
    let error = f.call(&[&x]).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken, "{error}");
    assert!(
        error.message.contains("`cudagraph_memory_limit` is 1"),
        "{error}"
    );
    for (cudagraphs, recorded) in [(CudaGraphs::Auto, true), (CudaGraphs::Off, false)] {
        let options = Options {
            cudagraphs,
            cudagraph_memory_limit: 1,
            ..replaying()
        };
        let f = compile(program, options).unwrap();
        for _ in 0..3 {
            f.call(&[&x]).unwrap();
        }
        let report = f.explain();
        let notes = report.variants[0].notes.join("\n");
        assert_eq!(
            notes.contains("0 of 3 calls launched as one"),
            recorded,
            "{report}"
        );
        assert_eq!(notes.contains("launched as one"), recorded, "{report}");
    }
}

fn replaying() -> Options {
    Options {
        mode: Mode::ReduceOverhead,
        ..Options::default()
    }
}

#[test]
fn calls_that_are_launched_as_one_follow_their_tensors() {
    let Some(gpu) = gpu() else { return };
    for (name, program) in PROGRAMS {
        let f = compile(*program, replaying()).unwrap();
        let mut kept = Vec::new();
        for call in 0..5 {
            // Tensors of the last two calls are the same.
            let seed = 10 * call.min(3);
            let (x, y) = (randn(&[24, 40], seed), randn(&[24, 40], seed + 1));
            let found = f.call_one(&[&x.to_device(gpu), &y.to_device(gpu)]).unwrap();
            kept.push((found, program(&x, &y)));
        }
        // Results of earlier calls are still what they were.
        for (found, expected) in &kept {
            close(name, found, expected);
        }
        let report = f.explain();
        let notes = report.variants[0].notes.join("\n");
        assert!(
            notes.contains("4 of 5 calls launched as one"),
            "{name}: {report}"
        );
    }
}

#[test]
fn products_by_tensor_maps_and_changing_sizes_are_launched_as_one() {
    let Some(gpu) = gpu() else { return };
    let f = compile(
        |a: &Tensor, b: &Tensor| a.matmul(b).to(DType::F32).softmax(-1),
        replaying(),
    )
    .unwrap();
    for call in 0..12u64 {
        let rows = [256, 128][call as usize % 2];
        let a = (randn(&[rows, 128], call) * 0.1).to(DType::BF16);
        let b = (randn(&[128, 512], call + 1) * 0.1).to(DType::BF16);
        let found = f.call_one(&[&a.to_device(gpu), &b.to_device(gpu)]).unwrap();
        let expected = f.call_one(&[&a, &b]).unwrap();
        close(&format!("call {call}"), &found, &expected);
    }
}

#[test]
fn bound_calls_are_launched_as_one() {
    let Some(gpu) = gpu() else { return };
    let f = compile(|x: &Tensor| x.softmax(0).softmax(1) + 1.0, replaying()).unwrap();
    let (x, y) = (randn(&[24, 40], 0), Tensor::zeros(&[24, 40], DType::F32));
    let (x, y) = (x.to_device(gpu), y.to_device(gpu));
    let mut bound = f.bind(&[&x], &[&y]).unwrap();
    for _ in 0..4 {
        bound.call().unwrap();
        close("bound", &y, &f.call_one(&[&x]).unwrap());
    }
}

#[test]
fn only_tensors_of_a_gpu_are_recorded() {
    let x = randn(&[4], 0);
    let here = line!() + 1;
    let error = cuda::capture(|x: &Tensor| x + 1.0, &[&x], 1).unwrap_err();
    assert_eq!(error.code, Code::DeviceMismatch);
    assert!(error.help.is_some());
    assert_eq!(error.at.unwrap().line, here);
    let error = cuda::capture(|x: &Tensor, y: &Tensor| x + y, &[&x], 1).unwrap_err();
    assert_eq!(error.code, Code::ArityMismatch);
    let failed = &x + &randn(&[5], 0);
    let error = cuda::capture(|x: &Tensor| x + 1.0, &[&failed], 1).unwrap_err();
    assert_eq!(error.code, Code::ShapeMismatch);
    let Some(gpu) = gpu() else { return };
    let there = x.to_device(gpu);
    let error = cuda::capture(|x: &Tensor, y: &Tensor| x + y, &[&there, &x], 1).unwrap_err();
    assert_eq!(error.code, Code::DeviceMismatch);
}

/// Eager operations and compiled functions, with a tensor of its own.
fn mixed(w: Tensor) -> impl Fn(&Tensor, &Tensor) -> Result<[Tensor; 2]> + Send + Sync {
    let soft = compile(|x: &Tensor| (x * 2.0).softmax(-1), replaying()).unwrap();
    move |x: &Tensor, y: &Tensor| {
        let h = soft.call_one(&[&(x + y)])?;
        Ok([(&h * y).sum(&[1], false), h.matmul(&w)])
    }
}

#[test]
fn callables_are_recorded_and_follow_their_tensors() {
    let Some(gpu) = gpu() else { return };
    let w = randn(&[40, 16], 9);
    let f = mixed(w.clone());
    let pair = |seed| [randn(&[24, 40], seed), randn(&[24, 40], seed + 1)];
    let [x, y] = pair(0).map(|x| x.to_device(gpu));
    let mut step = cuda::capture(mixed(w.to_device(gpu)), &[&x, &y], 2).unwrap();
    assert_eq!(step.stats().recorded, 1);
    let mut held = Vec::new();
    for call in 0..12 {
        // Some tensors stay where they are, others come from elsewhere; a third of the results is held.
        let [x, y] = pair(10 * (call / 2));
        let found = step
            .replay(&[&x.to_device(gpu), &y.to_device(gpu)])
            .unwrap();
        let expected = f(&x, &y).unwrap();
        if call % 3 == 0 {
            held.push((found, expected));
            continue;
        }
        for (found, expected) in found.iter().zip(&expected) {
            close("replayed", found, expected);
        }
    }
    for (found, expected) in &held {
        for (found, expected) in found.iter().zip(expected) {
            close("held", found, expected);
        }
    }
    let stats = step.stats();
    assert!(stats.replayed >= 8, "{stats}");
    // Another size runs as it is twice, then as one.
    for call in 0..4 {
        let [x, y] = [randn(&[7, 40], call), randn(&[7, 40], call + 1)];
        let found = step
            .replay(&[&x.to_device(gpu), &y.to_device(gpu)])
            .unwrap();
        close("smaller", &found[1], &f(&x, &y).unwrap()[1]);
    }
    assert!(step.stats().replayed >= stats.replayed + 2);
    let mut step = step.require();
    let [x, y] = [randn(&[8, 40], 0), randn(&[8, 40], 1)].map(|x| x.to_device(gpu));
    let error = step.replay(&[&x, &y]).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken, "{error}");
}

#[test]
fn what_a_recorded_callable_writes_is_written_to_its_arguments() {
    let Some(gpu) = gpu() else { return };
    let add = compile(
        |sum: &Tensor, x: &Tensor| -> Result<Tensor> {
            sum.clone().add_(x)?;
            Ok(sum * 2.0)
        },
        Options::default(),
    )
    .unwrap();
    let x = Tensor::ones(&[100], DType::F32).to_device(gpu);
    let zeros = || Tensor::zeros(&[100], DType::F32).to_device(gpu);
    let sums = [zeros(), zeros()];
    let callable = move |sum: &Tensor, x: &Tensor| -> Result<Tensor> {
        let twice = add.call_one(&[sum, x])?;
        // An eager write is a copy.
        sum.clone().add_(1.0)?;
        Ok(twice)
    };
    let mut step = cuda::capture(callable, &[&sums[0], &x], 1).unwrap();
    let mut expected = [2.0f32, 0.0];
    for call in 0..6 {
        let number = call % 2;
        let twice = step.replay_one(&[&sums[number], &x]).unwrap();
        expected[number] += 1.0;
        assert_eq!(
            twice.to_vec::<f32>().unwrap(),
            [2.0 * expected[number]; 100]
        );
        expected[number] += 1.0;
        assert_eq!(
            sums[number].to_vec::<f32>().unwrap(),
            [expected[number]; 100]
        );
    }
    assert_eq!(step.stats().replayed, 6);
}

#[test]
fn a_callable_that_reads_cannot_be_recorded() {
    let Some(gpu) = gpu() else { return };
    let x = randn(&[10], 0).to_device(gpu);
    let reading = |x: &Tensor| -> Result<Tensor> { Ok(x * x.sum(&[], false).item()?.as_f64()) };
    let error = cuda::capture(reading, &[&x], 1).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken, "{error}");
    assert!(error.message.contains("a copy to the host"), "{error}");
    let making = |x: &Tensor| x + Tensor::ones(&[10], DType::F32).to_device(Device::cuda(0));
    let error = cuda::capture(making, &[&x], 1).unwrap_err();
    assert_eq!(error.code, Code::CaptureBroken, "{error}");
    // The device works on.
    close("after", &(&x + 1.0), &(randn(&[10], 0) + 1.0));
}

/// Dropout under a seed that each call moves on: the same numbers as without a recording, and new ones each time.
#[test]
fn random_numbers_of_a_recording_are_new_at_each_replay() {
    let Some(gpu) = gpu() else { return };
    let drawing = |options| {
        compile(
            |x: &Tensor, seed: &Tensor| -> Result<Tensor> {
                let dropped = x.dropout(0.5, seed);
                seed.clone().add_(1)?;
                Ok(dropped)
            },
            options,
        )
        .unwrap()
    };
    let (x, first) = (randn(&[64, 40], 3), 17i64);
    let seed = || Tensor::scalar(first, DType::I64).to_device(gpu);
    let there = x.to_device(gpu);
    let expected: Vec<Tensor> = (0..6).map(|call| x.dropout(0.5, first + call)).collect();
    assert!(expected[0].to_vec::<f32>().unwrap() != expected[1].to_vec::<f32>().unwrap());
    for (name, options) in [("as it is", Options::default()), ("as one", replaying())] {
        let (f, seed) = (drawing(options), seed());
        for expected in &expected {
            let found = f.call_one(&[&there, &seed]).unwrap();
            close(name, &found, expected);
        }
    }
    let (f, seed) = (drawing(Options::default()), seed());
    let callable = move |x: &Tensor, seed: &Tensor| f.call_one(&[x, seed]);
    let mut step = cuda::capture(callable, &[&there, &seed], 1).unwrap();
    // The first was drawn when it was warmed up.
    for expected in &expected[1..] {
        let found = step.replay_one(&[&there, &seed]).unwrap();
        close("recorded", &found, expected);
    }
    assert_eq!(step.stats().replayed, 5);
    assert_eq!(seed.item().unwrap().as_i64(), first + 6);
}

#[test]
fn a_profile_has_times_of_host_and_device() {
    for device in [Some(Device::cpu()), gpu()].into_iter().flatten() {
        let f = compile(|x: &Tensor| (x + 1.0).softmax(-1), replaying()).unwrap();
        let x = randn(&[256, 512], 0).to_device(device);
        let calls = || {
            (0..3)
                .map(|_| f.call_one(&[&x]))
                .collect::<Result<Vec<_>>>()
        };
        let (called, profile) = oxyfuel::profile(calls).unwrap();
        close("profiled", &called.unwrap()[2], &(&x + 1.0).softmax(-1));
        assert_eq!(profile.wall(), profile.device() + profile.overhead());
        assert!(profile.compile() > Duration::ZERO && profile.device() > Duration::ZERO);
        let rows = profile.rows();
        let kernel = rows
            .iter()
            .find(|row| row.category == Category::Reduction)
            .unwrap();
        assert_eq!(kernel.calls, 3);
        assert!(kernel.self_device > Duration::ZERO);
        assert!(kernel.ops.iter().any(|op| op == "add"), "{profile}");
        let row = format!("\"name\":\"{device}\"");
        assert!(profile.chrome_trace().contains(&row), "{row}");
    }
    let Some(gpu) = gpu() else { return };
    let x = randn(&[256, 512], 0).to_device(gpu);
    let mut step = cuda::capture(|x: &Tensor| (x + 1.0).softmax(-1), &[&x], 1).unwrap();
    let (replayed, profile) = oxyfuel::profile(|| step.replay_one(&[&x])).unwrap();
    close("replayed", &replayed.unwrap(), &(&x + 1.0).softmax(-1));
    assert_eq!(profile.launches(), [(Category::Replay, 1)]);
    assert!(profile.device() > Duration::ZERO);
}
