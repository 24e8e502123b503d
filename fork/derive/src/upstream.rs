//! Finds the published crate.
//!
//! A stub package with its own workspace, kept in `OUT_DIR`, depends on exactly the wanted version; `cargo fetch`
//! brings it into the registry that the user's cargo is configured with (mirrors and vendored sources included) and
//! `cargo metadata` tells where it lies. `CANDLE_UPSTREAM_DIR/<name>-<version>` is taken instead if that variable is
//! set.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::files::write_if_changed;

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
    let text = format!(
        "[package]\nname = \"upstream-stub\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[workspace]\n\n\
         [dependencies.{name}]\nversion = \"={version}\"\ndefault-features = false\n"
    );
    write_if_changed(&manifest, text.as_bytes())?;
    write_if_changed(&stub.join("src/lib.rs"), b"")?;
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
    let target = target()?;
    if !offline {
        cargo(
            "fetch",
            Some(manifest),
            &[format!("--target={target}")],
            false,
        )?;
    }
    let args = [
        "--format-version=1".to_owned(),
        format!("--filter-platform={target}"),
    ];
    let json = cargo("metadata", Some(manifest), &args, offline)?;
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

/// What a build script builds for; elsewhere, this machine. What other platforms need is not fetched.
fn target() -> std::result::Result<String, String> {
    if let Ok(target) = std::env::var("TARGET") {
        return Ok(target);
    }
    let version = cargo("-vV", None, &[], false)?;
    let version = String::from_utf8_lossy(&version);
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| "cargo -vV names no host".into())
}

fn cargo(
    command: &str,
    manifest: Option<&Path>,
    args: &[String],
    offline: bool,
) -> std::result::Result<Vec<u8>, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut run = Command::new(program);
    run.arg(command);
    if let Some(manifest) = manifest {
        run.arg("--manifest-path").arg(manifest);
    }
    run.args(args)
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
