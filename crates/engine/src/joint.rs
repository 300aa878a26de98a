//! Rules on a joint graph: forward and backward together, before the host cuts them in two.
//!
//! The rules change no bit of any value, so the cut that follows sees the same program with less work in it. Random numbers that are ours to choose become draws under a seed, which the
//! cut may repeat.

use oxyfuel_base::{Result, err};
use oxyfuel_capture::{
    Found, ImportOptions, Products, Random, Rewritten, export, import_values, read, sites,
};
use oxyfuel_transform::{same_values, with_attention};

/// The edits of a described joint graph, as the text that [`oxyfuel_capture::export`](mod@oxyfuel_capture::export) describes.
///
/// Its first `forward` results are the forward's. `random` says who draws random numbers.
pub fn rewrite_joint(description: &str, forward: usize, random: Random) -> Result<String> {
    let description = read(description)?;
    // Products are ours here: whoever computes them, equal ones are equal.
    let options = ImportOptions {
        products: Products::Own,
        random,
        ..ImportOptions::default()
    };
    let values = import_values(&description, &options)?;
    let same = same_values(&values.graph)?;
    let found = Found {
        same: &same,
        forward,
    };
    let edits = export(&description, &values, found)?;
    serde_json::to_string(&edits).map_err(|e| err!(Internal, "edits cannot be written: {e}"))
}

/// Attention that is written out in a described graph, a joint one or not, as the text that [`oxyfuel_capture::sites`](mod@oxyfuel_capture::sites) describes.
///
/// It is for programs whose products the host computes: of a host's fused attention nothing lies in memory but what it reads and gives.
pub fn find_attention(description: &str) -> Result<String> {
    let description = read(description)?;
    let options = ImportOptions {
        products: Products::Own,
        ..ImportOptions::default()
    };
    let mut values = import_values(&description, &options)?;
    values.keep_results(&description);
    let found = with_attention(&values.graph)?;
    let found = found.as_ref().map(|found| {
        let rewritten = Rewritten {
            graph: &found.graph,
            stands: &found.values,
            sites: &found.sites,
        };
        sites(&description, &values, rewritten)
    });
    serde_json::to_string(&found.unwrap_or_default())
        .map_err(|e| err!(Internal, "what was found cannot be written: {e}"))
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
        edits_with(nodes, outputs, Random::Host)
    }

    fn edits_with(nodes: Vec<Value>, outputs: Value, random: Random) -> Value {
        let x = json!({"name": "x", "kind": "tensor", "type": {"dtype": "float32", "shape": [3, 4], "strides": [4, 1]}});
        let text = json!({"version": 1, "name": "joint", "inputs": [x], "nodes": nodes, "outputs": outputs});
        serde_json::from_str(&rewrite_joint(&text.to_string(), 1, random).unwrap()).unwrap()
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

    fn draw(name: &str, strides: [i64; 2]) -> Value {
        let x = json!([{"node": "x"}]);
        let mut node = node(name, "aten.rand_like.default", x, strides);
        node["ordered"] = json!(true);
        node
    }

    #[test]
    fn random_numbers_are_drawn_as_often_as_before() {
        let sum = json!([{"node": "a"}, {"node": "b"}]);
        let y = node("y", "aten.add.Tensor", sum, ROWS);
        let made = edits(
            vec![draw("a", ROWS), draw("b", ROWS), y],
            json!([{"node": "y"}]),
        );
        for part in ["new", "replace", "remove"] {
            assert_eq!(made[part], json!([]), "{part}");
        }
    }

    /// The forward's draws come from one seed, each with a stream of its own; the backward's stays, as it must be drawn anew by every run.
    #[test]
    fn the_forward_draws_under_a_seed() {
        let sum = json!([{"node": "a"}, {"node": "b"}]);
        let nodes = vec![
            draw("a", ROWS),
            draw("b", [1, 3]),
            draw("late", ROWS),
            node("y", "aten.add.Tensor", sum, ROWS),
        ];
        let made = edits_with(nodes, json!([{"node": "y"}, {"node": "late"}]), Random::Own);
        let seed = json!({"node": "oxyfuel_seed"});
        let kwargs = |name: &str, stride: Value| json!({"size": {"sizes": name}, "stride": stride, "dtype": {"dtype": "float32"}});
        assert_eq!(
            made["new"],
            json!([
                {"name": "oxyfuel_seed", "target": "oxyfuel.seed.default", "args": [], "kwargs": {}, "before": "a"},
                {"name": "oxyfuel_draw_0", "target": "oxyfuel.uniform.default", "args": [seed, 0, 0.0, 1.0],
                 "kwargs": kwargs("a", Value::Null), "before": "a"},
                {"name": "oxyfuel_draw_1", "target": "oxyfuel.uniform.default", "args": [seed, 1, 0.0, 1.0],
                 "kwargs": kwargs("b", json!({"strides": "b"})), "before": "b"},
            ])
        );
        assert_eq!(
            made["replace"],
            json!([{"value": {"node": "a"}, "with": {"node": "oxyfuel_draw_0"}}, {"value": {"node": "b"}, "with": {"node": "oxyfuel_draw_1"}}])
        );
        assert_eq!(made["remove"], json!(["b", "a"]));
    }

    fn of(name: &str, target: &str, args: Value, shape: [i64; 3]) -> Value {
        let strides = [shape[1] * shape[2], shape[2], 1];
        let ty = json!({"dtype": "float32", "shape": shape, "strides": strides});
        json!({"name": name, "target": target, "args": args, "results": [{"kind": "tensor", "type": ty}]})
    }

    /// Two products with a softmax between, scaled; `outputs` are the graph's.
    fn attention(outputs: Value, length: i64) -> Value {
        let input = |name: &str| {
            let ty =
                json!({"dtype": "float32", "shape": [2, length, 8], "strides": [length * 8, 8, 1]});
            json!({"name": name, "kind": "tensor", "type": ty})
        };
        let [across, square, out] = [[2, 8, length], [2, length, length], [2, length, 8]];
        let nodes = [
            of(
                "kt",
                "aten.permute.default",
                json!([{"node": "k"}, [0, 2, 1]]),
                across,
            ),
            of(
                "scores",
                "aten.bmm.default",
                json!([{"node": "q"}, {"node": "kt"}]),
                square,
            ),
            of(
                "scaled",
                "aten.mul.Tensor",
                json!([{"node": "scores"}, 0.25]),
                square,
            ),
            of(
                "weights",
                "aten._softmax.default",
                json!([{"node": "scaled"}, -1, false]),
                square,
            ),
            of(
                "y",
                "aten.bmm.default",
                json!([{"node": "weights"}, {"node": "v"}]),
                out,
            ),
        ];
        let text = json!({"version": 1, "name": "f", "inputs": [input("q"), input("k"), input("v")], "nodes": nodes, "outputs": outputs});
        serde_json::from_str(&find_attention(&text.to_string()).unwrap()).unwrap()
    }

    #[test]
    fn written_out_attention_is_said_in_the_host_s_words() {
        let found = attention(json!([{"node": "y"}]), 5);
        let [site] = &found["sites"].as_array().unwrap()[..] else {
            panic!("{found}");
        };
        let new = site["new"].as_array().unwrap();
        let call = new
            .iter()
            .find(|node| node["target"] == "oxyfuel.attention")
            .unwrap();
        assert_eq!(
            call["args"].as_array().unwrap()[3..],
            [json!(null), json!(false), json!(0.25)]
        );
        assert!(new.iter().all(|node| node["before"] == "y"));
        assert_eq!(site["replace"][0]["value"], json!({"node": "y"}));
        for operand in ["q", "k", "v"] {
            let reads = |node: &Value| node["args"][0]["node"] == operand;
            assert!(new.iter().any(reads), "{operand}: {new:?}");
        }
    }

    #[test]
    fn weights_that_are_a_result_stay() {
        let found = attention(json!([{"node": "y"}, {"node": "weights"}]), 5);
        assert_eq!(found, json!({"version": 1, "sites": []}));
    }
}
