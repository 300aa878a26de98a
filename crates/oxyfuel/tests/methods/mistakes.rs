//! Arguments that a method does not take: an error with a code, the line of the caller and what to do.

use crate::{ints, numbers};
use oxyfuel::nn::MultiHeadAttention;
use oxyfuel::{
    ClassLoss, Code, DType, Interpolation, Padding, Pooling, Reduction, SampleMode, SamplePadding,
    Tensor,
};

#[test]
fn arguments_that_do_not_fit() {
    let x = numbers(&[3, 4], 0, 'f');
    let image = numbers(&[1, 2, 4, 4], 0, 'f');
    let whole = ints(&[1, 2, 3]);
    let pool = |size: Vec<i64>, divisor| Pooling {
        size,
        divisor,
        ..Pooling::default()
    };
    let masked =
        |x: &Tensor, mask: &Tensor| x.scaled_dot_product_attention(x, x, Some(mask), false, None);
    let layer = |causal: bool| {
        let x = numbers(&[1, 3, 4], 0, 'f');
        let mask = numbers(&[3, 4], 0, 'f').gt(0.0);
        let mut attention = MultiHeadAttention::new(4, 2, DType::F32, 0);
        attention.causal = causal;
        attention.attend(&x, &x, &x, Some(&mask))
    };
    let cases = [
        (whole.mish(), Code::UnsupportedDType),
        (whole.logcumsumexp(0), Code::UnsupportedDType),
        (whole.norm(2.0, &[], false), Code::UnsupportedDType),
        (x.celu(0.0), Code::InvalidArgument),
        (x.norm(f64::NAN, &[], false), Code::InvalidArgument),
        (x.glu(0), Code::ShapeMismatch),
        (x.prelu(&whole), Code::DTypeMismatch),
        (x.prelu(&numbers(&[3], 0, 'f')), Code::ShapeMismatch),
        (x.flip(&[0, 0]), Code::DimOutOfRange),
        (x.flip(&[2]), Code::DimOutOfRange),
        (x.roll(&[1, 2], &[0]), Code::InvalidArgument),
        (x.repeat(&[2]), Code::InvalidArgument),
        (x.repeat(&[2, -1]), Code::InvalidArgument),
        (x.repeat_interleave(-1, 0), Code::InvalidArgument),
        (whole.tril(0), Code::RankMismatch),
        (x.diagonal(0, 1, 1), Code::DimOutOfRange),
        (x.diagonal(0, 5, 1), Code::DimOutOfRange),
        (x.split(1, 5)[0].clone(), Code::DimOutOfRange),
        (x.adaptive_max_pool2d([0, 0]).1, Code::InvalidArgument),
        (
            whole.cross_entropy(&whole, &ClassLoss::default()),
            Code::UnsupportedDType,
        ),
        (x.cosine_similarity(&x, 7, 1e-8), Code::DimOutOfRange),
        (x.diag_embed(0, 0, 5), Code::DimOutOfRange),
        (image.trace(), Code::RankMismatch),
        (x.movedim(&[0], &[1, 0]), Code::InvalidArgument),
        (x.movedim(&[0, 0], &[1, 0]), Code::DimOutOfRange),
        (x.split(0, 0)[0].clone(), Code::InvalidArgument),
        (
            x.split_with_sizes(&[1, 1], 0)[0].clone(),
            Code::ShapeMismatch,
        ),
        (x.unbind(7)[0].clone(), Code::DimOutOfRange),
        (x.select_scatter(&whole, 0, 9), Code::IndexOutOfRange),
        (x.unfold_dim(0, 9, 1), Code::InvalidArgument),
        (x.unfold_dim(0, 2, 0), Code::InvalidArgument),
        (Tensor::meshgrid(&[&x])[0].clone(), Code::RankMismatch),
        (x.pixel_shuffle(2), Code::RankMismatch),
        (image.pixel_shuffle(3), Code::ShapeMismatch),
        (image.pixel_shuffle(0), Code::InvalidArgument),
        (x.pad(&[1], Padding::Reflect), Code::InvalidArgument),
        (x.pad(&[4, 0], Padding::Reflect), Code::InvalidArgument),
        (x.pad(&[5, 0], Padding::Circular), Code::InvalidArgument),
        (
            x.pad(&[-5, 0], Padding::Constant(0.0)),
            Code::InvalidArgument,
        ),
        (
            whole.pad(&[1, 1], Padding::Constant(0.5)),
            Code::DTypeMismatch,
        ),
        (x.kthvalue(9, 0, false).0, Code::IndexOutOfRange),
        (x.cummax(4).0, Code::DimOutOfRange),
        (
            image.max_pool2d([3, 3], [0, 1], [0, 0], [1, 1]),
            Code::InvalidArgument,
        ),
        (
            image.max_pool2d([9, 9], [1, 1], [0, 0], [1, 1]),
            Code::InvalidArgument,
        ),
        (
            image.avg_pool(2, &pool(vec![1, 2, 3], None)),
            Code::InvalidArgument,
        ),
        (
            image.avg_pool(2, &pool(vec![2], Some(0))),
            Code::InvalidArgument,
        ),
        (whole.max_pool(2, &Pooling::default()).0, Code::RankMismatch),
        (image.adaptive_avg_pool2d([0, 1]), Code::InvalidArgument),
        (image.max_pool_backward(&x, &x, 2), Code::ShapeMismatch),
        (
            image.unfold([9, 9], [1, 1], [0, 0], [1, 1]),
            Code::InvalidArgument,
        ),
        (
            x.fold([2, 2], [2, 2], [1, 1], [0, 0], [1, 1]),
            Code::ShapeMismatch,
        ),
        (
            image.interpolate(&[3], Interpolation::Nearest, false),
            Code::RankMismatch,
        ),
        (
            image.interpolate(&[3, 0], Interpolation::Linear, false),
            Code::InvalidArgument,
        ),
        (
            image.interpolate(&[3, 3], Interpolation::Nearest, true),
            Code::InvalidArgument,
        ),
        (
            image
                .to(DType::I64)
                .interpolate(&[3, 3], Interpolation::Linear, false),
            Code::UnsupportedDType,
        ),
        (
            image.grid_sample(&image, SampleMode::Bilinear, SamplePadding::Zeros, false),
            Code::ShapeMismatch,
        ),
        // Four dims are an op, whose own rules ask; others are composed, and a mask must not make the scores larger.
        (
            masked(&image, &numbers(&[3, 4], 0, 'f')),
            Code::ShapeMismatch,
        ),
        (
            masked(&image, &numbers(&[4, 5], 0, 'f')),
            Code::ShapeMismatch,
        ),
        (
            masked(&image, &numbers(&[1, 3, 4, 4], 0, 'f')),
            Code::ShapeMismatch,
        ),
        (
            masked(&image, &numbers(&[2, 1, 1, 4, 4], 0, 'f')),
            Code::ShapeMismatch,
        ),
        (
            masked(&image, &image.gt(0.0).select(3, 0)),
            Code::ShapeMismatch,
        ),
        (masked(&image, &ints(&[1, 2, 3, 4])), Code::UnsupportedDType),
        (masked(&x, &numbers(&[3, 4], 0, 'f')), Code::ShapeMismatch),
        (masked(&x, &numbers(&[2, 3], 0, 'f')), Code::ShapeMismatch),
        (
            masked(&x, &numbers(&[2, 3, 3], 0, 'f')),
            Code::ShapeMismatch,
        ),
        (
            masked(&x.reshape(&[1, 3, 4]), &numbers(&[2, 3, 3], 0, 'f')),
            Code::ShapeMismatch,
        ),
        (layer(false), Code::ShapeMismatch),
        (layer(true), Code::ShapeMismatch),
        (
            image.scaled_dot_product_attention(&image, &image, Some(&image), true, None),
            Code::InvalidArgument,
        ),
        (x.index(&[]), Code::ArityMismatch),
        (x.index(&[None, None, Some(&whole)]), Code::RankMismatch),
        (x.index(&[Some(&x)]), Code::DTypeMismatch),
        (
            x.index_put_at(&[Some(&whole)], &numbers(&[7], 0, 'f'), false),
            Code::ShapeMismatch,
        ),
        (x.take_along_dim(&whole, 0), Code::RankMismatch),
        (x.index_fill(0, &whole, &x), Code::RankMismatch),
        (x.masked_scatter(&whole, &x), Code::DTypeMismatch),
        (x.one_hot(3), Code::UnsupportedDType),
        (whole.one_hot(0), Code::InvalidArgument),
        (whole.bucketize(&x, false), Code::RankMismatch),
        (
            x.smooth_l1_loss(&x, -1.0, Reduction::Mean),
            Code::InvalidArgument,
        ),
        (
            x.huber_loss(&x, f64::NAN, Reduction::Mean),
            Code::InvalidArgument,
        ),
        (x.nll_loss(&x, &ClassLoss::default()), Code::RankMismatch),
        (
            x.nll_loss(&numbers(&[3], 0, 'f'), &ClassLoss::default()),
            Code::DTypeMismatch,
        ),
        (
            x.cross_entropy(
                &whole,
                &ClassLoss {
                    label_smoothing: 2.0,
                    ..ClassLoss::default()
                },
            ),
            Code::InvalidArgument,
        ),
        (x.group_norm(3, None, None, 1e-5), Code::InvalidArgument),
        (
            x.group_norm(2, Some(&whole), None, 1e-5),
            Code::ShapeMismatch,
        ),
        (
            whole.batch_norm(&x, &x, None, None, 1e-5),
            Code::RankMismatch,
        ),
        (
            x.embedding_backward(&whole.reshape(&[3, 1]), 4, None, false),
            Code::ShapeMismatch,
        ),
        (
            x.layer_norm_backward(&x, 3, None, 1e-5)[0].clone(),
            Code::RankMismatch,
        ),
        (
            x.layer_norm_backward(&x, 0, None, 1e-5)[0].clone(),
            Code::RankMismatch,
        ),
        (
            x.group_norm_backward(&x, 3, None, 1e-5)[1].clone(),
            Code::InvalidArgument,
        ),
        (
            x.batch_norm_backward(&x, Some(&x), 1e-5)[0].clone(),
            Code::ShapeMismatch,
        ),
        (
            image.rms_norm_backward(&x, 1, None, 1e-5)[0].clone(),
            Code::ShapeMismatch,
        ),
        (whole.addcdiv(&whole, 2, 1.0), Code::UnsupportedDType),
        (
            Tensor::linspace(0, 1, -1, DType::F32),
            Code::InvalidArgument,
        ),
        (Tensor::eye(-1, 2, DType::F32), Code::InvalidArgument),
        (x.lcm(&x), Code::UnsupportedDType),
        (x.to(DType::F64).frexp().0, Code::UnsupportedDType),
        (x.legendre_polynomial_p(1000), Code::UnsupportedOp),
    ];
    let mut wrong = vec![];
    for (i, (tensor, code)) in cases.iter().enumerate() {
        match tensor.check() {
            Err(error) => {
                let here = |at: &oxyfuel::Location| at.file.ends_with("mistakes.rs");
                let located = error.at.as_ref().is_some_and(here);
                if error.code != *code || error.help.is_none() || !located {
                    wrong.push(format!("{i}, expected {code}: {error}"));
                }
            }
            Ok(()) => wrong.push(format!("{i}: no error")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
