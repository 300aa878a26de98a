//! The Python environments: `.venv-test` of the tests, `.venv-peers` of the benchmarks against other engines.
//!
//! Each is made from its file under `python/`. The file pins everything that is installed, and pip is told to add nothing to it, so two machines get the same
//! tools. A copy of the file inside the environment says what it was made from; when the two differ, or the making
//! was interrupted, the environment is made again from nothing.

use crate::args::Args;
use crate::{Outcome, process, workspace};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const HELP: &str = "\
usage: cargo xtask venv

Makes `.venv-test` from python/requirements-test.txt (Python 3 with its venv module is needed) and prints where the
tools in it are. Does nothing where it is up to date.
";

pub const PACKAGE_HELP: &str = "\
usage: cargo xtask package

Makes `.venv-test` where it is not up to date, and builds the Python package of this tree into it with the development
profile. Python files are taken from the tree as they are; run this again after a change in Rust.
";

pub const INSTALL_HELP: &str = "\
usage: cargo xtask install

Tries what a user does: `pip install .` of this tree in an environment of its own (`.venv-install`), with the packages of
`.venv-test` but ours in reach, then checks what was installed and runs the quickstart.
";

pub fn install(args: &[String]) -> Outcome {
    Args::parse(args, &[])?.nothing_after_dashes()?;
    install_fresh(&ensure()?)
}

pub fn package(args: &[String]) -> Outcome {
    Args::parse(args, &[])?.nothing_after_dashes()?;
    let tools = ensure_package("dev")?;
    println!("python: {}", tools.python.display());
    Ok(())
}

/// An environment: its folder and the file that it is made from.
type Environment = (&'static str, &'static str);

const TEST: Environment = (".venv-test", "python/requirements-test.txt");
const PEERS: Environment = (".venv-peers", "python/requirements-peers.txt");
const STAMP: &str = "made-from.txt";

pub fn run(args: &[String]) -> Outcome {
    Args::parse(args, &[])?.nothing_after_dashes()?;
    let tools = ensure()?;
    println!("python: {}", tools.python.display());
    match tools.ptxas {
        Some(ptxas) => println!("ptxas:  {}", ptxas.display()),
        None => println!("ptxas:  none for this platform"),
    }
    Ok(())
}

#[derive(Debug)]
pub struct Tools {
    pub python: PathBuf,
    /// NVIDIA's assembler; its wheels exist for Linux alone.
    pub ptxas: Option<PathBuf>,
}

impl Tools {
    fn bin(&self) -> Result<&Path, String> {
        self.python
            .parent()
            .ok_or_else(|| "the environment has no folder".to_owned())
    }
}

/// The interpreter of the environment with the engines we compare with.
pub fn ensure_peers() -> Result<PathBuf, String> {
    Ok(ensure_environment(PEERS)?.join("bin/python"))
}

/// Makes an environment unless it is up to date, and says where it is.
fn ensure_environment((folder, requirements): Environment) -> Result<PathBuf, String> {
    let root = workspace::root();
    let venv = root.join(folder);
    let wanted = fs::read_to_string(root.join(requirements))
        .map_err(|e| format!("cannot read {requirements}: {e}"))?;
    let stamp = venv.join(STAMP);
    if !fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == wanted) {
        make(&root, &venv, requirements)?;
        fs::write(&stamp, &wanted).map_err(|e| format!("cannot write {}: {e}", stamp.display()))?;
    }
    Ok(venv)
}

pub fn ensure() -> Result<Tools, String> {
    let venv = ensure_environment(TEST)?;
    let ptxas = find_file(&venv.join("lib"), "ptxas");
    if ptxas.is_none() && cfg!(target_os = "linux") {
        return Err(".venv-test holds no ptxas: delete the folder and run this again".to_owned());
    }
    Ok(Tools {
        python: venv.join("bin/python"),
        ptxas,
    })
}

/// The test environment with the Python package of this tree in it, built with a profile of cargo's.
pub fn ensure_package(profile: &str) -> Result<Tools, String> {
    let tools = ensure()?;
    let mut maturin = in_environment(&tools, "maturin")?;
    process::run(
        maturin.args(["develop", "--quiet", "--profile", profile]),
        "building the Python package (`maturin develop`)",
    )?;
    Ok(tools)
}

/// The wheel of this tree, optimised and without debug information, alone in a folder.
pub fn wheel(folder: &Path) -> Result<PathBuf, String> {
    let tools = ensure()?;
    let bad = |e: std::io::Error| format!("{}: {e}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(bad)?;
    }
    let mut maturin = in_environment(&tools, "maturin")?;
    maturin
        .args(["build", "--quiet", "--release", "--strip", "--out"])
        .arg(folder);
    process::run(&mut maturin, "building the wheel (`maturin build`)")?;
    let mut files = fs::read_dir(folder).map_err(bad)?.filter_map(Result::ok);
    let wheel = files.find(|file| file.path().extension().is_some_and(|end| end == "whl"));
    let wheel = wheel.ok_or_else(|| format!("maturin left no wheel in {}", folder.display()))?;
    Ok(wheel.path())
}

/// `pip install .` in an environment of its own, as a user does it: with its requirements, its build tool fetched for it, everything that came of it
/// checked, and the quickstart.
///
/// Two things differ from a user's. pip, torch and what it needs are links to the test environment, so that gigabytes are not fetched twice; the package that stands in
/// there is not among them. And the development profile is used, since the optimiser is not what is tried.
pub fn install_fresh(tools: &Tools) -> Outcome {
    let root = workspace::root();
    let venv = root.join(".venv-install");
    if venv.exists() {
        fs::remove_dir_all(&venv)
            .map_err(|e| format!("cannot remove the old {}: {e}", venv.display()))?;
    }
    process::run(
        Command::new(&tools.python)
            .args(["-m", "venv", "--without-pip"])
            .arg(&venv),
        "`python -m venv`",
    )?;
    let site = |venv: &Path| -> Result<PathBuf, String> {
        let sites = find_folder(&venv.join("lib"), "site-packages");
        sites.ok_or_else(|| format!("{} has no site-packages", venv.display()))
    };
    let test = tools.bin()?.parent().unwrap_or(Path::new("."));
    link_packages(&site(test)?, &site(&venv)?)
        .map_err(|e| format!("cannot link the packages of {}: {e}", test.display()))?;
    let python = venv.join("bin/python");
    let pip = |args: &[&str]| {
        let mut pip = Command::new(&python);
        // The pins hold for the build tool too; what an environment variable does not know, pip leaves alone.
        let pins = root.join(TEST.1);
        pip.current_dir(&root)
            .env("MATURIN_PEP517_ARGS", "--profile dev")
            .env("PIP_CONSTRAINT", &pins)
            .env("PIP_BUILD_CONSTRAINT", &pins)
            .args(["-m", "pip", "--disable-pip-version-check"])
            .args(args);
        pip
    };
    process::run(&mut pip(&["install", "--quiet", "."]), "`pip install .`")?;
    process::run(&mut pip(&["check"]), "`pip check`")?;
    for script in [
        "python/tests/check_install.py",
        "python/examples/quickstart.py",
    ] {
        let mut run = Command::new(&python);
        // Outside of the tree, so that what is imported is what was installed.
        run.current_dir(std::env::temp_dir()).arg(root.join(script));
        process::run(&mut run, script)?;
    }
    Ok(())
}

/// Links everything of one `site-packages` into another that is empty, except the package of this tree.
fn link_packages(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let is_ours = text
            .trim_start_matches("__editable__.")
            .starts_with(PACKAGE);
        if !is_ours && text != "__pycache__" {
            std::os::unix::fs::symlink(entry.path(), to.join(&name))?;
        }
    }
    Ok(())
}

/// The Python package of this tree; its files in `site-packages` begin with this.
const PACKAGE: &str = "oxyfuel";

/// A program of the test environment, as if the environment was active.
fn in_environment(tools: &Tools, program: &str) -> Result<Command, String> {
    let bin = tools.bin()?;
    let mut command = Command::new(bin.join(program));
    command
        .current_dir(workspace::root())
        .env("PATH", search_path(tools)?)
        .env("VIRTUAL_ENV", bin.parent().unwrap_or(bin));
    Ok(command)
}

/// The search path with the environment's programs first.
fn search_path(tools: &Tools) -> Result<std::ffi::OsString, String> {
    let mut paths = vec![tools.bin()?.to_path_buf()];
    paths.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    std::env::join_paths(paths).map_err(|e| format!("the search path cannot be said: {e}"))
}

fn make(root: &Path, venv: &Path, requirements: &str) -> Outcome {
    println!("making {} from {requirements}", venv.display());
    if venv.exists() {
        fs::remove_dir_all(venv)
            .map_err(|e| format!("cannot remove the old {}: {e}", venv.display()))?;
    }
    let python = ["python3", "python"]
        .into_iter()
        .find_map(process::find_program)
        .ok_or("Python 3 is needed, and there is no `python3` on the search path")?;
    process::run(Command::new(&python).args(["-m", "venv"]).arg(venv), "`python3 -m venv`").map_err(|e| {
        format!("{e}: Python 3 is needed with its venv module (on Debian and Ubuntu: the package python3-venv)")
    })?;
    let mut pip = Command::new(venv.join("bin/python"));
    pip.current_dir(root).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "-r",
    ]);
    process::run(pip.arg(requirements), &format!("installing {requirements}"))
}

/// The first folder of that name under another.
fn find_folder(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder)
        .ok()?
        .filter_map(|e| Some(e.ok()?.path()));
    let mut folders: Vec<PathBuf> = entries.filter(|p| p.is_dir() && !p.is_symlink()).collect();
    folders.sort();
    let here = folders
        .iter()
        .find(|p| p.file_name().is_some_and(|n| n == name));
    here.cloned()
        .or_else(|| folders.iter().find_map(|p| find_folder(p, name)))
}

/// The first file of that name under a folder, in the order of names.
fn find_file(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .ok()?
        .filter_map(|e| Some(e.ok()?.path()))
        .collect();
    entries.sort();
    let here = entries
        .iter()
        .find(|p| p.is_file() && p.file_name().is_some_and(|n| n == name))
        .cloned();
    here.or_else(|| {
        entries
            .iter()
            .filter(|p| p.is_dir() && !p.is_symlink())
            .find_map(|p| find_file(p, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_file_in_depth() {
        let folder = std::env::temp_dir().join(format!("xtask-find-{}", std::process::id()));
        let deep = folder.join("b/c");
        fs::create_dir_all(&deep).unwrap();
        fs::create_dir_all(folder.join("a/tool")).unwrap();
        fs::write(deep.join("tool"), "x").unwrap();
        assert_eq!(find_file(&folder, "tool"), Some(deep.join("tool")));
        assert_eq!(find_file(&folder, "other"), None);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_fresh_environment_gets_everything_but_our_own_package() {
        let folder = std::env::temp_dir().join(format!("xtask-link-{}", std::process::id()));
        let (from, to) = (folder.join("from"), folder.join("to"));
        for name in [
            "torch",
            "torch-2.15.0.dist-info",
            "pip",
            "oxyfuel",
            "oxyfuel-0.1.0.dist-info",
            "__pycache__",
        ] {
            fs::create_dir_all(from.join(name)).unwrap();
        }
        fs::write(from.join("oxyfuel.pth"), "/tree/python").unwrap();
        fs::create_dir_all(&to).unwrap();
        link_packages(&from, &to).unwrap();
        let mut found: Vec<_> = fs::read_dir(&to)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        found.sort();
        assert_eq!(found, ["pip", "torch", "torch-2.15.0.dist-info"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_requirement_is_pinned() {
        for (_, requirements) in [TEST, PEERS] {
            let text = fs::read_to_string(workspace::root().join(requirements)).unwrap();
            for line in text
                .lines()
                .filter(|l| !l.trim().is_empty() && !l.starts_with('#'))
            {
                assert!(line.contains("=="), "not pinned: {line}");
            }
        }
    }
}
