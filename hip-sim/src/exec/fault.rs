//! Accesses of device code that the shadow does not allow.

use super::abi::{Dim3, Thread};
use super::block::current_block;
use crate::memory::{Fault, Memory};
use crate::sim::{sim, Sim};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Findings that are told per launch; the rest are only counted.
const TOLD: u32 = 4;

/// The launch that runs on an OS thread, for reports.
pub(crate) struct Context {
    pub kernel: String,
    pub device: usize,
    pub found: AtomicU32,
}

thread_local! {
    static CONTEXT: Cell<*const Context> = const { Cell::new(std::ptr::null()) };
}

/// Runs work that belongs to a launch on this OS thread.
pub(crate) fn within(context: &Context, work: impl FnOnce()) {
    let outer = CONTEXT.with(|c| c.replace(context));
    work();
    CONTEXT.with(|c| c.set(outer));
}

/// The launch that runs on this OS thread.
fn current<'a>() -> Option<&'a Context> {
    // SAFETY: `within` keeps the context alive while it is set, and what is called from there does not keep it longer.
    unsafe { CONTEXT.with(Cell::get).as_ref() }
}

/// Name of the kernel that runs on this OS thread.
pub(super) fn current_kernel<'a>() -> Option<&'a str> {
    current().map(|context| context.kernel.as_str())
}

/// Where an address lies, in words.
pub(crate) fn describe(memory: &Memory, address: usize) -> String {
    match memory.nearest(address) {
        Some(e) if address < e.start + e.len => format!(
            "byte {} of an allocation of {} bytes",
            address - e.start,
            e.len
        ),
        Some(e) => format!(
            "{} bytes past the end of an allocation of {} bytes",
            address - e.start - e.len,
            e.len
        ),
        None => "in no allocation".to_string(),
    }
}

/// Called by device code for an access whose shadow is not plainly fine.
pub(crate) unsafe extern "C" fn on_fault(
    address: usize,
    bytes: usize,
    write: u32,
    thread: *const Thread,
) {
    let sim = sim();
    let Some(context) = current() else {
        return;
    };
    let closed = sim.closed_peer(context.device, address);
    let fault = match (closed, sim.memory.check(address, bytes, write == 0)) {
        (None, Ok(())) => return over_bad_link(sim, context.device, address, bytes, write == 0),
        (_, fault) => fault,
    };
    if context.found.fetch_add(1, Ordering::Relaxed) >= TOLD {
        return;
    }
    let Dim3 { x, y, z } = current_block();
    // SAFETY: device code passes its own thread.
    let t = unsafe { (*thread).index };
    let who = format!(
        "kernel {}, block ({x},{y},{z}), thread ({},{},{})",
        context.kernel, t.x, t.y, t.z
    );
    let verb = if write == 0 { "reads" } else { "writes" };
    if let Some(peer) = closed {
        let place = describe(&sim.memory, address);
        sim.reports.add_memory_fault(format!(
            "{who}: {verb} {bytes} bytes at {address:#x}, {place} on device {peer}, to which device {} has no access; \
             hipDeviceEnablePeerAccess gives it",
            context.device
        ));
        return;
    }
    match fault {
        Ok(()) => {}
        Err(Fault::OutOfBounds) => {
            let place = describe(&sim.memory, address);
            sim.reports.add_memory_fault(format!(
                "{who}: {verb} {bytes} bytes out of bounds at {address:#x}, {place}"
            ));
        }
        Err(Fault::Uninitialised(at)) => {
            let place = describe(&sim.memory, at);
            sim.reports.add(format!(
                "{who}: reads {bytes} bytes at {address:#x} that were never written, {place}"
            ));
        }
    }
}

/// An access that is fine but goes over a link that gives wrong data, which is why it came here. What is about to be
/// loaded gets a bit that is set.
fn over_bad_link(sim: &Sim, device: usize, address: usize, bytes: usize, reads: bool) {
    let peer = sim.memory.device_of(address);
    let is_bad = |peer| peer != device && sim.config.wrong.spoils_link(device, peer);
    if !peer.is_some_and(is_bad) {
        return;
    }
    match reads {
        // SAFETY: the bytes lie in a live allocation, whose shadow was looked at.
        true => unsafe { *((address + bytes - 1) as *mut u8) |= 1 << 6 },
        false => sim.memory.mark_initialised(address, bytes),
    }
}

/// Flips a bit of a value that was loaded over a link that gives wrong data.
pub(crate) unsafe extern "C" fn on_link(address: usize, value: *mut u8, bytes: usize) {
    let sim = sim();
    let (Some(context), Some(peer)) = (current(), sim.memory.device_of(address)) else {
        return;
    };
    if peer != context.device && sim.config.wrong.spoils_link(context.device, peer) {
        // SAFETY: device code passes its own value.
        unsafe { *value.add(bytes - 1) ^= 1 << 6 };
    }
}
