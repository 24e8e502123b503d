//! The allocator of a device: caching, over `hipMalloc` with stream-ordered reuse.
//!
//! Sizes round up to classes: multiples of 512 bytes up to 4 KiB, then eight steps per power of two, so at most an
//! eighth is wasted. Blocks up to 256 KiB are carved from 2 MiB slabs. A dropped buffer goes to its class's free list
//! at once: whoever takes it next enqueues on the same stream, behind all earlier uses. Only an exhausted device,
//! [`Device::trim`](crate::Device::trim) and the last drop of the device give memory back.
//!
//! With [`Allocation::Direct`] every buffer is an exact `hipMalloc`, for tools that check bounds.

use crate::config::Allocation;
use crate::gpu::Gpu;
use crate::sync::lock;
use crate::sys::hip;
use crate::{Error, Result, Stream};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;

const GRANULE: usize = 512;
const LINEAR_LIMIT: usize = 4096;
const SLAB_BYTES: usize = 2 << 20;
/// Largest block carved from a slab.
const SLAB_BLOCK_LIMIT: usize = 256 << 10;

/// What an allocator holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in buffers that exist, rounded up to their classes.
    pub live_bytes: usize,
    /// Buffers that exist; empty ones hold nothing and do not count.
    pub live_buffers: usize,
    /// Bytes taken from the device that no buffer uses.
    pub cached_bytes: usize,
    /// Largest `live_bytes` so far.
    pub peak_bytes: usize,
    /// `hipMalloc` calls that succeeded.
    pub device_allocations: usize,
    /// `hipFree` calls.
    pub device_frees: usize,
    /// Allocations served without `hipMalloc`.
    pub cache_hits: usize,
    /// Times that the device refused and the cache was emptied.
    pub ooms: usize,
}

/// Device memory owned by a [`Buffer`](crate::Buffer) or a free list.
#[derive(Debug)]
pub(crate) struct Block {
    pub ptr: *mut c_void,
    pub bytes: usize,
    slab: Option<usize>,
}

// SAFETY: a device pointer is a number to the host; it may move between threads.
unsafe impl Send for Block {}
// SAFETY: as above; nothing is read through a shared block.
unsafe impl Sync for Block {}

#[derive(Debug)]
struct Slab {
    ptr: *mut c_void,
    used: usize,
    live: usize,
}

// SAFETY: as for `Block`.
unsafe impl Send for Slab {}

#[derive(Debug, Default)]
struct State {
    /// Free blocks by class size.
    free: BTreeMap<usize, Vec<Block>>,
    /// Indexed by `Block::slab`; released slabs leave a hole.
    slabs: Vec<Option<Slab>>,
    /// While a graph is captured: blocks that it uses and that nobody else may get.
    captured: Option<Vec<Block>>,
    stats: MemoryStats,
}

/// The allocator of one [`Device`](crate::Device).
#[derive(Debug)]
pub(crate) struct Pool {
    gpu: &'static Gpu,
    direct: bool,
    state: Mutex<State>,
}

/// Rounds a size of at least 1 up to its class.
fn class_bytes(bytes: usize) -> usize {
    let step = if bytes <= LINEAR_LIMIT {
        GRANULE
    } else {
        1 << ((bytes - 1).ilog2() - 3)
    };
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

impl Pool {
    pub fn new(gpu: &'static Gpu, allocation: Allocation) -> Self {
        Pool {
            gpu,
            direct: allocation == Allocation::Direct,
            state: Mutex::default(),
        }
    }

    pub fn stats(&self) -> MemoryStats {
        lock(&self.state).stats
    }

    /// A block of at least `bytes` (not 0) for use on `stream`.
    pub fn alloc(&self, bytes: usize, stream: &Stream) -> Result<Block> {
        let mut state = lock(&self.state);
        let block = if self.direct {
            let ptr = self.device_alloc(&mut state, bytes, bytes, stream)?;
            Block {
                ptr,
                bytes,
                slab: None,
            }
        } else {
            match state.reuse_captured(bytes).or_else(|| state.reuse(bytes)) {
                Some(block) => block,
                None => self.fresh(&mut state, bytes, stream)?,
            }
        };
        let stats = &mut state.stats;
        stats.live_bytes += block.bytes;
        stats.live_buffers += 1;
        stats.peak_bytes = stats.peak_bytes.max(stats.live_bytes);
        Ok(block)
    }

    /// A block that no free list has.
    fn fresh(&self, state: &mut State, bytes: usize, stream: &Stream) -> Result<Block> {
        let class = class_bytes(bytes);
        if class > SLAB_BLOCK_LIMIT {
            let ptr = self.device_alloc(state, class, bytes, stream)?;
            return Ok(Block {
                ptr,
                bytes: class,
                slab: None,
            });
        }
        if let Some(block) = state.carve(class) {
            state.stats.cache_hits += 1;
            state.stats.cached_bytes -= class;
            return Ok(block);
        }
        let ptr = self.device_alloc(state, SLAB_BYTES, bytes, stream)?;
        state.stats.cached_bytes += SLAB_BYTES - class;
        let slab = Slab {
            ptr,
            used: class,
            live: 1,
        };
        let index = match state.slabs.iter().position(Option::is_none) {
            Some(hole) => {
                state.slabs[hole] = Some(slab);
                hole
            }
            None => {
                state.slabs.push(Some(slab));
                state.slabs.len() - 1
            }
        };
        Ok(Block {
            ptr,
            bytes: class,
            slab: Some(index),
        })
    }

    /// `hipMalloc`; if the device is full, once more after the cache was emptied.
    fn device_alloc(
        &self,
        state: &mut State,
        bytes: usize,
        requested: usize,
        stream: &Stream,
    ) -> Result<*mut c_void> {
        self.gpu.bind()?;
        let hip = self.gpu.hip;
        let mut ptr = ptr::null_mut();
        // SAFETY: `ptr` receives the address.
        let mut status = unsafe { (hip.hipMalloc)(&mut ptr, bytes) };
        if status == hip::ERROR_OUT_OF_MEMORY {
            state.stats.ooms += 1;
            let cached = state.stats.cached_bytes;
            // A capture would be spoiled by waiting: whoever records ends it, trims, and records again.
            if state.captured.is_none() {
                stream.wait_idle()?;
                self.release_cache(state)?;
                // SAFETY: as above. The failed call left an error behind that nobody else should see.
                status = unsafe {
                    (hip.hipGetLastError)();
                    (hip.hipMalloc)(&mut ptr, bytes)
                };
            }
            if status == hip::ERROR_OUT_OF_MEMORY {
                // SAFETY: clears the thread's last error.
                unsafe { (hip.hipGetLastError)() };
                let (free, total) = memory_info(self.gpu)?;
                return Err(Error::OutOfMemory {
                    ordinal: self.gpu.ordinal,
                    requested,
                    free,
                    total,
                    cached,
                    live: state.stats.live_bytes,
                });
            }
        }
        self.gpu.check("hipMalloc", status)?;
        state.stats.device_allocations += 1;
        Ok(ptr)
    }

    /// Takes a block back; work enqueued on `stream` may still use it.
    pub fn free(&self, block: Block, stream: &Stream) {
        let state = &mut *lock(&self.state);
        state.stats.live_bytes -= block.bytes;
        state.stats.live_buffers -= 1;
        if let Some(captured) = &mut state.captured {
            state.stats.cached_bytes += block.bytes;
            captured.push(block);
        } else if self.direct {
            let freed = stream
                .wait_idle()
                .and_then(|()| self.device_free(state, block.ptr));
            self.gpu.defer(freed);
        } else {
            state.stats.cached_bytes += block.bytes;
            state.recycle(block);
        }
    }

    fn device_free(&self, state: &mut State, ptr: *mut c_void) -> Result<()> {
        self.gpu.bind()?;
        state.stats.device_frees += 1;
        // SAFETY: the block came from hipMalloc, and nothing on the device uses it any more.
        let status = unsafe { (self.gpu.hip.hipFree)(ptr) };
        self.gpu.check("hipFree", status)
    }

    /// Gives all cached memory back to the device. The stream must be idle.
    fn release_cache(&self, state: &mut State) -> Result<()> {
        let mut result = Ok(());
        let unused: Vec<usize> = (0..state.slabs.len())
            .filter(|&i| state.slabs[i].as_ref().is_some_and(|slab| slab.live == 0))
            .collect();
        let mut released = Vec::new();
        for blocks in state.free.values_mut() {
            blocks.retain(|block| match block.slab {
                Some(slab) => !unused.contains(&slab),
                None => {
                    released.push((block.ptr, block.bytes));
                    false
                }
            });
        }
        for index in unused {
            released.extend(state.slabs[index].take().map(|slab| (slab.ptr, SLAB_BYTES)));
        }
        for (ptr, bytes) in released {
            state.stats.cached_bytes -= bytes;
            let freed = self.device_free(state, ptr);
            result = result.and(freed);
        }
        result
    }

    /// Waits for the stream and gives all cached memory back to the device.
    pub fn trim(&self, stream: &Stream) -> Result<()> {
        let mut state = lock(&self.state);
        stream.wait_idle()?;
        self.release_cache(&mut state)
    }

    /// From now on, freed blocks belong to the graph being captured.
    pub fn begin_capture(&self) {
        lock(&self.state).captured = Some(Vec::new());
    }

    /// Whether a graph is being captured.
    pub fn is_capturing(&self) -> bool {
        lock(&self.state).captured.is_some()
    }

    /// The blocks that were freed during the capture; to be given back by `end_graph`.
    pub fn end_capture(&self) -> Vec<Block> {
        lock(&self.state).captured.take().unwrap_or_default()
    }

    /// Takes a graph's blocks back.
    pub fn end_graph(&self, blocks: Vec<Block>, stream: &Stream) {
        let mut state = lock(&self.state);
        for block in blocks {
            if self.direct {
                state.stats.cached_bytes -= block.bytes;
                let freed = stream
                    .wait_idle()
                    .and_then(|()| self.device_free(&mut state, block.ptr));
                self.gpu.defer(freed);
            } else {
                state.recycle(block);
            }
        }
    }
}

impl State {
    /// The smallest free block that holds `bytes` and wastes at most an eighth.
    fn reuse(&mut self, bytes: usize) -> Option<Block> {
        let class = class_bytes(bytes);
        let block = self
            .free
            .range_mut(class..=class.max(bytes.saturating_add(bytes / 8)))
            .find_map(|(_, blocks)| blocks.pop())?;
        if let Some(slab) = block.slab.and_then(|i| self.slabs[i].as_mut()) {
            slab.live += 1;
        }
        self.stats.cache_hits += 1;
        self.stats.cached_bytes -= block.bytes;
        Some(block)
    }

    /// A block that the graph being captured has used and no longer needs.
    fn reuse_captured(&mut self, bytes: usize) -> Option<Block> {
        let captured = self.captured.as_mut()?;
        let class = class_bytes(bytes);
        let fitting = captured.iter().position(|block| block.bytes == class)?;
        self.stats.cache_hits += 1;
        self.stats.cached_bytes -= class;
        Some(captured.swap_remove(fitting))
    }

    /// A block from the untouched end of a slab.
    fn carve(&mut self, bytes: usize) -> Option<Block> {
        let (index, slab) = self
            .slabs
            .iter_mut()
            .enumerate()
            .filter_map(|(i, slab)| slab.as_mut().map(|slab| (i, slab)))
            .find(|(_, slab)| SLAB_BYTES - slab.used >= bytes)?;
        let ptr = slab.ptr.wrapping_byte_add(slab.used);
        slab.used += bytes;
        slab.live += 1;
        Some(Block {
            ptr,
            bytes,
            slab: Some(index),
        })
    }

    fn recycle(&mut self, block: Block) {
        if let Some(slab) = block.slab.and_then(|i| self.slabs[i].as_mut()) {
            slab.live -= 1;
        }
        self.free.entry(block.bytes).or_default().push(block);
    }
}

impl Drop for Pool {
    /// The device's last handle is gone, so no buffer is left and every block is cached.
    fn drop(&mut self) {
        let mut state = std::mem::take(&mut *lock(&self.state));
        let released = self.release_cache(&mut state);
        self.gpu.defer(released);
    }
}

/// Free and total bytes of a device.
pub(crate) fn memory_info(gpu: &Gpu) -> Result<(usize, usize)> {
    gpu.bind()?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: both receive a size.
    let status = unsafe { (gpu.hip.hipMemGetInfo)(&mut free, &mut total) };
    gpu.check("hipMemGetInfo", status)?;
    Ok((free, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_an_eighth_and_map_to_themselves() {
        for bytes in (1..20_000).chain([1 << 20, (1 << 20) + 1, 3 << 30, (3 << 30) + 7]) {
            let class = class_bytes(bytes);
            assert!(
                class >= bytes && class.is_multiple_of(GRANULE),
                "{bytes} -> {class}"
            );
            assert!(
                class - bytes < GRANULE.max(bytes.div_ceil(8)),
                "{bytes} -> {class}"
            );
            assert_eq!(class_bytes(class), class);
        }
    }
}
