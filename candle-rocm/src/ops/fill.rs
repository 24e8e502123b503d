//! Writing one value everywhere.

use super::{collapse, Dims, Strides};
use crate::kernels::{kernels, Element, Ptr};
use crate::{DType, Device, Error, Family, LaunchConfig, Result, Scalar, View};

kernels! {
    /// Neighbouring elements.
    dense = "fill_{dtype}" [dtype: DType = DType::ALL] in Family::Fill => (n: u64, out: Ptr, value: Element);

    /// Elements of any layout.
    strided = "fill_strided_{dtype}" [dtype: DType = DType::ALL] in Family::Fill
        => (n: u64, dims: Dims, strides: Strides, out: Ptr, value: Element);
}

const OP: &str = "fill";

/// Sets every element of `dst`, in place. Elements of the buffer that the view skips keep their values.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the value is of another type, [`Error::InvalidView`], [`Error::TooLarge`] for a strided
/// view of 2^32 elements or more.
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
    let (out, value) = (Ptr::of(&dst), Element::new(value));
    if dst.is_contiguous() {
        let stores = (n * dst.dtype.size_in_bytes()).div_ceil(16);
        let config = LaunchConfig::for_elements(stores);
        // SAFETY: the view was checked and has `n` elements behind each other.
        return unsafe { dense::of(dst.dtype)?.launch(device, config, n as u64, out, value) };
    }
    let layout = collapse(OP, dst.dims, [dst.strides])?;
    let (dims, [strides], config) = (layout.dims, layout.strides, LaunchConfig::for_elements(n));
    let kernel = strided::of(dst.dtype)?;
    // SAFETY: the view was checked.
    unsafe { kernel.launch(device, config, n as u64, dims, strides, out, value) }
}
