//! What is wrong with a description is said with a code and a place; nothing panics, whatever the text.

use oxyfuel_base::Code;
use oxyfuel_capture::{ImportOptions, import, read};
use proptest::prelude::*;

const X: &str = r#"{"name": "x", "kind": "tensor", "type": {"dtype": "float32", "shape": [3], "strides": [1]}}"#;

fn neg(arg: &str) -> String {
    format!(
        r#"{{"name": "y", "target": "aten.neg.default", "args": [{arg}],
            "results": [{{"kind": "tensor", "type": {{"dtype": "float32", "shape": [3], "strides": [1]}}}}]}}"#
    )
}

fn whole(nodes: &str, rest: &str) -> String {
    format!(r#"{{"version": 1, "name": "f", "inputs": [{X}], "nodes": [{nodes}]{rest}}}"#)
}

fn error(text: &str) -> (Code, String) {
    let result = read(text).and_then(|d| import(&d, &ImportOptions::default()));
    let error = result.expect_err(text);
    (error.code, error.message)
}

#[test]
fn malformed_text() {
    for (text, code, word) in [
        ("", Code::Syntax, "EOF"),
        ("{", Code::Syntax, "EOF"),
        ("[1]", Code::InvalidArgument, "description"),
        (r#"{"version": 1}"#, Code::InvalidArgument, "name"),
        (
            r#"{"version": 9, "name": "f"}"#,
            Code::UnsupportedVersion,
            "version 9",
        ),
        (
            r#"{"version": 1, "name": "f", "surprise": 1}"#,
            Code::InvalidArgument,
            "surprise",
        ),
    ] {
        let (have, message) = error(text);
        assert_eq!(have, code, "{text}: {message}");
        assert!(message.contains(word), "{text}: {message}");
    }
}

#[test]
fn malformed_arguments() {
    for (arg, word) in [
        (r#"{"nod": "x"}"#, "nod"),
        (r#"{}"#, "says nothing"),
        (r#"{"node": "x", "where": 1}"#, "where"),
        (r#"{"index": 1}"#, "no node"),
        (r#"{"float": "big"}"#, "big"),
        (r#"{"expr": "s0 +"}"#, "s0 +"),
        (r#"{"expr": "1//0"}"#, "1//0"),
        (r#"{"dtype": "float32", "x": 1}"#, "x"),
        ("18446744073709551615", "64 bits"),
    ] {
        let (code, message) = error(&whole(&neg(arg), ""));
        assert_eq!(code, Code::InvalidArgument, "{arg}: {message}");
        assert!(message.contains(word), "{arg}: {message}");
    }
}

#[test]
fn names_that_mean_nothing() {
    let unknown = error(&whole(&neg(r#"{"node": "z"}"#), ""));
    assert_eq!(unknown.0, Code::UnknownName);
    assert!(unknown.1.contains("`z`") && unknown.1.contains("y (aten.neg.default)"));
    let index = error(&whole(&neg(r#"{"node": "x", "index": 4}"#), ""));
    assert_eq!(index.0, Code::IndexOutOfRange);
    let twice = format!("{0}, {0}", neg(r#"{"node": "x"}"#));
    assert_eq!(error(&whole(&twice, "")).0, Code::DuplicateName);
    let object = error(&whole(&neg(r#"{"object": 3}"#), r#", "objects": 1"#));
    assert_eq!(object.0, Code::IndexOutOfRange);
    let output = error(&whole("", r#", "outputs": [{"node": "q"}]"#));
    assert_eq!(output.0, Code::UnknownName);
}

#[test]
fn mutations_that_mean_nothing() {
    for mutation in [
        r#"{"input": 7, "value": {"node": "x"}}"#,
        r#"{"input": 0, "value": 3}"#,
    ] {
        let rest = format!(r#", "mutations": [{mutation}]"#);
        assert_eq!(error(&whole("", &rest)).0, Code::InvalidArgument);
    }
}

#[test]
fn symbols_that_mean_nothing() {
    let bad = r#"{"version": 1, "name": "f", "symbols": [{"name": "size"}]}"#;
    assert_eq!(error(bad).0, Code::InvalidArgument);
    let undeclared = r#"{"version": 1, "name": "f", "inputs": [
        {"name": "x", "kind": "tensor", "type": {"dtype": "float32", "shape": ["s0"], "strides": [1]}}]}"#;
    assert_eq!(error(undeclared).0, Code::InvalidGraph);
}

#[test]
fn an_error_points_into_the_text() {
    let error = read("{\"version\": 1,\n \"name\": 3}").unwrap_err();
    assert_eq!(error.at.map(|at| at.line), Some(2));
}

proptest! {
    /// One byte of a good description replaced by another: an answer or an error, never a panic.
    #[test]
    fn damaged_text_never_panics(at in 0usize..400, byte in 0u8..128) {
        let text = whole(&neg(r#"{"node": "x"}"#), r#", "outputs": [{"node": "y"}], "mutations": [{"input": 0, "value": {"node": "y"}}]"#);
        let mut bytes = text.into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(text) = String::from_utf8(bytes) {
            let _ = read(&text).and_then(|d| import(&d, &ImportOptions::default()));
        }
    }
}
