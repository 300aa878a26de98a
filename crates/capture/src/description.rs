//! An FX graph as plain data.
//!
//! The host writes JSON, [`read`] checks its form and gives a [`Description`]. What is checked here is grammar: fields, kinds, size expressions, dtype
//! names. Whether names refer to anything is the importer's business, since it walks the nodes in order anyway.
//!
//! ```text
//! {"version": 1, "name": "forward",
//!  "symbols":   [{"name": "s0", "min": 2, "max": null, "hint": 8}],
//!  "inputs":    [{"name": "x", "kind": "tensor", "type": T} | {"name": "n", "kind": "int", "value": E} | {"name": "o", "kind": "object"}],
//!  "constants": [{"name": "c", "type": T, "data": "0000803f"}],                        (row-major, little-endian, in hex)
//!  "nodes":     [{"name": "add", "target": "aten.add.Tensor", "args": [A..], "kwargs": {"alpha": A}, "results": [R..],
//!                 "sequence": false, "ordered": false, "at": {"file": "model.py", "line": 12}}],
//!  "outputs":   [A..],
//!  "mutations": [{"input": 3, "value": A}],
//!  "objects":   2}
//! T = {"dtype": "float32", "shape": [E..], "strides": [E..], "device": "cpu", "requires_grad": false, "align": 1}
//! E = integer | "s0*2 + 1"
//! R = {"kind": "tensor", "type": T} | {"kind": "int", "value": E} | {"kind": "object"} | {"kind": "none"}
//! A = null | bool | integer | float | "string" | {"float": "inf" | "-inf" | "nan"} | {"node": "add"} | {"node": "split", "index": 1} | {"expr": E}
//!   | {"dtype": ".."} | {"device": ".."} | {"layout": ".."} | {"memory_format": ".."} | {"object": 0} | [A..] | {"tuple": [A..]}
//! ```

use oxyfuel_base::{Code, Error, Expr, Location, Result, Scalar};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of the format this crate reads.
pub const VERSION: u32 = 1;

/// A whole FX graph.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    pub version: u32,
    pub name: String,
    #[serde(default)]
    pub symbols: Vec<SymbolRow>,
    #[serde(default)]
    pub inputs: Vec<Input>,
    #[serde(default)]
    pub constants: Vec<ConstantRow>,
    #[serde(default)]
    pub nodes: Vec<Node>,
    #[serde(default)]
    pub outputs: Vec<Value>,
    #[serde(default)]
    pub mutations: Vec<Mutation>,
    /// How many objects of the host the arguments may name.
    #[serde(default)]
    pub objects: u32,
}

/// An unknown integer, with its bounds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SymbolRow {
    /// `s` and a number.
    pub name: String,
    #[serde(default)]
    pub min: i64,
    /// `None`: unbounded.
    #[serde(default)]
    pub max: Option<i64>,
    /// The value it had when the program was traced.
    #[serde(default)]
    pub hint: Option<i64>,
}

/// What is known of a tensor: the host's own fake tensor, in words.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Type {
    /// The host's name: `float32`.
    pub dtype: String,
    #[serde(deserialize_with = "sizes")]
    pub shape: Vec<Expr>,
    /// In elements.
    #[serde(deserialize_with = "sizes")]
    pub strides: Vec<Expr>,
    #[serde(default = "cpu")]
    pub device: String,
    #[serde(default)]
    pub requires_grad: bool,
    /// A power of two that divides the address, in bytes, where kernels gain by it; a caller with a tensor elsewhere hands over a copy.
    #[serde(default = "anywhere")]
    pub align: u32,
}

fn anywhere() -> u32 {
    1
}

fn cpu() -> String {
    "cpu".to_owned()
}

/// A parameter of the graph.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Input {
    pub name: String,
    #[serde(flatten)]
    pub item: Item,
}

/// A small tensor that belongs to the graph.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ConstantRow {
    pub name: String,
    #[serde(rename = "type")]
    pub ty: Type,
    /// The elements in row-major order, little-endian, in hex.
    pub data: String,
}

/// What a parameter or a result is.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Item {
    Tensor {
        #[serde(rename = "type")]
        ty: Type,
    },
    Int {
        #[serde(deserialize_with = "size")]
        value: Expr,
    },
    /// Something only the host understands.
    Object,
    None,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Node {
    pub name: String,
    /// What is called: `aten.add.Tensor`.
    pub target: String,
    #[serde(default)]
    pub args: Vec<Value>,
    #[serde(default, deserialize_with = "pairs")]
    pub kwargs: Vec<(String, Value)>,
    #[serde(default)]
    pub results: Vec<Item>,
    /// The call returns a sequence whose items are the results.
    #[serde(default)]
    pub sequence: bool,
    /// The call has effects.
    #[serde(default)]
    pub ordered: bool,
    #[serde(default)]
    pub at: Option<At>,
}

/// A line of the user's program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct At {
    pub file: String,
    pub line: u32,
}

/// A write over an input at the end of the graph.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Mutation {
    /// The position of the input.
    pub input: usize,
    pub value: Value,
}

/// An argument of a call, or a result of the graph.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    None,
    Number(Scalar),
    Str(String),
    Node { name: String, index: Option<usize> },
    Expr(Expr),
    DType(String),
    Device(String),
    Layout(String),
    MemoryFormat(String),
    Object(u32),
    List(Vec<Value>),
    Tuple(Vec<Value>),
}

/// Reads a description.
pub fn read(text: &str) -> Result<Description> {
    let description: Description = serde_json::from_str(text).map_err(|e| {
        let column = u32::try_from(e.column()).unwrap_or(u32::MAX);
        let line = u32::try_from(e.line()).unwrap_or(u32::MAX);
        // The place is said by the location; the message should not repeat it.
        let message = e.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        Error::new(
            if e.is_data() {
                Code::InvalidArgument
            } else {
                Code::Syntax
            },
            format!("the description of the graph: {message}"),
        )
        .at(Location::new("description", line, column.max(1)))
    })?;
    if description.version != VERSION {
        return Err(Error::new(
            Code::UnsupportedVersion,
            format!(
                "the description has version {}, not {VERSION}",
                description.version
            ),
        )
        .help("install the Python package and the native module of one version"));
    }
    Ok(description)
}

/// A size as JSON: an integer, or the text of an expression.
struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Expr;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer or a size expression")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Expr, E> {
        Ok(Expr::constant(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Expr, E> {
        i64::try_from(value)
            .map(Expr::constant)
            .map_err(|_| E::custom(format!("{value} does not fit into 64 bits")))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Expr, E> {
        text.parse()
            .map_err(|e: Error| E::custom(format!("the size `{text}`: {}", e.message)))
    }
}

struct Size(Expr);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        deserializer.deserialize_any(SizeVisitor).map(Size)
    }
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Expr, D::Error> {
    Size::deserialize(deserializer).map(|s| s.0)
}

fn sizes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Expr>, D::Error> {
    let list = Vec::<Size>::deserialize(deserializer)?;
    Ok(list.into_iter().map(|s| s.0).collect())
}

/// An object as pairs in the order they are written: the order of keyword arguments is part of the call.
fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, Value)>, D::Error> {
    struct Pairs;
    impl<'de> Visitor<'de> for Pairs {
        type Value = Vec<(String, Value)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("arguments by name")
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
            let mut out: Vec<(String, Value)> = vec![];
            while let Some((key, value)) = map.next_entry::<String, Value>()? {
                if out.iter().any(|(have, _)| *have == key) {
                    return Err(de::Error::custom(format!(
                        "argument `{key}` is given twice"
                    )));
                }
                out.push((key, value));
            }
            Ok(out)
        }
    }
    deserializer.deserialize_map(Pairs)
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an argument")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Number(Scalar::B(value)))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(Scalar::I(value)))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        i64::try_from(value)
            .map(|v| Value::Number(Scalar::I(v)))
            .map_err(|_| E::custom(format!("{value} does not fit into 64 bits")))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(Scalar::F(value)))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Str(value.to_owned()))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Value, S::Error> {
        let mut items = vec![];
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Value, M::Error> {
        let Some(key) = map.next_key::<String>()? else {
            return Err(de::Error::custom("an argument `{}` says nothing"));
        };
        let value = match key.as_str() {
            "node" | "index" => return node_value(&key, map),
            "float" => Value::Number(Scalar::F(special_float(&map.next_value::<String>()?)?)),
            "expr" => Value::Expr(map.next_value::<Size>()?.0),
            "dtype" => Value::DType(map.next_value()?),
            "device" => Value::Device(map.next_value()?),
            "layout" => Value::Layout(map.next_value()?),
            "memory_format" => Value::MemoryFormat(map.next_value()?),
            "object" => Value::Object(map.next_value()?),
            "tuple" => Value::Tuple(map.next_value()?),
            other => {
                return Err(de::Error::custom(format!(
                    "an argument cannot be `{{\"{other}\": ..}}`"
                )));
            }
        };
        match map.next_key::<String>()? {
            None => Ok(value),
            Some(more) => Err(de::Error::custom(format!(
                "`{more}` does not belong beside `{key}`"
            ))),
        }
    }
}

/// `{"node": "split", "index": 1}` after its first key.
fn node_value<'de, M: MapAccess<'de>>(first: &str, mut map: M) -> Result<Value, M::Error> {
    let (mut name, mut index) = (None, None);
    let mut key = Some(first.to_owned());
    while let Some(have) = key {
        match have.as_str() {
            "node" => name = Some(map.next_value()?),
            "index" => index = map.next_value()?,
            other => {
                return Err(de::Error::custom(format!(
                    "`{other}` does not belong beside `node`"
                )));
            }
        }
        key = map.next_key::<String>()?;
    }
    match name {
        Some(name) => Ok(Value::Node { name, index }),
        None => Err(de::Error::custom("an index of no node")),
    }
}

fn special_float<E: de::Error>(text: &str) -> Result<f64, E> {
    match text {
        "inf" => Ok(f64::INFINITY),
        "-inf" => Ok(f64::NEG_INFINITY),
        "nan" => Ok(f64::NAN),
        other => Err(E::custom(format!("`{other}` is no float"))),
    }
}

/// How an argument is written in the edits that go back to the host: the inverse of reading it.
impl Serialize for Value {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        fn one<S: serde::Serializer, T: Serialize + ?Sized>(
            serializer: S,
            key: &str,
            value: &T,
        ) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(Some(1))?;
            map.serialize_entry(key, value)?;
            map.end()
        }
        match self {
            Value::None => serializer.serialize_unit(),
            Value::Number(Scalar::B(v)) => serializer.serialize_bool(*v),
            Value::Number(Scalar::I(v)) => serializer.serialize_i64(*v),
            Value::Number(Scalar::F(v)) if v.is_nan() => one(serializer, "float", "nan"),
            Value::Number(Scalar::F(v)) if v.is_infinite() => {
                one(serializer, "float", if *v > 0.0 { "inf" } else { "-inf" })
            }
            Value::Number(Scalar::F(v)) => serializer.serialize_f64(*v),
            Value::Str(text) => serializer.serialize_str(text),
            Value::Node { name, index } => {
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("node", name)?;
                if let Some(index) = index {
                    map.serialize_entry("index", index)?;
                }
                map.end()
            }
            Value::Expr(e) => match e.as_const() {
                Some(c) => one(serializer, "expr", &c),
                None => one(serializer, "expr", &e.to_string()),
            },
            Value::DType(v) => one(serializer, "dtype", v),
            Value::Device(v) => one(serializer, "device", v),
            Value::Layout(v) => one(serializer, "layout", v),
            Value::MemoryFormat(v) => one(serializer, "memory_format", v),
            Value::Object(v) => one(serializer, "object", v),
            Value::List(items) => items.serialize(serializer),
            Value::Tuple(items) => one(serializer, "tuple", items),
        }
    }
}
