//! clang as a compiler of device code: for building code objects in, and for checking kernels without ROCm.

use crate::compiler::{CompileError, CompileRequest, Compiler};
use crate::variables::CLANG;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An installed clang with the AMDGPU target and lld.
#[derive(Clone, Debug)]
pub struct Clang {
    program: PathBuf,
    version: String,
}

impl Clang {
    /// What [`Clang::find`] tries on `PATH`, in this order.
    pub const NAMES: &'static [&'static str] = &["clang++-22", "clang++", "amdclang++"];

    /// The compiler named by `CANDLE_ROCM_CLANG`, else the first of [`Clang::NAMES`] that runs.
    ///
    /// # Errors
    /// [`CompileError::Unavailable`], saying what was tried.
    pub fn find() -> Result<Self, CompileError> {
        if let Some(program) = CLANG.value() {
            return Self::at(Path::new(&program));
        }
        Self::NAMES
            .iter()
            .find_map(|name| Self::at(Path::new(name)).ok())
            .ok_or_else(|| CompileError::Unavailable {
                compiler: "clang".into(),
                reason: format!(
                    "none of {} runs from PATH; install clang with lld (Debian: clang-22 lld-22), or set CANDLE_ROCM_CLANG to a clang++ with the AMDGPU target",
                    Self::NAMES.join(", ")
                ),
            })
    }

    /// The compiler at `program`, a path or a name on `PATH`.
    ///
    /// # Errors
    /// [`CompileError::Unavailable`] if it does not run.
    pub fn at(program: &Path) -> Result<Self, CompileError> {
        let unavailable = |reason: String| CompileError::Unavailable {
            compiler: program.display().to_string(),
            reason,
        };
        let output = Command::new(program)
            .arg("--version")
            .output()
            .map_err(|error| unavailable(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().unwrap_or_default().trim();
        if !output.status.success() || version.is_empty() {
            return Err(unavailable(format!("--version gave {}", output.status)));
        }
        Ok(Self {
            program: program.to_path_buf(),
            version: version.to_string(),
        })
    }

    /// The program that is run.
    pub fn program(&self) -> &Path {
        &self.program
    }
}

impl Compiler for Clang {
    fn id(&self) -> String {
        self.version.clone()
    }

    fn compile(&self, request: &CompileRequest) -> Result<Vec<u8>, CompileError> {
        let io = |action| {
            move |error| CompileError::Io {
                action,
                path: self.program.clone(),
                error,
            }
        };
        let mut child = Command::new(&self.program)
            .args(["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output"])
            .args(["-nogpuinc", "-nogpulib", "-fuse-ld=lld"])
            .args(request.all_options())
            .arg(format!("--offload-arch={}", request.arch))
            .args(["-o", "-", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(io("run"))?;
        // clang reads all of its input before it writes, so this cannot wait on a full pipe. One that
        // gave up early closes the pipe; its status and log say more than this write's error.
        let written = match child.stdin.take() {
            Some(mut stdin) => stdin.write_all(request.source.as_bytes()),
            None => Ok(()),
        };
        let output = child.wait_with_output().map_err(io("wait for"))?;
        let log = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() || output.stdout.is_empty() {
            return Err(CompileError::Failed {
                compiler: self.id(),
                name: request.name.to_string(),
                arch: request.arch.to_string(),
                log: log.into_owned(),
            });
        }
        written.map_err(io("write source to"))?;
        Ok(output.stdout)
    }
}
