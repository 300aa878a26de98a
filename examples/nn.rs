//! A small transformer block: a struct of layers, compiled, saved, loaded and frozen.
//!
//! ```text
//! cargo run --release -p oxyfuel --example nn
//! ```

use oxyfuel::nn::{
    Activation, Embedding, LayerNorm, Linear, Module, MultiHeadAttention, Sequential,
};
use oxyfuel::{DType, Options, Result, Tensor, Tensors, compile, jit, nn, structure};

/// Its parameters are its fields, by name: `mlp.0.weight`.
#[derive(Tensors)]
struct Block {
    norm1: LayerNorm,
    attention: MultiHeadAttention,
    norm2: LayerNorm,
    mlp: Sequential,
}

#[derive(Tensors)]
struct Model {
    tokens: Embedding,
    blocks: Vec<Block>,
    head: Linear,
}

impl Module for Block {
    fn forward(&self, x: &Tensor) -> Tensor {
        let x = x + self.attention.forward(&self.norm1.forward(x));
        let made = self.mlp.forward(&self.norm2.forward(&x));
        x + made
    }
}

impl Module for Model {
    fn forward(&self, tokens: &Tensor) -> Tensor {
        let mut x = self.tokens.forward(tokens);
        for block in &self.blocks {
            x = block.forward(&x);
        }
        self.head.forward(&x)
    }
}

fn model(seed: u64) -> Model {
    let (width, dtype) = (32, DType::F32);
    let block = |i: u64| {
        let mut attention = MultiHeadAttention::new(width, 4, dtype, seed + i);
        attention.causal = true;
        Block {
            norm1: LayerNorm::new(&[width], dtype),
            attention,
            norm2: LayerNorm::new(&[width], dtype),
            mlp: Sequential::new()
                .with(Linear::new(width, 4 * width, true, dtype, seed + i + 100))
                .with(Activation::Gelu)
                .with(Linear::new(4 * width, width, true, dtype, seed + i + 200)),
        }
    };
    Model {
        tokens: Embedding::new(50, width, dtype, seed),
        blocks: (0..2).map(block).collect(),
        head: Linear::new(width, 50, false, dtype, seed + 300),
    }
}

fn main() -> Result<()> {
    let trained = model(1);
    println!(
        "{} tensors, such as {}",
        structure::names(&trained).len(),
        structure::names(&trained)[1]
    );

    // The same function serves every model of this structure and every length.
    let f = jit(
        |m: &Model, tokens: &Tensor| m.forward(tokens),
        Options::default(),
    )?;
    for length in [5, 9, 16, 30] {
        let tokens = Tensor::randint(0, 50, &[2, length], DType::I64, length as u64);
        let compiled = f.call((&trained, &tokens))?;
        let eager = trained.forward(&tokens);
        let worst = (&compiled - &eager).abs().amax(&[], false).item()?.as_f64();
        println!(
            "{length} tokens: {:?}, {worst:.1e} from eager",
            compiled.shape()
        );
        assert!(worst < 1e-4);
    }
    println!("compiled {} times", f.explain().variants.len());

    // Weights by name: another model of the same structure becomes this one.
    let path = std::env::temp_dir().join(format!("oxyfuel-nn-{}.safetensors", std::process::id()));
    nn::save(&trained, &path)?;
    let other = model(2);
    nn::load(&other, &path)?;
    let tokens = Tensor::randint(0, 50, &[2, 7], DType::I64, 0);
    let same = f.call((&other, &tokens))?.to_vec::<f32>()?
        == f.call((&trained, &tokens))?.to_vec::<f32>()?;
    println!("loaded weights give the same: {same}");
    assert!(same);
    std::fs::remove_file(&path).ok();

    // Weights that do not change: a closure owns the model, and what follows from it alone is computed once.
    let expected = trained.forward(&tokens);
    let infer = move |tokens: &Tensor| trained.forward(tokens);
    let frozen = compile(infer, Options::default())?.freeze(&[])?;
    let worst = (frozen.call_one(&[&tokens])? - &expected).abs();
    let worst = worst.amax(&[], false).item()?.as_f64();
    println!("frozen: {worst:.1e} from eager");
    assert!(worst < 1e-4);
    Ok(())
}
