//! Functions that read tensors on their way: cut into segments, which are compiled once.

use crate::numbers::{close, randn};
use oxyfuel::{Compiled, Explanation, Options, Result, Tensor, compile, disable, jit};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

fn f32s(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, &[values.len() as i64])
}

/// Takes one way or the other by what it reads, and uses the number.
fn normalised(x: &Tensor) -> Result<Tensor> {
    let y = x * 2.0 + 1.0;
    let largest = y.abs().amax(&[], false).item()?.as_f64();
    let y = if largest > 10.0 {
        y / largest
    } else {
        y.relu()
    };
    Ok(y + x)
}

#[test]
fn the_way_is_taken_anew_at_every_call() {
    let f = compile(normalised, Options::default()).unwrap();
    let inputs = [
        f32s(&[1.0, -2.0, 3.0]),
        f32s(&[1.0, -20.0, 3.0]),
        f32s(&[4.0, -2.0, 3.0]),
        f32s(&[1.0, 50.0, 3.0]),
    ];
    for x in &inputs {
        let ours = f.call_one(&[x]).unwrap();
        let eager = normalised(x).unwrap();
        assert_eq!(
            ours.to_vec::<f32>().unwrap(),
            eager.to_vec::<f32>().unwrap()
        );
    }
    let report = f.explain();
    assert_eq!(report.variants.len(), 1, "{report}");
    assert_eq!(report.variants[0].calls, 4);
    let cuts = &report.variants[0].cuts;
    assert_eq!(cuts.len(), 1, "{report}");
    assert!(
        cuts[0].starts_with("item at ") && cuts[0].contains("cuts.rs:"),
        "{report}"
    );
    // One before the cut, two ways after it: numbers that were read do not lead to further ones.
    let compiled = report.variants[0]
        .steps
        .iter()
        .filter(|(name, _)| *name == "emit");
    assert_eq!(compiled.count(), 3, "{report}");
}

#[test]
fn writes_before_and_after_a_cut() {
    fn step(state: &Tensor, x: &Tensor) -> Result<Tensor> {
        let mut state = state.clone();
        let part = state.slice(0, 0, 2, 1);
        state.add_(x)?;
        let first = part.to_vec::<f32>()?[0];
        part.clone().mul_(2.0)?;
        let kept = &state + f64::from(first);
        let last = state.select(0, 2).item()?.as_f64();
        state.sub_(last)?;
        Ok(kept + part.sum(&[], false))
    }
    let f = compile(step, Options::default()).unwrap();
    let (a, b) = (f32s(&[1.0, 2.0, 3.0]), f32s(&[1.0, 2.0, 3.0]));
    for i in 0..4 {
        let x = f32s(&[i as f32, 1.0, 2.0]);
        let eager = step(&a, &x).unwrap();
        let ours = f.call_one(&[&b, &x]).unwrap();
        assert_eq!(
            ours.to_vec::<f32>().unwrap(),
            eager.to_vec::<f32>().unwrap()
        );
        assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    }
    assert_eq!(f.explain().variants[0].cuts.len(), 2, "{}", f.explain());
}

#[test]
fn a_disabled_region_runs_at_every_call() {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let f = compile(
        move |x: &Tensor| {
            let y = x + 1.0;
            let view = y.slice(0, 1, 3, 1);
            let z = disable(&(y.clone(), view), |(y, view)| {
                counted.fetch_add(1, Ordering::Relaxed);
                assert!(!y.is_traced());
                view.clone().fill_(0)?;
                Ok::<_, oxyfuel::Error>(y * 10.0)
            })??;
            Ok::<_, oxyfuel::Error>((y + 0.0, z.relu()))
        },
        Options::default(),
    )
    .unwrap();
    for i in 1..4 {
        let out = f.call(&[&f32s(&[1.0, 2.0, 3.0])]).unwrap();
        assert_eq!(out[0].to_vec::<f32>().unwrap(), [2.0, 0.0, 0.0]);
        assert_eq!(out[1].to_vec::<f32>().unwrap(), [20.0, 0.0, 0.0]);
        assert_eq!(runs.load(Ordering::Relaxed), i);
    }
    // Outside of a capture it is a plain call.
    assert_eq!(disable(&f32s(&[1.0]), |x| x.numel()).unwrap(), 1);
}

#[test]
fn structures_and_captured_tensors_across_cuts() {
    let weight = f32s(&[1.0, 2.0]);
    let held = weight.clone();
    let f = jit(
        move |xs: &Vec<Tensor>| -> Result<(Vec<Tensor>, f64)> {
            let scale = (&held * 2.0).sum(&[], false).item()?.as_f64();
            Ok((xs.iter().map(|x| x * scale + &held).collect(), scale))
        },
        Options::default(),
    )
    .unwrap();
    let mut weight = weight;
    for i in 0..3 {
        let (out, scale) = f
            .call((&vec![f32s(&[1.0, 1.0]), f32s(&[0.0, 2.0])],))
            .unwrap();
        let w = weight.to_vec::<f32>().unwrap();
        let s = 2.0 * (w[0] + w[1]);
        assert_eq!(scale, f64::from(s), "call {i}");
        assert_eq!(out[0].to_vec::<f32>().unwrap(), [s + w[0], s + w[1]]);
        assert_eq!(out[1].to_vec::<f32>().unwrap(), [w[0], 2.0 * s + w[1]]);
        weight.add_(1.0).unwrap();
    }
}

#[test]
fn a_loop_until_it_converges() {
    fn root(x: &Tensor) -> Result<Tensor> {
        let mut y = x.clone() + 0.0;
        for _ in 0..50 {
            let next = (&y + x / &y) * 0.5;
            let change = (&next - &y).abs().amax(&[], false).item()?.as_f64();
            y = next;
            if change < 1e-6 {
                break;
            }
        }
        Ok(y)
    }
    let f = compile(root, Options::default()).unwrap();
    for _ in 0..2 {
        let y = f
            .call_one(&[&f32s(&[4.0, 9.0])])
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
        assert!(
            (y[0] - 2.0).abs() < 1e-5 && (y[1] - 3.0).abs() < 1e-5,
            "{y:?}"
        );
    }
    let report = f.explain();
    assert_eq!(report.variants[0].cuts.len(), 1, "{report}");
    let compiled = report.variants[0]
        .steps
        .iter()
        .filter(|(name, _)| *name == "emit");
    assert!(compiled.count() <= 4, "{report}");
}

#[test]
fn warming_up_does_not_run() {
    let f = compile(normalised, Options::default()).unwrap();
    let error = f.warm_up(&[&f32s(&[1.0])]).unwrap_err();
    assert_eq!(error.code, oxyfuel::Code::DataDependent, "{error}");
}

/// A region that is not captured may do anything, also call the function that it is a part of.
#[test]
fn a_function_calls_itself_where_it_is_cut() {
    static F: OnceLock<Compiled> = OnceLock::new();
    fn sums(x: &Tensor) -> Result<Tensor> {
        let shorter = disable(x, |x| match x.size(0)? {
            1 => Ok(x.sum(&[], false)),
            rows => {
                let f = F.get().expect("it is made before it is called");
                f.call_one(&[&x.slice(0, 0, rows - 1, 1)])
            }
        })??;
        Ok(x.sum(&[], false) + shorter)
    }
    let (done, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let f = F.get_or_init(|| compile(sums, Options::default()).unwrap());
        let y = f.call_one(&[&f32s(&[1.0, 2.0, 3.0])]).unwrap();
        done.send(y.item().unwrap().as_f64()).unwrap();
    });
    let sum = end.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(sum.expect("it waits for itself"), 6.0 + 3.0 + 1.0 + 1.0);
}

/// The function runs on another thread while it is being captured on this one.
#[test]
fn a_capture_waits_for_another_call() {
    static F: OnceLock<Compiled> = OnceLock::new();
    fn both(x: &Tensor) -> Tensor {
        if x.rank() == 1 {
            let inner = || {
                let x = f32s(&[1.0, 2.0]).reshape(&[1, 2]);
                F.get().map(|f| f.call_one(&[&x]))
            };
            let _ = std::thread::spawn(inner).join();
        }
        x * 2.0
    }
    let (done, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let f = F.get_or_init(|| compile(both, Options::default()).unwrap());
        let y = f.call_one(&[&f32s(&[1.0])]).unwrap();
        done.send(y.item().unwrap().as_f64()).unwrap();
    });
    let y = end.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(y.expect("it waits for itself"), 2.0);
}

/// How many plans were compiled.
fn plans(report: &Explanation) -> usize {
    let steps = report.variants.iter().flat_map(|variant| &variant.steps);
    steps.filter(|(name, _)| *name == "emit").count()
}

type Fallible = fn(&Tensor) -> Result<Tensor>;

/// From the second size on the segments have symbols, whatever becomes of the sizes between cuts.
#[test]
fn segments_serve_all_sizes_from_the_second_on() {
    let cases: &[(&str, usize, Fallible)] = &[
        ("read", 2, |x| {
            let y = x.exp();
            let largest = y.amax(&[], false).item()?.as_f64();
            Ok((y / largest).softmax(0) + x)
        }),
        ("folded", 2, |x| {
            let y = (x * 2.0).reshape(&[-1]);
            let largest = y.amax(&[], false).item()?.as_f64();
            Ok(y / largest + 1.0)
        }),
        ("parts and views", 3, |x| {
            let y = x * 2.0;
            let (upper, turned) = (y.slice(0, 1, i64::MAX, 1), y.t());
            let first = y.amax(&[], false).item()?.as_f64();
            let sum = (&upper / first).sum(&[0], true);
            let second = sum.amax(&[], false).item()?.as_f64();
            Ok(turned.matmul(&y) / second + sum)
        }),
        ("written between", 2, |x| {
            let mut y = x + 0.0;
            let row = y.slice(0, 0, 1, 1);
            let largest = y.amax(&[], false).item()?.as_f64();
            y.mul_(2.0)?;
            row.clone().div_(largest)?;
            Ok(&y + &row)
        }),
        ("disabled", 2, |x| {
            let y = x.relu();
            let z = disable(&y, |y| y * 3.0)?;
            Ok(z + &y)
        }),
        ("numbers from outside", 2, |x| {
            let y = x.relu();
            let z = disable(&y, |y| -> Result<Tensor> {
                let numbers: Vec<f32> = y.to_vec::<f32>()?.iter().map(|x| x + 1.0).collect();
                Ok(Tensor::from_vec(numbers, y.shape()))
            })??;
            Ok((z * y).sum(&[0], false))
        }),
    ];
    for (name, segments, function) in cases {
        let f = compile(*function, Options::default()).unwrap();
        for rows in [5, 7, 12, 3, 31, 2, 18] {
            let x = randn(&[rows, 4], rows as u64);
            let ours = f.call_one(&[&x]);
            let ours = ours.unwrap_or_else(|error| panic!("{name} of {rows}: {error}"));
            close(&ours, &function(&x).unwrap());
        }
        let report = f.explain();
        assert_eq!(report.variants.len(), 2, "{name}: {report}");
        assert_eq!(report.variants[1].calls, 6, "{name}: {report}");
        assert_eq!(report.variants[1].arguments, ["f32[s0, 4] cpu"]);
        assert!(plans(&report) <= 2 * segments, "{name}: {report}");
    }
}

/// A size that is asked for before the first cut is a number from the start; after it, from there on.
#[test]
fn sizes_that_are_asked_for_around_a_cut() {
    let before: Fallible = |x| {
        let rows = x.size(0)? as f64;
        let y = x / rows;
        let largest = y.amax(&[], false).item()?.as_f64();
        Ok(y / largest)
    };
    let after: Fallible = |x| {
        let y = (x * 2.0).relu();
        let largest = y.amax(&[], false).item()?.as_f64();
        let z = &y / largest;
        let [rows, columns] = z.dims()?;
        Ok((z + x).reshape(&[columns, rows]) / rows as f64)
    };
    for (function, sizes_stay) in [(before, true), (after, false)] {
        let f = compile(function, Options::default()).unwrap();
        for rows in [5, 7, 12, 3] {
            let x = randn(&[rows, 4], rows as u64);
            close(&f.call_one(&[&x]).unwrap(), &function(&x).unwrap());
        }
        let report = f.explain();
        let variants = if sizes_stay { 4 } else { 2 };
        assert_eq!(report.variants.len(), variants, "{report}");
        let reasons = report.variants[1].reasons.join("\n");
        let said = match sizes_stay {
            true => "dim 0 of argument 0 stays a number: the function asks for it at",
            false => "on: the function asks for it after a cut",
        };
        assert!(reasons.contains(said), "{reasons}");
        assert!(reasons.contains("cuts.rs:"), "{reasons}");
    }
}

/// What knows no symbols does after a cut as it does before one.
#[test]
fn operations_that_need_numbers_after_a_cut() {
    let function: Fallible = |x| {
        let largest = (x * 2.0).amax(&[], false).item()?.as_f64();
        let y = x / largest;
        let pooled = y.t().unsqueeze(0).max_pool1d([2], [1], [0], [1]);
        Ok(pooled + y.cummax(0).0.sum(&[], false))
    };
    let f = compile(function, Options::default()).unwrap();
    for rows in [5, 7, 12, 3] {
        let x = randn(&[rows, 4], rows as u64);
        close(&f.call_one(&[&x]).unwrap(), &function(&x).unwrap());
    }
    assert_eq!(f.explain().variants.len(), 2, "{}", f.explain());
}

/// A mistake after a cut is the user's, and what ran before it ran once.
#[test]
fn a_mistake_after_a_cut_runs_nothing_twice() {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let f = compile(
        move |x: &Tensor, w: &Tensor| -> Result<Tensor> {
            let y = disable(&(x + 1.0), |y| {
                counted.fetch_add(1, Ordering::Relaxed);
                y.clone()
            })?;
            Ok(y + w)
        },
        Options::default(),
    )
    .unwrap();
    for (calls, (a, b)) in (1..).zip([(3, 3), (4, 4), (5, 5), (6, 7), (8, 9), (6, 6)]) {
        let (x, w) = (randn(&[a], 1), randn(&[b], 2));
        match f.call_one(&[&x, &w]) {
            Ok(y) => close(&y, &(&x + 1.0 + &w)),
            Err(error) => {
                assert_ne!(a, b, "{error}");
                assert_eq!(error.code, oxyfuel::Code::ShapeMismatch, "{error}");
            }
        }
        assert_eq!(runs.load(Ordering::Relaxed), calls);
    }
}

/// Several dims and arguments, captured weights, and arguments that are parts of larger tensors.
#[test]
fn many_symbols_in_segments() {
    let weight = randn(&[8, 8], 9);
    let held = weight.clone();
    let forward = move |x: &Tensor, y: &Tensor| -> Result<Tensor> {
        let z = x.matmul(&held) + y;
        let largest = z.abs().amax(&[], false).item()?.as_f64();
        Ok((z / largest).matmul(&held).transpose(0, 1).softmax(-1) * 2.0)
    };
    let eager = forward.clone();
    let f = compile(forward, Options::default()).unwrap();
    for (batch, rows) in [(2, 3), (4, 6), (5, 3), (3, 11), (7, 2)] {
        let x = randn(&[batch, rows, 24], 1).slice(2, 8, 16, 1);
        let y = randn(&[batch, rows, 8], 2);
        close(&f.call_one(&[&x, &y]).unwrap(), &eager(&x, &y).unwrap());
    }
    let report = f.explain();
    assert_eq!(report.variants.len(), 2, "{report}");
    assert!(plans(&report) <= 4, "{report}");
}
