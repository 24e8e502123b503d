//! candle's backend traits on AMD GPUs: [`RocmDevice`] and [`RocmStorage`] adapt [`candle_rocm`] to candle.
//!
//! Code that brings its own kernels reaches the device layer through [`RocmDevice::device`] (streams, memory, events),
//! [`RocmDevice::get_or_load_custom_kernel`], and [`RocmStorage::buffer`] or [`RocmStorage::as_ptr`].

mod device;
mod dtype;
mod error;
mod storage;

pub use candle_rocm;
pub use device::RocmDevice;
pub use error::RocmError;
pub use storage::RocmStorage;
