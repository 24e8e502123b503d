//! State that all handles of one ordinal share: the library, properties, modules, deferred errors.

use crate::graph::Captures;
use crate::module::Modules;
use crate::ops::quantized::Crossovers;
use crate::sys::hip::{self, DeviceProp, Hip, HipError};
use crate::{topology, DeviceProperties, Error, Result};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, CStr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

thread_local! {
    // HIP's current device is per thread and starts at 0, but another user of HIP may have changed it
    // before this crate first runs in the thread; hence no ordinal to begin with.
    static BOUND: Cell<Option<usize>> = const { Cell::new(None) };
}

/// One GPU of this process. Lives as long as the process.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub hip: &'static Hip,
    pub ordinal: usize,
    pub properties: DeviceProperties,
    pub modules: Modules,
    pub captures: Captures,
    pub crossovers: Crossovers,
    deferred: Mutex<Option<Error>>,
    has_deferred: AtomicBool,
}

impl Gpu {
    /// Number of visible devices; at least 1.
    pub fn count() -> Result<usize> {
        let hip = &Hip::get()?.functions;
        // SAFETY: both functions only read and write what they are handed.
        let (status, count) = unsafe {
            let mut count: c_int = 0;
            let status = match (hip.hipInit)(0) {
                hip::SUCCESS => (hip.hipGetDeviceCount)(&mut count),
                status => status,
            };
            (status, usize::try_from(count).unwrap_or(0))
        };
        match status {
            hip::SUCCESS if count > 0 => Ok(count),
            hip::SUCCESS | hip::ERROR_NO_DEVICE | hip::ERROR_INSUFFICIENT_DRIVER => {
                Err(Error::NoDevice {
                    reason: topology::Topology::read().why_no_device(),
                })
            }
            status => Err(hip_error(hip, 0, "hipGetDeviceCount", status)),
        }
    }

    /// The GPU of an ordinal.
    pub fn get(ordinal: usize) -> Result<&'static Gpu> {
        static GPUS: OnceLock<Mutex<HashMap<usize, &'static Gpu>>> = OnceLock::new();
        let mut gpus = lock(GPUS.get_or_init(Mutex::default));
        if let Some(gpu) = gpus.get(&ordinal) {
            return Ok(gpu);
        }
        let count = Self::count()?;
        if ordinal >= count {
            return Err(Error::InvalidOrdinal { ordinal, count });
        }
        let hip = &Hip::get()?.functions;
        let mut raw = DeviceProp::zeroed();
        // SAFETY: `raw` has room for the struct.
        let status = unsafe { (hip.hipGetDevicePropertiesR0600)(&mut raw, ordinal as c_int) };
        if status != hip::SUCCESS {
            return Err(hip_error(hip, ordinal, "hipGetDeviceProperties", status));
        }
        let gpu: &'static Gpu = Box::leak(Box::new(Gpu {
            hip,
            ordinal,
            properties: DeviceProperties::from_raw(&raw),
            modules: Modules::default(),
            captures: Captures::default(),
            crossovers: Crossovers::default(),
            deferred: Mutex::new(None),
            has_deferred: AtomicBool::new(false),
        }));
        gpus.insert(ordinal, gpu);
        Ok(gpu)
    }

    /// Makes this the thread's current device.
    pub fn bind(&self) -> Result<()> {
        if BOUND.get() == Some(self.ordinal) {
            return Ok(());
        }
        // SAFETY: no pointers.
        let status = unsafe { (self.hip.hipSetDevice)(self.ordinal as c_int) };
        self.check("hipSetDevice", status)?;
        BOUND.set(Some(self.ordinal));
        Ok(())
    }

    /// Forgets which device this thread has bound, for code that calls `hipSetDevice` itself.
    pub fn unbind_thread() {
        BOUND.set(None);
    }

    /// What every public entry does first: bind, and report what went wrong in an earlier drop.
    pub fn enter(&self) -> Result<()> {
        if self.has_deferred.load(Ordering::Relaxed) {
            if let Some(error) = lock(&self.deferred).take() {
                self.has_deferred.store(false, Ordering::Relaxed);
                return Err(Error::Deferred(Box::new(error)));
            }
        }
        self.bind()
    }

    /// Keeps the first error of code that cannot return one.
    pub fn defer(&self, result: Result<()>) {
        if let Err(error) = result {
            lock(&self.deferred).get_or_insert(error);
            self.has_deferred.store(true, Ordering::Relaxed);
        }
    }

    /// Turns a status into an error that names the call.
    pub fn check(&self, call: &'static str, status: HipError) -> Result<()> {
        if status == hip::SUCCESS {
            return Ok(());
        }
        Err(hip_error(self.hip, self.ordinal, call, status))
    }
}

fn hip_error(hip: &Hip, ordinal: usize, call: &'static str, code: HipError) -> Error {
    let (name, description) = describe(hip, code);
    Error::Hip {
        call,
        ordinal,
        code,
        name,
        description,
    }
}

/// HIP's name and description of a status; also clears the thread's last error, which HIP keeps.
pub(crate) fn describe(hip: &Hip, code: HipError) -> (String, String) {
    // SAFETY: HIP returns static strings for every code.
    unsafe {
        (hip.hipGetLastError)();
        (
            text((hip.hipGetErrorName)(code)),
            text((hip.hipGetErrorString)(code)),
        )
    }
}

/// Copies a C string; null gives an empty one.
///
/// # Safety
/// `ptr` is null or points to a zero-terminated string.
pub(crate) unsafe fn text(ptr: *const c_char) -> String {
    if ptr.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(ptr) }
        .to_string_lossy()
        .into_owned()
}

/// Locks, whatever happened to an earlier holder: the data guarded here is valid after any panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
