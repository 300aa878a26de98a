//! Random products of narrow numbers, of weights that are cast, and pairs of products: bytes of every kind and halves, any size beside the lanes of units and vectors, turned, cut out of larger tensors, repeated, with what may stand behind them.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::builder::Builder;
use oxyfuel_graph::random::Choices;
use oxyfuel_graph::{Binary, Device, Graph, Reduce, Unary, ValueId};

/// The most multiply-adds of a program: the interpreters do them one by one.
const WORK: i64 = 600_000;
/// Some of them odd beside every vector, some whole tiles.
const SIZES: [i64; 10] = [1, 2, 3, 16, 17, 31, 32, 48, 65, 100];
const DEPTHS: [i64; 10] = [1, 3, 4, 15, 30, 64, 67, 128, 200, 333];

/// A random program of one product.
pub fn program(choices: &mut Choices<'_>) -> Result<Graph> {
    let mut b = Builder::new("product");
    let is_bytes = choices.below(3) > 0;
    let of_bytes = [DType::I8, DType::U8];
    let dtypes = match is_bytes {
        true => [of_bytes[choices.below(2)], of_bytes[choices.below(2)]],
        false => [[DType::BF16, DType::F16][choices.below(2)]; 2],
    };
    let [m, n] = [0; 2].map(|_| SIZES[choices.below(SIZES.len())]);
    let mut k = DEPTHS[choices.below(DEPTHS.len())];
    let mut batch = 1 + choices.below(3) as i64;
    if batch * m * n * k > WORK {
        batch = 1;
    }
    while m * n * k > WORK {
        k = (k + 1) / 2;
    }
    let has_batch = batch > 1 || choices.below(4) == 1;
    let a = Side::of(&mut b, choices, "a", dtypes[0], [batch, m, k], has_batch)?;
    let right = Side::of(&mut b, choices, "b", dtypes[1], [batch, k, n], has_batch)?;
    // A sum of halves may be rounded to a neighbour, which work behind it would magnify; sums of bytes are exact.
    let bias = match is_bytes && choices.flip() {
        true => Some(b.input("bias", DType::I32, vec![Expr::from(n)], Device::Cpu)?),
        false => None,
    };
    let (a, right) = (a.matrices(&mut b)?, right.matrices(&mut b)?);
    let mut y = match (is_bytes, has_batch) {
        (true, _) => b.int_mm(a, right)?,
        (false, true) => b.bmm(a, right)?,
        (false, false) => b.mm(a, right)?,
    };
    if let Some(bias) = bias {
        y = b.binary(Binary::Add, y, bias)?;
    }
    if choices.flip() {
        y = b.unary(Unary::Relu, y)?;
    }
    if is_bytes && choices.below(3) == 1 {
        y = b.cast(y, DType::F32)?;
    }
    b.output(y);
    b.finish()
}

/// Beyond one chunk of a depth, and beyond two; odd, and whole vectors.
const DEEP: [i64; 9] = [96, 333, 512, 513, 640, 777, 1030, 1301, 2048];

/// A random program of one product of f32 or f64, deep enough for several chunks, with what may stand behind it in the same kernel.
pub fn plain(choices: &mut Choices<'_>) -> Result<Graph> {
    let mut b = Builder::new("plain");
    let dtype = [DType::F32, DType::F32, DType::F64][choices.below(3)];
    let [mut m, mut n] = [0; 2].map(|_| SIZES[choices.below(SIZES.len())]);
    let k = DEEP[choices.below(DEEP.len())];
    let mut batch = 1 + choices.below(3) as i64;
    if batch * m * n * k > WORK {
        batch = 1;
    }
    // The depth is what matters here.
    while m * n * k > WORK {
        let larger = if m > n { &mut m } else { &mut n };
        *larger = (*larger + 1) / 2;
    }
    let has_batch = batch > 1 || choices.below(4) == 1;
    let a = Side::of(&mut b, choices, "a", dtype, [batch, m, k], has_batch)?;
    let right = Side::of(&mut b, choices, "b", dtype, [batch, k, n], has_batch)?;
    let row = |b: &mut Builder, name: &str| b.input(name, dtype, vec![n.into()], Device::Cpu);
    let bias = match choices.flip() {
        true => Some(row(&mut b, "bias")?),
        false => None,
    };
    let residual = match choices.below(3) {
        1 => {
            let shape = match has_batch {
                true => vec![batch.into(), m.into(), n.into()],
                false => vec![m.into(), n.into()],
            };
            Some(b.input("r", dtype, shape, Device::Cpu)?)
        }
        _ => None,
    };
    let (a, right) = (a.matrices(&mut b)?, right.matrices(&mut b)?);
    let mut y = match (has_batch, bias) {
        (true, _) => b.bmm(a, right)?,
        (false, Some(bias)) => b.addmm(bias, a, right, 1, 1)?,
        (false, None) => b.mm(a, right)?,
    };
    if let (true, Some(bias)) = (has_batch, bias) {
        y = b.binary(Binary::Add, y, bias)?;
    }
    if let Some(residual) = residual {
        y = b.binary(Binary::Add, y, residual)?;
    }
    match choices.below(4) {
        1 => y = b.unary(Unary::Relu, y)?,
        2 => y = b.mul(y, 0.5)?,
        _ => {}
    }
    b.output(y);
    b.finish()
}

/// A random program of a product whose rows are reduced, enough of them and with a weight small enough for the product's kernel to do so; as elementwise work may stand before and behind.
pub fn reduced(choices: &mut Choices<'_>) -> Result<Graph> {
    let mut b = Builder::new("reduced");
    let batch = 1 + choices.below(3) as i64;
    let m = [512, 515, 530][choices.below(3)] / batch + 1;
    let [n, k] = [[64, 65, 67][choices.below(3)], [16, 17][choices.below(2)]];
    let has_batch = batch > 1 || choices.below(4) == 1;
    let dtype = DType::F32;
    let a = Side::of(&mut b, choices, "a", dtype, [batch, m, k], has_batch)?;
    let right = Side::of(&mut b, choices, "b", dtype, [batch, k, n], has_batch)?;
    let bias = b.input("bias", dtype, vec![n.into()], Device::Cpu)?;
    let (a, right) = (a.matrices(&mut b)?, right.matrices(&mut b)?);
    let mut y = match has_batch {
        true => b.bmm(a, right)?,
        false => b.addmm(bias, a, right, 1, 1)?,
    };
    match choices.below(4) {
        1 => y = b.unary(Unary::Tanh, y)?,
        2 => y = b.binary(Binary::Add, y, bias)?,
        _ => {}
    }
    let keepdim = choices.flip();
    match choices.below(5) {
        // Powers magnify what sums in another order leave open, so that scores are small.
        0 => {
            y = b.mul(y, 0.0625)?;
            y = b.softmax(y, -1)?;
        }
        1 => y = b.log_softmax(y, -1)?,
        2 => {
            let (share, total) = shares(&mut b, y)?;
            // Numbers of the rows beside the rows.
            if choices.flip() {
                b.output(total);
            }
            y = b.binary(Binary::Add, share, bias)?;
        }
        3 => {
            let largest = b.amax(y, &[-1], true)?;
            y = b.binary(Binary::Sub, y, largest)?;
        }
        // Of the rows nothing else is wanted.
        _ => {
            let mean = b.mean(y, &[-1], keepdim)?;
            y = b.unary(Unary::Neg, mean)?;
        }
    }
    b.output(y);
    b.finish()
}

/// A random program of a product whose first operand nobody else reads, or somebody does: a norm, a softmax or elementwise work, perhaps seen through a view.
pub fn made(choices: &mut Choices<'_>) -> Result<Graph> {
    let mut b = Builder::new("made");
    let groups = [1, 2, 5][choices.below(3)];
    let m = [520, 515, 530][choices.below(3)];
    let [k, n] = [[64, 65, 70][choices.below(3)], [64, 67][choices.below(2)]];
    let f32 = DType::F32;
    let shape = match groups {
        1 => vec![m.into(), k.into()],
        _ => vec![groups.into(), (m / groups).into(), k.into()],
    };
    let rows = m / groups * groups;
    let x = b.input("x", f32, shape, Device::Cpu)?;
    let scale = b.input("scale", f32, vec![k.into()], Device::Cpu)?;
    let right = Side::of(&mut b, choices, "b", f32, [1, k, n], false)?.matrices(&mut b)?;
    let mut a = match choices.below(5) {
        0 => b.softmax(x, -1)?,
        1 => {
            let (share, _) = shares(&mut b, x)?;
            b.mul(share, scale)?
        }
        2 => {
            let largest = b.amax(x, &[-1], true)?;
            b.binary(Binary::Sub, x, largest)?
        }
        3 => b.unary(Unary::Tanh, x)?,
        _ => b.mul(x, scale)?,
    };
    if choices.below(4) == 1 {
        b.output(a);
    }
    if groups > 1 {
        a = b.view(a, &[rows.into(), k.into()])?;
    }
    let mut y = b.mm(a, right)?;
    match choices.below(4) {
        1 => y = b.unary(Unary::Relu, y)?,
        2 => {
            y = b.mul(y, 0.0078125)?;
            y = b.softmax(y, -1)?;
        }
        _ => {}
    }
    b.output(y);
    b.finish()
}

/// Each element by the sum of its row's magnitudes, and those sums: a norm that no order of summation upsets, whatever is in a row.
fn shares(b: &mut Builder, x: ValueId) -> Result<(ValueId, ValueId)> {
    let magnitudes = b.unary(Unary::Abs, x)?;
    let total = b.reduce(Reduce::Sum, magnitudes, &[-1], true)?;
    let more = b.add(total, 1.0)?;
    Ok((b.binary(Binary::Div, x, more)?, total))
}

/// A random program of a product with a weight of bytes or halves, which is cast for it, and perhaps scaled and turned.
pub fn widened(choices: &mut Choices<'_>) -> Result<Graph> {
    let mut b = Builder::new("widened");
    let to = [DType::F32, DType::BF16, DType::F16][choices.below(3)];
    let bytes = [DType::I8, DType::U8][choices.below(2)];
    let from = match to {
        DType::F32 => [bytes, DType::BF16, DType::F16][choices.below(3)],
        _ => bytes,
    };
    let [m, n] = [0; 2].map(|_| SIZES[choices.below(SIZES.len())]);
    let mut k = DEPTHS[choices.below(DEPTHS.len())];
    while 2 * m * n * k > WORK {
        k = (k + 1) / 2;
    }
    let batch = 1 + choices.below(2) as i64;
    let has_batch = batch > 1;
    let is_pair = choices.below(3) == 1;
    let x = Side::of(&mut b, choices, "x", to, [batch, m, k], has_batch)?;
    let first = Side::of(&mut b, choices, "w", from, [batch, k, n], has_batch)?;
    let second = match is_pair {
        true => Some(first.like(&mut b, "v")?),
        false => None,
    };
    let scale = match choices.below(3) {
        1 if !has_batch => Some(b.input("scale", to, vec![Expr::from(n)], Device::Cpu)?),
        _ => None,
    };
    let bias = match !has_batch && choices.flip() {
        true => Some(b.input("bias", to, vec![Expr::from(n)], Device::Cpu)?),
        false => None,
    };
    let x = x.matrices(&mut b)?;
    let is_late = choices.flip();
    let mut products = Vec::new();
    for side in [Some(&first), second.as_ref()].into_iter().flatten() {
        // The cast stands before the views of the weight, or behind them.
        let mut weight = match is_late {
            true => side.matrices(&mut b)?,
            false => {
                let value = b.cast(side.value, to)?;
                Side { value, ..*side }.matrices(&mut b)?
            }
        };
        if is_late {
            weight = b.cast(weight, to)?;
        }
        if let Some(scale) = scale {
            weight = b.mul(weight, scale)?;
        }
        products.push(match (has_batch, bias) {
            (true, _) => b.bmm(x, weight)?,
            (false, Some(bias)) => b.addmm(bias, x, weight, 1, 1)?,
            (false, None) => b.mm(x, weight)?,
        });
    }
    let y = match products[..] {
        [y, z] => b.binary(Binary::Add, y, z)?,
        _ => products[0],
    };
    b.output(y);
    b.finish()
}

/// A random program of two products of one operand that meet, as those of a gated layer do: of weights that lie alike, or do not.
pub fn pair(choices: &mut Choices<'_>) -> Result<Graph> {
    let mut b = Builder::new("pair");
    let dtypes = [DType::F32, DType::BF16, DType::F64, DType::F16];
    let dtype = dtypes[choices.below(dtypes.len())];
    let [m, n] = [0; 2].map(|_| SIZES[choices.below(SIZES.len())]);
    let mut k = DEPTHS[choices.below(DEPTHS.len())];
    let mut batch = 1 + choices.below(3) as i64;
    if 2 * batch * m * n * k > WORK {
        batch = 1;
    }
    while 2 * m * n * k > WORK {
        k = (k + 1) / 2;
    }
    let has_batch = batch > 1 || choices.below(4) == 1;
    let a = Side::of(&mut b, choices, "a", dtype, [batch, m, k], has_batch)?;
    let first = Side::of(&mut b, choices, "b", dtype, [batch, k, n], has_batch)?;
    let second = match choices.below(4) {
        1 => Side::of(&mut b, choices, "c", dtype, [batch, k, n], has_batch)?,
        _ => first.like(&mut b, "c")?,
    };
    let bias = match !has_batch && choices.flip() {
        true => Some(b.input("bias", dtype, vec![Expr::from(n)], Device::Cpu)?),
        false => None,
    };
    let a = a.matrices(&mut b)?;
    let mut products = Vec::new();
    for (side, bias) in [(&first, bias), (&second, None)] {
        let right = side.matrices(&mut b)?;
        products.push(match (has_batch, bias) {
            (true, _) => b.bmm(a, right)?,
            (false, Some(bias)) => b.addmm(bias, a, right, 1, 1)?,
            (false, None) => b.mm(a, right)?,
        });
    }
    let gate = [Unary::Relu, Unary::Silu, Unary::Sigmoid][choices.below(3)];
    let [mut y, z] = [products[0], products[1]];
    if choices.flip() {
        y = b.unary(gate, y)?;
    }
    let y = match choices.below(3) {
        1 => b.binary(Binary::Add, z, y)?,
        _ => b.binary(Binary::Mul, y, z)?,
    };
    // One of them may be wanted, too.
    if choices.below(4) == 1 {
        b.output(z);
    }
    b.output(y);
    b.finish()
}

/// A random program of a product of which only a call knows how many rows or how great a depth it has, or how many there are of it; perhaps with another of the same first operand that it meets. Operands may be turned.
pub fn symbolic(choices: &mut Choices<'_>) -> Result<Graph> {
    let mut b = Builder::new("symbolic");
    let dtypes = [DType::F32, DType::BF16, DType::F64, DType::F16];
    let dtype = dtypes[choices.below(dtypes.len())];
    // A symbol may be 520.
    let [m, n] = [0; 2].map(|_| SIZES[choices.below(8)].into());
    let known = [Expr::from(2), m, DEPTHS[choices.below(7)].into()];
    // One or two of the batch, the rows and the depth.
    let unknown = [[1, 1], [2, 2], [1, 2], [0, 1], [0, 2]][choices.below(5)];
    let mut sizes = known.clone();
    sizes[unknown[0]] = b.symbol("s0", 0, 4096);
    if unknown[1] != unknown[0] {
        sizes[unknown[1]] = b.symbol("s1", 0, 4096);
    }
    let [batch, m, k] = sizes;
    let has_batch = unknown.contains(&0) || choices.below(3) == 1;
    let mut operand = |name: &str, rows: &Expr, cols: &Expr| -> Result<(ValueId, bool)> {
        let is_turned = choices.flip();
        let mut lies = vec![rows.clone(), cols.clone()];
        if is_turned {
            lies.reverse();
        }
        if has_batch {
            lies.insert(0, batch.clone());
        }
        Ok((b.input(name, dtype, lies, Device::Cpu)?, is_turned))
    };
    let operands = [
        operand("a", &m, &k)?,
        operand("b", &k, &n)?,
        operand("c", &k, &n)?,
    ];
    let mut seen = Vec::new();
    for (value, is_turned) in operands {
        seen.push(match is_turned {
            true => b.transpose(value, -2, -1)?,
            false => value,
        });
    }
    let mut product = |right: ValueId| match has_batch {
        true => b.bmm(seen[0], right),
        false => b.mm(seen[0], right),
    };
    let mut y = product(seen[1])?;
    if choices.flip() {
        let z = product(seen[2])?;
        y = b.binary(Binary::Add, y, z)?;
    } else if choices.flip() {
        y = b.unary(Unary::Relu, y)?;
    }
    b.output(y);
    b.finish()
}

/// An operand, and how it is seen.
struct Side {
    value: ValueId,
    shape: [i64; 3],
    has_batch: bool,
    is_turned: bool,
    /// Rows and columns before it, within a larger tensor; every other column.
    cut: Option<[i64; 2]>,
    is_sparse: bool,
    /// One matrix for every batch.
    is_repeated: bool,
}

impl Side {
    fn of(
        b: &mut Builder,
        choices: &mut Choices<'_>,
        name: &str,
        dtype: DType,
        shape: [i64; 3],
        has_batch: bool,
    ) -> Result<Self> {
        let is_turned = choices.flip();
        let cut = choices
            .flip()
            .then(|| [0; 2].map(|_| choices.below(5) as i64));
        let is_sparse = cut.is_some() && choices.below(4) == 1;
        let is_repeated = has_batch && choices.below(4) == 1;
        let [batch, rows, cols] = shape;
        let mut lies = if is_turned {
            [cols, rows]
        } else {
            [rows, cols]
        };
        if is_sparse {
            lies[1] *= 2;
        }
        for (size, before) in lies.iter_mut().zip(cut.unwrap_or_default()) {
            *size += 2 * before;
        }
        let mut sizes = lies.to_vec();
        if has_batch {
            sizes.insert(0, if is_repeated { 1 } else { batch });
        }
        let sizes = sizes.into_iter().map(Expr::from).collect();
        Ok(Self {
            value: b.input(name, dtype, sizes, Device::Cpu)?,
            shape,
            has_batch,
            is_turned,
            cut,
            is_sparse,
            is_repeated,
        })
    }

    /// Another one that lies in the same way.
    fn like(&self, b: &mut Builder, name: &str) -> Result<Self> {
        let ty = b.ty(self.value).clone();
        let value = b.input(name, ty.dtype, ty.shape, Device::Cpu)?;
        Ok(Self { value, ..*self })
    }

    fn matrices(&self, b: &mut Builder) -> Result<ValueId> {
        let mut value = self.value;
        let [batch, rows, cols] = self.shape;
        let sizes = if self.is_turned {
            [cols, rows]
        } else {
            [rows, cols]
        };
        if let Some(cut) = self.cut {
            value = b.slice(value, -2, cut[0], cut[0] + sizes[0], 1)?;
            let step = if self.is_sparse { 2 } else { 1 };
            value = b.slice(value, -1, cut[1], cut[1] + step * sizes[1], step)?;
        }
        if self.is_turned {
            value = b.transpose(value, -2, -1)?;
        }
        if self.is_repeated {
            value = b.expand(value, &[batch, rows, cols].map(Expr::from))?;
        }
        debug_assert_eq!(b.ty(value).rank(), 2 + usize::from(self.has_batch));
        Ok(value)
    }
}
