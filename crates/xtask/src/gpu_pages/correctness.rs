//! Tests and PyTorch's operator database on a GPU.

use super::records::Records;
use super::words::{self, Bar, Verdict, count};

pub fn tests_bar(records: &Records) -> Result<Bar, String> {
    let record = records.get("tests")?;
    let number = |key: &str| record.at(&[key])?.number();
    let (passed, failed) = (number("passed")?, number("failed")?);
    // A shard that said nothing counts as one test that failed.
    let silent = record.at(&["silent"])?.texts()?;
    let verdict = if silent.is_empty() {
        Verdict::of(failed == 0.0 && passed > 0.0)
    } else {
        Verdict::Missed(format!("{} did not end", silent.join(", ")))
    };
    Ok(Bar {
        what: format!("`gpu-test`, in {} shards", count(number("shards")?)),
        bar: "none fails".to_owned(),
        reached: format!("{} passed, {} failed", count(passed), count(failed)),
        verdict,
    })
}

pub fn ops_bar(records: &Records) -> Result<Bar, String> {
    let record = records.get("ops")?;
    let number = |key: &str| record.at(&[key])?.number();
    let (passed, failed) = (number("passed")?, number("failed")?);
    Ok(Bar {
        what: "PyTorch's operator database in the torch door".to_owned(),
        bar: "no job fails".to_owned(),
        reached: format!("{} passed, {} failed", count(passed), count(failed)),
        verdict: Verdict::of(failed == 0.0 && passed > 0.0),
    })
}

pub fn correctness(records: &Records, links: &str) -> Result<String, String> {
    let record = records.get("tests")?;
    Ok(format!(
        "{}\n{}",
        words::facts(&record, "tests", links)?,
        words::bars(&[tests_bar(records)?])
    ))
}

pub fn ops(records: &Records, links: &str) -> Result<String, String> {
    let record = records.get("ops")?;
    let number = |key: &str| record.at(&[key])?.number();
    let verdicts = record.at(&["verdicts"])?;
    let of = |key: &str| {
        let found = verdicts.find(key);
        found.map_or(Ok(0.0), |n| n.number()).map(count)
    };
    Ok(format!(
        "{}\n{}\n{} of {} jobs (an operator, a dtype, a direction) were reached, {} samples each, seed {}: {} samples agree with eager, {} are wrong, {} are open (integers divided by zero), {} were skipped (eager or torch's own `aot_eager` cannot run them).\n",
        words::facts(&record, "ops", links)?,
        words::bars(&[ops_bar(records)?]),
        count(number("reached")?),
        count(number("jobs")?),
        number("samples")?,
        number("seed")?,
        of("agree")?,
        of("wrong")?,
        of("open")?,
        of("skip")?,
    ))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub fn tests_record() -> Value {
        json!({"gpu": "NVIDIA H200", "commit": "0123456789ab", "driver": "580", "torch": "2.11", "cuda": "13.0",
               "shards": 4, "passed": 1323, "failed": 0, "silent": []})
    }

    pub fn ops_record() -> Value {
        json!({"gpu": "NVIDIA H200", "commit": "0123456789ab", "driver": "580", "seed": 6, "samples": 3, "jobs": 2542, "reached": 2542,
               "verdicts": {"agree": 7057, "skip": 29}, "passed": 2542, "failed": 0})
    }

    fn with(name: &'static str, record: Value) -> Records {
        let mut records = Records::default();
        records.put(name, record);
        records
    }

    #[test]
    fn tests_that_fail_and_shards_that_say_nothing_are_missed() {
        let mut record = tests_record();
        let line = |record: &Value| correctness(&with("tests", record.clone()), "").unwrap();
        let met = "| `gpu-test`, in 4 shards | none fails | 1,323 passed, 0 failed | met |";
        assert!(line(&record).contains(met), "{}", line(&record));
        record["failed"] = json!(1);
        assert!(line(&record).contains("1 failed | **missed** |"));
        record["silent"] = json!(["test-2"]);
        assert!(line(&record).contains("| **missed**: test-2 did not end |"));
    }

    #[test]
    fn jobs_of_the_operator_database_are_counted() {
        let mut record = ops_record();
        let text = ops(&with("ops", record.clone()), "").unwrap();
        for line in [
            "| no job fails | 2,542 passed, 0 failed | met |",
            "2,542 of 2,542 jobs",
            "7,057 samples agree with eager, 0 are wrong, 0 are open (integers divided by zero), 29 were skipped",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        record["failed"] = json!(3);
        let text = ops(&with("ops", record), "").unwrap();
        assert!(text.contains("3 failed | **missed** |"), "{text}");
    }
}
