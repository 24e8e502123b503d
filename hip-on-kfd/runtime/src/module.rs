//! Code objects on a device, their kernels, and calls of these.

use crate::device::Device;
use candle_kfd::{Kernel, Launch, Program};
use hip_abi::error::{HipError, HipResult};
use std::ffi::c_void;
use std::sync::Arc;

/// A loaded code object.
pub(crate) struct Module {
    pub device: &'static Device,
    program: Arc<Program>,
}

impl Module {
    /// Loads a code object.
    pub fn load(device: &'static Device, object: &[u8]) -> HipResult<Self> {
        let program = Program::load(&device.gpu, object);
        let program = program.map_err(|error| device.failed(error))?;
        Ok(Module { device, program })
    }

    /// A kernel by its name.
    pub fn function(self: &Arc<Self>, name: &str) -> HipResult<Function> {
        let kernel = self.program.kernel(name).map_err(|_| HipError::NotFound)?;
        Ok(Function {
            module: self.clone(),
            kernel,
        })
    }
}

/// A kernel.
pub(crate) struct Function {
    pub module: Arc<Module>,
    kernel: Kernel,
}

impl Function {
    /// The arguments as the kernel reads them, from pointers to each.
    ///
    /// # Safety
    /// `params` has a pointer for each argument, to as many bytes as the kernel says.
    pub unsafe fn pack(&self, params: *const *const c_void) -> HipResult<Vec<u8>> {
        let arguments = &self.kernel.facts().arguments;
        if params.is_null() {
            return match arguments.is_empty() {
                true => Ok(Vec::new()),
                false => Err(HipError::InvalidValue),
            };
        }
        let end = |argument: &code_object::Argument| {
            (argument.offset as usize).saturating_add(argument.size as usize)
        };
        let bytes = arguments.iter().map(end).max().unwrap_or(0);
        if bytes > self.kernel.facts().argument_bytes as usize {
            return Err(HipError::InvalidImage);
        }
        let mut packed = vec![0u8; bytes];
        for (index, argument) in arguments.iter().enumerate() {
            // SAFETY: there is a pointer for each argument.
            let from = unsafe { *params.add(index) };
            if from.is_null() {
                return Err(HipError::InvalidValue);
            }
            let place = &mut packed[argument.offset as usize..end(argument)];
            // SAFETY: as many bytes as the kernel says.
            place.copy_from_slice(unsafe { std::slice::from_raw_parts(from.cast(), place.len()) });
        }
        Ok(packed)
    }
}

/// A kernel with all that a launch says.
#[derive(Clone)]
pub(crate) struct Call {
    pub function: Arc<Function>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub arguments: Vec<u8>,
}

impl Call {
    /// The launch: after what is before it in the queue.
    pub fn launch(&self) -> Launch<'_> {
        Launch {
            kernel: &self.function.kernel,
            blocks: self.grid,
            block: self.block,
            dynamic_lds: self.shared_bytes,
            arguments: &self.arguments,
            completion: None,
            barrier: true,
        }
    }
}
