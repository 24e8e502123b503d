//! Crates of the registry, fetched by cargo.

use super::process::{run_limited, Limits};
use super::Error;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// `NAME` or `NAME@VERSION`.
pub(super) struct Spec {
    name: String,
    version: Option<String>,
}

impl Spec {
    /// Reads a name that crates may have; anything else is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (name, version) = match text.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        let named = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.len() <= 64
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        let versioned = version.is_none_or(|version| {
            version.starts_with(|c: char| c.is_ascii_digit())
                && version.len() <= 64
                && version
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || ".-+".contains(c))
        });
        (named && versioned).then(|| Self {
            name: name.to_string(),
            version: version.map(String::from),
        })
    }

    /// The unpacked crate: from cargo's home if this version is there, else cargo fetches it.
    pub(super) fn fetch(&self) -> Result<PathBuf, Error> {
        if let Some(folder) = self.version.as_deref().and_then(|v| self.unpacked(v)) {
            return Ok(folder);
        }
        let version = self.ask_cargo()?;
        self.unpacked(&version).ok_or_else(|| {
            self.error(format!(
                "version {version} is not in cargo's home after `cargo info`"
            ))
        })
    }

    fn spec(&self) -> String {
        match &self.version {
            Some(version) => format!("{}@{version}", self.name),
            None => self.name.clone(),
        }
    }

    fn error(&self, reason: String) -> Error {
        Error::Registry {
            spec: self.spec(),
            reason,
        }
    }

    /// Lets cargo fetch the crate and say its version.
    fn ask_cargo(&self) -> Result<String, Error> {
        // In a folder of its own: inside a workspace, `cargo info` would answer for the version that is locked there.
        let folder = tempfile::tempdir().map_err(|error| self.error(error.to_string()))?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["info", "--quiet", "--color", "never", &self.spec()])
            .current_dir(folder.path());
        let limits = Limits {
            bytes: 4 << 20,
            time: Duration::from_secs(300),
        };
        let output = run_limited(&mut command, limits).map_err(|error| self.error(error))?;
        if !output.status.success() {
            let reason = output.stderr.trim();
            return Err(self.error(match reason.is_empty() {
                true => output.status.to_string(),
                false => reason.to_string(),
            }));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines()
            .find_map(|line| line.strip_prefix("version:"))
            .and_then(|rest| rest.split_whitespace().next())
            .map(String::from)
            .ok_or_else(|| self.error("`cargo info` named no version".into()))
    }

    /// The folder of a version in cargo's home.
    fn unpacked(&self, version: &str) -> Option<PathBuf> {
        let home = std::env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(std::env::home_dir()?.join(".cargo")))?;
        let registries = std::fs::read_dir(home.join("registry").join("src")).ok()?;
        let mut folders: Vec<PathBuf> = registries
            .flatten()
            .map(|registry| registry.path().join(format!("{}-{version}", self.name)))
            // cargo writes this file last: without it the folder is incomplete.
            .filter(|folder| folder.join(".cargo-ok").is_file())
            .collect();
        folders.sort();
        folders.into_iter().next()
    }
}

#[cfg(test)]
mod tests {
    use super::Spec;

    #[test]
    fn names_of_crates() {
        let spec = |text| Spec::parse(text).map(|spec| spec.spec());
        assert_eq!(
            spec("candle-kernels@0.11.1").as_deref(),
            Some("candle-kernels@0.11.1")
        );
        assert_eq!(spec("a_b").as_deref(), Some("a_b"));
        for wrong in ["", "-v", "a/b", "../x", "a@", "a@-1", "a@1 2", "a@..", "ä"] {
            assert!(Spec::parse(wrong).is_none(), "{wrong}");
        }
    }
}
