//! What launchers need: the current device, addresses, errors. Written by rocm-port.

#![allow(dead_code)]

use candle::rocm_backend::candle_rocm::{Buffer, Device};
use std::cell::RefCell;
use std::ffi::c_void;

pub use candle::rocm_backend::candle_rocm::Args;
pub use candle::Result;

thread_local! {
    /// Where launches of this thread go, as a CUDA context is kept for a thread.
    static CURRENT: RefCell<Option<Device>> = const { RefCell::new(None) };
}

/// Makes a device the one that launches of this thread go to. Taking the address of a tensor or buffer does so, too.
pub fn bind(device: &Device) {
    CURRENT.with(|current| *current.borrow_mut() = Some(device.clone()));
}

fn current() -> Result<Device> {
    let device = CURRENT.with(|current| current.borrow().clone());
    device.ok_or_else(|| failed("no ROCm device is bound to this thread: see rocm::support::bind"))
}

/// What can be passed for an address: raw pointers, device addresses as numbers, and buffers with an offset in bytes.
pub trait Address {
    /// The address on the device.
    ///
    /// # Errors
    /// An offset that is outside of the buffer.
    fn address(&self) -> Result<*const c_void>;
}

impl<T> Address for *const T {
    fn address(&self) -> Result<*const c_void> {
        Ok(self.cast())
    }
}

impl<T> Address for *mut T {
    fn address(&self) -> Result<*const c_void> {
        Ok(self.cast_const().cast())
    }
}

impl Address for u64 {
    fn address(&self) -> Result<*const c_void> {
        Ok(*self as *const c_void)
    }
}

impl Address for (&Buffer, usize) {
    fn address(&self) -> Result<*const c_void> {
        let (buffer, offset) = *self;
        if offset > buffer.len() {
            let bytes = buffer.len();
            return Err(failed(&format!("offset {offset} is outside of a buffer of {bytes} bytes")));
        }
        bind(buffer.device());
        Ok(buffer.as_ptr().wrapping_byte_add(offset).cast_const())
    }
}

/// Compute units of the current device: what CUDA calls multiprocessors.
///
/// # Errors
/// No current device.
pub fn compute_units() -> Result<u32> {
    Ok(current()?.properties().compute_units)
}

/// The outcome of a division that C++ would have done without asking.
///
/// # Errors
/// A division by zero.
pub fn divided<T>(outcome: Option<T>) -> Result<T> {
    outcome.ok_or_else(|| failed("the launcher divides by zero"))
}

/// An error in words.
pub fn failed(what: &str) -> candle::Error {
    candle::Error::Msg(what.to_string())
}

/// Enqueues an entry of a unit on the current device's stream.
///
/// # Safety
/// The arguments are those of the entry, and with this grid and block it reads and writes inside of what they point to.
///
/// # Errors
/// No current device, an impossible launch, or a kernel that does not compile.
pub unsafe fn launch(
    source: &str,
    entry: &str,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    args: &Args,
) -> Result<()> {
    let kernel = current()?.custom_kernel(source, entry).map_err(candle::Error::wrap)?;
    // SAFETY: as the caller promises.
    unsafe { kernel.launch_dims(grid, block, shared_bytes, args) }.map_err(candle::Error::wrap)
}
