//! Programs: code objects in a GPU's memory.

use crate::gpu::Gpu;
use crate::memory::{Kind, Memory};
use crate::{Error, Result};
use code_object::{CodeObject, Image, Setting, TargetId, IMAGE_ALIGNMENT};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::Arc;

/// Bytes of a kernel's descriptor.
const DESCRIPTOR_BYTES: u64 = 64;
/// `HSA_CAP_SRAM_EDCSUPPORTED` of the kernel's `kfd_sysfs.h`.
const CAPABILITY_SRAM_ECC: u32 = 0x0400_0000;

/// Counts programs, so that queues know which one they have not seen.
static LOADED: AtomicU64 = AtomicU64::new(0);

/// A code object in a GPU's memory.
///
/// Whoever launches its kernels keeps it until they are done: a [`Kernel`] holds it, a launch on its own does not.
#[derive(Debug)]
pub struct Program {
    object: CodeObject,
    memory: Memory,
    symbols: HashMap<String, code_object::Symbol>,
    /// How many programs had been loaded before, in this process.
    order: u64,
}

impl Program {
    /// Loads a code object: an ELF file for this GPU, not a bundle, which `code_object` unpacks.
    ///
    /// # Errors
    /// [`Error::CodeObject`] if the file is corrupt or not linked, [`Error::Target`] if it is for another GPU, those of
    /// [`Gpu::allocate`].
    pub fn load(gpu: &Arc<Gpu>, file: &[u8]) -> Result<Arc<Program>> {
        let corrupt = |error: code_object::Error| Error::CodeObject {
            problem: error.to_string(),
        };
        let (object, image) = code_object::load(file).map_err(corrupt)?;
        let target = target(gpu);
        if !object.target.runs_on(&target) {
            return Err(Error::Target {
                object: object.target.to_string(),
                gpu: target.to_string(),
            });
        }
        let memory = gpu.allocate(image.bytes(), Kind::Executable)?;
        let symbols = check(&object, &image)?;
        if !memory.address().is_multiple_of(IMAGE_ALIGNMENT) {
            return Err(Error::Alignment {
                address: memory.address(),
                alignment: IMAGE_ALIGNMENT,
            });
        }
        let bytes = image.at(memory.address());
        let host = memory.host().ok_or_else(|| Error::NotVisible {
            gpu: gpu.node().pci_id.clone(),
        })?;
        host.write(0, &bytes)?;
        // Writes through the GPU's window have arrived when a read behind them returns.
        fence(Ordering::SeqCst);
        let mut last = [0];
        host.read(bytes.len() - 1, &mut last)?;
        Ok(Arc::new(Program {
            object,
            memory,
            symbols,
            order: LOADED.fetch_add(1, Ordering::Relaxed),
        }))
    }

    /// What the file says of itself.
    pub fn object(&self) -> &CodeObject {
        &self.object
    }

    /// The GPU in whose memory it is.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.memory.gpu()
    }

    /// A kernel by its name.
    ///
    /// # Errors
    /// [`Error::NoKernel`] with the names that there are.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel> {
        let index = self
            .object
            .kernels
            .iter()
            .position(|kernel| kernel.name == name);
        let index = index.ok_or_else(|| Error::NoKernel {
            name: name.to_string(),
            there: self
                .object
                .kernels
                .iter()
                .map(|kernel| kernel.name.clone())
                .collect(),
        })?;
        let symbol = &self.object.kernels[index].symbol;
        Ok(Kernel {
            // `check` has seen that there is one.
            descriptor: self.symbol(symbol).map_or(0, |(address, _)| address),
            name: Arc::from(name),
            program: self.clone(),
            index,
        })
    }

    /// Address and size of a variable, or of what else has a symbol.
    pub fn symbol(&self, name: &str) -> Option<(u64, usize)> {
        let symbol = self.symbols.get(name)?;
        Some((self.memory.address() + symbol.offset, symbol.bytes as usize))
    }

    /// The memory, for copies of variables.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn order(&self) -> u64 {
        self.order
    }
}

/// Checks that every kernel has its descriptor, and returns the symbols.
fn check(object: &CodeObject, image: &Image<'_>) -> Result<HashMap<String, code_object::Symbol>> {
    for kernel in &object.kernels {
        let descriptor = image.symbol(&kernel.symbol);
        if !descriptor.is_some_and(|symbol| {
            symbol.offset.is_multiple_of(DESCRIPTOR_BYTES)
                && symbol.offset + DESCRIPTOR_BYTES <= image.bytes() as u64
        }) {
            return Err(Error::CodeObject {
                problem: format!("the descriptor of {} is out of place", kernel.name),
            });
        }
    }
    Ok(image
        .symbols()
        .map(|(name, symbol)| (name.to_string(), symbol))
        .collect())
}

/// What code must be made for. Waves do not go on after page faults unless a process asks the driver for that, which this
/// crate does not.
fn target(gpu: &Gpu) -> TargetId {
    let node = gpu.node();
    let mut target = gpu.generation().target();
    if ["gfx90a", "gfx942", "gfx950"].contains(&target.processor()) {
        target.xnack = Some(Setting::Off);
        if node.capability & CAPABILITY_SRAM_ECC != 0 {
            target.sramecc = Some(Setting::On);
        }
    }
    target
}

/// A kernel of a program.
#[derive(Clone)]
pub struct Kernel {
    program: Arc<Program>,
    index: usize,
    name: Arc<str>,
    descriptor: u64,
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What the code object says of it.
    pub fn facts(&self) -> &code_object::Kernel {
        &self.program.object.kernels[self.index]
    }

    /// The program that it is of.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The address of its descriptor.
    pub fn descriptor(&self) -> u64 {
        self.descriptor
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} at {:#x})", self.name, self.descriptor)
    }
}
