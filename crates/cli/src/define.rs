//! The workloads, as data: `bench/definitions/*.json`.
//!
//! A definition is a graph with named sizes and types; its instances give them values. The files are part of the binary, and the engines that speak other languages
//! read the same files. Nothing is written twice: bytes and arithmetic follow from the graph.
//!
//! A large result is checked on a *sample*: the same definition with some sizes made smaller, on every n-th slice of the inputs, must give every n-th slice of the
//! result. That holds for the sizes a definition's author names there: those along which the computation does not mix elements.

use std::collections::{BTreeMap, BTreeSet};

use oxyfuel_base::{DType, Result, err};
use oxyfuel_graph::{Graph, HostTensor, Op, parse};
use serde::{Deserialize, Serialize};

use crate::fill::Fill;

/// The file of parts of models.
const BLOCKS: &str = "blocks.json";

/// Every file of definitions.
const FILES: &[(&str, &str)] = &[
    (
        "pointwise.json",
        include_str!("../../../bench/definitions/pointwise.json"),
    ),
    (
        "rows.json",
        include_str!("../../../bench/definitions/rows.json"),
    ),
    (
        "products.json",
        include_str!("../../../bench/definitions/products.json"),
    ),
    (
        "convolutions.json",
        include_str!("../../../bench/definitions/convolutions.json"),
    ),
    (
        BLOCKS,
        include_str!("../../../bench/definitions/blocks.json"),
    ),
    (
        "indexer.json",
        include_str!("../../../bench/definitions/indexer.json"),
    ),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    definitions: Vec<Definition>,
}

/// A graph with named sizes and types.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The function that other engines know it by.
    #[serde(rename = "torch")]
    pub function: String,
    /// The last inputs, where they do not change from call to call: they are what can be frozen.
    #[serde(default)]
    weights: Vec<String>,
    inputs: Vec<InputText>,
    /// Lines of the graph after its head.
    body: Vec<String>,
    /// The sizes of each result, by name.
    outputs: Vec<Vec<String>>,
    /// For each result the input that it is the new contents of, where the workload is an update: results are written there where they are not to be new.
    #[serde(default)]
    updates: Vec<String>,
    /// Results of integers whose order along the last dim is open: they are compared as sets.
    #[serde(default)]
    unordered: Vec<usize>,
    bound: Bound,
    instances: Vec<Instance>,
}

/// What limits it on a good machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    Bytes,
    Flops,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InputText {
    name: String,
    dtype: String,
    shape: Vec<String>,
    fill: String,
    /// What normal numbers are multiplied with.
    scale: Option<f32>,
    #[serde(default)]
    low: i64,
    #[serde(default)]
    high: i64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Instance {
    name: String,
    title: String,
    device: Place,
    params: BTreeMap<String, i64>,
    types: BTreeMap<String, String>,
    sample: BTreeMap<String, i64>,
    /// The share of the machine's limit that it has to reach.
    share: Option<f64>,
    /// The ratio to the better peer that it has to reach; for the driver that compares engines.
    #[serde(default, rename = "proof")]
    _proof: serde::de::IgnoredAny,
    /// Too short for what a call from Python costs; for the driver that compares engines.
    #[serde(default, rename = "rust_door_only")]
    _rust_door_only: serde::de::IgnoredAny,
    /// Large enough that two threads have to be nearly twice as fast as one; for the driver that compares engines.
    #[serde(default, rename = "large")]
    _large: serde::de::IgnoredAny,
    /// The share of the speed of multiply-adds without memory that it has to reach; for the driver that compares engines.
    #[serde(default, rename = "of_peak")]
    _of_peak: serde::de::IgnoredAny,
    /// The workload that computes the same in other words, and whose speed this one has to reach.
    beside: Option<String>,
    /// The same of a GPU, against one peer by name; for `gpu-bench`.
    #[serde(default, rename = "bar")]
    _bar: serde::de::IgnoredAny,
}

/// Where an instance is meant to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    Cpu,
    Gpu,
}

/// One definition at one size.
#[derive(Clone, Debug)]
pub struct Workload {
    pub name: String,
    pub title: String,
    pub place: Place,
    pub bound: Bound,
    /// Part of a model: many operators in one graph.
    pub is_block: bool,
    pub graph: Graph,
    pub inputs: Vec<Input>,
    definition: Definition,
    instance: Instance,
}

/// An input to make.
#[derive(Clone, Debug)]
pub struct Input {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub fill: Fill,
    pub seed: u64,
}

/// All workloads of all files, in order.
pub fn workloads() -> Result<Vec<Workload>> {
    let mut all = Vec::new();
    for (name, text) in FILES {
        let file: File = serde_json::from_str(text)
            .map_err(|error| err!(Syntax, "bench/definitions/{name}: {error}"))?;
        for definition in file.definitions {
            for instance in definition.instances.clone() {
                let context = format!("bench/definitions/{name}, {}", instance.name);
                let made = Workload::new(&definition, instance);
                let mut made = made.map_err(|error| error.context(context))?;
                made.is_block = *name == BLOCKS;
                all.push(made);
            }
        }
    }
    Ok(all)
}

/// The workload of a name.
pub fn workload(name: &str) -> Result<Workload> {
    let all = workloads()?;
    let names: Vec<String> = all.iter().map(|w| w.name.clone()).collect();
    all.into_iter().find(|w| w.name == name).ok_or_else(|| {
        let listed = format!("`oxyfuel bench --list` lists all {}", names.len());
        let like = alike(name, &names);
        err!(UnknownName, "there is no workload `{name}`").help(match like.is_empty() {
            true => listed,
            false => format!("there is {}; {listed}", like.join(", ")),
        })
    })
}

/// How many names an error lists.
const LISTED: usize = 8;

/// The names that have most words of a wrong one, or of a title.
fn alike<'a>(wrong: &str, names: &'a [String]) -> Vec<&'a str> {
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_alphanumeric());
        let words = words.filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect()
    };
    let wrong = words(wrong);
    let shared = |name: &str| words(name).intersection(&wrong).count();
    let most = names.iter().map(|name| shared(name)).max();
    let best = |name: &&String| most.is_some_and(|most| most > 0 && shared(name) == most);
    let best = names.iter().filter(best).map(String::as_str);
    best.take(LISTED).collect()
}

impl Workload {
    fn new(definition: &Definition, instance: Instance) -> Result<Self> {
        let (graph, inputs) = definition.at(&instance, &instance.params)?;
        Ok(Self {
            name: instance.name.clone(),
            title: instance.title.clone(),
            place: instance.device,
            bound: definition.bound,
            is_block: false,
            graph,
            inputs,
            definition: definition.clone(),
            instance,
        })
    }

    /// The share of the machine's limit that it has to reach, where there is a bar.
    pub fn share(&self) -> Option<f64> {
        self.instance.share
    }

    /// How many of the last inputs are weights.
    pub fn weights(&self) -> usize {
        self.definition.weights.len()
    }

    /// The workload that computes the same in other words.
    pub fn beside(&self) -> Option<&str> {
        self.instance.beside.as_deref()
    }

    /// For each result the number of the input that it is the new contents of; of most workloads none is.
    pub fn updates(&self) -> Result<Vec<usize>> {
        let number = |name: &String| {
            let found = self.inputs.iter().position(|input| input.name == *name);
            found.ok_or_else(|| err!(UnknownName, "{} updates `{name}`, no input", self.name))
        };
        self.definition.updates.iter().map(number).collect()
    }

    /// Bytes that must move: every input read once, every result written once; of a table that is only looked up, what is taken from it.
    pub fn bytes(&self) -> (u64, u64) {
        let size = |value: oxyfuel_graph::ValueId| {
            let ty = self.graph.ty(value);
            let count = ty.numel().as_const().and_then(|n| u64::try_from(n).ok());
            count.unwrap_or(0) * ty.dtype.size() as u64
        };
        let lookups = |table: oxyfuel_graph::ValueId| {
            let nodes = self.graph.nodes.values();
            let mut readers = nodes.filter(|node| node.inputs.contains(&table));
            readers.try_fold(0, |sum, node| match node.op {
                Op::Embedding if node.inputs[0] == table => Some(sum + size(node.out())),
                _ => None,
            })
        };
        let read = |&input: &oxyfuel_graph::ValueId| {
            lookups(input).map_or(size(input), |taken| taken.min(size(input)))
        };
        let read = self.graph.inputs.iter().map(read).sum();
        let written = self.graph.outputs.iter().map(|o| size(o.value)).sum();
        (read, written)
    }

    /// Multiplications and additions of its matrix products.
    pub fn flops(&self) -> u64 {
        let number = |e: oxyfuel_base::Expr| {
            e.as_const()
                .and_then(|n| u64::try_from(n).ok())
                .unwrap_or(0)
        };
        let product = |node: &oxyfuel_graph::Node, left: usize| {
            let depth = self.graph.ty(node.inputs[left]).shape.last().cloned();
            2 * number(self.graph.ty(node.out()).numel()) * depth.map_or(1, number)
        };
        self.graph
            .nodes
            .values()
            .map(|node| match &node.op {
                Op::Mm | Op::Bmm | Op::IntMm | Op::MmPanels { .. } => product(node, 0),
                Op::Addmm { .. } => product(node, 1),
                Op::Convolution { .. } => {
                    let weight = &self.graph.ty(node.inputs[1]).shape;
                    let window: u64 = weight[1..].iter().cloned().map(number).product();
                    2 * number(self.graph.ty(node.out()).numel()) * window
                }
                Op::ConvPanels { kernel, groups, .. } => {
                    let channels = self.graph.ty(node.inputs[0]).shape.last();
                    let channels = channels.cloned().map_or(1, number);
                    let depth = channels / (*groups as u64).max(1);
                    let reach: u64 = kernel.iter().map(|&n| n as u64).product();
                    2 * number(self.graph.ty(node.out()).numel()) * depth * reach
                }
                // Each query meets each key twice: in the score and in the sum of values.
                Op::Sdpa { .. } => {
                    let rows = self.graph.ty(node.out()).shape[..3].iter().cloned();
                    let [k, v] = [1, 2].map(|i| &self.graph.ty(node.inputs[i]).shape);
                    let widths = number(k[3].clone()) + number(v[3].clone());
                    2 * rows.map(number).product::<u64>() * number(k[2].clone()) * widths
                }
                // The score again, the change of a weight, and three sums.
                Op::SdpaBackward { .. } => {
                    let rows = self.graph.ty(node.inputs[0]).shape[..3].iter().cloned();
                    let [k, v] = [2, 3].map(|i| &self.graph.ty(node.inputs[i]).shape);
                    let widths = 3 * number(k[3].clone()) + 2 * number(v[3].clone());
                    2 * rows.map(number).product::<u64>() * number(k[2].clone()) * widths
                }
                _ => 0,
            })
            .sum()
    }

    /// The dtype its arithmetic takes in.
    pub fn dtype(&self) -> DType {
        self.inputs.first().map_or(DType::F32, |input| input.dtype)
    }

    /// The smaller graph of the check, its inputs cut from the whole ones, and how to cut the results alike.
    pub fn sample(&self, inputs: &[HostTensor]) -> Result<(Graph, Vec<HostTensor>)> {
        let mut params = self.instance.params.clone();
        params.extend(self.instance.sample.clone());
        let (graph, small) = self.definition.at(&self.instance, &params)?;
        let cut = self
            .definition
            .inputs
            .iter()
            .zip(&small)
            .zip(inputs)
            .map(|((_, small), whole)| every_nth(whole, &small.shape))
            .collect::<Result<_>>()?;
        Ok((graph, cut))
    }

    /// A result in the form in which two engines must agree on it.
    pub fn comparable(&self, number: usize, result: &HostTensor) -> Result<HostTensor> {
        if !self.definition.unordered.contains(&number) {
            return Ok(result.clone());
        }
        let width = result.shape.last().copied().unwrap_or(1);
        let width = usize::try_from(width).unwrap_or(1).max(1);
        let count = result.data.len() / result.dtype.size();
        let mut values: Vec<i64> = (0..count).map(|i| result.get(i).as_i64()).collect();
        values.chunks_mut(width).for_each(<[i64]>::sort_unstable);
        HostTensor::from_i64(result.dtype, &result.shape, &values)
    }

    /// The part of a result that the sample computes.
    pub fn sample_of_output(&self, number: usize, whole: &HostTensor) -> Result<HostTensor> {
        let names = self
            .definition
            .outputs
            .get(number)
            .ok_or_else(|| err!(ArityMismatch, "{} names too few outputs", self.name))?;
        let shape: Vec<i64> = names
            .iter()
            .zip(&whole.shape)
            .map(|(name, &size)| self.instance.sample.get(name).copied().unwrap_or(size))
            .collect();
        every_nth(whole, &shape)
    }
}

impl Definition {
    fn at(
        &self,
        instance: &Instance,
        params: &BTreeMap<String, i64>,
    ) -> Result<(Graph, Vec<Input>)> {
        let replace = |text: &str| {
            let mut text = text.to_owned();
            for (name, value) in params {
                text = text.replace(&format!("{{{name}}}"), &value.to_string());
            }
            for (name, value) in &instance.types {
                text = text.replace(&format!("{{{name}}}"), value);
            }
            text
        };
        let mut inputs = Vec::new();
        for (number, input) in self.inputs.iter().enumerate() {
            let size = |name: &String| {
                params
                    .get(name)
                    .copied()
                    .ok_or_else(|| err!(UnknownName, "input {} has no size {name}", input.name))
            };
            inputs.push(Input {
                name: input.name.clone(),
                dtype: replace(&input.dtype).parse()?,
                shape: input.shape.iter().map(size).collect::<Result<_>>()?,
                fill: Fill::from_name(&input.fill, input.scale, input.low, input.high)?,
                seed: number as u64 + 1,
            });
        }
        let head: Vec<String> = inputs
            .iter()
            .map(|i| format!("%{}: {}{:?} cpu", i.name, i.dtype, i.shape))
            .collect();
        let mut text = format!("graph @{}({}) {{\n", self.function, head.join(", "));
        for line in &self.body {
            text.push_str(&format!("  {}\n", replace(line)));
        }
        text.push_str("}\n");
        Ok((parse(&self.function, &text)?, inputs))
    }
}

/// Every n-th slice of each dimension, so that `shape` remains.
fn every_nth(whole: &HostTensor, shape: &[i64]) -> Result<HostTensor> {
    if whole.shape == shape {
        return Ok(whole.clone());
    }
    let bad = || err!(ShapeMismatch, "{shape:?} is no sample of {:?}", whole.shape);
    if shape.len() != whole.shape.len()
        || shape.iter().zip(&whole.shape).any(|(s, w)| *s < 1 || s > w)
    {
        return Err(bad());
    }
    let size = whole.dtype.size();
    let mut stride = size as i64;
    let mut steps = vec![0; shape.len()];
    for (at, (&small, &large)) in shape.iter().zip(&whole.shape).enumerate().rev() {
        steps[at] = stride * (large / small);
        stride *= large;
    }
    let count: i64 = shape.iter().product();
    let mut data = Vec::with_capacity(usize::try_from(count).unwrap_or(0) * size);
    let mut index = vec![0i64; shape.len()];
    for _ in 0..count {
        let at: i64 = index.iter().zip(&steps).map(|(i, step)| i * step).sum();
        let at = usize::try_from(at).map_err(|_| bad())?;
        data.extend_from_slice(&whole.data[at..at + size]);
        for (i, &extent) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < extent {
                break;
            }
            *i = 0;
        }
    }
    HostTensor::new(whole.dtype, shape, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_is_a_valid_graph_with_a_name_of_its_own() {
        let all = workloads().unwrap();
        for (i, w) in all.iter().enumerate() {
            assert!(!all[..i].iter().any(|v| v.name == w.name), "{}", w.name);
            oxyfuel_graph::verify(&w.graph).unwrap();
            assert_eq!(
                w.graph.outputs.len(),
                w.definition.outputs.len(),
                "{}",
                w.name
            );
            assert!(w.bound == Bound::Bytes || w.flops() > 0, "{}", w.name);
            let updated = w.updates().unwrap();
            assert!(updated.is_empty() || updated.len() == w.graph.outputs.len());
            let share = w.share();
            assert!(
                share.is_none_or(|share| share > 0.0 && share <= 1.0 && w.bound == Bound::Bytes)
            );
            let first = w.inputs.len() - w.weights();
            let last: Vec<&String> = w.inputs[first..].iter().map(|i| &i.name).collect();
            assert_eq!(last, w.definition.weights.iter().collect::<Vec<_>>());
            if let Some(beside) = w.beside() {
                let other = workload(beside).unwrap();
                let types = |w: &Workload| -> Vec<(DType, Vec<i64>)> {
                    w.inputs
                        .iter()
                        .map(|i| (i.dtype, i.shape.clone()))
                        .collect()
                };
                assert_eq!(types(w), types(&other), "{}", w.name);
            }
            for name in w.instance.sample.keys() {
                assert!(w.instance.params.contains_key(name), "{}: {name}", w.name);
            }
        }
    }

    #[test]
    fn every_file_is_part_of_the_binary() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/definitions");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(FILES.iter().any(|(known, _)| *known == name), "{name}");
        }
    }

    #[test]
    fn figures_follow_from_the_graph() {
        let w = workload("matmul-1024").unwrap();
        assert_eq!(w.flops(), 2 << 30);
        assert_eq!(w.bytes(), (8 << 20, 4 << 20));
    }

    /// A title is what people see in the table, and what they try first.
    #[test]
    fn a_wrong_name_is_told_those_like_it() {
        let help = |name: &str| workload(name).unwrap_err().help.unwrap_or_default();
        let found = help("var_mean over (0, 2), 16x64x4096");
        assert!(found.starts_with("there is var-mean-0-2, "), "{found}");
        assert!(found.contains("--list"), "{found}");
        let found = help("nonsense");
        assert!(found.starts_with("`oxyfuel bench --list`"), "{found}");
    }

    #[test]
    fn a_sample_is_every_nth_slice() {
        let values: Vec<i64> = (0..24).collect();
        let whole = HostTensor::from_i64(DType::I64, &[4, 6], &values).unwrap();
        let cut = every_nth(&whole, &[2, 3]).unwrap();
        let expected = [0i64, 2, 4, 12, 14, 16];
        assert_eq!(
            cut,
            HostTensor::from_i64(DType::I64, &[2, 3], &expected).unwrap()
        );
        assert!(every_nth(&whole, &[5, 6]).is_err());
    }

    /// The oracle of the samples themselves: cutting the whole result gives what the small graph computes.
    #[test]
    fn a_sample_computes_a_part_of_the_result() {
        let w = workload("matmul-512").unwrap();
        let inputs: Vec<HostTensor> = w.inputs.iter().map(|i| i.make().unwrap()).collect();
        let (small, cut) = w.sample(&inputs).unwrap();
        let part = &oxyfuel_graph::run(&small, &cut).unwrap()[0];
        let dot = |row: usize, col: usize| -> f64 {
            (0..512)
                .map(|k| {
                    inputs[0].get(row * 512 + k).as_f64() * inputs[1].get(k * 512 + col).as_f64()
                })
                .sum()
        };
        assert_eq!(part.shape, [32, 32]);
        assert!((part.get(33).as_f64() - dot(16, 16)).abs() < 1e-3);
    }
}
