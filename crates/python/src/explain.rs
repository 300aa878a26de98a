//! What became of a graph, as JSON.
//!
//! Asked without a request it says what is known for free. A request brings the description that the graph was compiled from, which operator of the program each of its
//! nodes belongs to, and what torch's own calls cost here; then the machine is measured and the answer has times and a verdict.

use crate::compile::{Compiled, compiler};
use oxyfuel_base::{Code, Error, Result, err};
use oxyfuel_engine::cost::operators;
use oxyfuel_engine::explain::CodeKind;
use oxyfuel_engine::{Basis, HostFigures};
use std::collections::HashMap;
use std::time::Duration;

/// What is needed to compare with eager.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    description: String,
    /// By node: the operator of the uncompiled program that it is a part of.
    operators: HashMap<String, String>,
    host: HostFigures,
    /// What products of the host's library reach on a GPU, in bf16.
    #[serde(default)]
    matrix_flops_per_second: Option<f64>,
    compile_seconds: f64,
}

/// The explanation of a compiled graph.
pub fn explain(compiled: &Compiled, request: Option<&str>) -> Result<String> {
    let executable = &compiled.executable;
    let (plan, record) = (executable.plan(), executable.record());
    let said = match request {
        None => oxyfuel_engine::explain(plan, record, &Basis::default()),
        Some(text) => {
            let request: Request = serde_json::from_str(text)
                .map_err(|e| Error::new(Code::InvalidArgument, e.to_string()))?;
            let description = oxyfuel_capture::read(&request.description)?;
            let graph = oxyfuel_capture::import(&description, &compiled.settings.import())?.graph;
            let label = |node: &oxyfuel_graph::Node| {
                let source = node.origin.source.as_ref()?;
                Some(request.operators.get(source).unwrap_or(source).clone())
            };
            let operators = operators(&graph, &label)?;
            let compiler = compiler(&compiled.settings)?;
            let figures = compiler.figures().cloned().map(|mut figures| {
                figures.host = request.host;
                let rates = [
                    figures.matrix_flops_per_second,
                    request.matrix_flops_per_second,
                ];
                figures.matrix_flops_per_second = rates.into_iter().flatten().reduce(f64::max);
                figures
            });
            let guesses = graph.guesses();
            let basis = Basis {
                figures: figures.as_ref(),
                sizes: Some(&|symbol| guesses.get(&symbol).copied()),
                operators: Some(&operators),
                compile_time: Duration::try_from_secs_f64(request.compile_seconds).ok(),
                measured: None,
            };
            oxyfuel_engine::explain(plan, record, &basis)
        }
    };
    let kernels = said.kernels.iter();
    let interpreted = kernels
        .filter(|kernel| kernel.code == CodeKind::Interpreted)
        .count();
    let text = serde_json::to_value(&said).and_then(|mut value| {
        value["interpreted"] = interpreted.into();
        value["frozen"] = compiled.once.as_ref().map(|once| once.text.clone()).into();
        let device = executable.device();
        value["device"]["id"] = device.id().to_string().into();
        value["device"]["name"] = device.name().into();
        if let (Some(notes), Some(note)) = (value["notes"].as_array_mut(), executable.submitted()) {
            notes.push(note.into());
        }
        // The most bytes that a call holds at once; nothing where sizes are symbolic.
        value["memory"]["peak_bytes"] = executable.program().planned_bytes().into();
        if let Some(calls) = value["externals"].as_array_mut() {
            for call in calls {
                call["target"] = call["name"].clone();
            }
        }
        serde_json::to_string(&value)
    });
    text.map_err(|e| err!(Internal, "an explanation cannot be written: {e}"))
}
