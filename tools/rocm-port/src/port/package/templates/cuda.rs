//! The part of candle's CUDA back end and of cudarc that host code of kernels uses, on candle's ROCm back end. Written by
//! rocm-port.

// What the crate does not use of it is not worth a warning.
#![allow(dead_code, unused_imports)]

use super::support::bind;
use candle::backend::BackendStorage;
use candle::rocm_backend::candle_rocm::Buffer;
use candle::{Result, RocmDevice, RocmStorage, WithDType};
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// Types that a slice may have.
pub trait CudaDType: WithDType {}
impl<T: WithDType> CudaDType for T {}

/// Results of the driver as candle's: here they are candle's.
pub trait WrapErr<T> {
    /// The result itself.
    ///
    /// # Errors
    /// As before.
    fn w(self) -> Result<T>;
}

impl<T> WrapErr<T> for Result<T> {
    fn w(self) -> Result<T> {
        self
    }
}

/// Elements that were allocated by [`Alloc`].
pub struct CudaSlice<T> {
    buffer: Buffer,
    count: usize,
    address: u64,
    kind: PhantomData<T>,
}

/// Elements of a tensor or of a slice.
pub struct CudaView<'a, T> {
    buffer: &'a Buffer,
    start: usize,
    count: usize,
    address: u64,
    kind: PhantomData<T>,
}

impl<T> CudaSlice<T> {
    fn new(buffer: Buffer, count: usize) -> Self {
        bind(buffer.device());
        CudaSlice {
            address: buffer.as_ptr() as u64,
            buffer,
            count,
            kind: PhantomData,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Some of the elements.
    ///
    /// # Panics
    /// If the range is outside, as cudarc's does.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> CudaView<'_, T> {
        CudaView::new(&self.buffer, 0, self.count).slice(range)
    }
}

impl<'a, T> CudaView<'a, T> {
    fn new(buffer: &'a Buffer, start: usize, count: usize) -> Self {
        bind(buffer.device());
        CudaView {
            buffer,
            start,
            count,
            address: buffer.as_ptr().wrapping_byte_add(start * size_of::<T>()) as u64,
            kind: PhantomData,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Some of the elements.
    ///
    /// # Panics
    /// If the range is outside, as cudarc's does.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> CudaView<'a, T> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.count,
        };
        assert!(start <= end && end <= self.count, "{start}..{end} of {} elements", self.count);
        CudaView::new(self.buffer, self.start + start, end - start)
    }
}

/// Slices of a storage's own type.
pub trait AsSlice {
    /// Its elements.
    ///
    /// # Errors
    /// Another dtype.
    fn as_cuda_slice<T: WithDType>(&self) -> Result<CudaView<'_, T>>;

    /// A storage of elements that were allocated by [`Alloc`].
    fn wrap_cuda_slice<T: WithDType>(slice: CudaSlice<T>, device: RocmDevice) -> Self;
}

impl AsSlice for RocmStorage {
    fn as_cuda_slice<T: WithDType>(&self) -> Result<CudaView<'_, T>> {
        if self.dtype() != T::DTYPE {
            candle::bail!("unexpected dtype, expected: {:?}, got: {:?}", T::DTYPE, self.dtype())
        }
        Ok(CudaView::new(self.buffer(), 0, self.elem_count()))
    }

    fn wrap_cuda_slice<T: WithDType>(slice: CudaSlice<T>, device: RocmDevice) -> Self {
        RocmStorage::new(slice.buffer, device, T::DTYPE, slice.count)
    }
}

/// Allocation on a device.
pub trait Alloc {
    /// Uninitialised elements.
    ///
    /// # Safety
    /// They are written before they are read.
    ///
    /// # Errors
    /// Not enough memory.
    unsafe fn alloc<T>(&self, count: usize) -> Result<CudaSlice<T>>;

    /// Elements of zeros.
    ///
    /// # Errors
    /// Not enough memory.
    fn alloc_zeros<T>(&self, count: usize) -> Result<CudaSlice<T>>;
}

impl Alloc for RocmDevice {
    unsafe fn alloc<T>(&self, count: usize) -> Result<CudaSlice<T>> {
        let buffer = self.device().alloc(count * size_of::<T>()).map_err(candle::Error::wrap)?;
        Ok(CudaSlice::new(buffer, count))
    }

    fn alloc_zeros<T>(&self, count: usize) -> Result<CudaSlice<T>> {
        let buffer = self.device().alloc_zeroed(count * size_of::<T>()).map_err(candle::Error::wrap)?;
        Ok(CudaSlice::new(buffer, count))
    }
}

/// Names of cudarc.
pub mod cudarc {
    /// Names of its driver.
    pub mod driver {
        pub use super::super::{Alloc, AsSlice, CudaSlice, CudaView};

        /// Types that a kernel may take.
        pub trait DeviceRepr {}
        impl<T> DeviceRepr for T {}

        /// Addresses of slices.
        pub trait DevicePtr<T> {
            /// The address of the first element.
            fn device_ptr(&self) -> &u64;
        }

        impl<T> DevicePtr<T> for CudaSlice<T> {
            fn device_ptr(&self) -> &u64 {
                &self.address
            }
        }

        impl<T> DevicePtr<T> for CudaView<'_, T> {
            fn device_ptr(&self) -> &u64 {
                &self.address
            }
        }

        pub use DevicePtr as DevicePtrMut;
    }
}
