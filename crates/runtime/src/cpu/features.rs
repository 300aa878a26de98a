//! What the processor under us can do: instruction sets, caches, cores and memory.
//!
//! Everything is asked once ([`Machine::get`]) and never changes afterwards. An instruction set counts as present
//! only when the processor has it *and* the operating system saves its registers. The limits of a container (CPU
//! affinity, cgroup quotas) count as limits of the machine. On other architectures every x86 flag is false and the
//! tile interpreter runs the plans.

pub use oxyfuel_plan::CpuFeatures;
use std::sync::OnceLock;

/// Cache sizes in bytes; an unknown level has a common value, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// First-level data cache of one core.
    pub l1d: usize,
    /// Second-level cache of one core (or of the cores that share it).
    pub l2: usize,
    /// Last-level cache, shared.
    pub l3: usize,
    /// Line size.
    pub line: usize,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            l1d: 32 << 10,
            l2: 512 << 10,
            l3: 8 << 20,
            line: 64,
        }
    }
}

/// The machine as this process may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Instruction sets.
    pub features: CpuFeatures,
    /// Cache sizes.
    pub caches: Caches,
    /// Hardware threads this process may run on (affinity and cgroup quota honoured).
    pub logical_cores: usize,
    /// Cores behind them: two hardware threads of one core count once.
    pub physical_cores: usize,
    /// Memory this process may use in bytes: the smaller of physical memory and cgroup limit.
    pub memory: u64,
}

impl Machine {
    /// The machine, detected at the first call. Asks the kernel for AMX permission, once.
    pub fn get() -> &'static Machine {
        static MACHINE: OnceLock<Machine> = OnceLock::new();
        MACHINE.get_or_init(|| {
            let logical = std::thread::available_parallelism().map_or(1, |n| n.get());
            Machine {
                features: detect_features(),
                caches: detect_caches(),
                logical_cores: logical,
                physical_cores: physical_cores().unwrap_or(logical).clamp(1, logical),
                memory: memory_limit(),
            }
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Caches, CpuFeatures};
    use std::arch::is_x86_feature_detected as has;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    pub fn features() -> CpuFeatures {
        let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        let (tile, bf16, int8) = amx();
        CpuFeatures {
            avx2: has!("avx2") && has!("fma") && has!("f16c"),
            avx_vnni: has!("avx2") && has!("avxvnni"),
            avx512,
            avx512_bf16: avx512 && has!("avx512bf16"),
            avx512_fp16: avx512 && has!("avx512fp16"),
            avx512_vnni: avx512 && has!("avx512vnni"),
            amx_tile: tile,
            amx_bf16: bf16,
            amx_int8: int8,
        }
    }

    /// AMX tile, bf16 and int8: the processor's flags, the registers the kernel saves (XCR0 bits 17 and 18), and permission.
    fn amx() -> (bool, bool, bool) {
        if __cpuid(0).eax < 7 || !has!("xsave") || __cpuid(1).ecx & (1 << 27) == 0 {
            return (false, false, false);
        }
        let edx = __cpuid_count(7, 0).edx;
        // SAFETY: OSXSAVE (leaf 1, ecx bit 27) was checked just above, so `xgetbv` is enabled.
        let xcr0 = unsafe { std::arch::x86_64::_xgetbv(0) };
        let saved = xcr0 & (3 << 17) == 3 << 17;
        let tile = edx & (1 << 24) != 0 && saved && request_permission();
        (
            tile,
            tile && edx & (1 << 22) != 0,
            tile && edx & (1 << 25) != 0,
        )
    }

    /// Tile registers are 8 KiB of state a thread, so Linux enables them only for processes that ask.
    #[cfg(target_os = "linux")]
    fn request_permission() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: arch_prctl with this code takes a number and touches no memory of ours.
        unsafe {
            libc::syscall(
                libc::SYS_arch_prctl,
                ARCH_REQ_XCOMP_PERM,
                XFEATURE_XTILEDATA,
            ) == 0
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn request_permission() -> bool {
        false
    }

    /// Leaf 4 (Intel) or 0x8000001D (AMD) describes one cache per subleaf.
    pub fn caches() -> Caches {
        let mut caches = Caches::default();
        let amd = __cpuid(0).ebx == u32::from_le_bytes(*b"Auth")
            || __cpuid(0).ebx == u32::from_le_bytes(*b"Hygo");
        let leaf = if amd { 0x8000_001d } else { 4 };
        if __cpuid(leaf & 0x8000_0000).eax < leaf {
            return caches;
        }
        for subleaf in 0..8 {
            let c = __cpuid_count(leaf, subleaf);
            let kind = c.eax & 31;
            if kind == 0 {
                break;
            }
            let line = (c.ebx & 0xfff) as usize + 1;
            let partitions = ((c.ebx >> 12) & 0x3ff) as usize + 1;
            let ways = (c.ebx >> 22) as usize + 1;
            let size = line * partitions * ways * (c.ecx as usize + 1);
            match ((c.eax >> 5) & 7, kind) {
                (1, 1) => (caches.l1d, caches.line) = (size, line),
                (2, 1 | 3) => caches.l2 = size,
                (3, 1 | 3) => caches.l3 = size,
                _ => {}
            }
        }
        caches
    }
}

#[cfg(target_arch = "x86_64")]
use x86::{caches as detect_caches, features as detect_features};

#[cfg(not(target_arch = "x86_64"))]
fn detect_features() -> CpuFeatures {
    CpuFeatures::default()
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_caches() -> Caches {
    Caches::default()
}

/// The processors in our affinity mask, grouped by the core they belong to.
#[cfg(target_os = "linux")]
fn physical_cores() -> Option<usize> {
    // SAFETY: `cpu_set_t` is plain bits for which zero is valid, and the kernel writes at most the size given.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return None;
        }
        set
    };
    let mut cores = std::collections::HashSet::new();
    for cpu in 0..libc::CPU_SETSIZE as usize {
        // SAFETY: `cpu` is below CPU_SETSIZE, so the bit lies inside the set.
        if unsafe { libc::CPU_ISSET(cpu, &set) } {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            cores.insert(std::fs::read_to_string(path).ok()?);
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

#[cfg(not(target_os = "linux"))]
fn physical_cores() -> Option<usize> {
    None
}

fn memory_limit() -> u64 {
    let physical = physical_memory().unwrap_or(1 << 40);
    cgroup_memory_limit().map_or(physical, |limit| limit.min(physical))
}

#[cfg(unix)]
fn physical_memory() -> Option<u64> {
    // SAFETY: `sysconf` only returns numbers.
    let (pages, size) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    Some(u64::try_from(pages).ok()? * u64::try_from(size).ok()?).filter(|bytes| *bytes > 0)
}

#[cfg(not(unix))]
fn physical_memory() -> Option<u64> {
    None
}

/// The smallest limit among our cgroup and its ancestors (version 2), or the version 1 memory controller's.
fn cgroup_memory_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let (root, file) = if controllers.is_empty() {
                ("/sys/fs/cgroup", "memory.max")
            } else if controllers.split(',').any(|c| c == "memory") {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            } else {
                return None;
            };
            let mut directory = std::path::PathBuf::from(root).join(path.trim_start_matches('/'));
            let mut smallest = None;
            loop {
                // "max" does not parse, which is what no limit means.
                let limit = std::fs::read_to_string(directory.join(file))
                    .ok()
                    .and_then(|text| text.trim().parse::<u64>().ok());
                smallest = match (smallest, limit) {
                    (Some(a), Some(b)) => Some(std::cmp::min(a, b)),
                    (a, b) => a.or(b),
                };
                if directory == std::path::Path::new(root) || !directory.pop() {
                    return smallest;
                }
            }
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_plausible() {
        let m = Machine::get();
        assert!(m.logical_cores >= m.physical_cores && m.physical_cores >= 1);
        assert!(m.memory > 64 << 20, "{}", m.memory);
        assert!(m.caches.l1d >= 8 << 10 && m.caches.l1d <= m.caches.l2 && m.caches.line >= 32);
    }

    #[test]
    fn features_imply_their_base() {
        let f = Machine::get().features;
        assert!(!(f.avx512 || f.avx_vnni) || f.avx2);
        assert!(!(f.avx512_bf16 || f.avx512_fp16 || f.avx512_vnni) || f.avx512);
        assert!(!(f.amx_bf16 || f.amx_int8) || f.amx_tile);
    }

    /// /proc/cpuinfo is the kernel's own opinion.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn agrees_with_the_kernel() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags: Vec<&str> = text
            .lines()
            .find(|l| l.starts_with("flags"))
            .unwrap()
            .split_whitespace()
            .collect();
        let has = |name: &str| flags.contains(&name);
        let f = Machine::get().features;
        assert_eq!(f.avx2, has("avx2") && has("fma") && has("f16c"));
        assert_eq!(f.avx_vnni, has("avx_vnni"));
        assert_eq!(f.avx512_bf16, has("avx512_bf16"));
        assert_eq!(f.avx512_fp16, has("avx512_fp16"));
        assert_eq!(f.avx512_vnni, has("avx512_vnni"));
        assert_eq!(f.amx_tile, has("amx_tile"));
        assert_eq!(f.amx_bf16, has("amx_bf16"));
        assert_eq!(f.amx_int8, has("amx_int8"));
    }
}
