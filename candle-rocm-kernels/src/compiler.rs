//! What a compiler of device code is.

use crate::target::object_version;
use std::path::PathBuf;

/// Options that every compiler of these kernels gets; [`CompileRequest::all_options`] has the others.
const OPTIONS: [&str; 3] = ["-O3", "-std=c++17", "-ffp-contract=off"];

/// One translation unit to compile for one arch.
#[derive(Clone, Copy, Debug)]
pub struct CompileRequest<'a> {
    /// What the unit is called in diagnostics and in the cache's file names.
    pub name: &'a str,
    /// The whole source; nothing else is read.
    pub source: &'a str,
    /// The target as HIP's `gcnArchName` gives it: `gfx1100`, `gfx942:sramecc+:xnack-`.
    pub arch: &'a str,
    /// Options after those that every request has.
    pub options: &'a [String],
}

impl CompileRequest<'_> {
    /// Every option but the target: those of all requests, of the arch, and of this request.
    pub fn all_options(&self) -> Vec<&str> {
        let mut options: Vec<&str> = options_for(self.arch).collect();
        options.extend(self.options.iter().map(String::as_str));
        options
    }
}

/// The options of every request for an arch.
pub fn options_for(arch: &str) -> impl Iterator<Item = &'static str> {
    OPTIONS.into_iter().chain([object_version(arch)])
}

/// Turns source into a code object that `hipModuleLoadData` accepts.
pub trait Compiler: Send + Sync {
    /// Name and exact version: two compilers with the same id must produce interchangeable objects.
    fn id(&self) -> String;

    /// Compiles; may take seconds.
    ///
    /// # Errors
    /// [`CompileError::Failed`] with the compiler's log if the source is rejected, and
    /// [`CompileError::Unavailable`] if the compiler cannot run.
    fn compile(&self, request: &CompileRequest) -> Result<Vec<u8>, CompileError>;
}

/// Why there is no code object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The compiler rejected the source, or the arch.
    #[error("{compiler} could not compile {name} for {arch}:\n{log}")]
    Failed {
        /// [`Compiler::id`].
        compiler: String,
        /// [`CompileRequest::name`].
        name: String,
        /// [`CompileRequest::arch`].
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// The compiler is missing or cannot run here.
    #[error("{compiler} is not usable: {reason}")]
    Unavailable {
        /// Which compiler was wanted.
        compiler: String,
        /// What is wrong and what to do about it.
        reason: String,
    },
    /// A file or pipe that compiling needs failed.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What was being done: "read", "run".
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: std::io::Error,
    },
}
