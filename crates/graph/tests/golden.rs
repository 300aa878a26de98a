//! Eager PyTorch as the judge: every sample of `golden/samples.json` through the builder (promotion, broadcasting, shape rules) and
//! the interpreter.

use oxyfuel_base::{DType, Error, Expr, Result, Scalar, err};
use oxyfuel_graph::builder::result_type;
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::{
    Binary, Builder, Compare, Device, HostTensor, Meet, OpInfo, Operand, Reduce, Scatter, Unary,
    ValueId, run,
};
use oxyfuel_testkit::compare;
use serde_json::Value as Json;

const SAMPLES: &str = include_str!("golden/samples.json");
const CPU: Device = Device::Cpu;

/// How close a result must be to eager's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tolerance {
    /// The same number; zeros of either sign and all NaNs count as the same.
    Exact,
    /// Off by units in the last place: both sides approximate a transcendental function.
    Ulps(f64),
    /// `torch.testing.assert_close`'s defaults: both sides sum in an order of their own.
    Sum,
}

fn tolerance(op: &str, dtype: DType) -> Tolerance {
    if !dtype.is_float() {
        return Tolerance::Exact;
    }
    match op {
        "silu" | "sigmoid" | "tanh" | "exp" | "exp2" | "expm1" | "log" | "log2" | "log1p"
        | "log10" | "sqrt" | "rsqrt" | "erf" | "sin" | "cos" | "tan" | "asin" | "acos" | "atan"
        | "atan2" | "sinh" | "cosh" | "asinh" | "acosh" | "atanh" | "pow" => Tolerance::Ulps(2.0),
        // The interpreter subtracts near 1.
        "erfc" => Tolerance::Ulps(8.0),
        // Eager's gelu cancels for negative numbers, ours does not.
        "gelu" | "gelu:tanh" | "sum" | "mean" | "prod" | "cumsum" | "cumprod" | "linear_scan"
        | "var" | "sdpa" | "convolution" | "_softmax" | "_log_softmax" | "layer_norm"
        | "native_layer_norm" | "mm" | "bmm" | "addmm" | "matmul" | "linear" | "scatter:sum"
        | "scatter:prod" | "scatter_reduce" | "index_reduce" | "embedding_backward" => {
            Tolerance::Sum
        }
        _ => Tolerance::Exact,
    }
}

fn format(dtype: DType) -> compare::Format {
    match dtype {
        DType::F64 => compare::F64,
        DType::F16 => compare::F16,
        DType::BF16 => compare::BF16,
        _ => compare::F32,
    }
}

/// `scale` is the largest finite magnitude in the tensor.
fn agree(tolerance: Tolerance, dtype: DType, ours: f64, eager: f64, scale: f64) -> bool {
    if ours == eager || (ours.is_nan() && eager.is_nan()) {
        return true;
    }
    let format = format(dtype);
    match tolerance {
        Tolerance::Exact => false,
        // Eager's vector maths may flush a denormal result.
        Tolerance::Ulps(n) => {
            (ours - eager).abs()
                <= n * format.ulp(eager) + format.ulp(0.0) * 2f64.powi(format.mantissa)
        }
        Tolerance::Sum => format.is_close(ours, eager) || (ours - eager).abs() <= format.ulp(scale),
    }
}

#[test]
fn eager_agrees() {
    let samples: Json = serde_json::from_str(SAMPLES).unwrap();
    let tensors: Vec<HostTensor> = list(&samples["tensors"]).iter().map(tensor).collect();
    let mut wrong = vec![];
    for case in list(&samples["cases"]) {
        if let Err(reason) = check(case, &tensors) {
            let inputs: Vec<String> = list(&case[1])
                .iter()
                .map(|i| show_input(i, &tensors))
                .collect();
            wrong.push(format!(
                "{} ({}) {}: {reason}",
                case[0],
                inputs.join(", "),
                case[2]
            ));
        }
    }
    let shown: Vec<String> = wrong.iter().take(60).cloned().collect();
    assert!(
        wrong.is_empty(),
        "{} samples disagree:\n{}",
        wrong.len(),
        shown.join("\n")
    );
}

fn show_input(input: &Json, tensors: &[HostTensor]) -> String {
    match input.as_u64() {
        Some(i) => format!(
            "{}{:?}",
            tensors[i as usize].dtype, tensors[i as usize].shape
        ),
        None => input.to_string(),
    }
}

fn check(case: &Json, tensors: &[HostTensor]) -> Result<(), String> {
    let op = case[0].as_str().unwrap();
    let ours = evaluate(op, list(&case[1]), &case[2], tensors);
    let Some(expected) = case[3].as_array() else {
        return match ours {
            Err(_) => Ok(()),
            Ok(_) => Err("eager refuses this".to_owned()),
        };
    };
    let ours = ours.map_err(|e| e.to_string())?;
    for (ours, expected) in ours.iter().zip(expected) {
        let eager = &tensors[expected.as_u64().unwrap() as usize];
        if (ours.dtype, &ours.shape) != (eager.dtype, &eager.shape) {
            return Err(format!(
                "{}{:?}, eager gives {}{:?}",
                ours.dtype, ours.shape, eager.dtype, eager.shape
            ));
        }
        let tolerance = tolerance(op, eager.dtype);
        let scale = eager
            .to_f64()
            .into_iter()
            .filter(|v| v.is_finite())
            .fold(0.0, |a: f64, b| a.max(b.abs()));
        for i in 0..eager.numel() {
            let same = if eager.dtype.is_float() {
                agree(
                    tolerance,
                    eager.dtype,
                    ours.get(i).as_f64(),
                    eager.get(i).as_f64(),
                    scale,
                )
            } else {
                ours.bits(i) == eager.bits(i)
            };
            if !same {
                return Err(format!(
                    "element {i} is {}, eager gives {} ({tolerance:?})",
                    ours.get(i),
                    eager.get(i)
                ));
            }
        }
    }
    if ours.len() == expected.len() {
        Ok(())
    } else {
        Err(format!("{} results", ours.len()))
    }
}

/// Builds a graph of one operator and runs it.
fn evaluate(
    op: &str,
    inputs: &[Json],
    at: &Json,
    tensors: &[HostTensor],
) -> Result<Vec<HostTensor>> {
    let mut b = Builder::new("sample");
    let (mut operands, mut actual) = (vec![], vec![]);
    for input in inputs {
        operands.push(match input.as_u64() {
            Some(i) => {
                let tensor = &tensors[i as usize];
                let shape = tensor.shape.iter().map(|&n| Expr::from(n)).collect();
                actual.push(tensor.clone());
                Operand::Value(b.input("x", tensor.dtype, shape, CPU)?)
            }
            None => Operand::Number(number(input)),
        });
    }
    for out in apply(&mut b, op, &operands, at)? {
        b.output(out);
    }
    run(&b.finish()?, &actual)
}

/// The family member of a name such as `div:floor`.
fn member<F: Copy>(all: &[F], info: impl Fn(F) -> &'static OpInfo, op: &str) -> Option<F> {
    let (name, fixed) = op.split_once(':').map_or((op, None), |(n, f)| (n, Some(f)));
    all.iter()
        .copied()
        .find(|&f| info(f).name == name && info(f).fixed.map(|(_, value)| value) == fixed)
}

fn apply(b: &mut Builder, op: &str, operands: &[Operand], at: &Json) -> Result<Vec<ValueId>> {
    let value = |i: usize| match operands.get(i) {
        Some(Operand::Value(v)) => Ok(*v),
        _ => Err(err!(InvalidArgument, "operand {i} is no tensor")),
    };
    let optional = |i: usize| value(i).ok();
    let int = |name: &str| at[name].as_i64().unwrap_or_else(|| panic!("{op}: {name}"));
    let ints = |name: &str| {
        list(&at[name])
            .iter()
            .map(|n| n.as_i64().unwrap())
            .collect::<Vec<_>>()
    };
    let exprs = |name: &str| ints(name).into_iter().map(Expr::from).collect::<Vec<_>>();
    let dtype = |name: &str| at[name].as_str().map(|d| d.parse::<DType>().unwrap());
    let bound = |name: &str| {
        if int(name) == 1 << 62 {
            i64::MAX
        } else {
            int(name)
        }
    };
    let one = |v: Result<ValueId>| v.map(|v| vec![v]);
    if let Some(f) = member(Unary::ALL, Unary::info, op) {
        return one(b.unary(f, value(0)?));
    }
    if let Some(f) = member(Binary::ALL, Binary::info, op) {
        return one(b.binary(f, operands[0], operands[1]));
    }
    if let Some(f) = member(Compare::ALL, Compare::info, op) {
        return one(b.compare(f, operands[0], operands[1]));
    }
    if let Some(f) = member(Reduce::ALL, Reduce::info, op) {
        return one(b.reduce(f, value(0)?, &ints("dims"), at["keepdim"] == true));
    }
    if let Some(f) = member(Scatter::ALL, Scatter::info, op) {
        return one(b.scatter(f, value(0)?, int("dim"), value(2)?, operands[1]));
    }
    let meet = || {
        let name = at["reduce"].as_str().unwrap_or_default();
        *Meet::ALL.iter().find(|m| m.name() == name).unwrap()
    };
    match op {
        "scatter_reduce" => one(b.scatter_reduce(
            meet(),
            value(0)?,
            int("dim"),
            value(2)?,
            value(1)?,
            at["include_self"] == true,
        )),
        "index_reduce" => one(b.index_reduce(
            meet(),
            value(0)?,
            int("dim"),
            value(2)?,
            value(1)?,
            at["include_self"] == true,
        )),
        "embedding_backward" => one(b.embedding_backward(
            value(0)?,
            value(1)?,
            int("rows").into(),
            Some(int("padding")).filter(|&p| p >= 0),
            at["by_count"] == true,
        )),
        "where" => one(b.where_(value(0)?, operands[1], operands[2])),
        "clamp" => one(b.clamp(value(0)?, Some(operands[1]), Some(operands[2]))),
        "logical_and" => one(b.logical_and(value(0)?, value(1)?)),
        "logical_or" => one(b.logical_or(value(0)?, value(1)?)),
        "logical_xor" => one(b.logical_xor(value(0)?, value(1)?)),
        "cast" => one(b.cast(value(0)?, dtype("dtype").unwrap())),
        "argmax" => one(b.argmax(value(0)?, int("dim"), at["keepdim"] == true)),
        "argmin" => one(b.argmin(value(0)?, int("dim"), at["keepdim"] == true)),
        "argsort" => one(b.argsort(value(0)?, int("dim"), at["descending"] == true)),
        "cumsum" => one(b.cumsum(value(0)?, int("dim"))),
        "cumprod" => one(b.cumprod(value(0)?, int("dim"))),
        "linear_scan" => one(b.linear_scan(value(0)?, value(1)?, int("dim"))),
        "var" => one(b.var(
            value(0)?,
            &ints("dims"),
            int("correction") as f64,
            at["keepdim"] == true,
        )),
        "_softmax" => one(b.softmax(value(0)?, int("dim"))),
        "_log_softmax" => one(b.log_softmax(value(0)?, int("dim"))),
        "layer_norm" => one(b.layer_norm(
            value(0)?,
            &exprs("shape"),
            optional(1),
            optional(2),
            at["eps"].as_f64().unwrap(),
        )),
        "native_layer_norm" => {
            let rank = usize::try_from(int("rank")).unwrap();
            b.native_layer_norm(
                value(0)?,
                rank,
                optional(1),
                optional(2),
                at["eps"].as_f64().unwrap(),
            )
            .map(Vec::from)
        }
        "sdpa" => {
            let (causal, scale) = (at["causal"].as_bool(), at["scale"].as_f64());
            let operands = [value(0)?, value(1)?, value(2)?];
            b.sdpa(operands, optional(3), causal.unwrap(), scale.unwrap())
                .map(Vec::from)
        }
        "convolution" => {
            let how = Convolution {
                stride: vec![int("stride")],
                padding: vec![int("padding")],
                dilation: vec![int("dilation")],
                groups: int("groups"),
            };
            one(b.convolution(value(0)?, value(1)?, None, &how))
        }
        "view" => one(b.view(value(0)?, &exprs("shape"))),
        "permute" => one(b.permute(value(0)?, &ints("dims"))),
        "transpose" => one(b.transpose(value(0)?, int("a"), int("b"))),
        "expand" => one(b.expand(value(0)?, &exprs("shape"))),
        "slice" => one(b.slice(
            value(0)?,
            int("dim"),
            bound("start"),
            bound("end"),
            int("step"),
        )),
        "select" => one(b.select(value(0)?, int("dim"), int("index"))),
        "unsqueeze" => one(b.unsqueeze(value(0)?, int("dim"))),
        "squeeze" => one(b.squeeze(value(0)?, int("dim"))),
        "cat" => {
            let parts = (0..operands.len()).map(value).collect::<Result<Vec<_>>>()?;
            one(b.cat(&parts, int("dim")))
        }
        "gather" => one(b.gather(value(0)?, int("dim"), value(1)?)),
        "index_select" => one(b.index_select(value(0)?, int("dim"), value(1)?)),
        "embedding" => one(b.embedding(value(0)?, value(1)?)),
        "slice_scatter" => one(b.slice_scatter(
            value(0)?,
            value(1)?,
            int("dim"),
            bound("start"),
            bound("end"),
            int("step"),
        )),
        "index_put" => one(b.index_put(value(0)?, value(1)?, int("dim"), value(2)?)),
        "copy" => one(b.copy(value(0)?, operands[1])),
        "arange" => one(b.arange(
            number(&at["start"]),
            number(&at["end"]),
            number(&at["step"]),
            dtype("dtype"),
            CPU,
        )),
        "full" => one(b.full(
            number(&at["value"]),
            exprs("shape"),
            dtype("dtype").unwrap(),
            CPU,
        )),
        "mm" => one(b.mm(value(0)?, value(1)?)),
        "bmm" => one(b.bmm(value(0)?, value(1)?)),
        "_int_mm" => one(b.int_mm(value(0)?, value(1)?)),
        "addmm" => one(b.addmm(
            value(0)?,
            value(1)?,
            value(2)?,
            number(&at["beta"]),
            number(&at["alpha"]),
        )),
        "matmul" => one(b.matmul(value(0)?, value(1)?)),
        "linear" => one(b.linear(value(0)?, value(1)?, optional(2))),
        _ => panic!("samples name an unknown operator {op}"),
    }
}

#[test]
fn every_operator_has_a_sample() {
    let samples: Json = serde_json::from_str(SAMPLES).unwrap();
    let sampled: Vec<&str> = list(&samples["cases"])
        .iter()
        .map(|c| c[0].as_str().unwrap())
        .collect();
    // What the builder makes of these names is sampled under others, or has nothing to compare with in eager.
    // Gradients of attention are judged by differences, in `product.rs`.
    let elsewhere = [
        "_to_copy",
        "clone",
        "scalar_tensor",
        "constant",
        "external",
        "sdpa_backward",
        "mm_panels",
        "conv_panels",
    ];
    for row in oxyfuel_graph::op::table().filter(|row| !elsewhere.contains(&row.name)) {
        let name = row.fixed.map_or(row.name.to_owned(), |(_, value)| {
            format!("{}:{value}", row.name)
        });
        assert!(sampled.contains(&name.as_str()), "no sample of {name}");
    }
}

#[test]
fn promotion_is_that_of_eager() {
    let samples: Json = serde_json::from_str(SAMPLES).unwrap();
    for p in list(&samples["promotions"]) {
        let dtype = |i: usize| p[i].as_str().map(|d| d.parse::<DType>().unwrap());
        let rank = |i: usize| p[i].as_u64().map(|r| r as usize);
        let ours: Result<Option<DType>, Error> =
            result_type([(dtype(0).unwrap(), rank(1)), (dtype(2).unwrap(), rank(3))]);
        // Eager has no promotion for these; ours lets a bool join.
        let lenient = |a: DType, b: DType| {
            matches!(a, DType::U16 | DType::U32 | DType::U64) && b == DType::Bool
        };
        let (a, b) = (dtype(0).unwrap(), dtype(2).unwrap());
        if lenient(a, b) || lenient(b, a) {
            continue;
        }
        assert_eq!(ours.ok().flatten(), dtype(4), "{p}");
    }
}

fn list(json: &Json) -> &[Json] {
    json.as_array().unwrap()
}

fn number(json: &Json) -> Scalar {
    json["n"].as_str().unwrap().parse().unwrap()
}

fn tensor(json: &Json) -> HostTensor {
    let dtype = json[0].as_str().unwrap().parse().unwrap();
    let shape: Vec<i64> = list(&json[1]).iter().map(|n| n.as_i64().unwrap()).collect();
    let hex = json[2].as_str().unwrap();
    let data = (0..hex.len() / 2)
        .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    HostTensor::new(dtype, &shape, data).unwrap()
}
