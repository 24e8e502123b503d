//! Events.

use super::super::events::Told;
use super::super::lock;
use super::super::space::Backing;
use super::super::state::{Shared, EVENTS_OFFSET};
use crate::driver::Errno;
use crate::uapi::{
    event_type, flags, wait_result, CreateEvent, DestroyEvent, EventData, ResetEvent, SetEvent,
    WaitEvents,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A timeout that is none (`KFD_EVENT_TIMEOUT_INFINITE`).
const INFINITE: u32 = u32::MAX;

pub(super) fn create(shared: &Arc<Shared>, request: &mut CreateEvent) -> Result<(), Errno> {
    let mut state = lock(&shared.state);
    if request.event_page_offset != 0 {
        let handle = request.event_page_offset;
        state.bound((handle >> 32) as u32, libc::ENODEV)?;
        let (index, number) = state.block(handle, libc::EINVAL)?;
        let block = &state.gpus[index].blocks[&number];
        // The kernel maps host memory only: `amdgpu_amdkfd_gpuvm_map_gtt_bo_to_kernel`.
        let Backing::Pages(pages) = &block.backing else {
            return Err(Errno(libc::EINVAL));
        };
        if block.flags & flags::GTT == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let pages = pages.clone();
        state.events.set_page(pages, handle)?;
    }
    request.event_page_offset = 0;
    let id = state
        .events
        .create(request.event_type, request.auto_reset != 0)?;
    if request.event_type == event_type::SIGNAL {
        request.event_page_offset = EVENTS_OFFSET;
        request.event_slot_index = id;
    }
    (request.event_id, request.event_trigger_data) = (id, id);
    Ok(())
}

pub(super) fn destroy(shared: &Arc<Shared>, request: &mut DestroyEvent) -> Result<(), Errno> {
    let outcome = lock(&shared.state).events.destroy(request.event_id);
    shared.woken.notify_all();
    outcome
}

pub(super) fn set(shared: &Arc<Shared>, request: &mut SetEvent) -> Result<(), Errno> {
    let outcome = lock(&shared.state).events.set(request.event_id);
    shared.woken.notify_all();
    outcome
}

pub(super) fn reset(shared: &Arc<Shared>, request: &mut ResetEvent) -> Result<(), Errno> {
    lock(&shared.state).events.reset(request.event_id)
}

pub(super) fn wait(shared: &Arc<Shared>, request: &mut WaitEvents) -> Result<(), Errno> {
    request.wait_result = wait_result::FAIL;
    let mut data: Vec<EventData> = shared
        .user
        .array(request.events_ptr, request.num_events as usize)?;
    let wanted: Vec<(u32, u64)> = data
        .iter()
        .map(|event| (event.event_id, event.data[0]))
        .collect();
    let mut state = lock(&shared.state);
    let waiter = state
        .events
        .begin_wait(&wanted, request.wait_for_all != 0)?;
    let timeout =
        (request.timeout != INFINITE).then(|| Duration::from_millis(request.timeout.into()));
    let start = Instant::now();
    loop {
        request.wait_result = state.events.outcome(waiter);
        if request.wait_result != wait_result::TIMEOUT {
            break;
        }
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        // Whoever waits without an end looks now and then all the same.
        let left = left.unwrap_or(Duration::from_secs(1));
        state = match shared.woken.wait_timeout(state, left) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
    }
    let told = state.events.end_wait(waiter);
    drop(state);
    if request.wait_result == wait_result::FAIL {
        return Err(Errno(libc::EIO));
    }
    if request.wait_result == wait_result::COMPLETE {
        for (event, told) in data.iter_mut().zip(told) {
            match told {
                Told::Nothing => {}
                Told::Age(age) => event.data[0] = age,
                Told::Memory(memory) => event.data = bytemuck::cast(memory),
                Told::Hardware(hardware) => {
                    event.data[..2].copy_from_slice(bytemuck::cast_slice(&[hardware]));
                }
            }
        }
        shared
            .user
            .write(request.events_ptr, bytemuck::cast_slice(&data))?;
    }
    Ok(())
}
