//! The rocBLAS handle of a device, with its workspace.

use super::backend::may_be_rocblas;
use crate::gpu::Gpu;
use crate::shared::Shared;
use crate::slots::Kept;
use crate::sync::lock;
use crate::sys::hip;
use crate::sys::rocblas::{self, RocBlas, RocBlasHandle, RocBlasStatus};
use crate::{Device, Error, Generation, Result};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, Once};

/// Workspace that rocBLAS gets once: it must not allocate while a graph is captured. As its own defaults are
/// (`handle.hpp`): solutions that need more are not considered, which on MI300 are those that split K.
fn workspace_bytes(generation: Generation) -> usize {
    match generation {
        Generation::Cdna3 | Generation::Cdna4 => 128 << 20,
        _ => 32 << 20,
    }
}

/// On small devices the workspace is at most this fraction of the memory.
const WORKSPACE_FRACTION: usize = 256;

/// A rocBLAS handle on a device's stream.
pub(super) struct Blas {
    shared: &'static Shared,
    pub library: &'static RocBlas,
    pub handle: RocBlasHandle,
    workspace: *mut c_void,
}

// SAFETY: a handle may be used from any thread, one at a time; a mutex holds it.
unsafe impl Send for Blas {}

/// The handle of a device, made when the first product asks for it.
pub(super) type Handle = Mutex<Option<Blas>>;

impl Kept for Handle {}

impl Blas {
    fn new(device: &Device) -> Result<Self> {
        let shared = device.shared();
        let gpu = &shared.gpu;
        if gpu.properties.arch.generation() == Generation::Rdna4 {
            avoid_hipblaslt();
        }
        let library = &RocBlas::get()?.functions;
        let mut handle = ptr::null_mut();
        let create = || {
            // SAFETY: the device is bound and `handle` receives the handle.
            unsafe { (library.rocblas_create_handle)(&mut handle) }
        };
        let status = shared.captures.exclude(create);
        check(gpu, "rocblas_create_handle", status, || {
            "check that this rocBLAS has kernels for the architecture".to_string()
        })?;
        let mut blas = Blas {
            shared,
            library,
            handle,
            workspace: ptr::null_mut(),
        };
        let bytes = workspace_bytes(gpu.properties.arch.generation())
            .min(gpu.properties.total_memory / WORKSPACE_FRACTION);
        // SAFETY: `workspace` receives the address.
        let mut allocate = || unsafe { (gpu.hip.hipMalloc)(&mut blas.workspace, bytes) };
        let mut status = allocate();
        if status == hip::ERROR_OUT_OF_MEMORY {
            device.trim()?;
            status = allocate();
        }
        gpu.check("hipMalloc (rocBLAS workspace)", status)?;
        let none = String::new;
        // SAFETY: the handle is alive, and so is the workspace as long as it.
        unsafe {
            let status = (library.rocblas_set_stream)(handle, device.stream().as_raw());
            check(gpu, "rocblas_set_stream", status, none)?;
            let status = (library.rocblas_set_workspace)(handle, blas.workspace, bytes);
            check(gpu, "rocblas_set_workspace", status, none)?;
            let status = (library.rocblas_set_pointer_mode)(handle, rocblas::POINTER_MODE_HOST);
            check(gpu, "rocblas_set_pointer_mode", status, none)?;
            if let Some(set_atomics_mode) = library.rocblas_set_atomics_mode {
                let status = set_atomics_mode(handle, rocblas::ATOMICS_NOT_ALLOWED);
                check(gpu, "rocblas_set_atomics_mode", status, none)?;
            }
        }
        Ok(blas)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let gpu = &self.shared.gpu;
        let freed = gpu.bind().and_then(|()| {
            // SAFETY: handle and workspace are ours; the device's stream is idle when it is dropped.
            let free = || unsafe {
                (
                    (self.library.rocblas_destroy_handle)(self.handle),
                    (gpu.hip.hipFree)(self.workspace),
                )
            };
            let (destroyed, freed) = self.shared.captures.exclude(free);
            check(gpu, "rocblas_destroy_handle", destroyed, String::new)?;
            gpu.check("hipFree (rocBLAS workspace)", freed)
        });
        gpu.defer(freed);
    }
}

/// Has rocBLAS multiply by its own kernels on gfx12, unless the user says otherwise. From ROCm 7.2 on it takes
/// hipBLASLt's there, which read past the end of an operand whose sizes are no multiples of a tile's: a page fault,
/// which ends the process, where nothing is mapped behind it (<https://github.com/ROCm/rocm-libraries/issues/7992>).
///
/// The variable is read when a handle is made. This is before the first one; what else is running may read other
/// variables, through Rust's lock if it is Rust, and the libraries' own were read when they started.
fn avoid_hipblaslt() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os(USE_HIPBLASLT).is_none() {
            std::env::set_var(USE_HIPBLASLT, "0");
        }
    });
}

/// Whether rocBLAS multiplies by hipBLASLt.
const USE_HIPBLASLT: &str = "ROCBLAS_USE_HIPBLASLT";

/// An error for a status other than success; `context` says what was computed, or what to do.
pub(super) fn check(
    gpu: &Gpu,
    call: &'static str,
    code: RocBlasStatus,
    context: impl FnOnce() -> String,
) -> Result<()> {
    if code == rocblas::SUCCESS {
        return Ok(());
    }
    Err(Error::Blas {
        call,
        arch: gpu.properties.full_arch.clone(),
        code,
        status: rocblas::status_name(code),
        context: context(),
    })
}

/// Creates the device's rocBLAS handle and workspace now instead of at the first product, as is needed
/// before a graph is captured. Where rocBLAS is not used, nothing needs to be made.
///
/// # Errors
/// [`Error::Load`] if rocBLAS is forced and not there, [`Error::Blas`].
pub fn prepare(device: &Device) -> Result<()> {
    device.enter()?;
    match may_be_rocblas(device) {
        true => make(device),
        false => Ok(()),
    }
}

/// Creates the handle and its workspace, unless they are there.
pub(super) fn make(device: &Device) -> Result<()> {
    let mut blas = lock(device.slot::<Handle>());
    if blas.is_none() {
        *blas = Some(Blas::new(device)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_are_rocblas_defaults() {
        assert_eq!(workspace_bytes(Generation::Cdna3), 128 << 20);
        assert_eq!(workspace_bytes(Generation::Cdna4), 128 << 20);
        assert_eq!(workspace_bytes(Generation::Rdna3), 32 << 20);
    }
}
