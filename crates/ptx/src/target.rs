//! What the emitter knows of a target, as data.

use oxyfuel_base::{DType, Result, err};
use oxyfuel_plan::{MatrixUnit, OperandHome, TargetDesc};

/// A version of PTX, major and minor. A driver refuses text of a newer one than its own, so a text asks for the lowest that has what is in it.
pub type Version = (u32, u32);

/// The version whose loads say what the caches do with the data; the oldest driver that we work with reads it.
pub(crate) const CACHE_HINTS: Version = (7, 4);
/// The version that lets a block send to another one.
pub(crate) const CLUSTERS: Version = (8, 1);

/// The newest version that a driver reads, by the CUDA version that it is of (1000 * major + 10 * minor).
const READ: &[(u32, Version)] = &[
    (13_000, (9, 0)),
    (12_090, (8, 8)),
    (12_080, (8, 7)),
    (12_070, (8, 6)),
    (12_050, (8, 5)),
    (12_040, (8, 4)),
    (12_030, (8, 3)),
    (12_020, (8, 2)),
    (12_010, (8, 1)),
    (12_000, (8, 0)),
];

/// One GPU architecture. The emitter asks for features and never for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The `.target` of the text.
    pub name: &'static str,
    /// The lowest version that knows it, and has most of what we emit for it.
    pub ptx: Version,
    /// Warpgroup products on shared memory, register budgets of roles.
    pub wgmma: bool,
    /// Barriers in shared memory and the tensor copy engine.
    pub tensor_copies: bool,
    /// `stmatrix`.
    pub stmatrix: bool,
    /// The version that has its conversions of f32 to the 8-bit floats; `None`: it has no such instructions.
    pub fp8: Option<Version>,
    /// Blocks that are placed together and send to each other.
    pub clusters: bool,
    /// Sums and products of pairs of bf16.
    pub bf16_pairs: bool,
    /// A grid may be launched while the one before it ends, and waits in its own code.
    pub dependent_launch: bool,
    /// Shared memory that one block may use.
    pub shared_bytes: u32,
    /// Registers that a block's threads share.
    pub registers: u32,
}

/// One row a target.
pub const TARGETS: &[Target] = &[
    AMPERE,
    Target {
        name: "sm_86",
        ptx: (7, 1),
        shared_bytes: 101_376,
        ..AMPERE
    },
    Target {
        name: "sm_89",
        ptx: (7, 8),
        fp8: Some((8, 1)),
        shared_bytes: 101_376,
        ..AMPERE
    },
    Target {
        name: "sm_90a",
        ptx: (8, 0),
        wgmma: true,
        tensor_copies: true,
        stmatrix: true,
        fp8: Some((8, 0)),
        clusters: true,
        bf16_pairs: true,
        dependent_launch: true,
        shared_bytes: 232_448,
        registers: 65_536,
    },
    Target {
        name: "sm_100a",
        ptx: (8, 6),
        tensor_copies: true,
        stmatrix: true,
        fp8: Some((8, 6)),
        clusters: true,
        bf16_pairs: true,
        dependent_launch: true,
        shared_bytes: 232_448,
        ..AMPERE
    },
];

const AMPERE: Target = Target {
    name: "sm_80",
    ptx: (7, 0),
    wgmma: false,
    tensor_copies: false,
    stmatrix: false,
    fp8: None,
    clusters: false,
    bf16_pairs: false,
    dependent_launch: false,
    shared_bytes: 166_912,
    registers: 65_536,
};

/// What a target with conversions to the 8-bit floats makes of f32.
const FP8: [DType; 2] = [DType::F8E4M3, DType::F8E5M2];

impl Target {
    pub fn by_name(name: &str) -> Result<&'static Target> {
        TARGETS
            .iter()
            .find(|target| target.name == name)
            .ok_or_else(|| err!(InvalidOption, "there is no PTX target {name}"))
    }

    /// What is left of it where the driver is of this CUDA version (1000 * major + 10 * minor) and refuses what is newer.
    #[must_use]
    pub fn under(self, cuda: u32) -> Target {
        let read = READ.iter().find(|(from, _)| cuda >= *from);
        let reads = |version| read.is_some_and(|(_, newest)| version <= *newest);
        Target {
            fp8: self.fp8.filter(|version| reads(*version)),
            clusters: self.clusters && reads(CLUSTERS),
            ..self
        }
    }

    /// What everything above the emitter knows of a device of this target with `workers` multiprocessors and `l2_bytes` of cache.
    pub fn describe(&self, workers: u32, l2_bytes: u64) -> TargetDesc {
        let storage = DType::ALL.iter().filter(|dtype| dtype.is_narrow_float());
        TargetDesc {
            name: self.name.to_owned(),
            isa: self.name.to_owned(),
            vector_bytes: 0,
            warp_lanes: 32,
            max_warps: 32,
            max_cluster: if self.clusters { 8 } else { 1 },
            registers: 255,
            workers,
            l1_bytes: u64::from(self.shared_bytes),
            l2_bytes,
            shared_bytes: self.shared_bytes,
            tiles_spill: false,
            powers_of_two: true,
            storage_floats: storage.copied().collect(),
            narrowed: self.fp8.map_or_else(Vec::new, |_| FP8.to_vec()),
            tensor_copies: self.tensor_copies,
            matrix_units: self.matrix_units(),
            product_library: false,
        }
    }

    fn matrix_units(&self) -> Vec<MatrixUnit> {
        let unit = |dtype| MatrixUnit {
            a: dtype,
            b: dtype,
            acc: DType::F32,
            m: if self.wgmma { 64 } else { 16 },
            n: if self.wgmma { 256 } else { 8 },
            k: 16,
            operands: if self.wgmma {
                OperandHome::Shared
            } else {
                OperandHome::Registers
            },
            b_pack: 1,
            accumulators: if self.wgmma { 1 } else { 16 },
            asynchronous: self.wgmma,
            warps: if self.wgmma { 4 } else { 1 },
        };
        [DType::BF16, DType::F16].map(unit).to_vec()
    }

    /// Whether a device of this compute capability runs the code: one with an `a` behind its number is for that chip alone.
    pub fn runs_on(&self, major: u32, minor: u32) -> bool {
        let number = self.name.trim_start_matches("sm_").trim_end_matches('a');
        let number: u32 = number.parse().unwrap_or(u32::MAX);
        let device = 10 * major + minor;
        if self.name.ends_with('a') {
            device == number
        } else {
            device >= number
        }
    }

    /// The row whose code runs on a device of this compute capability.
    pub fn for_capability(major: u32, minor: u32) -> Result<&'static Target> {
        match (major, minor) {
            (8, 0 | 7) => Self::by_name("sm_80"),
            (8, 6) => Self::by_name("sm_86"),
            (9, 0) => Self::by_name("sm_90a"),
            (10, 0) => Self::by_name("sm_100a"),
            // What is newer runs the newest code that is not for one chip alone.
            (8.., _) => Self::by_name("sm_89"),
            _ => Err(err!(
                UnsupportedDevice,
                "compute capability {major}.{minor} is below 8.0"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_below_the_oldest_row_is_refused() {
        let name = |major, minor| Target::for_capability(major, minor).map(|row| row.name);
        for (major, minor, best) in [
            (8, 0, "sm_80"),
            (8, 6, "sm_86"),
            (8, 7, "sm_80"),
            (8, 9, "sm_89"),
            (9, 0, "sm_90a"),
            (10, 0, "sm_100a"),
            (10, 3, "sm_89"),
            (12, 0, "sm_89"),
        ] {
            assert_eq!(name(major, minor), Ok(best));
            assert!(Target::by_name(best).unwrap().runs_on(major, minor));
        }
        let runs = |name, major, minor| Target::by_name(name).unwrap().runs_on(major, minor);
        assert!(runs("sm_80", 12, 0) && runs("sm_86", 9, 0));
        assert!(!runs("sm_90a", 10, 0) && !runs("sm_100a", 12, 0) && !runs("sm_89", 8, 6));
        for (major, minor) in [(0, 0), (5, 2), (7, 5)] {
            let error = name(major, minor).unwrap_err();
            assert_eq!(error.code, oxyfuel_base::Code::UnsupportedDevice);
        }
    }
    /// A driver of CUDA 12.0 reads PTX 8.0.
    #[test]
    fn what_a_driver_refuses_is_not_described() {
        let facts = |name: &str, cuda| {
            let row = Target::by_name(name).unwrap().under(cuda);
            let desc = row.describe(132, 50 << 20);
            (desc.narrowed.len(), desc.max_cluster)
        };
        assert_eq!(facts("sm_89", 12_000), (0, 1));
        assert_eq!(facts("sm_89", 12_010), (2, 1));
        assert_eq!(facts("sm_90a", 12_000), (2, 1));
        assert_eq!(facts("sm_90a", 12_010), (2, 8));
        assert_eq!(facts("sm_100a", 12_080), (2, 8));
        for row in TARGETS {
            assert_eq!(row.under(13_020), *row);
        }
        let oldest = READ.last().map(|(_, version)| *version);
        assert!(oldest >= Some(CACHE_HINTS));
    }
}
