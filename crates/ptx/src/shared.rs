//! Shared memory of one block: what the program allocates, and scratch of our own, one behind the other.

use oxyfuel_base::{Result, ensure};

use crate::asm::{Class, Opd, Reg};
use crate::emit::Emitter;
use crate::target::Target;

/// What fits without being asked for at launch.
const FIXED_LIMIT: u32 = 48 * 1024;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharedPlan {
    used: u64,
    /// Offset and bytes of the region that layout changes pass through.
    exchange: Option<(u64, u64)>,
    /// The most that was in use at a time before.
    most: u64,
}

/// How the entry declares its shared memory; one of the two is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedSize {
    pub(crate) fixed: u32,
    pub(crate) dynamic: u32,
}

impl SharedPlan {
    fn take(&mut self, bytes: u64, align: u64) -> u64 {
        let at = self.used.next_multiple_of(align.max(1));
        self.used = at.saturating_add(bytes);
        at
    }

    /// Nobody uses any of it from here on.
    pub(crate) fn begin_anew(&mut self) {
        *self = Self {
            most: self.most.max(self.used),
            ..Self::default()
        };
    }

    pub(crate) fn finish(&self, target: &Target) -> Result<SharedSize> {
        let limit = u64::from(target.shared_bytes);
        let used = self.most.max(self.used);
        ensure!(
            used <= limit,
            TooLarge,
            "the kernel needs {used} bytes of shared memory, {} has {limit}",
            target.name
        );
        let used = used as u32;
        Ok(if used <= FIXED_LIMIT {
            SharedSize {
                fixed: used,
                dynamic: 0,
            }
        } else {
            SharedSize {
                fixed: 0,
                dynamic: used,
            }
        })
    }
}

impl Emitter<'_> {
    /// Fresh shared memory of this block.
    pub(crate) fn shared_alloc(&mut self, bytes: u64, align: u64) -> Reg {
        let offset = self.shared.take(bytes, align);
        self.shared_at(offset)
    }

    fn shared_at(&mut self, offset: u64) -> Reg {
        let base = self.asm.reg(Class::B32);
        self.asm.line(format_args!("mov.u32 {base}, $SHARED"));
        if offset == 0 {
            base
        } else {
            self.asm.pure(
                Class::B32,
                "add.s32",
                &[base.into(), Opd::Int(offset as i64)],
            )
        }
    }

    /// The region that layout changes share; whoever writes it must know that all earlier readers are done.
    pub(crate) fn exchange_region(&mut self, bytes: u64) -> (Reg, bool) {
        match self.shared.exchange {
            Some((offset, size)) if size >= bytes => (self.shared_at(offset), true),
            _ => {
                let offset = self.shared.take(bytes, 1024);
                self.shared.exchange = Some((offset, bytes));
                (self.shared_at(offset), false)
            }
        }
    }
}
