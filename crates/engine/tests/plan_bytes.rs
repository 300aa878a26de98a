//! Plans whose bytes were changed: no plan, or one that is refused, or one that loads. Nothing panics; none of them runs.

use oxyfuel_engine::{Executable, Options, Record, Target, compile, cpu_device};
use oxyfuel_plan::Plan;
use oxyfuel_runtime::device::Device;
use oxyfuel_testkit::damage::{Change, damaged};
use proptest::prelude::*;
use std::sync::{Arc, OnceLock};

const GRAPHS: &[&str] = &[
    "graph @f(%x: f32[6] cpu) {
  %y: f32[6] = relu %x
  return %y
}",
    "graph @f(%x: f32[4, 5] cpu, %w: f32[5, 3] cpu) {
  %y: f32[4, 3] = mm %x, %w
  %z: f32[4, 3] = exp %y
  %s: f32[4] = sum %z, dims=[1], keepdim=false
  return %z, %s
}",
    "sym s0: 1..
graph @f(%x: f32[s0, 5] cpu) {
  %s: f32[5] = sum %x, dims=[0], keepdim=false
  %y: f32[s0, 5] = add %x, %s
  return %y
}",
    r#"graph @f(%x: f32[4] cpu) {
  %1: f32[4] = relu %x
  %2: f32[4] = external %1, call="{\"name\":\"double\",\"args\":[{\"operand\":0}],\"results\":[{\"tensor\":{\"dtype\":\"f32\",\"shape\":[\"4\"],\"strides\":[\"1\"]}}]}"
  %3: f32[4] = exp %2
  return %3
}"#,
    "graph @f(%x: f32[4] cpu) {
  %y: f32[4] = add %x, %x
  return %y into %x
}",
];

/// The bytes of good plans, for the interpreter and for this machine.
fn plans() -> &'static [Vec<u8>] {
    static PLANS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    PLANS.get_or_init(|| {
        let options = Options::default();
        let targets = [Target::interpreter(), Target::host(&options).unwrap()];
        let plan = |text: &&str, target: &Target| {
            let graph = oxyfuel_graph::parse("test", text).unwrap();
            let compiled = compile(&graph, target, &options, false).unwrap();
            postcard::to_stdvec(&compiled.plan).unwrap()
        };
        let targets = targets.iter();
        targets
            .flat_map(|target| GRAPHS.iter().map(move |text| plan(text, target)))
            .collect()
    })
}

fn device() -> Arc<dyn Device> {
    static DEVICE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    let make = || -> Arc<dyn Device> {
        cpu_device(&Options {
            threads: 1,
            ..Options::default()
        })
    };
    DEVICE.get_or_init(make).clone()
}

/// Whether it loads.
fn loads(bytes: &[u8]) -> bool {
    let Ok(plan) = postcard::from_bytes::<Plan>(bytes) else {
        return false;
    };
    Executable::load(plan, Record::default(), device()).is_ok()
}

#[test]
fn good_plans_load() {
    for bytes in plans() {
        assert!(loads(bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_plan_panics(which in any::<usize>(), changes in prop::collection::vec(any::<Change>(), 1..4)) {
        let plans = plans();
        loads(&damaged(&plans[which % plans.len()], &changes));
    }
}
