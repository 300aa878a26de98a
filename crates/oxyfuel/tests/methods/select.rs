//! Indices, ranks, masks.

use crate::{cases, ints};
use oxyfuel::{Code, Tensor};

cases! {
    index fbi [[3, 4, 5]] (x) => {
        let (r, c) = (ints(&[2, 0, -1]), ints(&[1, 3, -2]));
        vec![
            x.index(&[Some(&r)]), x.index(&[Some(&r), Some(&c)]), x.index(&[None, Some(&r)]),
            x.index(&[Some(&r.unsqueeze(1)), Some(&c)]), x.index(&[Some(&r), None, Some(&c)]),
        ]
    };
    index_put fi [[3, 4, 5], [3, 5], [5]] (x, y, z) => (
        x.index_put_at(&[Some(&ints(&[2, 0, 1])), Some(&ints(&[1, 3, -2]))], y, false),
        x.index_put_at(&[Some(&ints(&[2, 0, -1])), Some(&ints(&[1, 1, -1]))], z, true),
        x.index_put_at(&[Some(&ints(&[0, 0, 0]))], z, true));
    index_put_apart f [[3, 4, 5], [3, 4]] (x, y) => x.index_put_at(&[Some(&ints(&[2, 0, 1])), None, Some(&ints(&[1, 1, 0]))], y, false);
    index_put_mask f [[3, 4]] (x) => x.index_put_at(&[Some(&x.gt(0.0))], &Tensor::from_slice(&[9.0f32], &[]), false);
    take fi [[3, 4]] (x) => x.take(&ints(&[0, 5, -1, 11]).reshape(&[2, 2]));
    put fi [[3, 4], [3]] (x, y) => (x.put(&ints(&[1, -2, 7]), y, false), x.put(&ints(&[1, 1, 7]), y, true));
    take_along_dim fi [[3, 4]] (x) => (x.take_along_dim(&x.argsort(1, false), 1), x.take_along_dim(&ints(&[2, 0]).reshape(&[2, 1]), 0));
    index_fill fi [[3, 4]] (x) => (x.index_fill(1, &ints(&[0, -1]), 2), x.index_fill(0, &ints(&[1]), &ints(&[3]).reshape(&[])));
    masked_scatter fi [[3, 4], [12]] (x, y) => x.masked_scatter(&x.gt(0), y);
    one_hot i [[2, 3]] (x) => (x.abs() % 5).one_hot(5);
    searchsorted fi [[9], [2, 5]] (x, y) => {
        let row = x.sort(0, false).0;
        let rows = y.sort(1, false).0;
        (row.searchsorted(y, false), row.searchsorted(y, true), y.bucketize(&row, false), rows.searchsorted(&y.flip(&[1]), false))
    };
    scatters fi [[3, 4], [2, 4]] (x, y) => (
        x.scatter(0, &ints(&[0, 1, 2, 0, 2, 0, 1, 1]).reshape(&[2, 4]), y),
        x.scatter_add(0, &ints(&[0, 1, 2, 0, 2, 1, 1, 0]).reshape(&[2, 4]), y),
        x.index_add(0, &ints(&[2, 2]), y));
}

#[test]
fn selections_are_those_of_pytorch() {
    crate::judge(CASES, include_str!("select.txt"));
}

#[test]
fn what_only_the_data_says_is_refused() {
    let x = crate::numbers(&[3, 4], 0, 'f');
    let mask = x.gt(0.0);
    let refused = [
        x.masked_select(&mask),
        x.nonzero(),
        x.unique(),
        x.index(&[Some(&mask)]),
        x.index_put_at(&[Some(&mask)], &x, false),
    ];
    for tensor in refused {
        let error = tensor.check().unwrap_err();
        assert_eq!(error.code, Code::DataDependent, "{error}");
        let at = error.at.as_ref().unwrap();
        assert!(
            at.file.ends_with("select.rs") && error.help.is_some(),
            "{error}"
        );
    }
}
