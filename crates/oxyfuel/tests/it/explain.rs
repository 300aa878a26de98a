//! Explanations: measured shares of the roofline, and verdicts on functions that are cut.

use oxyfuel::{Code, CodeKind, DType, Options, Result, Tensor, compile};

fn step(x: &Tensor) -> Tensor {
    (x * 2.0).relu() + 1.0
}

#[test]
fn a_measured_variant_has_shares_and_the_others_have_none() {
    let f = compile(step, Options::default()).unwrap();
    let (small, large) = (
        Tensor::randn(&[2, 3], DType::F64, 1),
        Tensor::randn(&[512, 512], DType::F32, 2),
    );
    f.call(&[&small]).unwrap();
    let report = f.explain_measured(&[&large]).unwrap();
    assert_eq!(report.variants.len(), 2, "{report}");
    let [other, measured] = &report.variants[..] else {
        panic!("{report}");
    };
    assert!(other.measured.is_none() && other.kernels[0].measured_seconds.is_none());
    let kernel = &measured.kernels[0];
    assert!(kernel.measured_seconds.is_some_and(|s| s > 0.0), "{report}");
    let whole = measured.measured.unwrap();
    assert_eq!(Some(whole.seconds), kernel.measured_seconds);
    // Times are a model where code runs on the machine, and nothing is known of the interpreter's.
    assert_eq!(
        kernel.roofline_share.is_some(),
        kernel.code == CodeKind::Machine
    );
    assert_eq!(whole.roofline_share, kernel.roofline_share);
    if let (Some(share), Some(expected)) = (kernel.roofline_share, &kernel.expected) {
        let took = kernel.measured_seconds.unwrap();
        assert!((share * took - expected.roof_seconds).abs() < 1e-12);
        let text = report.to_string();
        let line = text.lines().find(|line| line.starts_with("  measured "));
        assert!(line.unwrap().ends_with(&expected.roof_words()), "{text}");
    }
    // A plain explanation later has measured nothing.
    assert!(f.explain().variants[1].measured.is_none());
}

#[test]
fn functions_of_structures_are_measured_too() {
    let f = oxyfuel::jit(
        |(x, factor): &(Tensor, f64)| x * *factor + 1.0,
        Options::default(),
    )
    .unwrap();
    let x = Tensor::ones(&[256, 256], DType::F32);
    let report = f.explain_measured((&(x, 3.0),)).unwrap();
    let kernel = &report.variants[0].kernels[0];
    assert!(kernel.measured_seconds.is_some_and(|s| s > 0.0), "{report}");
    assert!(report.variants[0].measured.is_some(), "{report}");
}

#[test]
fn what_is_wrong_with_the_arguments_is_said_before_anything_runs() {
    let f = compile(step, Options::default()).unwrap();
    let error = f.explain_measured(&[]).unwrap_err();
    assert_eq!(error.code, Code::ArityMismatch, "{error}");
}

/// Halves until the sum is small: one segment for the sum, one that is run again and again.
fn halved(x: &Tensor) -> Result<Tensor> {
    let mut x = x.exp().log();
    while x.sum(&[], false).item()?.as_f64() > 1.0 {
        x = (&x * 0.5).relu();
    }
    Ok(x + 1.0)
}

#[test]
fn a_function_that_is_cut_has_a_verdict() {
    let f = compile(halved, Options::default()).unwrap();
    let x = Tensor::full(&[64, 64], 1.0, DType::F32);
    f.call(&[&x]).unwrap();
    let once = f.explain();
    let variant = &once.variants[0];
    assert!(!variant.cuts.is_empty(), "{once}");
    if variant
        .kernels
        .iter()
        .any(|kernel| kernel.code != CodeKind::Machine)
    {
        assert!(variant.verdict.is_none(), "{once}");
        return;
    }
    let verdict = variant.verdict.as_ref().unwrap();
    // Thirteen sums, twelve halvings: far more eager operators than the graphs of the segments have.
    assert!(verdict.eager_operators > 30, "{once}");
    assert!(verdict.eager_seconds > 0.0 && verdict.compiled_seconds > 0.0);
    let parts = verdict.shares;
    let sum = parts.launch + parts.memory + parts.arithmetic + parts.host;
    assert!((sum - 1.0).abs() < 1e-9, "{parts:?}");
    let text = once.to_string();
    assert!(
        text.contains("gain ")
            && text.contains("each segment runs as often as in the calls so far"),
        "{text}"
    );
    // A second call like it changes no mean.
    f.call(&[&x]).unwrap();
    let twice = f.explain();
    let again = twice.variants[0].verdict.as_ref().unwrap();
    assert_eq!(again.eager_operators, verdict.eager_operators, "{twice}");
    let error = f.explain_measured(&[&x]).unwrap_err();
    assert_eq!(error.code, Code::DataDependent, "{error}");
}
