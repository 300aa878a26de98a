//! Three ways to run a function, which must agree.

use oxyfuel::{Compiled, Options, Result, Tensor, compile};
use oxyfuel_graph::HostTensor;

fn host(tensor: &Tensor) -> HostTensor {
    HostTensor::new(tensor.dtype(), tensor.shape(), tensor.to_bytes().unwrap()).unwrap()
}

/// Runs `f` eagerly, compiled, and in the graph interpreter, and compares all three. Returns the compiled function.
pub fn check(name: &str, f: fn(&[Tensor]) -> Result<Vec<Tensor>>, inputs: &[Tensor]) -> Compiled {
    let eager = f(inputs).unwrap_or_else(|error| panic!("{name}: eager: {error}"));
    let compiled = compile(move |inputs: &[Tensor]| f(inputs), Options::default())
        .unwrap()
        .named(name);
    let borrowed: Vec<&Tensor> = inputs.iter().collect();
    let ours = compiled
        .call(&borrowed)
        .unwrap_or_else(|error| panic!("{name}: compiled: {error}"));
    let (graph, captured) = compiled.graph(&borrowed).unwrap();
    let hosts: Vec<HostTensor> = inputs.iter().chain(&captured).map(host).collect();
    let expected = oxyfuel_graph::run(&graph, &hosts).unwrap();
    assert_eq!(ours.len(), eager.len(), "{name}");
    for (i, ((ours, eager), expected)) in ours.iter().zip(&eager).zip(&expected).enumerate() {
        assert_eq!(ours.shape(), eager.shape(), "{name} {i}");
        assert_eq!(ours.dtype(), eager.dtype(), "{name} {i}");
        assert_eq!(ours.shape(), expected.shape, "{name} {i}");
        let bytes = ours.to_bytes().unwrap();
        let judge = |who: &str, other: &[u8]| {
            oxyfuel_engine::agree(ours.dtype(), &bytes, other)
                .unwrap_or_else(|why| panic!("{name}, output {i}, compiled and {who}: {why}"));
        };
        judge("interpreter", &expected.data);
        judge("eager", &eager.to_bytes().unwrap());
    }
    compiled
}
