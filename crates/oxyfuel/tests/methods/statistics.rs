//! Reductions and scans.

use crate::{cases, edges};
use oxyfuel::Tensor;

cases! {
    logsumexp fbi [[3, 5, 4]] (x) => (x.logsumexp(&[1], false), x.logsumexp(&[0, 2], true), x.logsumexp(&[], false));
    logsumexp_edges f [[3, 7]] (x) => Tensor::stack(&[&edges(x), &edges(x)], 0).logsumexp(&[0], false);
    norm fb [[3, 5, 4]] (x) => [0.0, 1.0, 2.0, 3.5, f64::INFINITY, f64::NEG_INFINITY].map(|p| x.norm(p, &[1], true)).to_vec();
    norm_all f [[3, 5, 4]] (x) => (x.norm(2.0, &[], false), x.norm(1.0, &[0, -1], false));
    std fb [[3, 5, 4]] (x) => (x.std(&[1], 1.0, false), x.std(&[0, 2], 0.0, true));
    var_mean f [[3, 5, 4]] (x) => {
        let ((a, b), (c, d)) = (x.var_mean(&[1], 1.0, false), x.std_mean(&[0, 2], 0.0, false));
        (a, b, c, d)
    };
    counts fi [[3, 5, 4]] (x) => (x.count_nonzero(&[]), x.gt(0).count_nonzero(&[1]));
    nansum f [[7]] (x) => {
        let e = edges(x);
        let rest = e.slice(0, 3, 7, 1);
        (rest.nansum(&[], false), Tensor::cat(&[&e.slice(0, 0, 1, 1), &rest], 0).nanmean(&[], false))
    };
    dist f [[3, 7], [3, 7]] (x, y) => (x.dist(y, 3.0), x.cdist(y, 1.5), x.cdist(y, 2.0));
    max_dim fbi [[3, 5, 4]] (x) => {
        let ((a, b), (c, d)) = (x.max_dim(1, false), x.min_dim(-1, true));
        vec![a, b, c, d, x.max(), x.min()]
    };
    max_dim_bool f [[3, 5, 4]] (x) => (x.gt(1).max_dim(1, false).0, x.gt(1).min_dim(2, false).0);
    argmax_all fi [[3, 5, 4]] (x) => (x.argmax_all(), x.argmin_all());
    aminmax f [[3, 5, 4]] (x) => x.aminmax(&[1], false);
    kthvalue fi [[3, 5, 4]] (x) => {
        let ((a, b), (c, d)) = (x.kthvalue(2, 1, false), x.kthvalue(4, -1, true));
        (a, b, c, d)
    };
    group_norm fb [[2, 6, 5], [6], [6]] (x, w, b) => (
        x.group_norm(3, Some(w), Some(b), 1e-5), x.group_norm(2, None, None, 1e-3));
    instance_norm f [[2, 6, 5], [6], [6]] (x, w, b) => x.instance_norm(Some(w), Some(b), 1e-5);
    batch_norm f [[4, 3, 5], [3], [3], [3], [3]] (x, m, v, w, b) => {
        let [y, mean, var] = x.batch_norm_training(Some(w), Some(b), 1e-3);
        (x.batch_norm(m, &v.abs(), Some(w), Some(b), 1e-3), y, mean, var)
    };
    median fi [[3, 5, 4]] (x) => {
        let ((a, b), (c, d)) = (x.median_dim(1, false), x.median_dim(-1, true));
        vec![a, b, c, d, x.median()]
    };
    median_nan f [[3, 7]] (x) => Tensor::stack(&[&edges(x), &(edges(x) * 2.0)], 0).median_dim(1, false).0;
    cummax fbi [[3, 5, 4]] (x) => {
        let ((a, b), (c, d)) = (x.cummax(1), x.cummin(-1));
        (a, b, c, d)
    };
    cummax_edges f [[3, 7]] (x) => {
        let ((a, b), (c, d)) = (edges(x).cummax(0), edges(x).flip(&[0]).cummin(0));
        (a, b, c, d)
    };
    logcumsumexp fb [[3, 5, 4]] (x) => (x.logcumsumexp(1), x.logcumsumexp(2));
    logcumsumexp_edges f [[3, 7]] (x) => edges(x).flip(&[0]).logcumsumexp(0);
}

#[test]
fn statistics_are_those_of_pytorch() {
    crate::judge(CASES, include_str!("statistics.txt"));
}
