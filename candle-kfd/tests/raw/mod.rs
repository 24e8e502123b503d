//! The mock by requests alone, without this crate's own layers.

#![allow(dead_code)] // each test file uses some of it

pub mod bench;
pub mod packet;

use candle_kfd::driver::{Driver, Errno};
use candle_kfd::mock::Mock;
use candle_kfd::uapi::*;
use candle_kfd::Error;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Makes a request, and returns what the driver made of it.
pub fn ask<R: Request>(mock: &Arc<Mock>, mut request: R) -> Result<R, i32> {
    let driver: &dyn Driver = &**mock;
    // SAFETY: addresses in these tests' requests are those of live arrays, or null.
    match unsafe { driver.request(&mut request) } {
        Ok(()) => Ok(request),
        Err(Error::Ioctl {
            errno: Errno(errno),
            ..
        }) => Err(errno),
        Err(other) => panic!("{other}"),
    }
}

/// A GPU of the mock with addresses for this process.
pub struct Opened {
    pub mock: Arc<Mock>,
    pub id: u32,
    pub render: File,
}

pub const KEEP: u32 = flags::WRITABLE | flags::NO_SUBSTITUTE;

impl Opened {
    pub fn new(mock: &Arc<Mock>, index: u32) -> Self {
        let mut apertures = [DeviceApertures::default(); 8];
        let request = GetProcessAperturesNew {
            kfd_process_device_apertures_ptr: apertures.as_mut_ptr() as u64,
            num_of_nodes: 8,
            pad: 0,
        };
        assert!(ask(mock, request).unwrap().num_of_nodes > index);
        let id = apertures[index as usize].gpu_id;
        let render = mock.open_render(128 + index).unwrap();
        let drm_fd = render.as_raw_fd() as u32;
        ask(mock, AcquireVm { drm_fd, gpu_id: id }).unwrap();
        Opened {
            mock: Arc::clone(mock),
            id,
            render,
        }
    }

    pub fn alloc(&self, va_addr: u64, size: u64, flags: u32) -> Result<AllocMemoryOfGpu, i32> {
        ask(
            &self.mock,
            AllocMemoryOfGpu {
                va_addr,
                size,
                gpu_id: self.id,
                flags,
                ..Default::default()
            },
        )
    }

    pub fn map(&self, handle: u64, gpus: &[u32]) -> Result<MapMemoryToGpu, i32> {
        ask(
            &self.mock,
            MapMemoryToGpu {
                handle,
                device_ids_array_ptr: gpus.as_ptr() as u64,
                n_devices: gpus.len() as u32,
                n_success: 0,
            },
        )
    }

    pub fn unmap(&self, handle: u64, gpus: &[u32]) -> Result<UnmapMemoryFromGpu, i32> {
        ask(
            &self.mock,
            UnmapMemoryFromGpu {
                handle,
                device_ids_array_ptr: gpus.as_ptr() as u64,
                n_devices: gpus.len() as u32,
                n_success: 0,
            },
        )
    }

    pub fn free(&self, handle: u64) -> Result<FreeMemoryOfGpu, i32> {
        ask(&self.mock, FreeMemoryOfGpu { handle })
    }

    pub fn available(&self) -> u64 {
        ask(
            &self.mock,
            GetAvailableMemory {
                gpu_id: self.id,
                ..Default::default()
            },
        )
        .unwrap()
        .available
    }
}

/// Addresses that a test may map memory at.
pub struct Reserved(pub usize, usize);

impl Reserved {
    pub fn new(bytes: usize) -> Self {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Reserved(at as usize, bytes)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: the reservation is this one's.
        unsafe { libc::munmap(self.0 as *mut _, self.1) };
    }
}
