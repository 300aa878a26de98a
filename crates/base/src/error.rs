//! The error type of the whole project.
//!
//! An error says what happened, whose fault it is, what to do about it and, where there is a text,
//! where in it. Its [`Code`] never changes its string once released, so that programs may match on
//! it and people may search for it. All codes stand in one table here, from which `docs/errors.md`
//! is generated.
//!
//! Codes are grouped: `E01xx` capture and mismatches, `E02xx` text, `E03xx` verifiers and checked
//! execution, `E04xx` options, `E05xx` cache and files, `E06xx` sizes and memory, `E07xx` device and
//! driver, `E08xx` internal.

use std::fmt;

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whose fault an error is, which is to say who can mend it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The caller's: the program, text or options given are wrong.
    User,
    /// Ours: a bug in Oxyfuel, please report it.
    Internal,
    /// The machine's: a missing driver, a full disk, no memory.
    Machine,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Fault::User => "yours",
            Fault::Internal => "ours",
            Fault::Machine => "the machine's",
        })
    }
}

macro_rules! codes {
    ($($variant:ident $code:literal $fault:ident $doc:literal;)*) => {
        /// What went wrong, as a stable name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $(#[doc = $doc] $variant,)* }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The stable string: `"E0101"`.
            pub const fn code(self) -> &'static str {
                match self { $(Code::$variant => $code,)* }
            }

            /// The identifier in Rust: `"ShapeMismatch"`.
            pub const fn name(self) -> &'static str {
                match self { $(Code::$variant => stringify!($variant),)* }
            }

            /// Whose fault it is.
            pub const fn fault(self) -> Fault {
                match self { $(Code::$variant => Fault::$fault,)* }
            }

            /// What it means, in one line.
            pub const fn doc(self) -> &'static str {
                match self { $(Code::$variant => $doc,)* }
            }
        }
    };
}

codes! {
    ShapeMismatch      "E0101" User     "Operands have shapes that do not fit together.";
    DTypeMismatch      "E0102" User     "Operands have element types that do not fit together or that the operation does not take.";
    DeviceMismatch     "E0103" User     "Operands live on different devices.";
    RankMismatch       "E0104" User     "An operand has the wrong number of dims.";
    DimOutOfRange      "E0105" User     "A dim number is outside the operand's rank, or given twice.";
    IndexOutOfRange    "E0106" User     "An index or slice bound is outside the tensor.";
    LayoutMismatch     "E0107" User     "The strides of a tensor are not what the operation or guard requires.";
    ArityMismatch      "E0108" User     "The wrong number of arguments or results.";
    InvalidArgument    "E0109" User     "An argument or attribute has a value the operation does not allow.";
    UnsupportedOp      "E0110" User     "An operator that is not in the vocabulary.";
    UnsupportedDType   "E0111" User     "An element type that the operation or target cannot compute with.";
    TraceLeak          "E0112" User     "A traced tensor was used outside the trace that made it.";
    DataDependent      "E0113" User     "The captured program needs the value of a tensor to go on.";
    AliasedInputs      "E0114" User     "A tensor that a call writes overlaps another one of the call.";
    UnboundSymbol      "E0116" User     "A symbolic dim has no value.";
    PaddingMatters     "E0117" User     "A dim is declared as a bucket that must pad, and padding it would change results.";

    Syntax             "E0201" User     "The text does not follow the grammar.";
    UnknownName        "E0202" User     "The text names an op, type, attribute or value that does not exist.";
    DuplicateName      "E0203" User     "The text defines a name twice.";
    InvalidLiteral     "E0204" User     "A number or string in the text is malformed or out of range.";
    NestedTooDeep      "E0205" User     "The text nests deeper than the parser allows.";
    UnsupportedVersion "E0206" User     "The file was written by a version whose format is not understood.";

    InvalidGraph       "E0301" User     "A graph breaks an invariant of the tensor IR.";
    InvalidKernel      "E0302" User     "A kernel breaks an invariant of the tile IR.";
    InvalidPlan        "E0303" User     "A plan breaks an invariant.";
    OutOfBounds        "E0304" User     "A checked kernel reads or writes outside a buffer.";
    UninitializedRead  "E0305" User     "A checked kernel reads memory nobody wrote.";
    DataRace           "E0306" User     "Two instances of a checked kernel touch the same element without order, one of them writing.";
    StepLimit          "E0307" User     "A checked kernel runs longer than its limit.";

    UnknownOption      "E0401" User     "An option that does not exist.";
    InvalidOption      "E0402" User     "An option has a value it does not allow.";
    ConflictingOptions "E0403" User     "Two options exclude each other.";

    CacheUnreadable    "E0501" Machine  "The cache directory or an entry cannot be read.";
    CacheUnwritable    "E0502" Machine  "The cache directory cannot be created or written.";
    DiskFull           "E0503" Machine  "No space is left for a file.";
    CacheCorrupt       "E0504" Machine  "A cache entry fails its checksum.";
    CacheUntrusted     "E0505" User     "The cache directory belongs to somebody else or others may write it.";
    FileNotFound       "E0506" User     "A file that was named does not exist.";
    FileUnreadable     "E0507" Machine  "A file exists and cannot be read or written.";
    FileMalformed      "E0508" User     "A file is cut short, or is not what its format says.";
    MissingTensor      "E0509" User     "A file lacks a tensor that was asked for.";
    UnexpectedTensor   "E0510" User     "A file has a tensor that nobody asked for.";

    SizeOverflow       "E0601" User     "A size or index does not fit into 64 bits.";
    OutOfMemory        "E0602" Machine  "The machine cannot give that much memory.";
    TooLarge           "E0603" User     "Something exceeds a stated limit.";
    DivisionByZero     "E0604" User     "A size expression divides by zero.";
    MemoryLimit        "E0605" User     "A call would take more memory than the option `memory_limit` allows.";
    StaleFrozen        "E0606" User     "A frozen tensor was changed, released or declared invalid after what follows from it had been computed.";

    NoDriver           "E0701" Machine  "No CUDA driver can be loaded.";
    NoDevice           "E0702" Machine  "The device asked for does not exist on this machine.";
    DriverCall         "E0703" Machine  "A call into the driver failed.";
    UnsupportedDevice  "E0704" Machine  "The device lacks a feature the code needs.";
    LinkFailed         "E0705" Internal "The driver refuses code that we emitted.";
    MissingLibrary     "E0706" Machine  "A shared library or a symbol in it is missing.";
    NoExecutableMemory "E0707" Machine  "The system does not let this process map executable memory.";
    ThreadFailed       "E0708" Machine  "A thread or a process of ours cannot be started.";
    HostCall           "E0709" User     "An operator of the host framework failed, or the plan needs a host and has none.";
    UnsupportedHost    "E0710" Machine  "The installed version of the host framework is not one that is known.";
    DriverTooOld       "E0711" Machine  "The CUDA driver is older than what we need of it.";
    KernelFault        "E0712" Internal "A kernel faulted on the device, which is lost to this process.";
    CaptureBroken      "E0713" User     "Work that a CUDA graph cannot hold, or that belongs to another stream, was asked for while it was recorded; or a call that has to be launched as one cannot be.";

    Internal           "E0801" Internal "An invariant of the compiler itself is broken.";
    InvalidLowering    "E0802" Internal "A pass of ours produced IR that its verifier refuses.";
    WrongResult        "E0803" Internal "Emitted code and the interpreter disagree.";
    NoLowering         "E0804" Internal "A valid program that the target cannot express yet.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

/// A place in a text, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Name of the file, or of whatever the text came from.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub col: u32,
}

impl Location {
    /// A place in a text.
    pub fn new(file: impl Into<String>, line: u32, col: u32) -> Location {
        Location {
            file: file.into(),
            line,
            col,
        }
    }

    /// The place of byte `offset` in `text` (the end of the text when beyond it).
    pub fn in_text(file: impl Into<String>, text: &str, offset: usize) -> Location {
        let before = &text.as_bytes()[..offset.min(text.len())];
        let start = before
            .iter()
            .rposition(|&b| b == b'\n')
            .map_or(0, |i| i + 1);
        let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
        // Continuation bytes of UTF-8 are no characters of their own.
        let col = before[start..]
            .iter()
            .filter(|&&b| b & 0xc0 != 0x80)
            .count()
            + 1;
        let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Location::new(file, clamp(line), clamp(col))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.col)
    }
}

/// What went wrong, in words for a person and as a [`Code`] for a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The stable name.
    pub code: Code,
    /// One sentence, without a full stop, that names the things involved.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// Where in a text it happened.
    pub at: Option<Location>,
}

impl Error {
    /// An error with neither help nor place yet.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error {
            code,
            message: message.into(),
            help: None,
            at: None,
        }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Error {
        self.help = Some(help.into());
        self
    }

    /// Adds where it happened.
    #[must_use]
    pub fn at(mut self, at: Location) -> Error {
        self.at = Some(at);
        self
    }

    /// Puts `context: ` before the message, for the caller who knows what was being done.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        self.code.fault()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.message)?;
        if let Some(at) = &self.at {
            write!(f, "\n  --> {at}")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// What the work returns; a panic in it is an error too. For a door whose caller can go on without us: what compiles is pure, so nothing is left half done.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("no message");
        Err(crate::err!(Internal, "the compiler panicked: {text}")
            .help("this is a bug: please report it, with the lines of the panic above"))
    })
}

/// An [`Error`] from a code and a format string: `err!(ShapeMismatch, "{a} and {b}")`.
#[macro_export]
macro_rules! err {
    ($code:ident, $($message:tt)+) => {
        $crate::Error::new($crate::Code::$code, ::std::format!($($message)+))
    };
}

/// Returns an [`Error`] from the function unless the condition holds:
/// `ensure!(a == b, ShapeMismatch, "{a} and {b}")`.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $code:ident, $($message:tt)+) => {
        if !$condition {
            return ::std::result::Result::Err($crate::err!($code, $($message)+));
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_shows_place_and_help() {
        let e = Error::new(Code::ShapeMismatch, "2 and 3")
            .help("use 2")
            .at(Location::new("a.graph", 3, 7));
        assert_eq!(
            e.to_string(),
            "error[E0101]: 2 and 3\n  --> a.graph:3:7\n  help: use 2"
        );
        assert_eq!(e.fault(), Fault::User);
        assert_eq!(
            err!(Internal, "x{}", 1).context("lowering").to_string(),
            "error[E0801]: lowering: x1"
        );
    }

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(caught(|| Ok(1)), Ok(1));
        let refused = caught(|| Err::<(), _>(err!(ShapeMismatch, "2 and 3")));
        assert_eq!(refused.unwrap_err().code, Code::ShapeMismatch);
        for panicking in [|| panic!("a plain text"), || panic!("made of {}", 2)] {
            let error = caught::<()>(panicking).unwrap_err();
            assert_eq!(error.code, Code::Internal);
            assert!(error.message.starts_with("the compiler panicked: "));
        }
        let error = caught::<()>(|| std::panic::panic_any(7)).unwrap_err();
        assert_eq!(error.message, "the compiler panicked: no message");
    }

    #[test]
    fn locations_count_characters() {
        let text = "ab\ncdéf\n";
        assert_eq!(Location::in_text("t", text, 0), Location::new("t", 1, 1));
        assert_eq!(Location::in_text("t", text, 7), Location::new("t", 2, 4));
        assert_eq!(Location::in_text("t", text, 1000), Location::new("t", 3, 1));
    }

    #[test]
    fn ensure_returns_the_error() {
        fn f(x: i32) -> Result<i32> {
            ensure!(x > 0, InvalidArgument, "{x} is not positive");
            Ok(x)
        }
        assert_eq!(f(1), Ok(1));
        assert_eq!(f(-1).unwrap_err().code, Code::InvalidArgument);
    }
}
