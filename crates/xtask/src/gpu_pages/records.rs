//! The records of a GPU, `bench/record/GPU.json` and `GPU-NAME.json`, and values that know where in them they stand.
//!
//! A value that is not there, or is not what it should be, is an error that names the file and the place in it.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The GPU that the pages are of, as names of files begin.
pub const GPU: &str = "h200";

/// The programs of `gpu-records` that write a record; `rows` is the one whose file is named by the GPU alone.
pub const NAMES: &[&str] = &[
    "custom",
    "host",
    "models",
    "ops",
    "proofs",
    "rows",
    "small",
    "sorts",
    "start",
    "start-training",
    "tests",
    "training",
];

pub fn file_name(name: &str) -> String {
    match name {
        "rows" => format!("{GPU}.json"),
        _ => format!("{GPU}-{name}.json"),
    }
}

/// What files of a GPU begin with, by its driver's name for it.
pub fn slug(gpu: &str) -> String {
    let plain: String = gpu
        .to_lowercase()
        .replace("nvidia", "")
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' })
        .collect();
    plain.split_whitespace().collect::<Vec<_>>().join("-")
}

/// Records by the name of their program.
#[derive(Debug, Default)]
pub struct Records {
    by_name: BTreeMap<&'static str, Value>,
}

impl Records {
    /// Those that are there.
    pub fn read(folder: &Path) -> Result<Records, String> {
        let mut records = Records::default();
        for name in NAMES {
            let path = folder.join(file_name(name));
            if path.exists() {
                records.by_name.insert(name, parsed(&path)?);
            }
        }
        Ok(records)
    }

    /// A newer record takes the place of an older one, which is returned.
    pub fn put(&mut self, name: &'static str, record: Value) -> Option<Value> {
        self.by_name.insert(name, record)
    }

    pub fn get(&self, name: &str) -> Result<Field<'_>, String> {
        let file = file_name(name);
        match self.by_name.get(name) {
            Some(value) => Ok(Field { value, place: file }),
            None => Err(format!(
                "{}/{file} is not there: `gpu-records --to FOLDER` writes it on a machine with a GPU, `cargo xtask gpu-pages FOLDER` takes it from there",
                super::FOLDER
            )),
        }
    }
}

pub fn parsed(path: &Path) -> Result<Value, String> {
    let text =
        fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{} is no JSON: {e}", path.display()))
}

/// A value of a record.
#[derive(Debug, Clone)]
pub struct Field<'r> {
    value: &'r Value,
    place: String,
}

impl<'r> Field<'r> {
    /// The value that lies behind keys, one in the other.
    pub fn at(&self, keys: &[&str]) -> Result<Field<'r>, String> {
        let mut field = self.clone();
        for key in keys {
            let place = format!("{} > {key}", field.place);
            let Some(value) = field.value.get(key) else {
                return Err(format!("{place} is not there"));
            };
            field = Field { value, place };
        }
        Ok(field)
    }

    /// The same, for what a record may leave out.
    pub fn find(&self, key: &str) -> Option<Field<'r>> {
        let field = self.at(&[key]).ok()?;
        (!field.value.is_null()).then_some(field)
    }

    pub fn number(&self) -> Result<f64, String> {
        self.value.as_f64().ok_or_else(|| self.is_no("number"))
    }

    pub fn text(&self) -> Result<&'r str, String> {
        self.value.as_str().ok_or_else(|| self.is_no("text"))
    }

    pub fn flag(&self) -> Result<bool, String> {
        self.value.as_bool().ok_or_else(|| self.is_no("flag"))
    }

    pub fn list(&self) -> Result<Vec<Field<'r>>, String> {
        let values = self.value.as_array().ok_or_else(|| self.is_no("list"))?;
        let field = |(at, value)| Field {
            value,
            place: format!("{} [{at}]", self.place),
        };
        Ok(values.iter().enumerate().map(field).collect())
    }

    pub fn texts(&self) -> Result<Vec<&'r str>, String> {
        self.list()?.iter().map(Field::text).collect()
    }

    /// A median and the two ends of its interval.
    pub fn interval(&self) -> Result<[f64; 3], String> {
        let numbers: Vec<f64> = self
            .list()?
            .iter()
            .map(Field::number)
            .collect::<Result<_, _>>()?;
        numbers
            .try_into()
            .map_err(|_| self.is_no("median with an interval"))
    }

    /// The rows of a record.
    pub fn rows(&self) -> Result<Vec<Field<'r>>, String> {
        self.at(&["rows"])?.list()
    }

    fn is_no(&self, what: &str) -> String {
        format!("{} is no {what}", self.place)
    }
}

/// The row of this name, where the record has one.
pub fn named<'a, 'r>(rows: &'a [Field<'r>], name: &str) -> Option<&'a Field<'r>> {
    let is = |row: &&Field<'_>| row.find("name").is_some_and(|n| n.text() == Ok(name));
    rows.iter().find(is)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_record_that_is_missing_is_an_error_that_names_its_file() {
        let error = Records::default().get("host").unwrap_err();
        assert!(
            error.starts_with("bench/record/h200-host.json is not there"),
            "{error}"
        );
        let error = Records::default().get("rows").unwrap_err();
        assert!(
            error.starts_with("bench/record/h200.json is not there"),
            "{error}"
        );
    }

    #[test]
    fn a_value_that_is_missing_or_wrong_is_an_error_that_names_its_place() {
        let mut records = Records::default();
        records.put("host", json!({"rows": [{"ours": "1.5", "ratio": [1.0]}]}));
        let row = records.get("host").unwrap().rows().unwrap().remove(0);
        let error = |found: Result<f64, String>| found.unwrap_err();
        assert_eq!(
            error(row.at(&["ours"]).and_then(|f| f.number())),
            "h200-host.json > rows [0] > ours is no number"
        );
        assert_eq!(
            error(row.at(&["us", "ours"]).and_then(|f| f.number())),
            "h200-host.json > rows [0] > us is not there"
        );
        let short = row.at(&["ratio"]).and_then(|f| f.interval()).unwrap_err();
        assert!(short.ends_with("ratio is no median with an interval"));
    }

    #[test]
    fn files_are_named_as_gpu_records_names_them() {
        assert_eq!(slug("NVIDIA H200"), GPU);
        assert_eq!(slug("NVIDIA GeForce RTX 4090"), "geforce-rtx-4090");
        assert_eq!(file_name("rows"), "h200.json");
        assert_eq!(file_name("start-training"), "h200-start-training.json");
    }
}
