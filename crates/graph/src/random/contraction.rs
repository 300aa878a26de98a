//! Products, convolutions and attention, with what usually stands around them.
//!
//! Shapes that come about by chance seldom fit a product, and never an attention. A graph may therefore have inputs that are made for one contraction; what else is computed of them, and
//! happens to keep their types, may take their places.

use super::{Choices, Limits};
use crate::builder::Builder;
use crate::conv_panels::ConvPanels;
use crate::convolution::Convolution;
use crate::ir::{Device, ValueId};
use crate::op::{Accepts, Unary};
use crate::rules::accepts;
use oxyfuel_base::{DType, Expr, Result};

/// Inputs that fit together.
pub(super) enum Contraction {
    Product(Product),
    Window(Window),
    Attention(Attention),
}

/// `a @ b`, each of them perhaps given turned.
pub(super) struct Product {
    a: ValueId,
    b: ValueId,
    is_turned: [bool; 2],
    /// Of as many elements as the result has columns.
    bias: ValueId,
    /// Another right side, in panels, and how many columns it has.
    panels: Option<(ValueId, usize)>,
    /// Another right side of the same type: the product with it meets the first one.
    pair: Option<ValueId>,
    /// Another right side, of bytes that are cast.
    bytes: Option<ValueId>,
    /// Both are bytes, perhaps of two kinds, and the sums wide.
    is_wide: bool,
}

/// A convolution.
pub(super) struct Window {
    x: ValueId,
    weight: ValueId,
    bias: ValueId,
    how: Convolution,
    is_transposed: bool,
    /// Another weight, in panels.
    panels: Option<Panels>,
}

struct Panels {
    /// The panels themselves; or for `winograd`, whose points follow from a weight, and where the kernel cuts it, that weight.
    value: ValueId,
    is_whole: bool,
    width: i64,
    numbers: ConvPanels,
}

pub(super) struct Attention {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    mask: Option<ValueId>,
    is_causal: bool,
    scale: Option<f64>,
}

/// What work on a result is mostly made of.
const ACTIVATIONS: [Unary; 6] = [
    Unary::Relu,
    Unary::Gelu,
    Unary::Silu,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::GeluTanh,
];

/// Inputs for a contraction, if there shall be one; they join the pool.
pub(super) fn inputs(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    symbols: &[Expr],
    limits: &Limits,
    pool: &mut Vec<ValueId>,
) -> Result<Option<Contraction>> {
    if !limits.contractions {
        return Ok(None);
    }
    let kind = choices.below(7);
    let numbers = of(limits, Accepts::Number);
    let floats = of(limits, Accepts::Float);
    if kind < 4 || numbers.is_empty() || (kind > 4 && floats.is_empty()) {
        return Ok(None);
    }
    let first = b.graph().inputs.len();
    let made = match kind {
        4 => Contraction::Product(product(b, choices, symbols, limits, &numbers)?),
        5 => Contraction::Window(window(b, choices, symbols, limits, &floats)?),
        _ => Contraction::Attention(attention(b, choices, symbols, limits, &floats)?),
    };
    pool.extend(&b.graph().inputs[first..]);
    Ok(Some(made))
}

fn of(limits: &Limits, which: Accepts) -> Vec<DType> {
    let all = limits.dtypes.iter().copied();
    all.filter(|dtype| accepts(which, *dtype)).collect()
}

fn input(
    b: &mut Builder,
    name: &str,
    dtype: DType,
    shape: impl IntoIterator<Item = Expr>,
) -> Result<ValueId> {
    b.input(name, dtype, shape.into_iter().collect(), Device::Cpu)
}

/// A size from 1 on, or one in six times a symbol, if there are any.
fn size(choices: &mut Choices<'_>, most: usize, symbols: &[Expr]) -> Expr {
    let number = 1 + choices.below(most) as i64;
    match choices.below(6) {
        5 if !symbols.is_empty() => symbols[choices.below(symbols.len())].clone(),
        _ => Expr::from(number),
    }
}

fn product(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    symbols: &[Expr],
    limits: &Limits,
    dtypes: &[DType],
) -> Result<Product> {
    let dtype = choices.pick(dtypes);
    // As many that a product is packed into panels first.
    let is_packed = limits.large && symbols.is_empty() && choices.below(3) == 2;
    let most = if limits.large { 40 } else { 9 };
    let [m, n, k] = [0; 3].map(|_| match is_packed {
        true => Expr::from(64 + choices.below(12) as i64),
        false => size(choices, most, symbols),
    });
    let batches = if is_packed { 0 } else { choices.below(3) };
    let batch = (batches > 0).then(|| size(choices, 3, symbols));
    // Every batch has a right side of its own where sums of bytes are wide.
    let bytes = of(limits, Accepts::Byte);
    let is_wide = bytes.contains(&dtype) && batches < 2 && choices.below(4) > 0;
    let other = if is_wide { choices.pick(&bytes) } else { dtype };
    let is_turned = [choices.flip(), choices.flip()];
    let shape = |rows: &Expr, cols: &Expr, is_turned: bool| {
        let mut shape: Vec<Expr> = batch.iter().cloned().collect();
        shape.extend(match is_turned {
            true => [cols.clone(), rows.clone()],
            false => [rows.clone(), cols.clone()],
        });
        shape
    };
    let right = shape(&k, &n, is_turned[1]);
    // Every batch may have the same right side.
    let right = if batches == 2 {
        right[1..].to_vec()
    } else {
        right
    };
    let (left, depth) = (shape(&m, &k, is_turned[0]), k.as_const());
    let panels = match (n.as_const(), depth) {
        (Some(n), Some(k)) if batches == 0 && accepts(Accepts::Float, dtype) && choices.flip() => {
            let width = choices.pick(&[8, 16, 32, 3]);
            let shape = [(n + width - 1) / width, k, width].map(Expr::from);
            let panels = input(b, "panels", dtype, shape)?;
            Some((panels, usize::try_from(n).unwrap_or(0)))
        }
        _ => None,
    };
    let pair = match !is_wide && choices.below(3) == 1 {
        true => Some(input(b, "c", other, right.clone())?),
        false => None,
    };
    let cast = bytes.iter().filter(|_| accepts(Accepts::Float, dtype));
    let bytes = match cast.copied().next() {
        Some(byte) if choices.below(3) == 1 => Some(input(b, "bytes", byte, right.clone())?),
        _ => None,
    };
    Ok(Product {
        bytes,
        a: input(b, "a", dtype, left)?,
        b: input(b, "b", other, right)?,
        pair,
        is_turned,
        bias: input(b, "bias", dtype, [n])?,
        panels,
        is_wide,
    })
}

fn window(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    symbols: &[Expr],
    limits: &Limits,
    dtypes: &[DType],
) -> Result<Window> {
    let dtype = choices.pick(dtypes);
    let dims = 1 + choices.below(3);
    let most = match (limits.large, dims) {
        (true, 1) => 60,
        (true, 2) => 12,
        (false, 1) => 12,
        _ => 5,
    };
    let groups = 1 + choices.below(3) as i64;
    // As many channels that a kernel has several blocks of them.
    let channels = if limits.large { 20 } else { 2 };
    let [c, o] = [0; 2].map(|_| groups * (1 + choices.below(channels) as i64));
    let (groups, o) = match choices.below(6) {
        5 => (c, c),
        _ => (groups, o),
    };
    let is_transposed = choices.below(5) == 4;
    let mut how = Convolution {
        stride: vec![],
        padding: vec![],
        dilation: vec![],
        groups,
    };
    let is_packed = dims == 2 && !is_transposed && choices.flip();
    let winograd = is_packed && groups == 1 && choices.flip();
    let mut x = vec![size(choices, 2, symbols), Expr::from(c)];
    let mut weight = match is_transposed {
        true => vec![Expr::from(c), Expr::from(o / groups)],
        false => vec![Expr::from(o), Expr::from(c / groups)],
    };
    for _ in 0..dims {
        let (kernel, dilation, stride) = match winograd {
            true => (3, 1, 1),
            false => (
                1 + choices.below(3) as i64,
                1 + choices.below(2) as i64,
                1 + choices.below(3) as i64,
            ),
        };
        let reach = dilation * (kernel - 1) + 1;
        let padding = choices.below(usize::try_from(reach).unwrap_or(1)) as i64;
        // Long enough for one position at least; not so long that there is none left.
        x.push(Expr::from(reach + choices.below(most) as i64));
        weight.push(Expr::from(kernel));
        how.stride.push(stride);
        how.padding.push(padding);
        how.dilation.push(dilation);
    }
    let packed = match is_packed {
        true => Some(panels(b, choices, dtype, &weight, &how, winograd)?),
        false => None,
    };
    Ok(Window {
        x: input(b, "image", dtype, x)?,
        weight: input(b, "weight", dtype, weight)?,
        bias: input(b, "bias", dtype, [Expr::from(o)])?,
        how,
        is_transposed,
        panels: packed,
    })
}

fn panels(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    dtype: DType,
    weight: &[Expr],
    how: &Convolution,
    winograd: bool,
) -> Result<Panels> {
    let number = |d: usize| weight[d].as_const().unwrap_or(1);
    let (n, c, kernel) = (number(0), number(1), vec![number(2), number(3)]);
    let width = choices.pick(&[8, 16, 32, 3]);
    let is_whole = choices.flip() || how.groups > 1;
    let shape = match winograd || is_whole {
        true => weight.to_vec(),
        false => [(n + width - 1) / width, kernel[0] * kernel[1] * c, width]
            .map(Expr::from)
            .to_vec(),
    };
    Ok(Panels {
        value: input(b, "panels", dtype, shape)?,
        is_whole,
        width,
        numbers: ConvPanels {
            how: how.clone(),
            kernel,
            n,
            winograd,
        },
    })
}

fn attention(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    symbols: &[Expr],
    limits: &Limits,
    dtypes: &[DType],
) -> Result<Attention> {
    let dtype = choices.pick(dtypes);
    let batch = size(choices, 2, &[]);
    let groups = 1 + choices.below(2) as i64;
    let heads = groups * (1 + choices.below(3) as i64);
    let (rows, keys) = match limits.large {
        // Keys pass in chunks, and for few queries in parts.
        true if choices.below(4) == 3 => {
            let keys = choices.pick(&[257, 530]);
            (size(choices, 12, &[]), Expr::from(keys))
        }
        true => (size(choices, 40, symbols), size(choices, 70, &[])),
        false => (size(choices, 9, symbols), size(choices, 12, symbols)),
    };
    let [depth, width] = [0; 2].map(|_| Expr::from(1 + choices.below(9) as i64));
    let shape = |heads: i64, length: &Expr, width: &Expr| {
        [
            batch.clone(),
            Expr::from(heads),
            length.clone(),
            width.clone(),
        ]
    };
    let q = input(b, "q", dtype, shape(heads, &rows, &depth))?;
    let k = input(b, "k", dtype, shape(groups, &keys, &depth))?;
    let v = input(b, "v", dtype, shape(groups, &keys, &width))?;
    let kind = choices.below(4);
    let mask = match kind {
        2 | 3 => {
            let mut sizes = shape(heads, &rows, &keys);
            for size in &mut sizes[..3] {
                if choices.flip() {
                    *size = Expr::ONE;
                }
            }
            let dtype = if kind == 2 { DType::Bool } else { dtype };
            Some(input(b, "mask", dtype, sizes)?)
        }
        _ => None,
    };
    Ok(Attention {
        q,
        k,
        v,
        mask,
        is_causal: kind == 1,
        scale: choices.pick(&[None, Some(0.5), Some(1.0)]),
    })
}

impl Contraction {
    /// The contraction itself, of its own inputs or of others like them.
    pub(super) fn emit(
        &self,
        b: &mut Builder,
        choices: &mut Choices<'_>,
        pool: &[ValueId],
    ) -> Result<ValueId> {
        match self {
            Self::Product(product) => product.emit(b, choices, pool),
            Self::Window(window) => window.emit(b, choices, pool),
            Self::Attention(attention) => attention.emit(b, choices, pool),
        }
    }

    /// One step of the work on a result.
    pub(super) fn finish(
        &self,
        b: &mut Builder,
        choices: &mut Choices<'_>,
        pool: &[ValueId],
        limits: &Limits,
    ) -> Result<ValueId> {
        let y = pool[pool.len() - 1];
        match choices.below(6) {
            0 => {
                let f = match accepts(Accepts::Float, b.ty(y).dtype) {
                    true => choices.pick(&ACTIVATIONS),
                    false => Unary::Relu,
                };
                b.unary(f, y)
            }
            1 => {
                let bias = match self {
                    Self::Product(product) => product.bias,
                    Self::Window(window) => {
                        let mut shape = b.ty(window.bias).shape.clone();
                        shape.resize(b.ty(y).rank().saturating_sub(1).max(1), Expr::ONE);
                        b.view(window.bias, &shape)?
                    }
                    Self::Attention(attention) => attention.q,
                };
                b.add(y, bias)
            }
            2 => {
                let other = alike(b, choices, pool, y);
                b.add(y, other)
            }
            3 => b.mul(y, 0.5),
            4 => {
                let dtype = choices.pick(&limits.dtypes);
                b.cast(y, dtype)
            }
            _ => {
                let other = alike(b, choices, pool, y);
                b.mul(y, other)
            }
        }
    }
}

/// A value of the same type, perhaps the very one.
pub(super) fn alike(
    b: &Builder,
    choices: &mut Choices<'_>,
    pool: &[ValueId],
    value: ValueId,
) -> ValueId {
    if !choices.flip() {
        return value;
    }
    let all: Vec<ValueId> = pool
        .iter()
        .copied()
        .filter(|&v| b.ty(v) == b.ty(value))
        .collect();
    if all.is_empty() {
        value
    } else {
        choices.pick(&all)
    }
}

impl Product {
    fn emit(
        &self,
        b: &mut Builder,
        choices: &mut Choices<'_>,
        pool: &[ValueId],
    ) -> Result<ValueId> {
        let mut sides = [self.a, self.b].map(|side| alike(b, choices, pool, side));
        if let Some(bytes) = self.bytes
            && choices.flip()
        {
            let dtype = b.ty(self.b).dtype;
            sides[1] = b.cast(bytes, dtype)?;
        }
        for (side, is_turned) in sides.iter_mut().zip(self.is_turned) {
            if is_turned {
                *side = b.transpose(*side, -2, -1)?;
            }
        }
        let [left, right] = sides;
        if self.is_wide {
            return b.int_mm(left, right);
        }
        if let Some((panels, n)) = self.panels
            && choices.flip()
        {
            let bias = choices.flip().then_some(self.bias);
            return b.mm_panels(left, panels, n, bias);
        }
        if b.ty(left).rank() == 2 && b.ty(right).rank() == 2 && choices.flip() {
            let (beta, alpha) = (choices.pick(&[1, 0, 2]), choices.pick(&[1, 2, -1]));
            return b.addmm(self.bias, left, right, beta, alpha);
        }
        let y = b.matmul(left, right)?;
        let Some(pair) = self.pair else {
            return Ok(y);
        };
        let pair = match self.is_turned[1] {
            true => b.transpose(pair, -2, -1)?,
            false => pair,
        };
        let gate = b.matmul(left, pair)?;
        let gate = match accepts(Accepts::Float, b.ty(gate).dtype) {
            true => b.unary(choices.pick(&ACTIVATIONS), gate)?,
            false => gate,
        };
        b.mul(y, gate)
    }
}

impl Window {
    fn emit(
        &self,
        b: &mut Builder,
        choices: &mut Choices<'_>,
        pool: &[ValueId],
    ) -> Result<ValueId> {
        let x = alike(b, choices, pool, self.x);
        let weight = alike(b, choices, pool, self.weight);
        if let Some(packed) = &self.panels
            && choices.flip()
        {
            let panels = match packed.numbers.winograd && !packed.is_whole {
                true => b.conv_weight_panels(packed.value, packed.width, true)?,
                false => packed.value,
            };
            let images = b.permute(x, &[0, 2, 3, 1])?;
            let y = b.conv_panels(images, panels, &packed.numbers)?;
            return b.permute(y, &[0, 3, 1, 2]);
        }
        let bias = choices.flip().then_some(self.bias);
        if self.is_transposed {
            let more = choices.below(2) as i64;
            return b.conv_transpose(x, weight, bias, &self.how, &[more]);
        }
        let y = b.convolution(x, weight, bias, &self.how)?;
        if choices.below(5) < 4 {
            return Ok(y);
        }
        let gradients = b.convolution_backward(y, x, weight, &self.how)?;
        Ok(choices.pick(&[gradients.weight, gradients.input, gradients.bias]))
    }
}

impl Attention {
    fn emit(
        &self,
        b: &mut Builder,
        choices: &mut Choices<'_>,
        pool: &[ValueId],
    ) -> Result<ValueId> {
        let operands = [self.q, self.k, self.v].map(|value| alike(b, choices, pool, value));
        let is_known = |v: &ValueId| b.ty(*v).shape.iter().all(|n| n.as_const().is_some());
        if let Some(scale) = self.scale
            && operands.iter().all(is_known)
        {
            let both = b.sdpa(operands, self.mask, self.is_causal, scale)?;
            if choices.flip() {
                return Ok(choices.pick(&both));
            }
            let [y, _] = both;
            let grad = alike(b, choices, pool, y);
            let gradients =
                b.sdpa_backward(grad, operands, both, self.mask, self.is_causal, scale)?;
            return Ok(choices.pick(&gradients));
        }
        b.scaled_dot_product_attention(operands, self.mask, self.is_causal, self.scale)
    }
}
