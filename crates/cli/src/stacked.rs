//! GPT-2 from its layer in the definitions: as many layers as asked for, each with weights of its own, between the embeddings and the head. What the compile time of a whole model is measured on.

use oxyfuel_base::{Result, err};
use oxyfuel_graph::{Graph, parse};

use crate::define::workload;

/// The layer, whose first input is the result of the one before it.
const LAYER: &str = "gpt2-layer";

/// The model with so many layers, for 128 tokens.
pub fn gpt2(layers: usize) -> Result<Graph> {
    let layer = workload(LAYER)?.graph.to_string();
    let parts = layer.split_once('(').and_then(|(_, rest)| {
        let (inputs, rest) = rest.split_once(") {\n")?;
        let (body, result) = rest.split_once("  return ")?;
        Some((inputs, body, result.lines().next()?))
    });
    let (inputs, body, result) =
        parts.ok_or_else(|| err!(Internal, "{LAYER} is not written as graphs are"))?;
    let (x, weights) = inputs
        .split_once(", %")
        .ok_or_else(|| err!(Internal, "{LAYER} has no weights"))?;
    let (x, weights) = (x.split(':').next().unwrap_or(x), format!("%{weights}"));
    let mut all = vec![
        "%ids: i64[1, 128] cpu".to_owned(),
        "%wte: f32[50257, 768] cpu".to_owned(),
        "%wpe: f32[1024, 768] cpu".to_owned(),
    ];
    let mut text = String::from(
        "  %places: i64[128] = arange start=0, step=1
  %words: f32[1, 128, 768] = embedding %wte, %ids
  %where: f32[128, 768] = embedding %wpe, %places
  %h0: f32[1, 128, 768] = add %words, %where
",
    );
    for number in 0..layers {
        let own = |text: &str| text.replace('%', &format!("%l{number}_"));
        all.push(own(&weights));
        // Names end with a comma, a colon or the line.
        let linked = own(body)
            .replace(&format!("{},", own(x)), &format!("%h{number},"))
            .replace(&format!("{}:", own(result)), &format!("%h{}:", number + 1));
        text += &linked;
    }
    all.extend(["%g: f32[768] cpu".to_owned(), "%b: f32[768] cpu".to_owned()]);
    text += &format!(
        "  %n: f32[1, 128, 768], %mean: f32[1, 128, 1], %rstd: f32[1, 128, 1] = native_layer_norm %h{layers}, %g, %b, rank=1, eps=1e-5
  %rows: f32[128, 768] = view %n
  %columns: f32[768, 50257] = permute %wte, dims=[1, 0]
  %logits: f32[128, 50257] = mm %rows, %columns
  return %logits
"
    );
    parse(
        "gpt2",
        &format!("graph @gpt2({}) {{\n{text}}}\n", all.join(", ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_follow_each_other() {
        let layer = workload(LAYER).unwrap().graph;
        let [one, three] = [1, 3].map(|layers| gpt2(layers).unwrap());
        assert_eq!(three.nodes.len() - one.nodes.len(), 2 * layer.nodes.len());
        assert_eq!(
            three.inputs.len() - one.inputs.len(),
            2 * (layer.inputs.len() - 1)
        );
        // Every layer reads the one before it: twice, by its first norm and behind its attention.
        let text = three.to_string();
        for number in 0..3 {
            let read = text.matches(&format!("%h{number},")).count();
            assert_eq!(read, 2, "{text}");
        }
    }
}
