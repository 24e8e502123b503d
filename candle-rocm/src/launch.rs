//! Launching kernels: how many threads, with which arguments.

use crate::gpu::describe;
use crate::module::Function;
use crate::sys::hip::{self, HipFunction};
use crate::{Buffer, Device, Error, Result};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Blocks, threads and shared memory of a launch. Kernels use one dimension only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Number of blocks. 0 launches nothing.
    pub grid: u32,
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// Threads of a block for element-wise kernels: four waves of 64 or eight of 32.
    pub const BLOCK: u32 = 256;
    /// Blocks at most for element-wise kernels. Their grid-stride loops cover the rest; on the largest
    /// GPUs (304 compute units) this still is more than 50 blocks per unit.
    pub const MAX_GRID: u32 = 16_384;

    /// One thread per element, for kernels that walk their work with a grid-stride loop.
    pub fn for_elements(count: usize) -> Self {
        let blocks = count.div_ceil(Self::BLOCK as usize);
        LaunchConfig {
            grid: blocks.min(Self::MAX_GRID as usize) as u32,
            block: Self::BLOCK,
            shared_bytes: 0,
        }
    }
}

/// A launch in three dimensions.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
}

impl From<LaunchConfig> for Shape {
    fn from(config: LaunchConfig) -> Self {
        Shape {
            grid: [config.grid, 1, 1],
            block: [config.block, 1, 1],
            shared_bytes: config.shared_bytes,
        }
    }
}

/// Blocks of a grid, or threads of a block.
fn count(dims: [u32; 3]) -> u32 {
    dims.into_iter().fold(1, u32::saturating_mul)
}

/// Largest size of all arguments together, in bytes.
const MAX_ARGUMENT_BYTES: usize = 4096;

/// Arguments of a kernel, in order, by value.
///
/// ```no_run
/// # fn f(buffer: &candle_rocm::Buffer) {
/// let args = candle_rocm::Args::new().ptr(buffer, 0).u32(16).f32(0.5);
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Args {
    /// The values, each from an 8-byte boundary.
    words: SmallVec<[MaybeUninit<u64>; 48]>,
    /// First word and size in bytes of each value.
    values: SmallVec<[(u16, u16); 16]>,
    /// Device of the buffers.
    device: Option<*const c_void>,
    /// Whether the kernel may set the device's error word.
    error_word: bool,
    fault: Option<Fault>,
}

/// Why a launch cannot have an argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    DifferentDevices,
    PointerOutOfBounds { offset: usize, bytes: usize },
    TooLarge,
}

impl Fault {
    pub fn into_error(self, kernel: &str) -> Error {
        let reason = match self {
            Fault::DifferentDevices => {
                return Error::DeviceMismatch {
                    op: "kernel launch",
                }
            }
            Fault::PointerOutOfBounds { offset, bytes } => {
                format!("byte offset {offset} is outside of a buffer of {bytes} bytes")
            }
            Fault::TooLarge => {
                format!("its arguments take more than {MAX_ARGUMENT_BYTES} bytes")
            }
        };
        Error::InvalidLaunch {
            kernel: kernel.to_string(),
            reason,
        }
    }
}

impl Args {
    /// No arguments yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The address of a buffer plus `byte_offset`. A kernel writes through it as far as it wants: the caller
    /// knows the kernel. The launch fails if the offset is outside the buffer or the buffer is of another device.
    pub fn ptr(mut self, buffer: &Buffer, byte_offset: usize) -> Self {
        if byte_offset > buffer.len() {
            self.fault.get_or_insert(Fault::PointerOutOfBounds {
                offset: byte_offset,
                bytes: buffer.len(),
            });
            return self;
        }
        let device = buffer.device().identity();
        if *self.device.get_or_insert(device) != device {
            self.fault.get_or_insert(Fault::DifferentDevices);
        }
        self.error_word |= buffer.as_ptr() == buffer.device().error_state().ptr();
        self.value(&buffer.as_ptr().wrapping_byte_add(byte_offset))
    }

    /// A 32-bit unsigned integer.
    pub fn u32(self, value: u32) -> Self {
        self.value(&value)
    }

    /// A 64-bit unsigned integer.
    pub fn u64(self, value: u64) -> Self {
        self.value(&value)
    }

    /// A 32-bit signed integer.
    pub fn i32(self, value: i32) -> Self {
        self.value(&value)
    }

    /// A 64-bit signed integer.
    pub fn i64(self, value: i64) -> Self {
        self.value(&value)
    }

    /// A 32-bit float.
    pub fn f32(self, value: f32) -> Self {
        self.value(&value)
    }

    /// A 64-bit float.
    pub fn f64(self, value: f64) -> Self {
        self.value(&value)
    }

    /// Any value that has the same layout in Rust (`repr(C)`) and in the kernel, copied now.
    pub fn value<T: Copy>(mut self, value: &T) -> Self {
        const { assert!(align_of::<T>() <= align_of::<u64>()) };
        let bytes = size_of::<T>();
        let first = self.words.len();
        let words = bytes.div_ceil(size_of::<u64>());
        if (first + words) * size_of::<u64>() > MAX_ARGUMENT_BYTES {
            self.fault.get_or_insert(Fault::TooLarge);
            return self;
        }
        self.words.resize(first + words, MaybeUninit::uninit());
        // SAFETY: the words just added have room for the value and are aligned for it; padding may stay
        // uninitialised, as `MaybeUninit` allows.
        unsafe {
            let to = self.words.as_mut_ptr().add(first).cast::<T>();
            to.copy_from_nonoverlapping(value, 1);
        }
        self.values.push((first as u16, bytes as u16));
        self
    }

    /// Size of each argument, in bytes.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.values.iter().map(|&(_, bytes)| bytes.into())
    }

    fn check(&self, device: &Device) -> std::result::Result<(), Fault> {
        match (self.fault, self.device) {
            (Some(fault), _) => Err(fault),
            (None, Some(of)) if of != device.identity() => Err(Fault::DifferentDevices),
            (None, _) => Ok(()),
        }
    }
}

/// A function on a device, ready to be launched on the device's stream. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kernel {
    device: Device,
    function: Function,
}

impl Kernel {
    pub(crate) fn new(device: &Device, function: Function) -> Self {
        Kernel {
            device: device.clone(),
            function,
        }
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.function.name
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The `hipFunction_t`, for use with other libraries.
    pub fn as_raw(&self) -> *mut c_void {
        self.function.raw
    }

    /// Enqueues the kernel on the device's stream and returns without waiting. A grid of 0 does nothing.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in number and types: only that buffers are of this device is checked
    /// here. With them and this many threads, the kernel reads and writes inside of the buffers only.
    ///
    /// # Errors
    /// [`Error::Launch`] if HIP refuses, [`Error::InvalidLaunch`] and [`Error::DeviceMismatch`] for arguments.
    pub unsafe fn launch(&self, config: LaunchConfig, args: &Args) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launch_in(config.into(), args) }
    }

    /// The same in three dimensions, for kernels that others wrote: `grid` counts blocks, `block` threads, and
    /// `shared_bytes` is the dynamic shared memory of a block. A grid with a 0 in it does nothing.
    ///
    /// # Safety
    /// As of [`Kernel::launch`].
    ///
    /// # Errors
    /// As of [`Kernel::launch`].
    pub unsafe fn launch_dims(
        &self,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        args: &Args,
    ) -> Result<()> {
        let shape = Shape {
            grid,
            block,
            shared_bytes,
        };
        // SAFETY: as the caller promises.
        unsafe { self.launch_in(shape, args) }
    }

    /// # Safety
    /// As of [`Kernel::launch`].
    unsafe fn launch_in(&self, shape: Shape, args: &Args) -> Result<()> {
        let device = &self.device;
        device.enter()?;
        args.check(device)
            .map_err(|fault| fault.into_error(self.name()))?;
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let base = args.words.as_ptr();
        let mut params: SmallVec<[*mut c_void; 16]> = args
            .values
            .iter()
            // SAFETY: `first` is an index into the words.
            .map(|&(first, _)| unsafe { base.add(first.into()) }.cast_mut().cast())
            .collect();
        let name = || self.name().to_string();
        let function = self.function.raw;
        // SAFETY: the function is loaded on this device; that the arguments are the kernel's is the caller's promise.
        unsafe { enqueue(device, function, shape, &mut params, args.error_word, &name) }
    }
}

/// Enqueues a function on the device's stream; the device is bound.
///
/// # Safety
/// The function is loaded on this device, each of `params` points to an argument of its type, and what it does with
/// them is sound.
pub(crate) unsafe fn enqueue(
    device: &Device,
    function: HipFunction,
    shape: Shape,
    params: &mut [*mut c_void],
    error_word: bool,
    name: &dyn Fn() -> String,
) -> Result<()> {
    let gpu = device.gpu();
    let error = |code: i32| {
        let (code_name, description) = describe(gpu.hip, code);
        Error::Launch {
            kernel: name(),
            arch: gpu.properties.full_arch.clone(),
            grid: count(shape.grid),
            block: count(shape.block),
            shared_bytes: shape.shared_bytes,
            code,
            name: code_name,
            description,
        }
    };
    // SAFETY: as the caller promises; HIP copies the arguments before it returns.
    let status = unsafe {
        (gpu.hip.hipModuleLaunchKernel)(
            function,
            shape.grid[0],
            shape.grid[1],
            shape.grid[2],
            shape.block[0],
            shape.block[1],
            shape.block[2],
            shape.shared_bytes,
            device.stream().as_raw(),
            params.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    };
    if status != hip::SUCCESS {
        return Err(error(status));
    }
    device.count_launch();
    if error_word {
        device.error_state().arm();
    }
    if device.config().synchronize && !device.pool().is_capturing() {
        // SAFETY: the stream is alive.
        let status = unsafe { (gpu.hip.hipStreamSynchronize)(device.stream().as_raw()) };
        if status != hip::SUCCESS {
            return Err(error(status));
        }
    }
    Ok(())
}
