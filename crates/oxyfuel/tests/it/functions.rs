//! Functions that people write: compiled, eager and interpreted results agree.

use crate::agree::check;
use oxyfuel::{DType, Meet, Options, Result, Tensor, compile};

fn f32s(shape: &[i64], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F32, seed)
}

macro_rules! functions {
    ($($name:ident($($x:ident),*) = [$($input:expr),*] => $out:expr;)*) => {$(
        #[test]
        fn $name() {
            fn f(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
                let [$($x),*] = inputs else { panic!("inputs") };
                oxyfuel::Outputs::into_tensors($out)
            }
            check(stringify!($name), f, &[$($input),*]);
        }
    )*};
}

functions! {
    bias_relu(x, b) = [f32s(&[33, 65], 0), f32s(&[65], 1)] => (x + b).relu() * 2.0;
    bias_gelu(x, b) = [f32s(&[33, 65], 0), f32s(&[65], 1)] => (x + b).gelu();
    tanh_gelu_sigmoid(x, b) = [f32s(&[7, 130], 0), f32s(&[130], 1)] => (x + b).gelu_tanh().tanh() * x.sigmoid();
    silu_gate(x, y) = [f32s(&[9, 40], 0), f32s(&[9, 40], 1)] => x.silu() * y;
    running(x) = [f32s(&[5, 40], 0)] => (x.cumsum(1), x.cumprod(0));
    positions(x) = [f32s(&[5, 40], 0)] => (x.argmax(1, false), x.argmin(0, true), x.argsort(1, true));
    sorted(x) = [f32s(&[6, 300], 0)] => { let (values, order) = x.sort(-1, false); (values, order) };
    best(x) = [f32s(&[6, 300], 0)] => { let (values, order) = x.topk(7, 1, true); (values * 2.0, order) };
    put(x, y, i) = [f32s(&[6, 3], 0), f32s(&[2, 3], 1), Tensor::from_slice(&[4i64, 1], &[2])] => x.index_put(y, 0, i) + 1.0;
    scattered(x, y, i) = [f32s(&[6, 30], 0), f32s(&[50, 30], 1), Tensor::randint(0, 6, &[50, 30], DType::I64, 2)] =>
        (x.scatter(0, i, y), x.scatter(0, i, 2.0), x.scatter_add(0, i, y), x.scatter_reduce(0, i, y, Meet::Mean, false), x.scatter_reduce(0, i, y, Meet::Amax, true));
    rows_met(x, y, i) = [f32s(&[6, 30], 0), f32s(&[50, 30], 1), Tensor::randint(0, 6, &[50], DType::I64, 2)] =>
        (x.index_add(0, i, y), x.index_reduce(0, i, y, Meet::Prod, false) * 2.0);
    pools(x) = [f32s(&[2, 3, 13, 17], 0)] =>
        (x.max_pool2d([3, 3], [2, 2], [1, 1], [1, 1]), x.max_pool2d_positions([2, 3], [2, 1], [1, 0], [3, 1]), x.avg_pool2d([3, 2], [2, 2], [1, 1]));
    wide_pools(x) = [f32s(&[3, 20, 21], 0)] => (x.max_pool2d([8, 7], [3, 2], [4, 3], [1, 1]), x.avg_pool2d([9, 5], [1, 1], [0, 2]) * 2.0);
    softmax(x) = [f32s(&[17, 100], 0)] => x.softmax(-1);
    softmax_first_dim(x) = [f32s(&[17, 30], 0)] => x.softmax(0);
    log_softmax(x) = [f32s(&[5, 1000], 0)] => x.log_softmax(1);
    layer_norm(x, w, b) = [f32s(&[6, 96], 0), f32s(&[96], 1), f32s(&[96], 2)] => x.layer_norm(&[96], Some(w), Some(b), 1e-5);
    layer_norm_plain(x) = [f32s(&[6, 96], 0)] => x.layer_norm(&[96], None, None, 1e-5);
    rms_norm(x, w) = [Tensor::randn(&[6, 96], DType::BF16, 0), Tensor::randn(&[96], DType::BF16, 1)] => x.rms_norm(&[96], Some(w), 1e-6);
    rms_norm_written_out(x, w) = [f32s(&[6, 96], 0), f32s(&[96], 1)] =>
        x * (x * x).mean(&[-1], true).add(1e-6).rsqrt() * w;
    rotary(x, c, s) = [f32s(&[2, 8, 32], 0), f32s(&[8, 16], 1), f32s(&[8, 16], 2)] => {
        let (a, b) = (x.slice(-1, 0, 16, 1), x.slice(-1, 16, 32, 1));
        Tensor::cat(&[&(&a * c - &b * s), &(&b * c + &a * s)], -1)
    };
    mxint8_decode(m, e) = [Tensor::randint(-128, 128, &[12, 32], DType::I8, 0), Tensor::randint(120, 134, &[12], DType::U8, 1)] =>
        (m.to(DType::F32) * 2f64.powi(-6) * (e.to(DType::F32) - 127.0).exp2().unsqueeze(1)).to(DType::BF16);
    mlp(x, w1, b1, w2, b2) = [f32s(&[8, 32], 0), f32s(&[64, 32], 1), f32s(&[64], 2), f32s(&[16, 64], 3), f32s(&[16], 4)] =>
        x.linear(w1, Some(b1)).gelu().linear(w2, Some(b2));
    attention(q, k, v) = [f32s(&[2, 3, 10, 8], 0), f32s(&[2, 3, 12, 8], 1), f32s(&[2, 3, 12, 8], 2)] =>
        (q.matmul(&k.transpose(-2, -1)) * 8f64.powf(-0.5)).softmax(-1).matmul(v);
    dual_gemm_silu(a, b, c) = [f32s(&[10, 24], 0), f32s(&[12, 24], 1), f32s(&[12, 24], 2)] => a.matmul(&b.t()).silu() * a.matmul(&c.t());
    embedding_norm(i, w) = [Tensor::randint(0, 50, &[4, 9], DType::I64, 0), f32s(&[50, 24], 1)] =>
        Tensor::embedding(i, w).layer_norm(&[24], None, None, 1e-5);
    gathers(x, i) = [f32s(&[6, 20], 0), Tensor::randint(0, 20, &[6, 5], DType::I64, 1)] => x.gather(1, i) * 2.0;
    selects(x, i) = [f32s(&[6, 20], 0), Tensor::randint(0, 6, &[4], DType::I64, 1)] => x.index_select(0, i).exp();
    reductions(x) = [f32s(&[7, 9, 11], 0)] =>
        (x.sum(&[1], false), x.mean(&[], false), x.amax(&[0, 2], true), x.amin(&[-1], false), x.var(&[2], 1.0, false));
    truth(x) = [f32s(&[7, 9], 0)] => (x.gt(0.0).any(&[1], false), x.gt(-9.0).all(&[], false), x.gt(0.0).logical_and(&x.lt(1.0)));
    choice(x, y) = [f32s(&[7, 9], 0), f32s(&[9], 1)] => (x.gt(y).where_(x, y), x.masked_fill(&x.lt(0.0), 0.5), x.clamp(Some(-0.5), None));
    integers(x) = [Tensor::randint(-100, 100, &[77], DType::I32, 0)] => (x * 3 + 1, x % 7, x.div_floor(4), x & 15, x.sum(&[], false));
    halves(x, y) = [Tensor::randn(&[100], DType::F16, 0), Tensor::randn(&[100], DType::BF16, 1)] => (x * 3.0 + 1.0, y.exp(), x + y);
    doubles(x) = [Tensor::randn(&[100], DType::F64, 0)] => (x * 3.0 + 1.0, x.sqrt().isnan());
    joins(x, y) = [f32s(&[3, 4], 0), f32s(&[3, 4], 1)] => (Tensor::cat(&[x, y], 0), Tensor::stack(&[x, y], -1), x.permute(&[1, 0]) + 0.0);
    writes(x, y) = [f32s(&[6, 8], 0), f32s(&[2, 8], 1)] => (x.slice_scatter(y, 0, 1, 5, 2), x.copy(y.select(0, 1).exp().try_ok().as_ref().unwrap()));
    scalars(x) = [Tensor::scalar(2.5, DType::F32)] => (x * 2.0, 1.0 - x, x.reshape(&[1, 1]), x.sum(&[], false));
    empties(x, y) = [Tensor::zeros(&[0, 5], DType::F32), f32s(&[5], 0)] => (x + y, x.sum(&[0], false), x.relu().sum(&[], false));
    batches(x, w) = [f32s(&[3, 5, 8], 0), f32s(&[8, 4], 1)] => (x.matmul(w) + 1.0).relu();
    addmm(b, x, w) = [f32s(&[4], 0), f32s(&[5, 8], 1), f32s(&[8, 4], 2)] => b.addmm(x, w, 0.5, 2.0);
    bf16_product(x, w) = [Tensor::randn(&[33, 64], DType::BF16, 1), Tensor::randn(&[64, 40], DType::BF16, 2)] => x.matmul(w).relu();
}

#[test]
fn strided_inputs() {
    let x = f32s(&[20, 30], 0);
    let f = compile(|x: &Tensor| (x * 2.0).softmax(-1), Options::default()).unwrap();
    let views = [
        x.t(),
        x.slice(0, 1, 20, 3),
        x.slice(1, 3, 30, 2),
        x.select(0, 3).expand(&[4, 30]),
        x.slice(1, 1, 30, 1),
    ];
    for view in &views {
        let dense = view.contiguous();
        let expected = (&dense * 2.0).softmax(-1).to_vec::<f32>().unwrap();
        let ours = f.call_one(&[view]).unwrap().to_vec::<f32>().unwrap();
        for (a, b) in ours.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-6, "{view:?}: {a} {b}");
        }
    }
}

#[test]
fn views_share_memory() {
    let mut x = Tensor::zeros(&[4, 6], DType::F32);
    let column = x.t().slice(0, 2, 3, 1).squeeze(0);
    assert_eq!(column.strides(), [6]);
    x.copy_(&Tensor::arange(0, 24, 1, DType::F32).reshape(&[4, 6]))
        .unwrap();
    assert_eq!(column.to_vec::<f32>().unwrap(), [2.0, 8.0, 14.0, 20.0]);
    let parts = x.chunk(4, 1);
    assert_eq!(parts.len(), 3);
    assert_eq!(parts[2].shape(), [4, 2]);
    // The end of the last part is beyond what an i64 holds.
    let parts = Tensor::zeros(&[1], DType::I8)
        .expand(&[i64::MAX])
        .chunk(3, 0);
    let ends: Vec<i64> = parts.iter().map(|part| part.shape()[0]).collect();
    assert_eq!(
        ends.iter().try_fold(0i64, |sum, &n| sum.checked_add(n)),
        Some(i64::MAX)
    );
    assert_eq!(
        Tensor::zeros(&[1], DType::I8)
            .expand(&[i64::MAX])
            .chunk(2, 0)
            .len(),
        2
    );
}

#[test]
fn constructors_hold_what_they_say() {
    let t = Tensor::arange(1, 8, 3, DType::I64);
    assert_eq!(t.to_vec::<i64>().unwrap(), [1, 4, 7]);
    let t = Tensor::full(&[2, 2], 1.5, DType::BF16);
    assert_eq!(t.to_f64().unwrap(), [1.5; 4]);
    assert_eq!(Tensor::scalar(3, DType::I32).item().unwrap().as_i64(), 3);
    assert_eq!(
        Tensor::ones(&[2], DType::Bool).to_vec::<bool>().unwrap(),
        [true, true]
    );
    let a = Tensor::rand(&[100], DType::F32, 5).to_vec::<f32>().unwrap();
    assert_eq!(
        a,
        Tensor::rand(&[100], DType::F32, 5).to_vec::<f32>().unwrap()
    );
    assert!(a.iter().all(|x| (0.0..1.0).contains(x)));
    let i = Tensor::randint(-2, 3, &[1000], DType::I8, 1)
        .to_vec::<i8>()
        .unwrap();
    assert!(i.iter().all(|x| (-2..3).contains(x)) && i.contains(&-2) && i.contains(&2));
}
