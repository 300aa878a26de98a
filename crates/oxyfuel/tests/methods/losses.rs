//! Losses and similarities.

use crate::{cases, ints};
use oxyfuel::{ClassLoss, Reduction, Tensor};

const ALL: [Reduction; 3] = [Reduction::None, Reduction::Mean, Reduction::Sum];

fn targets() -> Tensor {
    ints(&[1, 0, 4, -100])
}

fn images() -> Tensor {
    ints(&[0, 1, 2, 0, 1, 2, 0, 1]).reshape(&[2, 4])
}

fn how(reduction: Reduction) -> ClassLoss<'static> {
    ClassLoss {
        reduction,
        ..ClassLoss::default()
    }
}

cases! {
    mse fb [[4, 5], [4, 5]] (x, y) => ALL.map(|r| x.mse_loss(y, r)).to_vec();
    l1 fb [[4, 5], [4, 5]] (x, y) => ALL.map(|r| x.l1_loss(y, r)).to_vec();
    smooth_l1 fb [[4, 5], [4, 5]] (x, y) => (
        x.smooth_l1_loss(y, 1.0, Reduction::Mean), x.smooth_l1_loss(y, 0.5, Reduction::None), x.smooth_l1_loss(y, 0.0, Reduction::Mean));
    huber fb [[4, 5], [4, 5]] (x, y) => (x.huber_loss(y, 1.0, Reduction::Mean), x.huber_loss(y, 0.5, Reduction::None));
    bce f [[4, 5], [4, 5], [5]] (x, y, w) => (
        x.sigmoid().binary_cross_entropy(&y.sigmoid(), None, Reduction::Mean),
        x.sigmoid().binary_cross_entropy(&y.gt(0.0).to(y.dtype()), Some(w), Reduction::None));
    bce_logits fb [[4, 5], [4, 5], [5]] (x, y, w) => (
        x.binary_cross_entropy_with_logits(&y.sigmoid(), None, None, Reduction::None),
        x.binary_cross_entropy_with_logits(&y.gt(0.0).to(y.dtype()), Some(w), Some(&w.abs()), Reduction::Sum));
    kl_div f [[4, 5], [4, 5]] (x, y) => (
        x.kl_div(&y.softmax(1), false, Reduction::None), x.kl_div(&y.log_softmax(1), true, Reduction::Sum));
    nll f [[4, 5], [5]] (x, w) => {
        let w = w.abs();
        let weighted = |r| ClassLoss { weight: Some(&w), ..how(r) };
        [ALL.map(|r| x.nll_loss(&targets(), &how(r))), ALL.map(|r| x.nll_loss(&targets(), &weighted(r)))].concat()
    };
    nll_2d fb [[2, 3, 4]] (x) => (
        x.nll_loss(&images(), &how(Reduction::None)), x.nll_loss(&images(), &ClassLoss { ignore_index: 1, ..ClassLoss::default() }));
    nll_one f [[5]] (x) => {
        let target = ints(&[3]).reshape(&[]);
        (x.nll_loss(&target, &how(Reduction::Mean)), x.nll_loss(&target, &how(Reduction::None)))
    };
    cross_entropy f [[4, 5], [5]] (x, w) => {
        let w = w.abs();
        let weighted = ClassLoss { weight: Some(&w), ..ClassLoss::default() };
        (
            x.cross_entropy(&targets(), &ClassLoss::default()),
            x.cross_entropy(&targets(), &ClassLoss { reduction: Reduction::None, ..weighted }),
            x.cross_entropy(&targets(), &ClassLoss { label_smoothing: 0.1, ..weighted }),
            x.cross_entropy(&targets(), &ClassLoss { label_smoothing: 0.25, ..how(Reduction::Sum) }),
        )
    };
    cross_entropy_2d f [[2, 3, 4], [3]] (x, w) => {
        let w = w.abs();
        let smooth = ClassLoss { weight: Some(&w), label_smoothing: 0.1, ..ClassLoss::default() };
        (x.cross_entropy(&images(), &smooth), x.cross_entropy(&images(), &ClassLoss::default()))
    };
    cross_entropy_probabilities f [[4, 5], [4, 5], [5]] (x, y, w) => {
        let w = w.abs();
        let smooth = ClassLoss { weight: Some(&w), label_smoothing: 0.1, ..ClassLoss::default() };
        (
            x.cross_entropy(&y.softmax(1), &how(Reduction::None)),
            x.cross_entropy(&y.softmax(1), &smooth),
            x.select(0, 0).cross_entropy(&y.select(0, 0).softmax(0), &ClassLoss::default()),
        )
    };
    cosine f [[4, 5], [4, 5]] (x, y) => (
        x.cosine_similarity(y, 1, 1e-8), x.cosine_similarity(&y.select(0, 0), 0, 1e-8), (x * 0.0).cosine_similarity(y, 1, 1e-8));
    normalize fb [[4, 5]] (x) => (x.normalize(2.0, 1, 1e-12), x.normalize(1.0, 0, 1e-12), (x * 0.0).normalize(2.0, 1, 1e-12));
    pairwise f [[4, 5], [4, 5]] (x, y) => x.pairwise_distance(y, 3.0, 1e-6);
}

#[test]
fn losses_are_those_of_pytorch() {
    crate::judge(CASES, include_str!("losses.txt"));
}
