//! Compiling a unit for AMD's archs, and what the compiler made of its kernels.

use super::finding::{place_of, Finding, Kind};
use candle_rocm::compile::HiprtcCompiler;
use candle_rocm::Arch;
use candle_rocm_kernels::{Cache, Clang, CompileError, CompileRequest, Compiler};
use code_object::{CodeObject, PROCESSORS};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// Which archs a unit is compiled for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Targets {
    /// Every one that candle-rocm supports, generic processors too.
    #[default]
    All,
    /// One of each generation: gfx90a, gfx942, gfx950, gfx1030, gfx1100, gfx1151, gfx1201.
    Generations,
    /// These.
    Only(Vec<String>),
    /// None: units only run on the simulator.
    None,
}

impl Targets {
    /// Their names.
    pub fn archs(&self) -> Vec<String> {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        match self {
            Targets::All => supported().map(str::to_string).collect(),
            Targets::Generations => names(&[
                "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1151", "gfx1201",
            ]),
            Targets::Only(archs) => archs.clone(),
            Targets::None => Vec::new(),
        }
    }
}

/// Archs that candle-rocm's kernels are made for.
pub fn supported() -> impl Iterator<Item = &'static str> {
    let names = PROCESSORS.iter().map(|processor| processor.name);
    names.filter(|name| Arch::parse(name).is_some_and(|arch| arch.is_supported()))
}

/// What an arch's compiler made of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// The arch.
    pub arch: String,
    /// Vector registers of a lane.
    pub vgprs: u32,
    /// Scalar registers of a wave.
    pub sgprs: u32,
    /// Static LDS of a block, in bytes.
    pub lds_bytes: u32,
    /// Scratch memory of a lane, in bytes.
    pub scratch_bytes: u32,
    /// Registers that did not fit.
    pub spills: u32,
    /// Waves that a SIMD holds at once.
    pub waves_per_simd: Option<u32>,
    /// Lanes of a wave.
    pub wave: u32,
    /// Threads of a block at most.
    pub max_block: u32,
    /// Bytes of all arguments.
    pub argument_bytes: u32,
    /// Where arguments begin, and their sizes.
    pub arguments: Vec<(u32, u32)>,
}

/// Kernels by name, with what they take on each arch.
pub(super) type Kernels = Vec<(String, Vec<Resources>)>;

/// What compiling gave.
#[derive(Default)]
pub(super) struct Compiled {
    /// The compiler; none if there is none.
    pub compiler: Option<String>,
    /// Archs for which the unit compiled.
    pub archs: Vec<String>,
    pub kernels: Kernels,
    pub findings: Vec<Finding>,
    pub notes: Vec<String>,
}

/// LDS that a block can have.
pub(super) fn lds_limit(arch: &str) -> u32 {
    match arch.starts_with("gfx950") {
        true => 160 << 10,
        false => 64 << 10,
    }
}

/// clang, or hiprtc where ROCm is.
fn compiler() -> Result<Box<dyn Compiler>, String> {
    let clang = match Clang::find() {
        Ok(clang) => return Ok(Box::new(clang)),
        Err(why) => why,
    };
    match HiprtcCompiler::new() {
        Ok(hiprtc) => Ok(Box::new(hiprtc)),
        Err(_) => Err(clang.to_string()),
    }
}

/// Compiles a source for some archs, several at a time. `own` is what of it is no header of ours.
pub(super) fn compile(
    name: &str,
    source: &str,
    own: &str,
    options: &[String],
    archs: &[String],
    jobs: usize,
    progress: &(dyn Fn(&str) + Sync),
) -> Compiled {
    let mut compiled = Compiled::default();
    if archs.is_empty() {
        return compiled;
    }
    let compiler = match compiler() {
        Ok(compiler) => compiler,
        Err(why) => {
            let note =
                format!("not compiled for AMD GPUs, only by the simulator's C++ compiler: {why}");
            compiled.notes.push(note);
            return compiled;
        }
    };
    compiled.compiler = Some(compiler.id());
    let cache = Cache::from_env();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, archs.len()) {
            scope.spawn(|| loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(arch) = archs.get(index) else { return };
                progress(&format!(
                    "compiling for {arch} ({} of {})",
                    index + 1,
                    archs.len()
                ));
                let request = CompileRequest {
                    name,
                    source,
                    arch,
                    options,
                };
                let object = cache.get_or_compile(&*compiler, &request);
                let mut results = results.lock().unwrap_or_else(|error| error.into_inner());
                results.push((index, object));
            });
        }
    });
    let mut results = results
        .into_inner()
        .unwrap_or_else(|error| error.into_inner());
    results.sort_by_key(|(index, _)| *index);
    for (index, object) in results {
        compiled.add(name, own, &archs[index], object);
    }
    compiled.spills();
    compiled
}

impl Compiled {
    fn add(&mut self, name: &str, own: &str, arch: &str, object: Result<Vec<u8>, CompileError>) {
        let parsed = match &object {
            Ok(object) => CodeObject::parse(object).map_err(|error| error.to_string()),
            Err(CompileError::Failed { log, .. }) => Err(log.clone()),
            Err(other) => Err(other.to_string()),
        };
        let object = match parsed {
            Ok(object) => object,
            Err(log) => return self.reject(name, own, arch, log),
        };
        self.archs.push(arch.to_string());
        for kernel in object.kernels {
            let limit = lds_limit(arch);
            if kernel.lds_bytes > limit {
                let message = format!(
                    "it has {} bytes of LDS; a block can have {limit}",
                    kernel.lds_bytes
                );
                self.findings.push(Finding::of_unit(
                    Kind::Lds,
                    &kernel.name,
                    Some(arch),
                    message,
                ));
            }
            let resources = Resources {
                arch: arch.to_string(),
                vgprs: kernel.vgprs,
                sgprs: kernel.sgprs,
                lds_bytes: kernel.lds_bytes,
                scratch_bytes: kernel.scratch_bytes,
                spills: kernel.spills(),
                waves_per_simd: kernel.waves_per_simd,
                wave: kernel.wave_size,
                max_block: kernel.max_block,
                argument_bytes: kernel.argument_bytes,
                arguments: kernel
                    .arguments
                    .iter()
                    .map(|argument| (argument.offset, argument.size))
                    .collect(),
            };
            match self
                .kernels
                .iter_mut()
                .find(|(name, _)| *name == kernel.name)
            {
                Some((_, all)) => all.push(resources),
                None => self.kernels.push((kernel.name, vec![resources])),
            }
        }
    }

    /// A log that several archs have in common is one finding.
    fn reject(&mut self, name: &str, own: &str, arch: &str, log: String) {
        let is_lds = log.contains("local memory") && log.contains("exceeds limit");
        let kind = if is_lds { Kind::Lds } else { Kind::Compile };
        let (file, line) = place_of(&log, name, own).unzip();
        let same = |finding: &&mut Finding| {
            finding.kind == kind && finding.line == line && (is_lds || finding.message == log)
        };
        if let Some(finding) = self.findings.iter_mut().find(same) {
            finding.archs.push(arch.to_string());
            return;
        }
        let mut finding = Finding::of_unit(kind, "", Some(arch), log);
        (finding.file, finding.line) = (file, line);
        self.findings.push(finding);
    }

    fn spills(&mut self) {
        for (kernel, all) in &self.kernels {
            let spilled: Vec<&Resources> = all
                .iter()
                .filter(|r| r.spills > 0 || r.scratch_bytes > 0)
                .collect();
            let Some(worst) = spilled.iter().max_by_key(|r| (r.spills, r.scratch_bytes)) else {
                continue;
            };
            let message = format!(
                "{} registers spilled and {} bytes of scratch memory a lane on {}",
                worst.spills, worst.scratch_bytes, worst.arch
            );
            let mut finding = Finding::of_unit(Kind::Spill, kernel, None, message);
            finding.archs = spilled.iter().map(|r| r.arch.clone()).collect();
            self.findings.push(finding);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archs() {
        let all = Targets::All.archs();
        for arch in Targets::Generations.archs() {
            assert!(all.contains(&arch), "{arch}");
        }
        assert!(all.contains(&"gfx11-generic".to_string()) && !all.contains(&"gfx900".to_string()));
        assert_eq!(lds_limit("gfx950"), 163_840);
        assert_eq!(lds_limit("gfx1100"), 65_536);
    }
}
