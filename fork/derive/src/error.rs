//! What can go wrong while deriving, always with the place.

use std::path::{Path, PathBuf};

/// Result of a derivation step.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a derivation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A source file is not valid Rust.
    #[error("{file}:{line}: cannot parse: {message}")]
    Parse {
        /// File relative to the crate.
        file: String,
        /// One-based line.
        line: usize,
        /// syn's message.
        message: String,
    },
    /// A mention of Metal that no rule covers.
    #[error("{}", leftovers(places))]
    Leftover {
        /// `(file, line, text of the line)` for each mention.
        places: Vec<(String, usize, String)>,
    },
    /// A rule or exception matched another number of times than it must.
    #[error("{file}: {rule} matched {found} times, expected {expected}: the upstream source has changed, adapt the recipe in {recipe}")]
    Unmatched {
        /// File the rule applies to.
        file: String,
        /// What was looked for.
        rule: String,
        /// Matches found.
        found: usize,
        /// Matches required.
        expected: usize,
        /// Where the recipe stands.
        recipe: String,
    },
    /// A patch file cannot be used.
    #[error("{path}: {message}", path = path.display())]
    Patch {
        /// The patch file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A hunk of a patch does not match the text.
    #[error("{patch}: hunk {hunk} of {file} does not apply: {message}\nhelp: `cargo run -p candle-derive -- edit CRATE PATCH` writes the text to make it anew from", patch = patch.display())]
    Hunk {
        /// The patch file.
        patch: PathBuf,
        /// The file that it changes, relative to the crate.
        file: String,
        /// Which hunk of that file, from 1.
        hunk: usize,
        /// Where its lines were looked for.
        message: String,
    },
    /// cargo cannot read a package's manifest.
    #[error("{path}: {message}", path = path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What cargo says.
        message: String,
    },
    /// The published crate could not be found.
    #[error("cannot find the published crate {name} {version}: {message}\nhelp: building needs the crates registry once; offline, set CANDLE_UPSTREAM_DIR to a folder that holds {name}-{version}/")]
    Upstream {
        /// Package name.
        name: String,
        /// Package version.
        version: String,
        /// What was tried and how it failed.
        message: String,
    },
}

impl Error {
    pub(crate) fn patch(path: &Path, message: &str) -> Self {
        Self::Patch {
            path: path.to_owned(),
            message: message.to_owned(),
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

fn leftovers(places: &[(String, usize, String)]) -> String {
    let mut out = String::from(
        "these mentions of Metal are covered by no rule; extend the mirror or name them in the recipe:",
    );
    for (file, line, text) in places {
        out.push_str(&format!("\n  {file}:{line}: {}", text.trim()));
    }
    out
}
