//! `tests/filetests/graph`: a file an operator, a file an error.
//!
//! `print` parses, verifies and prints a graph. `run` prints it too, then interprets it on the tensors that follow it, one a line.

use oxyfuel_graph::{Graph, HostTensor, parse, parse_tensor, run, text, verify};
use oxyfuel_testkit::{Case, run_folder};

#[test]
fn graph() {
    run_folder("graph", |case| {
        let (graph, rest) = split(&case.input);
        let graph = sound(case, graph)?;
        match case.command.as_str() {
            "print" => Ok(graph.to_string()),
            "run" => interpret(&graph, rest),
            other => Err(format!("unknown command `{other}`")),
        }
    });
}

/// The graph, which ends with a line `}`, and what follows it.
fn split(input: &str) -> (&str, &str) {
    input
        .find("\n}")
        .map_or((input, ""), |end| input.split_at(end + 2))
}

fn sound(case: &Case, input: &str) -> Result<Graph, String> {
    let graph = parse(&case.name, input).map_err(|e| e.to_string())?;
    verify(&graph).map_err(|e| e.to_string())?;
    Ok(graph)
}

fn interpret(graph: &Graph, tensors: &str) -> Result<String, String> {
    let lines = tensors.lines().filter(|line| !line.trim().is_empty());
    let inputs: Vec<HostTensor> = lines
        .map(|line| parse_tensor("input", line).map_err(|e| e.to_string()))
        .collect::<Result<_, _>>()?;
    let results = run(graph, &inputs).map_err(|e| e.to_string())?;
    let mut out = format!("{graph}\n");
    for result in results {
        out += &format!(
            "{}{:?} = {}\n",
            result.dtype,
            result.shape,
            text::elements_text(&result)
        );
    }
    Ok(out)
}
