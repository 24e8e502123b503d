//! Compiling kernels before they are needed, perhaps in other processes.
//!
//! hiprtc compiles one thing at a time in a process, so a program that starts for the first time waits long for its
//! kernels. It can ask which are [`missing`], hand the [`CompileJob`]s to processes of its own, each with a hiprtc of
//! its own, and finds the objects in the cache on disk afterwards. A job needs the compiler and no GPU.
//!
//! ```no_run
//! use candle_rocm::{precompile, CodeObject, Device};
//!
//! # fn main() -> candle_rocm::Result<()> {
//! let device = Device::new(0)?;
//! for job in precompile::missing(&device.properties().full_arch, &CodeObject::all())? {
//!     job.run()?;
//! }
//! # Ok(())
//! # }
//! ```

use crate::code_object::CodeObject;
use crate::compile::HiprtcCompiler;
use crate::module::{cache, request};
use crate::{blas, ops, Arch, Device, Error, Generation, Only, Result};
use candle_rocm_kernels::{embedded, CacheStats, Family};
use std::collections::{HashMap, HashSet};

/// A code object to be compiled into the cache of code objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileJob {
    /// What is compiled.
    pub object: CodeObject,
    /// The target as HIP's `gcnArchName` gives it.
    pub arch: String,
    /// Options beyond those that all objects have.
    pub options: Vec<String>,
}

impl CompileJob {
    /// Compiles the object and keeps it on disk, unless it is there. Waits while another process compiles it.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's words, or if the cache has no place for the object.
    pub fn run(&self) -> Result<()> {
        let source = self.object.source();
        let request = request(&self.object, &source, &self.arch, &self.options);
        let before = cache().stats().not_stored;
        let compiler = HiprtcCompiler::new().map_err(|e| self.failed(e.to_string()))?;
        (cache().get_or_compile(&compiler, &request)).map_err(|e| self.failed(e.to_string()))?;
        match cache_is_kept() {
            Ok(()) if cache().stats().not_stored == before => Ok(()),
            Ok(()) => Err(self.failed("the object could not be stored".to_string())),
            Err(reason) => Err(self.failed(reason)),
        }
    }

    fn failed(&self, reason: String) -> Error {
        Error::Compile {
            kernel: self.object.to_string(),
            arch: self.arch.clone(),
            reason,
        }
    }
}

/// Jobs for those of `wanted` that a GPU of this arch has and that are neither built in nor in the cache, in the order
/// of `wanted`. Takes the target as HIP's `gcnArchName` gives it.
///
/// # Errors
/// [`Error::Compile`] if there is something to compile, but no compiler or no place for the cache.
pub fn missing(arch: &str, wanted: &[CodeObject]) -> Result<Vec<CompileJob>> {
    let failed = |reason: String| Error::Compile {
        kernel: "all kernels".to_string(),
        arch: arch.to_string(),
        reason,
    };
    let there = objects_of(Some(&Arch::of_device(arch)));
    let there: HashSet<CodeObject> = there.into_iter().collect();
    let mut seen = HashSet::new();
    let mut wanted: Vec<&CodeObject> = wanted.iter().collect();
    wanted.retain(|object| {
        let is_built_in = || embedded(object.family(), arch).is_some();
        there.contains(object) && seen.insert(*object) && !is_built_in()
    });
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let compiler = HiprtcCompiler::new().map_err(|e| failed(e.to_string()))?;
    cache_is_kept().map_err(failed)?;
    let mut jobs = Vec::new();
    for object in wanted {
        let job = CompileJob {
            object: object.clone(),
            arch: arch.to_string(),
            options: Vec::new(),
        };
        let source = object.source();
        if !cache().has(&compiler, &request(object, &source, arch, &job.options)) {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

/// What multiplies matrices of floats on a device where rocBLAS cannot, in the dtypes of `wanted`.
pub fn own_products(device: &Device, wanted: &[CodeObject]) -> Vec<CodeObject> {
    if blas::refusal(device).is_none() {
        return Vec::new();
    }
    let parts = wanted.iter().filter_map(CodeObject::part);
    let dtypes = parts.map(str::to_string).collect();
    CodeObject::select(&[Family::Gemm, Family::Gemv], &dtypes)
}

/// A code object for a target, if it is built in or in the cache.
pub fn stored(arch: &str, object: &CodeObject) -> Option<Vec<u8>> {
    if let Some(bytes) = embedded(object.family(), arch) {
        return Some(bytes.to_vec());
    }
    let compiler = HiprtcCompiler::new().ok()?;
    let source = object.source();
    let request = request(object, &source, arch, &[]);
    let is_there = cache().has(&compiler, &request);
    is_there.then(|| cache().get_or_compile(&compiler, &request).ok())?
}

/// What the process's cache of code objects has done so far.
pub fn cache_stats() -> CacheStats {
    cache().stats()
}

fn cache_is_kept() -> std::result::Result<(), String> {
    cache().refusal().map_or(Ok(()), Err)
}

impl CodeObject {
    /// Every code object, by family.
    pub fn all() -> Vec<Self> {
        objects_of(None)
    }

    /// The objects of these families, in their order; of families in parts those with these names, and what is in no
    /// part of its own.
    pub fn select(families: &[Family], parts: &HashSet<String>) -> Vec<Self> {
        let all = Self::all();
        let wanted = |object: &&Self| {
            let part = object.part().unwrap_or_default();
            part.is_empty() || parts.contains(part)
        };
        (families.iter())
            .flat_map(|family| all.iter().filter(|object| object.family() == *family))
            .filter(wanted)
            .cloned()
            .collect()
    }
}

impl Device {
    /// What of the kernels this process has loaded on the GPU.
    pub fn loaded_objects(&self) -> Vec<CodeObject> {
        self.shared().modules.loaded()
    }
}

/// The objects that have a kernel for a GPU; of any GPU without one.
fn objects_of(arch: Option<&Arch>) -> Vec<CodeObject> {
    let mut in_parts = HashMap::new();
    let mut seen = HashSet::new();
    let mut objects = Vec::new();
    for kernel in ops::kernels() {
        if !arch.is_none_or(|arch| kernel.only.is_none_or(|only| has(arch, only))) {
            continue;
        }
        // Parts are read off the source: once for each family.
        let in_parts = *in_parts
            .entry(kernel.family)
            .or_insert_with(|| !kernel.family.parts().is_empty());
        let part = in_parts.then(|| kernel.part.clone().unwrap_or_default());
        let object = CodeObject::new(kernel.family, part);
        if seen.insert(object.clone()) {
            objects.push(object);
        }
    }
    objects.sort();
    objects
}

fn has(arch: &Arch, only: Only) -> bool {
    let generation = arch.generation();
    match only {
        Only::Matrix => generation.matrix().is_some(),
        Only::Float8 => arch.has_float8(),
        Only::Mx => arch.has_mx(),
        Only::Wave32 => !matches!(
            generation,
            Generation::Gcn | Generation::Cdna2 | Generation::Cdna3 | Generation::Cdna4
        ),
    }
}
