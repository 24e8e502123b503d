//! What streams do: kernels, copies, fills.

use crate::across;
use crate::lane::Transfer;
use crate::memory::Place;
use crate::module::Call;
use crate::runtime::Runtime;
use crate::stream::Stream;
use hip_abi::error::{HipError, HipResult};

/// Directions of copies, as HIP numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    HostToHost,
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    /// As the addresses say.
    Default,
}

impl Direction {
    pub fn from_code(code: i32) -> HipResult<Self> {
        match code {
            0 => Ok(Direction::HostToHost),
            1 => Ok(Direction::HostToDevice),
            2 => Ok(Direction::DeviceToHost),
            3 => Ok(Direction::DeviceToDevice),
            4 => Ok(Direction::Default),
            _ => Err(HipError::InvalidMemcpyDirection),
        }
    }

    /// Whether a copy from one place to another has this direction. Pinned memory is the host's and every device's.
    fn suits(self, from: Place, to: Place) -> bool {
        let (from_device, to_device) = match self {
            Direction::HostToHost => (false, false),
            Direction::HostToDevice => (false, true),
            Direction::DeviceToHost => (true, false),
            Direction::DeviceToDevice => (true, true),
            Direction::Default => return true,
        };
        let suits = |place: Place, device: bool| match place {
            Place::Pinned => true,
            Place::Device(_) => device,
            Place::Pageable => !device,
        };
        suits(from, from_device) && suits(to, to_device)
    }
}

/// Work of a stream, which may be done again.
#[derive(Clone)]
pub(crate) enum Work {
    /// A kernel.
    Kernel(Call),
    /// A copy.
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
        direction: Direction,
    },
    /// Memory in which each byte is set.
    Fill { to: u64, value: u8, bytes: usize },
}

impl Work {
    /// Looks whether it could be enqueued now, as far as that is known before.
    ///
    /// # Errors
    /// As of [`run`](Self::run), for sizes, addresses and directions.
    pub fn check(&self, runtime: &Runtime, stream: &Stream) -> HipResult {
        match self {
            Work::Kernel(call) => {
                let checked = call.launch().validate(&stream.device.gpu);
                checked.map_err(|error| stream.device.failed(error))
            }
            Work::Copy {
                to,
                from,
                bytes,
                direction,
            } => sides(runtime, *to, *from, *bytes, *direction).map(drop),
            Work::Fill { to, bytes, .. } => filled(runtime, *to, *bytes).map(drop),
        }
    }

    /// Enqueues it.
    ///
    /// # Safety
    /// Kernels are given arguments that are theirs; pageable memory of a copy has as many bytes as it says, and memory
    /// that was handed out stays until the work is done.
    ///
    /// # Errors
    /// [`HipError::InvalidValue`] for memory that is not as the copy says.
    pub unsafe fn run(&self, runtime: &'static Runtime, stream: &Stream) -> HipResult {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Work::Kernel(call) => stream.launch(&call.launch()),
                Work::Copy {
                    to,
                    from,
                    bytes,
                    direction,
                } => copy(runtime, stream, *to, *from, *bytes, *direction),
                Work::Fill { to, value, bytes } => fill(runtime, stream, *to, *value, *bytes),
            }
        }
    }
}

/// Lets a stream's device use memory that was handed out; false if it has no link to the device that has it.
fn reach(runtime: &Runtime, stream: &Stream, address: u64, place: Place) -> HipResult<bool> {
    let device = stream.device;
    match place {
        Place::Device(owner) if owner != device.ordinal => {
            let is_linked = device.is_linked(&runtime.devices[owner]);
            if is_linked {
                runtime.memories.map_to(address, device)?;
            }
            Ok(is_linked)
        }
        _ => Ok(true),
    }
}

/// Where a copy is from and to; none if there is nothing to copy.
fn sides(
    runtime: &Runtime,
    to: u64,
    from: u64,
    bytes: usize,
    direction: Direction,
) -> HipResult<Option<(Place, Place)>> {
    if bytes == 0 {
        return Ok(None);
    }
    if to == 0 || from == 0 {
        return Err(HipError::InvalidValue);
    }
    let source = runtime.memories.locate(from, bytes as u64)?;
    let target = runtime.memories.locate(to, bytes as u64)?;
    match direction.suits(source, target) {
        true => Ok(Some((source, target))),
        false => Err(HipError::InvalidValue),
    }
}

/// Where memory is that is filled; none if there is nothing to fill.
fn filled(runtime: &Runtime, to: u64, bytes: usize) -> HipResult<Option<Place>> {
    if bytes == 0 {
        return Ok(None);
    }
    match runtime.memories.locate(to, bytes as u64)? {
        Place::Pageable => Err(HipError::InvalidValue),
        place => Ok(Some(place)),
    }
}

/// # Safety
/// As of [`Work::run`].
unsafe fn copy(
    runtime: &'static Runtime,
    stream: &Stream,
    to: u64,
    from: u64,
    bytes: usize,
    direction: Direction,
) -> HipResult {
    let Some((source, target)) = sides(runtime, to, from, bytes, direction)? else {
        return Ok(());
    };
    if !(reach(runtime, stream, from, source)? && reach(runtime, stream, to, target)?) {
        // SAFETY: both were looked up.
        return unsafe { across::copy(runtime, stream, (to, target), (from, source), bytes) };
    }
    let staging = &stream.device.staging;
    // SAFETY: what was handed out was looked up with as many bytes, and is not taken back before the device is idle;
    // pageable memory is the caller's promise.
    unsafe {
        match (source, target) {
            (Place::Pageable, Place::Pageable) => {
                stream.synchronize()?;
                std::ptr::copy(from as *const u8, to as *mut u8, bytes);
                Ok(())
            }
            (Place::Pageable, _) => staging.upload(stream, to, from as *const u8, bytes),
            (_, Place::Pageable) => staging.download(stream, to as *mut u8, from, bytes),
            _ => {
                let bytes = bytes as u64;
                stream
                    .transfer(Transfer::Copy { to, from, bytes })
                    .map(drop)
            }
        }
    }
}

/// # Safety
/// As of [`Work::run`].
unsafe fn fill(
    runtime: &'static Runtime,
    stream: &Stream,
    to: u64,
    value: u8,
    bytes: usize,
) -> HipResult {
    let Some(place) = filled(runtime, to, bytes)? else {
        return Ok(());
    };
    let bytes = bytes as u64;
    if !reach(runtime, stream, to, place)? {
        return Err(HipError::InvalidDevice);
    }
    // SAFETY: looked up with as many bytes, and not taken back before the device is idle.
    unsafe {
        stream
            .transfer(Transfer::Fill { to, value, bytes })
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_memory_suits_either_side() {
        let device = Place::Device(0);
        for (code, from, to, suits) in [
            (1, Place::Pageable, device, true),
            (1, Place::Pinned, device, true),
            (1, device, device, false),
            (2, device, Place::Pageable, true),
            (2, device, Place::Pinned, true),
            (2, Place::Pageable, Place::Pageable, false),
            (3, device, Place::Device(1), true),
            (3, Place::Pinned, device, true),
            (3, Place::Pageable, device, false),
            (0, Place::Pageable, Place::Pageable, true),
            (0, device, Place::Pageable, false),
            (4, device, Place::Pageable, true),
        ] {
            let direction = Direction::from_code(code).unwrap();
            assert_eq!(direction.suits(from, to), suits, "{code} {from:?} {to:?}");
        }
        for code in [-1, 5] {
            assert_eq!(
                Direction::from_code(code),
                Err(HipError::InvalidMemcpyDirection)
            );
        }
    }
}
