//! The CPU workloads of `bench/definitions`, reduced to what a comparison asks.

use crate::workspace;
use serde_json::Value;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Workload {
    pub name: String,
    pub title: String,
    /// The ratio to the better peer that it has to reach.
    pub bar: Option<f64>,
    /// Memory is what limits it.
    pub is_bytes: bool,
    /// No product of matrices is in it.
    pub is_plain: bool,
    /// Too short for what a call from Python costs.
    pub rust_door_only: bool,
    /// What it is made of, where it is no plain work.
    pub family: Option<Family>,
    /// The type it computes in.
    pub dtype: String,
    /// The share of a plain read's speed that it has to reach.
    pub share: Option<f64>,
    /// The share of the speed of multiply-adds without memory that it has to reach.
    pub of_peak: Option<f64>,
    /// Large enough that two threads have to be nearly twice as fast as one.
    pub large: bool,
}

/// Workloads that multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Product,
    Attention,
    Convolution,
    /// Parts of models, which have all of them.
    Block,
}

impl Family {
    pub const ALL: [Self; 4] = [
        Self::Product,
        Self::Attention,
        Self::Convolution,
        Self::Block,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Product => "products",
            Self::Attention => "attention",
            Self::Convolution => "convolutions",
            Self::Block => "blocks",
        }
    }

    /// By the file it stands in and the ops of its graph.
    fn of(file: &Path, body: &str) -> Option<Self> {
        let has = |ops: &[&str]| ops.iter().any(|op| body.contains(op));
        match has(PRODUCTS) {
            false => None,
            true if file.ends_with("blocks.json") => Some(Self::Block),
            true if file.ends_with("indexer.json") => None,
            true if has(&["= convolution "]) => Some(Self::Convolution),
            true if body.contains("sdpa %") => Some(Self::Attention),
            // Scores and weights are products of a batch; a softmax of a layer's results is not attention.
            true if has(&["= _softmax "]) && has(&["= bmm ", "= matmul "]) => Some(Self::Attention),
            true => Some(Self::Product),
        }
    }
}

/// Ops whose definitions are products.
const PRODUCTS: &[&str] = &[
    "= mm ",
    "= _int_mm ",
    "= bmm ",
    "= addmm ",
    "= matmul ",
    "= sdpa ",
    "= convolution ",
];

/// The CPU workloads of the definitions, in order.
pub fn workloads(filter: &str, proofs: bool) -> Result<Vec<Workload>, String> {
    let folder = workspace::root().join("bench/definitions");
    let cannot = |e: std::io::Error| format!("cannot read bench/definitions: {e}");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map_err(cannot)?
        .filter_map(|e| Some(e.ok()?.path()))
        .collect();
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(cannot)?;
        let value: Value =
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        for definition in value["definitions"].as_array().into_iter().flatten() {
            let body = definition["body"].to_string();
            let instances = definition["instances"].as_array().into_iter().flatten();
            for instance in instances.filter(|i| i["device"] == "cpu") {
                all.push(Workload {
                    name: instance["name"].as_str().unwrap_or_default().to_owned(),
                    title: instance["title"].as_str().unwrap_or_default().to_owned(),
                    bar: instance["proof"].as_f64(),
                    is_bytes: definition["bound"] == "bytes",
                    is_plain: !PRODUCTS.iter().any(|op| body.contains(op)),
                    rust_door_only: instance["rust_door_only"] == true,
                    family: Family::of(&file, &body),
                    dtype: instance["types"]["t"].as_str().unwrap_or("i8").to_owned(),
                    share: instance["share"].as_f64(),
                    of_peak: instance["of_peak"].as_f64(),
                    large: instance["large"] == true,
                });
            }
        }
    }
    all.retain(|w| w.name.contains(filter) && (!proofs || w.bar.is_some()));
    if all.is_empty() {
        return Err(format!("no workload is called like `{filter}`"));
    }
    Ok(all)
}

/// The first whose name contains this.
#[cfg(test)]
pub fn workload(name: &str) -> Workload {
    let mut named = workloads(name, false).unwrap();
    named.retain(|workload| workload.name == name);
    named.remove(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_hold_the_proofs() {
        let all = workloads("", true).unwrap();
        for name in [
            "softmax",
            "layer-norm",
            "gelu-bias",
            "add-relu-mul-10m",
            "matmul-bf16-2048",
        ] {
            assert!(all.iter().any(|w| w.name == name), "{name}");
        }
    }

    #[test]
    fn rows_without_products_are_told_by_their_graphs() {
        assert!(workload("softmax").is_plain && workload("rotary").is_plain);
        assert!(!workload("matmul-1024").is_plain && !workload("attention").is_plain);
        assert!(workload("add-relu-mul-1k").rust_door_only);
    }

    #[test]
    fn families_follow_from_the_graphs() {
        for (name, family) in [
            ("softmax", None),
            ("matmul-1024", Some(Family::Product)),
            ("int-linear-2048", Some(Family::Product)),
            ("attention", Some(Family::Attention)),
            ("attention-decode", Some(Family::Attention)),
            ("conv-stem-b1", Some(Family::Convolution)),
            ("gpt2-layer", Some(Family::Block)),
            ("pq-indexer", None),
        ] {
            assert_eq!(workload(name).family, family, "{name}");
        }
    }
}
