//! [`RocmDevice`]: an AMD GPU as candle sees it.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use candle_rocm::{Buffer, DType as DeviceDType, Device, Kernel};

use super::dtype::{bytes_of, device_dtype, host_bytes, stored_dtype};
use super::RocmStorage;
use crate::backend::BackendDevice;
use crate::{CpuStorage, DType, DeviceLocation, Result, Shape, WithDType};

/// An AMD GPU with the stream on which candle's operations run. Cheap to clone; may be shared by threads.
#[derive(Clone, Debug)]
pub struct RocmDevice {
    device: Device,
}

impl RocmDevice {
    /// The GPU with this ordinal on a stream of its own.
    pub fn new_with_stream(ordinal: usize) -> Result<Self> {
        Ok(Self {
            device: Device::new(ordinal)?,
        })
    }

    /// Wraps a device of the device layer, for example one on a stream made elsewhere.
    pub fn from_device(device: Device) -> Self {
        Self { device }
    }

    /// The device layer underneath: stream, memory, events, properties.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A kernel of your own: HIP source with an `extern "C" __global__` function `name`. Compiled for this GPU on first
    /// use, then kept in memory and on disk.
    pub fn get_or_load_custom_kernel(&self, source: &str, name: &str) -> Result<Kernel> {
        Ok(self.device.custom_kernel(source, name)?)
    }

    /// A storage over raw bytes, also for the small float formats that candle only stores.
    pub fn storage_from_bytes(&self, bytes: &[u8], dtype: DType) -> Result<RocmStorage> {
        let count = bytes.len() / dtype.size_in_bytes().max(1);
        Ok(RocmStorage::new(
            self.device.upload(bytes)?,
            self.clone(),
            dtype,
            count,
        ))
    }

    fn storage_of<T: Copy>(&self, values: &[T], dtype: DType) -> Result<RocmStorage> {
        let buffer = self.device.upload(bytes_of(values))?;
        Ok(RocmStorage::new(buffer, self.clone(), dtype, values.len()))
    }

    fn allocate(
        &self,
        shape: &Shape,
        dtype: DType,
        element: DeviceDType,
        alloc: impl FnOnce(usize) -> candle_rocm::Result<Buffer>,
    ) -> Result<RocmStorage> {
        let count = shape.elem_count();
        let bytes = count.saturating_mul(element.size_in_bytes());
        Ok(RocmStorage::new(alloc(bytes)?, self.clone(), dtype, count))
    }
}

/// The device that everybody who asks for an ordinal shares, so that their tensors can meet.
fn shared(ordinal: usize) -> Result<Device> {
    static DEVICES: OnceLock<Mutex<HashMap<usize, Device>>> = OnceLock::new();
    let mut devices = DEVICES
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = devices.get(&ordinal) {
        return Ok(device.clone());
    }
    let device = Device::new(ordinal)?;
    devices.insert(ordinal, device.clone());
    Ok(device)
}

impl BackendDevice for RocmDevice {
    type Storage = RocmStorage;

    fn new(ordinal: usize) -> Result<Self> {
        Ok(Self {
            device: shared(ordinal)?,
        })
    }

    fn location(&self) -> DeviceLocation {
        DeviceLocation::Rocm {
            gpu_id: self.device.ordinal(),
        }
    }

    fn same_device(&self, other: &Self) -> bool {
        self.device.same_device(&other.device)
    }

    fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<RocmStorage> {
        // f8e8m0 has no zero.
        let element = device_dtype(dtype, "zeros")?;
        self.allocate(shape, dtype, element, |bytes| {
            self.device.alloc_zeroed(bytes)
        })
    }

    unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<RocmStorage> {
        let element = stored_dtype(dtype, "alloc_uninit")?;
        self.allocate(shape, dtype, element, |bytes| self.device.alloc(bytes))
    }

    fn storage_from_slice<T: WithDType>(&self, values: &[T]) -> Result<RocmStorage> {
        self.storage_of(values, T::DTYPE)
    }

    fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<RocmStorage> {
        let (bytes, dtype, count) = host_bytes(storage);
        Ok(RocmStorage::new(
            self.device.upload(bytes)?,
            self.clone(),
            dtype,
            count,
        ))
    }

    fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<RocmStorage> {
        self.storage_from_cpu_storage(&storage)
    }

    fn rand_uniform(&self, shape: &Shape, dtype: DType, lo: f64, up: f64) -> Result<RocmStorage> {
        let (count, element) = (shape.elem_count(), device_dtype(dtype, "rand_uniform")?);
        let buffer = candle_rocm::ops::rand::uniform(&self.device, element, count, lo, up)?;
        Ok(RocmStorage::new(buffer, self.clone(), dtype, count))
    }

    fn rand_normal(&self, shape: &Shape, dtype: DType, mean: f64, std: f64) -> Result<RocmStorage> {
        let (count, element) = (shape.elem_count(), device_dtype(dtype, "rand_normal")?);
        let buffer = candle_rocm::ops::rand::normal(&self.device, element, count, mean, std)?;
        Ok(RocmStorage::new(buffer, self.clone(), dtype, count))
    }

    fn set_seed(&self, seed: u64) -> Result<()> {
        self.device.set_seed(seed);
        Ok(())
    }

    fn get_current_seed(&self) -> Result<u64> {
        Ok(self.device.seed())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(self.device.synchronize()?)
    }
}
