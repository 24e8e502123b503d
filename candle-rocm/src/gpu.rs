//! A GPU as HIP has it: the library, properties, the thread's current device, errors and when they are reported.

use crate::caches::Caches;
use crate::sync::lock;
use crate::sys::hip::{self, DeviceProp, Hip, HipError};
use crate::sys::text;
use crate::{topology, DeviceProperties, Error, Result};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

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
    /// The allocators of its devices.
    pub caches: Caches,
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
    pub fn open(ordinal: usize) -> Result<Self> {
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
        Ok(Gpu {
            hip,
            ordinal,
            properties: DeviceProperties::from_raw(&raw),
            caches: Caches::default(),
            deferred: Mutex::new(None),
            has_deferred: AtomicBool::new(false),
        })
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
