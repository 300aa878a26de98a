//! Every operator that the torch door compiles has a method, or stands on a list with the reason why not.

use crate::ints;
use oxyfuel::{
    ClassLoss, Convolution, DType, Interpolation, Meet, Padding, Pooling, SampleMode,
    SamplePadding, Tensor,
};
use oxyfuel_capture::aten::{Import, rows};
use std::collections::{BTreeMap, BTreeSet};

/// Calls a method; what it returns, nobody looks at.
type Method = fn(&Tensor);

/// Rows: operators (without `aten.` and overload), and a call of the method that does the same.
macro_rules! methods {
    ($x:ident; $($($operator:ident)+: $call:expr;)*) => {
        const METHODS: &[(&str, Method)] = &[$($((stringify!($operator), |$x: &Tensor| { let _ = ($x, $call); }),)+)*];
    };
}

methods! { x;
    convolution: x.conv2d(x, None, &Convolution::default());
    scaled_dot_product_attention: x.scaled_dot_product_attention(x, x, Some(x), true, Some(0.5));
    abs: x.abs(); neg: x.neg(); sign sgn: x.sign(); relu: x.relu(); silu: x.silu(); sigmoid: x.sigmoid(); tanh: x.tanh(); exp: x.exp(); exp2: x.exp2();
    expm1: x.expm1(); log: x.log(); log2: x.log2(); log10: x.log10(); log1p: x.log1p(); sqrt: x.sqrt(); rsqrt: x.rsqrt(); reciprocal: x.reciprocal();
    erf: x.erf(); erfc: x.erfc(); sin: x.sin(); cos: x.cos(); tan: x.tan(); asin: x.asin(); acos: x.acos(); atan: x.atan(); sinh: x.sinh(); cosh: x.cosh();
    asinh: x.asinh(); acosh: x.acosh(); atanh: x.atanh(); floor: x.floor(); ceil: x.ceil(); round: (x.round(), x.round_decimals(1)); trunc: x.trunc();
    logical_not: x.logical_not(); bitwise_not: x.bitwise_not(); isnan: x.isnan(); isinf: x.isinf(); gelu: (x.gelu(), x.gelu_tanh());
    add: x.add(x); sub: x.sub(1); rsub: x.rsub(x, 2.0); mul: x.mul(x); div true_divide: (x.div(2), x.div_trunc(2)); floor_divide: x.div_floor(2);
    remainder: x.remainder(2); fmod: x.fmod(2); atan2: x.atan2(x); pow: x.pow(2); maximum: x.maximum(x); minimum: x.minimum(x);
    bitwise_and: x.bitwise_and(1); bitwise_or: x.bitwise_or(1); bitwise_xor: x.bitwise_xor(1); bitwise_left_shift: x.bitwise_left_shift(1);
    bitwise_right_shift: x.bitwise_right_shift(1); logical_and: x.logical_and(x); logical_or: x.logical_or(x); logical_xor: x.logical_xor(x);
    eq: x.eq(x); ne: x.ne(x); lt: x.lt(x); le: x.le(x); gt: x.gt(x); ge: x.ge(x);
    where: x.gt(0).where_(x, 0); clamp: x.clamp(Some(0.0), None); clamp_min: x.clamp_min(0); clamp_max: x.clamp_max(0); masked_fill: x.masked_fill(&x.gt(0), 1);
    _to_copy convert_element_type: x.to(DType::F64); clone lift_fresh_copy positive: x.copy(x); copy: x.copy(x); fill: x.full_like(2);
    square: x.square(); frac: x.frac(); isfinite: x.isfinite(); isposinf: x.isposinf(); isneginf: x.isneginf(); signbit: x.signbit(); copysign: x.copysign(x);
    fmax: x.fmax(x); fmin: x.fmin(x); addcmul: x.addcmul(x, x, 1.0); addcdiv: x.addcdiv(x, x, 1.0); ldexp: x.ldexp(x); lerp: x.lerp(x, 0.5); xlogy: x.xlogy(x);
    logaddexp: x.logaddexp(x); logaddexp2: x.logaddexp2(x);
    lgamma: x.lgamma(); digamma: x.digamma(); erfinv: x.erfinv(); special_erfcx: x.erfcx(); special_ndtri: x.ndtri(); special_log_ndtr: x.log_ndtr();
    i0 special_modified_bessel_i0: x.i0(); special_i0e: x.i0e(); special_i1 special_modified_bessel_i1: x.i1(); special_i1e: x.i1e();
    special_modified_bessel_k0: x.modified_bessel_k0(); special_modified_bessel_k1: x.modified_bessel_k1();
    special_scaled_modified_bessel_k0: x.scaled_modified_bessel_k0(); special_scaled_modified_bessel_k1: x.scaled_modified_bessel_k1();
    special_bessel_j0: x.bessel_j0(); special_bessel_j1: x.bessel_j1(); special_bessel_y0: x.bessel_y0(); special_bessel_y1: x.bessel_y1();
    special_spherical_bessel_j0: x.spherical_bessel_j0(); special_airy_ai: x.airy_ai(); polygamma: x.polygamma(1); special_zeta: x.zeta(x);
    special_chebyshev_polynomial_t: x.chebyshev_polynomial_t(2); special_chebyshev_polynomial_u: x.chebyshev_polynomial_u(2);
    special_chebyshev_polynomial_v: x.chebyshev_polynomial_v(2); special_chebyshev_polynomial_w: x.chebyshev_polynomial_w(2);
    special_shifted_chebyshev_polynomial_t: x.shifted_chebyshev_polynomial_t(2); special_shifted_chebyshev_polynomial_u: x.shifted_chebyshev_polynomial_u(2);
    special_shifted_chebyshev_polynomial_v: x.shifted_chebyshev_polynomial_v(2); special_shifted_chebyshev_polynomial_w: x.shifted_chebyshev_polynomial_w(2);
    special_hermite_polynomial_h: x.hermite_polynomial_h(2); special_hermite_polynomial_he: x.hermite_polynomial_he(2);
    special_laguerre_polynomial_l: x.laguerre_polynomial_l(2); special_legendre_polynomial_p: x.legendre_polynomial_p(2);
    gcd: x.gcd(x); lcm: x.lcm(x); angle: x.angle(); hypot: x.hypot(x); frexp: x.frexp(); nextafter: x.nextafter(x);
    hardtanh: x.hardtanh(-1.0, 1.0); relu6: x.relu6(); leaky_relu: x.leaky_relu(0.1); elu: x.elu(1.0); softplus: x.softplus(1.0, 20.0); mish: x.mish();
    hardsigmoid: x.hardsigmoid(); hardswish: x.hardswish(); threshold: x.threshold(0.0, 1.0); logit: x.logit(None); log_sigmoid_forward: x.log_sigmoid();
    sigmoid_backward: x.sigmoid_backward(x); tanh_backward: x.tanh_backward(x); silu_backward: x.silu_backward(x); hardsigmoid_backward: x.hardsigmoid_backward(x);
    hardswish_backward: x.hardswish_backward(x); gelu_backward: (x.gelu_backward(x), x.gelu_tanh_backward(x)); threshold_backward: x.threshold_backward(x, 0.0);
    leaky_relu_backward: x.leaky_relu_backward(x, 0.1); hardtanh_backward: x.hardtanh_backward(x, -1.0, 1.0); elu_backward: x.elu_backward(x, 1.0);
    softplus_backward: x.softplus_backward(x, 1.0, 20.0); logit_backward: x.logit_backward(x); _softmax_backward_data: x.softmax_backward(x, 0);
    _log_softmax_backward_data: x.log_softmax_backward(x, 0); native_layer_norm_backward: x.layer_norm_backward(x, 1, None, 1e-5); native_group_norm_backward: x.group_norm_backward(x, 1, None, 1e-5);
    full: Tensor::full(&[2], 1, DType::F32); full_like: x.full_like(1); new_full: x.new_full(&[2], 1, DType::F32); zeros: Tensor::zeros(&[2], DType::F32);
    zeros_like: x.zeros_like(); new_zeros: x.new_zeros(&[2], DType::F32); ones: Tensor::ones(&[2], DType::F32); ones_like: x.ones_like(); new_ones: x.new_ones(&[2], DType::F32);
    empty empty_strided empty_permuted: Tensor::empty(&[2], DType::F32); empty_like new_empty new_empty_strided: x.empty_like(); scalar_tensor: Tensor::scalar(1, DType::F32);
    arange iota: Tensor::arange(0, 3, 1, DType::I64); linspace: Tensor::linspace(0, 1, 3, DType::F32); logspace: Tensor::logspace(0, 1, 3, 2.0, DType::F32);
    sum: x.sum(&[], false); mean: x.mean(&[], false); prod: x.prod(&[], false); amax: x.amax(&[], false); amin: x.amin(&[], false); max: (x.max(), x.max_dim(0, false));
    min: (x.min(), x.min_dim(0, false)); any: x.any(&[], false); all: x.all(&[], false); var: x.var(&[], 1.0, false); std: x.std(&[], 1.0, false);
    var_mean: x.var_mean(&[], 1.0, false); argmax: (x.argmax(0, false), x.argmax_all()); argmin: (x.argmin(0, false), x.argmin_all()); cumsum: x.cumsum(0); cumprod: x.cumprod(0);
    _softmax: x.softmax(0); _log_softmax: x.log_softmax(0); native_layer_norm: x.layer_norm(&[2], None, None, 1e-5); native_group_norm: x.group_norm(1, None, None, 1e-5);
    _native_batch_norm_legit_no_training: x.batch_norm(x, x, None, None, 1e-5); _native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update_functional: x.batch_norm_training(None, None, 1e-5);
    view_copy: x.reshape(&[-1]); permute_copy: x.permute(&[0]); expand_copy: x.expand(&[2]); unsqueeze_copy: x.unsqueeze(0); squeeze_copy: (x.squeeze(0), x.squeeze_all(), x.squeeze_dims(&[0]));
    transpose_copy: x.transpose(0, 0); t_copy: x.t(); slice_copy: x.slice(0, 0, 1, 1); select_copy: x.select(0, 0); unbind_copy: x.unbind(0); split_copy: x.split(1, 0);
    split_with_sizes_copy: x.split_with_sizes(&[1], 0); narrow_copy: x.narrow(0, 0, 1); diagonal_copy: x.diagonal(0, 0, 1); repeat: x.repeat(&[2]); roll: x.roll(&[1], &[0]);
    diagonal_scatter: x.diagonal_scatter(x, 0, 0, 1); cat: Tensor::cat(&[x, x], 0); stack: Tensor::stack(&[x, x], 0); gather: x.gather(0, &ints(&[0])); index_select: x.index_select(0, &ints(&[0]));
    index _unsafe_index: x.index(&[Some(&ints(&[0]))]); embedding: Tensor::embedding(&ints(&[0]), x); slice_scatter: x.slice_scatter(x, 0, 0, 1, 1); select_scatter: x.select_scatter(x, 0, 0);
    index_put _unsafe_index_put: (x.index_put(x, 0, &ints(&[0])), x.index_put_at(&[Some(&ints(&[0]))], x, true)); flip: x.flip(&[0]);
    scatter: x.scatter(0, &ints(&[0]), x); scatter_add: x.scatter_add(0, &ints(&[0]), x); scatter_reduce: x.scatter_reduce(0, &ints(&[0]), x, Meet::Amax, true);
    index_add: x.index_add(0, &ints(&[0]), x); index_reduce: x.index_reduce(0, &ints(&[0]), x, Meet::Prod, true); put: x.put(&ints(&[0]), x, false); take: x.take(&ints(&[0]));
    masked_scatter: x.masked_scatter(&x.gt(0), x); embedding_dense_backward: x.embedding_backward(&ints(&[0]), 2, None, false);
    constant_pad_nd: x.pad(&[1, 1], Padding::Constant(0.0)); reflection_pad1d reflection_pad2d reflection_pad3d: x.pad(&[1, 1], Padding::Reflect);
    replication_pad1d replication_pad2d replication_pad3d: x.pad(&[1, 1], Padding::Replicate);
    avg_pool1d: x.avg_pool1d([2], [2], [0]); avg_pool2d: x.avg_pool2d([2, 2], [2, 2], [0, 0]); avg_pool3d: x.avg_pool3d([2; 3], [2; 3], [0; 3]);
    avg_pool2d_backward avg_pool3d_backward: x.avg_pool_backward(x, 2, &Pooling::default()); max_pool2d_with_indices max_pool3d_with_indices: x.max_pool(2, &Pooling::default());
    max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward: x.max_pool_backward(x, x, 2);
    im2col: x.unfold([2, 2], [1, 1], [0, 0], [1, 1]); col2im: x.fold([2, 2], [2, 2], [1, 1], [0, 0], [1, 1]); max_unpool2d max_unpool3d: x.max_unpool(x, &[2, 2]);
    _adaptive_avg_pool2d: x.adaptive_avg_pool2d([1, 1]); _adaptive_avg_pool3d: x.adaptive_avg_pool3d([1, 1, 1]); _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward: x.adaptive_avg_pool_backward(&[2]);
    adaptive_max_pool2d: x.adaptive_max_pool2d([1, 1]); adaptive_max_pool3d: x.adaptive_max_pool3d([1, 1, 1]);
    sort: x.sort(0, false); topk: x.topk(1, 0, true); kthvalue: x.kthvalue(1, 0, true); median: (x.median(), x.median_dim(0, true));
    cummax: x.cummax(0); cummin: x.cummin(0); logcumsumexp: x.logcumsumexp(0); searchsorted: x.searchsorted(x, false); bucketize: x.bucketize(x, false); _cdist_forward: x.cdist(x, 2.0); dist: x.dist(x, 2.0);
    upsample_nearest1d upsample_nearest2d upsample_nearest3d: x.interpolate(&[2], Interpolation::Nearest, false);
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d: x.interpolate(&[2], Interpolation::NearestExact, false);
    upsample_bilinear2d: x.interpolate(&[2, 2], Interpolation::Linear, false);
    grid_sampler_2d: x.grid_sample(x, SampleMode::Bilinear, SamplePadding::Zeros, false);
    mm: x.mm(x); bmm: x.bmm(x); _int_mm: x.int_mm(x); addmm: x.addmm(x, x, 1.0, 1.0);
}

/// More methods, which are called like the others below.
const MORE: &[Method] = &[
    |x| {
        let _ = (
            x.cross_entropy(&ints(&[0]), &ClassLoss::default()),
            x.nll_loss(x, &ClassLoss::default()),
            x.cosine_similarity(x, 1, 1e-8),
        );
    },
    |x| {
        let _ = (
            x.conv2d(x, None, &Convolution::default()),
            x.conv1d(x, Some(x), &Convolution::default()),
        );
    },
    |x| {
        let _ = (
            x.logsumexp(&[0], true),
            x.norm(3.0, &[0, 0], true),
            x.cummax(0),
            x.logcumsumexp(-1),
            x.median(),
            x.kthvalue(1, 0, true),
        );
    },
    |x| {
        let _ = (
            x.tril(1),
            x.diag_embed(i64::MAX, 0, 1),
            x.diagonal(i64::MIN, 0, 1),
            x.unfold_dim(0, 1, i64::MAX),
            x.diag(2),
            x.trace(),
        );
    },
    |x| {
        let _ = (
            x.roll(&[i64::MIN], &[0]),
            x.repeat(&[i64::MAX, i64::MAX, i64::MAX]),
            x.repeat_interleave(i64::MAX, 0),
            x.tile(&[-1]),
        );
    },
    |x| {
        let _ = (
            x.pad(&[i64::MAX, 1], Padding::Constant(0.0)),
            x.pad(&[i64::MIN, 1], Padding::Constant(0.5)),
            x.pad(&[3, 3], Padding::Circular),
        );
    },
    |x| {
        let _ = (
            x.split(i64::MAX, 0),
            x.split_with_sizes(&[i64::MAX, i64::MAX], 0),
            x.movedim(&[0, 0], &[1, 0]),
            x.one_hot(i64::MAX),
        );
    },
    |x| {
        let _ = (
            x.pixel_shuffle(i64::MAX),
            x.pixel_unshuffle(2),
            x.glu(0),
            x.prelu(x),
            x.take_along_dim(x, 0),
            x.group_norm(i64::MIN, Some(x), Some(x), 0.0),
        );
    },
    |x| {
        let _ = (
            x.max_pool2d([i64::MAX; 2], [i64::MAX; 2], [i64::MAX; 2], [i64::MAX; 2]),
            x.avg_pool3d([0; 3], [0; 3], [-1; 3]),
        );
    },
    |x| {
        let _ = (
            x.interpolate(&[i64::MAX, 0], Interpolation::Cubic, true),
            x.interpolate(&[3, 3], Interpolation::Linear, false),
            x.upsample(f64::NAN, Interpolation::Area, false),
        );
    },
    |_| {
        let _ = (
            Tensor::linspace(f64::NAN, 0, i64::MAX, DType::I64),
            Tensor::eye(i64::MAX, i64::MAX, DType::F32),
            Tensor::eye(-1, 2, DType::F32),
            Tensor::meshgrid(&[]),
        );
    },
];

/// Operators without a method of their own, and why.
const WITHOUT: &[(&str, &str)] = &[
    (
        "alias_copy",
        "a clone of a tensor is the same memory, and copy() makes another one",
    ),
    ("detach_copy", "there is nothing to detach from"),
    (
        "as_strided_copy",
        "tensors speak of elements, not of memory",
    ),
    (
        "as_strided_scatter",
        "tensors speak of elements, not of memory",
    ),
    (
        "nanmedian",
        "kthvalue() along a row whose numbers isnan() counts is the same",
    ),
    (
        "_pdist_forward",
        "cdist() of a tensor with itself has every pair twice",
    ),
    (
        "masked_scatter_backward",
        "a step of PyTorch's own gradient",
    ),
    (
        "_scaled_dot_product_flash_attention_for_cpu",
        "scaled_dot_product_attention() is the same for all devices",
    ),
    (
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "a step of PyTorch's own gradient",
    ),
];

#[test]
fn every_compiled_operator_has_a_method_or_a_reason() {
    let methods: BTreeSet<&str> = METHODS.iter().map(|(name, _)| *name).collect();
    let without: BTreeMap<&str, &str> = WITHOUT.iter().copied().collect();
    let compiled: BTreeSet<&str> = rows()
        .filter(|(_, import)| matches!(import, Import::Compiled(_)))
        .map(|(target, _)| target.split('.').nth(1).unwrap())
        .collect();
    let missing: Vec<_> = compiled
        .iter()
        .filter(|name| methods.contains(*name) == without.contains_key(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "a method, or a reason in WITHOUT: {missing:?}"
    );
    let unknown = methods
        .iter()
        .chain(without.keys())
        .filter(|name| !compiled.contains(*name));
    assert_eq!(
        unknown.collect::<Vec<_>>(),
        Vec::<&&str>::new(),
        "rows of no operator"
    );
}

/// Whatever a method is given, it gives a tensor or a failed one: nothing panics.
#[test]
fn methods_do_not_panic() {
    let kinds: &[(DType, &[i64])] = &[
        (DType::F32, &[]),
        (DType::F32, &[0]),
        (DType::F32, &[5]),
        (DType::F32, &[3, 3]),
        (DType::F32, &[1, 2, 3, 4]),
        (DType::BF16, &[2, 4, 4]),
        (DType::I64, &[2, 3]),
        (DType::Bool, &[1, 0, 2]),
        (DType::U8, &[1]),
    ];
    for (dtype, shape) in kinds {
        let x = Tensor::ones(shape, *dtype);
        METHODS.iter().for_each(|(_, method)| method(&x));
        MORE.iter().for_each(|method| method(&x));
    }
    let failed = Tensor::ones(&[2], DType::F32) + Tensor::ones(&[3], DType::F32);
    METHODS.iter().for_each(|(_, method)| method(&failed));
    MORE.iter().for_each(|method| method(&failed));
}
