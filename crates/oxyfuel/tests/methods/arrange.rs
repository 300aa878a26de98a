//! Order, repetition, parts, borders.

use crate::cases;
use oxyfuel::{Padding, Tensor};

cases! {
    flip fbi [[3, 5, 4]] (x) => (x.flip(&[1]), x.flip(&[0, -1]));
    roll fi [[3, 5, 4]] (x) => (x.roll(&[2], &[1]), x.roll(&[-1, 7], &[0, 2]), x.roll(&[3], &[]));
    repeat fbi [[3, 7]] (x) => (x.repeat(&[2, 1, 3]), x.tile(&[2]), x.repeat_interleave(3, 0), x.repeat(&[0, 2]));
    triangles fbi [[2, 4, 5]] (x) => (x.tril(0), x.tril(-1), x.triu(1), x.triu(-2));
    diag_embed fi [[2, 3]] (x) => (x.diag_embed(0, -2, -1), x.diag_embed(1, -2, -1), x.diag_embed(-2, 0, 2));
    diagonal fi [[2, 4, 5]] (x) => (x.diagonal(0, 1, 2), x.diagonal(2, 1, 2), x.diagonal(-3, 2, 0), x.diagonal(9, 1, 2));
    diag f [[4, 3], [3]] (x, y) => (x.diag(1), y.diag(-1), x.trace());
    diagonal_scatter fi [[4, 5], [4]] (x, y) => (x.diagonal_scatter(y, 1, 0, 1), x.diagonal_scatter(y, 0, 1, 0));
    select_scatter fi [[4, 5], [4]] (x, y) => x.select_scatter(y, 1, -2);
    unfold_dim fi [[3, 8]] (x) => (x.unfold_dim(1, 3, 2), x.unfold_dim(0, 2, 1));
    split f [[7, 4]] (x) => [x.split(3, 0), x.split_with_sizes(&[1, 3], 1), x.unbind(1)].concat();
    movedim f [[3, 5, 4]] (x) => (x.movedim(&[0], &[2]), x.movedim(&[0, 1], &[-1, 0]));
    squeeze f [[1, 3, 1, 2]] (x) => (x.squeeze_all(), x.squeeze_dims(&[0, 1]));
    meshgrid fi [[3], [4]] (x, y) => Tensor::meshgrid(&[x, y]);
    pixel_shuffle fb [[2, 8, 3, 2], [2, 4, 6]] (x, y) => (x.pixel_shuffle(2), y.pixel_unshuffle(2));
    pad fbi [[2, 3, 4]] (x) => {
        let zeros = Padding::Constant(0.0);
        (x.pad(&[1, 2], zeros), x.pad(&[0, 1, 2, 0, 1, 1], Padding::Constant(3.0)), x.pad(&[-1, 2, 1, -1], zeros))
    };
    pad_indexed fb [[2, 3, 4]] (x) => {
        let modes = [Padding::Reflect, Padding::Replicate, Padding::Circular];
        modes.iter().flat_map(|&m| [x.pad(&[3, 1], m), x.pad(&[2, 0], m)]).collect::<Vec<_>>()
    };
    pad_indexed_2d f [[1, 2, 3, 4]] (x) => [Padding::Reflect, Padding::Replicate, Padding::Circular].map(|m| x.pad(&[1, 2, 2, 1], m)).to_vec();
}

#[test]
fn arrangements_are_those_of_pytorch() {
    crate::judge(CASES, include_str!("arrange.txt"));
}

/// Parts and diagonals share memory with the whole.
#[test]
fn views_are_views() {
    let x = Tensor::zeros(&[3, 4], oxyfuel::DType::F32);
    x.diagonal(0, 0, 1).fill_(1).unwrap();
    x.split(2, 1)[1].slice(0, 2, 3, 1).fill_(5).unwrap();
    x.unbind(0)[1].slice(0, 0, 1, 1).fill_(7).unwrap();
    x.movedim(&[0], &[1])
        .select(0, 3)
        .slice(0, 0, 1, 1)
        .fill_(9)
        .unwrap();
    let expected = [1., 0., 0., 9., 7., 1., 0., 0., 0., 0., 5., 5.];
    assert_eq!(x.to_vec::<f32>().unwrap(), expected);
}

/// Results of recipes have memory of their own, also where no element moves.
#[test]
fn recipes_do_not_share_memory() {
    let x = Tensor::ones(&[2, 3], oxyfuel::DType::F32);
    let same = |x: &Tensor| {
        vec![
            x.roll(&[0], &[1]),
            x.pad(&[], Padding::Reflect),
            x.tile(&[1]),
            x.flip(&[]),
            x.round_decimals(0),
        ]
    };
    let f = oxyfuel::compile(move |x: &Tensor| same(x), oxyfuel::Options::default()).unwrap();
    for mut y in [same(&x), f.call(&[&x]).unwrap()].concat() {
        y.fill_(3).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 6]);
    }
}
