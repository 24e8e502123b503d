//! Memory, as `amdgpu_amdkfd_gpuvm.c` gives it.

use super::super::lock;
use super::super::pages::{Pages, PAGE};
use super::super::space::{Backing, Mapping};
use super::super::state::{Block, Shared, State, DOORBELL_BYTES, GPUVM};
use crate::driver::Errno;
use crate::uapi::{
    flags, AllocMemoryOfGpu, FreeMemoryOfGpu, GetAvailableMemory, MapMemoryToGpu,
    UnmapMemoryFromGpu,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Memory of a GPU is taken in such steps (`VRAM_AVAILABILITY_ALIGN`).
const VRAM_STEP: u64 = 2 << 20;

fn invalid<T>() -> Result<T, Errno> {
    Err(Errno(libc::EINVAL))
}

pub(super) fn alloc(shared: &Arc<Shared>, request: &mut AllocMemoryOfGpu) -> Result<(), Errno> {
    let mut state = lock(&shared.state);
    if request.size == 0 {
        return invalid();
    }
    let index = state.gpu(request.gpu_id)?;
    let has = |flag: u32| request.flags & flag != 0;
    if has(flags::VRAM) && has(flags::PUBLIC) && !state.gpus[index].described.large_bar {
        return invalid();
    }
    if has(flags::DOORBELL) && request.size != DOORBELL_BYTES {
        return invalid();
    }
    if has(flags::MMIO_REMAP) && !has(flags::DOORBELL) && request.size != PAGE {
        return invalid();
    }
    state.bound(request.gpu_id, libc::ENODEV)?;
    let gpu = &mut state.gpus[index];
    let bytes = request
        .size
        .checked_next_multiple_of(PAGE)
        .ok_or(Errno(libc::EINVAL))?;
    let mut block = Block {
        handle: 0,
        address: request.va_addr,
        bytes,
        flags: request.flags,
        backing: Backing::Nothing,
        mmap_offset: 0,
        mapped: BTreeSet::new(),
    };
    // Memory that appears twice is half as much.
    if has(flags::AQL_QUEUE_MEM) && !bytes.is_multiple_of(2 * PAGE) {
        return invalid();
    }
    if has(flags::VRAM) {
        let free = gpu.described.vram - gpu.vram_used;
        if block.memory_bytes() > free {
            return Err(Errno(libc::ENOMEM));
        }
        block.backing = Backing::Pages(Arc::new(Pages::new(block.memory_bytes())?));
        gpu.vram_used += vram_bytes(&block).min(free);
    } else if has(flags::GTT) {
        block.backing = Backing::Pages(Arc::new(Pages::new(block.memory_bytes())?));
    } else if has(flags::USERPTR) {
        let from = request.mmap_offset;
        if from == 0 || !from.is_multiple_of(PAGE) || from.checked_add(bytes).is_none() {
            return invalid();
        }
        // Its pages are taken at once: `init_user_pages`.
        for page in (from..from + bytes).step_by(PAGE as usize) {
            shared.user.read(page, &mut [0])?;
        }
        block.backing = Backing::User(from);
    } else if !has(flags::DOORBELL) && !has(flags::MMIO_REMAP) {
        return invalid();
    }
    (request.handle, request.mmap_offset) = gpu.add(block);
    Ok(())
}

/// What an allocation takes of a GPU's memory.
fn vram_bytes(block: &Block) -> u64 {
    if block.flags & flags::VRAM == 0 {
        return 0;
    }
    block.memory_bytes().next_multiple_of(VRAM_STEP)
}

pub(super) fn free(shared: &Arc<Shared>, request: &mut FreeMemoryOfGpu) -> Result<(), Errno> {
    let mut state = lock(&shared.state);
    let (index, number) = state.block(request.handle, libc::EINVAL)?;
    // The page of events stays as long as the process.
    if state.events.page_handle == Some(request.handle) {
        return Err(Errno(libc::EPERM));
    }
    let gpu = &mut state.gpus[index];
    if !gpu.blocks[&number].mapped.is_empty() {
        return Err(Errno(libc::EBUSY));
    }
    if let Some(block) = gpu.blocks.remove(&number) {
        gpu.vram_used = gpu.vram_used.saturating_sub(vram_bytes(&block));
    }
    Ok(())
}

/// The numbers of GPUs that a request has an array of.
fn gpus(shared: &Shared, array: u64, count: u32, done: u32) -> Result<Vec<u32>, Errno> {
    if count == 0 || done > count {
        return invalid();
    }
    shared.user.array(array, count as usize)
}

pub(super) fn map(shared: &Arc<Shared>, request: &mut MapMemoryToGpu) -> Result<(), Errno> {
    let ids = gpus(
        shared,
        request.device_ids_array_ptr,
        request.n_devices,
        request.n_success,
    )?;
    let mut state = lock(&shared.state);
    state.bound((request.handle >> 32) as u32, libc::ENODEV)?;
    let (owner, number) = state.block(request.handle, libc::ENOMEM)?;
    let partially = state.map_partially.take();
    for &id in &ids[request.n_success as usize..] {
        if partially == Some(request.n_success) {
            return Err(Errno(libc::ENOMEM));
        }
        let index = state.bound(id, libc::ENODEV)?;
        map_to(&mut state, owner, number, index)?;
        request.n_success += 1;
    }
    Ok(())
}

/// Puts an allocation into a GPU's addresses, unless it is there already.
fn map_to(state: &mut State, owner: usize, number: u32, index: usize) -> Result<(), Errno> {
    let block = &state.gpus[owner].blocks[&number];
    if block.mapped.contains(&index) {
        return Ok(());
    }
    // `kfd_mem_attach`: the memory of a GPU without a way to it, and addresses of zero.
    if block.address == 0
        || (index != owner
            && !state.setup.linked
            && block.flags & flags::GTT == 0
            && !is_user(block))
    {
        return invalid();
    }
    let (handle, address) = (block.handle, block.address);
    let mapping = Mapping {
        handle,
        bytes: block.memory_bytes(),
        backing: block.backing.clone(),
        flags: block.flags,
        queues: 0,
    };
    let twice = block.flags & flags::AQL_QUEUE_MEM != 0;
    let space = &mut state.gpus[index].space;
    space.map(address, mapping.clone(), GPUVM)?;
    if twice {
        let second = space.map(address + mapping.bytes, mapping, GPUVM);
        if second.is_err() {
            space.unmap(handle)?;
            return second;
        }
    }
    if let Some(block) = state.gpus[owner].blocks.get_mut(&number) {
        block.mapped.insert(index);
    }
    Ok(())
}

fn is_user(block: &Block) -> bool {
    block.flags & flags::USERPTR != 0
}

pub(super) fn unmap(shared: &Arc<Shared>, request: &mut UnmapMemoryFromGpu) -> Result<(), Errno> {
    let ids = gpus(
        shared,
        request.device_ids_array_ptr,
        request.n_devices,
        request.n_success,
    )?;
    let mut state = lock(&shared.state);
    let (owner, number) = state.block(request.handle, libc::ENOMEM)?;
    for &id in &ids[request.n_success as usize..] {
        let index = state.gpu(id)?;
        if !state.gpus[owner].blocks[&number].mapped.contains(&index) {
            // `amdgpu_amdkfd_gpuvm_unmap_memory_from_gpu`: is not mapped there.
            return invalid();
        }
        state.gpus[index].space.unmap(request.handle)?;
        if let Some(block) = state.gpus[owner].blocks.get_mut(&number) {
            block.mapped.remove(&index);
        }
        request.n_success += 1;
    }
    Ok(())
}

pub(super) fn available(
    shared: &Arc<Shared>,
    request: &mut GetAvailableMemory,
) -> Result<(), Errno> {
    let state = lock(&shared.state);
    let gpu = &state.gpus[state.gpu(request.gpu_id)?];
    request.available = (gpu.described.vram - gpu.vram_used) / VRAM_STEP * VRAM_STEP;
    Ok(())
}
