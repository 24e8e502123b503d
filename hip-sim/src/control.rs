//! Functions of the simulator's own: what tests read and set. [`crate::client`] calls them in the loaded library.
#![allow(clippy::missing_safety_doc)]

use crate::inject::Failure;
use crate::sim::sim;
use std::ffi::{c_char, c_int, CStr};
use std::sync::atomic::{AtomicU64, Ordering};

/// What has been done since the start or the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Kernels launched.
    pub launches: u64,
    /// Copies.
    pub copies: u64,
    /// Memsets.
    pub memsets: u64,
    /// rocBLAS products, a batch counting once.
    pub gemms: u64,
    /// Device, stream and event synchronisations.
    pub synchronizations: u64,
    /// Successful `hipMalloc` calls.
    pub mallocs: u64,
    /// Successful `hipFree` calls.
    pub frees: u64,
    /// Bytes allocated now on all devices; a reset leaves them.
    pub live_bytes: u64,
    /// Most bytes allocated at one time.
    pub peak_bytes: u64,
    /// Graphs launched; their kernels and copies count as well.
    pub graphs: u64,
    /// Calls of HIP functions that need a device, whatever came of them.
    pub calls: u64,
}

/// Writes the counters.
#[no_mangle]
pub unsafe extern "C" fn hip_sim_counters(out: *mut Counters) {
    let sim = sim();
    let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    let counters = Counters {
        launches: read(&sim.counters.launches),
        copies: read(&sim.counters.copies),
        memsets: read(&sim.counters.memsets),
        gemms: read(&sim.counters.gemms),
        synchronizations: read(&sim.counters.synchronizations),
        mallocs: read(&sim.memory.mallocs),
        frees: read(&sim.memory.frees),
        live_bytes: read(&sim.memory.live_bytes),
        peak_bytes: read(&sim.memory.peak_bytes),
        graphs: read(&sim.counters.graphs),
        calls: read(&sim.counters.calls),
    };
    if !out.is_null() {
        // SAFETY: not null; the caller's pointer.
        unsafe { *out = counters };
    }
}

/// Sets all counters to zero but the live bytes, at which the peak starts anew.
#[no_mangle]
pub extern "C" fn hip_sim_reset_counters() {
    let sim = sim();
    crate::miopen::reset();
    let crate::sim::Counters {
        launches,
        copies,
        memsets,
        gemms,
        synchronizations,
        graphs,
        calls,
    } = &sim.counters;
    for counter in [
        launches,
        copies,
        memsets,
        gemms,
        synchronizations,
        graphs,
        calls,
        &sim.memory.mallocs,
        &sim.memory.frees,
    ] {
        counter.store(0, Ordering::SeqCst);
    }
    sim.memory.peak_bytes.store(
        sim.memory.live_bytes.load(Ordering::SeqCst),
        Ordering::SeqCst,
    );
}

/// Makes the `nth` call from now of a kind, by its name in `HIP_SIM_FAIL`, fail; 0 takes that back. 0 if the kind is
/// known.
#[no_mangle]
pub unsafe extern "C" fn hip_sim_inject(kind: *const c_char, nth: u64) -> c_int {
    if kind.is_null() {
        return 1;
    }
    // SAFETY: not null; the caller passes a C string.
    match unsafe { CStr::from_ptr(kind) }
        .to_str()
        .ok()
        .and_then(Failure::parse)
    {
        Some(failure) => {
            sim().config.failures.arm(failure, nth);
            0
        }
        None => 1,
    }
}

/// Turns on the wrong results of a comma list, as `HIP_SIM_WRONG` has it, and all others off. 0 if all are known; else
/// nothing changes. Not to be called while a kernel runs.
#[no_mangle]
pub unsafe extern "C" fn hip_sim_wrong(faults: *const c_char) -> c_int {
    if faults.is_null() {
        return 1;
    }
    // SAFETY: not null; the caller passes a C string.
    let text = unsafe { CStr::from_ptr(faults) }.to_str();
    let done = text.map_or(1, |text| sim().config.wrong.set(text).is_err() as c_int);
    sim().show_peers();
    done
}

/// Changes which device reaches which, as `HIP_SIM_PEERS` has it, and takes back all access that was enabled. 0 if the
/// text is understood; else nothing changes. Not to be called while a kernel runs.
#[no_mangle]
pub unsafe extern "C" fn hip_sim_peers(links: *const c_char) -> c_int {
    if links.is_null() {
        return 1;
    }
    // SAFETY: not null; the caller passes a C string.
    let text = unsafe { CStr::from_ptr(links) }.to_str();
    text.map_or(1, |text| sim().set_peers(text).is_err() as c_int)
}

/// Takes the findings, one a line, into a buffer of `len` bytes with a zero at the end. Returns the bytes that it
/// needs; if they are more than `len`, nothing is written or taken.
#[no_mangle]
pub unsafe extern "C" fn hip_sim_take_reports(buffer: *mut c_char, len: usize) -> usize {
    let reports = &sim().reports;
    let lines = reports.take();
    let text = lines.join("\n");
    let needed = text.len() + 1;
    if buffer.is_null() || needed > len {
        reports.put_back(lines);
        return needed;
    }
    // SAFETY: the buffer has room for the text and the zero.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), text.len());
        *buffer.add(text.len()) = 0;
    }
    needed
}

/// Verifies the guard zones of all allocations and returns how many devices have a broken one.
#[no_mangle]
pub extern "C" fn hip_sim_check_guards() -> c_int {
    let sim = sim();
    (0..sim.devices.len())
        .filter(|d| sim.check_guards(*d).is_err())
        .count() as c_int
}

/// Sets the size of a device's memory; what is allocated stays. 0 if the size is possible.
#[no_mangle]
pub extern "C" fn hip_sim_set_memory_limit(device: c_int, bytes: u64) -> c_int {
    sim()
        .memory
        .set_limit(device as usize, bytes as usize)
        .is_err() as c_int
}
