//! Random attention: the op, its gradients, one query against many keys, and written out as products around a softmax. Widths on both sides of every vector and of the depth of a matrix unit, odd lengths, every kind of
//! mask, heads that share keys and values, and operands that lie in any order within larger tensors.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::builder::Builder;
use oxyfuel_graph::random::Choices;
use oxyfuel_graph::{Device, Graph, Op, ValueId};

/// The most multiply-adds of a program: the interpreters do them one by one.
const WORK: i64 = 150_000;
const WIDTHS: [i64; 13] = [1, 3, 8, 16, 17, 24, 32, 33, 40, 64, 65, 100, 130];
const LENGTHS: [i64; 10] = [1, 2, 5, 9, 16, 17, 31, 33, 48, 65];
/// Beyond what one part of a decoding looks at, too.
const KEYS: [i64; 6] = [1, 33, 100, 257, 384, 530];
const DTYPES: [DType; 4] = [DType::F32, DType::BF16, DType::F32, DType::BF16];

/// Where to look.
enum Mask {
    None,
    Causal,
    Given(ValueId),
}

/// Sizes that fit together.
struct Sizes {
    batch: i64,
    groups: i64,
    heads: i64,
    rows: i64,
    keys: i64,
    width: i64,
    values: i64,
}

impl Sizes {
    fn of(choices: &mut Choices<'_>, decodes: bool) -> Self {
        let mut pick = |all: &[i64]| all[choices.below(all.len())];
        let (rows, keys) = match decodes {
            true => (pick(&[1, 1, 2, 4]), pick(&KEYS)),
            false => (pick(&LENGTHS), pick(&LENGTHS)),
        };
        let width = pick(&WIDTHS);
        let values = match pick(&[0, 1]) {
            0 => width,
            _ => pick(&WIDTHS),
        };
        let mut sizes = Self {
            batch: pick(&[1, 1, 2, 3]),
            groups: pick(&[1, 2]),
            heads: pick(&[1, 1, 2, 3, 4]),
            rows,
            keys,
            width,
            values,
        };
        sizes.heads *= sizes.groups;
        // Fewer, one thing after the other, until it is little enough; widths and odd lengths stay.
        for smaller in [
            (|s: &mut Self| s.batch = 1) as fn(&mut Self),
            |s| s.heads = s.groups,
            |s| (s.groups, s.heads) = (1, 1),
            |s| s.rows = s.rows.min(17),
            |s| s.keys = s.keys.min(257),
        ] {
            if sizes.work() > WORK {
                smaller(&mut sizes);
            }
        }
        sizes
    }

    fn work(&self) -> i64 {
        self.batch * self.heads * self.rows * self.keys * (self.width + self.values)
    }

    /// Scores of a few units, whatever the width is: where they are large, one weight is all and gradients are what rounding leaves.
    fn scale(&self, choices: &mut Choices<'_>) -> f64 {
        [0.1, 0.25, 0.4][choices.below(3)] / self.width as f64
    }

    fn causal_fits(&self) -> bool {
        self.rows > 1
    }
}

/// A random program of attention as the op, perhaps with its gradients.
pub fn program(choices: &mut Choices<'_>) -> Result<Graph> {
    let mut b = Builder::new("attention");
    let dtype = DTYPES[choices.below(DTYPES.len())];
    let decodes = choices.below(4) == 3;
    let has_gradients = !decodes && choices.flip();
    let sizes = Sizes::of(choices, decodes);
    let mut operands = Vec::new();
    let (q, k, v, g) = (
        [sizes.batch, sizes.heads, sizes.rows, sizes.width],
        [sizes.batch, sizes.groups, sizes.keys, sizes.width],
        [sizes.batch, sizes.groups, sizes.keys, sizes.values],
        [sizes.batch, sizes.heads, sizes.rows, sizes.values],
    );
    let mut sides = Vec::new();
    for (name, shape) in [("q", q), ("k", k), ("v", v), ("g", g)] {
        if name != "g" || has_gradients {
            sides.push(Side::of(&mut b, choices, name, dtype, shape)?);
        }
    }
    let mask = mask(&mut b, choices, &sizes, dtype)?;
    for side in &sides {
        operands.push(side.seen(&mut b)?);
    }
    let (causal, mask) = match mask {
        Mask::None => (false, None),
        Mask::Causal => (true, None),
        Mask::Given(mask) => (false, Some(mask)),
    };
    let scale = sizes.scale(choices);
    let operands_of = [operands[0], operands[1], operands[2]];
    let [out, lse] = b.sdpa(operands_of, mask, causal, scale)?;
    b.output(out);
    match operands.get(3) {
        Some(&grad) => {
            let made = b.sdpa_backward(grad, operands_of, [out, lse], mask, causal, scale)?;
            made.into_iter().for_each(|value| b.output(value));
        }
        None if choices.flip() => b.output(lse),
        None => {}
    }
    b.finish()
}

/// A random program of attention written out, as the rules find it and (scaled masks) do not find it.
pub fn written(choices: &mut Choices<'_>) -> Result<Graph> {
    let mut b = Builder::new("written");
    let dtype = DTYPES[choices.below(DTYPES.len())];
    let decodes = choices.below(6) == 5;
    let mut sizes = Sizes::of(choices, decodes);
    let repeats = choices.below(3) == 1;
    if !repeats {
        sizes.heads = sizes.groups;
    }
    let q = [sizes.batch, sizes.heads, sizes.rows, sizes.width];
    let k = [sizes.batch, sizes.groups, sizes.keys, sizes.width];
    let v = [sizes.batch, sizes.groups, sizes.keys, sizes.values];
    let q = Side::of(&mut b, choices, "q", dtype, q)?;
    let k = Side::of(&mut b, choices, "k", dtype, k)?;
    let v = Side::of(&mut b, choices, "v", dtype, v)?;
    let mask = mask(&mut b, choices, &sizes, dtype)?;
    let (mut q, k, v) = (q.seen(&mut b)?, k.seen(&mut b)?, v.seen(&mut b)?);
    let k = repeated(&mut b, k, sizes.heads)?;
    let v = repeated(&mut b, v, sizes.heads)?;
    let (before, scale) = (choices.flip(), sizes.scale(choices));
    if before {
        q = b.mul(q, scale)?;
    }
    let turned = b.transpose(k, -2, -1)?;
    let mut scores = b.matmul(q, turned)?;
    if !before {
        scores = match choices.flip() {
            true => b.mul(scores, scale)?,
            false => b.div(scores, 1.0 / scale)?,
        };
    }
    match mask {
        Mask::None => {}
        Mask::Causal => {
            let count = |b: &mut Builder, n: i64| {
                let shape = vec![Expr::from(n)];
                let (start, step) = (0i64.into(), 1i64.into());
                let (dtype, device) = (DType::I64, Device::Cpu);
                let op = Op::Arange {
                    start,
                    step,
                    shape,
                    dtype,
                    device,
                };
                b.emit(op, &[])
            };
            let (rows, columns) = (count(&mut b, sizes.rows)?, count(&mut b, sizes.keys)?);
            let rows = b.unsqueeze(rows, 1)?;
            let look = b.ge(rows, columns)?;
            scores = b.where_(look, scores, f64::NEG_INFINITY)?;
        }
        Mask::Given(mask) if b.ty(mask).dtype.is_bool() => {
            let fill = [f64::NEG_INFINITY, -1e30][choices.below(2)];
            scores = b.where_(mask, scores, fill)?;
        }
        Mask::Given(mask) => scores = b.add(scores, mask)?,
    }
    let wide = dtype == DType::BF16 && choices.flip();
    if wide {
        scores = b.cast(scores, DType::F32)?;
    }
    let mut weights = b.softmax(scores, -1)?;
    if wide {
        weights = b.cast(weights, dtype)?;
    }
    let mut y = b.matmul(weights, v)?;
    if choices.flip() {
        y = b.permute(y, &[0, 2, 1, 3])?;
        let width = Expr::from(sizes.heads * sizes.values);
        y = b.view(y, &[sizes.batch.into(), sizes.rows.into(), width])?;
    }
    b.output(y);
    b.finish()
}

/// A random program of attention of which only a call knows how many queries and keys it has, or how many batches. Operands lie in any order.
pub fn symbolic(choices: &mut Choices<'_>) -> Result<Graph> {
    let mut b = Builder::new("any_length");
    let dtype = DTYPES[choices.below(DTYPES.len())];
    let [s, t] = [b.symbol("s0", 0, 4096), b.symbol("s1", 0, 4096)];
    // The first symbol may be 520: queries or keys, and no batch, each of which fills whole blocks.
    let [batch, rows, keys] = match choices.below(3) {
        0 => [Expr::from(2), s, t],
        1 => [Expr::from(2), t, s],
        _ => [t, Expr::from(17), s],
    };
    let [groups, heads] = [[1, 1], [1, 2], [2, 2]][choices.below(3)];
    let [width, values] = [0; 2].map(|_| WIDTHS[choices.below(6)]);
    let scale = 0.3 / width as f64;
    let shape = |heads: i64, length: &Expr, width: i64| {
        [batch.clone(), heads.into(), length.clone(), width.into()]
    };
    let sides = [
        ("q", shape(heads, &rows, width)),
        ("k", shape(groups, &keys, width)),
        ("v", shape(groups, &keys, values)),
    ];
    let orders = [[0usize, 1, 2, 3], [0, 2, 1, 3], [0, 1, 3, 2], [2, 0, 1, 3]];
    let mut given = Vec::new();
    for (name, shape) in sides {
        let order = orders[choices.below(4)];
        let lies = order.map(|dim| shape[dim].clone());
        given.push((b.input(name, dtype, lies.to_vec(), Device::Cpu)?, order));
    }
    let mask = match choices.below(4) {
        1 => Some(DType::Bool),
        2 => Some(dtype),
        _ => None,
    };
    let mask = match mask {
        Some(dtype) => {
            let shape = [batch, heads.into(), rows, keys];
            let shape = shape.map(|size| if choices.flip() { Expr::ONE } else { size });
            Some(b.input("mask", dtype, shape.to_vec(), Device::Cpu)?)
        }
        None => None,
    };
    let causal = mask.is_none() && choices.flip();
    let mut seen = Vec::new();
    for (value, order) in given {
        let mut back = [0i64; 4];
        for (at, dim) in order.into_iter().enumerate() {
            back[dim] = at as i64;
        }
        seen.push(b.permute(value, &back)?);
    }
    let operands = [seen[0], seen[1], seen[2]];
    let [out, lse] = b.sdpa(operands, mask, causal, scale)?;
    b.output(out);
    b.output(lse);
    b.finish()
}

/// Heads that stand so many times one after the other.
fn repeated(b: &mut Builder, x: ValueId, heads: i64) -> Result<ValueId> {
    let shape = b.ty(x).shape.clone();
    let groups = shape[1].as_const().unwrap_or(1);
    if groups == heads {
        return Ok(x);
    }
    let [batch, _, length, width] = [0, 1, 2, 3].map(|d| shape[d].clone());
    let x = b.unsqueeze(x, 2)?;
    let times = Expr::from(heads / groups);
    let all = [
        batch.clone(),
        groups.into(),
        times,
        length.clone(),
        width.clone(),
    ];
    let x = b.expand(x, &all)?;
    b.view(x, &[batch, heads.into(), length, width])
}

/// A mask of bools or of numbers, with ones in place of some of its sizes; one that is an input comes before the first operation.
fn mask(b: &mut Builder, choices: &mut Choices<'_>, sizes: &Sizes, dtype: DType) -> Result<Mask> {
    let dtype = match choices.below(5) {
        1 if sizes.causal_fits() => return Ok(Mask::Causal),
        2 | 3 => DType::Bool,
        4 => dtype,
        _ => return Ok(Mask::None),
    };
    let mut shape = [sizes.batch, sizes.heads, sizes.rows, sizes.keys].map(Expr::from);
    for size in &mut shape {
        if choices.below(3) == 1 {
            *size = Expr::ONE;
        }
    }
    let mask = b.input("mask", dtype, shape.to_vec(), Device::Cpu)?;
    Ok(Mask::Given(mask))
}

/// An operand `[batch, heads, length, width]`, and how it lies.
struct Side {
    value: ValueId,
    shape: [i64; 4],
    /// The dims of the operand in the order in which they lie.
    order: [usize; 4],
    /// So many columns before and behind, and rows, within a larger tensor.
    cut: Option<[i64; 2]>,
    /// One for every batch.
    is_shared: bool,
}

impl Side {
    fn of(
        b: &mut Builder,
        choices: &mut Choices<'_>,
        name: &str,
        dtype: DType,
        shape: [i64; 4],
    ) -> Result<Self> {
        // As they are; heads side by side; columns that lie apart; a cache by positions.
        let orders = [[0, 1, 2, 3], [0, 2, 1, 3], [0, 1, 3, 2], [2, 0, 1, 3]];
        let order = orders[choices.below(4)];
        let cut = match choices.below(3) {
            1 => Some([0; 2].map(|_| choices.below(4) as i64)),
            _ => None,
        };
        let is_shared = choices.below(6) == 1;
        let lies = order.map(|dim| match (dim, cut) {
            (0, _) if is_shared => 1,
            (2, Some([_, rows])) => shape[2] + 2 * rows,
            (3, Some([columns, _])) => shape[3] + 2 * columns,
            _ => shape[dim],
        });
        Ok(Self {
            value: b.input(name, dtype, lies.map(Expr::from).to_vec(), Device::Cpu)?,
            shape,
            order,
            cut,
            is_shared,
        })
    }

    fn seen(&self, b: &mut Builder) -> Result<ValueId> {
        let mut back = [0i64; 4];
        for (at, &dim) in self.order.iter().enumerate() {
            back[dim] = at as i64;
        }
        let mut value = b.permute(self.value, &back)?;
        if let Some([columns, rows]) = self.cut {
            value = b.slice(value, 2, rows, rows + self.shape[2], 1)?;
            value = b.slice(value, 3, columns, columns + self.shape[3], 1)?;
        }
        if self.is_shared {
            value = b.expand(value, &self.shape.map(Expr::from))?;
        }
        Ok(value)
    }
}
