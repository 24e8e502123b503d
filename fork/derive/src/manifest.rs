//! What a derived package's manifest says otherwise than the published one's, as cargo reads both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::error::{Error, Result};

/// Every feature and dependency that `ours` lacks, has in addition, or declares otherwise than `upstream`, a line each.
/// Both are folders of packages. A new release of upstream shows here what the derived manifest must follow.
///
/// # Errors
/// [`Error::Manifest`] if cargo cannot read one of them.
pub fn differences(upstream: &Path, ours: &Path) -> Result<Vec<String>> {
    let (upstream, ours) = (entries(upstream)?, entries(ours)?);
    let names: BTreeSet<_> = upstream.keys().chain(ours.keys()).collect();
    let compared =
        names
            .into_iter()
            .filter_map(|name| match (upstream.get(name), ours.get(name)) {
                (Some(there), Some(here)) if there == here => None,
                (Some(there), Some(here)) => Some(format!("{name}: upstream {there}, here {here}")),
                (Some(there), None) => Some(format!("{name}: upstream {there}, missing here")),
                (None, here) => Some(format!("{name}: only here")).filter(|_| here.is_some()),
            });
    Ok(compared.collect())
}

/// Features and dependencies by name, with what is said of each in one form.
fn entries(package: &Path) -> Result<BTreeMap<String, String>> {
    let manifest = package.join("Cargo.toml");
    let failed = |message: String| Error::Manifest {
        path: manifest.clone(),
        message,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version=1",
            "--manifest-path",
        ])
        .arg(&manifest)
        .output()
        .map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|e| failed(e.to_string()))?;
    // A workspace lists all of its members.
    let package = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| {
            let path = package["manifest_path"].as_str().map(Path::new);
            path.is_some_and(|path| path.canonicalize().ok() == manifest.canonicalize().ok())
        });
    let Some(package) = package else {
        return Err(failed("cargo does not list the package".into()));
    };
    let mut entries = BTreeMap::new();
    for (name, enables) in package["features"].as_object().into_iter().flatten() {
        entries.insert(format!("feature {name}"), listed(enables));
    }
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let text = |key: &str| dependency[key].as_str().unwrap_or_default();
        let kind = match text("kind") {
            "" => "dependency".to_owned(),
            kind => format!("{kind}-dependency"),
        };
        let target = match text("target") {
            "" => String::new(),
            target => format!(" for {target}"),
        };
        let mut said = text("req").to_owned();
        if dependency["optional"] == true {
            said.push_str(" optional");
        }
        if dependency["uses_default_features"] == false {
            said.push_str(" without default features");
        }
        said.push_str(&format!(" {}", listed(&dependency["features"])));
        if !text("rename").is_empty() {
            said.push_str(&format!(" as {}", text("rename")));
        }
        entries.insert(format!("{kind} {}{target}", text("name")), said);
    }
    Ok(entries)
}

fn listed(names: &Value) -> String {
    let mut names: Vec<_> = (names.as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .collect();
    names.sort_unstable();
    names.dedup();
    format!("[{}]", names.join(", "))
}
