//! Device memory: one reserved address range, cut into one heap per device.
//!
//! Every allocation lies between guard zones with a known pattern and starts out filled with ones (NaN in every float
//! format). With checking on, a shadow byte per byte tells what a kernel may read and write.

use crate::error::{HipError, HipResult};
use crate::shadow::Shadow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;

/// Allocations start at multiples of this many bytes.
const ALIGN: usize = 256;
/// Bytes of guard before every allocation, and at least as many after it.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xA5;
const POISON_BYTE: u8 = 0xFF;
/// From this size on the pages of freed memory go back to the operating system.
const RELEASE_BYTES: usize = 1 << 20;
/// Room on top of twice the configured size, so that guards and fragmentation never make a legal allocation fail.
const HEADROOM_BYTES: usize = 1 << 30;
/// Largest dynamic shared memory of a block of any architecture; each worker thread has one window of this size inside
/// the reserved range.
pub(crate) const MAX_SHARED_BYTES: usize = 160 << 10;
const WINDOW_BYTES: usize = MAX_SHARED_BYTES + 4096;
const WINDOWS: usize = 1024;

/// Shadow state: not part of any allocation.
const UNALLOCATED: u8 = 0;
/// Shadow state: allocated, never written.
const UNINITIALISED: u8 = 1;
/// Shadow state: written.
const INITIALISED: u8 = 2;

/// A live allocation (or a variable of a loaded module) that contains some address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub start: usize,
    pub len: usize,
    pub device: usize,
}

impl Extent {
    fn holds(&self, addr: usize, len: usize) -> bool {
        addr >= self.start && len <= self.len && addr - self.start <= self.len - len
    }
}

/// A broken guard zone.
#[derive(Debug)]
pub(crate) struct Overrun {
    pub allocation: Extent,
    /// First changed byte, relative to the start of the allocation; negative before it.
    pub offset: isize,
}

/// What is wrong with a range that device code or the device side of a copy wants to use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    OutOfBounds,
    /// The first byte that was never written.
    Uninitialised(usize),
}

struct Heap {
    /// Free spans by start address.
    free: BTreeMap<usize, usize>,
    /// Payload lengths by payload address.
    live: BTreeMap<usize, usize>,
    used: usize,
    limit: usize,
}

pub(crate) struct Memory {
    base: usize,
    size: usize,
    /// Bytes of address range per device.
    slice: usize,
    heaps: Vec<Mutex<Heap>>,
    shadow: Option<Shadow>,
    /// `__device__` variables of loaded modules: device memory outside the heaps.
    variables: Mutex<BTreeMap<usize, Extent>>,
    free_windows: Mutex<Vec<usize>>,
    next_window: AtomicUsize,
    pub mallocs: AtomicU64,
    pub frees: AtomicU64,
    pub live_bytes: AtomicU64,
    pub peak_bytes: AtomicU64,
}

fn reserve(bytes: usize) -> usize {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert!(
        address != libc::MAP_FAILED,
        "hip-sim: cannot reserve {bytes} bytes of address space; set HIP_SIM_MEMORY lower"
    );
    address as usize
}

impl Memory {
    /// Reserves `limit` bytes per device, and a shadow if `check`.
    pub fn new(devices: usize, limit: u64, check: bool) -> Memory {
        let limit = limit as usize;
        let slice = (2 * limit + HEADROOM_BYTES).next_multiple_of(2 << 20);
        let size = slice * devices + WINDOW_BYTES * WINDOWS;
        let base = reserve(size);
        let heap = |d| {
            let free = BTreeMap::from([(base + d * slice, slice)]);
            Mutex::new(Heap {
                free,
                live: BTreeMap::new(),
                used: 0,
                limit,
            })
        };
        Memory {
            base,
            size,
            slice,
            heaps: (0..devices).map(heap).collect(),
            shadow: check.then(|| Shadow::new(devices, slice, size)),
            variables: Mutex::default(),
            free_windows: Mutex::default(),
            next_window: AtomicUsize::new(0),
            mallocs: AtomicU64::new(0),
            frees: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
        }
    }

    /// Start and length of the reserved range.
    pub fn range(&self) -> (usize, usize) {
        (self.base, self.size)
    }

    /// Address of the shadow byte of the first reserved byte, as a device's kernels see it; 0 without checking.
    pub fn shadow(&self, device: usize) -> usize {
        self.shadow.as_ref().map_or(0, |shadow| shadow.view(device))
    }

    /// Shows the kernels of a device, when checked, what another one has allocated, or hides it.
    pub fn show(&self, device: usize, of: usize, visible: bool) {
        if let Some(shadow) = &self.shadow {
            shadow.show(device, of, visible);
        }
    }

    fn heap(&self, device: usize) -> std::sync::MutexGuard<'_, Heap> {
        self.heaps[device].lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Allocates `bytes` (not 0) on a device: uninitialised, 256-byte aligned.
    pub fn alloc(&self, device: usize, bytes: usize) -> HipResult<usize> {
        let rounded = bytes
            .checked_next_multiple_of(ALIGN)
            .ok_or(HipError::OutOfMemory)?;
        let mut heap = self.heap(device);
        if rounded > heap.limit.saturating_sub(heap.used) {
            return Err(HipError::OutOfMemory);
        }
        let span = GUARD + rounded + GUARD;
        let (start, len) = heap
            .free
            .iter()
            .find(|(_, len)| **len >= span)
            .map(|(s, l)| (*s, *l))
            .ok_or(HipError::OutOfMemory)?;
        heap.free.remove(&start);
        if len > span {
            heap.free.insert(start + span, len - span);
        }
        let payload = start + GUARD;
        heap.live.insert(payload, bytes);
        heap.used += rounded;
        // Under the lock: whoever verifies the guards of live allocations must find them written.
        // SAFETY: the span was just taken from the free list of this mapping, so nobody else uses it.
        unsafe {
            std::ptr::write_bytes(start as *mut u8, GUARD_BYTE, GUARD);
            std::ptr::write_bytes(payload as *mut u8, POISON_BYTE, bytes);
            std::ptr::write_bytes(
                (payload + bytes) as *mut u8,
                GUARD_BYTE,
                rounded - bytes + GUARD,
            );
        }
        self.mark(payload, bytes, UNINITIALISED);
        drop(heap);
        self.mallocs.fetch_add(1, Ordering::Relaxed);
        let live = self.live_bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.peak_bytes.fetch_max(live, Ordering::Relaxed);
        Ok(payload)
    }

    /// Frees the allocation that starts at `addr` and returns what its guards show. Fails for any other address.
    pub fn free(&self, addr: usize) -> HipResult<Option<Overrun>> {
        let device = self.device_of(addr).ok_or(HipError::InvalidValue)?;
        let mut heap = self.heap(device);
        let bytes = heap.live.remove(&addr).ok_or(HipError::InvalidValue)?;
        let rounded = bytes.next_multiple_of(ALIGN);
        let overrun = overrun_of(Extent {
            start: addr,
            len: bytes,
            device,
        });
        self.mark(addr, bytes, UNALLOCATED);
        discard(addr, bytes);
        heap.used -= rounded;
        let (mut start, mut len) = (addr - GUARD, GUARD + rounded + GUARD);
        if let Some((before, n)) = heap.free.range(..start).next_back().map(|(s, n)| (*s, *n)) {
            if before + n == start {
                heap.free.remove(&before);
                (start, len) = (before, n + len);
            }
        }
        if let Some(n) = heap.free.remove(&(start + len)) {
            len += n;
        }
        heap.free.insert(start, len);
        self.frees.fetch_add(1, Ordering::Relaxed);
        self.live_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        Ok(overrun)
    }

    /// Free and total bytes of a device.
    pub fn info(&self, device: usize) -> (usize, usize) {
        let heap = self.heap(device);
        (heap.limit.saturating_sub(heap.used), heap.limit)
    }

    /// Changes the size of a device's memory; refused beyond what the reserved range can hold.
    pub fn set_limit(&self, device: usize, bytes: usize) -> HipResult {
        if device >= self.heaps.len() || bytes > (self.slice - HEADROOM_BYTES) / 2 {
            return Err(HipError::InvalidValue);
        }
        self.heap(device).limit = bytes;
        Ok(())
    }

    /// The device whose address range holds `addr`, allocated or not.
    pub fn device_of(&self, addr: usize) -> Option<usize> {
        let offset = addr.checked_sub(self.base)?;
        (offset < self.slice * self.heaps.len()).then_some(offset / self.slice)
    }

    /// The allocation or module variable that holds `addr`, one past its end not included.
    pub fn find(&self, addr: usize) -> Option<Extent> {
        self.nearest(addr).filter(|e| e.holds(addr, 1))
    }

    /// The allocation or module variable that starts last at or before `addr`.
    pub fn nearest(&self, addr: usize) -> Option<Extent> {
        match self.device_of(addr) {
            Some(device) => {
                let heap = self.heap(device);
                heap.live
                    .range(..=addr)
                    .next_back()
                    .map(|(&start, &len)| Extent { start, len, device })
            }
            None => {
                let variables = self.variables.lock().unwrap_or_else(|e| e.into_inner());
                variables.range(..=addr).next_back().map(|(_, e)| *e)
            }
        }
    }

    /// Whether `addr` is in the reserved range or in a module variable: what a host pointer never is.
    pub fn is_device(&self, addr: usize) -> bool {
        self.device_of(addr).is_some() || self.find(addr).is_some()
    }

    /// Whether `len` bytes at `addr` lie wholly inside one allocation.
    pub fn holds(&self, addr: usize, len: usize) -> bool {
        len == 0 || self.nearest(addr).is_some_and(|e| e.holds(addr, len))
    }

    /// Makes a module's variable known as device memory.
    pub fn add_variable(&self, extent: Extent) {
        self.variables
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .insert(extent.start, extent);
    }

    /// Forgets the variables in a module's address range.
    pub fn remove_variable(&self, start: usize) {
        self.variables
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .remove(&start);
    }

    /// Looks at the guards of every live allocation of a device, and puts broken ones right again, so that one overrun
    /// is found once.
    pub fn take_overruns(&self, device: usize) -> Vec<Overrun> {
        let heap = self.heap(device);
        let extents = heap
            .live
            .iter()
            .map(|(&start, &len)| Extent { start, len, device });
        let overruns: Vec<Overrun> = extents.filter_map(overrun_of).collect();
        for Overrun { allocation, .. } in &overruns {
            let Extent { start, len, .. } = *allocation;
            let tail = len.next_multiple_of(ALIGN) - len + GUARD;
            // SAFETY: the guards surround an allocation that lives while the heap is locked.
            unsafe {
                std::ptr::write_bytes((start - GUARD) as *mut u8, GUARD_BYTE, GUARD);
                std::ptr::write_bytes((start + len) as *mut u8, GUARD_BYTE, tail);
            }
        }
        overruns
    }

    /// Records that `len` bytes at `addr` were written.
    pub fn mark_initialised(&self, addr: usize, len: usize) {
        self.mark(addr, len, INITIALISED);
    }

    /// Checks that `len` bytes at `addr` are allocated and, if `reads`, initialised. Always fine without checking.
    pub fn check(&self, addr: usize, len: usize, reads: bool) -> Result<(), Fault> {
        let (Some(shadow), Some(offset)) = (&self.shadow, addr.checked_sub(self.base)) else {
            return Ok(());
        };
        let shadow = shadow.truth();
        if offset >= self.size {
            return Ok(());
        }
        if len > self.size - offset {
            return Err(Fault::OutOfBounds);
        }
        // SAFETY: the shadow has one byte for each of the `size` reserved bytes.
        let states = unsafe { std::slice::from_raw_parts((shadow + offset) as *const u8, len) };
        if states.iter().all(|s| *s == INITIALISED) {
            return Ok(());
        }
        if states.contains(&UNALLOCATED) {
            return Err(Fault::OutOfBounds);
        }
        match states.iter().position(|s| *s == UNINITIALISED) {
            Some(at) if reads => Err(Fault::Uninitialised(addr + at)),
            _ => Ok(()),
        }
    }

    fn mark(&self, addr: usize, len: usize, state: u8) {
        let (Some(shadow), Some(offset)) = (&self.shadow, addr.checked_sub(self.base)) else {
            return;
        };
        if offset >= self.size || len > self.size - offset {
            return;
        }
        let at = shadow.truth() + offset;
        if state == UNALLOCATED && len >= RELEASE_BYTES {
            return discard_zero(at, len, |first, bytes| shadow.release(first, bytes));
        }
        // SAFETY: the shadow has one byte for each of the `size` reserved bytes.
        unsafe { std::ptr::write_bytes(at as *mut u8, state, len) }
    }

    /// Sets the lowest bit of the words at these byte offsets of each device's memory, as broken cells do. The patterns
    /// of guards and poison have that bit.
    pub fn stick(&self, offsets: &[u64]) {
        for offset in offsets {
            let offset = *offset as usize & !3;
            if offset >= self.slice {
                continue;
            }
            for device in 0..self.heaps.len() {
                let word = (self.base + device * self.slice + offset) as *const AtomicU32;
                // SAFETY: an aligned word of the reserved range; kernels of other streams may use it meanwhile.
                unsafe { (*word).fetch_or(1, Ordering::Relaxed) };
            }
        }
    }

    /// Takes a window for the dynamic shared memory of one worker thread.
    pub fn take_window(&self) -> Option<usize> {
        if let Some(window) = self
            .free_windows
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .pop()
        {
            return Some(window);
        }
        let index = self.next_window.fetch_add(1, Ordering::Relaxed);
        (index < WINDOWS).then(|| self.base + self.slice * self.heaps.len() + index * WINDOW_BYTES)
    }

    /// Gives a window back.
    pub fn return_window(&self, window: usize) {
        self.free_windows
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(window);
    }

    /// Makes a window the fresh dynamic shared memory of a block: `bytes` of it, uninitialised.
    pub fn open_window(&self, window: usize, bytes: usize) {
        // SAFETY: the window belongs to the calling worker thread, and `bytes` is at most its size.
        unsafe { std::ptr::write_bytes(window as *mut u8, POISON_BYTE, bytes) }
        if self.shadow.is_some() {
            self.mark(window, bytes, UNINITIALISED);
            self.mark(window + bytes, WINDOW_BYTES - bytes, UNALLOCATED);
        }
    }
}

/// The first guard byte of an allocation that does not hold the pattern.
fn overrun_of(allocation: Extent) -> Option<Overrun> {
    let Extent { start, len, .. } = allocation;
    let tail = len.next_multiple_of(ALIGN) - len + GUARD;
    // SAFETY: the guards belong to the heap and surround a live allocation.
    let (before, after) = unsafe {
        (
            std::slice::from_raw_parts((start - GUARD) as *const u8, GUARD),
            std::slice::from_raw_parts((start + len) as *const u8, tail),
        )
    };
    let changed = |guard: &[u8]| guard.iter().position(|b| *b != GUARD_BYTE);
    let offset = match (changed(before), changed(after)) {
        (_, Some(at)) => (len + at) as isize,
        (Some(at), None) => at as isize - GUARD as isize,
        (None, None) => return None,
    };
    Some(Overrun { allocation, offset })
}

/// Makes freed memory unusable: pages of large blocks go back to the system, small blocks are poisoned.
fn discard(addr: usize, bytes: usize) {
    if bytes >= RELEASE_BYTES {
        discard_zero(addr, bytes, |first, bytes| {
            // SAFETY: whole pages of an allocation that is being freed, in an anonymous mapping.
            unsafe { libc::madvise(first as *mut libc::c_void, bytes, libc::MADV_DONTNEED) };
        });
    } else {
        // SAFETY: the bytes belong to an allocation that is being freed.
        unsafe { std::ptr::write_bytes(addr as *mut u8, POISON_BYTE, bytes) }
    }
}

/// Zeroes a range, whose whole pages `release` zeroes and gives back to the system.
fn discard_zero(addr: usize, bytes: usize, release: impl FnOnce(usize, usize)) {
    const PAGE: usize = 4096;
    let first = addr.next_multiple_of(PAGE);
    let end = (addr + bytes) / PAGE * PAGE;
    // SAFETY: the range lies inside a mapping of this module and nobody uses it any more.
    unsafe {
        std::ptr::write_bytes(addr as *mut u8, 0, first - addr);
        std::ptr::write_bytes(end as *mut u8, 0, addr + bytes - end);
    }
    release(first, end - first);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_reuse_and_neighbours() {
        let memory = Memory::new(2, 1 << 20, false);
        let a = memory.alloc(0, 100).unwrap();
        let b = memory.alloc(0, 600 << 10).unwrap();
        assert_eq!((a % ALIGN, b % ALIGN), (0, 0));
        assert_eq!(memory.alloc(0, 500 << 10), Err(HipError::OutOfMemory));
        assert_eq!(
            memory.device_of(memory.alloc(1, 500 << 10).unwrap()),
            Some(1)
        );
        assert!(memory.holds(a, 100) && !memory.holds(a, 101) && !memory.holds(a + 99, 2));
        memory.free(b).unwrap();
        assert_eq!(memory.free(b).unwrap_err(), HipError::InvalidValue);
        assert_eq!(memory.alloc(0, 600 << 10).unwrap(), b);
        assert_eq!(memory.info(0).0, (1 << 20) - 256 - (600 << 10));
    }

    #[test]
    fn guards_tell_where() {
        let memory = Memory::new(1, 1 << 20, false);
        let a = memory.alloc(0, 10).unwrap();
        // SAFETY: both bytes are guards of `a` inside the reserved range.
        unsafe { *((a + 10) as *mut u8) = 1 };
        assert_eq!(memory.take_overruns(0)[0].offset, 10);
        assert!(memory.take_overruns(0).is_empty());
        // SAFETY: as above.
        unsafe { *((a - 1) as *mut u8) = 1 };
        assert_eq!(memory.free(a).unwrap().unwrap().offset, -1);
    }

    #[test]
    fn the_shadow_knows_what_was_written() {
        let memory = Memory::new(1, 64 << 20, true);
        let a = memory.alloc(0, 2 << 20).unwrap();
        memory.mark_initialised(a, 8);
        assert_eq!(memory.check(a, 8, true), Ok(()));
        assert_eq!(memory.check(a, 9, true), Err(Fault::Uninitialised(a + 8)));
        assert_eq!(memory.check(a + 8, 4, false), Ok(()));
        assert_eq!(
            memory.check(a + (2 << 20) - 1, 2, false),
            Err(Fault::OutOfBounds)
        );
        memory.free(a).unwrap();
        assert_eq!(memory.check(a, 1, false), Err(Fault::OutOfBounds));
    }
}
