//! Memory that several GPUs reach: of a GPU, for its peers, and of the host, for all of them.

use crate::pinned::Pinned;
use crate::sys::hip;
use crate::sys::LoadError;
use crate::{Device, Error, Result};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether a GPU can read and write another's memory, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// It can, once that is enabled; a GPU reaches its own memory in any case.
    Possible,
    /// HIP says that it cannot.
    Refused,
    /// This HIP lacks the function of that name.
    Unknown(&'static str),
}

impl Device {
    /// Whether this device's GPU can read and write the memory of another's. It may be so in one direction only.
    ///
    /// # Errors
    /// HIP's.
    pub fn can_access_peer(&self, other: &Device) -> Result<PeerAccess> {
        if self.ordinal() == other.ordinal() {
            return Ok(PeerAccess::Possible);
        }
        self.enter()?;
        let gpu = self.gpu();
        let Some(can) = gpu.hip.hipDeviceCanAccessPeer else {
            return Ok(PeerAccess::Unknown("hipDeviceCanAccessPeer"));
        };
        let mut answer: c_int = 0;
        // SAFETY: `answer` receives a number.
        let status = unsafe {
            can(
                &mut answer,
                self.ordinal() as c_int,
                other.ordinal() as c_int,
            )
        };
        gpu.check("hipDeviceCanAccessPeer", status)?;
        match answer {
            0 => Ok(PeerAccess::Refused),
            _ => Ok(PeerAccess::Possible),
        }
    }

    /// Lets this device's GPU read and write the memory of another's from now on, in this process. That it was enabled
    /// before is no error.
    ///
    /// # Errors
    /// HIP's, if there is no such access; [`Error::Load`] if this HIP lacks the function.
    pub fn enable_peer_access(&self, other: &Device) -> Result<()> {
        if self.ordinal() == other.ordinal() {
            return Ok(());
        }
        self.enter()?;
        let gpu = self.gpu();
        let symbol = "hipDeviceEnablePeerAccess";
        let Some(enable) = gpu.hip.hipDeviceEnablePeerAccess else {
            return Err(Error::Load(LoadError::MissingSymbol {
                path: hip::Hip::get()?.path.clone(),
                symbol,
                tried: Vec::new(),
            }));
        };
        // SAFETY: no pointers; this device is the thread's current one.
        let status = unsafe { enable(other.ordinal() as c_int, 0) };
        if status == hip::ERROR_PEER_ACCESS_ALREADY_ENABLED {
            // SAFETY: clears the thread's last error, which nobody else should see.
            unsafe { (gpu.hip.hipGetLastError)() };
            return Ok(());
        }
        gpu.check(symbol, status)
    }

    /// Memory of this GPU that its peers may read and write while kernels run, filled with zero bytes, of which there is
    /// at least one. It is past the caches where HIP has such memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no bytes, and HIP's.
    pub fn alloc_for_peers(&self, bytes: usize) -> Result<PeerBuffer> {
        self.enter()?;
        self.check_not_capturing(
            "alloc_for_peers",
            "memory is zeroed at once; allocate before",
        )?;
        if bytes == 0 {
            return Err(Error::InvalidArgument {
                op: "alloc_for_peers",
                reason: "there is no memory of no bytes".to_string(),
            });
        }
        let mut allocated = self.try_alloc_for_peers(bytes);
        if allocated.is_err() {
            // What allocators on this GPU keep for later.
            self.gpu().caches.empty();
            allocated = self.try_alloc_for_peers(bytes);
        }
        let buffer = PeerBuffer {
            device: self.clone(),
            ptr: allocated?,
            bytes,
        };
        let (gpu, stream) = (self.gpu(), self.stream());
        // SAFETY: the memory has so many bytes.
        let status = unsafe { (gpu.hip.hipMemsetAsync)(buffer.ptr, 0, bytes, stream.as_raw()) };
        gpu.check("hipMemsetAsync", status)?;
        stream.wait_idle()?;
        Ok(buffer)
    }

    /// By the first kind of memory that HIP has and gives.
    fn try_alloc_for_peers(&self, bytes: usize) -> Result<*mut c_void> {
        let gpu = self.gpu();
        let mut ptr = ptr::null_mut();
        if let Some(with_flags) = gpu.hip.hipExtMallocWithFlags {
            for flags in [hip::DEVICE_MALLOC_UNCACHED, hip::DEVICE_MALLOC_FINE_GRAINED] {
                // SAFETY: `ptr` receives the address.
                if unsafe { with_flags(&mut ptr, bytes, flags) } == hip::SUCCESS {
                    return Ok(ptr);
                }
                // SAFETY: clears the thread's last error, which nobody else should see.
                unsafe { (gpu.hip.hipGetLastError)() };
            }
        }
        // SAFETY: as above.
        let status = unsafe { (gpu.hip.hipMalloc)(&mut ptr, bytes) };
        gpu.check("hipMalloc", status)?;
        Ok(ptr)
    }

    /// Words of the host's memory that every GPU reaches while kernels run, all 0; there is at least one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no words; HIP's, if the host has no such memory.
    pub fn alloc_host_words(&self, count: usize) -> Result<HostWords> {
        self.enter()?;
        if count == 0 {
            return Err(Error::InvalidArgument {
                op: "alloc_host_words",
                reason: "there is no memory of no words".to_string(),
            });
        }
        let memory = Pinned::new(self.gpu(), count * size_of::<u64>())?;
        let words = HostWords { memory, count };
        words
            .words()
            .iter()
            .for_each(|w| w.store(0, Ordering::SeqCst));
        Ok(words)
    }
}

/// Memory of a GPU that its peers read and write by its address, which is the same for all devices of the process. It
/// does not come from the device's allocator, so no other work on the device is ordered behind giving it back: whoever
/// drops it has waited for all devices that use it.
#[derive(Debug)]
pub struct PeerBuffer {
    device: Device,
    ptr: *mut c_void,
    bytes: usize,
}

// SAFETY: the pointer is only dereferenced by devices.
unsafe impl Send for PeerBuffer {}
// SAFETY: as above.
unsafe impl Sync for PeerBuffer {}

impl PeerBuffer {
    /// Its address on every device.
    pub fn address(&self) -> u64 {
        self.ptr as u64
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the size is 0, which it never is.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The device whose GPU has the memory.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for PeerBuffer {
    fn drop(&mut self) {
        let gpu = self.device.gpu();
        let freed = gpu.bind().and_then(|()| {
            self.device.stream().wait_idle()?;
            // SAFETY: ours, and nobody uses it any more, as owners promise.
            let status = unsafe { (gpu.hip.hipFree)(self.ptr) };
            gpu.check("hipFree", status)
        });
        gpu.defer(freed);
    }
}

/// Words of the host's memory that all GPUs and the host read and write, each word whole. Whoever drops it has waited for
/// all devices that use it.
#[derive(Debug)]
pub struct HostWords {
    memory: Pinned,
    count: usize,
}

// SAFETY: the host reads and writes the words as atomics.
unsafe impl Sync for HostWords {}

impl HostWords {
    /// Its address on every device.
    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words were allocated, aligned to a page; they are accessed as atomics by the host, and by
        // devices whole.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.count) }
    }
}
