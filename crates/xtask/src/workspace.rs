//! The workspace as `cargo metadata` sees it, reduced to what our checks ask.

use crate::process;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The root of the repository, known when this crate was built from it.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub license: Option<String>,
    pub has_license_file: bool,
    /// `None` for a package of this workspace or a plain path.
    pub source: Option<String>,
    pub manifest: PathBuf,
    pub dependencies: Vec<Dependency>,
    /// Root files of the library and the binaries.
    pub roots: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    pub name: String,
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Normal,
    Dev,
    Build,
}

/// The workspace's own packages.
pub fn members() -> Result<Vec<Package>, String> {
    packages(&["--no-deps"])
}

/// Every package that can end in a build, for any target.
pub fn everything() -> Result<Vec<Package>, String> {
    packages(&[])
}

fn packages(extra: &[&str]) -> Result<Vec<Package>, String> {
    let mut command = process::cargo();
    command
        .current_dir(root())
        .args(["metadata", "--format-version", "1"])
        .args(extra);
    parse(&process::capture(&mut command, "cargo metadata")?)
}

fn parse(json: &str) -> Result<Vec<Package>, String> {
    let value: Value =
        serde_json::from_str(json).map_err(|e| format!("cargo metadata is not JSON: {e}"))?;
    let list = value["packages"]
        .as_array()
        .ok_or("cargo metadata lists no packages")?;
    list.iter().map(package).collect()
}

fn package(value: &Value) -> Result<Package, String> {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let name = text("name").ok_or("cargo metadata has a package without a name")?;
    let manifest =
        text("manifest_path").ok_or_else(|| format!("package {name} has no manifest path"))?;
    let items = |key: &str| value[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let dependencies = items("dependencies")
        .iter()
        .filter_map(dependency)
        .collect();
    let roots = items("targets")
        .iter()
        .filter(|t| is_shipped(t))
        .filter_map(|t| t["src_path"].as_str());
    Ok(Package {
        version: text("version").unwrap_or_default(),
        license: text("license"),
        has_license_file: text("license_file").is_some(),
        source: text("source"),
        manifest: PathBuf::from(manifest),
        dependencies,
        roots: roots.map(PathBuf::from).collect(),
        name,
    })
}

fn dependency(value: &Value) -> Option<Dependency> {
    let kind = match value["kind"].as_str() {
        Some("dev") => Kind::Dev,
        Some("build") => Kind::Build,
        Some(_) | None => Kind::Normal,
    };
    Some(Dependency {
        name: value["name"].as_str()?.to_owned(),
        kind,
    })
}

fn is_shipped(target: &Value) -> bool {
    let kinds = target["kind"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    kinds
        .iter()
        .filter_map(Value::as_str)
        .any(|k| !matches!(k, "test" | "bench" | "example" | "custom-build"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_kinds_and_roots() {
        let json = r#"{"packages":[{"name":"a","version":"1.0.0","license":"MIT","source":null,
            "manifest_path":"/w/crates/a/Cargo.toml",
            "dependencies":[{"name":"b","kind":null},{"name":"c","kind":"dev"},{"name":"d","kind":"build"}],
            "targets":[{"kind":["lib"],"src_path":"/w/crates/a/src/lib.rs"},{"kind":["test"],"src_path":"/w/t.rs"}]}]}"#;
        let packages = parse(json).unwrap();
        let kinds: Vec<_> = packages[0]
            .dependencies
            .iter()
            .map(|d| (d.name.as_str(), d.kind))
            .collect();
        assert_eq!(
            kinds,
            [("b", Kind::Normal), ("c", Kind::Dev), ("d", Kind::Build)]
        );
        assert_eq!(packages[0].roots, [PathBuf::from("/w/crates/a/src/lib.rs")]);
        assert_eq!(packages[0].source, None);
    }

    #[test]
    fn broken_metadata_is_a_sentence() {
        assert!(parse("{").unwrap_err().contains("not JSON"));
        assert!(parse("{}").unwrap_err().contains("no packages"));
    }

    #[test]
    fn root_is_this_workspace() {
        assert!(root().join("crates/xtask/Cargo.toml").is_file());
    }
}
