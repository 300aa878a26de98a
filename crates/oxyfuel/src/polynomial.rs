//! Orthogonal polynomials, under PyTorch's names without `special_`; of integers an f32.

use crate::recipe::Build::Nodes;
use crate::recipe::{Recording, recipes};
use oxyfuel_base::{DType, Result};
use oxyfuel_graph::special::{Chebyshev, Recurrence, chebyshev, recurrence};
use oxyfuel_graph::{Operand as Value, ValueId};

recipes! {
    /// Orthogonal polynomials of degree `n`, a tensor or a number where it is an operand.
    impl {
        /// Chebyshev's of the first kind.
        chebyshev_polynomial_t: [n] () = Nodes(|r| polynomial(r, Chebyshev::T, false));
        /// Chebyshev's of the second kind.
        chebyshev_polynomial_u: [n] () = Nodes(|r| polynomial(r, Chebyshev::U, false));
        /// Chebyshev's of the third kind.
        chebyshev_polynomial_v: [n] () = Nodes(|r| polynomial(r, Chebyshev::V, false));
        /// Chebyshev's of the fourth kind.
        chebyshev_polynomial_w: [n] () = Nodes(|r| polynomial(r, Chebyshev::W, false));
        /// Chebyshev's of the first kind, of `2 x - 1`.
        shifted_chebyshev_polynomial_t: [n] () = Nodes(|r| polynomial(r, Chebyshev::T, true));
        /// Chebyshev's of the second kind, of `2 x - 1`.
        shifted_chebyshev_polynomial_u: [n] () = Nodes(|r| polynomial(r, Chebyshev::U, true));
        /// Chebyshev's of the third kind, of `2 x - 1`.
        shifted_chebyshev_polynomial_v: [n] () = Nodes(|r| polynomial(r, Chebyshev::V, true));
        /// Chebyshev's of the fourth kind, of `2 x - 1`.
        shifted_chebyshev_polynomial_w: [n] () = Nodes(|r| polynomial(r, Chebyshev::W, true));
        /// Hermite's, as physicists write them.
        hermite_polynomial_h: [] (n: i64) = Nodes(|r| of_degree(r, Recurrence::HermiteH));
        /// Hermite's, as statisticians write them.
        hermite_polynomial_he: [] (n: i64) = Nodes(|r| of_degree(r, Recurrence::HermiteHe));
        /// Laguerre's.
        laguerre_polynomial_l: [] (n: i64) = Nodes(|r| of_degree(r, Recurrence::Laguerre));
        /// Legendre's.
        legendre_polynomial_p: [] (n: i64) = Nodes(|r| of_degree(r, Recurrence::Legendre));
    }
}

fn polynomial(r: &mut Recording<'_>, kind: Chebyshev, shifted: bool) -> Result<ValueId> {
    let operands = [r.operand(0)?, r.operand(1)?];
    let dtype = match r.b.common_dtype(&operands)? {
        dtype if dtype.is_float() => dtype,
        _ => DType::F32,
    };
    let device = r.b.ty(r.tensor(0)?).device;
    let mut values = vec![];
    for operand in operands {
        values.push(match operand {
            Value::Value(v) => r.b.cast(v, dtype)?,
            Value::Number(n) => r.b.full(n, vec![], dtype, device)?,
        });
    }
    r.b.in_f64(&values, |f, v| {
        let mut x = v[0];
        if shifted {
            let double = f.mul(x, 2.0)?;
            x = f.sub(double, 1.0)?;
        }
        chebyshev(f, kind, x, v[1])
    })
}

fn of_degree(r: &mut Recording<'_>, family: Recurrence) -> Result<ValueId> {
    let (x, n) = (r.tensor(0)?, r.int(0)?);
    r.b.in_f64(&[x], |f, v| recurrence(f, family, v[0], n))
}
