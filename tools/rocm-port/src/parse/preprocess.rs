//! CUDA text after the C++ preprocessor, and the way back to the lines that it comes from.
//!
//! CUDA's headers are not needed: every header that the project does not have is an empty file in a folder of
//! stand-ins. So macros of the project are expanded, and its `#if`s decided, as nvcc would for one architecture.

use super::text::Text;
use super::Options;
use crate::model::{BuildScript, Place};
use crate::source::{holds, run_limited, Limits, Sources};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The version of CUDA that the texts are read for, as `CUDART_VERSION` says it; the shim headers say the same.
const CUDA_VERSION: u32 = 12040;

/// Compilers that are tried, in this order, after `CANDLE_ROCM_CLANG`.
const COMPILERS: &[&str] = &["clang++-22", "clang++", "g++", "c++"];

/// How far `..` in an include may lead: the folder of stand-ins is that deep.
const UP: usize = 8;

/// A C++ compiler with the folder of stand-ins and the options for one project.
pub(super) struct Preprocessor {
    program: Option<PathBuf>,
    builds: Vec<BuildScript>,
    options: Options,
    folder: tempfile::TempDir,
    /// Why there is no program, or what of the project cannot be preprocessed.
    reason: String,
}

impl Preprocessor {
    /// Finds the compiler, makes the stand-ins, and collects options.
    pub(super) fn new(
        sources: &Sources,
        builds: &[BuildScript],
        options: &Options,
    ) -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut this = Self {
            program: None,
            builds: builds.to_vec(),
            options: options.clone(),
            folder,
            reason: String::new(),
        };
        match includes(sources) {
            Ok(names) => this.make_stand_ins(sources, &names)?,
            Err(name) => {
                this.reason = format!("an include names the absolute path {name}");
                return Ok(this);
            }
        }
        this.program = match &options.compiler {
            Some(program) => Some(program.clone()),
            None if options.raw => None,
            None => std::env::var_os("CANDLE_ROCM_CLANG")
                .map(PathBuf::from)
                .into_iter()
                .chain(COMPILERS.iter().map(PathBuf::from))
                .find(|program| runs(program)),
        };
        if this.program.is_none() {
            this.reason = match options.raw {
                true => "the text is read as it is, as asked for".into(),
                false => format!(
                    "no C++ compiler: set CANDLE_ROCM_CLANG, or install one of {}",
                    COMPILERS.join(", ")
                ),
            };
        }
        Ok(this)
    }

    fn stand_ins(&self) -> PathBuf {
        (0..UP).fold(self.folder.path().to_path_buf(), |path, depth| {
            path.join(depth.to_string())
        })
    }

    fn make_stand_ins(
        &self,
        sources: &Sources,
        names: &BTreeSet<(bool, String)>,
    ) -> std::io::Result<()> {
        let folder = self.stand_ins();
        std::fs::create_dir_all(&folder)?;
        for (quoted, name) in names {
            let parts: Vec<&str> = name.split('/').collect();
            let ups = parts.iter().filter(|part| **part == "..").count();
            if ups >= UP
                || name.len() > 200
                || parts
                    .iter()
                    .any(|part| part.is_empty() || part.contains('\\'))
            {
                continue;
            }
            let path = folder.join(name);
            // A header of the project that only an include path finds: whoever wrote it meant that file.
            let own = (*quoted || parts.len() > 1 || name.ends_with(".cuh"))
                .then(|| {
                    let tail = format!(
                        "/{}",
                        name.trim_start_matches("../").trim_start_matches("./")
                    );
                    sources
                        .headers
                        .iter()
                        .chain(&sources.cuda)
                        .filter(|file| format!("/{file}").ends_with(&tail))
                        .min_by_key(|file| file.len())
                })
                .flatten();
            let text = own.map_or(String::new(), |own| {
                format!("#include \"{}\"\n", sources.root.join(own).display())
            });
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            // A name may be a folder of another: `a` and `a/b`. The longer ones stay.
            let _ = std::fs::write(path, text);
        }
        Ok(())
    }

    /// The compiler's arguments for a value of `__CUDA_ARCH__`.
    fn arguments(&self, arch: u32) -> Vec<String> {
        let options = &self.options;
        let mut arguments: Vec<String> = ["-E", "-x", "c++", "-w", "-nostdinc"]
            .map(String::from)
            .into();
        let defines = [
            "__CUDACC__=1".into(),
            "__NVCC__=1".into(),
            format!("__CUDA_ARCH__={arch}"),
            format!("__CUDA_ARCH_LIST__={arch}"),
            format!("__CUDACC_VER_MAJOR__={}", CUDA_VERSION / 1000),
            format!("__CUDACC_VER_MINOR__={}", CUDA_VERSION % 1000 / 10),
            format!("CUDA_VERSION={CUDA_VERSION}"),
            format!("CUDART_VERSION={CUDA_VERSION}"),
            "__CUDA_FP8_TYPES_EXIST__=1".into(),
        ];
        arguments.extend(defines.iter().map(|define| format!("-D{define}")));
        let mut standard = "-std=c++17".to_string();
        let mut take = |option: &String| {
            if option.starts_with("-std=c++") || option.starts_with("--std=c++") {
                standard = option.trim_start_matches('-').to_string();
                standard.insert(0, '-');
            } else if ["-D", "-U", "-I"]
                .iter()
                .any(|start| option.starts_with(start))
                && option.len() > 2
            {
                arguments.push(option.clone());
            }
        };
        for build in &self.builds {
            build.options.iter().for_each(&mut take);
            for (condition, option) in &build.conditional {
                if holds(condition, arch / 10) == Some(true) {
                    take(option);
                }
            }
        }
        for define in &options.defines {
            take(&format!("-D{define}"));
        }
        for include in &options.includes {
            take(&format!("-I{include}"));
        }
        arguments.push(standard);
        arguments.push("-isystem".into());
        arguments.push(self.stand_ins().display().to_string());
        arguments
    }

    /// A file's text: preprocessed, or as it is with a problem that says what is not seen.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn file(
        &self,
        sources: &Sources,
        name: &str,
        arch: u32,
    ) -> Result<Text, crate::source::Error> {
        let reason = match &self.program {
            None => self.reason.clone(),
            Some(program) => {
                // Also checks that the file may be read.
                sources.read(name)?;
                match self.run(program, sources, name, arch) {
                    Ok((text, errors)) => {
                        let mut text = Text::preprocessed(&text, sources, &self.stand_ins());
                        for error in errors {
                            text.problems.push((start_of(name), error));
                        }
                        return Ok(text);
                    }
                    Err(reason) => reason,
                }
            }
        };
        let mut text = Text::raw(name, sources.read(name)?);
        text.problems.push((
            start_of(name),
            format!("not preprocessed, so headers, #if and kernels made by macros are not seen: {reason}"),
        ));
        Ok(text)
    }

    fn run(
        &self,
        program: &Path,
        sources: &Sources,
        name: &str,
        arch: u32,
    ) -> Result<(String, Vec<String>), String> {
        // A name that begins with a dash would be an option.
        let file = format!("./{name}");
        let mut command = limited(program);
        command
            .args(self.arguments(arch))
            .arg(&file)
            .current_dir(&sources.root)
            .env("LC_ALL", "C");
        let limits = Limits {
            bytes: 64 << 20,
            time: Duration::from_secs(60),
        };
        let output = run_limited(&mut command, limits)?;
        let errors: Vec<String> = output
            .stderr
            .lines()
            .filter(|line| line.contains("error:"))
            .take(3)
            .map(|line| line.trim_start_matches("./").to_string())
            .collect();
        if !output.status.success() && errors.is_empty() {
            let last = output.stderr.lines().last().unwrap_or_default();
            return Err(format!("the compiler ended with {}: {last}", output.status));
        }
        let text = String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n");
        // `#error` and what follows it; the text up to there, and after it, is still worth reading.
        if text.is_empty() {
            return Err(errors.join("; "));
        }
        Ok((text, errors))
    }
}

/// The program with an address space of 4 GiB and a minute of the processor: texts may be made to exhaust it.
fn limited(program: &Path) -> Command {
    if cfg!(unix) {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "ulimit -v 4194304; ulimit -t 60; exec \"$@\"", "sh"])
            .arg(program);
        command
    } else {
        Command::new(program)
    }
}

fn runs(program: &Path) -> bool {
    let limits = Limits {
        bytes: 1 << 20,
        time: Duration::from_secs(20),
    };
    run_limited(Command::new(program).arg("--version"), limits)
        .is_ok_and(|output| output.status.success())
}

fn start_of(file: &str) -> Place {
    Place {
        file: file.to_string(),
        line: 1,
        column: 1,
    }
}

/// All names that files of the project include, with whether they are quoted; an absolute one is the error.
fn includes(sources: &Sources) -> Result<BTreeSet<(bool, String)>, String> {
    let mut names = BTreeSet::new();
    for file in sources.cuda.iter().chain(&sources.headers) {
        let Ok(text) = sources.read(file) else {
            continue;
        };
        for (quoted, name) in text.lines().filter_map(included) {
            if Path::new(name).is_absolute() {
                return Err(name.to_string());
            }
            names.insert((quoted, name.to_string()));
        }
    }
    Ok(names)
}

/// What a line includes, and whether in quotes.
pub(super) fn included(line: &str) -> Option<(bool, &str)> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start();
    let rest = rest.strip_prefix("include")?;
    let rest = rest.strip_prefix("_next").unwrap_or(rest).trim_start();
    if let Some(rest) = rest.strip_prefix('<') {
        return Some((false, rest.split_once('>')?.0.trim()));
    }
    Some((true, rest.strip_prefix('"')?.split_once('"')?.0))
}
