//! Queues: what `kfd_chardev.c`, `kfd_queue.c` and `kfd_process_queue_manager.c` want of them.

use super::super::lock;
use super::super::pages::PAGE;
use super::super::processor::{Kind, Queue, Settings};
use super::super::state::{doorbell_offset, Shared, State, DOORBELL_BYTES};
use crate::driver::Errno;
use crate::uapi::{
    queue_type, CreateQueue, DestroyQueue, UpdateQueue, MAX_QUEUE_PERCENTAGE, MAX_QUEUE_PRIORITY,
};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The kernel's own number for what it does not support, which `errno.h` has not.
const ENOTSUPP: i32 = 524;
/// Queues of a process at most (`KFD_MAX_NUM_OF_QUEUES_PER_PROCESS`).
const MOST_QUEUES: u32 = 1024;
/// The first doorbell of a process that is a queue's here, so that an offset of 0 is not right by chance.
const FIRST_DOORBELL: u64 = 8;

/// Addresses that a process has.
const USER_END: u64 = 1 << 47;

fn invalid<T>() -> Result<T, Errno> {
    Err(Errno(libc::EINVAL))
}

/// `set_queue_properties_from_user`: what can be said without looking at memory.
fn check(request: &CreateQueue) -> Result<Kind, Errno> {
    // Bits 8 to 15 choose a die for packets of PM4.
    if request.queue_percentage & 0xff > MAX_QUEUE_PERCENTAGE
        || request.queue_priority > MAX_QUEUE_PRIORITY
    {
        return invalid();
    }
    let addresses = [
        request.ring_base_address,
        request.read_pointer_address,
        request.write_pointer_address,
        request.eop_buffer_address,
        request.ctx_save_restore_address,
    ];
    if addresses.iter().any(|&address| address >= USER_END) {
        return Err(Errno(libc::EFAULT));
    }
    if request.ring_size != 0 && !request.ring_size.is_power_of_two() {
        return invalid();
    }
    match request.queue_type {
        queue_type::COMPUTE_AQL => Ok(Kind::Aql),
        queue_type::SDMA | queue_type::SDMA_XGMI | queue_type::SDMA_BY_ENG_ID => Ok(Kind::Sdma),
        // Packets of PM4 are nobody's here.
        _ => Err(Errno(ENOTSUPP)),
    }
}

/// `kfd_queue_acquire_buffers`: each part of a queue is all of a mapping. The mappings' addresses.
fn buffers(
    state: &mut State,
    index: usize,
    request: &CreateQueue,
    kind: Kind,
) -> Result<Vec<u64>, Errno> {
    let exact = state.setup.exact_areas;
    let gpu = &mut state.gpus[index];
    let model = &gpu.described.model;
    let areas = model.areas(exact);
    let mut wanted = vec![
        (request.write_pointer_address, PAGE),
        (request.read_pointer_address, PAGE),
        (request.ring_base_address, request.ring_size.into()),
    ];
    if kind == Kind::Aql {
        if request.eop_buffer_address != 0 {
            if request.eop_buffer_size != u64::from(areas.end_of_pipe) {
                return invalid();
            }
            wanted.push((request.eop_buffer_address, request.eop_buffer_size));
        }
        let save = request.ctx_save_restore_size;
        if request.ctl_stack_size != areas.control_stack
            || save < areas.save
            || (exact && save != areas.save)
        {
            return invalid();
        }
        let all = (u64::from(save) + u64::from(areas.debugger)) * u64::from(model.num_xcc);
        wanted.push((request.ctx_save_restore_address, all.next_multiple_of(PAGE)));
    }
    let mut held = Vec::new();
    for (address, bytes) in wanted {
        gpu.space.exactly(address, bytes)?;
        held.push(address / PAGE * PAGE);
    }
    Ok(held)
}

/// The engine that has most room for another queue: `allocate_sdma_queue`.
fn engine(state: &State, index: usize, request: &CreateQueue) -> Result<u32, Errno> {
    let model = &state.gpus[index].described.model;
    let all = model.num_sdma_engines + model.num_sdma_xgmi_engines;
    let candidates = match request.queue_type {
        queue_type::SDMA_XGMI => model.num_sdma_engines..all,
        queue_type::SDMA_BY_ENG_ID if request.sdma_engine_id >= all => return invalid(),
        queue_type::SDMA_BY_ENG_ID => request.sdma_engine_id..request.sdma_engine_id + 1,
        _ => 0..model.num_sdma_engines,
    };
    let taken = |engine: u32| {
        let queues = state.queues.values().map(|queue| &queue.settings);
        let own = queues.filter(|other| other.gpu == index && other.engine == Some(engine));
        own.count() as u32
    };
    candidates
        .map(|engine| (taken(engine), engine))
        .min()
        .filter(|&(taken, _)| taken < model.num_sdma_queues_per_engine)
        .map(|(_, engine)| engine)
        .ok_or(Errno(libc::ENOMEM))
}

pub(super) fn create(shared: &Arc<Shared>, request: &mut CreateQueue) -> Result<(), Errno> {
    let kind = check(request)?;
    let mut state = lock(&shared.state);
    let index = state.bound(request.gpu_id, libc::ESRCH)?;
    if request.queue_type == queue_type::SDMA_BY_ENG_ID && state.setup.version.1 < 17 {
        return Err(Errno(ENOTSUPP));
    }
    if request.ring_size == 0 || request.ring_base_address == 0 {
        // The kernel makes a queue of it that never executes; no program wants that.
        return invalid();
    }
    let holds = buffers(&mut state, index, request, kind)?;
    let engine = match kind {
        Kind::Aql => None,
        Kind::Sdma => Some(engine(&state, index, request)?),
    };
    let id = (0..MOST_QUEUES)
        .find(|id| !state.queues.contains_key(id))
        .ok_or(Errno(libc::ENOSPC))?;
    // Each GPU has as many doorbells as a process may have queues.
    let doorbell = (FIRST_DOORBELL + u64::from(id)) * 8 % DOORBELL_BYTES;
    let doorbells = &state.gpus[index].doorbells;
    let never = if kind == Kind::Aql { u64::MAX } else { 0 };
    doorbells.word64(doorbell).store(never, Ordering::SeqCst);
    let settings = Settings {
        gpu: index,
        id,
        kind,
        engine,
        ring: request.ring_base_address,
        ring_bytes: request.ring_size.into(),
        read_pointer: request.read_pointer_address,
        write_pointer: request.write_pointer_address,
        doorbell,
        save_area: if kind == Kind::Aql {
            request.ctx_save_restore_address
        } else {
            0
        },
    };
    let paused = request.queue_percentage & 0xff == 0;
    let queue = Queue::start(shared, settings, holds, paused).map_err(|_| Errno(libc::ENOMEM))?;
    hold(&mut state, &queue, 1);
    state.queues.insert(id, queue);
    request.queue_id = id;
    request.doorbell_offset = doorbell_offset(request.gpu_id) | doorbell;
    Ok(())
}

/// Keeps the mappings of a queue from being unmapped, or lets them go.
fn hold(state: &mut State, queue: &Queue, change: i32) {
    for &address in &queue.holds {
        if let Ok(mapping) = state.gpus[queue.settings.gpu].space.exactly(address, 0) {
            mapping.queues = mapping.queues.saturating_add_signed(change);
        }
    }
}

pub(super) fn destroy(shared: &Arc<Shared>, request: &mut DestroyQueue) -> Result<(), Errno> {
    let mut state = lock(&shared.state);
    let queue = state
        .queues
        .remove(&request.queue_id)
        .ok_or(Errno(libc::EINVAL))?;
    hold(&mut state, &queue, -1);
    drop(state);
    queue.end();
    Ok(())
}

pub(super) fn update(shared: &Arc<Shared>, request: &mut UpdateQueue) -> Result<(), Errno> {
    if request.queue_percentage & 0xff > MAX_QUEUE_PERCENTAGE
        || request.queue_priority > MAX_QUEUE_PRIORITY
    {
        return invalid();
    }
    if request.ring_size != 0 && !request.ring_size.is_power_of_two() {
        return invalid();
    }
    let state = lock(&shared.state);
    let queue = state
        .queues
        .get(&request.queue_id)
        .ok_or(Errno(libc::EFAULT))?;
    let same = (queue.settings.ring, queue.settings.ring_bytes);
    if request.ring_base_address != 0
        && (request.ring_base_address, u64::from(request.ring_size)) != same
    {
        // Rings that move are nobody's here.
        return invalid();
    }
    queue.pause(request.queue_percentage & 0xff == 0 || request.ring_base_address == 0);
    Ok(())
}
