//! What the pipeline makes of the graphs of `tests/filetests/{graph,run}` for GPUs, through NVIDIA's assembler.
//!
//! All of them for every target take minutes of a core, nearly all the assembler's: each file is assembled for one target, which its name decides, so that a new file changes nothing for the others.
//! `OXYFUEL_ASSEMBLE=all` takes every file for every target.
//!
//! `assembled.txt` says what the pinned assembler counts for each target: kernels (equal ones once), the registers of a thread and the bytes it spills, added up over them, and of which files the kernels are that spill. Neither may rise, and no other
//! file may spill; `BLESS=1` rewrites the file, after a case was added as after a change that is worth it. A machine without the assembler makes the texts, and no more.

use oxyfuel_engine::{Options, Target, compile};
use oxyfuel_graph::parse;
use oxyfuel_plan::Artefact;
use oxyfuel_testkit::Case;
use oxyfuel_testkit::filetests::{Settings, run_dir};
use oxyfuel_testkit::ptxas::{self, Together};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

const TARGETS: [&str; 5] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a"];

/// The texts of one target.
struct Texts {
    target: Target,
    together: Together,
    /// Where each kernel is from, by its number.
    files: Vec<String>,
    seen: HashSet<String>,
}

impl Texts {
    fn of(target: &str) -> Self {
        Self {
            target: Target::by_name(target).unwrap(),
            together: Together::default(),
            files: Vec::new(),
            seen: HashSet::new(),
        }
    }

    /// Adds the kernels of a graph that no other one has, under names of their own.
    fn take(&mut self, case: &Case) -> Result<(), String> {
        let end = case.input.find("\n}").map_or(0, |end| end + 2);
        let graph = parse(&case.name, &case.input[..end]).map_err(|e| e.to_string())?;
        let made = compile(&graph, &self.target, &Options::default(), false);
        for kernel in made.map_err(|e| e.to_string())?.plan.kernels.values() {
            let program = oxyfuel_kernel::parse::parse(&kernel.name, &kernel.program);
            let mut program = program.map_err(|e| e.to_string())?;
            program.name = "k".to_owned();
            if !self.seen.insert(program.to_string()) {
                continue;
            }
            program.name = format!("k{}", self.files.len());
            self.files.push(case.name.clone());
            match self.target.emit(&program).map_err(|e| e.to_string())? {
                Artefact::Ptx(module) => self.together.take(&case.name, &module.text),
                other => return Err(format!("no text but {other:?}")),
            }
        }
        Ok(())
    }

    /// Where an entry is from; a kernel of several phases has one for each.
    fn file<'a>(&'a self, entry: &'a str) -> &'a str {
        let number = entry.trim_start_matches('k').split('_').next();
        let number = number.and_then(|number| number.parse::<usize>().ok());
        let file = number.and_then(|number| self.files.get(number));
        file.map_or(entry, String::as_str)
    }
}

/// The texts of the files of a target.
fn texts(target: &str, all: bool) -> Texts {
    let texts = RefCell::new(Texts::of(target));
    let failures = RefCell::new(Vec::new());
    let chosen = |case: &Case| {
        let number: usize = case.name.bytes().map(usize::from).sum();
        all || TARGETS[number % TARGETS.len()] == target
    };
    // What these files expect is another test's: its report is not looked at.
    let settings = Settings {
        bless: false,
        filter: Settings::from_env().filter,
    };
    for folder in ["graph", "run"] {
        let folders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests");
        run_dir(&folders.join(folder), &settings, |case| {
            let mut parts = case.path.components();
            let good = case.command == "run" && !parts.any(|part| part.as_os_str() == "errors");
            if good
                && chosen(case)
                && let Err(why) = texts.borrow_mut().take(case)
            {
                failures.borrow_mut().push(format!("{}: {why}", case.name));
            }
            Ok(String::new())
        });
    }
    let failures = failures.into_inner();
    assert!(failures.is_empty(), "{target}: {}", failures.join("\n"));
    texts.into_inner()
}

/// What the assembler counts for a target.
struct Counted {
    target: &'static str,
    kernels: usize,
    registers: u32,
    spilled: u32,
    /// The files whose kernels spill, with the bytes.
    spills: BTreeMap<String, u32>,
}

impl Counted {
    fn of(target: &'static str, texts: &Texts, tool: &Path) -> Self {
        let accepted = texts.together.assemble(tool);
        let entries = || accepted.iter().flat_map(|(_, accepted)| &accepted.entries);
        let mut spills = BTreeMap::new();
        for entry in entries().filter(|entry| entry.spilled_bytes > 0) {
            *spills
                .entry(texts.file(&entry.name).to_owned())
                .or_default() += entry.spilled_bytes;
        }
        Self {
            target,
            kernels: texts.files.len(),
            registers: entries().map(|entry| entry.registers).sum(),
            spilled: entries().map(|entry| entry.spilled_bytes).sum(),
            spills,
        }
    }

    fn lines(&self) -> String {
        let mut lines = format!(
            "{}: {} kernels, {} registers, {} bytes spilled\n",
            self.target, self.kernels, self.registers, self.spilled
        );
        for (file, bytes) in &self.spills {
            lines += &format!("{} {file}: {bytes} bytes spilled\n", self.target);
        }
        lines
    }

    /// Whether there is no more of anything than in the line of the file.
    fn is_within(&self, known: &str) -> bool {
        let numbers = |of: &str| {
            let line = known.lines().find_map(|line| line.strip_prefix(of));
            let words = line.into_iter().flat_map(|line| line.split(' '));
            words
                .filter_map(|word| word.parse().ok())
                .collect::<Vec<u32>>()
        };
        let all = match numbers(&format!("{}: ", self.target))[..] {
            [_, registers, spilled] => self.registers <= registers && self.spilled <= spilled,
            _ => false,
        };
        let each = self.spills.iter().all(|(file, bytes)| {
            numbers(&format!("{} {file}: ", self.target))
                .first()
                .is_some_and(|known| bytes <= known)
        });
        all && each
    }
}

#[test]
fn registers_and_spills_do_not_rise() {
    let all = std::env::var("OXYFUEL_ASSEMBLE").is_ok_and(|value| value == "all");
    let tool = ptxas::find();
    let tool = tool.as_deref();
    let count = |target| {
        let texts = texts(target, all);
        tool.map(|tool| Counted::of(target, &texts, tool))
    };
    let counted: Vec<Counted> = std::thread::scope(|scope| {
        let threads = TARGETS.map(|target| scope.spawn(move || count(target)));
        let counted = threads.into_iter().map(|thread| thread.join().unwrap());
        counted.flatten().collect()
    });
    let settings = Settings::from_env();
    if all || settings.filter.is_some() || tool.is_none() {
        for counted in &counted {
            println!("{}", counted.lines());
        }
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/assembled.txt");
    if settings.bless {
        let lines: String = counted.iter().map(Counted::lines).collect();
        std::fs::write(&path, lines).unwrap();
        return;
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let risen = counted.iter().filter(|counted| !counted.is_within(&known));
    let risen: Vec<String> = risen.map(Counted::lines).collect();
    assert!(
        risen.is_empty(),
        "more than in {path:?} (BLESS=1 rewrites):\n{}",
        risen.join("\n")
    );
}
