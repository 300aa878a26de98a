//! How fast the matrix unit is beside the vectors, measured: the processor says that it has one, and not at which speed.
//!
//! On a core of its own an AMX unit multiplies sixteen pairs of bf16 in the time of one of f32; where a core is shared or held back, five were seen. What a compiler makes of a product of f32 hangs on it.

use std::sync::OnceLock;

use super::features::Machine;

/// Times the multiply-adds of f32 on vectors that those of bf16 on the matrix unit are, in the same time; 0 without such a unit. Measured once a process, for a third of a millisecond.
pub fn matrix_over_vectors() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let features = Machine::get().features;
        if features.amx_bf16 && features.avx512 {
            measure()
        } else {
            0.0
        }
    })
}

#[cfg(target_arch = "x86_64")]
fn measure() -> f64 {
    use std::time::Instant;

    /// Rounds before the processor has the clock that such work gets, and rounds of which the fastest counts.
    const ROUNDS: [u32; 2] = [6, 8];
    let fastest = |run: &dyn Fn()| {
        let time = |_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        };
        let [first, counted] = ROUNDS;
        (0..first).for_each(|round| {
            time(round);
        });
        (0..counted).map(time).fold(f64::MAX, f64::min)
    };
    // Of one step of each loop.
    let (tiles, vectors) = (4.0 * 16.0 * 16.0 * 32.0, 12.0 * 16.0);
    let (tile_steps, vector_steps) = (250, 2_500);
    let rate = |each: f64, steps: u32, seconds: f64| each * f64::from(steps) / seconds.max(1e-9);
    // SAFETY: the caller found AVX-512 and AMX, and the permission to use its registers.
    let matrix = rate(
        tiles,
        tile_steps,
        fastest(&|| unsafe { x86::multiply_tiles(tile_steps) }),
    );
    // SAFETY: as above.
    let vector = rate(
        vectors,
        vector_steps,
        fastest(&|| unsafe { x86::multiply_vectors(vector_steps) }),
    );
    matrix / vector
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> f64 {
    0.0
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;

    /// So many times four products of whole tiles of zeros.
    ///
    /// # Safety
    /// The processor has AMX with bf16, and the process may use its registers.
    pub unsafe fn multiply_tiles(steps: u32) {
        let mut config = [0u8; 64];
        config[0] = 1;
        for tile in 0..8 {
            config[16 + 2 * tile] = 64;
            config[48 + tile] = 16;
        }
        // SAFETY: the configuration is 64 readable bytes, no other memory is touched, and the tiles are given back at the end.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {steps:e}",
                "jnz 2b",
                "tilerelease",
                config = in(reg) config.as_ptr(),
                steps = inout(reg) steps => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }

    /// So many times twelve multiply-adds of whole vectors.
    ///
    /// # Safety
    /// The processor has AVX-512.
    pub unsafe fn multiply_vectors(steps: u32) {
        // SAFETY: registers alone, all of them named.
        unsafe {
            asm!(
                "vpxord zmm0, zmm0, zmm0",
                "vpxord zmm1, zmm1, zmm1",
                "2:",
                "vfmadd231ps zmm2, zmm0, zmm1", "vfmadd231ps zmm3, zmm0, zmm1",
                "vfmadd231ps zmm4, zmm0, zmm1", "vfmadd231ps zmm5, zmm0, zmm1",
                "vfmadd231ps zmm6, zmm0, zmm1", "vfmadd231ps zmm7, zmm0, zmm1",
                "vfmadd231ps zmm8, zmm0, zmm1", "vfmadd231ps zmm9, zmm0, zmm1",
                "vfmadd231ps zmm10, zmm0, zmm1", "vfmadd231ps zmm11, zmm0, zmm1",
                "vfmadd231ps zmm12, zmm0, zmm1", "vfmadd231ps zmm13, zmm0, zmm1",
                "dec {steps:e}",
                "jnz 2b",
                steps = inout(reg) steps => _,
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _, out("zmm6") _,
                out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _, out("zmm12") _, out("zmm13") _,
                options(nostack, nomem),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_is_there_is_faster_than_vectors() {
        let features = Machine::get().features;
        let rate = matrix_over_vectors();
        assert_eq!(rate > 0.0, features.amx_bf16 && features.avx512);
        assert!(rate == 0.0 || (1.0..64.0).contains(&rate), "{rate}");
        assert_eq!(rate.to_bits(), matrix_over_vectors().to_bits());
    }
}
