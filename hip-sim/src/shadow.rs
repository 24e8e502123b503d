//! The shadow: a byte for every byte of the reserved range that tells what a kernel may read and write.
//!
//! With several devices, each has a view of the shadow: the same memory at another address, in which the parts of
//! devices whose memory it may not access are empty, so that its kernels see nothing allocated there.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// One device's view.
struct View(usize);

pub(crate) struct Shadow {
    /// What is behind all views; none with one device.
    file: Option<OwnedFd>,
    truth: usize,
    views: Vec<View>,
    /// Bytes of the range per device.
    slice: usize,
}

/// How a mapping is made: of a file from the same offset on, or empty.
fn map(at: Option<usize>, bytes: usize, file: Option<(&OwnedFd, usize)>) -> usize {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    let kind = match file {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    };
    let (descriptor, offset) = file.map_or((-1, 0), |(f, offset)| (f.as_raw_fd(), offset));
    // SAFETY: without an address nothing that exists is touched; with one, a part of an earlier mapping of this module
    // is replaced, of which nobody holds a reference.
    let address = unsafe {
        libc::mmap(
            at.unwrap_or(0) as *mut libc::c_void,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            kind | fixed | libc::MAP_NORESERVE,
            descriptor,
            offset as libc::off_t,
        )
    };
    assert!(
        address != libc::MAP_FAILED,
        "hip-sim: cannot reserve {bytes} bytes of address space; set HIP_SIM_MEMORY lower"
    );
    address as usize
}

impl Shadow {
    /// The shadow of a range of `size` bytes, whose first `devices` times `slice` bytes belong to the devices.
    pub fn new(devices: usize, slice: usize, size: usize) -> Shadow {
        if devices < 2 {
            let truth = map(None, size, None);
            return Shadow {
                file: None,
                truth,
                views: vec![View(truth)],
                slice,
            };
        }
        // SAFETY: the name is a C string.
        let descriptor =
            unsafe { libc::memfd_create(c"hip-sim-shadow".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(
            descriptor >= 0,
            "hip-sim: no memory for the shadow of {devices} devices"
        );
        // SAFETY: the descriptor was just made and is nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: the descriptor is open.
        let sized = unsafe { libc::ftruncate(file.as_raw_fd(), size as libc::off_t) };
        assert!(
            sized == 0,
            "hip-sim: no shadow of {size} bytes; set HIP_SIM_MEMORY lower"
        );
        let truth = map(None, size, Some((&file, 0)));
        let shadow = Shadow {
            views: (0..devices).map(|_| View(map(None, size, None))).collect(),
            file: Some(file),
            truth,
            slice,
        };
        // What belongs to no device is everyone's.
        let rest = devices * slice;
        for (device, view) in shadow.views.iter().enumerate() {
            map(
                Some(view.0 + rest),
                size - rest,
                shadow.file.as_ref().map(|f| (f, rest)),
            );
            shadow.show(device, device, true);
        }
        shadow
    }

    /// Address of the shadow byte of the first reserved byte.
    pub fn truth(&self) -> usize {
        self.truth
    }

    /// The same address in a device's view.
    pub fn view(&self, device: usize) -> usize {
        self.views[device].0
    }

    /// Shows a device what another one has, or hides it. Kernels must not run on it meanwhile.
    pub fn show(&self, device: usize, of: usize, visible: bool) {
        let Some(file) = &self.file else { return };
        let offset = of * self.slice;
        let source = visible.then_some((file, offset));
        map(Some(self.views[device].0 + offset), self.slice, source);
    }

    /// Zeroes whole pages and gives them back to the system.
    pub fn release(&self, first: usize, bytes: usize) {
        let advice = match self.file {
            Some(_) => libc::MADV_REMOVE,
            None => libc::MADV_DONTNEED,
        };
        // SAFETY: whole pages of the shadow, which is a mapping of this module.
        let done = unsafe { libc::madvise(first as *mut libc::c_void, bytes, advice) };
        if done != 0 {
            // SAFETY: as above.
            unsafe { std::ptr::write_bytes(first as *mut u8, 0, bytes) };
        }
    }
}
