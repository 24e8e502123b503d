//! Quantized blocks to floating point.

use super::format::DeviceFormat;
use super::{Format, QUANTIZED};
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::ops::cast::cast;
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use ggml_formats::Encoding;

kernels! {
    /// A thread for each group of elements.
    unpack = "dequantize_{format}_{dtype}" [format: Format = QUANTIZED, dtype: DType = FLOATS]
        in family(format) => (groups: u64, x: Ptr, y: Ptr);
}

fn family(format: Format) -> Family {
    match format.encoding() {
        Encoding::Codebook | Encoding::Levels => Family::DequantizeIq,
        Encoding::Plain | Encoding::Floats | Encoding::Small | Encoding::K => Family::Dequantize,
    }
}

/// Consecutive elements that one thread of the kernels handles.
const GROUP: usize = 8;

/// `elem_count` elements of a quantized buffer, from `offset` bytes on, as `to`: f32, f16 or bf16 (any dtype that
/// [`cast`] has, from the plain formats). Values are computed in f32 and rounded once.
///
/// # Errors
/// [`Error::InvalidArgument`] for a count that ends inside a block or, in a plain format, an offset inside an element,
/// [`Error::OutOfBounds`] if the buffer is shorter, [`Error::UnsupportedDType`] for other dtypes.
pub fn dequantize(
    device: &Device,
    format: Format,
    quantized: &Buffer,
    offset: usize,
    elem_count: usize,
    to: DType,
) -> Result<Buffer> {
    const OP: &str = "dequantize";
    quantized.check_range(OP, offset, format.size_of(OP, elem_count)?)?;
    if let Some(dtype) = format.plain() {
        let size = dtype.size_in_bytes();
        if !offset.is_multiple_of(size) {
            return Err(Error::InvalidArgument {
                op: OP,
                reason: format!(
                    "{offset} bytes before the first element are not a multiple of {dtype}'s {size}"
                ),
            });
        }
        let view = View {
            buffer: quantized,
            dtype,
            offset: offset / size,
            dims: &[elem_count],
            strides: &[1],
        };
        return cast(device, &view, to);
    }
    if !matches!(to, DType::F32 | DType::F16 | DType::BF16) {
        return Err(Error::UnsupportedDType { op: OP, dtype: to });
    }
    let bytes = elem_count
        .checked_mul(to.size_in_bytes())
        .ok_or(Error::TooLarge {
            op: OP,
            what: "element count",
            value: elem_count,
            limit: usize::MAX / to.size_in_bytes(),
        })?;
    let output = device.alloc(bytes)?;
    if elem_count == 0 {
        return Ok(output);
    }
    let groups = elem_count / GROUP;
    let config = LaunchConfig::for_elements(groups);
    let (x, y) = (Ptr::at(quantized, offset), Ptr::to(&output));
    // SAFETY: the buffer has the blocks, and the output room for their elements.
    unsafe { unpack::of(format, to)?.launch(device, config, groups as u64, x, y)? };
    Ok(output)
}
