//! The operations that every target has, as a trait: an expansion is written once, over it, and runs in three ways.
//!
//! * [`Native`](super::native::Native) computes with `f32` itself: what the exhaustive tests measure.
//! * `Emit` writes tile IR: what the compiler uses.
//! * `Count` counts instructions: what the table states.
//!
//! # Meaning
//! Each float operation rounds once, to nearest even; denormals are kept. `min` and `max` return NaN when either operand is NaN, and order -0
//! below +0. Integers are i32, or the 64 bits of an f64, and wrap; `shr` keeps the sign. Comparisons with NaN are false. These are the tile IR's own rules.

/// One way to execute an expansion. Methods take `&self`, so that calls nest like the formulas they stand for.
pub trait Arith {
    /// An f32 value.
    type F: Copy;
    /// An i32 value.
    type I: Copy;
    /// An f64 value: the f64 functions, and `pow` and the full reduction of sin and cos among the f32 ones.
    type D: Copy;
    /// The bits of an f64.
    type L: Copy;
    /// A truth value.
    type B: Copy;

    fn float(&self, value: f32) -> Self::F;
    fn int(&self, value: i32) -> Self::I;

    fn add(&self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(&self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(&self, a: Self::F, b: Self::F) -> Self::F;
    fn div(&self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(&self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn min(&self, a: Self::F, b: Self::F) -> Self::F;
    fn max(&self, a: Self::F, b: Self::F) -> Self::F;
    fn neg(&self, a: Self::F) -> Self::F;
    fn abs(&self, a: Self::F) -> Self::F;
    fn sqrt(&self, a: Self::F) -> Self::F;

    /// `2^a` as the machine has it, within 2 ulp on a GPU; not every machine does.
    fn exp2(&self, a: Self::F) -> Self::F;
    /// The same; what is below the normal numbers may be zero.
    fn near_exp2(&self, a: Self::F) -> Self::F;
    /// `1 / a` in the same way.
    fn near_recip(&self, a: Self::F) -> Self::F;
    /// `1 / sqrt(a)` in the same way, of denormal numbers too.
    fn near_rsqrt(&self, a: Self::F) -> Self::F;
    /// `1 / a` for `0.5 <= a < 2^125`, within 0.51 ulp.
    fn inverse(&self, a: Self::F) -> Self::F {
        self.div(self.float(1.0), a)
    }

    fn lt(&self, a: Self::F, b: Self::F) -> Self::B;
    fn eq(&self, a: Self::F, b: Self::F) -> Self::B;
    fn select(&self, cond: Self::B, yes: Self::F, no: Self::F) -> Self::F;
    /// An integer bit test: true where `a` is not zero.
    fn nonzero(&self, a: Self::I) -> Self::B;

    fn bits(&self, a: Self::F) -> Self::I;
    fn of_bits(&self, a: Self::I) -> Self::F;
    /// The nearest f32.
    fn to_float(&self, a: Self::I) -> Self::F;
    fn iadd(&self, a: Self::I, b: Self::I) -> Self::I;
    fn isub(&self, a: Self::I, b: Self::I) -> Self::I;
    fn and(&self, a: Self::I, b: Self::I) -> Self::I;
    fn or(&self, a: Self::I, b: Self::I) -> Self::I;
    fn xor(&self, a: Self::I, b: Self::I) -> Self::I;
    fn shl(&self, a: Self::I, by: i32) -> Self::I;
    fn shr(&self, a: Self::I, by: i32) -> Self::I;

    fn double(&self, value: f64) -> Self::D;
    fn widen(&self, a: Self::F) -> Self::D;
    fn narrow(&self, a: Self::D) -> Self::F;
    fn dadd(&self, a: Self::D, b: Self::D) -> Self::D;
    fn dsub(&self, a: Self::D, b: Self::D) -> Self::D;
    fn dmul(&self, a: Self::D, b: Self::D) -> Self::D;
    fn dfma(&self, a: Self::D, b: Self::D, c: Self::D) -> Self::D;
    fn ddiv(&self, a: Self::D, b: Self::D) -> Self::D;
    fn dmin(&self, a: Self::D, b: Self::D) -> Self::D;
    fn dmax(&self, a: Self::D, b: Self::D) -> Self::D;
    fn deq(&self, a: Self::D, b: Self::D) -> Self::B;
    fn dneg(&self, a: Self::D) -> Self::D;
    /// To the nearest integer, ties to even.
    fn dround(&self, a: Self::D) -> Self::D;
    fn dselect(&self, cond: Self::B, yes: Self::D, no: Self::D) -> Self::D;
    /// Truncates; NaN gives 0.
    fn dto_int(&self, a: Self::D) -> Self::I;
    fn dabs(&self, a: Self::D) -> Self::D;
    fn dsqrt(&self, a: Self::D) -> Self::D;
    /// Towards zero.
    fn dtrunc(&self, a: Self::D) -> Self::D;
    fn dlt(&self, a: Self::D, b: Self::D) -> Self::B;

    fn long(&self, value: u64) -> Self::L;
    fn dbits(&self, a: Self::D) -> Self::L;
    fn of_dbits(&self, a: Self::L) -> Self::D;
    fn ladd(&self, a: Self::L, b: Self::L) -> Self::L;
    fn lsub(&self, a: Self::L, b: Self::L) -> Self::L;
    fn land(&self, a: Self::L, b: Self::L) -> Self::L;
    fn lor(&self, a: Self::L, b: Self::L) -> Self::L;
    fn lshl(&self, a: Self::L, by: i32) -> Self::L;
    /// Fills with zeros.
    fn lshr(&self, a: Self::L, by: i32) -> Self::L;
    /// True where `a` is not zero.
    fn lnonzero(&self, a: Self::L) -> Self::B;

    /// `c[0] + c[1] x + c[2] x^2 + ...`, by Horner's rule: one `fma` less than there are coefficients.
    fn poly(&self, x: Self::F, coefficients: &[f32]) -> Self::F {
        let (last, rest) = coefficients
            .split_last()
            .expect("a polynomial has coefficients");
        rest.iter()
            .rev()
            .fold(self.float(*last), |sum, c| self.fma(sum, x, self.float(*c)))
    }

    /// [`poly`](Self::poly) in f64.
    fn dpoly(&self, x: Self::D, coefficients: &[f64]) -> Self::D {
        let (last, rest) = coefficients
            .split_last()
            .expect("a polynomial has coefficients");
        rest.iter().rev().fold(self.double(*last), |sum, c| {
            self.dfma(sum, x, self.double(*c))
        })
    }

    /// [`with_sign`](Self::with_sign) in f64.
    fn dwith_sign(&self, magnitude: Self::D, sign: Self::D) -> Self::D {
        let sign = self.land(self.dbits(sign), self.long(1 << 63));
        self.of_dbits(self.lor(self.dbits(magnitude), sign))
    }

    /// `magnitude`, which must not be negative, with the sign of `sign`.
    fn with_sign(&self, magnitude: Self::F, sign: Self::F) -> Self::F {
        let sign = self.and(self.bits(sign), self.int(i32::MIN));
        self.of_bits(self.or(self.bits(magnitude), sign))
    }
}
