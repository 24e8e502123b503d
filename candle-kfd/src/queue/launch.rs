//! Launches: what is checked before a packet is made, and the memory of arguments that the kernel reads.

use super::packet::Dispatch;
use crate::generation::MAX_BLOCK;
use crate::gpu::Gpu;
use crate::program::Kernel;
use crate::signal::Signal;
use crate::{Error, Result};

/// Scratch of a lane for kernels whose stack has no known size, in bytes: HIP's default for `hipLimitStackSize`.
const UNKNOWN_STACK: u32 = 1024;

/// A kernel and what it is started with.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// What is run.
    pub kernel: &'a Kernel,
    /// Blocks in each dimension.
    pub blocks: [u32; 3],
    /// Threads of a block in each dimension.
    pub block: [u32; 3],
    /// LDS of a block besides what the kernel has of itself, in bytes.
    pub dynamic_lds: u32,
    /// The arguments at their offsets, without hidden ones.
    pub arguments: &'a [u8],
    /// Counted down by one when the kernel is done.
    pub completion: Option<&'a Signal>,
    /// Whether everything that was put onto the queue before is done first.
    pub barrier: bool,
}

/// What a launch needs of its queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    pub lane_bytes: u32,
    pub lds_bytes: u32,
    pub argument_bytes: usize,
}

impl Launch<'_> {
    fn refuse(&self, problem: String) -> Error {
        Error::Launch {
            kernel: self.kernel.name().to_string(),
            problem,
        }
    }

    /// Looks whether a queue of a GPU would take it, as far as sizes and arguments go.
    ///
    /// # Errors
    /// [`Error::Launch`] if not.
    pub fn validate(&self, gpu: &Gpu) -> Result<()> {
        self.check(gpu).map(drop)
    }

    /// Checks it against the kernel and the GPU.
    pub(super) fn check(&self, gpu: &Gpu) -> Result<Needs> {
        let facts = self.kernel.facts();
        if !self.kernel.program().gpu().is(gpu) {
            return Err(self.refuse("it is loaded for another GPU".to_string()));
        }
        let threads = (self.block.iter()).try_fold(1_u32, |all, &side| all.checked_mul(side));
        let most = facts.max_block.min(MAX_BLOCK);
        if threads.is_none_or(|threads| threads == 0 || threads > most) {
            let [x, y, z] = self.block;
            return Err(self.refuse(format!(
                "a block of {x}x{y}x{z}: it takes 1 to {most} threads"
            )));
        }
        if let Some(required) = facts
            .required_block
            .filter(|&required| required != self.block)
        {
            return Err(self.refuse(format!(
                "its blocks must be {required:?}, not {:?}",
                self.block
            )));
        }
        for (&blocks, &side) in self.blocks.iter().zip(&self.block) {
            if blocks == 0 || blocks.checked_mul(side).is_none() {
                return Err(self.refuse(format!(
                    "{blocks} blocks of {side} threads in a dimension: 1 to 4294967295 threads are possible"
                )));
            }
        }
        let lds = facts.lds_bytes.checked_add(self.dynamic_lds);
        let most = gpu.generation().lds_bytes;
        let Some(lds_bytes) = lds.filter(|&lds| lds <= most) else {
            return Err(self.refuse(format!(
                "{} bytes of LDS and {} more; a block has {most} at most",
                facts.lds_bytes, self.dynamic_lds
            )));
        };
        let all = facts.argument_bytes as usize;
        let ends = facts
            .arguments
            .iter()
            .map(|argument| end(argument.offset, argument.size));
        let explicit = ends.max().unwrap_or(0) as usize;
        let given = self.arguments.len();
        if given < explicit || given > all {
            return Err(self.refuse(format!("{given} bytes of arguments; it takes {explicit}")));
        }
        let mut lane_bytes = facts.scratch_bytes;
        if facts.dynamic_stack {
            lane_bytes = lane_bytes.max(UNKNOWN_STACK);
        }
        Ok(Needs {
            lane_bytes,
            lds_bytes,
            argument_bytes: all,
        })
    }

    /// The arguments with the hidden ones, which LLVM's AMDGPUUsage names in its table of argument kinds.
    pub(super) fn arguments(&self, needs: &Needs, gpu: &Gpu, queue: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; needs.argument_bytes];
        bytes[..self.arguments.len()].copy_from_slice(self.arguments);
        let apertures = gpu.apertures();
        for hidden in &self.kernel.facts().hidden_arguments {
            let dimension = |name: &str| {
                let dimension = hidden.value_kind.strip_prefix(name)?.strip_prefix('_')?;
                ["x", "y", "z"]
                    .iter()
                    .position(|&letter| letter == dimension)
            };
            let value = if let Some(at) = dimension("hidden_block_count") {
                u64::from(self.blocks[at])
            } else if let Some(at) = dimension("hidden_group_size") {
                u64::from(self.block[at])
            } else {
                match hidden.value_kind.as_str() {
                    "hidden_grid_dims" => 3,
                    "hidden_dynamic_lds_size" => u64::from(self.dynamic_lds),
                    "hidden_private_base" => apertures.scratch.0 >> 32,
                    "hidden_shared_base" => apertures.lds.0 >> 32,
                    "hidden_queue_ptr" => queue,
                    // Blocks are whole, and begin at zero.
                    "hidden_remainder_x" | "hidden_remainder_y" | "hidden_remainder_z" => 0,
                    "hidden_global_offset_x"
                    | "hidden_global_offset_y"
                    | "hidden_global_offset_z" => 0,
                    // Services of HIP's runtime for kernels that print, allocate or launch, which are not there.
                    "hidden_printf_buffer"
                    | "hidden_hostcall_buffer"
                    | "hidden_heap_v1"
                    | "hidden_default_queue"
                    | "hidden_completion_action"
                    | "hidden_multigrid_sync_arg"
                    | "hidden_none" => 0,
                    other => {
                        return Err(self.refuse(format!("its argument {other} is not known")));
                    }
                }
            };
            let (from, to) = (
                hidden.offset as usize,
                end(hidden.offset, hidden.size) as usize,
            );
            let room = bytes.get_mut(from..to).filter(|room| room.len() <= 8);
            let Some(room) = room else {
                return Err(self.refuse(format!("its argument {} has no place", hidden.value_kind)));
            };
            room.copy_from_slice(&value.to_le_bytes()[..to - from]);
        }
        Ok(bytes)
    }

    pub(super) fn dispatch(&self, needs: &Needs, arguments: u64) -> Dispatch {
        let [x, y, z] = self.blocks;
        let [width, height, depth] = self.block;
        Dispatch {
            block: self.block,
            grid: [x * width, y * height, z * depth],
            lane_bytes: needs.lane_bytes,
            lds_bytes: needs.lds_bytes,
            descriptor: self.kernel.descriptor(),
            arguments,
            completion: self.completion.map_or(0, Signal::address),
            barrier: self.barrier,
        }
    }
}

fn end(offset: u32, size: u32) -> u64 {
    u64::from(offset) + u64::from(size)
}
