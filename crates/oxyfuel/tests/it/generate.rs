//! Decoding with a cache of keys and values: a prompt and then single positions give what all positions at once do, and the cache is written where it lies.

use oxyfuel::nn::{KvCache, LayerNorm, Module, MultiHeadAttention};
use oxyfuel::{DType, Options, Result, Tensor, Tensors, jit};

const WIDTH: i64 = 24;
const HEADS: i64 = 3;
const LENGTH: i64 = 40;
const PROMPT: i64 = 7;

#[derive(Tensors)]
struct Model {
    layers: Vec<(LayerNorm, MultiHeadAttention)>,
}

impl Model {
    fn new() -> Self {
        let layer = |seed: u64| {
            let mut attention = MultiHeadAttention::new(WIDTH, HEADS, DType::F32, seed);
            attention.causal = true;
            (LayerNorm::new(&[WIDTH], DType::F32), attention)
        };
        Self {
            layers: (0..2).map(layer).collect(),
        }
    }

    /// All positions at once.
    fn whole(&self, x: &Tensor) -> Tensor {
        let mut x = x.clone();
        for (norm, attention) in &self.layers {
            x = &x + attention.forward(&norm.forward(&x));
        }
        x
    }

    /// New positions, after those in the caches.
    fn next(&self, caches: &[KvCache], x: &Tensor, at: &Tensor, reach: i64) -> Result<Tensor> {
        let mut x = x.clone();
        for ((norm, attention), cache) in self.layers.iter().zip(caches) {
            x = &x + attention.attend_cached(&norm.forward(&x), cache, at, reach)?;
        }
        Ok(x)
    }
}

fn caches() -> Vec<KvCache> {
    let cache = || KvCache::new(1, HEADS, LENGTH, WIDTH / HEADS, DType::F32);
    vec![cache(), cache()]
}

fn close(name: &str, a: &Tensor, b: &Tensor) {
    let (a, b) = (a.to_f64().unwrap(), b.to_f64().unwrap());
    assert_eq!(a.len(), b.len(), "{name}");
    for (a, b) in a.iter().zip(&b) {
        assert!((a - b).abs() <= 2e-5, "{name}: {a} {b}");
    }
}

#[test]
fn single_positions_give_what_all_at_once_do() {
    let (model, caches) = (Model::new(), caches());
    let x = Tensor::randn(&[1, LENGTH, WIDTH], DType::F32, 9);
    let whole = model.whole(&x);
    let next = jit(
        |model: &Model, caches: &Vec<KvCache>, x: &Tensor, at: &Tensor, reach: &i64| {
            model.next(caches, x, at, *reach)
        },
        Options {
            fullgraph: true,
            ..Options::default()
        },
    )
    .unwrap();
    // Handles to the memory that the calls must write.
    let kept: Vec<Tensor> = caches.iter().map(|cache| cache.keys.clone()).collect();
    let step = |first: i64, count: i64, reach: i64| {
        let at = Tensor::arange(first, first + count, 1, DType::I64);
        // A tensor of its own, as a model makes it: slices with odd offsets have variants of their own.
        let part = x.narrow(1, first, count) * 1.0;
        let made = next.call((&model, &caches, &part, &at, &reach)).unwrap();
        let expected = whole.narrow(1, first, count);
        close(
            &format!("positions {first}..{}", first + count),
            &made,
            &expected,
        );
    };
    step(0, PROMPT, 16);
    for position in PROMPT..LENGTH {
        step(position, 1, if position < 16 { 16 } else { LENGTH });
    }
    for (cache, keys) in caches.iter().zip(&kept) {
        assert_eq!(
            cache.keys.to_vec::<f32>().unwrap(),
            keys.to_vec::<f32>().unwrap()
        );
        let last = keys.narrow(2, LENGTH - 1, 1).to_f64().unwrap();
        assert!(last.iter().any(|&x| x != 0.0));
    }
    // The prompt, and single positions of two reaches.
    let explanation = next.explain();
    assert_eq!(explanation.variants.len(), 3, "{explanation}");
    for kernel in explanation.variants.iter().flat_map(|v| &v.kernels) {
        assert!(kernel.code_bytes > 0, "{explanation}");
    }
}

#[test]
fn a_cache_is_written_where_it_lies() {
    let cache = KvCache::new(1, HEADS, LENGTH, 8, DType::F32);
    let put = jit(
        |cache: &KvCache, x: &Tensor, at: &Tensor| -> Result<Tensor> {
            cache.put(x, &(x * 2.0), at)?;
            Ok(cache.values.narrow(2, 0, 4).sum(&[2], false))
        },
        Options::default(),
    )
    .unwrap();
    let x = Tensor::ones(&[1, HEADS, 1, 8], DType::F32);
    let at = Tensor::full(&[1], 2, DType::I64);
    let sums = put.call((&cache, &x, &at)).unwrap();
    assert!(sums.to_f64().unwrap().iter().all(|&sum| sum == 2.0));
    let (rows, width) = (LENGTH as usize, 8);
    for (i, value) in cache.keys.to_f64().unwrap().into_iter().enumerate() {
        let position = i / width % rows;
        assert_eq!(value, f64::from(u8::from(position == 2)), "element {i}");
    }
    // Rows are written, and nothing as large as a cache is held meanwhile.
    let (explanation, bytes) = (put.explain(), HEADS * LENGTH * 8 * 4);
    let memory = &explanation.variants[0].memory;
    assert!(memory.arena < bytes, "{explanation}");
}
