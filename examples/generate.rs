//! Tokens from a model of GPT-2's shape: a prompt at once, then one token after another, with keys and values in a cache that every call writes in place.
//!
//! ```text
//! cargo run --release -p oxyfuel --example generate -- --tokens 64
//! ```
//!
//! Weights are random: the tokens mean nothing, the time they take is that of the real model. One function serves both: many positions and one position are two plans that share the weights and the cache.

use oxyfuel::nn::{Embedding, KvCache, LayerNorm, Linear, Module, MultiHeadAttention};
use oxyfuel::{DType, Explanation, Options, Result, Tensor, Tensors, jit};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const HELP: &str = "\
Tokens from a model of GPT-2's shape with random weights, and how fast they come.

Usage: cargo run --release -p oxyfuel --example generate -- [OPTIONS]

Options:
  --layers N    blocks of the model              [default: 12]
  --width N     width of a position              [default: 768]
  --heads N     heads of attention               [default: 12]
  --vocab N     different tokens                 [default: 50257]
  --context N   positions that the cache holds   [default: 1024]
  --prompt N    tokens to begin with             [default: 32]
  --tokens N    tokens to add                    [default: 64]
  --reach N     the cache is read in multiples of so many positions; each multiple is compiled once [default: 256]
  --threads N   threads (0: all cores)           [default: 0]
  --seed N      of weights and prompt            [default: 0]
  --help        this text

Examples:
  cargo run --release -p oxyfuel --example generate
  cargo run --release -p oxyfuel --example generate -- --layers 2 --width 64 --heads 4 --vocab 1000 --tokens 200
";

/// Sizes, as the command line says.
struct Sizes {
    layers: i64,
    width: i64,
    heads: i64,
    vocab: i64,
    context: i64,
    prompt: i64,
    tokens: i64,
    reach: i64,
    threads: i64,
    seed: i64,
}

impl Sizes {
    fn named(&mut self, name: &str) -> Option<&mut i64> {
        Some(match name {
            "--layers" => &mut self.layers,
            "--width" => &mut self.width,
            "--heads" => &mut self.heads,
            "--vocab" => &mut self.vocab,
            "--context" => &mut self.context,
            "--prompt" => &mut self.prompt,
            "--tokens" => &mut self.tokens,
            "--reach" => &mut self.reach,
            "--threads" => &mut self.threads,
            "--seed" => &mut self.seed,
            _ => return None,
        })
    }

    /// What the arguments say; `None` asks for help, an error is a sentence.
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut sizes = Self {
            layers: 12,
            width: 768,
            heads: 12,
            vocab: 50257,
            context: 1024,
            prompt: 32,
            tokens: 64,
            reach: 256,
            threads: 0,
            seed: 0,
        };
        while let Some(name) = arguments.next() {
            if name == "--help" || name == "-h" {
                return Ok(None);
            }
            let Some(place) = sizes.named(&name) else {
                return Err(format!("{name} is no option; --help lists them"));
            };
            let value = arguments.next().and_then(|value| value.parse().ok());
            let least = i64::from(!matches!(name.as_str(), "--threads" | "--seed"));
            match value {
                Some(value) if value >= least => *place = value,
                _ => return Err(format!("{name} wants a number from {least} on")),
            }
        }
        if sizes.width % sizes.heads != 0 {
            return Err(format!(
                "a width of {} is no multiple of {} heads",
                sizes.width, sizes.heads
            ));
        }
        if sizes.prompt + sizes.tokens > sizes.context {
            return Err(format!(
                "{} + {} tokens do not fit a context of {}",
                sizes.prompt, sizes.tokens, sizes.context
            ));
        }
        Ok(Some(sizes))
    }

    /// Empty caches, one a block.
    fn caches(&self) -> Vec<KvCache> {
        let width = self.width / self.heads;
        let cache = |_| KvCache::new(1, self.heads, self.context, width, DType::F32);
        (0..self.layers).map(cache).collect()
    }

    /// Positions of the cache that are looked at when the last one is `last`.
    fn reached(&self, last: i64) -> i64 {
        ((last / self.reach + 1) * self.reach).min(self.context)
    }
}

#[derive(Tensors)]
struct Block {
    ln_1: LayerNorm,
    attn: MultiHeadAttention,
    ln_2: LayerNorm,
    c_fc: Linear,
    c_proj: Linear,
}

#[derive(Tensors)]
struct Gpt {
    wte: Embedding,
    wpe: Embedding,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

impl Gpt {
    fn new(sizes: &Sizes) -> Self {
        let (width, dtype) = (sizes.width, DType::F32);
        let seed = u64::try_from(sizes.seed).unwrap_or(0);
        let block = |i: i64| {
            let seed = seed + 16 * (1 + u64::try_from(i).unwrap_or(0));
            Block {
                ln_1: LayerNorm::new(&[width], dtype),
                attn: MultiHeadAttention::new(width, sizes.heads, dtype, seed),
                ln_2: LayerNorm::new(&[width], dtype),
                c_fc: Linear::new(width, 4 * width, true, dtype, seed + 1),
                c_proj: Linear::new(4 * width, width, true, dtype, seed + 2),
            }
        };
        Self {
            wte: Embedding::new(sizes.vocab, width, dtype, seed),
            wpe: Embedding::new(sizes.context, width, dtype, seed + 1),
            h: (0..sizes.layers).map(block).collect(),
            ln_f: LayerNorm::new(&[width], dtype),
        }
    }

    /// The likeliest token after `tokens`, `[1, length]`, which stand at `positions`, `[length]`.
    fn next(
        &self,
        caches: &[KvCache],
        tokens: &Tensor,
        positions: &Tensor,
        reach: i64,
    ) -> Result<Tensor> {
        let mut x = self.wte.forward(tokens) + self.wpe.forward(positions);
        for (block, cache) in self.h.iter().zip(caches) {
            let seen =
                block
                    .attn
                    .attend_cached(&block.ln_1.forward(&x), cache, positions, reach)?;
            x = &x + seen;
            let wide = block.c_fc.forward(&block.ln_2.forward(&x)).gelu_tanh();
            x = &x + block.c_proj.forward(&wide);
        }
        let last = self.ln_f.forward(&x.select(1, -1));
        // As GPT-2 does: the table of tokens is the last weight, too.
        Ok(last.linear(&self.wte.weight, None).argmax(-1, true))
    }
}

/// What came out, and how long it took.
struct Generated {
    prompt: Vec<i64>,
    tokens: Vec<i64>,
    /// The prompt's, with compiling and without.
    first: Duration,
    again: Duration,
    /// The later tokens'.
    times: Vec<Duration>,
    plans: Explanation,
}

/// A prompt at once, and then token after token; `progress` hears how many there are.
fn generate(model: &Gpt, sizes: &Sizes, mut progress: impl FnMut(i64)) -> Result<Generated> {
    let caches = sizes.caches();
    let mut options = Options::default();
    if let Ok(threads @ 1..) = usize::try_from(sizes.threads) {
        options.threads = threads;
    }
    let next = jit(
        |model: &Gpt, caches: &Vec<KvCache>, tokens: &Tensor, at: &Tensor, reach: &i64| {
            model.next(caches, tokens, at, *reach)
        },
        options,
    )?;
    let step = |tokens: &Tensor, first: i64| -> Result<(Tensor, Duration)> {
        let last = first + tokens.size(1)?;
        let at = Tensor::arange(first, last, 1, DType::I64);
        let reach = sizes.reached(last - 1);
        let start = Instant::now();
        let token = next.call((model, &caches, tokens, &at, &reach))?;
        Ok((token, start.elapsed()))
    };
    let seed = u64::try_from(sizes.seed).unwrap_or(0);
    let prompt = Tensor::randint(0, sizes.vocab, &[1, sizes.prompt], DType::I64, seed);
    let (_, first) = step(&prompt, 0)?;
    // The same positions again: the cache is as it was.
    let (mut token, again) = step(&prompt, 0)?;
    let mut tokens: Vec<i64> = token.to_vec()?;
    let mut times = Vec::new();
    for i in 1..sizes.tokens {
        let (following, time) = step(&token, sizes.prompt + i - 1)?;
        token = following;
        tokens.extend(token.to_vec::<i64>()?);
        times.push(time);
        progress(i + 1);
    }
    Ok(Generated {
        prompt: prompt.to_vec()?,
        tokens,
        first,
        again,
        times,
        plans: next.explain(),
    })
}

fn main() -> Result<()> {
    let sizes = match Sizes::read(std::env::args().skip(1)) {
        Ok(Some(sizes)) => sizes,
        Ok(None) => {
            print!("{HELP}");
            return Ok(());
        }
        Err(mistake) => {
            eprintln!("{mistake}");
            std::process::exit(2);
        }
    };
    eprintln!("making random weights ...");
    let model = Gpt::new(&sizes);
    eprintln!("compiling, and reading {} tokens ...", sizes.prompt);
    let is_seen = std::io::stderr().is_terminal();
    let mut made = generate(&model, &sizes, |count| {
        if is_seen {
            eprint!("\r{count} of {} tokens", sizes.tokens);
            std::io::stderr().flush().unwrap_or(());
        }
    })?;
    if is_seen {
        eprintln!();
    }
    let shown: Vec<String> = made.tokens.iter().take(16).map(i64::to_string).collect();
    println!("tokens      {} ...", shown.join(" "));
    let seconds = |time: Duration| time.as_secs_f64();
    println!(
        "prompt      {} tokens in {:.1} ms ({:.0} tokens/s); {:.0} ms with compiling",
        made.prompt.len(),
        seconds(made.again) * 1e3,
        made.prompt.len() as f64 / seconds(made.again),
        seconds(made.first) * 1e3,
    );
    made.times.sort_unstable();
    if let Some(middle) = made.times.get(made.times.len() / 2) {
        println!(
            "generation  {:.2} ms a token ({:.1} tokens/s), the median of {}",
            seconds(*middle) * 1e3,
            1.0 / seconds(*middle),
            made.times.len(),
        );
    }
    println!("plans       {}", made.plans.variants.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel::{Device, structure};

    fn small() -> Sizes {
        let words = "--layers 2 --width 32 --heads 4 --vocab 500 --context 40 --prompt 7 --tokens 24 --reach 16 --threads 2";
        let words = words.split(' ').map(str::to_owned);
        Sizes::read(words).unwrap().unwrap()
    }

    #[test]
    fn arguments_that_do_not_fit_are_said() {
        for (words, said) in [
            ("--frobnicate 1", "no option"),
            ("--layers", "a number from 1 on"),
            ("--layers 0", "a number from 1 on"),
            ("--width 30 --heads 4", "no multiple"),
            ("--prompt 1000 --tokens 1000", "do not fit"),
        ] {
            let read = Sizes::read(words.split(' ').map(str::to_owned));
            let mistake = read.err().unwrap();
            assert!(mistake.contains(said), "{words}: {mistake}");
        }
        let help = Sizes::read(["--help".to_owned()].into_iter());
        assert!(help.unwrap().is_none());
    }

    /// Token after token with a cache gives what all positions at once give, and every plan reads the weights where the model holds them.
    #[test]
    fn tokens_are_those_of_all_positions_at_once_and_plans_share_the_weights() {
        let sizes = small();
        let model = Gpt::new(&sizes);
        let weights: usize = structure::named(&model)
            .iter()
            .map(|(_, weight)| usize::try_from(weight.numel()).unwrap() * size_of::<f32>())
            .sum();
        let live = || Device::cpu().memory_summary().unwrap().ours.live;
        let before = live();
        let made = generate(&model, &sizes, |_| ()).unwrap();
        // The caches are gone, and nothing that was kept for the plans is as large as the weights.
        let kept = live().saturating_sub(before);
        assert!(kept < weights / 2, "{kept} bytes beside {weights}");

        // The prompt, and single positions of two reaches.
        assert_eq!(made.plans.variants.len(), 3, "{}", made.plans);
        for variant in &made.plans.variants {
            let memory = &variant.memory;
            assert!(memory.inputs > weights as i64, "{}", made.plans);
            // What stands between the layers, of seven positions at most.
            assert!(memory.arena < weights as i64 / 4, "{}", made.plans);
            assert!(memory.constants < 1024, "{}", made.plans);
        }

        let mut known = made.prompt;
        for token in made.tokens {
            let length = known.len() as i64;
            let all = Tensor::from_slice(&known, &[1, length]);
            let at = Tensor::arange(0, length, 1, DType::I64);
            let expected = model.next(&sizes.caches(), &all, &at, length).unwrap();
            assert_eq!(expected.to_vec::<i64>().unwrap(), [token], "after {length}");
            known.push(token);
        }
    }
}
