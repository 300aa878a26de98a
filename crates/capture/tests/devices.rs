//! Where the values of an imported graph are: everything that kernels touch is on one device, the one that the description names.

use oxyfuel_capture::{ImportOptions, Random, import, read};
use oxyfuel_graph::{Device, Op};
use serde_json::{Value, json};

fn tensor(shape: &[i64], device: &str) -> Value {
    let strides: Vec<i64> = (0..shape.len())
        .map(|d| shape[d + 1..].iter().product())
        .collect();
    json!({"kind": "tensor", "type": {"dtype": "float32", "shape": shape, "strides": strides, "device": device}})
}

fn node(name: &str, target: &str, args: Value, device: &str) -> Value {
    json!({"name": name, "target": target, "args": args, "results": [tensor(&[3, 4], device)]})
}

fn described(device: &str) -> String {
    let mut x = tensor(&[3, 4], device);
    x["name"] = json!("x");
    let host = json!({"name": "number", "kind": "object"});
    let brought = json!({"name": "brought", "target": "aten._to_copy.default", "args": [{"node": "number"}],
        "kwargs": {"device": {"device": device}}, "results": [tensor(&[], device)]});
    let nodes = json!([
        brought,
        node("full", "aten.full.default", json!([[3, 4], 2.0]), device),
        node(
            "twice",
            "aten.mul.Tensor",
            json!([{"node": "x"}, {"node": "brought"}]),
            device
        ),
        node(
            "more",
            "aten.add.Tensor",
            json!([{"node": "twice"}, 1.5]),
            device
        ),
        node("drawn", "aten.rand.default", json!([[3, 4]]), device),
        node(
            "all",
            "aten.add.Tensor",
            json!([{"node": "more"}, {"node": "full"}]),
            device
        ),
        node(
            "y",
            "aten.mul.Tensor",
            json!([{"node": "all"}, {"node": "drawn"}]),
            device
        ),
    ]);
    json!({"version": 1, "name": "f", "inputs": [x, host], "nodes": nodes, "outputs": [{"node": "y"}]}).to_string()
}

#[test]
fn a_graph_of_a_gpu_is_there_as_a_whole() {
    let options = ImportOptions {
        random: Random::Own,
        ..ImportOptions::default()
    };
    for (name, device) in [
        ("cpu", Device::Cpu),
        ("cuda:0", Device::Cuda(0)),
        ("cuda:3", Device::Cuda(3)),
    ] {
        let made = import(&read(&described(name)).unwrap(), &options).unwrap();
        let graph = made.graph;
        oxyfuel_graph::verify(&graph).unwrap();
        let mut places: Vec<Device> = graph.values.values().map(|v| v.ty.device).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places, [device, Device::Host], "{name}");
        // The seed is asked of the generator of that device, and what no operand tells is said by the call.
        let calls: Vec<_> = graph
            .nodes
            .values()
            .filter_map(|node| match &node.op {
                Op::External { call } => Some(call),
                _ => None,
            })
            .collect();
        let gpu = match device {
            Device::Cuda(index) => Some(index),
            Device::Cpu | Device::Host => None,
        };
        assert_eq!(calls.len(), 2, "{name}");
        assert!(calls.iter().all(|call| call.gpu == gpu), "{name}");
        let seed = calls.iter().find(|call| call.name.contains("randint"));
        assert_eq!(seed.unwrap().kwargs.len(), usize::from(gpu.is_some()));
    }
}

#[test]
fn tensors_of_other_devices_are_the_host_s_alone() {
    for name in ["meta", "mps:0", "xpu:1", "cuda", "cuda:x"] {
        let made = import(&read(&described(name)).unwrap(), &ImportOptions::default()).unwrap();
        assert_eq!(made.externals.len(), 7, "{name}");
    }
}

/// Where a sort of all of `shape` goes: nothing where it is ours.
fn left_to_the_host(shape: &[i64], dtype: &str, device: &str) -> Option<String> {
    let of = |dtype: &str| {
        let mut tensor = tensor(shape, device);
        tensor["type"]["dtype"] = json!(dtype);
        tensor
    };
    let mut x = of(dtype);
    x["name"] = json!("x");
    let nodes = json!([{"name": "order", "target": "aten.sort.default", "args": [{"node": "x"}], "results": [of(dtype), of("int64")]}]);
    let outputs = json!([{"node": "order", "index": 0}, {"node": "order", "index": 1}]);
    let description =
        json!({"version": 1, "name": "f", "inputs": [x], "nodes": nodes, "outputs": outputs});
    let description = read(&description.to_string()).unwrap();
    let imported = import(&description, &ImportOptions::default()).unwrap();
    imported.externals.first().map(|e| e.reason.to_string())
}

#[test]
fn a_gpu_sorts_what_its_cache_holds() {
    let ours = |shape: &[i64], dtype, device| left_to_the_host(shape, dtype, device).is_none();
    assert!(ours(&[4096, 8192], "float32", "cuda:0"));
    assert!(ours(&[64, 16384], "float32", "cuda:0"));
    assert!(ours(&[1 << 20], "bfloat16", "cuda:0"));
    let why = left_to_the_host(&[64, 65536], "float32", "cuda:0").unwrap();
    assert!(why.contains("long rows"), "{why}");
    assert!(!ours(&[64, 16384], "int64", "cuda:0"));
    assert!(ours(&[64, 65536], "float32", "cpu") && ours(&[64, 16384], "int64", "cpu"));
}
