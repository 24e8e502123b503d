//! The CUDA driver, its devices, and calls in the context of the calling thread's device.

use crate::driver::{CUcontext, Driver};
use hip_abi::error::{hipError_t, HipError};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];

pub(crate) const INVALID_VALUE: hipError_t = HipError::InvalidValue as hipError_t;
pub(crate) const INVALID_DEVICE: hipError_t = HipError::InvalidDevice as hipError_t;
pub(crate) const NO_DEVICE: hipError_t = HipError::NoDevice as hipError_t;
const NOT_READY: hipError_t = HipError::NotReady as hipError_t;

/// The CUDA driver and its devices.
pub(crate) struct Cuda {
    pub driver: Driver,
    contexts: Vec<Context>,
}

/// A device and its primary context, which is kept for good.
pub(crate) struct Context {
    pub device: c_int,
    pub raw: CUcontext,
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

/// The driver; none, and a line on stderr that says why, if it cannot be had.
pub(crate) fn cuda() -> Option<&'static Cuda> {
    static CUDA: OnceLock<Option<Cuda>> = OnceLock::new();
    let open = || match Cuda::new() {
        Ok(cuda) => Some(cuda),
        Err(message) => {
            eprintln!("hip-on-cuda: {message}");
            None
        }
    };
    CUDA.get_or_init(open).as_ref()
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

    /// The device of an ordinal, if there is one.
    pub fn context(&self, ordinal: c_int) -> Option<&Context> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|i| self.contexts.get(i))
    }

    /// Major and minor of a device's compute capability.
    pub fn capability(&self, context: &Context) -> [c_int; 2] {
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
        let Some(context) = self.context(ordinal) else {
            return INVALID_DEVICE;
        };
        // SAFETY: the context is alive for good.
        let status = unsafe { (self.driver.cuCtxSetCurrent)(context.raw) };
        if status == 0 {
            BOUND.set(ordinal);
        }
        status
    }
}

/// Makes a device the thread's.
pub(crate) fn set_device(ordinal: c_int) -> hipError_t {
    remember(cuda().map_or(NO_DEVICE, |cuda| cuda.bind(ordinal)))
}

/// Ordinal of the thread's device.
pub(crate) fn device() -> c_int {
    BOUND.get().max(0)
}

/// Runs a call in the thread's context, which is the first device's unless another was set, and remembers a failure.
pub(crate) fn call(call: impl FnOnce(&Driver) -> c_int) -> hipError_t {
    with(|cuda| call(&cuda.driver))
}

/// [`call`] with the devices.
pub(crate) fn with(call: impl FnOnce(&'static Cuda) -> c_int) -> hipError_t {
    let Some(cuda) = cuda() else {
        return remember(NO_DEVICE);
    };
    let status = match BOUND.get() {
        -1 => cuda.bind(0),
        _ => 0,
    };
    remember(if status == 0 { call(cuda) } else { status })
}

/// Runs calls of another library in the thread's context.
pub(crate) fn within<T>(calls: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let mut answer = None;
    let status = call(|_| {
        answer = Some(calls());
        0
    });
    answer.unwrap_or_else(|| Err(format!("no context can be had: CUDA answers {status}")))
}

/// Runs a call of a library that may leave the thread with another context, and gives the thread its own back.
pub(crate) fn lent<T>(call_library: impl FnOnce() -> T) -> Option<T> {
    let mut answer = None;
    with(|cuda| {
        answer = Some(call_library());
        match cuda.context(device()) {
            // SAFETY: the context is alive for good.
            Some(own) => unsafe { (cuda.driver.cuCtxSetCurrent)(own.raw) },
            None => INVALID_DEVICE,
        }
    });
    answer
}

/// The failure of a call of the driver's.
pub(crate) fn check(what: &str, status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        code => Err(format!("{what} answers {code}")),
    }
}

/// Keeps a failure for [`take_last_error`]. "Not ready" is an answer, and no error.
pub(crate) fn remember(status: hipError_t) -> hipError_t {
    if status != 0 && status != NOT_READY {
        LAST_ERROR.set(status);
    }
    status
}

/// The thread's last failure; success from now on.
pub(crate) fn take_last_error() -> hipError_t {
    LAST_ERROR.replace(0)
}
