//! Everything a user can set, in one struct.
//!
//! Options are arguments, never globals; the environment is read by the edges (command, Python package), which translate it into options. A field that changes code is
//! part of the cache key.

use std::ffi::OsString;
use std::path::PathBuf;

use oxyfuel_base::{Code, Error, Result};
use oxyfuel_runtime::execute::{CALLS_BEFORE, ReplayOptions};
use serde::{Deserialize, Serialize};

use crate::cache::DEFAULT_LIMIT;

/// PyTorch's mode names: presets of the other options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    #[default]
    Default,
    ReduceOverhead,
    MaxAutotune,
    MaxAutotuneNoCudagraphs,
}

impl Mode {
    /// Whether calls on a GPU are recorded and launched as one.
    pub fn records(self) -> bool {
        match self {
            Self::ReduceOverhead | Self::MaxAutotune => true,
            Self::Default | Self::MaxAutotuneNoCudagraphs => false,
        }
    }
}

/// Whether calls on a GPU are recorded and launched as one, by PyTorch's name for that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CudaGraphs {
    /// Where the mode says so; what cannot be recorded runs step by step.
    #[default]
    Auto,
    /// Whatever the mode is, and a call that is not launched as one is an error, but for the first.
    Require,
    Off,
}

/// Where results are rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numerics {
    /// Where eager rounds, so that results agree with it.
    #[default]
    Eager,
    /// Inside a fused kernel nothing is rounded to narrow dtypes.
    Fast,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    pub mode: Mode,
    pub numerics: Numerics,
    /// Results do not depend on which thread was faster, even where an index occurs twice in a scatter.
    pub deterministic: bool,
    /// Products of f32 that a GPU's library computes may round their operands to TF32: ten bits instead of 23, on matrix units. Kernels of ours never do.
    pub tf32: bool,
    /// A function that reads a tensor while it is captured is an error instead of being cut there.
    pub fullgraph: bool,
    /// Target by name, as `oxyfuel doctor` lists them; empty: the best of this machine.
    pub target: String,
    /// Threads of the CPU device; 0: as the machine allows.
    pub threads: usize,
    /// A library of the process whose OpenMP threads run our kernels, where it has such: two pools on the same cores spoil each other. Empty: threads of our own.
    pub host_threads: String,
    /// Run every kernel through the interpreter as well and compare.
    pub verify: bool,
    /// Where compiled plans are kept; `None`: nowhere.
    pub cache_dir: Option<PathBuf>,
    /// The most bytes that all plans in `cache_dir` may take; the least recently used go first.
    pub cache_limit: u64,
    /// Write every stage of every compile as text into this directory.
    pub trace_dir: Option<PathBuf>,
    /// The most bytes that a call may take for intermediates and results; it is refused before it runs. 0: no limit.
    pub memory_limit: usize,
    /// Whether calls on a GPU are recorded and launched as one.
    pub cudagraphs: CudaGraphs,
    /// The most bytes that all recordings of a GPU may take when one is made; those that were not used for longest go first. 0: a quarter of the GPU's memory.
    pub cudagraph_memory_limit: usize,
    /// Name kernels for `perf` through a map file.
    pub perf_map: bool,
    /// Wait for the device after each kernel, so that a fault is that of the kernel that it names. Nothing is launched as one then.
    pub launch_blocking: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::Default,
            numerics: Numerics::Eager,
            deterministic: false,
            tf32: false,
            fullgraph: false,
            target: String::new(),
            threads: 0,
            host_threads: String::new(),
            verify: false,
            cache_dir: None,
            cache_limit: DEFAULT_LIMIT,
            trace_dir: None,
            memory_limit: 0,
            cudagraphs: CudaGraphs::Auto,
            cudagraph_memory_limit: 0,
            perf_map: false,
            launch_blocking: false,
        }
    }
}

/// Name, meaning and setter of each option: the table behind [`Options::set`] and the documentation.
type Setter = fn(&mut Options, &str) -> Option<()>;

pub const TABLE: &[(&str, &str, Setter)] = &[
    (
        "mode",
        "default, reduce-overhead, max-autotune or max-autotune-no-cudagraphs",
        |o, v| {
            o.mode = match v {
                "default" => Mode::Default,
                "reduce-overhead" => Mode::ReduceOverhead,
                "max-autotune" => Mode::MaxAutotune,
                "max-autotune-no-cudagraphs" => Mode::MaxAutotuneNoCudagraphs,
                _ => return None,
            };
            Some(())
        },
    ),
    ("numerics", "eager or fast", |o, v| {
        o.numerics = match v {
            "eager" => Numerics::Eager,
            "fast" => Numerics::Fast,
            _ => return None,
        };
        Some(())
    }),
    ("deterministic", "true or false", |o, v| {
        o.deterministic = truth(v)?;
        Some(())
    }),
    ("tf32", "true or false", |o, v| {
        o.tf32 = truth(v)?;
        Some(())
    }),
    ("fullgraph", "true or false", |o, v| {
        o.fullgraph = truth(v)?;
        Some(())
    }),
    (
        "target",
        "a target's name, such as avx2 or sm_90a",
        |o, v| {
            o.target = v.to_owned();
            Some(())
        },
    ),
    (
        "threads",
        "a number; 0 for as many as the machine allows",
        |o, v| {
            o.threads = v.parse().ok()?;
            Some(())
        },
    ),
    (
        "host_threads",
        "a library's name, such as libtorch_cpu.so",
        |o, v| {
            o.host_threads = v.to_owned();
            Some(())
        },
    ),
    ("verify", "true or false", |o, v| {
        o.verify = truth(v)?;
        Some(())
    }),
    ("cache_dir", "a directory", |o, v| {
        o.cache_dir = Some(v.into());
        Some(())
    }),
    ("cache_limit", "a number of bytes", |o, v| {
        o.cache_limit = v.parse().ok()?;
        Some(())
    }),
    ("trace_dir", "a directory", |o, v| {
        o.trace_dir = Some(v.into());
        Some(())
    }),
    (
        "memory_limit",
        "a number of bytes; 0 for no limit",
        |o, v| {
            o.memory_limit = v.parse().ok()?;
            Some(())
        },
    ),
    (
        "cudagraphs",
        "auto (calls on a GPU are recorded where the mode says so), require (a call that cannot be is an error) or off",
        |o, v| {
            o.cudagraphs = match v {
                "auto" => CudaGraphs::Auto,
                "require" => CudaGraphs::Require,
                "off" => CudaGraphs::Off,
                _ => return None,
            };
            Some(())
        },
    ),
    (
        "cudagraph_memory_limit",
        "a number of bytes; 0 for a quarter of the GPU's memory",
        |o, v| {
            o.cudagraph_memory_limit = v.parse().ok()?;
            Some(())
        },
    ),
    ("perf_map", "true or false", |o, v| {
        o.perf_map = truth(v)?;
        Some(())
    }),
    ("launch_blocking", "true or false", |o, v| {
        o.launch_blocking = truth(v)?;
        Some(())
    }),
];

/// As people write it, and as variables of the environment have it.
fn truth(value: &str) -> Option<bool> {
    match value {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

/// Variables of the environment and the options that they set. The number of threads is not among them: [`default_threads`](oxyfuel_runtime::pool::default_threads) knows more than one.
pub const VARIABLES: &[(&str, &str)] = &[
    ("OXYFUEL_CACHE_DIR", "cache_dir"),
    ("OXYFUEL_CACHE_LIMIT", "cache_limit"),
    ("OXYFUEL_CUDAGRAPH_MEMORY_LIMIT", "cudagraph_memory_limit"),
    ("OXYFUEL_LAUNCH_BLOCKING", "launch_blocking"),
    ("OXYFUEL_MEMORY_LIMIT", "memory_limit"),
    ("OXYFUEL_TRACE", "trace_dir"),
    ("OXYFUEL_VERIFY", "verify"),
];

impl Options {
    /// Options from variables as an edge finds them; an empty one counts as none.
    pub fn from_variables(value: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let mut options = Self::default();
        for (variable, option) in VARIABLES {
            let Some(value) = value(variable).filter(|value| !value.is_empty()) else {
                continue;
            };
            let text = value.to_str().ok_or_else(|| {
                Error::new(
                    Code::InvalidOption,
                    format!("{variable} is not text: {}", value.display()),
                )
                .help("name a path in UTF-8")
            })?;
            options
                .set(option, text)
                .map_err(|error| error.context(variable))?;
        }
        Ok(options)
    }

    /// Sets one option by name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let Some((_, allowed, setter)) = TABLE.iter().find(|(known, ..)| *known == name) else {
            let names: Vec<&str> = TABLE.iter().map(|(known, ..)| *known).collect();
            return Err(
                Error::new(Code::UnknownOption, format!("there is no option `{name}`"))
                    .help(format!("options are {}", names.join(", "))),
            );
        };
        setter(self, value).ok_or_else(|| {
            Error::new(
                Code::InvalidOption,
                format!("option `{name}` cannot be `{value}`"),
            )
            .help(format!("it takes {allowed}"))
        })
    }

    /// What of the options changes code, as text for the cache key.
    pub fn key(&self) -> String {
        format!(
            "{:?} {:?} {:?} {:?} {:?}",
            self.mode,
            self.numerics,
            self.deterministic,
            self.tf32,
            self.gathers()
        )
    }

    /// Whether calls on a GPU are to be recorded.
    pub fn records(&self) -> bool {
        match self.cudagraphs {
            CudaGraphs::Auto => self.mode.records(),
            CudaGraphs::Require => true,
            CudaGraphs::Off => false,
        }
    }

    /// How they are, for whoever runs them.
    pub(crate) fn replays(&self) -> Option<ReplayOptions> {
        self.records().then_some(ReplayOptions {
            require: self.cudagraphs == CudaGraphs::Require,
            memory_limit: self.cudagraph_memory_limit,
        })
    }

    /// After how many calls of the same sizes launches that follow each other are given to a GPU's driver at once; `None`: never.
    pub fn submits(&self) -> Option<u32> {
        (self.cudagraphs != CudaGraphs::Off).then_some(CALLS_BEFORE)
    }

    /// Whether small kernels that need each other share a launch on a GPU. In a recorded call they follow each other sooner by themselves; and where the host waits after each, a fault is to be that of one.
    pub fn gathers(&self) -> bool {
        !self.records() && !self.launch_blocking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_set_by_name() {
        let mut options = Options::default();
        options.set("mode", "max-autotune").unwrap();
        options.set("threads", "3").unwrap();
        assert_eq!((options.mode, options.threads), (Mode::MaxAutotune, 3));
    }

    #[test]
    fn variables_set_options() {
        let vars = |pairs: &'static [(&'static str, &'static str)]| {
            Options::from_variables(move |name| {
                let found = pairs.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.into())
            })
        };
        assert_eq!(vars(&[]).unwrap(), Options::default());
        assert_eq!(vars(&[("OXYFUEL_TRACE", "")]).unwrap(), Options::default());
        let options = vars(&[
            ("OXYFUEL_CACHE_DIR", "/a b"),
            ("OXYFUEL_CACHE_LIMIT", "1000"),
            ("OXYFUEL_CUDAGRAPH_MEMORY_LIMIT", "9"),
            ("OXYFUEL_LAUNCH_BLOCKING", "1"),
            ("OXYFUEL_MEMORY_LIMIT", "7"),
            ("OXYFUEL_TRACE", "t"),
            ("OXYFUEL_VERIFY", "1"),
        ]);
        let expected = Options {
            cache_dir: Some("/a b".into()),
            cache_limit: 1000,
            cudagraph_memory_limit: 9,
            launch_blocking: true,
            memory_limit: 7,
            trace_dir: Some("t".into()),
            verify: true,
            ..Options::default()
        };
        assert_eq!(options.unwrap(), expected);
        let error = vars(&[("OXYFUEL_VERIFY", "yes")]).unwrap_err();
        assert_eq!(error.code, Code::InvalidOption);
        assert!(error.to_string().contains("OXYFUEL_VERIFY"), "{error}");
        assert!(error.help.is_some());
    }

    #[test]
    fn how_calls_are_recorded_is_no_part_of_the_key_but_whether_they_are_is() {
        let key = |settings: &[(&str, &str)]| {
            let mut options = Options::default();
            for (name, value) in settings {
                options.set(name, value).unwrap();
            }
            options.key()
        };
        let recorded = ("mode", "reduce-overhead");
        assert_eq!(key(&[("cudagraph_memory_limit", "7")]), key(&[]));
        assert_eq!(
            key(&[recorded, ("cudagraphs", "require")]),
            key(&[recorded])
        );
        // Kernels that are not recorded share launches, and those that are do not.
        assert_ne!(key(&[("cudagraphs", "require")]), key(&[]));
        assert_ne!(key(&[recorded, ("cudagraphs", "off")]), key(&[recorded]));
        assert_ne!(key(&[("tf32", "true")]), key(&[]));
        for wrong in [("cudagraphs", "always"), ("cudagraph_memory_limit", "-1")] {
            let error = Options::default().set(wrong.0, wrong.1).unwrap_err();
            assert_eq!(error.code, Code::InvalidOption);
        }
    }

    #[test]
    fn an_unknown_option_lists_the_known_ones() {
        let error = Options::default().set("modes", "x").unwrap_err();
        assert_eq!(error.code, Code::UnknownOption);
        assert!(error.help.unwrap().contains("mode, numerics"));
    }

    #[test]
    fn a_wrong_value_says_what_is_allowed() {
        let error = Options::default().set("threads", "many").unwrap_err();
        assert_eq!(error.code, Code::InvalidOption);
    }
}
