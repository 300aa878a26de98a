//! Gradients as functions.

use crate::{cases, ints};
use oxyfuel::Pooling;

cases! {
    activations fb [[3, 7], [3, 7]] (g, x) => vec![
        g.sigmoid_backward(&x.sigmoid()), g.tanh_backward(&x.tanh()), g.silu_backward(x), g.gelu_backward(x), g.gelu_tanh_backward(x),
        g.threshold_backward(x, 0.0), g.leaky_relu_backward(x, 0.1), g.hardtanh_backward(x, -0.5, 2.0), g.hardsigmoid_backward(x),
        g.hardswish_backward(x), g.elu_backward(x, 1.5), g.softplus_backward(x, 2.0, 3.0),
    ];
    logit f [[3, 7], [3, 7]] (g, x) => g.logit_backward(&x.sigmoid());
    softmax f [[3, 7], [3, 7]] (g, x) => (g.softmax_backward(&x.softmax(1), 1), g.log_softmax_backward(&x.log_softmax(0), 0));
    layer_norm f [[3, 8], [8], [3, 8]] (x, w, g) => g.layer_norm_backward(x, 1, Some(w), 1e-5).to_vec();
    layer_norm_2d f [[3, 4, 2], [4, 2], [3, 4, 2]] (x, w, g) => g.layer_norm_backward(x, 2, Some(w), 1e-5).to_vec();
    rms_norm f [[3, 8], [8], [3, 8]] (x, w, g) => g.rms_norm_backward(x, 1, Some(w), 1e-5).to_vec();
    group_norm f [[2, 6, 3, 2], [6], [2, 6, 3, 2]] (x, w, g) => g.group_norm_backward(x, 3, Some(w), 1e-5).to_vec();
    batch_norm f [[4, 3, 5], [3], [4, 3, 5]] (x, w, g) => g.batch_norm_backward(x, Some(w), 1e-5).to_vec();
    embedding f [[2, 2, 3]] (g) => {
        let rows = ints(&[2, 0, 2, 3]).reshape(&[2, 2]);
        (g.embedding_backward(&rows, 5, None, false), g.embedding_backward(&rows, 5, Some(2), false), g.embedding_backward(&rows, 5, None, true))
    };
    max_pool f [[2, 6, 7], [2, 3, 4]] (x, g) => {
        let positions = x.max_pool2d_positions([3, 3], [2, 2], [1, 1], [1, 1]);
        x.max_pool_backward(g, &positions, 2)
    };
    avg_pool f [[2, 6, 8], [2, 3, 4]] (x, g) => {
        let elements = Pooling { size: vec![3], stride: vec![2], padding: vec![1], count_padding: false, ..Pooling::default() };
        (x.avg_pool_backward(g, 2, &Pooling::default()), x.avg_pool_backward(g, 2, &elements))
    };
    adaptive f [[2, 7, 9], [2, 3, 4]] (x, g) => {
        let positions = x.adaptive_max_pool2d([3, 4]).1;
        (g.adaptive_avg_pool_backward(&[7, 9]), x.max_pool_backward(g, &positions, 2))
    };
}

#[test]
fn gradients_are_those_of_pytorch() {
    crate::judge(CASES, include_str!("gradients.txt"));
}
