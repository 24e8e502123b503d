//! Handing a convolution to MIOpen.

use super::problem::{Axis, Problem};
use crate::miopen::{self, Convolution, Operands};
use crate::sync::lock;
use crate::{Buffer, DType, Device, Result};

impl Problem<'_> {
    /// What MIOpen is told; `None` for what it has no solution for, or could compute wrongly: f64, tensors that 32-bit
    /// numbers cannot address, and outputs of transposed convolutions so large that convolving them would not lead back
    /// to the input's size.
    fn for_miopen(&self) -> Option<Convolution> {
        if self.x.dtype == DType::F64
            || (self.axes.iter()).any(|a| a.transposed && a.output_padding >= a.stride)
        {
            return None;
        }
        let int = |n: usize| i32::try_from(n).ok();
        let dims = |dims: [usize; 4]| {
            let elements = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
            int(elements?)?;
            Some(dims.map(|d| d as i32))
        };
        let pair = |option: fn(&Axis) -> usize| {
            Some([int(option(&self.axes[0]))?, int(option(&self.axes[1]))?])
        };
        Some(Convolution {
            dtype: self.x.dtype,
            transposed: self.transposed,
            x: dims(self.x.dims)?,
            kernel: dims(self.stored_kernel().dims)?,
            y: dims([self.batch(), self.c_out(), self.output[0], self.output[1]])?,
            padding: pair(|a| a.padding)?,
            output_padding: pair(|a| a.output_padding)?,
            stride: pair(|a| a.stride)?,
            dilation: pair(|a| a.dilation)?,
        })
    }

    /// Enqueues the convolution in MIOpen; `false` if the own kernels are to compute it. Most of MIOpen's kernels take
    /// only packed tensors, so others are copied.
    pub(super) fn in_miopen(
        &self,
        device: &Device,
        dst: &Buffer,
        own: &dyn Fn() -> Result<()>,
    ) -> Result<bool> {
        let Some(convolution) = self.for_miopen() else {
            return Ok(false);
        };
        let mut miopen = lock(miopen::state(device));
        if miopen.leaves_to_own(device, &convolution) {
            return Ok(false);
        }
        let mut copy = None;
        let packed = self.x.view().is_contiguous();
        let x = self.x.or_contiguous(device, packed, &mut copy)?;
        let (weights, offset) = self.weights(device)?;
        let kernel = weights.as_ref().unwrap_or(self.kernel.buffer);
        let kernel_offset = offset * self.kernel.dtype.size_in_bytes();
        let operands = Operands {
            x: x.buffer.as_ptr().wrapping_byte_add(x.byte_offset(0)),
            kernel: kernel.as_ptr().wrapping_byte_add(kernel_offset),
            y: dst.as_ptr(),
        };
        miopen.convolve(device, &convolution, operands, own)
    }
}
