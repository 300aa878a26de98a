//! Names of values: unique identifiers, free again once nobody has them.

use oxyfuel_base::DType;
use oxyfuel_graph::{Builder, Device, ValueId};

fn name(b: &Builder, v: ValueId) -> &str {
    b.graph().values[v].name.as_deref().unwrap_or("")
}

#[test]
fn a_name_that_is_taken_gets_a_number_and_a_free_one_does_not() {
    let mut b = Builder::new("f");
    let mut input = |name: &str| {
        b.input(name, DType::F32, vec![4.into()], Device::Cpu)
            .unwrap()
    };
    let (x, y) = (input("x"), input("x"));
    assert_eq!((name(&b, x), name(&b, y)), ("x", "x_1"));
    let s = b.add(x, y).unwrap();
    b.set_name(s, "x");
    assert_eq!(name(&b, s), "x_2");
    // Its own old name is not in the way of its new one.
    b.set_name(s, "x_2");
    assert_eq!(name(&b, s), "x_2");
    b.set_name(x, "first value");
    assert_eq!(name(&b, x), "first_value");
    b.set_name(s, "x");
    assert_eq!(name(&b, s), "x");
    let t = b.add(s, y).unwrap();
    b.set_name(t, "x_2");
    assert_eq!(name(&b, t), "x_2");
}
