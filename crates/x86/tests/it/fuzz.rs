//! Random tile programs: the interpreter against emitted code, bit for bit. `cargo xtask fuzz` runs many more of them.

use oxyfuel_base::{Code, DType, Expr, Scalar};
use oxyfuel_kernel::ParamKind;
use oxyfuel_kernel::generate::{Case, Given, case};
use oxyfuel_x86::compile;
use proptest::prelude::*;

use crate::machine::{Buf, execute_rounds, levels};

fn numbers() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..1 << 20, 1..80)
}

fn same(dtype: DType, a: &[u8], b: &[u8]) -> Result<(), String> {
    for (i, (x, y)) in a
        .chunks(dtype.size())
        .zip(b.chunks(dtype.size()))
        .enumerate()
    {
        let read = |c: &[u8]| {
            let mut all = [0u8; 8];
            all[..c.len()].copy_from_slice(c);
            Scalar::from_bits(dtype, u64::from_le_bytes(all))
        };
        let nan = |s: Scalar| matches!(s, Scalar::F(v) if v.is_nan());
        if x != y && !(nan(read(x)) && nan(read(y))) {
            return Err(format!(
                "element {i}: emitted {:?}, interpreted {:?}",
                read(x),
                read(y)
            ));
        }
    }
    Ok(())
}

/// Program instances of each phase.
fn instances(case: &Case) -> Vec<u64> {
    let symbol = |wanted| {
        let mut given = case.program.params.iter().zip(&case.args);
        given.find_map(|(param, given)| match (&param.kind, given) {
            (ParamKind::Scalar { symbol, .. }, Given::Number(n)) if *symbol == Some(wanted) => {
                Some(*n)
            }
            _ => None,
        })
    };
    let extent = |extent: &Expr| extent.eval(&symbol).expect("known symbols") as u64;
    let phases = case.program.phases.iter();
    phases
        .map(|phase| phase.grid.iter().map(extent).product())
        .collect()
}

fn check(numbers: &[u32]) -> Result<(), TestCaseError> {
    let fail = |e: oxyfuel_base::Error| TestCaseError::fail(e.to_string());
    let Some(case) = case(numbers).map_err(fail)? else {
        return Ok(());
    };
    // Functions have code only once they are expanded, which is not for this crate.
    if case.open {
        return Ok(());
    }
    let expected = case.interpret().map_err(fail)?;
    compare(&case, &expected)
        .map(drop)
        .map_err(TestCaseError::fail)
}

/// Runs the code of every level that has some, against what is expected in buffers; says how many have.
pub fn compare(case: &Case, expected: &[Vec<u8>]) -> Result<usize, String> {
    let mut with_code = 0;
    for (name, level) in levels() {
        let artefact = match compile(&case.program, level) {
            Ok(a) => a,
            Err(e) if e.code == Code::NoLowering => continue,
            Err(e) => return Err(format!("{name}: {e}")),
        };
        with_code += 1;
        let memory: Vec<Option<Buf<u8>>> = (case.args.iter())
            .map(|given| match given {
                Given::Number(_) => None,
                Given::Buffer { bytes, .. } => Some(Buf::new(bytes)),
            })
            .collect();
        let words: Vec<u64> = (case.args.iter().zip(&memory))
            .map(|(given, memory)| match (given, memory) {
                (Given::Number(number), _) => *number as u64,
                (Given::Buffer { .. }, memory) => memory.as_ref().map_or(0, Buf::ptr),
            })
            .collect();
        let rounds = u64::from(case.program.rounds.max(1));
        execute_rounds(&artefact, &words, &instances(case), rounds);
        for (at, (given, memory)) in case.args.iter().zip(&memory).enumerate() {
            if let (Given::Buffer { dtype, .. }, Some(memory)) = (given, memory)
                && case.is_written(at)
            {
                same(*dtype, memory, &expected[at]).map_err(|e| {
                    #[cfg(feature = "listing")]
                    println!("{}\n{}", case.program, artefact.listing());
                    format!("{name} {dtype}: {e}\n{}", case.filetest())
                })?;
            }
        }
    }
    Ok(with_code)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn emitted_code_agrees_with_the_interpreter(numbers in numbers()) {
        check(&numbers)?;
    }
}

/// Most programs of the kind that fuzzing makes must have code, or the test above tests nothing. Those without it have functions or storage floats that are not expanded, sorts, or products of odd windows.
#[test]
fn most_random_programs_have_code() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut made = [0usize; 2];
    for _ in 0..300 {
        let numbers = numbers().new_tree(&mut runner).expect("numbers").current();
        let Some(case) = case(&numbers).expect("a program") else {
            continue;
        };
        if case.open {
            continue;
        }
        made[0] += 1;
        made[1] += usize::from(compile(&case.program, oxyfuel_x86::Level::AVX512).is_ok());
    }
    assert!(
        made[0] > 250 && made[1] * 10 > made[0] * 7,
        "{} programs, {} with code",
        made[0],
        made[1]
    );
}
