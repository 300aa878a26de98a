//! Rules on a joint graph: forward and backward together, before the host cuts them in two.
//!
//! The rules are those that change no bit of any value, so the cut that follows sees the same program with less work in it.

use oxyfuel_base::{Result, err};
use oxyfuel_capture::{ImportOptions, Products, export, import_values, read};
use oxyfuel_transform::same_values;

/// The edits of a described joint graph, as the text that [`oxyfuel_capture::export`](mod@oxyfuel_capture::export) describes.
pub fn rewrite_joint(description: &str) -> Result<String> {
    let description = read(description)?;
    // Products are ours here: whoever computes them, equal ones are equal.
    let options = ImportOptions {
        products: Products::Own,
        ..ImportOptions::default()
    };
    let values = import_values(&description, &options)?;
    let same = same_values(&values.graph)?;
    let edits = export(&description, &values, &same)?;
    serde_json::to_string(&edits).map_err(|e| err!(Internal, "edits cannot be written: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn tensor(strides: [i64; 2]) -> Value {
        json!({"kind": "tensor", "type": {"dtype": "float32", "shape": [3, 4], "strides": strides}})
    }

    fn node(name: &str, target: &str, args: Value, strides: [i64; 2]) -> Value {
        json!({"name": name, "target": target, "args": args, "results": [tensor(strides)]})
    }

    fn edits(nodes: Vec<Value>, outputs: Value) -> Value {
        let x = json!({"name": "x", "kind": "tensor", "type": {"dtype": "float32", "shape": [3, 4], "strides": [4, 1]}});
        let text = json!({"version": 1, "name": "joint", "inputs": [x], "nodes": nodes, "outputs": outputs});
        serde_json::from_str(&rewrite_joint(&text.to_string()).unwrap()).unwrap()
    }

    const ROWS: [i64; 2] = [4, 1];

    #[test]
    fn equal_calls_become_one() {
        let x = json!([{"node": "x"}]);
        let sum = json!([{"node": "b"}, {"node": "c"}]);
        let made = edits(
            vec![
                node("a", "aten.exp.default", x.clone(), ROWS),
                node("b", "aten.exp.default", x, ROWS),
                node("c", "aten.mul.Tensor", json!([{"node": "a"}, 1]), ROWS),
                node("y", "aten.add.Tensor", sum, ROWS),
            ],
            json!([{"node": "y"}]),
        );
        assert_eq!(
            made["replace"],
            json!([{"value": {"node": "b"}, "with": {"node": "a"}}, {"value": {"node": "c"}, "with": {"node": "a"}}])
        );
        assert_eq!(made["remove"], json!(["c", "b"]));
    }

    #[test]
    fn results_and_other_strides_stay() {
        let x = json!([{"node": "x"}]);
        let made = edits(
            vec![
                node("a", "aten.exp.default", x.clone(), ROWS),
                node("b", "aten.exp.default", x.clone(), ROWS),
                node("c", "aten.exp.default", x.clone(), [1, 3]),
                node("d", "aten.neg.default", json!([{"node": "c"}]), ROWS),
                node("unread", "aten.neg.default", x, ROWS),
            ],
            json!([{"node": "a"}, {"node": "b"}, {"node": "d"}]),
        );
        assert_eq!(made["replace"], json!([]));
        assert_eq!(made["remove"], json!(["unread"]));
    }

    #[test]
    fn random_numbers_are_drawn_as_often_as_before() {
        let draw = |name: &str| {
            let mut node = node(name, "aten.rand_like.default", json!([{"node": "x"}]), ROWS);
            node["ordered"] = json!(true);
            node
        };
        let sum = json!([{"node": "a"}, {"node": "b"}]);
        let y = node("y", "aten.add.Tensor", sum, ROWS);
        let made = edits(vec![draw("a"), draw("b"), y], json!([{"node": "y"}]));
        assert_eq!(
            (&made["replace"], &made["remove"]),
            (&json!([]), &json!([]))
        );
    }
}
