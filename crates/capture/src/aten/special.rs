//! Special functions, functions of whole numbers and of the parts of floats: what `oxyfuel_graph::special` composes, under ATen's names.

use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Result, Scalar};
use oxyfuel_graph::special::{self, Chebyshev, Recurrence, Special, chebyshev, gcd, recurrence};
use oxyfuel_graph::{Binary, Compare, Op, Unary, ValueId};
use std::f64::consts::PI;

/// Rows of functions of one tensor.
macro_rules! rows {
    ($($target:literal $f:ident;)* ; $($other:literal $build:expr;)*) => {
        pub(super) const ROWS: &[Row] = &[
            $((concat!("aten.", $target, ".default"), Compiled(|c| function(c, Special::$f))),)*
            $((concat!("aten.", $other), Compiled($build)),)*
        ];
    };
}

rows! {
    "lgamma" Lgamma;
    "digamma" Digamma;
    "erfinv" Erfinv;
    "special_erfcx" Erfcx;
    "special_ndtri" Ndtri;
    "special_log_ndtr" LogNdtr;
    "i0" I0;
    "special_i0e" I0e;
    "special_i1" I1;
    "special_i1e" I1e;
    "special_modified_bessel_i0" I0;
    "special_modified_bessel_i1" I1;
    "special_modified_bessel_k0" K0;
    "special_modified_bessel_k1" K1;
    "special_scaled_modified_bessel_k0" K0e;
    "special_scaled_modified_bessel_k1" K1e;
    "special_bessel_j0" J0;
    "special_bessel_j1" J1;
    "special_bessel_y0" Y0;
    "special_bessel_y1" Y1;
    "special_spherical_bessel_j0" SphericalJ0;
    "special_airy_ai" AiryAi;
    ;
    "polygamma.default" polygamma;
    "special_zeta.default" zeta;
    "special_zeta.self_scalar" zeta;
    "special_zeta.other_scalar" zeta;
    "special_chebyshev_polynomial_t.default" |c| polynomial(c, Chebyshev::T, false);
    "special_chebyshev_polynomial_t.n_scalar" |c| polynomial(c, Chebyshev::T, false);
    "special_chebyshev_polynomial_u.default" |c| polynomial(c, Chebyshev::U, false);
    "special_chebyshev_polynomial_u.n_scalar" |c| polynomial(c, Chebyshev::U, false);
    "special_chebyshev_polynomial_v.default" |c| polynomial(c, Chebyshev::V, false);
    "special_chebyshev_polynomial_v.n_scalar" |c| polynomial(c, Chebyshev::V, false);
    "special_chebyshev_polynomial_w.default" |c| polynomial(c, Chebyshev::W, false);
    "special_chebyshev_polynomial_w.n_scalar" |c| polynomial(c, Chebyshev::W, false);
    "special_shifted_chebyshev_polynomial_t.default" |c| polynomial(c, Chebyshev::T, true);
    "special_shifted_chebyshev_polynomial_t.n_scalar" |c| polynomial(c, Chebyshev::T, true);
    "special_shifted_chebyshev_polynomial_u.default" |c| polynomial(c, Chebyshev::U, true);
    "special_shifted_chebyshev_polynomial_u.n_scalar" |c| polynomial(c, Chebyshev::U, true);
    "special_shifted_chebyshev_polynomial_v.default" |c| polynomial(c, Chebyshev::V, true);
    "special_shifted_chebyshev_polynomial_v.n_scalar" |c| polynomial(c, Chebyshev::V, true);
    "special_shifted_chebyshev_polynomial_w.default" |c| polynomial(c, Chebyshev::W, true);
    "special_shifted_chebyshev_polynomial_w.n_scalar" |c| polynomial(c, Chebyshev::W, true);
    "special_hermite_polynomial_h.n_scalar" |c| of_degree(c, Recurrence::HermiteH);
    "special_hermite_polynomial_he.n_scalar" |c| of_degree(c, Recurrence::HermiteHe);
    "special_laguerre_polynomial_l.n_scalar" |c| of_degree(c, Recurrence::Laguerre);
    "special_legendre_polynomial_p.n_scalar" |c| of_degree(c, Recurrence::Legendre);
    "gcd.default" greatest_divisor;
    "lcm.default" least_multiple;
    "angle.default" angle;
    "round.decimals" round_decimals;
    "hypot.default" hypot;
    "frexp.Tensor" frexp;
    "nextafter.default" nextafter;
}

/// The float dtype of a result.
fn float_out(c: &Call<'_>) -> Result<DType> {
    let out = c.out(0)?.dtype;
    if !out.is_float() || out.is_narrow_float() {
        return refuse(format!("on {out}"));
    }
    Ok(out)
}

fn function(c: &mut Call<'_>, f: Special) -> Result<Vec<ValueId>> {
    float_out(c)?;
    let x = c.tensor(0, "self")?;
    Ok(vec![c.b.special(f, x)?])
}

fn polygamma(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    float_out(c)?;
    let n = c.int(0, "n", 0)?;
    let x = c.tensor(1, "self")?;
    Ok(vec![c.b.polygamma(n, x)?])
}

/// Two operands, tensors or numbers, in the dtype of the result.
fn pair(c: &mut Call<'_>, names: [&str; 2]) -> Result<[ValueId; 2]> {
    let dtype = c.out(0)?.dtype;
    let (a, b) = (c.factor(0, names[0])?, c.factor(1, names[1])?);
    Ok([c.value_of(&a, dtype)?, c.value_of(&b, dtype)?])
}

fn zeta(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    float_out(c)?;
    let [x, q] = pair(c, ["self", "other"])?;
    Ok(vec![c.b.zeta(x, q)?])
}

fn polynomial(c: &mut Call<'_>, kind: Chebyshev, shifted: bool) -> Result<Vec<ValueId>> {
    float_out(c)?;
    let [x, n] = pair(c, ["x", "n"])?;
    let y = c.b.in_f64(&[x, n], |f, v| {
        let x = if shifted {
            let double = f.mul(v[0], 2.0)?;
            f.sub(double, 1.0)?
        } else {
            v[0]
        };
        chebyshev(f, kind, x, v[1])
    })?;
    Ok(vec![y])
}

fn of_degree(c: &mut Call<'_>, family: Recurrence) -> Result<Vec<ValueId>> {
    float_out(c)?;
    let x = c.tensor(0, "x")?;
    let n = c.number(1, "n")?.map_or(0.0, |n| n.as_f64());
    let y =
        c.b.in_f64(&[x], |f, v| recurrence(f, family, v[0], n as i64))?;
    Ok(vec![y])
}

fn greatest_divisor(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let [a, b] = pair(c, ["self", "other"])?;
    Ok(vec![gcd(c.b, a, b)?])
}

fn least_multiple(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let [a, b] = pair(c, ["self", "other"])?;
    let divisor = gcd(c.b, a, b)?;
    let out = c.dtype(divisor);
    // C computes narrow integers in an `int`, and eager with it.
    let dtype = if out.bits() < 32 { DType::I32 } else { out };
    let (a, b) = (c.b.cast(a, dtype)?, c.b.cast(b, dtype)?);
    let divisor = c.b.cast(divisor, dtype)?;
    // Divided by zero an integer is zero.
    let part = c.b.emit(Op::Binary(Binary::DivTrunc), &[a, divisor])?;
    let product = c.b.emit(Op::Binary(Binary::Mul), &[part, b])?;
    let multiple = if dtype.is_signed() {
        c.b.unary(Unary::Abs, product)?
    } else {
        product
    };
    Ok(vec![c.b.cast(multiple, out)?])
}

/// Real numbers lie on two sides.
fn angle(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let out = float_out(c)?;
    let x = c.tensor(0, "self")?;
    let x = c.b.cast(x, out)?;
    let number = |c: &mut Call<'_>, v| c.value_of(&Factor::Number(Scalar::F(v)), out);
    let (zero, pi) = (number(c, 0.0)?, number(c, PI)?);
    let below = c.b.emit(Op::Compare(Compare::Lt), &[x, zero])?;
    let angle = c.b.emit(Op::Where, &[below, pi, zero])?;
    let nan = c.b.unary(Unary::IsNan, x)?;
    Ok(vec![c.b.emit(Op::Where, &[nan, x, angle])?])
}

/// Each step is rounded to the dtype, as eager's.
fn round_decimals(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let out = float_out(c)?;
    let x = c.tensor(0, "self")?;
    let decimals = c.int(1, "decimals", 0)?;
    if decimals == 0 {
        return Ok(vec![c.b.unary(Unary::Round, x)?]);
    }
    let power = 10f64.powi(decimals.unsigned_abs().min(400) as i32);
    let power = c.value_of(&Factor::Number(Scalar::F(power)), out)?;
    let (there, back) = match decimals > 0 {
        true => (Binary::Mul, Binary::Div),
        false => (Binary::Div, Binary::Mul),
    };
    let scaled = c.b.emit(Op::Binary(there), &[x, power])?;
    let whole = c.b.unary(Unary::Round, scaled)?;
    Ok(vec![c.b.emit(Op::Binary(back), &[whole, power])?])
}

fn hypot(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let out = float_out(c)?;
    let [a, b] = pair(c, ["self", "other"])?;
    let y = c.b.in_f64(&[a, b], |f, v| {
        let (a, b) = (f.abs(v[0])?, f.abs(v[1])?);
        let infinite = (f.is_inf(a)?, f.is_inf(b)?);
        let infinite = f.or(infinite.0, infinite.1)?;
        let length = if out == DType::F64 {
            // Scaled by the larger, no square overflows.
            let (large, small) = (f.max(a, b)?, f.min(a, b)?);
            let none = f.eq(large, 0.0)?;
            let ratio = f.div(small, large)?;
            let square = f.square(ratio)?;
            let sum = f.add(square, 1.0)?;
            let root = f.sqrt(sum)?;
            let length = f.mul(large, root)?;
            f.choose(none, 0.0, length)?
        } else {
            let squares = (f.square(a)?, f.square(b)?);
            let sum = f.add(squares.0, squares.1)?;
            f.sqrt(sum)?
        };
        f.choose(infinite, f64::INFINITY, length)
    })?;
    Ok(vec![y])
}

/// A fraction in [1/2, 1) and the power of two that it is multiplied with.
fn frexp(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let out = float_out(c)?;
    if out == DType::F64 {
        return refuse("on f64: its exponents reach as far as the arithmetic");
    }
    let x = c.tensor(0, "self")?;
    Ok(special::frexp(c.b, x)?.to_vec())
}

/// The next number in the direction of another.
fn nextafter(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let out = float_out(c)?;
    if !matches!(out, DType::F32 | DType::BF16 | DType::F16) {
        return refuse(format!("on {out}"));
    }
    let [a, b] = pair(c, ["self", "other"])?;
    Ok(vec![special::nextafter(c.b, a, b)?])
}
