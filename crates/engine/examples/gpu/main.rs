//! What a machine with a GPU and without Rust is asked to do: the binary of the archive that `cargo xtask gpu-pack` makes.
//!
//! ```text
//!   gpu cases                       names of all cases, one a line
//!   gpu show NUMBER                 the graph of a case and its code
//!   gpu test NUMBER… [--null]       the cases of these numbers, `ok`, `skip` or `FAIL` and a name each; exit code 3 when the device is lost
//!   gpu test NUMBER… --interpret    the same where there is no GPU: the tile interpreter runs the programs that were laid out for one
//!   gpu ptx FOLDER TARGET           the PTX of every case as a file, for the assembler
//!   gpu serve FILE INPUT… [--null]  the graph of FILE compiled and loaded, on inputs from files; then commands from standard input (see `serve.rs`)
//! ```
//!
//! Scripts beside the archive's binary start it, count and compare with torch. Files of cases are found under `OXYFUEL_CASES`, or in the repository.
#![forbid(unsafe_code)]

#[path = "../../tests/conformance/attention.rs"]
mod attention;
mod cases;
#[path = "../../tests/conformance/concatenations.rs"]
mod concatenations;
#[path = "../../tests/conformance/convolutions.rs"]
mod convolutions;
#[path = "../../tests/conformance/inputs.rs"]
mod inputs;
#[path = "../../tests/conformance/judge.rs"]
mod judge;
#[path = "../../tests/conformance/memory.rs"]
#[expect(dead_code, reason = "host memory is for the conformance suite")]
mod memory;
#[path = "../../tests/conformance/products.rs"]
mod products;
mod serve;

use std::process::ExitCode;
use std::sync::Arc;

use oxyfuel_base::Result;
use oxyfuel_engine::{Mode, Options, Target, cpu_device};
use oxyfuel_runtime::device::Device;
use oxyfuel_runtime::null::NullDevice;

/// A place to run, and what to compile for it.
#[derive(Debug)]
pub struct Place {
    pub target: Target,
    pub device: Arc<dyn Device>,
    /// Nothing is computed: results mean nothing.
    pub null: bool,
    /// Programs run in the tile interpreter as they were laid out.
    pub interprets: bool,
}

impl Place {
    /// How cases are compiled.
    fn options(&self) -> Options {
        Options {
            // Kernels that share a launch use memory again within it; the processor's device wants what is written apart from all else.
            mode: match self.interprets {
                true => Mode::ReduceOverhead,
                false => Mode::Default,
            },
            ..Options::default()
        }
    }

    fn open(null: bool, interprets: bool) -> Result<Self> {
        if null || interprets {
            let device: Arc<dyn Device> = match interprets {
                true => cpu_device(&Options::default()),
                false => NullDevice::new(0),
            };
            return Ok(Self {
                target: Target::by_name("sm_90a")?,
                device,
                null: !interprets,
                interprets,
            });
        }
        // The last row of the table that runs here is the best.
        let name = Target::all()
            .filter(|target| !target.can_interpret() && target.supported_here())
            .last()
            .map_or_else(|| "sm_80".to_owned(), |target| target.name().to_owned());
        let options = Options {
            target: name,
            ..Options::default()
        };
        let target = Target::host(&options)?;
        let device = target.device(&options)?;
        Ok(Self {
            target,
            device,
            null,
            interprets,
        })
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [null, interprets] =
        ["--null", "--interpret"].map(|flag| args.iter().any(|arg| arg == flag));
    let words: Vec<&str> = args
        .iter()
        .map(String::as_str)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    let outcome = match words.as_slice() {
        ["cases"] => {
            for name in cases::names() {
                println!("{name}");
            }
            Ok(ExitCode::SUCCESS)
        }
        ["test", numbers @ ..] => {
            Place::open(null, interprets).and_then(|place| cases::run(&place, numbers))
        }
        ["show", number] => cases::show(number).map(|()| ExitCode::SUCCESS),
        ["ptx", folder, target] => cases::write_ptx(folder, target).map(|()| ExitCode::SUCCESS),
        ["serve", file, inputs @ ..] => Place::open(null, false)
            .and_then(|place| serve::serve(&place, file, inputs))
            .map(|()| ExitCode::SUCCESS),
        _ => {
            eprintln!(
                "usage: gpu cases | show NUMBER | test NUMBER… | ptx FOLDER TARGET | serve FILE INPUT…"
            );
            return ExitCode::from(2);
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
