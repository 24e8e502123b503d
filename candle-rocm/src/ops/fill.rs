//! Writing one value everywhere.

use super::collapse;
use super::elementwise::scalar_arg;
use crate::{Args, Device, Error, Family, LaunchConfig, Result, Scalar, View};

const OP: &str = "fill";

/// Sets every element of `dst`, in place. Elements of the buffer that the view skips keep their values.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the value is of another type, [`Error::InvalidView`], [`Error::TooLarge`] for a strided view of 2^32
/// elements or more.
pub fn fill(device: &Device, dst: &View, value: Scalar) -> Result<()> {
    dst.check(OP)?;
    if dst.dtype != value.dtype() {
        return Err(Error::DTypeMismatch {
            op: OP,
            lhs: dst.dtype,
            rhs: value.dtype(),
        });
    }
    // Repeated elements need to be written once.
    let distinct: Vec<usize> = dst
        .dims
        .iter()
        .zip(dst.strides)
        .map(|(&d, &s)| if s == 0 { d.min(1) } else { d })
        .collect();
    let dst = View {
        dims: &distinct,
        ..*dst
    };
    let n = dst.elem_count();
    if n == 0 {
        return Ok(());
    }
    let size = dst.dtype.size_in_bytes();
    let name = dst.dtype.as_str();
    let start = dst.offset * size;
    if dst.is_contiguous() {
        let args = Args::new().u64(n as u64).ptr(dst.buffer, start);
        let stores = (n * size).div_ceil(16);
        return device
            .kernel(Family::Fill, &format!("fill_{name}"))?
            .launch(LaunchConfig::for_elements(stores), &scalar_arg(args, value));
    }
    let layout = collapse(OP, dst.dims, [dst.strides])?;
    let args = Args::new()
        .u64(n as u64)
        .value(&layout.dims)
        .value(&layout.strides[0])
        .ptr(dst.buffer, start);
    device
        .kernel(Family::Fill, &format!("fill_strided_{name}"))?
        .launch(LaunchConfig::for_elements(n), &scalar_arg(args, value))
}
