//! Copies between devices without a link, by way of host memory that both reach.

use crate::device::Device;
use crate::lane::Transfer;
use crate::memory::Place;
use crate::runtime::Runtime;
use crate::stream::Stream;
use candle_kfd::Kind;
use hip_abi::error::{HipError, HipResult};

/// Bytes that are on their way at a time.
const CHUNK: usize = 4 << 20;

/// Copies behind a stream's work. The host waits: neither device could wait for the other's signals.
///
/// # Safety
/// Both places have so many bytes, and stay until this returns.
///
/// # Errors
/// [`HipError::NotSupported`] for pageable memory, which the stream's device cannot hand on.
pub(crate) unsafe fn copy(
    runtime: &'static Runtime,
    stream: &Stream,
    (to, target): (u64, Place),
    (from, source): (u64, Place),
    bytes: usize,
) -> HipResult {
    let owner = |place| match place {
        Place::Device(ordinal) => Ok(&runtime.devices[ordinal]),
        Place::Pinned => Ok(stream.device),
        Place::Pageable => Err(HipError::NotSupported),
    };
    let (reader, writer): (&Device, &Device) = (owner(source)?, owner(target)?);
    stream.synchronize()?;
    let chunk = reader.gpu.allocate(CHUNK.min(bytes), Kind::Gtt);
    let chunk = chunk.map_err(|error| reader.failed(error))?;
    let shown = chunk.map_to(std::slice::from_ref(&writer.gpu));
    shown.map_err(|error| writer.failed(error))?;
    let step = |device: &Device, transfer| {
        // SAFETY: the chunk is the device's, and what was handed out is the caller's promise.
        let point = unsafe { device.copies()?.run(&device.pool, Vec::new(), transfer) };
        device.wait(&point.map_err(|error| device.failed(error))?)
    };
    let mut copied = Ok(());
    for start in (0..bytes).step_by(CHUNK) {
        let bytes = CHUNK.min(bytes - start) as u64;
        let (from, to) = (from + start as u64, to + start as u64);
        let middle = chunk.address();
        let halves = [
            (
                reader,
                Transfer::Copy {
                    to: middle,
                    from,
                    bytes,
                },
            ),
            (
                writer,
                Transfer::Copy {
                    to,
                    from: middle,
                    bytes,
                },
            ),
        ];
        copied = halves
            .into_iter()
            .try_for_each(|(device, half)| step(device, half));
        if copied.is_err() {
            break;
        }
    }
    if copied.is_err() {
        // A lost device may use it yet.
        std::mem::forget(chunk);
    }
    copied
}
