//! Products, convolutions and attention that the host computes: one table of formulas by the host's names.
//!
//! Only what dominates is counted: the multiplications and additions of the products inside. Anything else is `None`, which means unknown, not free.

use oxyfuel_base::{Arg, Expr, External, ExternalResult};

/// How the operations follow from the shapes of the arguments, by their positions.
#[derive(Clone, Copy)]
enum Formula {
    /// `[.., m, k] x [.., k, n]`.
    Product(usize, usize),
    /// `[.., k] x [n, k]`: a linear layer.
    Linear(usize, usize),
    /// Input and weight; `transposed` is argument 6.
    Convolution(usize, usize),
    /// Gradient, input, weight; which results are wanted is argument 10.
    ConvolutionBackward,
    /// Query, key, value: scores, then their product with the values.
    Attention(usize, usize, usize),
    /// The five products of its backward: scores again, and one for each of four gradients.
    AttentionBackward(usize, usize, usize),
}

use Formula::{Attention, AttentionBackward, Convolution, ConvolutionBackward, Linear, Product};

const TABLE: &[(&str, Formula)] = &[
    ("aten.mm.default", Product(0, 1)),
    ("aten.bmm.default", Product(0, 1)),
    ("aten.mv.default", Product(0, 1)),
    ("aten.dot.default", Product(0, 1)),
    ("aten.matmul.default", Product(0, 1)),
    ("aten._int_mm.default", Product(0, 1)),
    ("aten._scaled_mm.default", Product(0, 1)),
    ("aten.addmm.default", Product(1, 2)),
    ("aten.addmv.default", Product(1, 2)),
    ("aten.baddbmm.default", Product(1, 2)),
    ("aten.addbmm.default", Product(1, 2)),
    ("aten.linear.default", Linear(0, 1)),
    ("aten.convolution.default", Convolution(0, 1)),
    ("aten._convolution.default", Convolution(0, 1)),
    ("aten.convolution_backward.default", ConvolutionBackward),
    (
        "aten.scaled_dot_product_attention.default",
        Attention(0, 1, 2),
    ),
    (
        "aten._scaled_dot_product_flash_attention.default",
        Attention(0, 1, 2),
    ),
    (
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        Attention(0, 1, 2),
    ),
    (
        "aten._scaled_dot_product_efficient_attention.default",
        Attention(0, 1, 2),
    ),
    (
        "aten._scaled_dot_product_cudnn_attention.default",
        Attention(0, 1, 2),
    ),
    (
        "aten._scaled_dot_product_flash_attention_backward.default",
        AttentionBackward(1, 2, 3),
    ),
    (
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        AttentionBackward(1, 2, 3),
    ),
    (
        "aten._scaled_dot_product_efficient_attention_backward.default",
        AttentionBackward(1, 2, 3),
    ),
    (
        "aten._scaled_dot_product_cudnn_attention_backward.default",
        AttentionBackward(1, 2, 3),
    ),
];

/// Operations of a host call on operands of these shapes; `None` where they are not known.
pub fn external_flops(call: &External, operands: &[Option<&[Expr]>]) -> Option<Expr> {
    let (_, formula) = TABLE.iter().find(|(name, _)| *name == call.name)?;
    let shape = |i: usize| match call.args.get(i)? {
        Arg::Operand(n) => *operands.get(*n as usize)?,
        _ => None,
    };
    let count = |shape: &[Expr]| shape.iter().cloned().product::<Expr>();
    let result = || match call.results.first()? {
        ExternalResult::Tensor { shape, .. } => Some(count(shape)),
        ExternalResult::Opaque | ExternalResult::Nothing => None,
    };
    match *formula {
        Product(a, b) => {
            let (a, b) = (shape(a)?, shape(b)?);
            // The right side is a vector, or a matrix whose last dim stays.
            let columns = if b.len() < 2 {
                Expr::ONE
            } else {
                b.last()?.clone()
            };
            Some(count(a) * columns * 2)
        }
        Linear(x, weight) => Some(count(shape(x)?) * shape(weight)?.first()?.clone() * 2),
        Convolution(x, weight) => {
            let each = count(shape(weight)?.get(1..)?);
            let spread = matches!(call.args.get(6), Some(Arg::Bool(true)));
            let places = if spread { count(shape(x)?) } else { result()? };
            Some(places * each * 2)
        }
        ConvolutionBackward => {
            let each = count(shape(2)?.get(1..)?);
            let spread = matches!(call.args.get(7), Some(Arg::Bool(true)));
            let places = count(shape(if spread { 1 } else { 0 })?);
            let wanted = match call.args.get(10)? {
                Arg::List(mask) | Arg::Tuple(mask) => {
                    let products = mask.iter().take(2);
                    products
                        .filter(|flag| matches!(flag, Arg::Bool(true)))
                        .count()
                }
                _ => return None,
            };
            Some(places * each * 2 * i64::try_from(wanted).unwrap_or(0))
        }
        Attention(q, k, v) => attention(shape(q)?, shape(k)?, shape(v)?, (1, 1)),
        AttentionBackward(q, k, v) => attention(shape(q)?, shape(k)?, shape(v)?, (3, 2)),
    }
}

/// `[.., rows, depth]` against `[.., columns, depth]` and `[.., columns, width]`: so many products over the depth and over the width.
fn attention(q: &[Expr], k: &[Expr], v: &[Expr], (deep, wide): (i64, i64)) -> Option<Expr> {
    let (depth, width) = (q.last()?, v.last()?);
    let rows: Expr = q[..q.len() - 1].iter().cloned().product();
    let columns = k.get(k.len().checked_sub(2)?)?;
    Some(rows * columns.clone() * (depth.clone() * deep + width.clone() * wide) * 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::DType;

    fn call(name: &str, args: Vec<Arg>, result: &[i64]) -> External {
        External {
            name: name.to_owned(),
            args,
            kwargs: vec![],
            operand_strides: vec![],
            results: vec![ExternalResult::Tensor {
                dtype: DType::F32,
                shape: result.iter().map(|&n| Expr::constant(n)).collect(),
                strides: vec![],
            }],
            sequence: false,
            binds: vec![],
            ordered: false,
            reason: String::new(),
            gpu: None,
        }
    }

    fn flops(call: &External, operands: &[&[i64]]) -> Option<i64> {
        let shapes: Vec<Vec<Expr>> = operands
            .iter()
            .map(|shape| shape.iter().map(|&n| Expr::constant(n)).collect())
            .collect();
        let shapes: Vec<Option<&[Expr]>> = shapes.iter().map(|s| Some(s.as_slice())).collect();
        external_flops(call, &shapes)?.as_const()
    }

    fn operands(n: u32) -> Vec<Arg> {
        (0..n).map(Arg::Operand).collect()
    }

    #[test]
    fn products() {
        let mm = call("aten.mm.default", operands(2), &[3, 5]);
        assert_eq!(flops(&mm, &[&[3, 4], &[4, 5]]), Some(2 * 3 * 4 * 5));
        let bmm = call("aten.bmm.default", operands(2), &[7, 3, 5]);
        assert_eq!(
            flops(&bmm, &[&[7, 3, 4], &[7, 4, 5]]),
            Some(2 * 7 * 3 * 4 * 5)
        );
        let addmm = call("aten.addmm.default", operands(3), &[3, 5]);
        assert_eq!(
            flops(&addmm, &[&[5], &[3, 4], &[4, 5]]),
            Some(2 * 3 * 4 * 5)
        );
        let mv = call("aten.mv.default", operands(2), &[3]);
        assert_eq!(flops(&mv, &[&[3, 4], &[4]]), Some(2 * 3 * 4));
        let linear = call("aten.linear.default", operands(2), &[2, 3, 5]);
        assert_eq!(
            flops(&linear, &[&[2, 3, 4], &[5, 4]]),
            Some(2 * 2 * 3 * 4 * 5)
        );
    }

    #[test]
    fn convolutions() {
        let tail = |transposed: bool| {
            let mut args = operands(2);
            args.extend([Arg::None, Arg::None, Arg::None, Arg::None]);
            args.push(Arg::Bool(transposed));
            args
        };
        // 8 groups: a weight of [16, 4, 3, 3] on 32 channels.
        let conv = call("aten.convolution.default", tail(false), &[2, 16, 10, 10]);
        let forward = 2 * (2 * 16 * 10 * 10) * (4 * 3 * 3);
        assert_eq!(
            flops(&conv, &[&[2, 32, 10, 10], &[16, 4, 3, 3]]),
            Some(forward)
        );
        let back = call("aten.convolution.default", tail(true), &[2, 4, 12, 12]);
        let spread = 2 * (2 * 16 * 10 * 10) * (4 * 3 * 3);
        assert_eq!(
            flops(&back, &[&[2, 16, 10, 10], &[16, 4, 3, 3]]),
            Some(spread)
        );
        let mut args = operands(3);
        args.extend(std::iter::repeat_n(Arg::None, 4));
        args.extend([Arg::Bool(false), Arg::None, Arg::None]);
        args.push(Arg::List(vec![
            Arg::Bool(true),
            Arg::Bool(true),
            Arg::Bool(true),
        ]));
        let both = call("aten.convolution_backward.default", args, &[2, 32, 10, 10]);
        let shapes: [&[i64]; 3] = [&[2, 16, 10, 10], &[2, 32, 10, 10], &[16, 4, 3, 3]];
        assert_eq!(flops(&both, &shapes), Some(2 * forward));
    }

    #[test]
    fn attention_is_two_products_and_five() {
        let shapes: [&[i64]; 4] = [&[2, 4, 6, 8], &[2, 4, 6, 8], &[2, 4, 10, 8], &[2, 4, 10, 8]];
        let name = "aten._scaled_dot_product_flash_attention_for_cpu";
        let forward = call(&format!("{name}.default"), operands(3), &[2, 4, 6, 8]);
        let one = 2 * 2 * 4 * 6 * 10 * 8;
        assert_eq!(flops(&forward, &shapes[1..]), Some(2 * one));
        let back = call(
            &format!("{name}_backward.default"),
            operands(4),
            &[2, 4, 6, 8],
        );
        assert_eq!(flops(&back, &shapes), Some(5 * one));
    }

    #[test]
    fn what_is_not_known_is_not_free() {
        assert_eq!(
            flops(&call("aten.sort.default", operands(1), &[3]), &[&[3]]),
            None
        );
    }
}
