//! Kernels by name: code objects made once, loaded once per GPU.

use crate::code_object::CodeObject;
use crate::compile::HiprtcCompiler;
use crate::declared::DeclaredKernel;
use crate::gpu::{describe, Gpu};
use crate::signatures::Signatures;
use crate::sync::lock;
use crate::sys::hip::{self, HipFunction, HipModule};
use crate::verify::Plain;
use crate::{Error, Result};
use candle_rocm_kernels::{
    embedded, embedded_ck, translation_unit, Cache, CkInstance, CompileRequest, Family,
};
use std::borrow::Cow;
use std::collections::hash_map::{Entry, HashMap};
use std::ffi::CString;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// A loaded kernel, independent of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub raw: HipFunction,
    pub name: Arc<str>,
}

// SAFETY: HIP functions may be used from any thread; modules are never unloaded.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Where a module comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Origin {
    /// In a form.
    Family(CodeObject, Plain),
    /// The user's source.
    Custom(Arc<str>),
    /// Composable Kernel's attention.
    Ck(CkInstance),
}

/// Functions of one module by name.
type Functions = HashMap<Arc<str>, Function>;

/// The modules of one GPU. They stay loaded as long as the process runs.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    loaded: Mutex<HashMap<Origin, Module>>,
    custom: RwLock<HashMap<Arc<str>, Functions>>,
    ck: RwLock<HashMap<CkInstance, Function>>,
}

#[derive(Debug)]
struct Module {
    raw: HipModule,
    /// Of what launchers declare; custom kernels are the user's own affair.
    signatures: Signatures,
    /// HIP may read the object later than at load.
    _object: Cow<'static, [u8]>,
}

// SAFETY: module handles may be used from any thread.
unsafe impl Send for Module {}

impl Modules {
    /// A declared kernel. Its module is looked for anew each time: declarations keep what they get.
    pub fn declared(&self, gpu: &Gpu, kernel: &DeclaredKernel, plain: Plain) -> Result<Function> {
        let object = match built_in(gpu, kernel.family, plain) {
            Some(_) => CodeObject::new(kernel.family, None),
            None => CodeObject::of(kernel),
        };
        self.load(
            gpu,
            Origin::Family(object, plain),
            &kernel.name,
            Some(kernel),
        )
    }

    /// What of the families is loaded.
    pub fn loaded(&self) -> Vec<CodeObject> {
        let loaded = lock(&self.loaded);
        let objects = loaded.keys().filter_map(|origin| match origin {
            Origin::Family(object, _) => Some(object.clone()),
            Origin::Custom(_) | Origin::Ck(_) => None,
        });
        objects.collect()
    }

    /// A kernel of the user's source.
    pub fn custom(&self, gpu: &Gpu, source: &str, name: &str) -> Result<Function> {
        let known = self.custom.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = known.get(source).and_then(|functions| functions.get(name)) {
            return Ok(function.clone());
        }
        drop(known);
        let source: Arc<str> = source.into();
        let function = self.load(gpu, Origin::Custom(source.clone()), name, None)?;
        let mut known = self.custom.write().unwrap_or_else(PoisonError::into_inner);
        let functions = known.entry(source).or_default();
        functions.insert(function.name.clone(), function.clone());
        Ok(function)
    }

    /// The kernel of an instance that the build made for this GPU's arch.
    pub fn ck(&self, gpu: &Gpu, instance: CkInstance) -> Result<Function> {
        let known = self.ck.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = known.get(&instance) {
            return Ok(function.clone());
        }
        drop(known);
        let function = self.load(gpu, Origin::Ck(instance), &instance.kernel_name(), None)?;
        let mut known = self.ck.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(instance, function.clone());
        Ok(function)
    }

    /// A function of a module, which is loaded first if it is not. Of a declared kernel, what it takes is checked.
    fn load(
        &self,
        gpu: &Gpu,
        origin: Origin,
        name: &str,
        declared: Option<&DeclaredKernel>,
    ) -> Result<Function> {
        // Held while compiling: whoever wants the same module waits instead of compiling it, too.
        let mut loaded = lock(&self.loaded);
        let module = match loaded.entry(origin) {
            Entry::Occupied(module) => {
                let module = module.into_mut();
                check(gpu, &module.signatures, declared)?;
                module.raw
            }
            Entry::Vacant(place) => {
                let module = Module::new(gpu, place.key(), name, declared)?;
                place.insert(module).raw
            }
        };
        let c_name = CString::new(name).map_err(|_| Error::InvalidLaunch {
            kernel: name.to_string(),
            reason: "its name holds a zero byte".to_string(),
        })?;
        gpu.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the module is loaded and `raw` receives the handle.
        let status = unsafe { (gpu.hip.hipModuleGetFunction)(&mut raw, module, c_name.as_ptr()) };
        if status != hip::SUCCESS {
            let (error, description) = describe(gpu.hip, status);
            let reason =
                format!("the module has no such function: {error} ({status}): {description}");
            return Err(compile_error(gpu, name, reason));
        }
        Ok(Function {
            raw,
            name: name.into(),
        })
    }
}

impl Module {
    fn new(
        gpu: &Gpu,
        origin: &Origin,
        kernel: &str,
        declared: Option<&DeclaredKernel>,
    ) -> Result<Self> {
        let arch = &gpu.properties.full_arch;
        match origin {
            Origin::Family(object, plain) => {
                // An object that was built in but does not load here is no reason to stop: compile.
                if let Some(built_in) = built_in(gpu, object.family(), *plain) {
                    if let Ok(module) = Self::load(gpu, kernel, declared, Cow::Borrowed(built_in)) {
                        return Ok(module);
                    }
                }
                let source = object.source();
                let options = plain.options();
                let request = request(object, &source, arch, &options);
                Self::compiled(gpu, kernel, declared, &request)
            }
            Origin::Custom(source) => {
                let unit = translation_unit(kernel, source)
                    .map_err(|error| compile_error(gpu, kernel, error.to_string()))?;
                // Kernels of others read floats as vectors and integers, as nvcc lets them.
                let request = CompileRequest {
                    name: kernel,
                    source: &unit,
                    arch,
                    options: &["-fno-strict-aliasing".to_string()],
                };
                Self::compiled(gpu, kernel, declared, &request)
            }
            Origin::Ck(instance) => {
                let object = embedded_ck(*instance, arch)
                    .ok_or_else(|| compile_error(gpu, kernel, "it was not built in".to_string()))?;
                Self::load(gpu, kernel, declared, Cow::Borrowed(object))
            }
        }
    }

    /// From the cache, or compiled into it.
    fn compiled(
        gpu: &Gpu,
        kernel: &str,
        declared: Option<&DeclaredKernel>,
        request: &CompileRequest,
    ) -> Result<Self> {
        let object = HiprtcCompiler::new()
            .and_then(|compiler| cache().get_or_compile(&compiler, request))
            .map_err(|error| compile_error(gpu, kernel, error.to_string()))?;
        Self::load(gpu, kernel, declared, Cow::Owned(object))
    }

    fn load(
        gpu: &Gpu,
        kernel: &str,
        declared: Option<&DeclaredKernel>,
        object: Cow<'static, [u8]>,
    ) -> Result<Self> {
        let signatures = match declared {
            Some(_) => Signatures::read(&object, &gpu.properties.full_arch)
                .map_err(|reason| compile_error(gpu, kernel, reason))?,
            None => Signatures::Unknown,
        };
        check(gpu, &signatures, declared)?;
        gpu.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the object is a complete code object, which HIP reads; it is kept alive with the module.
        let status = unsafe { (gpu.hip.hipModuleLoadData)(&mut raw, object.as_ptr().cast()) };
        if status != hip::SUCCESS {
            let (error, description) = describe(gpu.hip, status);
            let reason =
                format!("its code object does not load: {error} ({status}): {description}");
            return Err(compile_error(gpu, kernel, reason));
        }
        Ok(Module {
            raw,
            signatures,
            _object: object,
        })
    }
}

/// What the compiler is asked for a code object, with options beyond those that all have. Every such request is made
/// here, also to compile ahead: with other options it would be for another entry of the cache.
pub(crate) fn request<'a>(
    object: &CodeObject,
    source: &'a str,
    arch: &'a str,
    options: &'a [String],
) -> CompileRequest<'a> {
    CompileRequest {
        name: object.family().file_name(),
        source,
        arch,
        options,
    }
}

/// The object of a family that the build made for the GPU: of the full form only.
fn built_in(gpu: &Gpu, family: Family, plain: Plain) -> Option<&'static [u8]> {
    embedded(family, &gpu.properties.full_arch).filter(|_| plain == Plain::NONE)
}

/// The process's cache of code objects.
pub(crate) fn cache() -> &'static Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(Cache::from_env)
}

/// Refuses a declared kernel that takes something else in the object.
fn check(gpu: &Gpu, signatures: &Signatures, declared: Option<&DeclaredKernel>) -> Result<()> {
    declared.map_or(Ok(()), |kernel| {
        let refuse = |reason| compile_error(gpu, &kernel.name, reason);
        signatures.check(kernel).map_err(refuse)
    })
}

fn compile_error(gpu: &Gpu, kernel: &str, reason: String) -> Error {
    Error::Compile {
        kernel: kernel.to_string(),
        arch: gpu.properties.full_arch.clone(),
        reason,
    }
}
