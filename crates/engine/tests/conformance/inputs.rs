//! The inputs of a case file.

use oxyfuel_base::DType;
use oxyfuel_graph::{Graph, HostTensor, ValueId, parse_tensor};
use oxyfuel_testkit::Rng;

/// The graph of a case file, and what follows it.
pub fn split(input: &str) -> (&str, &str) {
    input
        .find("\n}")
        .map_or((input, ""), |end| input.split_at(end + 2))
}

/// Tensors written out, one a line; or `seed N`, from which they are drawn. `seed N sizes 3, 70` draws them for these values of the symbols; each such line is one run of code that is compiled once.
pub fn inputs_of(graph: &Graph, text: &str) -> Result<Vec<Vec<HostTensor>>, String> {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    if !lines.iter().all(|line| line.starts_with("seed ")) {
        let tensor = |line: &&str| parse_tensor("input", line).map_err(|e| e.to_string());
        return Ok(vec![lines.iter().map(tensor).collect::<Result<_, _>>()?]);
    }
    let seeded = |line: &&str| {
        let numbers = line.replace("seed", "").replace("sizes", ",");
        let numbers: Vec<i64> = numbers
            .split(',')
            .map(|n| n.trim().parse().map_err(|e| format!("{line}: {e}")))
            .collect::<Result<_, _>>()?;
        let mut rng = Rng::new(numbers[0] as u64);
        random_inputs(graph, &numbers[1..], &mut rng)
    };
    lines.iter().map(seeded).collect()
}

/// Numbers around zero for floats, small ones for integers: indices into dims of the cases stay in range.
pub fn random_inputs(
    graph: &Graph,
    sizes: &[i64],
    rng: &mut Rng,
) -> Result<Vec<HostTensor>, String> {
    let size = |symbol| {
        let at = graph.symbols.iter().position(|s| s.symbol == symbol)?;
        sizes.get(at).copied()
    };
    let tensor = |&value: &ValueId| {
        let ty = graph.ty(value);
        let shape = ty.shape.iter().map(|e| e.eval(&size));
        let shape = shape
            .collect::<Result<Vec<i64>, _>>()
            .map_err(|e| e.to_string())?;
        let count: i64 = shape.iter().product();
        let made = if ty.dtype.is_float() {
            let values: Vec<f64> = (0..count).map(|_| rng.normal()).collect();
            HostTensor::from_f64(ty.dtype, &shape, &values)
        } else {
            let values: Vec<i64> = (0..count)
                .map(|_| rng.between(0, if ty.dtype == DType::Bool { 1 } else { 4 }))
                .collect();
            HostTensor::from_i64(ty.dtype, &shape, &values)
        };
        made.map_err(|e| e.to_string())
    };
    graph.inputs.iter().map(tensor).collect()
}
