//! Finds the published crate.
//!
//! A stub package with its own workspace, kept in `OUT_DIR`, depends on exactly the wanted version; `cargo fetch` brings
//! it into the registry that the user's cargo is configured with (mirrors and vendored sources included) and
//! `cargo metadata` tells where it lies. `CANDLE_UPSTREAM_DIR/<name>-<version>` is taken instead if that variable is set.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};

/// Directory with the unpacked sources of `name` at `version`; `scratch` is where the stub package may live.
pub fn locate(name: &str, version: &str, scratch: &Path) -> Result<PathBuf> {
    let fail = |message: String| Error::Upstream {
        name: name.into(),
        version: version.into(),
        message,
    };
    if let Some(dir) = std::env::var_os("CANDLE_UPSTREAM_DIR") {
        let dir = PathBuf::from(dir).join(format!("{name}-{version}"));
        return match dir.join("src/lib.rs").is_file() {
            true => Ok(dir),
            false => Err(fail(format!("{} has no src/lib.rs", dir.display()))),
        };
    }
    let stub = scratch.join("upstream-stub");
    let manifest = stub.join("Cargo.toml");
    let write = |path: &Path, text: &str| {
        std::fs::create_dir_all(path.parent().expect("a file has a parent"))
            .and_then(|()| std::fs::write(path, text))
            .map_err(Error::io(path))
    };
    write(
        &manifest,
        &format!(
            "[package]\nname = \"upstream-stub\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[workspace]\n\n\
             [dependencies.{name}]\nversion = \"={version}\"\ndefault-features = false\n"
        ),
    )?;
    write(&stub.join("src/lib.rs"), "")?;
    // First what is already there (works offline), then with the network.
    let mut tried = Vec::new();
    for offline in [true, false] {
        match fetch_and_find(name, version, &manifest, offline) {
            Ok(dir) => return Ok(dir),
            Err(message) => tried.push(message),
        }
    }
    Err(fail(tried.join("\n")))
}

fn fetch_and_find(
    name: &str,
    version: &str,
    manifest: &Path,
    offline: bool,
) -> std::result::Result<PathBuf, String> {
    if !offline {
        cargo("fetch", manifest, &target_args(), false)?;
    }
    let mut args = vec!["--format-version=1".to_string()];
    if let Ok(target) = std::env::var("TARGET") {
        args.push(format!("--filter-platform={target}"));
    }
    let json = cargo("metadata", manifest, &args, offline)?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&json).map_err(|e| format!("cargo metadata: {e}"))?;
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|p| p["name"] == name && p["version"] == version)
        .and_then(|p| p["manifest_path"].as_str())
        .and_then(|p| Path::new(p).parent())
        .map(Path::to_path_buf)
        .ok_or_else(|| format!("cargo metadata lists no {name} {version}"))
}

fn target_args() -> Vec<String> {
    std::env::var("TARGET")
        .map(|t| vec![format!("--target={t}")])
        .unwrap_or_default()
}

fn cargo(
    command: &str,
    manifest: &Path,
    args: &[String],
    offline: bool,
) -> std::result::Result<Vec<u8>, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut run = Command::new(program);
    run.arg(command)
        .arg("--manifest-path")
        .arg(manifest)
        .args(args)
        // The outer build's wrappers and flags are not meant for a package that is never compiled.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS");
    if offline {
        run.arg("--offline");
    }
    let output = run
        .output()
        .map_err(|e| format!("cannot run cargo {command}: {e}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(format!("cargo {command}: {}", stderr.trim()))
    }
}
