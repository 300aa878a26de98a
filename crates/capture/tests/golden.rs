//! Eager PyTorch as the judge: every call of `golden/*.json` is imported, compiled rows only, and interpreted.

use oxyfuel_base::{DType, Result};
use oxyfuel_capture::aten::{self, Import};
use oxyfuel_capture::{ImportOptions, import, read};
use oxyfuel_graph::{HostTensor, run};
use oxyfuel_testkit::compare;
use serde_json::Value as Json;
use std::collections::BTreeSet;

const SAMPLES: &[&str] = &[
    include_str!("golden/samples.json"),
    include_str!("golden/special.json"),
    include_str!("golden/scatter.json"),
    include_str!("golden/pool.json"),
    include_str!("golden/windows.json"),
    include_str!("golden/spaced.json"),
    include_str!("golden/order.json"),
];

fn samples() -> impl Iterator<Item = Json> {
    SAMPLES
        .iter()
        .map(|text| serde_json::from_str(text).unwrap())
}

/// Rows that no sample of one call can judge: products, convolutions and attention stay with the host, uninitialised memory has no right content.
const WITHOUT_SAMPLES: &[&str] = &[
    "mm",
    "bmm",
    "addmm",
    "_int_mm",
    "convolution",
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "new_empty",
    "new_empty_strided",
];

fn tensor(json: &Json) -> HostTensor {
    let hex = json[2].as_str().unwrap().as_bytes();
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    let data: Vec<u8> = hex
        .chunks(2)
        .map(|pair| digit(pair[0]) * 16 + digit(pair[1]))
        .collect();
    let shape = json[1].as_array().unwrap();
    HostTensor {
        dtype: json[0].as_str().unwrap().parse().unwrap(),
        shape: shape.iter().map(|n| n.as_i64().unwrap()).collect(),
        data,
    }
}

fn evaluate(case: &Json, tensors: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
    let description = read(&case["description"].to_string()).map_err(|e| e.to_string())?;
    let imported = import(&description, &ImportOptions::default()).map_err(|e| e.to_string())?;
    if let Some(external) = imported.externals.first() {
        return Err(format!("stays with the host: {}", external.reason));
    }
    let inputs: Vec<HostTensor> = pick(&case["inputs"], tensors);
    run(&imported.graph, &inputs).map_err(|e| format!("{e}\n{}", imported.graph))
}

fn pick(ids: &Json, tensors: &[HostTensor]) -> Vec<HostTensor> {
    let ids = ids.as_array().unwrap();
    ids.iter()
        .map(|i| tensors[i.as_u64().unwrap() as usize].clone())
        .collect()
}

fn format(dtype: DType) -> compare::Format {
    match dtype {
        DType::F64 => compare::F64,
        DType::F16 => compare::F16,
        DType::BF16 => compare::BF16,
        _ => compare::F32,
    }
}

/// Within the tolerance of `torch.testing.assert_close`, or a unit in the last place of the largest number.
fn disagreement(ours: &HostTensor, eager: &HostTensor) -> Option<String> {
    if (ours.dtype, &ours.shape) != (eager.dtype, &eager.shape) {
        return Some(format!(
            "{}{:?}, eager gives {}{:?}",
            ours.dtype, ours.shape, eager.dtype, eager.shape
        ));
    }
    let format = format(eager.dtype);
    let finite = eager.to_f64().into_iter().filter(|v| v.is_finite());
    let scale = finite.fold(0.0, |a: f64, b| a.max(b.abs()));
    (0..eager.numel()).find_map(|i| {
        let (a, b) = (ours.get(i).as_f64(), eager.get(i).as_f64());
        let same = if eager.dtype.is_float() {
            a == b
                || (a.is_nan() && b.is_nan())
                || format.is_close(a, b)
                || (a - b).abs() <= format.ulp(scale)
        } else {
            ours.bits(i) == eager.bits(i)
        };
        (!same).then(|| format!("element {i} is {a}, eager gives {b}"))
    })
}

#[test]
fn eager_agrees() {
    let mut wrong = vec![];
    for file in samples() {
        judge(&file, &mut wrong);
    }
    let shown: Vec<String> = wrong.iter().take(60).cloned().collect();
    assert!(
        wrong.is_empty(),
        "{} samples disagree:\n{}",
        wrong.len(),
        shown.join("\n")
    );
}

fn judge(samples: &Json, wrong: &mut Vec<String>) {
    let tensors: Vec<HostTensor> = samples["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(tensor)
        .collect();
    for case in samples["cases"].as_array().unwrap() {
        let expected = pick(&case["outputs"], &tensors);
        let verdict = match evaluate(case, &tensors) {
            Err(e) => Some(e),
            Ok(ours) if ours.len() != expected.len() => Some(format!("{} results", ours.len())),
            Ok(ours) => ours
                .iter()
                .zip(&expected)
                .find_map(|(a, b)| disagreement(a, b)),
        };
        if let Some(reason) = verdict {
            let node = &case["description"]["nodes"][0];
            let types: Vec<String> = pick(&case["inputs"], &tensors)
                .iter()
                .map(|t| format!("{}{:?}", t.dtype, t.shape))
                .collect();
            wrong.push(format!(
                "{} {} {} on {}: {reason}",
                node["target"],
                node["args"],
                node["kwargs"],
                types.join(", ")
            ));
        }
    }
}

#[test]
fn every_compiled_operator_has_a_sample() {
    let name = |target: &str| target.split('.').nth(1).unwrap_or_default().to_owned();
    let judged: BTreeSet<String> = samples()
        .flat_map(|file| file["cases"].as_array().unwrap().clone())
        .map(|c| name(c["description"]["nodes"][0]["target"].as_str().unwrap()))
        .collect();
    let missing: BTreeSet<String> = aten::rows()
        .filter(|(_, import)| !matches!(import, Import::External(_)))
        .map(|(target, _)| name(target))
        .filter(|n| {
            !judged.contains(n) && !WITHOUT_SAMPLES.contains(&n.as_str()) && !n.starts_with("empty")
        })
        .collect();
    assert!(missing.is_empty(), "no sample of {missing:?}");
}
