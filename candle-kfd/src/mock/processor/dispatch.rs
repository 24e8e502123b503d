//! Kernels: what the hardware checks before it starts one, and closures in their place.

use super::aql::{descriptor, error, Packet};
use super::{image, Halt, Processor, View};
use crate::mock::lock;
use crate::mock::space::{Access, Fault};
use std::collections::HashMap;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex};

/// Threads of a block at most.
const MOST_THREADS: u64 = 1024;
/// What code begins at a multiple of.
const CODE_ALIGNMENT: u64 = 256;

/// A kernel of the mock.
type Body = Arc<dyn Fn(&MockLaunch) -> Result<(), Fault> + Send + Sync>;

/// Kernels by name.
#[derive(Default)]
pub(in crate::mock) struct Kernels(Mutex<HashMap<String, Body>>);

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(lock(&self.0).keys()).finish()
    }
}

impl Kernels {
    pub fn insert(
        &self,
        name: &str,
        body: impl Fn(&MockLaunch) -> Result<(), Fault> + Send + Sync + 'static,
    ) {
        lock(&self.0).insert(name.to_string(), Arc::new(body));
    }

    fn get(&self, name: &str) -> Option<Body> {
        lock(&self.0).get(name).cloned()
    }
}

/// A launch, as a kernel of the mock sees it: all of its blocks at once.
#[derive(Debug)]
pub struct MockLaunch {
    /// The kernel's name.
    pub name: String,
    /// Threads of each dimension.
    pub threads: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// LDS of a block, in bytes.
    pub lds_bytes: u32,
    /// Scratch memory of a lane, in bytes.
    pub scratch_bytes: u32,
    /// The arguments' bytes, hidden ones included.
    pub arguments: Vec<u8>,
    /// The GPU's memory.
    pub memory: View,
}

impl MockLaunch {
    /// Blocks of each dimension, a last one that is not full included.
    pub fn blocks(&self) -> [u32; 3] {
        [0, 1, 2].map(|i| self.threads[i].div_ceil(self.block[i]))
    }

    /// The 32 bits of the arguments at an offset; 0 behind their end.
    pub fn u32(&self, at: usize) -> u32 {
        let byte = |i| u32::from(self.arguments.get(at + i).copied().unwrap_or(0));
        byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
    }

    /// The 64 bits of the arguments at an offset; 0 behind their end.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }
}

/// What of a kernel descriptor is looked at (LLVM's AMDGPUUsage, "Kernel Descriptor").
struct Descriptor {
    lds_bytes: u32,
    scratch_bytes: u32,
    argument_bytes: u32,
    entry: u64,
}

impl Processor {
    /// Runs a kernel, if the packet is one that the hardware would start.
    pub(super) fn dispatch(&self, packet: &Packet) -> Result<(), Halt> {
        let wrong = |error| Err(Halt::Packet(error));
        let dimensions = packet.u16(2) & 3;
        let block = [4, 6, 8].map(|at| u32::from(packet.u16(at)));
        let threads = [12, 16, 20].map(|at| packet.u32(at));
        if dimensions == 0 || block.contains(&0) || threads.contains(&0) {
            return wrong(error::DIMENSIONS);
        }
        let unused = usize::from(dimensions)..3;
        if block[unused.clone()]
            .iter()
            .chain(&threads[unused])
            .any(|&size| size != 1)
        {
            return wrong(error::DIMENSIONS);
        }
        if block.iter().map(|&size| u64::from(size)).product::<u64>() > MOST_THREADS {
            return wrong(error::BLOCK);
        }
        let object = packet.u64(32);
        if object == 0 || !object.is_multiple_of(64) {
            return wrong(error::CODE);
        }
        let code = self.kernel_descriptor(object)?;
        if !code.entry.is_multiple_of(CODE_ALIGNMENT) {
            return wrong(error::CODE);
        }
        self.view.check(code.entry, 64, Access::Execute)?;
        let lds_bytes = packet.u32(28);
        if lds_bytes < code.lds_bytes || lds_bytes > self.model(|model| model.lds_size_in_kb) << 10
        {
            return wrong(error::GROUP_MEMORY);
        }
        let scratch_bytes = packet.u32(24);
        if scratch_bytes < code.scratch_bytes {
            self.complain("a packet has less scratch memory than its kernel needs");
            return wrong(error::SCRATCH);
        }
        if scratch_bytes > 0 {
            self.check_scratch(scratch_bytes)?;
        }
        // Before so much is set aside: a damaged descriptor may say anything.
        let bytes = u64::from(code.argument_bytes);
        self.view.check(packet.u64(40), bytes, Access::Read)?;
        let mut arguments = vec![0; code.argument_bytes as usize];
        self.view.read(packet.u64(40), &mut arguments)?;
        // The hardware knows no names: what is wrong with the image's own tables is none of its faults.
        let Ok(Some(name)) = image::kernel_name(&self.view, object) else {
            self.complain(&format!("there is no kernel's symbol at {object:#x}"));
            return wrong(error::CODE);
        };
        let Some(body) = self.shared.kernels.get(&name) else {
            self.complain(&format!("the mock has no kernel {name}"));
            return wrong(error::INSTRUCTION);
        };
        let launch = MockLaunch {
            name,
            threads,
            block,
            lds_bytes,
            scratch_bytes,
            arguments,
            memory: self.view.clone(),
        };
        match catch_unwind(AssertUnwindSafe(|| body(&launch))) {
            Ok(outcome) => Ok(outcome?),
            Err(_) => {
                self.complain(&format!("the mock's kernel {} panicked", launch.name));
                wrong(error::INSTRUCTION)
            }
        }
    }

    fn kernel_descriptor(&self, object: u64) -> Result<Descriptor, Halt> {
        let mut bytes = [0; 64];
        self.view.read(object, &mut bytes)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let entry = u64::from(word(16)) | u64::from(word(20)) << 32;
        Ok(Descriptor {
            lds_bytes: word(0),
            scratch_bytes: word(4),
            argument_bytes: word(8),
            entry: object.wrapping_add(entry),
        })
    }

    fn model<T>(&self, of: impl Fn(&crate::mock::model::Model) -> T) -> T {
        of(&lock(&self.shared.state).gpus[self.settings.gpu]
            .described
            .model)
    }

    /// Whether the queue has scratch memory for lanes that need so much: `COMPUTE_TMPRING_SIZE` says how many waves have
    /// how much, in steps of 1 KiB, or 256 bytes from gfx11 on, where it counts the waves of a shader engine.
    fn check_scratch(&self, lane_bytes: u32) -> Result<(), Halt> {
        let at = self.descriptor()?;
        let ring = u64::from(self.view.load32(at + descriptor::RING_SIZE_OF_SCRATCH)?);
        let backing = self.view.load64(at + descriptor::SCRATCH)?;
        let of_lane = self.view.load32(at + descriptor::SCRATCH_PER_LANE)?;
        let (version, lanes, engines, dies) = self.model(|model| {
            let engines = model.array_count / model.simd_arrays_per_engine;
            (
                model.gfx_target_version,
                model.wave_front_size,
                engines,
                model.num_xcc,
            )
        });
        let newer = version >= 110_000;
        let (step, wave_mask) = match version / 10_000 {
            12.. => (256, 0x3ffff),
            11 => (256, 0x7fff),
            _ => (1024, 0x1fff),
        };
        let waves = ring & 0xfff;
        let wave_bytes = (ring >> 12 & wave_mask) * step;
        if waves == 0
            || lane_bytes > of_lane
            || u64::from(lane_bytes) * u64::from(lanes) > wave_bytes
        {
            return Err(Halt::Packet(error::SCRATCH));
        }
        let sharers = if newer { engines } else { dies };
        self.view.check(
            backing,
            waves * wave_bytes * u64::from(sharers),
            Access::Write,
        )?;
        Ok(())
    }
}
