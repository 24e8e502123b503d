//! The allocator of a device: caching, over `hipMalloc` with stream-ordered reuse.
//!
//! Sizes round up to classes: multiples of 512 bytes up to 4 KiB, then eight steps per power of two, so at most an
//! eighth is wasted. Blocks up to 256 KiB are carved from 2 MiB slabs. What is uploaded is mostly weights, which are
//! kept: above 256 KiB it is rounded up to 64 KiB only. A dropped buffer goes to the free list of its size at once:
//! whoever takes it next enqueues on the same stream, behind all earlier uses. Only an exhausted GPU,
//! [`Device::trim`](crate::Device::trim) and the last drop of the device give memory back; on an exhausted GPU all
//! devices do, each behind its own work.
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
/// To what blocks that are kept are rounded up. Steps of 2 MiB, the largest pages, would waste more than classes do on
/// models of up to 7 billion parameters, whose matrices are often an odd number of MiB.
const LASTING_STEP: usize = 64 << 10;

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

/// Distance of the classes at a size of at least 1.
fn class_step(bytes: usize) -> usize {
    if bytes <= LINEAR_LIMIT {
        GRANULE
    } else {
        1 << ((bytes - 1).ilog2() - 3)
    }
}

/// Rounds a size of at least 1 up to its class.
fn class_bytes(bytes: usize) -> usize {
    let step = class_step(bytes);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

/// Rounds a size of at least 1 up for a block that is kept.
fn lasting_bytes(bytes: usize) -> usize {
    if bytes <= SLAB_BLOCK_LIMIT {
        return class_bytes(bytes);
    }
    let step = class_step(bytes).min(LASTING_STEP);
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
        self.alloc_rounded(bytes, class_bytes(bytes), stream)
    }

    /// The same for what is likely to be kept.
    pub fn alloc_lasting(&self, bytes: usize, stream: &Stream) -> Result<Block> {
        self.alloc_rounded(bytes, lasting_bytes(bytes), stream)
    }

    fn alloc_rounded(&self, bytes: usize, rounded: usize, stream: &Stream) -> Result<Block> {
        let mut state = lock(&self.state);
        if let Some(block) = self.find(&mut state, bytes, rounded)? {
            return Ok(block);
        }
        state.stats.ooms += 1;
        let cached = state.stats.cached_bytes;
        // A capture would be spoiled by waiting: whoever records ends it, trims, and records again.
        if state.captured.is_none() {
            stream.wait_idle()?;
            self.release_cache(&mut state)?;
            if let Some(block) = self.find(&mut state, bytes, rounded)? {
                return Ok(block);
            }
            // Not while this allocator is locked: two that find the GPU full would wait for each other.
            drop(state);
            self.gpu.caches.empty();
            state = lock(&self.state);
            if let Some(block) = self.find(&mut state, bytes, rounded)? {
                return Ok(block);
            }
        }
        let (free, total) = memory_info(self.gpu)?;
        Err(Error::OutOfMemory {
            ordinal: self.gpu.ordinal,
            requested: bytes,
            free,
            total,
            cached,
            live: state.stats.live_bytes,
        })
    }

    /// A block of at least `bytes`, of the size `rounded` if it is a new one; none if the device is full.
    fn find(&self, state: &mut State, bytes: usize, rounded: usize) -> Result<Option<Block>> {
        let found = if self.direct {
            let ptr = self.device_alloc(state, bytes)?;
            ptr.map(|ptr| Block {
                ptr,
                bytes,
                slab: None,
            })
        } else {
            let reused = state.reuse_captured(rounded);
            match reused.or_else(|| state.reuse(bytes, rounded)) {
                Some(block) => Some(block),
                None => self.fresh(state, rounded)?,
            }
        };
        if let Some(block) = &found {
            let stats = &mut state.stats;
            stats.live_bytes += block.bytes;
            stats.live_buffers += 1;
            stats.peak_bytes = stats.peak_bytes.max(stats.live_bytes);
        }
        Ok(found)
    }

    /// A block that no free list has; none if the device is full.
    fn fresh(&self, state: &mut State, bytes: usize) -> Result<Option<Block>> {
        if bytes > SLAB_BLOCK_LIMIT {
            let ptr = self.device_alloc(state, bytes)?;
            return Ok(ptr.map(|ptr| Block {
                ptr,
                bytes,
                slab: None,
            }));
        }
        if let Some(block) = state.carve(bytes) {
            state.stats.cache_hits += 1;
            state.stats.cached_bytes -= bytes;
            return Ok(Some(block));
        }
        let Some(ptr) = self.device_alloc(state, SLAB_BYTES)? else {
            return Ok(None);
        };
        state.stats.cached_bytes += SLAB_BYTES - bytes;
        let slab = Slab {
            ptr,
            used: bytes,
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
        Ok(Some(Block {
            ptr,
            bytes,
            slab: Some(index),
        }))
    }

    /// `hipMalloc`; none if the device is full.
    fn device_alloc(&self, state: &mut State, bytes: usize) -> Result<Option<*mut c_void>> {
        self.gpu.bind()?;
        let hip = self.gpu.hip;
        let mut ptr = ptr::null_mut();
        // SAFETY: `ptr` receives the address.
        let status = unsafe { (hip.hipMalloc)(&mut ptr, bytes) };
        if status == hip::ERROR_OUT_OF_MEMORY {
            // SAFETY: clears the thread's last error, which nobody else should see.
            unsafe { (hip.hipGetLastError)() };
            return Ok(None);
        }
        self.gpu.check("hipMalloc", status)?;
        state.stats.device_allocations += 1;
        Ok(Some(ptr))
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

    /// The same for another device on the GPU that needs the memory; nothing while a graph is being captured, which
    /// waiting for its stream would spoil.
    pub fn empty_cache(&self, stream: &Stream) -> Result<()> {
        let mut state = lock(&self.state);
        if state.captured.is_some() || state.stats.cached_bytes == 0 {
            return Ok(());
        }
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
    /// The smallest free block that holds `bytes` and wastes at most an eighth, or what rounding wastes.
    fn reuse(&mut self, bytes: usize, rounded: usize) -> Option<Block> {
        let block = self
            .free
            .range_mut(bytes..=rounded.max(bytes.saturating_add(bytes / 8)))
            .find_map(|(_, blocks)| blocks.pop())?;
        if let Some(slab) = block.slab.and_then(|i| self.slabs[i].as_mut()) {
            slab.live += 1;
        }
        self.stats.cache_hits += 1;
        self.stats.cached_bytes -= block.bytes;
        Some(block)
    }

    /// A block that the graph being captured has used and no longer needs.
    fn reuse_captured(&mut self, rounded: usize) -> Option<Block> {
        let captured = self.captured.as_mut()?;
        let fitting = captured.iter().position(|block| block.bytes == rounded)?;
        self.stats.cache_hits += 1;
        self.stats.cached_bytes -= rounded;
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

    /// Bytes of the matrices of a llama-like model: two of `vocabulary` rows, and seven a layer.
    fn matrices(
        [hidden, inner, keys, layers, vocabulary]: [usize; 5],
        bytes: impl Fn(usize) -> usize,
    ) -> Vec<usize> {
        let layer = [hidden, hidden, keys, keys, inner, inner, inner];
        let rows = [vocabulary; 2].into_iter();
        let rows = rows.chain((0..layers).flat_map(|_| layer));
        rows.map(|rows| bytes(rows * hidden)).collect()
    }

    #[test]
    fn weights_are_hardly_rounded_up() {
        let q4_k = |elements: usize| elements / 256 * 144;
        let q6_k = |elements: usize| elements / 256 * 210;
        let f16 = |elements: usize| elements * 2;
        let llama2_7b = [4096, 11_008, 4096, 32, 32_000];
        let mistral_7b = [4096, 14_336, 1024, 32, 32_768];
        let qwen2_5_7b = [3584, 18_944, 512, 28, 152_064];
        let smollm2_135m = [576, 1536, 192, 30, 49_152];
        for (weights, limit) in [
            (matrices(llama2_7b, q4_k), 0.001),
            (matrices(llama2_7b, f16), 0.001),
            (matrices(mistral_7b, q6_k), 0.001),
            (matrices(qwen2_5_7b, q4_k), 0.002),
            (matrices(qwen2_5_7b, f16), 0.001),
            (matrices(smollm2_135m, f16), 0.015),
        ] {
            let needed: usize = weights.iter().sum();
            let waste = |round: fn(usize) -> usize| {
                let taken: usize = weights.iter().map(|&bytes| round(bytes)).sum();
                (taken - needed) as f64 / needed as f64
            };
            let (kept, classes) = (waste(lasting_bytes), waste(class_bytes));
            assert!(kept < limit, "{kept} of {needed}");
            assert!(classes > 0.01, "{classes} of {needed}: nothing to mend");
        }
    }

    #[test]
    fn a_block_that_is_kept_is_never_larger_than_its_class() {
        for bytes in
            (1..600_000)
                .step_by(37)
                .chain([1 << 20, (1 << 20) + 1, 3 << 30, (9 << 20) + 5])
        {
            let lasting = lasting_bytes(bytes);
            assert!(
                (bytes..=class_bytes(bytes)).contains(&lasting),
                "{bytes} -> {lasting}"
            );
            assert_eq!(lasting_bytes(lasting), lasting);
        }
    }
}
