//! Sums of products: Einstein's notation and attention, as compositions of batched matrix products.

use crate::builder::Builder;
use crate::ir::{TensorType, ValueId};
use crate::op::Op;
use crate::rules::shape_text;
use oxyfuel_base::{DType, Expr, Result, Scalar, ensure, err};

/// A tensor whose dims have names.
#[derive(Clone, Debug)]
struct Named {
    value: ValueId,
    letters: Vec<char>,
}

impl Builder {
    /// `einsum("ij,jk->ik", [a, b])`: the product of the operands at equal letters, summed over those that the result does not name. Without an arrow the result names
    /// the letters that occur once, in the order of the alphabet.
    #[track_caller]
    pub fn einsum(&mut self, equation: &str, tensors: &[ValueId]) -> Result<ValueId> {
        let (operands, result) = self.read_equation(equation, tensors)?;
        let mut rest = operands.into_iter();
        let Some(mut product) = rest.next() else {
            return Err(err!(ArityMismatch, "einsum of no tensors"));
        };
        while let Some(next) = rest.next() {
            let later: Vec<char> = rest
                .clone()
                .flat_map(|o| o.letters)
                .chain(result.iter().copied())
                .collect();
            product = self.joined(product, next, &later)?;
        }
        product = self.summed(product, &result)?;
        let order = positions(&product.letters, &result);
        self.permute(product.value, &order)
    }

    /// The operands with their letters and the letters of the result; every letter has one size.
    fn read_equation(
        &self,
        equation: &str,
        tensors: &[ValueId],
    ) -> Result<(Vec<Named>, Vec<char>)> {
        let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        ensure!(
            !text.contains('.'),
            UnsupportedOp,
            "einsum `{equation}`: write the dims of the ellipsis out"
        );
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (text.as_str(), None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        ensure!(
            terms.len() == tensors.len(),
            ArityMismatch,
            "einsum `{equation}` names {} operands, {} are given",
            terms.len(),
            tensors.len()
        );
        let letter = |c: char| {
            ensure!(
                c.is_ascii_alphabetic(),
                Syntax,
                "einsum `{equation}`: `{c}` is no letter"
            );
            Ok(c)
        };
        let mut operands = vec![];
        let mut sizes: Vec<(char, Expr)> = vec![];
        for (term, &value) in terms.iter().zip(tensors) {
            let letters = term.chars().map(letter).collect::<Result<Vec<_>>>()?;
            let shape = &self.ty(value).shape;
            ensure!(
                letters.len() == shape.len(),
                RankMismatch,
                "einsum `{equation}`: `{term}` names {} dims of a tensor with {}",
                letters.len(),
                shape.len()
            );
            for (i, (c, size)) in letters.iter().zip(shape).enumerate() {
                ensure!(
                    !letters[..i].contains(c),
                    UnsupportedOp,
                    "einsum `{equation}`: `{c}` occurs twice in `{term}`; take the diagonal first"
                );
                match sizes.iter().find(|(known, _)| known == c) {
                    None => sizes.push((*c, size.clone())),
                    Some((_, known)) => ensure!(
                        known == size,
                        ShapeMismatch,
                        "einsum `{equation}`: `{c}` is {known} and {size}"
                    ),
                }
            }
            operands.push(Named { value, letters });
        }
        let result = match right {
            Some(right) => right.chars().map(letter).collect::<Result<Vec<_>>>()?,
            None => {
                let count = |c: char| operands.iter().filter(|o| o.letters.contains(&c)).count();
                let mut once: Vec<char> = sizes.iter().map(|s| s.0).collect();
                once.retain(|&c| count(c) == 1);
                once.sort_unstable();
                once
            }
        };
        for (i, c) in result.iter().enumerate() {
            ensure!(
                sizes.iter().any(|(known, _)| known == c) && !result[..i].contains(c),
                InvalidArgument,
                "einsum `{equation}`: the result names `{c}` twice, or no operand does"
            );
        }
        Ok((operands, result))
    }

    /// Summed over the letters that nobody needs.
    fn summed(&mut self, x: Named, needed: &[char]) -> Result<Named> {
        let kept: Vec<char> = x
            .letters
            .iter()
            .copied()
            .filter(|c| needed.contains(c))
            .collect();
        if kept.len() == x.letters.len() {
            return Ok(x);
        }
        let gone: Vec<char> = x
            .letters
            .iter()
            .copied()
            .filter(|c| !kept.contains(c))
            .collect();
        let dtype = self.ty(x.value).dtype;
        let sum = self.sum(x.value, &positions(&x.letters, &gone), false)?;
        Ok(Named {
            // Sums of narrow integers are wide; products are not.
            value: self.cast(sum, dtype)?,
            letters: kept,
        })
    }

    /// The product of two, summed over what both have and nobody else needs.
    fn joined(&mut self, a: Named, b: Named, later: &[char]) -> Result<Named> {
        let of = |one: &Named, other: &Named| -> Vec<char> {
            let all = one.letters.iter().copied();
            all.filter(|c| later.contains(c) || other.letters.contains(c))
                .collect()
        };
        let (a_kept, b_kept) = (of(&a, &b), of(&b, &a));
        let (a, b) = (self.summed(a, &a_kept)?, self.summed(b, &b_kept)?);
        let both = |c: &char| b.letters.contains(c);
        let batch: Vec<char> = a
            .letters
            .iter()
            .copied()
            .filter(|c| both(c) && later.contains(c))
            .collect();
        let inner: Vec<char> = a
            .letters
            .iter()
            .copied()
            .filter(|c| both(c) && !later.contains(c))
            .collect();
        let rows: Vec<char> = a.letters.iter().copied().filter(|c| !both(c)).collect();
        let columns: Vec<char> = b
            .letters
            .iter()
            .copied()
            .filter(|c| !a.letters.contains(c))
            .collect();
        let mut shape: Vec<Expr> = vec![];
        for (named, letters) in [(&a, &batch), (&a, &rows), (&b, &columns)] {
            for p in positions(&named.letters, letters) {
                shape.push(self.ty(named.value).shape[p as usize].clone());
            }
        }
        let left = self.matrices(&a, [&batch, &rows, &inner])?;
        let right = self.matrices(&b, [&batch, &inner, &columns])?;
        let y = self.bmm(left, right)?;
        Ok(Named {
            value: self.view(y, &shape)?,
            letters: [batch, rows, columns].concat(),
        })
    }

    /// Three groups of letters as three dims.
    fn matrices(&mut self, x: &Named, groups: [&[char]; 3]) -> Result<ValueId> {
        let order = positions(&x.letters, &groups.concat());
        let y = self.permute(x.value, &order)?;
        let shape = self.ty(y).shape.clone();
        let mut sizes = shape.into_iter();
        let merged: Vec<Expr> = groups
            .iter()
            .map(|g| sizes.by_ref().take(g.len()).fold(Expr::ONE, |n, d| n * d))
            .collect();
        self.view(y, &merged)
    }

    /// softmax(query key^T scale + mask) value over the last two dims, computed in at least f32; a row that may look nowhere is zero. A mask of bools says where to look,
    /// one of floats is added; `causal` looks no further than its own position. The scale is one over the root of the last dim unless it is given.
    ///
    /// Tensors of 4 dims of known size, `[batch, heads, length, width]`, are one op, and heads of the query may share those of key and value; others are composed of products.
    #[track_caller]
    pub fn scaled_dot_product_attention(
        &mut self,
        [query, key, value]: [ValueId; 3],
        mask: Option<ValueId>,
        causal: bool,
        scale: Option<f64>,
    ) -> Result<ValueId> {
        let ty = self.ty(query).clone();
        for (name, v) in [("query", query), ("key", key), ("value", value)] {
            let t = self.ty(v);
            ensure!(
                t.rank() >= 2 && t.dtype == ty.dtype && t.dtype.is_float(),
                InvalidArgument,
                "attention: the {name} is {} with {} dims; three tensors of one float type with at least 2 dims are needed",
                t.dtype,
                t.rank()
            );
        }
        ensure!(
            mask.is_none() || !causal,
            InvalidArgument,
            "attention takes a mask or is causal, not both"
        );
        let width = ty.shape[ty.rank() - 1].clone();
        let scale = scale.or_else(|| Some(1.0 / (width.as_const()? as f64).sqrt()));
        let [q, k, v] = [query, key, value].map(|x| self.ty(x).shape.clone());
        if let Some(mask) = mask {
            fits_scores(self.ty(mask), &q, &k)?;
        }
        let fixed = |shape: &&Vec<Expr>| shape.iter().all(|n| n.as_const().is_some());
        let of_four = [&q, &k, &v].iter().all(|x| x.len() == 4 && fixed(x));
        let shares = || match (q[1].as_const(), k[1].as_const()) {
            (Some(heads), Some(groups)) => groups > 0 && heads % groups == 0,
            _ => q[1] == k[1],
        };
        if let Some(scale) = scale
            && of_four
            && q[0] == k[0]
            && k[..3] == v[..3]
            && shares()
            && scale.is_finite()
        {
            let mask = mask
                .map(|mask| self.mask_of_four(mask, ty.dtype))
                .transpose()?;
            return Ok(self.sdpa([query, key, value], mask, causal, scale)?[0]);
        }
        let [y, _] = self.composed_attention([query, key, value], mask, causal, scale)?;
        Ok(y)
    }

    /// A mask with 4 dims, of bool or of this dtype.
    pub fn mask_of_four(&mut self, mask: ValueId, dtype: DType) -> Result<ValueId> {
        let ty = self.ty(mask).clone();
        let mask = match ty.dtype {
            DType::Bool => mask,
            _ => self.cast(mask, dtype)?,
        };
        let missing = 4usize.saturating_sub(ty.rank());
        let shape = [vec![Expr::ONE; missing], ty.shape].concat();
        self.view(mask, &shape)
    }

    /// The op itself: its result, and the logarithms of the rows' sums of exponentials.
    #[track_caller]
    pub fn sdpa(
        &mut self,
        [q, k, v]: [ValueId; 3],
        mask: Option<ValueId>,
        causal: bool,
        scale: f64,
    ) -> Result<[ValueId; 2]> {
        let scale = Scalar::F(scale);
        let operands: Vec<ValueId> = [q, k, v].into_iter().chain(mask).collect();
        let out = self.node(Op::Sdpa { causal, scale }, &operands)?;
        Ok([out[0], out[1]])
    }

    /// Attention as products and a softmax, for machines and sizes without a kernel of its own. Without a scale, one over the root of the last dim.
    pub fn composed_attention(
        &mut self,
        [query, key, value]: [ValueId; 3],
        mask: Option<ValueId>,
        causal: bool,
        scale: Option<f64>,
    ) -> Result<[ValueId; 2]> {
        let ty = self.ty(query).clone();
        let wide = match ty.dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let q = self.cast(query, wide)?;
        let [k, v] = [key, value].map(|x| {
            let x = self.cast(x, wide)?;
            self.shared_heads(x, &ty.shape)
        });
        let (k, v) = (k?, v?);
        let width = ty.shape[ty.rank() - 1].clone();
        let q = match scale {
            Some(scale) => self.mul(q, scale)?,
            None => {
                let width = self.scalar_tensor(width, wide, ty.device)?;
                let root = self.sqrt(width)?;
                self.div(q, root)?
            }
        };
        let scores = self.scores(q, k, mask, causal)?;
        let shape = self.ty(scores).shape.clone();
        if shape[shape.len() - 1] == Expr::ZERO {
            let rows = shape[..shape.len() - 1].to_vec();
            let sums = self.full(f64::NEG_INFINITY, rows, wide, ty.device)?;
            let y = self.matmul(scores, v)?;
            return Ok([self.cast(y, ty.dtype)?, sums]);
        }
        let best = self.amax(scores, &[-1], true)?;
        let centred = self.sub(scores, best)?;
        let powers = self.exp(centred)?;
        let sum = self.sum(powers, &[-1], true)?;
        let scale = self.reciprocal(sum)?;
        let mut weights = self.mul(powers, scale)?;
        let log = self.log(sum)?;
        let mut sums = self.add(log, best)?;
        if mask.is_some() {
            let blind = self.eq(best, f64::NEG_INFINITY)?;
            weights = self.where_(blind, 0.0, weights)?;
            sums = self.where_(blind, f64::NEG_INFINITY, sums)?;
        }
        let y = self.matmul(weights, v)?;
        let rows = shape[..shape.len() - 1].to_vec();
        let sums = self.view(sums, &rows)?;
        Ok([self.cast(y, ty.dtype)?, sums])
    }

    /// Queries against keys, as far as they may look.
    fn scores(
        &mut self,
        q: ValueId,
        k: ValueId,
        mask: Option<ValueId>,
        causal: bool,
    ) -> Result<ValueId> {
        let columns = self.transpose(k, -2, -1)?;
        let mut scores = self.matmul(q, columns)?;
        if let Some(mask) = mask {
            scores = if self.ty(mask).dtype.is_bool() {
                self.where_(mask, scores, f64::NEG_INFINITY)?
            } else {
                let mask = self.cast(mask, self.ty(scores).dtype)?;
                self.add(scores, mask)?
            };
        }
        if causal {
            let looks = self.lower_triangle(scores)?;
            scores = self.where_(looks, scores, f64::NEG_INFINITY)?;
        }
        Ok(scores)
    }

    /// The op itself: gradients of q, k and v from that of the result, and what [`Self::sdpa`] gave.
    #[track_caller]
    pub fn sdpa_backward(
        &mut self,
        grad: ValueId,
        [q, k, v]: [ValueId; 3],
        [out, lse]: [ValueId; 2],
        mask: Option<ValueId>,
        causal: bool,
        scale: f64,
    ) -> Result<[ValueId; 3]> {
        let scale = Scalar::F(scale);
        let operands: Vec<ValueId> = [grad, q, k, v, out, lse].into_iter().chain(mask).collect();
        let made = self.node(Op::SdpaBackward { causal, scale }, &operands)?;
        Ok([made[0], made[1], made[2]])
    }

    /// The gradients as products, for machines and sizes without a kernel of their own. Operands of four dims, as the op has them.
    pub fn composed_attention_backward(
        &mut self,
        grad: ValueId,
        operands: [ValueId; 3],
        [out, lse]: [ValueId; 2],
        mask: Option<ValueId>,
        causal: bool,
        scale: f64,
    ) -> Result<[ValueId; 3]> {
        let types = operands.map(|x| self.ty(x).clone());
        let wide = self.ty(lse).dtype;
        let mut widened = Vec::with_capacity(5);
        for value in [grad, operands[0], operands[1], operands[2], out] {
            widened.push(self.cast(value, wide)?);
        }
        let [grad, q, k, v, out] = [0, 1, 2, 3, 4].map(|i| widened[i]);
        let k = self.shared_heads(k, &types[0].shape)?;
        let v = self.shared_heads(v, &types[0].shape)?;
        let scaled = self.mul(q, scale)?;
        let scores = self.scores(scaled, k, mask, causal)?;
        let lse = self.unsqueeze(lse, -1)?;
        let centred = self.sub(scores, lse)?;
        let mut weights = self.exp(centred)?;
        if mask.is_some() {
            let blind = self.eq(lse, f64::NEG_INFINITY)?;
            weights = self.where_(blind, 0.0, weights)?;
        }
        let whole = self.mul(grad, out)?;
        let whole = self.sum(whole, &[-1], true)?;
        let columns = self.transpose(v, -2, -1)?;
        let change = self.matmul(grad, columns)?;
        let change = self.sub(change, whole)?;
        let change = self.mul(weights, change)?;
        let change = self.mul(change, scale)?;
        let dq = self.matmul(change, k)?;
        let mut made = vec![self.cast(dq, types[0].dtype)?];
        for ((left, right), ty) in [(change, q), (weights, grad)].into_iter().zip(&types[1..]) {
            let left = self.transpose(left, -2, -1)?;
            let sums = self.matmul(left, right)?;
            let sums = self.summed_heads(sums, &ty.shape)?;
            made.push(self.cast(sums, ty.dtype)?);
        }
        Ok([made[0], made[1], made[2]])
    }

    /// What each head of queries has, summed over those that share a head of keys.
    fn summed_heads(&mut self, x: ValueId, shape: &[Expr]) -> Result<ValueId> {
        let heads = self.ty(x).shape[1].clone();
        let (Some(all), Some(groups)) = (heads.as_const(), shape[1].as_const()) else {
            return Ok(x);
        };
        if all == groups || groups == 0 {
            return Ok(x);
        }
        let [batch, group, keys, width] = [0, 1, 2, 3].map(|d| shape[d].clone());
        let apart = [batch, group, Expr::constant(all / groups), keys, width];
        let apart = self.view(x, &apart)?;
        self.sum(apart, &[2], false)
    }

    /// Keys or values whose heads are repeated until there is one for each of the query's.
    fn shared_heads(&mut self, x: ValueId, query: &[Expr]) -> Result<ValueId> {
        let shape = self.ty(x).shape.clone();
        let (4, 4) = (shape.len(), query.len()) else {
            return Ok(x);
        };
        let (Some(heads), Some(groups)) = (query[1].as_const(), shape[1].as_const()) else {
            return Ok(x);
        };
        if heads == groups || groups == 0 || heads % groups != 0 {
            return Ok(x);
        }
        let times = Expr::constant(heads / groups);
        let apart = self.unsqueeze(x, 2)?;
        let [batch, group, keys, width] = [0, 1, 2, 3].map(|d| shape[d].clone());
        let repeated = [batch.clone(), group, times, keys.clone(), width.clone()];
        let repeated = self.expand(apart, &repeated)?;
        self.view(repeated, &[batch, query[1].clone(), keys, width])
    }

    /// Where the column of the last two dims is not beyond the row.
    fn lower_triangle(&mut self, x: ValueId) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let mut count = |dim: usize| {
            let shape = vec![ty.shape[dim].clone()];
            let (start, step) = (Scalar::I(0), Scalar::I(1));
            let (dtype, device) = (DType::I64, ty.device);
            self.emit(
                Op::Arange {
                    start,
                    step,
                    shape,
                    dtype,
                    device,
                },
                &[],
            )
        };
        let (rows, columns) = (count(ty.rank() - 2)?, count(ty.rank() - 1)?);
        let rows = self.unsqueeze(rows, 1)?;
        self.ge(rows, columns)
    }
}

/// Where each letter of `wanted` stands.
fn positions(letters: &[char], wanted: &[char]) -> Vec<i64> {
    let at = |c: &char| letters.iter().position(|l| l == c);
    wanted.iter().filter_map(at).map(|p| p as i64).collect()
}

/// Refuses a mask that does not broadcast to the scores of these queries and keys. Sizes that only a call knows are left to it.
fn fits_scores(mask: &TensorType, q: &[Expr], k: &[Expr]) -> Result<()> {
    let help = "a mask has the shape of the scores, [..., queries, keys], or 1 in place of some of its sizes";
    ensure!(
        mask.dtype.is_bool() || mask.dtype.is_float(),
        UnsupportedDType,
        "attention: a mask of {}; one of bools says where to look, one of floats is added",
        mask.dtype
    );
    let rank = q.len().max(k.len());
    // What a size may be, by the dim's number from the last; nothing is known of one that a call decides.
    let sizes = |dim: usize| -> Option<Vec<i64>> {
        let all = match dim {
            1 => vec![&k[k.len() - 2]],
            2 => vec![&q[q.len() - 2]],
            _ => [q, k]
                .into_iter()
                .filter_map(|shape| shape.get(shape.len().checked_sub(dim)?))
                .collect(),
        };
        all.into_iter().map(Expr::as_const).collect()
    };
    let fits = mask.shape.len() <= rank
        && mask.shape.iter().rev().zip(1..).all(|(size, dim)| {
            match (size.as_const(), sizes(dim)) {
                (None | Some(1), _) | (_, None) => true,
                (Some(size), Some(known)) => known.contains(&size),
            }
        });
    if fits {
        return Ok(());
    }
    let [mask, q, k] = [&mask.shape[..], q, k].map(shape_text);
    Err(err!(
        ShapeMismatch,
        "attention: a mask of {mask} for queries of {q} and keys of {k}"
    )
    .help(help))
}
