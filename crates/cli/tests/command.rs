//! The command from outside: what it prints where, and how it ends.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use oxyfuel::{Options, Tensor};
use serde_json::Value;

const GRAPH: &str = "graph @f(%x: f32[2, 3] cpu, %b: f32[3] cpu) {
  %s: f32[2, 3] = add %x, %b
  %y: f32[2, 3] = relu %s
  return %y
}
";

fn oxyfuel(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxyfuel"));
    command.args(args).env("OXYFUEL_NUM_THREADS", "2");
    for name in [
        "OXYFUEL_CACHE_DIR",
        "OXYFUEL_TRACE",
        "OXYFUEL_VERIFY",
        "OXYFUEL_LOG",
    ] {
        command.env_remove(name);
    }
    command
}

fn run(args: &[&str]) -> Output {
    oxyfuel(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Standard output of a run that must go well.
fn good(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

fn data(args: &[&str]) -> Value {
    serde_json::from_str(&good(args)).unwrap()
}

/// The run ends with an error of that code, and prints no data.
fn refused(args: &[&str], code: &str) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    assert!(stdout(&output).is_empty(), "{args:?}: {}", stdout(&output));
    let text = stderr(&output);
    assert!(text.contains(&format!("error[{code}]")), "{args:?}: {text}");
    text
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in [
        "bench", "explain", "dump", "run", "doctor", "cache", "targets",
    ] {
        let help = good(&[command, "--help"]);
        assert!(help.contains("Example"), "{command}: {help}");
    }
    assert!(good(&["--help"]).contains("OXYFUEL_CACHE_DIR"));
}

#[test]
fn wrong_usage_ends_with_2() {
    for args in [
        &["frobnicate"][..],
        &["bench", "--frobnicate"],
        &["explain"],
        &["dump", "--workload", "softmax"],
        &["dump", "--workload", "softmax", "--stage", "soup"],
        &["explain", "a.graph", "--workload", "softmax"],
        &["bench", "--threads", "many"],
    ] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn bench_measures_and_checks() {
    let report = data(&["bench", "--quick", "--filter", "add-relu-mul-1k", "--json"]);
    let row = &report["rows"][0];
    assert_eq!(row["name"], "add-relu-mul-1k");
    assert_eq!(row["kernels"], 1);
    assert_eq!(row["eager_kernels"], 3);
    assert_eq!(report["machine"]["threads"], 2);
    for key in ["median", "min", "max", "std"] {
        assert!(row["compiled"][key].as_f64().unwrap() >= 0.0);
        assert!(row["compiled_into"][key].as_f64().unwrap() >= 0.0);
    }
    assert_eq!(row["limit"]["what"], "plain copy");
    let text = good(&["bench", "--quick", "--filter", "add-relu-mul-1k"]);
    assert!(
        text.contains("relu(x+b)*2, 1k") && text.contains("GB/s"),
        "{text}"
    );
}

#[test]
fn reports_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let report = good(&["bench", "--quick", "--filter", "add-relu-mul-1k", "--json"]);
    let old = file(folder.path(), "old.json", &report);
    let mut slower: Value = serde_json::from_str(&report).unwrap();
    let times = &mut slower["rows"][0]["compiled"];
    times["median"] = (times["median"].as_f64().unwrap() * 3.0).into();
    times["std"] = 0.0.into();
    let given = &mut slower["rows"][0]["compiled_into"];
    given["median"] = (given["median"].as_f64().unwrap() / 2.0).into();
    let new = file(folder.path(), "new.json", &slower.to_string());
    let lines = data(&["bench", "--json", "--compare", &old, &new]);
    assert!((lines[0]["ratio"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-9);
    assert_eq!(lines[0]["given_outputs"], false);
    assert!((lines[1]["ratio"].as_f64().unwrap() - 2.0).abs() < 1e-9);
    assert_eq!(lines[1]["given_outputs"], true);
    assert!(good(&["bench", "--compare", &old, &old]).contains("same"));
    let nonsense = file(folder.path(), "nonsense.json", "{}");
    refused(&["bench", "--compare", &old, &nonsense], "E0201");
    refused(&["bench", "--compare", &old, "no-such-file.json"], "E0506");
}

#[test]
fn compile_times_come_by_step() {
    let report = data(&[
        "bench",
        "--compile",
        "--quick",
        "--filter",
        "gelu-bias",
        "--json",
    ]);
    let line = &report["lines"][0];
    assert_eq!(line["kernels"], 1);
    assert!(
        line["steps"]
            .as_array()
            .unwrap()
            .iter()
            .any(|s| s[0] == "emit")
    );
    assert!(line["cold"].as_f64().unwrap() > 0.0);
    // A quick run has bars and judges none of them.
    assert_eq!(line["bar"], 5.0);
    assert!(line["met"].is_null());
    for ratio in report["ratios"].as_array().unwrap() {
        assert!(ratio["times"].as_f64().unwrap() > 0.0, "{ratio}");
        assert!(ratio["bar"].is_f64() && ratio["met"].is_null(), "{ratio}");
    }
    assert_eq!(report["missed"].as_array().unwrap().len(), 0);
    let ms: f64 = good(&["bench", "--compile", "--cold", "softmax"])
        .trim()
        .parse()
        .unwrap();
    assert!(ms > 0.0);
    refused(&["bench", "--compile", "--cold", "frobnicate"], "E0202");
}

/// A bar that no debug build on a busy machine meets: 1,000 values in 0.7 us and less, all of it interpreted.
#[test]
fn a_missed_bar_is_named_and_ends_with_1() {
    let output = run(&["bench", "--overhead", "--target", "interpreter", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["lines"][1]["met"], false);
    let missed = report["missed"].as_array().unwrap();
    assert_eq!(missed.len(), 3, "{missed:?}");
    assert!(
        stderr(&output).contains("missed: call: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn bench_measures_what_a_call_costs() {
    let report = data(&["bench", "--quick", "--overhead", "--json"]);
    let lines = report["lines"].as_array().unwrap();
    let ways: Vec<&str> = lines.iter().filter_map(|l| l["way"].as_str()).collect();
    let expected = [
        "eager, three kernels",
        "call",
        "call of structures",
        "call_into",
        "bound",
    ];
    assert_eq!(ways, expected);
    for line in lines {
        assert!(line["times"]["median"].as_f64().unwrap() > 0.0, "{line}");
    }
    assert!(good(&["bench", "--quick", "--overhead"]).contains("relu(x + b) * 2"));
}

#[test]
fn bench_has_a_row_for_each_mode() {
    let filter = ["bench", "--quick", "--filter", "add-relu-mul-1k", "--modes"];
    let report = data(&[&filter[..], &["--json"]].concat());
    let lines = report["lines"].as_array().unwrap();
    let modes: Vec<&str> = lines.iter().filter_map(|l| l["mode"].as_str()).collect();
    let expected = [
        "default",
        "reduce-overhead",
        "max-autotune",
        "max-autotune-no-cudagraphs",
    ];
    assert_eq!(modes, expected);
    assert!(good(&filter).contains("max-autotune-no-cudagraphs"));
}

#[test]
fn bench_says_what_it_cannot_find_or_do() {
    let text = refused(&["bench", "--filter", "frobnicate"], "E0202");
    assert!(text.contains("--list"), "{text}");
    refused(&["bench", "--target", "frobnicate"], "E0402");
    refused(&["bench", "--threads", "0"], "E0402");
    refused(&["bench", "-o", "frobnicate=1"], "E0401");
    refused(&["bench", "-o", "numerics=sloppy"], "E0402");
    assert!(good(&["bench", "--list"]).contains("matmul-bf16-1024"));
}

/// The rows that the goal of the CPU names: PyTorch's kernels by name and size, and those that show what fusion is for.
const ROWS: &[(&str, &str)] = &[
    ("add-relu-mul-10m", "relu(x+b)*2, 10M"),
    ("add-relu-mul-1m", "relu(x+b)*2, 1M"),
    ("add-relu-mul-1k", "relu(x+b)*2, 1k"),
    ("gelu-bias", "gelu(x+b), 2048x2048"),
    (
        "tanh-gelu-sigmoid",
        "tanh(gelu_tanh(x+b))*sigmoid(x), 2048x2048",
    ),
    ("softmax", "softmax, 2048x2048"),
    ("softmax-bf16", "softmax bf16, 2048x2048"),
    ("layer-norm", "layer_norm, 2048x2048"),
    ("sum-0", "x.sum(0), 2048x2048"),
    ("add-transposed", "x + x.t(), 2048x2048"),
    ("matmul-1024", "matmul 1024"),
    ("matmul-2048", "matmul 2048"),
    ("matmul-bf16-1024", "matmul bf16 1024"),
    ("matmul-bf16-2048", "matmul bf16 2048"),
    ("attention", "attention 4x8x1024x64, written out"),
    ("attention-fused", "attention 4x8x1024x64, fused"),
    ("attention-fused-bf16", "attention 4x8x1024x64 bf16, fused"),
    ("mxint8-decode", "MXINT8 to bf16, 2^24 values"),
    ("mlp", "MLP 64x1024x4096x1024, GELU"),
    ("log-softmax-50257", "log_softmax, 256x50257"),
    ("rms-norm-odd", "rms_norm, 2047x2049"),
    ("rotary", "rotary embedding, 32x1024x128"),
    ("var-mean-0-2", "var_mean over (0, 2), 16x64x4096"),
    (
        "embedding-layer-norm",
        "layer_norm(embedding), 4096 of 30522x768",
    ),
    ("cross-entropy", "cross_entropy, 128x50257"),
    ("adamw", "AdamW, 6 tensors of 768 and 3072"),
];

#[test]
fn bench_lists_every_row_of_the_goal() {
    let text = good(&["bench", "--list"]);
    let listed: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, title)| (name, title.trim()))
        .collect();
    let missing: Vec<_> = ROWS.iter().filter(|row| !listed.contains(row)).collect();
    assert!(missing.is_empty(), "not in `oxyfuel bench`: {missing:?}");
}

#[test]
fn explain_measures_where_asked_to() {
    let plain = data(&["explain", "--workload", "add-relu-mul-1m", "--json"]);
    assert!(plain["kernels"][0]["roofline_share"].is_null() && plain["measured"].is_null());
    let words = ["explain", "--workload", "add-relu-mul-1m", "--measure"];
    let said = data(&[&words[..], &["--json"]].concat());
    let share = said["kernels"][0]["roofline_share"].as_f64().unwrap();
    assert!(share > 0.0 && said["kernels"][0]["measured_seconds"].as_f64() > Some(0.0));
    assert_eq!(said["measured"]["roofline_share"].as_f64(), Some(share));
    let text = good(&words);
    let line = text.lines().find(|line| line.starts_with("  measured "));
    assert!(line.unwrap().contains(" % of "), "{text}");
    // Sizes that are symbols have likely numbers.
    let folder = tempfile::tempdir().unwrap();
    let symbolic = GRAPH.replace("[2, 3]", "[s0, 3]");
    let symbolic = format!("sym s0: 1..\n{symbolic}");
    let path = file(folder.path(), "symbolic.graph", &symbolic);
    assert!(good(&["explain", &path, "--measure"]).contains("\n  measured "));
    refused(
        &["explain", &path, "--measure", "--target", "sm_90a"],
        "E0704",
    );
}

#[test]
fn explain_names_the_kernels() {
    let text = good(&["explain", "--workload", "softmax"]);
    assert!(text.contains("1 kernel"), "{text}");
    let explanation = data(&["explain", "--workload", "layer-norm", "--json"]);
    assert_eq!(explanation["kernels"].as_array().unwrap().len(), 1);
    assert!(explanation["kernels"][0]["flops_per_byte"].as_f64() > Some(0.0));
    // A machine that is not here is explained without times.
    let elsewhere = data(&[
        "explain",
        "--workload",
        "layer-norm",
        "--target",
        "sm_90a",
        "--json",
    ]);
    assert!(elsewhere["kernels"][0]["bytes_read"].is_number() && elsewhere["verdict"].is_null());
    refused(&["explain", "--workload", "frobnicate"], "E0202");
    refused(&["explain", "no-such-file.graph"], "E0506");
}

#[test]
fn every_stage_of_every_target_is_text() {
    let folder = tempfile::tempdir().unwrap();
    let graph = file(folder.path(), "f.graph", GRAPH);
    for target in ["interpreter", "avx2", "avx512", "sm_80", "sm_90a"] {
        for stage in [
            "graph",
            "decomposed",
            "simplified",
            "settled",
            "schedule",
            "logical",
            "mapped",
            "code",
            "plan",
        ] {
            let text = good(&["dump", "--stage", stage, "--target", target, &graph]);
            assert!(!text.trim().is_empty(), "{target} {stage}");
        }
    }
    let ptx = data(&[
        "dump", "--stage", "code", "--target", "sm_90a", "--json", &graph,
    ]);
    assert!(ptx["text"].as_str().unwrap().contains(".target sm_90a"));
}

#[test]
fn run_takes_and_gives_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let graph = file(folder.path(), "f.graph", GRAPH);
    let saved = folder.path().join("out");
    let saved = saved.to_str().unwrap();
    let text = good(&["run", &graph, "--save", saved, "--seed", "3"]);
    assert!(text.starts_with("output 0: f32[2, 3] = ["), "{text}");
    // The result fits as the first input of the same graph, and relu of a non-negative number plus b follows from it.
    let again = format!("{saved}/0.npy");
    let outputs = data(&["run", &graph, "--input", &again, "--json"]);
    assert_eq!(outputs[0]["shape"], serde_json::json!([2, 3]));
    assert_eq!(
        text,
        good(&["run", &graph, "--seed", "3", "--target", "interpreter"])
    );

    let text = refused(&["run", &graph, "--input", &graph], "E0508");
    assert!(text.contains(".npy"), "{text}");
    refused(
        &[
            "run", &graph, "--input", "a", "--input", "b", "--input", "c",
        ],
        "E0108",
    );
    refused(&["run", &graph, "--input", "no-such-file.npy"], "E0506");
    refused(
        &["run", &graph, "--input", "x", "--target", "sm_90a"],
        "E0506",
    );
}

#[test]
fn run_says_where_its_time_went() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json").display().to_string();
    let output = run(&["run", "--workload", "softmax", "--profile", &trace]);
    assert!(output.status.success());
    assert!(stdout(&output).starts_with("output 0"));
    let table = stderr(&output);
    assert!(
        table.starts_with("wall ") && table.contains("device") && table.contains("1 reduction"),
        "{table}"
    );
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let rows: Vec<&Value> = events
        .iter()
        .filter(|event| event["ph"] == "M")
        .map(|event| &event["args"]["name"])
        .collect();
    assert_eq!(rows, ["host", "cpu"]);
    let device = events
        .iter()
        .find(|event| event["pid"] == 1 && event["ph"] == "X");
    let kernel = device.unwrap();
    assert!(kernel["dur"].as_f64().unwrap() > 0.0);
    assert!(!kernel["args"]["ops"].as_str().unwrap().is_empty());
    let nowhere = folder.path().join("no/trace.json").display().to_string();
    let output = run(&["run", "--workload", "softmax", "--profile", &nowhere]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn profile_counts_calls_and_writes_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json").display().to_string();
    let output = run(&[
        "profile",
        "--workload",
        "softmax",
        "--calls",
        "3",
        "--trace",
        &trace,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let table = stdout(&output);
    assert!(
        table.starts_with("wall ") && table.contains("launches: 3 reduction"),
        "{table}"
    );
    assert!(
        std::fs::read_to_string(trace)
            .unwrap()
            .contains("traceEvents")
    );
    let output = run(&["profile", "--workload", "softmax", "--calls", "2", "--json"]);
    let said: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(said["calls"], 2);
    assert_eq!(said["launches"]["reduction"], 2);
    let kernel = said["rows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["category"] == "reduction")
        .unwrap();
    assert_eq!(kernel["calls"], 2);
    assert!(
        kernel["self_device"].as_f64().unwrap() > 0.0
            && !kernel["ops"].as_array().unwrap().is_empty()
    );
    let nowhere = folder.path().join("no/trace.json").display().to_string();
    let refused = run(&["profile", "--workload", "softmax", "--trace", &nowhere]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        run(&["profile", "--workload", "softmax", "--calls", "0"])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(run(&["profile"]).status.code(), Some(2));
}

#[test]
fn saved_functions_are_run_with_what_they_captured() -> oxyfuel::Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let b = Tensor::from_slice(&[1.0f32, -20.0, 3.0], &[3]);
    let f = oxyfuel::compile(move |x: &Tensor| (x + &b).relu(), Options::default())?;
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    let (file, input) = (path("f.oxy"), path("x.npy"));
    f.save(&file, &[&x])?;
    oxyfuel::io::write_npy(&input, &x)?;
    let outputs = data(&["run", &file, "--input", &input, "--json"]);
    let numbers = outputs[0]["first"].as_array().unwrap().iter();
    let numbers: Vec<f32> = numbers
        .map(|n| n.as_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(numbers, [2.0, 0.0, 6.0, 5.0, 0.0, 9.0]);
    assert!(good(&["explain", &file]).contains("relu"));
    // What was captured is in the file, and nobody's to give.
    refused(
        &["run", &file, "--input", &input, "--input", &input],
        "E0108",
    );
    std::fs::write(&file, GRAPH).unwrap();
    refused(&["run", &file], "E0508");
    Ok(())
}

#[test]
fn wrong_graphs_are_refused_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    for (text, code) in [
        ("graph @f(", "E0201"),
        (
            "graph @f(%x: f32[2] cpu) {\n  %y: f32[2] = frobnicate %x\n  return %y\n}",
            "E0202",
        ),
        (
            "graph @f(%x: f32[2] cpu, %y: f32[3] cpu) {\n  %z: f32[2] = add %x, %y\n  return %z\n}",
            "E0101",
        ),
    ] {
        let graph = file(folder.path(), "f.graph", text);
        for command in ["run", "explain"] {
            let text = refused(&[command, &graph], code);
            assert!(text.contains("f.graph"), "{text}");
        }
    }
}

#[test]
fn absurd_sizes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let graph = file(
        folder.path(),
        "f.graph",
        "graph @f(%x: f32[4611686018427387904] cpu) {\n  %y: f32[4611686018427387904] = relu %x\n  return %y\n}",
    );
    let output = run(&["run", &graph]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("error[E06"), "{}", stderr(&output));
}

#[test]
fn doctor_and_targets_know_this_machine() {
    assert!(good(&["doctor"]).contains("executable memory"));
    let findings = data(&["doctor", "--json"]);
    assert!(
        findings
            .as_array()
            .unwrap()
            .iter()
            .any(|f| f["what"] == "CUDA driver")
    );
    let targets = data(&["targets", "--json"]);
    let default: Vec<_> = targets
        .as_array()
        .unwrap()
        .iter()
        .filter(|t| t["is_default"] == true)
        .collect();
    assert_eq!(default.len(), 1);
    assert_eq!(default[0]["runs_here"], true);
}

/// `run` and `bench` take those targets that `targets` says run here, and no other; whatever is a target can be looked at. The GPUs of this machine, if any, are hidden.
#[test]
fn targets_that_do_not_run_here_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let graph = file(folder.path(), "f.graph", GRAPH);
    let hidden = |args: &[&str]| {
        let mut command = oxyfuel(args);
        command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
    };
    let targets = hidden(&["targets", "--json"]);
    let targets: Value = serde_json::from_str(&stdout(&targets)).unwrap();
    let mut refused = 0;
    for target in targets.as_array().unwrap() {
        let name = target["name"].as_str().unwrap();
        let output = hidden(&["explain", &graph, "--target", name]);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        for words in [&["run", &graph][..], &["bench"]] {
            if target["runs_here"] == true {
                continue;
            }
            let output = hidden(&[words, &["--target", name]].concat());
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{name}: {text}");
            assert!(text.contains("error[E0704]"), "{name}: {text}");
            assert!(text.contains("leave the target open"), "{name}: {text}");
            refused += 1;
        }
    }
    assert!(refused >= 2, "a GPU that is hidden runs nothing");
}

#[test]
fn the_cache_fills_and_is_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let graph = file(folder.path(), "f.graph", GRAPH);
    let dir = folder.path().join("cache");
    let with = |args: &[&str]| {
        oxyfuel(args)
            .env("OXYFUEL_CACHE_DIR", &dir)
            .output()
            .unwrap()
    };
    let entries = || -> u64 {
        let info: Value =
            serde_json::from_str(&stdout(&with(&["cache", "info", "--json"]))).unwrap();
        info["entries"].as_u64().unwrap()
    };
    assert_eq!(
        stdout(&with(&["cache", "dir"])).trim(),
        dir.to_str().unwrap()
    );
    assert_eq!(entries(), 0);
    assert!(with(&["run", &graph]).status.success());
    assert_eq!(entries(), 1);
    let second = oxyfuel(&["run", &graph])
        .env("OXYFUEL_CACHE_DIR", &dir)
        .env("OXYFUEL_LOG", "cache")
        .output()
        .unwrap();
    assert!(
        stderr(&second).contains("disk_hits: 1"),
        "{}",
        stderr(&second)
    );
    let say = |args: &[&str]| stdout(&with(args));
    assert!(say(&["cache", "explain", &graph]).contains("hit"));
    let miss = say(&["cache", "explain", &graph, "-o", "numerics=fast"]);
    assert!(miss.contains("miss") && miss.contains("options"), "{miss}");
    let warm = folder.path().join("warm.oxc");
    let warm = warm.to_str().unwrap();
    assert!(say(&["cache", "export", warm]).contains("1 entries written"));
    assert!(say(&["cache", "gc", "--limit", "0"]).contains("1 over the limit"));
    assert_eq!(entries(), 0);
    assert!(say(&["cache", "import", warm]).contains("1 entries taken"));
    assert_eq!(entries(), 1);
    let wrong = with(&["cache", "gc", "--unused-for", "2 weeks"]);
    assert!(
        stderr(&wrong).contains("one of s m h d"),
        "{}",
        stderr(&wrong)
    );
    assert!(with(&["cache", "clear"]).status.success());
    assert_eq!(entries(), 0);

    // A file where the directory should be: the cache is an error, a run is not.
    let taken = file(folder.path(), "taken", "");
    let info = oxyfuel(&["cache", "info"])
        .env("OXYFUEL_CACHE_DIR", &taken)
        .output()
        .unwrap();
    assert!(stderr(&info).contains("error[E0502]"), "{}", stderr(&info));
    assert!(
        oxyfuel(&["run", &graph])
            .env("OXYFUEL_CACHE_DIR", &taken)
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn the_environment_is_read_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let graph = file(folder.path(), "f.graph", GRAPH);
    let with =
        |name: &str, value: &str| oxyfuel(&["run", &graph]).env(name, value).output().unwrap();
    assert!(with("OXYFUEL_VERIFY", "1").status.success());
    assert!(stderr(&with("OXYFUEL_VERIFY", "maybe")).contains("error[E0402]"));
    assert!(stderr(&with("OXYFUEL_LOG", "everything")).contains("error[E0402]"));
    let trace = folder.path().join("trace");
    assert!(
        with("OXYFUEL_TRACE", trace.to_str().unwrap())
            .status
            .success()
    );
    let stages = std::fs::read_dir(&trace)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    assert_eq!(std::fs::read_dir(stages).unwrap().count(), 9);
}

#[test]
fn an_engine_answers_a_driver() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("out.npy");
    let mut child = oxyfuel(&["serve"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let script = format!(
        "run 1 1\nprepare add-relu-mul-1k\nrun 1 3\ninto 0 2\noutput 0 {}\nfrobnicate\nquit\n",
        saved.display()
    );
    child
        .stdin
        .take()
        .unwrap()
        .write_all(script.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let answers: Vec<Value> = stdout(&output)
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert!(answers[0]["error"].as_str().unwrap().contains("prepared"));
    assert_eq!(answers[1]["kernels"], 1);
    assert_eq!(answers[2]["ns"].as_array().unwrap().len(), 3);
    assert_eq!(answers[3]["ns"].as_array().unwrap().len(), 2);
    assert!(saved.is_file());
    assert!(answers[5]["error"].is_string());
}

/// A pipe whose reader has left ends the command, which says nothing about it.
#[test]
fn a_reader_may_leave() {
    let mut child = oxyfuel(&["dump", "--workload", "softmax", "--stage", "plan"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert_eq!(stderr(&output), "");
}
