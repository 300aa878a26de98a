//! The cases: files of graphs with inputs, larger graphs whose shapes reach every kind of kernel, and random graphs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use oxyfuel_base::{Code, Result, err};
use oxyfuel_engine::{Executable, Options, Stage, Target, compile};
use oxyfuel_graph::random::{self, Choices, Limits};
use oxyfuel_graph::{Graph, HostTensor, parse};
use oxyfuel_plan::Artefact;
use oxyfuel_runtime::tensor::Tensor;

use crate::Place;
use crate::judge::{Judge, by_condition, closely, show as listed};
use crate::{attention, concatenations, convolutions, inputs, memory, products};

/// Random graphs of every kind.
const RANDOM: usize = 400;
/// Random graphs of each generator below.
const OF_ONE_KIND: usize = 40;

/// Numbers for the symbols of a random graph: around a block, a few, and none.
const SIZES: [[i64; 2]; 4] = [[65, 2], [5, 64], [3, 70], [0, 3]];

type Generator = fn(&mut Choices<'_>) -> Result<Graph>;

/// Generators of graphs of one kind, as in the conformance suite.
const KINDS: &[(&str, Generator)] = &[
    ("product", products::program),
    ("product of cast weights", products::widened),
    ("pair of products", products::pair),
    ("deep product", products::plain),
    ("rows of a product", products::reduced),
    ("product of what it makes", products::made),
    ("product of any size", products::symbolic),
    ("attention", attention::program),
    ("attention written out", attention::written),
    ("attention of any length", attention::symbolic),
    ("convolution", convolutions::program),
    ("concatenation", |choices| {
        concatenations::program(choices, false)
    }),
    ("concatenation of any size", |choices| {
        concatenations::program(choices, true)
    }),
    ("step over sets of tensors", |choices| {
        random::alike(choices, &Limits::default())
    }),
    ("contraction", |choices| {
        let limits = Limits {
            symbols: false,
            steps: 12,
            large: true,
            elements: 12_000,
            contractions: true,
            ..Limits::default()
        };
        random::graph(choices, &limits)
    }),
    ("graph of any size", |choices| {
        let limits = Limits {
            symbols: true,
            steps: 12,
            large: true,
            elements: 12_000,
            ..Limits::default()
        };
        random::graph(choices, &limits)
    }),
    ("any", |choices| {
        let limits = Limits {
            symbols: false,
            steps: 40,
            ..Limits::default()
        };
        random::graph(choices, &limits)
    }),
];

/// What a GPU cannot express yet: a part of the sentence that says so, and why that is no failure. Anything else that has no lowering is one.
const IGNORED: &[(&str, &str)] = &[];

/// Name, inputs, nodes, result. Long rows, cut reductions, transposes, products by warp groups with edges, order of rows by a block each and digit by digit.
const GRAPHS: &[(&str, &str)] = &[
    ("pointwise", "%x: f32[100003] cpu align 64, %b: f32[100003] cpu align 64) {
  %two: f32[] = full value=2.0
  %s: f32[100003] = add %x, %b
  %r: f32[100003] = relu %s
  %y: f32[100003] = mul %r, %two
  return %y"),
    ("side by side", "%lr: f32[] cpu align 64, %p: f32[300, 520] cpu align 64, %g: f32[300, 520] cpu align 64, %q: f32[1000] cpu align 64, %h: f32[1000] cpu align 64, %r: f32[1000] cpu align 64, %i: f32[1000] cpu align 64, %s: f32[67, 33] cpu align 64, %j: f32[67, 33] cpu align 64) {
  %a: f32[300, 520] = mul %g, %lr
  %b: f32[1000] = mul %h, %lr
  %c: f32[1000] = mul %i, %lr
  %d: f32[67, 33] = mul %j, %lr
  %e: f32[300, 520] = sub %p, %a
  %f: f32[1000] = sub %q, %b
  %k: f32[1000] = sub %r, %c
  %l: f32[67, 33] = sub %s, %d
  return %e, %f, %k, %l"),
    ("side by side in place", "%p: bf16[130, 520] cpu align 64, %g: bf16[130, 520] cpu align 64, %q: bf16[1000] cpu align 64, %h: bf16[1000] cpu align 64, %r: bf16[1000] cpu align 64, %i: bf16[1000] cpu align 64) {
  %e: bf16[130, 520] = sub %p, %g
  %f: bf16[1000] = sub %q, %h
  %k: bf16[1000] = sub %r, %i
  return %e into %p, %f into %q, %k into %r"),
    ("sums of rows side by side", "%p: f32[37, 520] cpu align 64, %q: f32[19, 1024] cpu align 64, %r: f32[37, 520] cpu align 64) {
  %e: f32[37] = sum %p, dims=[1], keepdim=false
  %f: f32[19] = sum %q, dims=[1], keepdim=false
  %k: f32[37] = sum %r, dims=[1], keepdim=false
  return %e, %f, %k"),
    ("gelu bf16", "%x: bf16[67, 520] cpu align 64, %b: bf16[520] cpu align 64) {
  %s: bf16[67, 520] = add %x, %b
  %y: bf16[67, 520] = gelu %s
  return %y"),
    ("mxint8", "%q: i8[129, 32] cpu align 64, %e: u8[129] cpu align 64) {
  %f: f32[129, 32] = _to_copy %q
  %c: f32[] = full value=0.015625
  %m: f32[129, 32] = mul %f, %c
  %g: f32[129] = _to_copy %e
  %o: f32[] = full value=2.0
  %h: f32[129] = sub %g, %o
  %p: f32[129] = exp2 %h
  %v: f32[129, 1] = view %p
  %d: f32[129, 32] = mul %m, %v
  %y: bf16[129, 32] = _to_copy %d
  return %y"),
    ("softmax bf16 4096", "%x: bf16[37, 4096] cpu align 64) {
  %y: bf16[37, 4096] = _softmax %x, dim=1
  return %y"),
    ("softmax f32 32000", "%x: f32[3, 32000] cpu align 64) {
  %y: f32[3, 32000] = _softmax %x, dim=1
  return %y"),
    ("softmax f32 100000", "%x: f32[2, 100000] cpu align 64) {
  %y: f32[2, 100000] = _softmax %x, dim=1
  return %y"),
    ("softmax columns", "%x: f32[300, 70] cpu align 64) {
  %y: f32[300, 70] = _softmax %x, dim=0
  return %y"),
    ("layer_norm bf16 4096", "%x: bf16[19, 4096] cpu align 64, %w: bf16[4096] cpu align 64) {
  %y: bf16[19, 4096], %m: f32[19, 1], %r: f32[19, 1] = native_layer_norm %x, %w, %w, rank=1, eps=1e-5
  return %y"),
    ("layer_norm f32 1000", "%x: f32[50, 1000] cpu align 64, %w: f32[1000] cpu align 64) {
  %y: f32[50, 1000], %m: f32[50, 1], %r: f32[50, 1] = native_layer_norm %x, %w, %w, rank=1, eps=1e-5
  return %y"),
    ("sum of all", "%x: f32[3000000] cpu align 64) {
  %y: f32[] = sum %x, dims=[0], keepdim=false
  return %y"),
    ("sum of rows", "%x: f32[5, 70000] cpu align 64) {
  %y: f32[5] = sum %x, dims=[1], keepdim=false
  return %y"),
    ("sum of columns", "%x: f32[2000, 130] cpu align 64) {
  %y: f32[130] = sum %x, dims=[0], keepdim=false
  return %y"),
    ("many long rows", "%x: f32[70000, 33] cpu align 64, %c: f32[70000, 1] cpu align 64) {
  %t: f32[33, 70000] = permute %x, dims=[1, 0]
  %e: f32[1, 70000] = permute %c, dims=[1, 0]
  %y: f32[33, 70000] = add %t, %e
  return %y"),
    ("transpose", "%x: f32[131, 257] cpu align 64) {
  %t: f32[257, 131] = permute %x, dims=[1, 0]
  %y: f32[257, 131] = relu %t
  return %y"),
    ("mm f32", "%a: f32[70, 130] cpu align 64, %b: f32[130, 90] cpu align 64) {
  %y: f32[70, 90] = mm %a, %b
  return %y"),
    ("mm bf16 exact blocks", "%a: bf16[256, 128] cpu align 64, %b: bf16[128, 512] cpu align 64) {
  %y: bf16[256, 512] = mm %a, %b
  return %y"),
    ("mm bf16 edges", "%a: bf16[200, 200] cpu align 64, %b: bf16[200, 328] cpu align 64) {
  %y: bf16[200, 328] = mm %a, %b
  return %y"),
    ("mm bf16 narrow", "%a: bf16[100, 520] cpu align 64, %b: bf16[520, 64] cpu align 64) {
  %y: bf16[100, 64] = mm %a, %b
  return %y"),
    ("mm bf16 turned", "%a: bf16[130, 264] cpu align 64, %b: bf16[300, 264] cpu align 64) {
  %t: bf16[264, 300] = permute %b, dims=[1, 0]
  %y: bf16[130, 300] = mm %a, %t
  return %y"),
    ("mm bf16 odd", "%a: bf16[33, 37] cpu align 64, %b: bf16[37, 41] cpu align 64) {
  %y: bf16[33, 41] = mm %a, %b
  return %y"),
    ("mm bf16 and work", "%a: bf16[256, 192] cpu align 64, %b: bf16[192, 264] cpu align 64, %c: bf16[264] cpu align 64) {
  %p: bf16[256, 264] = addmm %c, %a, %b, beta=1, alpha=1
  %y: bf16[256, 264] = gelu %p
  return %y"),
    ("mm f16", "%a: f16[140, 136] cpu align 64, %b: f16[136, 272] cpu align 64) {
  %y: f16[140, 272] = mm %a, %b
  return %y"),
    ("bmm bf16", "%a: bf16[3, 64, 64] cpu align 64, %b: bf16[3, 64, 72] cpu align 64) {
  %y: bf16[3, 64, 72] = bmm %a, %b
  return %y"),
    ("order of rows of a block each", "%x: f32[200, 16000] cpu align 64) {
  %y: i64[200, 16000] = argsort %x, dim=1, descending=true
  return %y"),
    ("order of a long row f32", "%x: f32[1000003] cpu align 64) {
  %y: i64[1000003] = argsort %x, dim=0, descending=false
  return %y"),
    ("order of long rows f64", "%x: f64[150, 20000] cpu align 64) {
  %y: i64[150, 20000] = argsort %x, dim=1, descending=true
  return %y"),
    ("order of long rows f16", "%x: f16[3, 300001] cpu align 64) {
  %y: i64[3, 300001] = argsort %x, dim=1, descending=true
  return %y"),
    ("order of long columns bf16", "%x: bf16[100003, 2] cpu align 64) {
  %y: i64[100003, 2] = argsort %x, dim=0, descending=false
  return %y"),
    ("order of a long row i64", "%x: i64[65536] cpu align 64) {
  %y: i64[65536] = argsort %x, dim=0, descending=true
  return %y"),
    ("order of a long row i32", "%x: i32[32768] cpu align 64) {
  %y: i64[32768] = argsort %x, dim=0, descending=false
  return %y"),
    ("order of long rows i8", "%x: i8[5, 40000] cpu align 64) {
  %y: i64[5, 40000] = argsort %x, dim=1, descending=false
  return %y"),
    ("most places of a long row", "%x: u8[2, 70000] cpu align 64) {
  %o: i64[2, 70000] = argsort %x, dim=1, descending=true
  %s: i64[2, 20000] = slice %o, dim=1, start=0, end=20000, step=1
  %y: i64[2, 20000] = neg %s
  return %y"),
];

enum Source {
    File(PathBuf),
    Graph(&'static str),
    Random(Generator, usize),
}

struct Case {
    name: String,
    source: Source,
}

fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, body) in GRAPHS {
        cases.push(Case {
            name: (*name).to_owned(),
            source: Source::Graph(body),
        });
    }
    let root = std::env::var_os("OXYFUEL_CASES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests"),
        PathBuf::from,
    );
    for folder in ["graph", "run"] {
        let mut files = Vec::new();
        walk(&root.join(folder), &mut files);
        files.sort();
        for path in files {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            cases.push(Case {
                name: format!("{folder}/{stem}"),
                source: Source::File(path),
            });
        }
    }
    // Those of every kind come last, so that a quick run can leave most of them out.
    for &(kind, generator) in KINDS {
        let (name, count) = match kind {
            "any" => ("random".to_owned(), RANDOM),
            kind => (format!("random {kind}"), OF_ONE_KIND),
        };
        cases.extend((0..count).map(|number| Case {
            name: format!("{name} {number}"),
            source: Source::Random(generator, number),
        }));
    }
    cases
}

/// Files with a graph to run, those about errors left out.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for path in entries
        .filter_map(std::result::Result::ok)
        .map(|e| e.path())
    {
        if path.is_dir() {
            if !path.ends_with("errors") {
                walk(&path, files);
            }
        } else if std::fs::read_to_string(&path).is_ok_and(|text| text.starts_with("; test: run")) {
            files.push(path);
        }
    }
}

pub fn names() -> Vec<String> {
    all().into_iter().map(|case| case.name).collect()
}

/// SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Case {
    /// The graph, and the inputs of each run of it.
    fn load(&self) -> Result<(Graph, Vec<Vec<HostTensor>>)> {
        let said = |why: String| err!(InvalidArgument, "{why}");
        match &self.source {
            Source::Graph(body) => {
                let graph = parse(&self.name, &format!("graph @f({body}\n}}"))?;
                let runs = inputs::inputs_of(&graph, "seed 7").map_err(said)?;
                Ok((graph, runs))
            }
            Source::Random(generator, number) => {
                let mut source = Numbers(*number as u64);
                let count = 20 + source.next() % 280;
                let numbers: Vec<u32> = (0..count).map(|_| (source.next() >> 44) as u32).collect();
                let mut choices = Choices::new(&numbers);
                let graph = generator(&mut choices)?;
                let sizes = match graph.symbols.is_empty() {
                    true => &[[0; 2]][..],
                    false => &SIZES,
                };
                let runs = sizes
                    .iter()
                    .map(|sizes| random::inputs_of(&graph, sizes, &mut choices));
                let runs = runs.collect::<Result<_>>()?;
                Ok((graph, runs))
            }
            Source::File(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|e| err!(InvalidArgument, "{}: {e}", path.display()))?;
                let text = text.split("\n; expect").next().unwrap_or_default();
                let head = text.lines().take_while(|line| line.starts_with(';'));
                let text = &text[head.map(|line| line.len() + 1).sum::<usize>()..];
                let (text, rest) = inputs::split(text);
                let graph = parse(&self.name, text)?;
                let runs = inputs::inputs_of(&graph, rest).map_err(said)?;
                Ok((graph, runs))
            }
        }
    }
}

enum Outcome {
    Agrees,
    Skipped(String),
    Wrong(String),
    /// The device answers no more.
    Lost(String),
}

fn run_case(place: &Place, case: &Case) -> Outcome {
    let wrong = |e: oxyfuel_base::Error| Outcome::Wrong(e.to_string());
    let (graph, runs) = match case.load() {
        Ok(loaded) => loaded,
        Err(error) => return wrong(error),
    };
    // Sizes that do not fit each other are refused; the others of the same graph are not.
    let runs = runs.into_iter().filter_map(|inputs| {
        let expected = oxyfuel_graph::run(&graph, &inputs).ok()?;
        Some((inputs, expected))
    });
    let runs: Vec<_> = runs.collect();
    if runs.is_empty() {
        return Outcome::Skipped("the interpreter refuses it".to_owned());
    };
    let mut compiled = match compile(&graph, &place.target, &place.options(), false) {
        Ok(compiled) => compiled,
        Err(error) if error.code == Code::NoLowering => return no_lowering(&error.message),
        Err(error) => return wrong(error),
    };
    let kernels = compiled.plan.kernels.values().map(|k| k.name.clone());
    let kernels = kernels.collect::<Vec<String>>().join(", ");
    if place.interprets {
        compiled.plan.isa.clear();
        for kernel in compiled.plan.kernels.values_mut() {
            if let Artefact::Ptx(module) = &kernel.artefact
                && !module.tensor_maps.is_empty()
            {
                return Outcome::Skipped("tensor maps are for a driver".to_owned());
            }
            kernel.artefact = Artefact::Interpreted;
        }
    }
    // Of random graphs results may differ as much as rounding costs them.
    let judge: Judge = match case.source {
        Source::Random(..) => by_condition,
        Source::File(_) | Source::Graph(_) => closely,
    };
    // The first call launches one by one, the second is recorded, and the third follows its tensors.
    let executable = Executable::load(compiled.plan, compiled.record, place.device.clone())
        .and_then(|executable| executable.submitting(Some(1)));
    let executable = match executable {
        Ok(executable) => executable,
        Err(error) => return wrong(error),
    };
    for (inputs, expected) in runs {
        let outputs = match run_once(place, &graph, &executable, &inputs) {
            Ok(Ok(outputs)) => outputs,
            Ok(Err(why)) => return Outcome::Wrong(format!("{why} ({kernels})")),
            Err(error) => return failed(place, &error, &kernels),
        };
        if place.null {
            continue;
        }
        if let Err(why) = judge(&graph, &inputs, &expected, &outputs) {
            return Outcome::Wrong(format!("{why} ({kernels})"));
        }
        // Results are still held: each call has other memory.
        let mut held = vec![outputs];
        for times in ["twice", "three times"] {
            let submitted = executable.program().submissions();
            if times != "twice" && submitted.is_none_or(|(made, _)| made == 0) {
                break;
            }
            let again = match run_once(place, &graph, &executable, &inputs) {
                Ok(Ok(again)) => again,
                Ok(Err(why)) => {
                    return Outcome::Wrong(format!("called {times}: {why} ({kernels})"));
                }
                Err(error) => return failed(place, &error, &kernels),
            };
            if let Err(why) = same_bits(&held[0], &again) {
                return Outcome::Wrong(format!("called {times}: {why} ({kernels})"));
            }
            held.push(again);
        }
    }
    Outcome::Agrees
}

/// A call that could not be made, and whether the device outlived it.
fn failed(place: &Place, error: &oxyfuel_base::Error, kernels: &str) -> Outcome {
    let why = format!("{error} ({kernels})");
    match place.device.synchronize() {
        Ok(()) => Outcome::Wrong(why),
        Err(_) => Outcome::Lost(why),
    }
}

/// Two calls with the same inputs give the same bits: nothing is added atomically, partial sums are added in their order. An `index_put` that meets a place twice with different numbers would be the one
/// exception where `deterministic` is not asked for; no case has it, since the interpreter's order would not be the GPU's either.
fn same_bits(first: &[Tensor], again: &[Tensor]) -> std::result::Result<(), String> {
    for (number, (first, again)) in first.iter().zip(again).enumerate() {
        let bytes = |tensor: &Tensor| tensor.to_bytes().map_err(|e| e.to_string());
        let (before, after) = (bytes(first)?, bytes(again)?);
        let size = first.dtype().size();
        let mut elements = before.chunks(size).zip(after.chunks(size)).enumerate();
        if let Some((at, (was, is))) = elements.find(|(_, (was, is))| was != is) {
            return Err(format!(
                "not deterministic: element {at} of output {number} has the bytes {was:02x?} and then {is:02x?}"
            ));
        }
    }
    Ok(())
}

/// Skipped where the table has it.
fn no_lowering(message: &str) -> Outcome {
    match IGNORED.iter().find(|(part, _)| message.contains(part)) {
        Some((_, why)) => Outcome::Skipped((*why).to_owned()),
        None => Outcome::Wrong(format!("no lowering: {message}")),
    }
}

/// The outputs; or what was touched that should not have been.
fn run_once(
    place: &Place,
    graph: &Graph,
    executable: &Executable,
    inputs: &[HostTensor],
) -> Result<std::result::Result<Vec<Tensor>, String>> {
    let shapes: Vec<&[i64]> = inputs.iter().map(|i| i.shape.as_slice()).collect();
    let bindings = oxyfuel_graph::bind(graph, &shapes)?;
    let tensors = memory::place_on(graph, &bindings, inputs, &*place.device)?;
    let outputs = executable.run(&tensors.iter().collect::<Vec<_>>())?;
    place.device.synchronize()?;
    if !place.null
        && let Err(why) = memory::check(graph, &bindings, inputs, &tensors, &outputs)
    {
        return Ok(Err(why));
    }
    Ok(Ok(outputs))
}

/// Runs cases by number; a name is told before its case runs, so that a hang has a name.
pub fn run(place: &Place, numbers: &[&str]) -> Result<ExitCode> {
    let cases = all();
    for number in numbers {
        let case = number.parse().ok().and_then(|n: usize| cases.get(n));
        let case = case.ok_or_else(|| err!(InvalidArgument, "there is no case {number}"))?;
        println!("case {number} {}", case.name);
        let start = Instant::now();
        let outcome = run_case(place, case);
        let ms = start.elapsed().as_millis();
        let line = |word: &str, why: &str| println!("{word} {} ({ms} ms): {why}", case.name);
        match outcome {
            Outcome::Agrees => line("ok", ""),
            Outcome::Skipped(why) => line("skip", &why.replace('\n', " ")),
            Outcome::Wrong(why) => line("FAIL", &why.replace('\n', " ")),
            Outcome::Lost(why) => {
                line("FAIL", &format!("device lost: {}", why.replace('\n', " ")));
                return Ok(ExitCode::from(3));
            }
        }
    }
    println!("end");
    Ok(ExitCode::SUCCESS)
}

/// The code of every case, so that the assembler can judge it where there is no GPU.
pub fn write_ptx(folder: &str, target: &str) -> Result<()> {
    let target = Target::by_name(target)?;
    let failed = |e: std::io::Error| err!(InvalidArgument, "{folder}: {e}");
    std::fs::create_dir_all(folder).map_err(failed)?;
    for (number, case) in all().iter().enumerate() {
        let (graph, _) = case.load()?;
        let compiled = match compile(&graph, &target, &Options::default(), false) {
            Ok(compiled) => compiled,
            Err(error) => {
                println!("{number} {}: {error}", case.name);
                continue;
            }
        };
        for (k, kernel) in compiled.plan.kernels.values().enumerate() {
            if let Artefact::Ptx(module) = &kernel.artefact {
                let name = case.name.replace([' ', '/'], "_");
                let path = Path::new(folder).join(format!("{number:04}_{name}_{k}.ptx"));
                std::fs::write(path, &module.text).map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// A case for people: its graph, inputs and code.
pub fn show(number: &str) -> Result<()> {
    let cases = all();
    let case = number.parse().ok().and_then(|n: usize| cases.get(n));
    let case = case.ok_or_else(|| err!(InvalidArgument, "there is no case {number}"))?;
    let (graph, inputs) = case.load()?;
    println!("{graph}");
    for inputs in &inputs {
        print!("{}", listed(inputs));
    }
    let target = Target::by_name("sm_90a")?;
    let compiled = compile(&graph, &target, &Options::default(), true)?;
    for stage in [Stage::Schedule, Stage::Mapped, Stage::Code] {
        println!("{}", compiled.record.text(stage).unwrap_or_default());
    }
    Ok(())
}
