//! The second back end: the same C ABI over the CUDA driver, nvrtc, cuBLAS and cuDNN, chosen by `HIP_SIM_BACKEND=cuda`.
//!
//! It measures the kernels and the host code on a real GPU. The device is called as CUDA calls it, `sm_90`: waves of 32, byte dot products,
//! mma.sync as matrix instructions. Without cuDNN, MIOpen has no handle to give, so convolutions are ours. What a test asks of the
//! simulator itself (checked accesses, injected failures, counters) does not exist here, and functions that the product does not call
//! answer `hipErrorNotSupported`.
//!
//! CUDA's libraries are looked for under `CUDA_PATH`, then where the dynamic loader looks, then in `/usr/local/cuda`.

mod blas;
mod convolution;
mod cudnn;
mod driver;
mod library;
mod rtc;
mod runtime;

use crate::error::hipError_t;
use driver::{CUcontext, Driver};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];

/// `hipErrorInvalidValue`, `hipErrorNotSupported` and `hipErrorInvalidDevice`; HIP took over CUDA's numbers.
const INVALID_VALUE: hipError_t = 1;
const INVALID_DEVICE: hipError_t = 101;

/// The CUDA driver and its devices.
pub(crate) struct Cuda {
    driver: Driver,
    contexts: Vec<Context>,
}

struct Context {
    device: c_int,
    raw: CUcontext,
}

// SAFETY: contexts may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

thread_local! {
    /// Ordinal of the device whose context is current on this thread; negative before the first call.
    static BOUND: Cell<c_int> = const { Cell::new(-1) };
    static LAST_ERROR: Cell<hipError_t> = const { Cell::new(0) };
}

/// The back end, if the environment asks for it. A back end that is asked for and cannot be had ends the process, as every setting does that cannot be met.
#[inline]
pub(crate) fn active() -> Option<&'static Cuda> {
    static CUDA: OnceLock<Option<Cuda>> = OnceLock::new();
    CUDA.get_or_init(|| {
        let made = match std::env::var("HIP_SIM_BACKEND").as_deref() {
            Err(_) | Ok("" | "cpu") => return None,
            Ok("cuda") => Cuda::new(),
            Ok(other) => Err(format!(
                "HIP_SIM_BACKEND: {other:?} is neither cpu nor cuda"
            )),
        };
        Some(made.unwrap_or_else(|message| {
            eprintln!("hip-sim: {message}");
            std::process::exit(2)
        }))
    })
    .as_ref()
}

impl Cuda {
    fn new() -> Result<Cuda, String> {
        let driver = Driver::open(&["libcuda.so.1"])?;
        let mut count = 0;
        // SAFETY: `count` receives a number.
        unsafe {
            check("cuInit", (driver.cuInit)(0))?;
            check("cuDeviceGetCount", (driver.cuDeviceGetCount)(&mut count))?;
        }
        let context = |ordinal| {
            let (mut device, mut raw) = (0, std::ptr::null_mut());
            // SAFETY: both receive what the calls make; the context is kept for good.
            unsafe {
                check("cuDeviceGet", (driver.cuDeviceGet)(&mut device, ordinal))?;
                let retained = (driver.cuDevicePrimaryCtxRetain)(&mut raw, device);
                check("cuDevicePrimaryCtxRetain", retained)?;
            }
            Ok(Context { device, raw })
        };
        let contexts = (0..count)
            .map(context)
            .collect::<Result<Vec<_>, String>>()?;
        Ok(Cuda { driver, contexts })
    }

    /// Major and minor of a device's compute capability.
    fn capability(&self, context: &Context) -> [c_int; 2] {
        CAPABILITY.map(|attribute| {
            let mut value = 0;
            // SAFETY: `value` receives a number; the device is one that the driver listed.
            unsafe { (self.driver.cuDeviceGetAttribute)(&mut value, attribute, context.device) };
            value
        })
    }

    /// Makes a device's context current on this thread.
    fn bind(&self, ordinal: c_int) -> hipError_t {
        if BOUND.get() == ordinal {
            return 0;
        }
        let context = usize::try_from(ordinal)
            .ok()
            .and_then(|i| self.contexts.get(i));
        let Some(context) = context else {
            return INVALID_DEVICE;
        };
        // SAFETY: the context is alive for good.
        let status = unsafe { (self.driver.cuCtxSetCurrent)(context.raw) };
        if status == 0 {
            BOUND.set(ordinal);
        }
        status
    }

    /// Runs a call in the thread's context, which is the first device's unless another was set, and remembers a failure.
    fn call(&self, call: impl FnOnce(&Driver) -> c_int) -> hipError_t {
        let status = match BOUND.get() {
            -1 => self.bind(0),
            _ => 0,
        };
        remember(if status == 0 {
            call(&self.driver)
        } else {
            status
        })
    }
}

/// The failure of a call of the driver's.
fn check(what: &str, status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        code => Err(format!("{what} answers {code}")),
    }
}

/// "Not ready" is an answer, and no error.
fn remember(status: hipError_t) -> hipError_t {
    if status != 0 && status != 600 {
        LAST_ERROR.set(status);
    }
    status
}

/// In a function of the C interface: hands the call to the CUDA back end if that is the one in use.
macro_rules! on_cuda {
    ($function:ident($($argument:expr),* $(,)?)) => {
        if let Some(cuda) = crate::cuda::active() {
            // SAFETY: the caller's promises are those that the back end's function of this name asks for.
            #[allow(unused_unsafe)]
            return unsafe { cuda.$function($($argument),*) };
        }
    };
}
pub(crate) use on_cuda;
