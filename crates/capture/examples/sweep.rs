//! Replays calls that were recorded with eager's answers, one JSON object a line, and prints where a fully compiled graph disagrees.
use oxyfuel_base::DType;
use oxyfuel_capture::{ImportOptions, Products, import, read};
use oxyfuel_graph::{HostTensor, run};
use serde_json::Value as Json;
use std::collections::BTreeMap;
fn tensor(json: &Json) -> HostTensor {
    let hex = json[2].as_str().unwrap().as_bytes();
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    HostTensor {
        dtype: json[0].as_str().unwrap().parse().unwrap(),
        shape: json[1].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect(),
        data: hex.chunks(2).map(|p| digit(p[0]) * 16 + digit(p[1])).collect(),
    }
}
fn tol(d: DType) -> (f64, f64) {
    match d { DType::F64 => (1e-7, 1e-7), DType::F16 => (1e-3, 1e-5), DType::BF16 => (1.6e-2, 1e-5), _ => (1.3e-6, 1e-5) }
}
fn main() {
    let (mut ok, mut ext, mut reasons) = (0, 0, BTreeMap::<String, usize>::new());
    for path in std::env::args().skip(1) {
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let Ok(case) = serde_json::from_str::<Json>(line) else { continue };
            let id = format!("{} {} #{}", case["op"], case["dtype"], case["sample"]);
            let imported = match read(&case["description"].to_string()).and_then(|d| import(&d, &ImportOptions { products: Products::Own, ..Default::default() })) {
                Ok(i) => i,
                Err(e) => { println!("IMPORT {id}: {e}"); continue; }
            };
            if !imported.externals.is_empty() {
                ext += 1;
                for e in &imported.externals { *reasons.entry(format!("{}: {}", e.target, e.reason)).or_default() += 1; }
                continue;
            }
            let inputs: Vec<_> = case["inputs"].as_array().unwrap().iter().map(tensor).collect();
            let want: Vec<_> = case["outputs"].as_array().unwrap().iter().map(tensor).collect();
            let got = match run(&imported.graph, &inputs) { Ok(g) => g, Err(e) => { println!("RUN {id}: {}", e.message); continue; } };
            let got: Vec<_> = imported.signature.outputs.iter().filter_map(|o| match o { oxyfuel_capture::OutputKind::Value(i) => got.get(*i), _ => None }).collect();
            let mut bad = (got.len() != want.len()).then(|| format!("{} results for {}", got.len(), want.len()));
            for (g, w) in got.iter().zip(&want) {
                if (g.dtype, &g.shape) != (w.dtype, &w.shape) { bad.get_or_insert(format!("{}{:?} for {}{:?}", g.dtype, g.shape, w.dtype, w.shape)); continue; }
                let (r, a) = tol(w.dtype);
                for i in 0..w.numel() {
                    let (x, y) = (g.get(i).as_f64(), w.get(i).as_f64());
                    let same = if w.dtype.is_float() { x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= a + r * y.abs() } else { g.bits(i) == w.bits(i) };
                    if !same { bad.get_or_insert(format!("[{i}] {x} for {y}")); break; }
                }
            }
            match bad { None => ok += 1, Some(b) => { let t: Vec<String> = case["description"]["nodes"].as_array().unwrap().iter().map(|n| n["target"].as_str().unwrap().to_owned()).collect(); println!("WRONG {id}: {b}   {}", t.join(" ")) } }
        }
    }
    println!("{ok} agree, {ext} with externals");
    let mut r: Vec<_> = reasons.into_iter().collect();
    r.sort_by_key(|x| std::cmp::Reverse(x.1));
    for (k, v) in r { println!("{v:5} {k}"); }
}
