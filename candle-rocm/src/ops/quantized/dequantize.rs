//! Quantized blocks to floating point.

use super::GgmlType;
use crate::ops::cast::cast;
use crate::{Args, Buffer, DType, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// Consecutive elements that one thread of the kernels handles.
const GROUP: usize = 8;

/// The first `elem_count` elements of a quantized buffer as `to`: f32, f16 or bf16 (any dtype that
/// [`cast`] has, from the plain formats). Values are computed in f32 and rounded once.
///
/// # Errors
/// [`Error::InvalidArgument`] for a count that ends inside a block, [`Error::OutOfBounds`] if the buffer is
/// shorter, [`Error::UnsupportedDType`] for other dtypes.
pub fn dequantize(
    device: &Device,
    format: GgmlType,
    quantized: &Buffer,
    elem_count: usize,
    to: DType,
) -> Result<Buffer> {
    const OP: &str = "dequantize";
    format.check(OP, quantized, elem_count)?;
    if let Some(dtype) = format.plain() {
        return cast(
            device,
            &View::contiguous(quantized, dtype, &[elem_count], &[1]),
            to,
        );
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
    let family = match format.has_levels() {
        true => Family::DequantizeIq,
        false => Family::Dequantize,
    };
    let name = format!("dequantize_{}_{}", format.name(), to.as_str());
    device.kernel(family, &name)?.launch(
        LaunchConfig::for_elements(groups),
        &Args::new()
            .u64(groups as u64)
            .ptr(quantized, 0)
            .ptr(&output, 0),
    )?;
    Ok(output)
}
