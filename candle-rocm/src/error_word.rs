//! How kernels report an index that is out of range.
//!
//! A kernel cannot return an error. Those that take indices get the address of a 16-byte word, an [`IndexError`], zero
//! as long as all is well; the first thread to meet a bad index sets `op` by compare-and-swap and stores the index and
//! the indexed dimension's size. When the host next waits for the device, the word travels along.

use crate::gpu::Gpu;
use crate::pinned::Pinned;
use crate::sync::lock;
use crate::sys::hip;
use crate::{Error, Result, Stream};
use candle_rocm_kernels::shared::index_error::IndexError;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Operations that take indices; the value is what their kernels store in the error word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)] // the operations of `ops::indexing` and `ops::moe`
pub enum IndexOp {
    IndexSelect = 1,
    Gather = 2,
    ScatterSet = 3,
    ScatterAdd = 4,
    IndexAdd = 5,
    MoeGemm = 6,
    IndexedMoe = 7,
}

impl IndexOp {
    /// Every operation.
    pub const ALL: [IndexOp; 7] = [
        IndexOp::IndexSelect,
        IndexOp::Gather,
        IndexOp::ScatterSet,
        IndexOp::ScatterAdd,
        IndexOp::IndexAdd,
        IndexOp::MoeGemm,
        IndexOp::IndexedMoe,
    ];

    /// Name for messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            IndexOp::IndexSelect => "index-select",
            IndexOp::Gather => "gather",
            IndexOp::ScatterSet => "scatter",
            IndexOp::ScatterAdd => "scatter-add",
            IndexOp::IndexAdd => "index-add",
            IndexOp::MoeGemm => "moe-gemm",
            IndexOp::IndexedMoe => "indexed-moe",
        }
    }
}

/// Bytes of the word.
pub(crate) const BYTES: usize = size_of::<IndexError>();

/// The error word of one device.
#[derive(Debug)]
pub(crate) struct ErrorWord {
    gpu: &'static Gpu,
    ptr: *mut c_void,
    /// Whether a kernel that may set the word was launched since it was last looked at.
    armed: AtomicBool,
    /// Where the word is copied to; locked while a copy is on its way.
    host: Mutex<Pinned>,
}

// SAFETY: the device pointer is only dereferenced by the device.
unsafe impl Send for ErrorWord {}
// SAFETY: as above; the host copy is behind a mutex.
unsafe impl Sync for ErrorWord {}

impl ErrorWord {
    pub fn new(gpu: &'static Gpu, stream: &Stream) -> Result<Self> {
        let host = Mutex::new(Pinned::new(gpu, BYTES)?);
        let mut ptr = ptr::null_mut();
        // SAFETY: `ptr` receives the address.
        let status = unsafe { (gpu.hip.hipMalloc)(&mut ptr, BYTES) };
        gpu.check("hipMalloc", status)?;
        let word = ErrorWord {
            gpu,
            ptr,
            armed: AtomicBool::new(false),
            host,
        };
        word.clear(stream)?;
        Ok(word)
    }

    pub fn ptr(&self) -> *mut c_void {
        self.ptr
    }

    /// To be called after a kernel that may set the word was enqueued.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::Release);
    }

    /// Sets whether the word has to be looked at; gives whether it had to be.
    pub fn set_armed(&self, armed: bool) -> bool {
        self.armed.swap(armed, Ordering::AcqRel)
    }

    fn clear(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the word is ours.
        let status = unsafe { (self.gpu.hip.hipMemsetAsync)(self.ptr, 0, BYTES, stream.as_raw()) };
        self.gpu.check("hipMemsetAsync", status)
    }

    /// Enqueues fetching and clearing the word, if it may be set. The caller waits for the stream, then
    /// calls `finish`.
    pub fn fetch(&self, stream: &Stream) -> Result<Option<Fetch<'_>>> {
        if !self.armed.swap(false, Ordering::AcqRel) {
            return Ok(None);
        }
        let host = lock(&self.host);
        // SAFETY: both sides have room for the word.
        let status = unsafe {
            (self.gpu.hip.hipMemcpyAsync)(
                host.as_ptr().cast(),
                self.ptr,
                BYTES,
                hip::MEMCPY_DEVICE_TO_HOST,
                stream.as_raw(),
            )
        };
        self.gpu.check("hipMemcpyAsync (device to host)", status)?;
        self.clear(stream)?;
        Ok(Some(Fetch { host }))
    }
}

impl Drop for ErrorWord {
    fn drop(&mut self) {
        let freed = self.gpu.bind().and_then(|()| {
            // SAFETY: ours, and the stream is idle when a device is dropped.
            let status = unsafe { (self.gpu.hip.hipFree)(self.ptr) };
            self.gpu.check("hipFree", status)
        });
        self.gpu.defer(freed);
    }
}

/// An error word on its way to the host.
pub(crate) struct Fetch<'a> {
    host: MutexGuard<'a, Pinned>,
}

impl Fetch<'_> {
    /// What the word says; the stream must have been waited for.
    pub fn finish(self) -> Result<()> {
        let word = self.host.as_ptr().cast::<IndexError>();
        // SAFETY: the copy into the pinned word, which has room for it and begins where a page does, is complete.
        told(&unsafe { word.read_volatile() })
    }
}

/// The error that a word tells, if it tells one.
pub(crate) fn told(word: &IndexError) -> Result<()> {
    if word.op == 0 {
        return Ok(());
    }
    let op = IndexOp::ALL.into_iter().find(|op| *op as u32 == word.op);
    Err(Error::IndexOutOfRange {
        op: op.map_or("an indexing kernel", IndexOp::as_str),
        index: word.index,
        size: word.size as usize,
    })
}
