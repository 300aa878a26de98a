//! Stores that must happen even where a dim of the domain is empty.
//!
//! A value that does not vary along a dim is stored once, by the first block of that dim. Where the dim may turn out to have no elements there is no first block, so such stores get a nest of their
//! own without that dim. What both nests need is computed twice; it does not vary along the dim, so it is little.

use std::collections::BTreeMap;

use oxyfuel_base::{Result, err};

use crate::nest::{Dims, Nest, NestStore, Node};

/// The nests that together do what `nest` does, each for all extents of its own dims.
pub fn separate(nest: Nest) -> Result<Vec<Nest>> {
    let mut groups: BTreeMap<Dims, Vec<NestStore>> = BTreeMap::new();
    let walked = nest.reduced.union(nest.scanned);
    let may_be_empty = (0..nest.rank())
        .filter(|&d| {
            let constant = nest.dims[d].as_const().is_some();
            !constant && !walked.contains(d) && nest.least(d) < 1
        })
        .fold(Dims::default(), Dims::with);
    for store in &nest.stores {
        let missing = may_be_empty.minus(nest.window_support(&store.window));
        groups.entry(missing).or_default().push(store.clone());
    }
    if groups.keys().all(|missing| missing.is_empty()) || !nest.scatters.is_empty() {
        return Ok(vec![nest]);
    }
    // Who overwrites what others read comes last.
    let overwrites = |store: &NestStore| nest.buffers[store.window.buffer].read;
    let (last, mut groups): (Vec<_>, Vec<_>) = groups
        .into_iter()
        .partition(|(_, stores)| stores.iter().any(overwrites));
    if last.len() > 1 {
        return Err(err!(
            NoLowering,
            "buffers are updated in place along different dims that may be empty"
        ));
    }
    groups.extend(last);
    let mut parts = Vec::new();
    for (missing, stores) in groups {
        let mut part = restricted(&nest, stores)?;
        for d in missing.iter().collect::<Vec<_>>().into_iter().rev() {
            part.drop_dim(d);
        }
        part.collapse();
        parts.push(part);
    }
    Ok(parts)
}

/// The nest with these stores alone, and what they need.
fn restricted(nest: &Nest, stores: Vec<NestStore>) -> Result<Nest> {
    let mut wanted = vec![false; nest.values.len()];
    for store in &stores {
        wanted[store.value] = true;
    }
    for node in (0..nest.values.len()).rev() {
        if wanted[node] {
            for operand in nest.values[node].op.operands() {
                wanted[operand] = true;
            }
        }
    }
    let mut part = Nest::new(nest.name.clone(), nest.dims.clone(), &nest.known);
    part.reduced = nest.reduced;
    part.scanned = nest.scanned;
    part.buffers.clone_from(&nest.buffers);
    let mut moved: Vec<Node> = vec![0; nest.values.len()];
    for (node, value) in nest.values.iter().enumerate() {
        if wanted[node] {
            let op = value.op.with_operands(|operand| moved[operand]);
            moved[node] = part.push(op, value.dtype)?;
        }
    }
    part.stores = stores;
    for store in &mut part.stores {
        store.value = moved[store.value];
    }
    Ok(part)
}
