//! `gpu-pack`: one archive for a machine with a GPU, its driver, Python and torch, but no Rust.
//!
//! What goes in is one table; the archive is a plain tar, so that every machine can open it.

use crate::args::Args;
use crate::{Outcome, process, revision, venv, workspace};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

pub const HELP: &str = "\
usage: cargo xtask gpu-pack

Builds release binaries and the wheel and gathers them with their scripts and cases in `.pack/oxyfuel-gpu` and in the archive
`.pack/oxyfuel-gpu.tar`. On the other machine:

  tar xf oxyfuel-gpu.tar
  oxyfuel-gpu/gpu-test  [FILTER] [--quick] [--shards N --shard I] [--no-torch]
                                                            correctness: needs the driver and Python, and torch for its door
  oxyfuel-gpu/gpu-bench [FILTER …] [--quick] [--json FILE]  speed beside torch: needs torch too
  python3 oxyfuel-gpu/torch/gpu_small.py [FILTER …] [--quick] [--json FILE]
                                                            kernels and small graphs in the torch door beside Inductor
  python3 oxyfuel-gpu/torch/gpu_models.py [FILTER] [--quick] [--training] [--with FILE ...] [--json FILE]
                                                            whole models in the torch door beside eager and Inductor; --with takes
                                                            rows of an earlier file, the mean is of inference and training
  python3 oxyfuel-gpu/torch/gpu_custom.py [FILTER] [--json FILE]
                                                            kernels of a user's inside and outside of compiled graphs
  python3 oxyfuel-gpu/torch/gpu_start.py [FILTER] [--training] [--processes N] [--at-once N] [--json FILE]
                                                            first calls, cold and with a warm cache, beside torch's own;
                                                            with --training first training steps
  python3 oxyfuel-gpu/torch/gpu_host.py [--no-torch] [--json FILE]
                                                            what the host pays for a call, beside the driver's own launches and Inductor
  oxyfuel-gpu/gpu-ops   [FILTER] [--shards N] [--shard I]   a slice of PyTorch's operator database in the torch door
  oxyfuel-gpu/gpu-records [--to FOLDER] [--parts LIST]      all of these one after the other, their records in one folder

All close with 'N passed, N failed'. Records say the GPU and the commit that the archive was made of.
";

const NAME: &str = "oxyfuel-gpu";

/// What is copied as it is: from the repository, to the archive, whether it is a program.
const COPIED: &[(&str, &str, bool)] = &[
    ("tests/gpu/gpu-test", "gpu-test", true),
    ("bench/engines/gpu-bench", "gpu-bench", true),
    (
        "bench/engines/torch_workloads.py",
        "torch_workloads.py",
        false,
    ),
    ("bench/definitions", "definitions", false),
    ("bench/models.json", "models.json", false),
    (
        "bench/engines/torch_models.py",
        "torch/torch_models.py",
        false,
    ),
    (
        "bench/engines/torch_decoder.py",
        "torch/torch_decoder.py",
        false,
    ),
    ("bench/engines/gpu_rows.py", "torch/gpu_rows.py", false),
    ("bench/engines/gpu_small.py", "torch/gpu_small.py", false),
    ("bench/engines/gpu_models.py", "torch/gpu_models.py", false),
    ("bench/engines/gpu_custom.py", "torch/gpu_custom.py", false),
    ("bench/engines/gpu_start.py", "torch/gpu_start.py", false),
    ("bench/engines/gpu_host.py", "torch/gpu_host.py", false),
    (
        "bench/engines/torch_start.py",
        "torch/torch_start.py",
        false,
    ),
    ("bench/engines/torch_door.py", "torch/torch_door.py", false),
    (
        "bench/engines/torch_nothing.py",
        "torch/torch_nothing.py",
        false,
    ),
    ("tests/gpu/gpu-ops", "gpu-ops", true),
    ("tests/gpu/gpu-records", "gpu-records", true),
    ("python/tests/judge", "torch/judge", false),
    ("tests/gpu/torch-tests.py", "torch/torch-tests.py", false),
    ("python/tests/test_cuda.py", "torch/test_cuda.py", false),
    ("python/tests/agree.py", "torch/agree.py", false),
    ("tests/filetests/graph", "cases/graph", false),
    ("tests/filetests/run", "cases/run", false),
    ("LICENSE-MIT", "LICENSE-MIT", false),
    ("LICENSE-APACHE", "LICENSE-APACHE", false),
];

/// What is built: arguments of cargo, name of the cargo target, name in the archive.
const BUILT: &[(&[&str], &str, &str)] = &[
    (
        &[
            "build",
            "--release",
            "-p",
            "oxyfuel-engine",
            "--example",
            "gpu",
        ],
        "gpu",
        "bin/gpu",
    ),
    (
        &[
            "test",
            "--release",
            "-p",
            "oxyfuel-runtime",
            "--test",
            "cuda",
            "--no-run",
        ],
        "cuda",
        "bin/cuda-tests",
    ),
    (
        &[
            "test",
            "--release",
            "-p",
            "oxyfuel",
            "--test",
            "cuda",
            "--no-run",
        ],
        "cuda",
        "bin/door-tests",
    ),
];

pub fn run(args: &[String]) -> Outcome {
    Args::parse(args, &[])?.nothing_after_dashes()?;
    let root = workspace::root();
    let mut entries = Vec::new();
    for (arguments, target, name) in BUILT {
        let mut command = process::cargo();
        command
            .current_dir(&root)
            .args(*arguments)
            .arg("--message-format=json-render-diagnostics");
        let messages = process::capture(&mut command, "the build")?;
        let binary =
            executable(&messages, target).ok_or(format!("cargo built no program `{target}`"))?;
        entries.push(Entry::read(&without_debug(&binary)?, name, true)?);
    }
    let wheel = venv::wheel(&root.join("target/pack-wheel"))?;
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    entries.push(Entry::read(&wheel, &format!("torch/{name}"), false)?);
    for (from, to, program) in COPIED {
        gather(&root.join(from), to, *program, &mut entries)?;
    }
    entries.push(Entry {
        name: "commit".to_owned(),
        data: format!("{}\n", revision::commit()).into_bytes(),
        program: false,
    });
    let folder = root.join(".pack");
    let unpacked = folder.join(NAME);
    let said = |e: std::io::Error| format!("cannot write {}: {e}", unpacked.display());
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked).map_err(said)?;
    }
    for entry in &entries {
        let path = unpacked.join(&entry.name);
        fs::create_dir_all(path.parent().unwrap_or(&unpacked)).map_err(said)?;
        fs::write(&path, &entry.data).map_err(said)?;
        set_mode(&path, entry.mode()).map_err(said)?;
    }
    let archive = folder.join(format!("{NAME}.tar"));
    let bytes = tar(&entries)?;
    fs::write(&archive, &bytes).map_err(|e| format!("cannot write {}: {e}", archive.display()))?;
    println!(
        "{}: {} files, {} MB\n\n  tar xf {NAME}.tar\n  {NAME}/gpu-test  [FILTER] [--quick]\n  {NAME}/gpu-bench [FILTER] [--quick] [--json FILE]",
        archive.display(),
        entries.len(),
        bytes.len() / 1_000_000
    );
    Ok(())
}

/// A copy without debug information, which is nine tenths of a binary; the binary itself where there is no `strip`.
fn without_debug(binary: &Path) -> Result<PathBuf, String> {
    let Some(strip) = process::find_program("strip") else {
        return Ok(binary.to_owned());
    };
    let small = binary.with_extension("packed");
    process::run(
        std::process::Command::new(strip)
            .arg("--strip-debug")
            .arg("-o")
            .arg(&small)
            .arg(binary),
        "strip",
    )?;
    Ok(small)
}

/// The program that cargo says it built for a target.
fn executable(messages: &str, target: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|m| m["reason"] == "compiler-artifact" && m["target"]["name"] == target)
        .find_map(|m| m["executable"].as_str().map(PathBuf::from))
}

struct Entry {
    /// Below the archive's folder, with `/`.
    name: String,
    data: Vec<u8>,
    program: bool,
}

impl Entry {
    fn read(path: &Path, name: &str, program: bool) -> Result<Self, String> {
        let data = fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        Ok(Self {
            name: name.to_owned(),
            data,
            program,
        })
    }

    fn mode(&self) -> u32 {
        if self.program { 0o755 } else { 0o644 }
    }
}

/// A file, or everything below a folder, in the order of names.
fn gather(from: &Path, to: &str, program: bool, entries: &mut Vec<Entry>) -> Outcome {
    if !from.is_dir() {
        entries.push(Entry::read(from, to, program)?);
        return Ok(());
    }
    let list = fs::read_dir(from).map_err(|e| format!("cannot read {}: {e}", from.display()))?;
    let mut paths: Vec<PathBuf> = list.filter_map(Result::ok).map(|e| e.path()).collect();
    paths.sort();
    // What Python leaves beside its files belongs to the machine that ran them.
    paths.retain(|path| !path.ends_with("__pycache__"));
    for path in paths {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        gather(&path, &format!("{to}/{name}"), program, entries)?;
    }
    Ok(())
}

/// The archive: a header of 512 bytes for each file, then its bytes, filled up to 512; two empty blocks at the end (POSIX ustar).
fn tar(entries: &[Entry]) -> Result<Vec<u8>, String> {
    const BLOCK: usize = 512;
    let mut out = Vec::new();
    for entry in entries {
        let name = format!("{NAME}/{}", entry.name);
        if name.len() > 100 {
            return Err(format!("the name {name} is too long for an archive"));
        }
        let mut header = [0u8; BLOCK];
        let mut put = |at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, &name);
        put(100, &format!("{:07o}", entry.mode()));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{:011o}", entry.data.len()));
        put(136, "00000000000");
        put(148, "        ");
        put(156, "0");
        put(257, "ustar");
        put(263, "00");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(&entry.data);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    Ok(out)
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn set_mode(_path: &Path, _mode: u32) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_copied_exists_and_the_scripts_find_it() {
        let mut entries = Vec::new();
        for (from, to, program) in COPIED {
            gather(&workspace::root().join(from), to, *program, &mut entries).unwrap();
        }
        let has = |name: &str| entries.iter().any(|e| e.name == name);
        assert!(has("gpu-test") && has("gpu-bench") && has("cases/graph/add.txt"));
        assert!(has("models.json") && has("torch/torch_models.py") && has("torch/gpu_models.py"));
        assert!(has("torch/torch-tests.py") && has("torch/test_cuda.py") && has("torch/agree.py"));
        assert!(has("torch/gpu_rows.py") && has("torch/gpu_small.py"));
        assert!(
            has("gpu-records")
                && has("gpu-ops")
                && has("torch/gpu_custom.py")
                && has("torch/judge/verdict.py")
        );
        let names: Vec<&str> = BUILT.iter().map(|(.., name)| *name).collect();
        for script in entries.iter().filter(|e| e.program) {
            let text = String::from_utf8(script.data.clone()).unwrap();
            assert!(text.starts_with("#!"), "{}", script.name);
            let used = text.matches("\"bin\", \"").count();
            let known = names
                .iter()
                .filter(|n| text.contains(&n.replace("bin/", "\"bin\", \"")))
                .count();
            // One is for torch alone, and one runs the others.
            let needs_none = ["gpu-ops", "gpu-records"].contains(&script.name.as_str());
            assert!((used > 0 || needs_none) && used == known, "{}", script.name);
        }
    }

    #[test]
    fn the_archive_is_one_that_tar_lists() {
        let entries = [
            Entry {
                name: "bin/a".to_owned(),
                data: vec![7; 1000],
                program: true,
            },
            Entry {
                name: "b".to_owned(),
                data: Vec::new(),
                program: false,
            },
        ];
        let bytes = tar(&entries).unwrap();
        assert_eq!(bytes.len(), 512 * (1 + 2 + 1 + 2));
        let path = std::env::temp_dir().join(format!("oxyfuel-pack-{}.tar", std::process::id()));
        fs::write(&path, &bytes).unwrap();
        if process::find_program("tar").is_some() {
            let listed = process::capture(
                std::process::Command::new("tar").arg("tvf").arg(&path),
                "tar",
            )
            .unwrap();
            let lines: Vec<&str> = listed.lines().collect();
            assert!(lines[0].starts_with("-rwxr-xr-x") && lines[0].ends_with("oxyfuel-gpu/bin/a"));
            assert!(lines[0].contains(" 1000 ") && lines[1].ends_with("oxyfuel-gpu/b"));
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_program_is_found_in_what_cargo_says() {
        let messages = "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"gpu\"},\"executable\":\"/x/gpu\"}\nnot json\n";
        assert_eq!(executable(messages, "gpu"), Some(PathBuf::from("/x/gpu")));
        assert_eq!(executable(messages, "cuda"), None);
    }
}
