//! Weights of a model in a safetensors file, by the names of its tree.

use crate::io::{read_safetensors, write_safetensors};
use crate::structure::{Tensors, named};
use crate::tensor::Tensor;
use oxyfuel_base::{Code, Error, Result, err};
use std::collections::BTreeMap;
use std::path::Path;

/// Names that a model and a file do not share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// In the model alone.
    pub missing: Vec<String>,
    /// In the file alone.
    pub unexpected: Vec<String>,
}

/// Writes all tensors of a model.
pub fn save<T: Tensors>(model: &T, path: impl AsRef<Path>) -> Result<()> {
    let all = named(model);
    write_safetensors(
        path,
        all.iter().map(|(name, tensor)| (name.as_str(), *tensor)),
    )
}

/// Overwrites all tensors of a model with those of a file, which must have the same names, dtypes and shapes. Nothing is written unless all fit.
///
/// The memory of the model stays, so that compiled functions that captured it go on with the new weights.
pub fn load<T: Tensors>(model: &T, path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let file = read_safetensors(path)?;
    let found = difference(model, file.keys().map(String::as_str));
    let listed = |names: &[String]| -> String {
        let shown: Vec<&str> = names.iter().take(8).map(String::as_str).collect();
        let more = names.len() - shown.len();
        match more {
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        }
    };
    if !found.missing.is_empty() {
        return Err(err!(
            MissingTensor,
            "{} lacks {}",
            path.display(),
            listed(&found.missing)
        )
        .help("names are the paths of the model's fields; load_partial takes what there is"));
    }
    if !found.unexpected.is_empty() {
        return Err(err!(
            UnexpectedTensor,
            "{} has {}, which the model lacks",
            path.display(),
            listed(&found.unexpected)
        )
        .help("load_partial leaves out what the model lacks"));
    }
    fill(model, &file)
}

/// As [`load`], for the names that model and file share; returns the others.
pub fn load_partial<T: Tensors>(model: &T, path: impl AsRef<Path>) -> Result<Difference> {
    let file = read_safetensors(path)?;
    fill(model, &file)?;
    Ok(difference(model, file.keys().map(String::as_str)))
}

/// Which names a model and a list do not share.
pub fn difference<'a, T: Tensors>(
    model: &T,
    names: impl IntoIterator<Item = &'a str>,
) -> Difference {
    let ours: Vec<String> = named(model).into_iter().map(|(name, _)| name).collect();
    let theirs: Vec<&str> = names.into_iter().collect();
    let missing = ours.iter().filter(|name| !theirs.contains(&name.as_str()));
    let unexpected = theirs
        .iter()
        .filter(|name| !ours.iter().any(|our| our == *name));
    Difference {
        missing: missing.cloned().collect(),
        unexpected: unexpected.map(|name| (*name).to_owned()).collect(),
    }
}

fn fill<T: Tensors>(model: &T, file: &BTreeMap<String, Tensor>) -> Result<()> {
    let mut pairs = Vec::new();
    for (name, tensor) in named(model) {
        let Some(new) = file.get(&name) else { continue };
        let fail = |code: Code, what: String, help: &str| {
            Err(Error::new(code, format!("{name}: {what}")).help(help))
        };
        tensor.check().map_err(|error| error.context(&name))?;
        if new.dtype() != tensor.dtype() {
            let what = format!(
                "{} in the file, {} in the model",
                new.dtype(),
                tensor.dtype()
            );
            return fail(
                Code::DTypeMismatch,
                what,
                "make the model in the file's dtype",
            );
        }
        if new.shape() != tensor.shape() {
            let what = format!(
                "{:?} in the file, {:?} in the model",
                new.shape(),
                tensor.shape()
            );
            return fail(
                Code::ShapeMismatch,
                what,
                "the file is of a model of another size",
            );
        }
        pairs.push((tensor, new));
    }
    for (tensor, new) in pairs {
        tensor.clone().copy_(new)?;
    }
    Ok(())
}
