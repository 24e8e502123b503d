//! Units of device code on the shim headers, launchers in Rust, and the feature `rocm` of a crate.

mod asm;
mod entries;
mod flatten;
mod headers;
mod hip;
mod hip_names;
mod host;
mod lexer;
mod number;
mod package;
mod strip;
pub(crate) mod types;
mod unit;

use std::path::PathBuf;

pub use hip::{hip, HipReport};
pub use package::{
    package, verify, Mapped, PackageError, PackageOptions, Place, Report, UnitReport,
};
pub use unit::{unit, Instance, Ported, UnitOptions};

/// Why something could not be ported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// A file could not be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// A path, or a link, leads out of the project.
    #[error("{0} is outside of the project, and is not read")]
    Outside(String),
    /// A file, or all that it includes together, is larger than the tool takes.
    #[error("{0} is too large: 16 MiB a file and 64 MiB with its headers are the limits")]
    TooLarge(String),
    /// A header that an `#include` under no condition means is not there.
    #[error("{place}: {name} is not in the project, and no system header that is known; add its folder with --include")]
    NoHeader {
        /// File and line.
        place: String,
        /// The name between the quotes or brackets.
        name: String,
    },
    /// A header without a guard includes itself.
    #[error("{place}: {name} includes itself and has no guard")]
    Cycle {
        /// File and line.
        place: String,
        /// The header.
        name: String,
    },
    /// Includes inside of includes go on for too long.
    #[error("{0}: headers include each other more than 64 deep")]
    TooDeep(String),
    /// The project has no such file.
    #[error("the project has no CUDA file {0}")]
    NoFile(String),
    /// `--instance` is not a kernel with its template arguments.
    #[error("{0:?} is no instance: write it as \"kernel<float, 128>\", with a kernel of the file")]
    NoInstance(String),
}
