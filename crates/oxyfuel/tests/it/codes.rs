//! Every code that this door can say: each has a way to provoke it, a sentence on what to do, and a place where there is one. Codes that it cannot say are listed with the reason.

use oxyfuel::kernel::{self, BufferMode, KernelBuilder, Symbol};
use oxyfuel::nn::Linear;
use oxyfuel::{
    Bucket, Code, CudaGraphs, DType, Device, Error, Options, Tensor, compile, compile_graph, io,
    load, nn, parse_graph,
};
use oxyfuel_testkit::driver;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// Where a message points.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    /// A line of this file.
    Here,
    /// A line of the text that was given.
    Text,
    /// Options, files and caches have no line.
    Nowhere,
}
use At::{Here, Nowhere, Text};

/// What the user saw.
enum Said {
    Error(Box<Error>),
    /// A note of `explain`: the call went on.
    Note(String),
    /// Nothing here provokes it, for the reason.
    NotOnThisMachine(&'static str),
}

impl<T> From<oxyfuel::Result<T>> for Said {
    fn from(result: oxyfuel::Result<T>) -> Self {
        match result {
            Ok(_) => Self::Note("no mistake was found".to_owned()),
            Err(error) => Self::Error(Box::new(error)),
        }
    }
}

impl From<Tensor> for Said {
    fn from(tensor: Tensor) -> Self {
        tensor.check().into()
    }
}

type Row = (Code, At, fn() -> Said);

fn x() -> Tensor {
    Tensor::ones(&[2, 3], DType::F32)
}

fn graph(text: &str) -> oxyfuel::Graph {
    parse_graph("text", text).unwrap()
}

/// The first note of a function that was compiled with this cache.
fn note(dir: &Path) -> Said {
    let options = Options {
        cache_dir: Some(dir.to_owned()),
        ..Options::default()
    };
    let f = compile(|x: &Tensor| x * 3.0, options).unwrap();
    f.call(&[&x()]).unwrap();
    let report = f.explain();
    let note = report.variants[0].notes.first();
    Said::Note(note.unwrap_or_else(|| panic!("{report}")).clone())
}

/// A folder with a cache of one entry in it, after `damage` was done to the entry.
fn damaged(damage: fn(&Path)) -> Said {
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("cache");
    let options = Options {
        cache_dir: Some(dir.clone()),
        ..Options::default()
    };
    let f = compile(|x: &Tensor| x * 3.0, options).unwrap();
    f.call(&[&x()]).unwrap();
    let entries = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path());
    let entry = entries.into_iter().find(|path| path.extension().is_some());
    damage(&entry.unwrap());
    // The closure of `note` has another name, and so another entry: this one again.
    let options = Options {
        cache_dir: Some(dir),
        ..Options::default()
    };
    let g = compile(|x: &Tensor| x * 3.0, options).unwrap();
    let g = g.named(f.name());
    g.call(&[&x()]).unwrap();
    let report = g.explain();
    let note = report.variants[0].notes.first();
    Said::Note(note.unwrap_or_else(|| panic!("{report}")).clone())
}

/// A kernel of one phase over `n` elements of a buffer, a workspace and a result.
fn checked(grid: i64, body: impl FnOnce(&KernelBuilder, [&kernel::Mem; 3])) -> Said {
    let k = KernelBuilder::new("checked");
    let x = k.buffer("x", DType::F32, BufferMode::Read, 4);
    let w = k.buffer("w", DType::F32, BufferMode::Workspace, 4);
    let y = k.buffer("y", DType::F32, BufferMode::Write, 4);
    k.phase([grid], |k| body(k, [&x, &w, &y]));
    let kernel = kernel::compile(&k.finish().unwrap(), Options::default()).unwrap();
    let (x, y) = (
        Tensor::ones(&[4], DType::F32),
        Tensor::zeros(&[4], DType::F32),
    );
    kernel
        .check_within(&[(&x).into(), (&y).into()], 1000)
        .into()
}

/// `y = x`, of four elements.
fn copy_kernel() -> kernel::Kernel {
    let k = KernelBuilder::new("copy");
    let x = k.buffer("x", DType::F32, BufferMode::Read, 4);
    let y = k.buffer("y", DType::F32, BufferMode::Write, 4);
    k.phase([1], |k| {
        k.store(y.at(0).shape([4]), k.load(x.at(0).shape([4])))
    });
    kernel::compile(&k.finish().unwrap(), Options::default()).unwrap()
}

fn saved() -> (TempDir, std::path::PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("weights.safetensors");
    nn::save(&Linear::new(2, 2, true, DType::F32, 0), &path).unwrap();
    (folder, path)
}

const TWICE: &str = "graph @twice(%x: f32[3] cpu) {
  %y: f32[3] = add %x, %x
  return %y
}";

const ROWS: &[Row] = &[
    (Code::ShapeMismatch, Here, || {
        (x() + Tensor::ones(&[4], DType::F32)).into()
    }),
    (Code::DTypeMismatch, Here, || {
        let f = compile_graph(graph(TWICE), Options::default()).unwrap();
        f.call(&[&Tensor::ones(&[3], DType::I64)]).into()
    }),
    (Code::DeviceMismatch, Here, || {
        let target = "sm_90a".to_owned();
        let options = Options {
            target,
            ..Options::default()
        };
        let f = compile(|x: &Tensor| x.relu(), options).unwrap();
        f.call(&[&x()]).into()
    }),
    (Code::RankMismatch, Here, || x().unsqueeze(0).t().into()),
    (Code::DimOutOfRange, Here, || x().sum(&[5], false).into()),
    (Code::IndexOutOfRange, Here, || x().select(0, 7).into()),
    (Code::LayoutMismatch, Here, || {
        let square = Tensor::ones(&[2, 2], DType::F32);
        let y = Tensor::zeros(&[4], DType::F32);
        copy_kernel()
            .launch(&[(&square.t()).into(), (&y).into()])
            .into()
    }),
    (Code::ArityMismatch, Here, || {
        let f = compile(|x: &Tensor, y: &Tensor| x + y, Options::default()).unwrap();
        f.call(&[&x()]).into()
    }),
    (Code::InvalidArgument, Here, || {
        let text = "graph @grow(%x: f32[3] cpu) {
  %y: f32[3] = add %x, %x
  return %y into %x
}";
        compile_graph(graph(text), Options::default()).into()
    }),
    (Code::UnsupportedOp, Here, || {
        Tensor::einsum("...i->...", &[&x()]).into()
    }),
    (Code::UnsupportedDType, Here, || (x() & x()).into()),
    (Code::TraceLeak, Here, || {
        static KEPT: std::sync::Mutex<Option<Tensor>> = std::sync::Mutex::new(None);
        let keep = |x: &Tensor| {
            *KEPT.lock().unwrap() = Some(x + 1.0);
            x.relu()
        };
        compile(keep, Options::default())
            .unwrap()
            .call(&[&x()])
            .unwrap();
        let kept = KEPT.lock().unwrap().take().unwrap();
        kept.to_vec::<f32>().into()
    }),
    (Code::DataDependent, Here, || {
        let options = Options {
            fullgraph: true,
            ..Options::default()
        };
        let f = compile(|x: &Tensor| x.item().map(|n| x * n.as_f64()), options).unwrap();
        f.call(&[&x()]).into()
    }),
    (Code::AliasedInputs, Here, || {
        let x = Tensor::ones(&[4], DType::F32);
        copy_kernel().launch(&[(&x).into(), (&x).into()]).into()
    }),
    (Code::UnboundSymbol, Here, || {
        let k = KernelBuilder::new("unbound");
        let x = k.buffer("x", DType::F32, BufferMode::Write, Symbol(7));
        k.phase([1], |k| {
            k.store(x.at(0).shape([1]), k.full(DType::F32, [1], 0.0))
        });
        k.finish().into()
    }),
    (Code::PaddingMatters, Here, || {
        let f = compile(|x: &Tensor| x.mean(&[1], false), Options::default()).unwrap();
        let f = f.bucket(Bucket::new(&[8]).dim(0, 1).must_pad()).unwrap();
        f.call(&[&x()]).into()
    }),
    (Code::Syntax, Text, || {
        parse_graph("text", "graf @f() {}").into()
    }),
    (Code::UnknownName, Text, || {
        parse_graph("text", &TWICE.replace("add", "addd")).into()
    }),
    (Code::DuplicateName, Text, || {
        parse_graph("text", &TWICE.replace("%y", "%x")).into()
    }),
    (Code::InvalidLiteral, Text, || {
        parse_graph(
            "text",
            &TWICE.replace("f32[3]", "f32[99999999999999999999]"),
        )
        .into()
    }),
    (Code::NestedTooDeep, Text, || {
        let size = format!("{}3{}", "(".repeat(5000), ")".repeat(5000));
        parse_graph("text", &TWICE.replace("f32[3]", &format!("f32[{size}]"))).into()
    }),
    (Code::InvalidGraph, Here, || {
        let mut graph = graph(TWICE);
        graph.inputs.clear();
        compile_graph(graph, Options::default()).into()
    }),
    (Code::InvalidKernel, Here, || {
        let k = KernelBuilder::new("outside");
        let _ = k.program_id(0);
        k.finish().into()
    }),
    (Code::OutOfBounds, Here, || {
        checked(1, |k, [x, _, y]| {
            k.store(y.at(0).shape([4]), k.load(x.at(2).shape([4])))
        })
    }),
    (Code::UninitializedRead, Here, || {
        checked(1, |k, [_, w, y]| {
            k.store(y.at(0).shape([4]), k.load(w.at(0).shape([4])))
        })
    }),
    (Code::DataRace, Here, || {
        checked(2, |k, [x, _, y]| {
            k.store(y.at(0).shape([4]), k.load(x.at(0).shape([4])))
        })
    }),
    (Code::StepLimit, Here, || {
        checked(1 << 20, |k, [x, _, _]| {
            k.load(x.at(0).shape([4]));
        })
    }),
    (Code::UnknownOption, Nowhere, || {
        Options::default().set("modus", "x").into()
    }),
    (Code::InvalidOption, Here, || {
        let target = "sm_1".to_owned();
        compile(
            |x: &Tensor| x.relu(),
            Options {
                target,
                ..Options::default()
            },
        )
        .into()
    }),
    (Code::CacheUnreadable, Nowhere, || {
        let file = tempfile::NamedTempFile::new().unwrap();
        note(&file.path().join("below"))
    }),
    (Code::CacheUnwritable, Nowhere, || {
        let file = tempfile::NamedTempFile::new().unwrap();
        note(file.path())
    }),
    (Code::CacheCorrupt, Nowhere, || {
        damaged(|entry| fs::write(entry, "broken").unwrap())
    }),
    (Code::CacheUntrusted, Nowhere, || {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        note(folder.path())
    }),
    (Code::DiskFull, Nowhere, full_disk),
    (Code::FileNotFound, Nowhere, || {
        io::read_npy("/nothing/here.npy").into()
    }),
    (Code::FileUnreadable, Nowhere, || {
        io::read_npy(TempDir::new().unwrap().path()).into()
    }),
    (Code::FileMalformed, Nowhere, || {
        let file = tempfile::NamedTempFile::new().unwrap();
        io::read_safetensors(file.path()).into()
    }),
    (Code::UnsupportedVersion, Here, || {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("f.oxy");
        let f = compile(|x: &Tensor| x.relu(), Options::default()).unwrap();
        f.save(&path, &[&x()]).unwrap();
        let mut file = fs::read(&path).unwrap();
        let key = br#""oxyfuel":"1""#;
        let at = file.windows(key.len()).position(|w| w == key).unwrap();
        file[at + key.len() - 2] = b'9';
        fs::write(&path, file).unwrap();
        load(&path, Options::default()).into()
    }),
    (Code::MissingTensor, Nowhere, || {
        let (_folder, path) = saved();
        nn::load(&vec![Linear::new(2, 2, true, DType::F32, 0)], path).into()
    }),
    (Code::UnexpectedTensor, Nowhere, || {
        let (_folder, path) = saved();
        nn::load(&Linear::new(2, 2, false, DType::F32, 0), path).into()
    }),
    (Code::SizeOverflow, Here, || {
        Tensor::zeros(&[i64::MAX, 4], DType::F32).into()
    }),
    (Code::OutOfMemory, Here, || {
        Tensor::zeros(&[1 << 50], DType::F32).into()
    }),
    (Code::TooLarge, Here, || {
        let x = Tensor::ones(&[1, 1, 8], DType::F32);
        let wide = Tensor::ones(&[1, 1, 1], DType::F32).expand(&[1, 1, 1 << 40]);
        x.conv1d(&wide, None, &Default::default()).into()
    }),
    (Code::DivisionByZero, Text, || {
        parse_graph("text", &TWICE.replace("f32[3]", "f32[3 % 0]")).into()
    }),
    (Code::MemoryLimit, Here, || {
        let options = Options {
            memory_limit: 1,
            ..Options::default()
        };
        let f = compile(|x: &Tensor| x.relu(), options).unwrap();
        f.call(&[&x()]).into()
    }),
    (Code::CaptureBroken, Here, || {
        let options = Options {
            cudagraphs: CudaGraphs::Require,
            ..Options::default()
        };
        let f = compile(|x: &Tensor| x.relu(), options).unwrap();
        f.call(&[&x()]).into()
    }),
    (Code::StaleFrozen, Here, || {
        let f = compile(|x: &Tensor, w: &Tensor| x * w, Options::default()).unwrap();
        let frozen = f.freeze(&[&x()]).unwrap();
        frozen.invalidate();
        frozen.call(&[&x()]).into()
    }),
    (Code::NoDriver, Here, || match Device::cuda(0).check() {
        Ok(()) => Said::NotOnThisMachine("there is a driver"),
        result @ Err(_) => result.into(),
    }),
    (Code::HostCall, Here, || {
        let text = r#"graph @f(%x: f32[4] cpu) {
  %y: f32[4] = external %x, call="{\"name\":\"double\",\"args\":[{\"operand\":0}],\"results\":[{\"tensor\":{\"dtype\":\"f32\",\"shape\":[\"4\"],\"strides\":[\"1\"]}}]}"
  return %y
}"#;
        let f = compile_graph(graph(text), Options::default()).unwrap();
        f.call(&[&Tensor::ones(&[4], DType::F32)]).into()
    }),
    (Code::NoLowering, Here, || {
        let text =
            "sym s0: 1..\ngraph @f(%x: f32[s0] cpu) {\n  %y: f32[s0] = add %x, %x\n  return %y\n}";
        let inner = compile_graph(graph(text), Options::default()).unwrap();
        let f = compile(move |x: &Tensor| inner.call(&[x]), Options::default()).unwrap();
        f.call(&[&Tensor::ones(&[4], DType::F32)]).into()
    }),
    (Code::UnsupportedDevice, Here, old_card),
];

/// Codes that no use of this crate leads to here.
const UNREACHABLE: &[(Code, &str)] = &[
    (
        Code::InvalidPlan,
        "plans come from our compiler or out of a checksum",
    ),
    (
        Code::ConflictingOptions,
        "no two options of this door exclude each other; the Python package has such",
    ),
    (
        Code::NoDevice,
        "wants a driver without the device; the runtime's tests have a mock of one",
    ),
    (
        Code::DriverCall,
        "wants a driver that fails; the runtime's tests have a mock of one",
    ),
    (
        Code::LinkFailed,
        "wants PTX that a driver refuses; tested in runtime",
    ),
    (
        Code::MissingLibrary,
        "wants an old driver; tested in runtime",
    ),
    (
        Code::NoExecutableMemory,
        "wants a system that refuses it; tested in runtime",
    ),
    (
        Code::ThreadFailed,
        "a pool without a thread works with those it has; the command starts processes",
    ),
    (Code::UnsupportedHost, "this door has no host framework"),
    (
        Code::DriverTooOld,
        "wants an old driver; tested in runtime with a driver of our own",
    ),
    (
        Code::KernelFault,
        "ours: a way to provoke it is a bug to be mended",
    ),
    (
        Code::Internal,
        "ours: a way to provoke it is a bug to be mended",
    ),
    (
        Code::InvalidLowering,
        "ours: a way to provoke it is a bug to be mended; a test of the core has the conversion",
    ),
    (
        Code::WrongResult,
        "ours: a way to provoke it is a bug to be mended",
    ),
];

#[test]
fn every_code_is_provoked_or_out_of_reach() {
    for &code in Code::ALL {
        let rows = ROWS.iter().filter(|(row, ..)| *row == code).count();
        let unreachable = UNREACHABLE.iter().filter(|(row, _)| *row == code).count();
        assert_eq!(rows + unreachable, 1, "{code} {code:?}");
    }
}

/// A sentence of the code's own on what to do: a page to look it up in is none.
fn is_advice(code: Code, help: &str) {
    assert!(
        !help.contains("docs/errors.md"),
        "{code:?} has no advice but a page: {help}"
    );
}

#[test]
fn every_message_has_a_code_a_place_and_a_way_out() {
    for (code, place, provoke) in ROWS {
        match provoke() {
            Said::Error(error) => {
                assert_eq!(error.code, *code, "{error}");
                let help = error.help.as_deref().unwrap_or_default();
                assert!(help.len() > 10, "{code:?} without help: {error}");
                is_advice(*code, help);
                let at = error.at.as_ref().map(|at| match at.file.as_str() {
                    "text" => Text,
                    file if file.ends_with("codes.rs") => Here,
                    file => panic!("{code:?} points to {file}"),
                });
                assert_eq!(at.unwrap_or(Nowhere), *place, "{code:?}: {error}");
            }
            Said::Note(note) => {
                let start = format!("error[{code}]: ");
                assert!(note.starts_with(&start), "{code:?}: {note}");
                let help = note.split("\n  help: ").nth(1);
                is_advice(*code, help.unwrap_or_else(|| panic!("{code:?}: {note}")));
            }
            Said::NotOnThisMachine(why) => eprintln!("{code:?}: {why}"),
        }
    }
}

/// The file that a process without room is to write.
const NO_ROOM: &str = "OXYFUEL_TEST_NO_ROOM";

/// Not a test of its own: what the process does that has no room for files.
#[test]
fn a_writer_without_room() {
    let Ok(path) = std::env::var(NO_ROOM) else {
        return;
    };
    let tensor = Tensor::ones(&[1 << 16], DType::F32);
    let error = io::write_npy(&path, &tensor).unwrap_err();
    println!("{error}");
}

/// A process whose files must not grow: the system says the same as of a full disk.
fn full_disk() -> Said {
    let folder = TempDir::new().unwrap();
    let output = std::process::Command::new("sh")
        .arg("-c")
        .arg("trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact codes::a_writer_without_room --nocapture")
        .arg(std::env::current_exe().unwrap())
        .env(NO_ROOM, folder.path().join("x.npy"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let start = text.find("error[").unwrap_or_else(|| panic!("{text}"));
    Said::Note(text[start..].to_owned())
}

/// Set where the CUDA driver is one whose GPU is too old.
const OLD_CARD: &str = "OXYFUEL_TEST_OLD_CARD";

/// Not a test of its own: what a process says of such a GPU. Nothing gets as far as its memory.
#[test]
fn a_process_with_an_old_card() {
    if std::env::var_os(OLD_CARD).is_none() {
        return;
    }
    let device = Device::cuda(0);
    let asked = [
        device.check(),
        device.synchronize(),
        device.memory_summary().map(drop),
        x().to_device(device).check(),
    ];
    for asked in asked {
        println!("{}", asked.unwrap_err());
    }
}

/// A process that finds a driver with a GPU of compute capability 7.5.
fn old_card() -> Said {
    if !cfg!(target_os = "linux") {
        return Said::NotOnThisMachine("libraries are found in other ways");
    }
    let folder = driver::library(
        env!("CARGO_TARGET_TMPDIR"),
        "old-card",
        &driver::with_card(7, 5),
    );
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "codes::a_process_with_an_old_card",
            "--nocapture",
        ])
        .env("LD_LIBRARY_PATH", folder)
        .env(OLD_CARD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text.matches("error[E0704]: made card: ").count(),
        4,
        "{text}"
    );
    let start = text.find("error[").unwrap_or_default();
    Said::Note(text[start..].to_owned())
}
