//! Queues.

use super::request;

/// `KFD_IOC_QUEUE_TYPE_…`.
#[allow(missing_docs)] // the header's names
pub mod queue_type {
    pub const COMPUTE: u32 = 0;
    pub const SDMA: u32 = 1;
    pub const COMPUTE_AQL: u32 = 2;
    pub const SDMA_XGMI: u32 = 3;
    pub const SDMA_BY_ENG_ID: u32 = 4;
}

/// Percentage of a queue that runs.
pub const MAX_QUEUE_PERCENTAGE: u32 = 100;
/// The highest priority.
pub const MAX_QUEUE_PRIORITY: u32 = 15;
/// Smallest ring, in bytes.
pub const MIN_QUEUE_RING_SIZE: u32 = 1024;

request! {
    /// A queue of which the driver tells the hardware. Of version 1.17 but for its last two fields, which older drivers do
    /// not know: they take the structure all the same, as the kernel copies what it has in common.
    CreateQueue = CREATE_QUEUE(Both, 0x02) {
        ring_base_address: u64,
        write_pointer_address: u64,
        read_pointer_address: u64,
        doorbell_offset: u64,
        ring_size: u32,
        gpu_id: u32,
        queue_type: u32,
        queue_percentage: u32,
        queue_priority: u32,
        queue_id: u32,
        eop_buffer_address: u64,
        eop_buffer_size: u64,
        ctx_save_restore_address: u64,
        ctx_save_restore_size: u32,
        ctl_stack_size: u32,
        sdma_engine_id: u32,
        pad: u32,
    }
}

request! {
    /// Ends a queue.
    DestroyQueue = DESTROY_QUEUE(Both, 0x03) {
        queue_id: u32,
        pad: u32,
    }
}

request! {
    /// Changes a queue: a percentage of 0 halts it.
    UpdateQueue = UPDATE_QUEUE(Write, 0x07) {
        ring_base_address: u64,
        queue_id: u32,
        ring_size: u32,
        queue_percentage: u32,
        queue_priority: u32,
    }
}
