//! Conversion between element types.

use super::elementwise::Elementwise;
use super::{Dims, Strides};
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Family, Result, View};

kernels! {
    /// Between every two dtypes.
    convert = "cast_{from}_{to}" [from: DType = DType::ALL, to: DType = DType::ALL] in Family::Cast, part from
        => (n: u64, dims: Dims, xs: Strides, x: Ptr, out: Ptr);

    /// To the 8-bit floats of gfx942.
    halve = "halve_{from}_fnuz" [from: DType = [DType::F8E4M3]] in Family::Cast, part from
        => (n: u64, dims: Dims, xs: Strides, x: Ptr, out: Ptr);
}

const OP: &str = "cast";

/// The elements in another type, as Rust's `as` and the crates `half` and `float8` convert them: integers wrap into
/// integers; floats saturate into integers, with NaN as 0; conversions to floats round to nearest even, with integers
/// going to the small floats by way of `f32`; `f8e4m3` saturates at ±448.
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
    let from = x.dtype;
    kernel.run(device, [x], to, |work| {
        let ([xs], [x]) = (work.strides, work.inputs);
        let (config, n, dims, out) = (work.config, work.count, work.dims, work.output);
        // SAFETY: the operands are those of `Work`.
        unsafe { convert::of(from, to)?.launch(device, config, n, dims, xs, x, out) }
    })
}

/// Half of f8e4m3 numbers, contiguous, in the 8-bit floats of gfx942 (FNUZ: bias 8, one zero, one NaN, which is 0x80).
/// The bits of all numbers but -0 are the same.
///
/// # Errors
/// [`Error::InvalidView`](crate::Error::InvalidView), [`Error::TooLarge`](crate::Error::TooLarge).
pub(crate) fn halve_fnuz(device: &Device, x: &View) -> Result<Buffer> {
    let (from, to) = (DType::F8E4M3, DType::U8);
    Elementwise::new(OP, [x], to)?.run(device, [x], to, |work| {
        let ([xs], [x]) = (work.strides, work.inputs);
        let (config, n, dims, out) = (work.config, work.count, work.dims, work.output);
        // SAFETY: the operands are those of `Work`, of one byte for each element.
        unsafe { halve::of(from)?.launch(device, config, n, dims, xs, x, out) }
    })
}
