//! The CPU workloads of `bench/definitions`, reduced to what a comparison asks.

use crate::workspace;
use serde_json::Value;
use std::path::PathBuf;

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
}

/// Ops whose definitions are products.
const PRODUCTS: &[&str] = &[
    "= mm ",
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
    workloads(name, false).unwrap().remove(0)
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
}
