//! Conversion between element types.

use super::elementwise::Elementwise;
use crate::{Buffer, DType, Device, Family, Result, View};

const OP: &str = "cast";

/// The elements in another type, as Rust's `as` and the crates `half` and `float8` convert them: integers wrap into integers; floats
/// saturate into integers, with NaN as 0; conversions to floats round to nearest even, with integers going to the small floats
/// by way of `f32`; `f8e4m3` saturates at ±448.
///
/// The same type gives a contiguous copy.
///
/// # Errors
/// [`Error::InvalidView`](crate::Error::InvalidView), [`Error::TooLarge`](crate::Error::TooLarge).
pub fn cast(device: &Device, x: &View, to: DType) -> Result<Buffer> {
    let kernel = Elementwise::new(OP, [x], to)?;
    if x.dtype == to && x.is_contiguous() {
        let size = to.size_in_bytes();
        let bytes = x.elem_count() * size;
        let copy = device.alloc(bytes)?;
        device.copy(x.buffer, x.offset * size, &copy, 0, bytes)?;
        return Ok(copy);
    }
    kernel.run(
        device,
        Family::Cast,
        &format!("cast_{}_{to}", x.dtype),
        [x],
        to,
        &[],
    )
}
