//! Random calls with random arguments: nothing panics, every error has a code, a line and a sentence on what to do, and a captured function fails where the eager one does.

mod files;
mod layers;
mod methods;
mod names;

use methods::{Given, METHODS};
use oxyfuel::{
    Argument, Bucket, Code, DType, Error, Options, Result, Scalar, Tensor, compile, compile_graph,
    jit, load, parse_graph,
};
use oxyfuel_testkit::damage::{Change, damaged};
use proptest::prelude::*;

/// A call: which method, and arguments that it may make something of.
#[derive(Clone)]
struct Call {
    method: usize,
    x: usize,
    y: usize,
    z: usize,
    ints: [i64; 4],
    dims: Vec<i64>,
    float: f64,
    flag: bool,
    dtype: usize,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, _) = METHODS[self.method % METHODS.len()];
        let (ints, dims) = (self.ints, &self.dims);
        let (float, flag, dtype) = (self.float, self.flag, self.dtype);
        let of = (self.x, self.y, self.z);
        write!(f, "{name}{of:?} {ints:?} {dims:?} {float} {flag} {dtype}")
    }
}

/// Good ones, bad ones and nonsense.
const EQUATIONS: &[&str] = &[
    "ij,jk->ik",
    "i,i->",
    "ij->ji",
    "ii->i",
    "ij,ij->ij",
    "bij,bjk->bik",
    "ij,k->ijk",
    "",
    "->",
    ",",
    "ij",
    "i->ii",
    "...i->i",
    "ij,jk->xy",
    "i j -> j",
    "ij->j,",
    "->->",
    "\u{e9}i->i",
    "iiiiiiiii->i",
];

/// Small, at borders, and absurd.
fn int() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => -4i64..6,
        1 => prop::sample::select(vec![i64::MIN, i64::MAX, i64::MIN + 1, 1 << 50, -(1 << 50)]),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let float = prop::sample::select(vec![0.0, -0.0, 1.5, -2.0, f64::NAN, f64::INFINITY, 1e300]);
    (
        (0..METHODS.len(), any::<[u8; 4]>()),
        [int(), int(), int(), int()],
        prop::collection::vec(int(), 0..4),
        float,
        any::<bool>(),
    )
        .prop_map(
            |((method, [x, y, z, dtype]), ints, dims, float, flag)| Call {
                method,
                x: x.into(),
                y: y.into(),
                z: z.into(),
                ints,
                dims,
                float,
                flag,
                dtype: dtype.into(),
            },
        )
}

fn tensors() -> impl Strategy<Value = Vec<(usize, Vec<i64>)>> {
    let extent = prop::sample::select(vec![0i64, 1, 2, 3, 5]);
    prop::collection::vec((0usize..64, prop::collection::vec(extent, 0..4)), 1..4)
}

fn make(all: &[(usize, Vec<i64>)]) -> Vec<Tensor> {
    all.iter()
        .map(|(dtype, shape)| {
            let dtype = DType::ALL[dtype % DType::ALL.len()];
            Tensor::randint(0, 3, shape, DType::I64, 1).to(dtype)
        })
        .collect()
}

fn apply(call: &Call, all: &[Tensor]) -> Vec<Tensor> {
    let at = |i: usize| &all[i % all.len()];
    let (_, method) = METHODS[call.method % METHODS.len()];
    method(Given {
        x: at(call.x).clone(),
        y: at(call.y),
        z: at(call.z),
        ints: call.ints,
        dims: &call.dims,
        float: call.float,
        flag: call.flag,
        dtype: DType::ALL[call.dtype % DType::ALL.len()],
        text: EQUATIONS[call.dtype % EQUATIONS.len()],
    })
}

const GRAPHS: &[&str] = &[
    "graph @f(%x: f32[3] cpu) {\n  %y: f32[3] = add %x, %x\n  return %y\n}",
    "sym s0: 0..\ngraph @f(%x: f32[s0] cpu) {\n  %y: f32[s0] = relu %x\n  return %y\n}",
    "graph @f(%x: f32[2, 3] cpu, %w: f32[2, 3] cpu) {\n  %y: f32[2] = sum %x, dims=[1], keepdim=false\n  return %y\n}",
    "graph @f(%x: f32[2] cpu) {\n  %y: f32[2] = mul %x, %x\n  return %y into %x\n}",
];

const NAMES: &[&str] = &[
    "mode",
    "numerics",
    "deterministic",
    "tf32",
    "fullgraph",
    "target",
    "threads",
    "verify",
    "cache_dir",
    "cache_limit",
    "trace_dir",
    "memory_limit",
    "cudagraphs",
    "cudagraph_memory_limit",
    "perf_map",
    "launch_blocking",
    "mod",
    "",
];

const VALUES: &[&str] = &[
    "",
    "0",
    "1",
    "2",
    "-1",
    "true",
    "false",
    "default",
    "max-autotune",
    "fast",
    "eager",
    "interpreter",
    "avx2",
    "sm_90a",
    "\0",
    "18446744073709551615",
    "99999999999999999999",
];

fn changes(most: usize) -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(any::<Change>(), 1..=most)
}

/// All results up to the first mistake, or that mistake.
fn program(calls: &[Call], inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut all = inputs.to_vec();
    for call in calls {
        for new in apply(call, &all) {
            new.check()?;
            all.push(new);
        }
    }
    Ok(all.split_off(inputs.len()))
}

/// A mistake of the user, said in full.
fn is_said(error: &Error) {
    assert!(
        error.help.as_ref().is_some_and(|help| help.len() > 10),
        "no help: {error}"
    );
    assert!(error.at.is_some(), "no place: {error}");
    let at = error.at.as_ref().unwrap();
    assert!(at.file.contains("fuzz"), "{error}");
    assert!(error.code != Code::Internal, "{error}");
    assert!(!error.message.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_call_panics(inputs in tensors(), calls in prop::collection::vec(call(), 1..5)) {
        let (ours, eager) = (make(&inputs), make(&inputs));
        if ours.iter().any(|x| x.check().is_err()) {
            return Ok(());
        }
        let expected = program(&calls, &eager);
        if let Err(error) = &expected {
            is_said(error);
        }
        let copy = calls.clone();
        let f = compile(move |x: &[Tensor]| program(&copy, x), Options::default()).unwrap();
        let borrowed: Vec<&Tensor> = ours.iter().collect();
        let found = f.call(&borrowed);
        match (&found, &expected) {
            (Ok(found), Ok(expected)) => {
                let types = |all: &[Tensor]| -> Vec<(DType, Vec<i64>)> {
                    all.iter().map(|t| (t.dtype(), t.shape().to_vec())).collect()
                };
                prop_assert_eq!(types(found), types(expected));
            }
            // Of several mistakes either way may meet another one first.
            (Err(found), _) => is_said(found),
            (Ok(_), Err(_)) => {}
        }
    }

    #[test]
    fn no_constructor_panics(
        dims in prop::collection::vec(int(), 0..4),
        numbers in [int(), int(), int()],
        dtype in 0usize..64,
        float in prop::sample::select(vec![0.0, -1.0, 0.5, f64::NAN, f64::INFINITY, 1e300]),
    ) {
        let dtype = DType::ALL[dtype % DType::ALL.len()];
        let [a, b, c] = numbers;
        // A range of a billion numbers is made, not refused.
        let (a, b) = (a.clamp(-99, 99), b.clamp(-99, 99));
        let all = [
            Tensor::zeros(&dims, dtype),
            Tensor::full(&dims, float, dtype),
            Tensor::ones(&dims, dtype),
            Tensor::rand(&dims, dtype, 0),
            Tensor::randn(&dims, dtype, 0),
            Tensor::randint(a, c, &dims, dtype, 0),
            Tensor::arange(a, b, c, dtype),
            Tensor::arange(float, b, c, dtype),
            Tensor::from_slice(&[1.0f32, 2.0], &dims),
            Tensor::from_vec(vec![1i64, 2], &dims),
            Tensor::from_bytes(&[1, 2, 3, 4], dtype, &dims),
            Tensor::scalar(float, dtype),
        ];
        for tensor in all {
            match tensor.check() {
                Err(error) => is_said(&error),
                Ok(()) => {
                    let _ = (tensor.item().map_err(|e| is_said(&e)), tensor.size(c).map_err(|e| is_said(&e)));
                    let _ = tensor.dims::<2>().map_err(|e| is_said(&e));
                }
            }
        }
    }

    /// The same function at other sizes, smaller ones among them: symbols come and go, and what eager refuses is refused.
    #[test]
    fn no_change_of_sizes_panics(
        inputs in tensors(),
        calls in prop::collection::vec(call(), 1..4),
        cuts in prop::collection::vec((0i64..3, 0i64..4), 1..4),
    ) {
        let inputs = make(&inputs);
        if inputs.iter().any(|x| x.check().is_err()) {
            return Ok(());
        }
        let copy = calls.clone();
        let f = compile(move |x: &[Tensor]| program(&copy, x), Options::default()).unwrap();
        for (dim, size) in cuts {
            let cut = |x: &Tensor| match dim < x.rank() as i64 {
                true => x.slice(dim, 0, size, 1).contiguous(),
                false => x.contiguous(),
            };
            let (ours, eager): (Vec<_>, Vec<_>) = inputs.iter().map(|x| (cut(x), cut(x))).unzip();
            let expected = program(&calls, &eager);
            let found = f.call(&ours.iter().collect::<Vec<_>>());
            match (&found, &expected) {
                (Ok(found), Ok(expected)) => {
                    for (found, expected) in found.iter().zip(expected) {
                        prop_assert_eq!(found.shape(), expected.shape());
                    }
                }
                (Err(found), _) => is_said(found),
                (Ok(_), Err(_)) => {}
            }
        }
    }

    /// Results into tensors of the caller, that fit or do not; arguments that are given away.
    #[test]
    fn no_way_to_call_panics(
        inputs in tensors(),
        outputs in tensors(),
        calls in prop::collection::vec(call(), 1..3),
        (fits, aliased, given) in any::<(bool, bool, u8)>(),
    ) {
        let (inputs, mut targets) = (make(&inputs), make(&outputs));
        if inputs.iter().chain(&targets).any(|x| x.check().is_err()) {
            return Ok(());
        }
        let f = compile(move |x: &[Tensor]| program(&calls, x), Options::default()).unwrap();
        let borrowed: Vec<&Tensor> = inputs.iter().collect();
        if fits && let Ok(results) = f.call(&borrowed) {
            targets = results.iter().map(|x| Tensor::zeros(x.shape(), x.dtype())).collect();
        }
        if aliased {
            targets[0] = inputs[0].clone();
        }
        if let Err(error) = f.call_into(&borrowed, &mut targets) {
            is_said(&error);
        }
        match f.bind(&borrowed, &targets.iter().collect::<Vec<_>>()) {
            Err(error) => is_said(&error),
            Ok(mut bound) => {
                if let Err(error) = bound.call() {
                    is_said(&error);
                }
            }
        }
        let arguments = inputs.iter().enumerate().map(|(i, x)| match given >> (i % 8) & 1 {
            1 => Argument::Given(x.copy(x)),
            _ => Argument::Lent(x),
        });
        if let Err(error) = f.call_donating(arguments.collect()) {
            is_said(&error);
        }
        if let Err(error) = f.warm_up(&borrowed) {
            is_said(&error);
        }
    }

    /// Weights that are frozen, whatever they are, changed or not, forgotten and frozen again; functions in files.
    #[test]
    fn no_frozen_call_panics(
        inputs in tensors(),
        weights in tensors(),
        calls in prop::collection::vec(call(), 1..3),
        steps in prop::collection::vec(0u8..5, 0..5),
    ) {
        let (inputs, weights) = (make(&inputs), make(&weights));
        if inputs.iter().chain(&weights).any(|x| x.check().is_err()) {
            return Ok(());
        }
        let (inputs, weights): (Vec<&Tensor>, Vec<&Tensor>) = (inputs.iter().collect(), weights.iter().collect());
        let f = compile(move |x: &[Tensor]| program(&calls, x), Options::default()).unwrap();
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("f.oxyfuel");
        match f.save(&path, &inputs) {
            Err(error) => is_said(&error),
            Ok(()) => {
                let loaded = load(&path, Options::default()).unwrap();
                let _ = loaded.call(&inputs).map_err(|error| is_said(&error));
            }
        }
        let mut frozen = match f.freeze(&weights) {
            Err(error) => {
                is_said(&error);
                return Ok(());
            }
            Ok(frozen) => frozen,
        };
        for step in steps {
            let done = match step {
                0 => frozen.call(&inputs).map(drop),
                1 => frozen.warm_up(&inputs),
                2 => {
                    frozen.invalidate();
                    Ok(())
                }
                3 => frozen.refreeze(),
                _ => frozen.release(),
            };
            let _ = done.map_err(|error| is_said(&error));
        }
    }

    /// Graphs from text, called with whatever comes.
    #[test]
    fn no_graph_panics(which in 0..GRAPHS.len(), inputs in tensors(), changes in changes(3)) {
        let inputs = make(&inputs);
        let text = String::from_utf8_lossy(&damaged(GRAPHS[which].as_bytes(), &changes)).into_owned();
        let graphs = [parse_graph("fuzz", GRAPHS[which]), parse_graph("fuzz", &text)];
        for graph in graphs {
            match graph.and_then(|graph| compile_graph(graph, Options::default())) {
                Err(error) => is_said(&error),
                Ok(f) => {
                    if let Err(error) = f.call(&inputs.iter().collect::<Vec<_>>()) {
                        is_said(&error);
                    }
                }
            }
        }
    }

    /// Options by name, and functions under them.
    #[test]
    fn no_option_panics(settings in prop::collection::vec((0..NAMES.len(), 0..VALUES.len()), 0..4)) {
        let mut options = Options::default();
        for (name, value) in settings {
            // A folder that can be made would be.
            let value = match NAMES[name].ends_with("_dir") {
                true => "/dev/null/x",
                false => VALUES[value],
            };
            if let Err(error) = options.set(NAMES[name], value) {
                prop_assert!(error.help.is_some(), "{}", error);
            }
        }
        let x = Tensor::ones(&[3, 4], DType::F32);
        match compile(|x: &Tensor| x.softmax(1) + 1.0, options) {
            Err(error) => is_said(&error),
            Ok(f) => match f.call(&[&x]) {
                Err(error) => is_said(&error),
                Ok(_) => drop(f.explain().to_string()),
            },
        }
    }

    #[test]
    fn no_bucket_panics(
        sizes in prop::collection::vec(int(), 0..3),
        at in (0usize..4, 0usize..4),
        inputs in tensors(),
        calls in prop::collection::vec(call(), 1..3),
    ) {
        let inputs = make(&inputs);
        if inputs.iter().any(|x| x.check().is_err()) {
            return Ok(());
        }
        let sizes: Vec<i64> = sizes.iter().map(|n| (*n).clamp(-9, 99)).collect();
        let f = jit(move |x: &Vec<Tensor>| program(&calls, x), Options::default()).unwrap();
        let bucket = Bucket::new(&sizes).dim(at.0, at.1);
        let bucket = if at.0 == at.1 { bucket.must_pad() } else { bucket };
        if let Ok(f) = f.bucket(bucket) {
            let _ = f.call((&inputs,)).map_err(|error| is_said(&error));
        }
    }
}

#[test]
fn absurd_sizes_are_refused() {
    let one = Tensor::ones(&[1], DType::F32);
    for huge in [i64::MAX, 1 << 62, 1 << 50] {
        let wide = one.expand(&[huge]);
        let cases = [
            wide.contiguous(),
            &wide + 1.0,
            Tensor::cat(&[&wide, &wide], 0),
            wide.new_full(&[huge, 2], 0, DType::F64),
        ];
        for tensor in cases {
            if let Err(error) = tensor.check() {
                is_said(&error);
                let memory = [Code::OutOfMemory, Code::SizeOverflow, Code::TooLarge];
                assert!(memory.contains(&error.code), "{error}");
            } else {
                panic!("{tensor:?} has no memory");
            }
        }
    }
    assert!(Scalar::I(1).as_f64() == 1.0);
}
