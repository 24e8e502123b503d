//! How a queue comes and goes.

use super::descriptor::{Descriptor, READ_INDEX, WRITE_INDEX};
use super::kernarg::Kernarg;
use super::packet;
use super::{ComputeQueue, Parts, Producer, Registered, PATIENCE};
use crate::event::Event;
use crate::generation::{Family, SaveArea, Shape, EOP_BYTES, PAGE};
use crate::gpu::Gpu;
use crate::memory::{Host, Kind, Memory};
use crate::signal::Signal;
use crate::timeline::Timeline;
use crate::uapi::{
    queue_type, CreateQueue, DestroyQueue, MAX_QUEUE_PERCENTAGE, MAX_QUEUE_PRIORITY,
};
use crate::{Error, Result};
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

/// Packets of a queue at least: a page of them.
const FEWEST: u32 = (PAGE / packet::BYTES) as u32;
/// Packets at most; the hardware's field reaches further, but rings are memory that cannot be moved.
const MOST: u32 = 1 << 17;
/// Neither the lowest nor the highest: `HSA_QUEUE_PRIORITY_NORMAL` of libhsakmt's `queues.c`.
const PRIORITY: u32 = MAX_QUEUE_PRIORITY / 2;

impl ComputeQueue {
    /// A queue that holds so many packets, a power of two from 64 on.
    ///
    /// # Errors
    /// [`Error::QueueSize`] for another number, those of [`Gpu::allocate`], [`Error::Ioctl`] if the driver has no queue left.
    pub fn new(gpu: &Arc<Gpu>, packets: u32) -> Result<ComputeQueue> {
        if !packets.is_power_of_two() || !(FEWEST..=MOST).contains(&packets) {
            return Err(Error::QueueSize {
                packets,
                fewest: FEWEST,
                most: MOST,
            });
        }
        gpu.usable()?;
        let node = gpu.node();
        let shape = Shape::from(node);
        let area = gpu.generation().save_area(&shape)?;
        let parts = Parts::new(gpu, packets, &shape, &area)?;
        let mut request = CreateQueue {
            ring_base_address: parts.ring.address(),
            write_pointer_address: parts.page.address() + WRITE_INDEX as u64,
            read_pointer_address: parts.page.address() + READ_INDEX as u64,
            ring_size: packets * packet::BYTES as u32,
            gpu_id: node.gpu_id,
            queue_type: queue_type::COMPUTE_AQL,
            queue_percentage: MAX_QUEUE_PERCENTAGE,
            queue_priority: PRIORITY,
            eop_buffer_address: parts.eop.address(),
            eop_buffer_size: EOP_BYTES as u64,
            ctx_save_restore_address: parts.save.address(),
            ctx_save_restore_size: area.bytes,
            ctl_stack_size: area.control_stack,
            ..CreateQueue::default()
        };
        // SAFETY: all addresses are of memory that is kept until the queue is destroyed.
        unsafe { gpu.kfd().driver().request(&mut request) }?;
        let queue = Registered {
            gpu: gpu.clone(),
            id: request.queue_id,
            parts: ManuallyDrop::new(parts),
        };
        let doorbell = gpu.doorbell(request.doorbell_offset)?;
        Ok(ComputeQueue {
            queue,
            packets,
            doorbell,
            names: Mutex::new(vec![None; packets as usize]),
            failed: OnceLock::new(),
            patience: Mutex::new(PATIENCE),
        })
    }
}

impl Parts {
    fn new(gpu: &Arc<Gpu>, packets: u32, shape: &Shape, area: &SaveArea) -> Result<Parts> {
        let ring = gpu.allocate(packets as usize * packet::BYTES, Kind::Queue)?;
        let page = gpu.allocate(PAGE, Kind::Uncached)?;
        let inactive = Signal::new(gpu, 0)?;
        let exceptions = Signal::with_event(gpu, 0)?;
        let view = visible(&ring)?;
        for slot in 0..packets as usize {
            let header = view.word(slot * packet::BYTES)?;
            header.store(packet::INVALID, Ordering::Relaxed);
        }
        Descriptor(visible(&page)?).init(
            ring.address(),
            packets,
            gpu.apertures(),
            shape,
            inactive.address(),
        )?;
        let save = gpu.allocate(area.total(), Kind::Gtt)?;
        for xcc in 0..area.xccs {
            header(&visible(&save)?, area, xcc, &exceptions)?;
        }
        let words = packet::invalidate_code(gpu.generation().family == Family::Gfx9);
        let code = gpu.allocate(PAGE, Kind::Uncached)?;
        visible(&code)?.write(0, bytemuck::cast_slice(&words))?;
        Ok(Parts {
            ring,
            page,
            eop: gpu.allocate(EOP_BYTES, Kind::Vram)?,
            save,
            code,
            code_words: words.len() as u32,
            inactive,
            exceptions,
            idle: Timeline::new(gpu)?,
            producer: Mutex::new(Producer {
                written: 0,
                kernarg: Kernarg::new(gpu)?,
                scratch: None,
                code_known: 0,
                barriers: 0,
            }),
        })
    }
}

/// Fills in the head of an XCC's part of the save area, as libhsakmt's `fill_cwsr_header` does: where the driver leaves
/// exceptions, and where the debugger's memory is.
fn header(save: &Host<'_>, area: &SaveArea, xcc: u32, exceptions: &Signal) -> Result<()> {
    const DEBUG_OFFSET: usize = 16;
    const DEBUG_BYTES: usize = 20;
    const ERROR_REASON: usize = 24;
    const ERROR_EVENT: usize = 32;
    let at = xcc as usize * area.bytes as usize;
    save.write(at, &[0; SaveArea::HEADER_BYTES])?;
    let behind = u64::from(area.xccs - xcc) * u64::from(area.bytes);
    let event = exceptions.event().map_or(0, Event::id);
    for (field, word) in [
        // Fields of 32 bits, whatever the sizes are.
        (DEBUG_OFFSET, behind as u32),
        (DEBUG_BYTES, area.debug.wrapping_mul(area.xccs)),
        (ERROR_EVENT, event),
    ] {
        save.write(at + field, &word.to_le_bytes())?;
    }
    save.write(at + ERROR_REASON, &exceptions.value_address().to_le_bytes())
}

pub(super) fn visible(memory: &Memory) -> Result<Host<'_>> {
    memory.host().ok_or_else(|| Error::NotVisible {
        gpu: memory.gpu().node().pci_id.clone(),
    })
}

impl Drop for Registered {
    fn drop(&mut self) {
        let destroyed = self.gpu.kfd().shared.release(DestroyQueue {
            queue_id: self.id,
            pad: 0,
        });
        if destroyed {
            // SAFETY: nothing else takes the parts, and they are not used after this.
            unsafe { ManuallyDrop::drop(&mut self.parts) };
        }
        // Else the GPU still has the queue: its memory stays until the process ends.
    }
}
