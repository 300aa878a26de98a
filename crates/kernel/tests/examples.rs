//! The example programs build and verify.

use oxyfuel_kernel::{DType, examples, parse, verify};

#[test]
fn logical_examples_verify() {
    let programs = [
        examples::bias_gelu(DType::F32, 48),
        examples::bias_relu(DType::BF16, 16, 64),
        examples::softmax(DType::F32, 100),
        examples::mxint8_decode(32, 128),
        examples::tiled_matmul(DType::BF16, [8, 16, 4]),
    ];
    for program in programs {
        let program = program.unwrap();
        verify(&program).unwrap();
        let text = program.to_string();
        let read = parse("example", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read, program.compact(), "{text}");
        assert_eq!(read.to_string(), text);
    }
}
