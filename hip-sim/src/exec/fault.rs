//! Accesses of device code that the shadow does not allow.

use super::abi::{Dim3, Thread};
use super::block::current_block;
use crate::memory::{Fault, Memory};
use crate::sim::sim;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Findings that are told per launch; the rest are only counted.
const TOLD: u32 = 4;

/// The launch that runs on an OS thread, for reports.
pub(crate) struct Context {
    pub kernel: String,
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
    let Err(fault) = sim.memory.check(address, bytes, write == 0) else {
        return;
    };
    let Some(context) = current() else {
        return;
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
    match fault {
        Fault::OutOfBounds => {
            let verb = if write == 0 { "reads" } else { "writes" };
            let place = describe(&sim.memory, address);
            sim.reports.add_memory_fault(format!(
                "{who}: {verb} {bytes} bytes out of bounds at {address:#x}, {place}"
            ));
        }
        Fault::Uninitialised(at) => {
            let place = describe(&sim.memory, at);
            sim.reports.add(format!(
                "{who}: reads {bytes} bytes at {address:#x} that were never written, {place}"
            ));
        }
    }
}
