//! Events: interrupts that a process waits for.

use super::request;

/// `KFD_IOC_EVENT_…`.
#[allow(missing_docs)] // the header's names
pub mod event_type {
    pub const SIGNAL: u32 = 0;
    pub const HW_EXCEPTION: u32 = 3;
    pub const MEMORY: u32 = 8;
}

/// `KFD_IOC_WAIT_RESULT_…`.
#[allow(missing_docs)] // the header's names
pub mod wait_result {
    pub const COMPLETE: u32 = 0;
    pub const TIMEOUT: u32 = 1;
    pub const FAIL: u32 = 2;
}

/// Signal events of a process at most.
pub const SIGNAL_EVENT_LIMIT: u32 = 4096;

request! {
    /// An event. `event_page_offset` is, for the first one, the handle of memory that becomes the page of slots.
    CreateEvent = CREATE_EVENT(Both, 0x08) {
        event_page_offset: u64,
        event_trigger_data: u32,
        event_type: u32,
        auto_reset: u32,
        node_id: u32,
        event_id: u32,
        event_slot_index: u32,
    }
}

request! {
    /// Ends an event.
    DestroyEvent = DESTROY_EVENT(Write, 0x09) {
        event_id: u32,
        pad: u32,
    }
}

request! {
    /// Sets an event, as an interrupt would.
    SetEvent = SET_EVENT(Write, 0x0a) {
        event_id: u32,
        pad: u32,
    }
}

request! {
    /// Resets an event.
    ResetEvent = RESET_EVENT(Write, 0x0b) {
        event_id: u32,
        pad: u32,
    }
}

request! {
    /// Waits for one or all of an array of [`EventData`]. The timeout is in milliseconds.
    WaitEvents = WAIT_EVENTS(Both, 0x0c) {
        events_ptr: u64,
        num_events: u32,
        wait_for_all: u32,
        timeout: u32,
        wait_result: u32,
    }
}

/// `kfd_event_data`: an event that is waited for, and what happened.
#[allow(missing_docs)] // fields carry the header's names
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct EventData {
    /// The header's union: [`MemoryExceptionData`], [`HwExceptionData`], or the age of a signal event.
    pub data: [u64; 4],
    pub kfd_event_data_ext: u64,
    pub event_id: u32,
    pub pad: u32,
}

impl EventData {
    /// What a memory event tells.
    pub fn memory_exception(&self) -> MemoryExceptionData {
        bytemuck::cast(self.data)
    }

    /// What an event of the hardware tells.
    pub fn hw_exception(&self) -> HwExceptionData {
        let words: [u32; 8] = bytemuck::cast(self.data);
        HwExceptionData {
            reset_type: words[0],
            reset_cause: words[1],
            memory_lost: words[2],
            gpu_id: words[3],
        }
    }
}

/// `kfd_hsa_memory_exception_data`: an access that failed.
#[allow(missing_docs)] // fields carry the header's names
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct MemoryExceptionData {
    pub not_present: u32,
    pub read_only: u32,
    pub no_execute: u32,
    pub imprecise: u32,
    pub va: u64,
    pub gpu_id: u32,
    pub error_type: u32,
}

/// `kfd_hsa_hw_exception_data`: the GPU was reset.
#[allow(missing_docs)] // fields carry the header's names
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct HwExceptionData {
    pub reset_type: u32,
    pub reset_cause: u32,
    pub memory_lost: u32,
    pub gpu_id: u32,
}
