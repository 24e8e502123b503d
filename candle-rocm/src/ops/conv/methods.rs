//! The ways to compute a convolution, and which one when.

use super::problem::{Image, Problem};
use super::{Method, WORKSPACE_BYTES};
use crate::blas::{matmul_into, Output};
use crate::dtype::FLOATS_WITH_F64;
use crate::kernels::{kernels, Ptr};
use crate::ops::copy::{check_count, contiguous};
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::conv::Geometry;

kernels! {
    /// A thread for each output.
    direct = "{direction}_direct_{dtype}" [direction: &'static str = ["conv", "conv_transpose"],
            dtype: DType = DType::ALL]
        in Family::Conv => (x: Ptr, w: Ptr, dst: Ptr, n: u32, geometry: Geometry);

    /// What a product with the kernel takes, for some of the outputs.
    im2col = "im2col_{dtype}" [dtype: DType = FLOATS_WITH_F64] in Family::Conv
        => (x: Ptr, columns: Ptr, n: u32, first: u32, positions: u32, geometry: Geometry);

    /// The sums of what a product with a transposed kernel gives, for some of the channels.
    col2im = "col2im_{dtype}" [dtype: DType = FLOATS_WITH_F64] in Family::Conv
        => (columns: Ptr, dst: Ptr, n: u32, channels: u32, geometry: Geometry);
}

/// Output channels up to which a plain convolution is computed directly: columns would be written and read for so few
/// products each. An estimate from memory traffic, not a measurement.
const DIRECT_MAX_OUTPUTS: usize = 4;
/// Products per output element up to which a convolution is computed directly, when a matrix product would mostly move
/// its columns. An estimate from memory traffic, not a measurement.
const DIRECT_MAX_PRODUCTS: usize = 16;

impl Problem<'_> {
    /// The method that suits the sizes.
    fn select(&self) -> Method {
        let thin = if self.transposed {
            // One channel's columns, which a workspace cannot divide.
            let columns = self.taps().saturating_mul(self.pixels());
            self.c_in() <= DIRECT_MAX_PRODUCTS
                || columns.saturating_mul(self.sum_dtype().size_in_bytes()) > WORKSPACE_BYTES
        } else {
            self.c_out() <= DIRECT_MAX_OUTPUTS
                || self.c_in().saturating_mul(self.taps()) <= DIRECT_MAX_PRODUCTS
        };
        if !self.has_products() {
            Method::Direct
        } else if self.is_product() {
            Method::Product
        } else if thin {
            Method::Direct
        } else {
            Method::Columns {
                workspace_bytes: WORKSPACE_BYTES,
            }
        }
    }

    pub(super) fn run(&self, device: &Device, method: Option<Method>) -> Result<Buffer> {
        let dims = [self.batch(), self.c_out(), self.output[0], self.output[1]];
        let bytes = (dims.iter().chain(&[self.x.dtype.size_in_bytes()]))
            .try_fold(1usize, |n, &d| n.checked_mul(d))
            .ok_or(Error::TooLarge {
                op: self.op,
                what: "size of the result",
                value: usize::MAX,
                limit: isize::MAX as usize,
            })?;
        if !self.x.buffer.device().same_device(device)
            || !self.kernel.buffer.device().same_device(device)
        {
            return Err(Error::DeviceMismatch { op: self.op });
        }
        let chosen = method.unwrap_or_else(|| self.select());
        if chosen != Method::Direct && !self.has_products() {
            return Err(Error::InvalidArgument {
                op: self.op,
                reason: format!(
                    "matrices of {} cannot be multiplied; choose Method::Direct",
                    self.x.dtype
                ),
            });
        }
        if chosen == Method::Product && !self.is_product() {
            return Err(Error::InvalidArgument {
                op: self.op,
                reason: "this is not a plain matrix product; choose another method".into(),
            });
        }
        if bytes == 0 || self.x.dims.contains(&0) {
            return device.alloc_zeroed(bytes);
        }
        let dst = device.alloc(bytes)?;
        let own = || self.enqueue(device, chosen, &dst);
        // Products need no columns, and direct ones move too little for them: nothing to win with MIOpen's set-up.
        let columns = matches!(chosen, Method::Columns { .. });
        if method.is_some() || !columns || !self.in_miopen(device, &dst, &own)? {
            own()?;
        }
        Ok(dst)
    }

    fn enqueue(&self, device: &Device, method: Method, dst: &Buffer) -> Result<()> {
        match method {
            Method::Product => self.product(device, dst),
            Method::Direct => self.direct(device, dst),
            Method::Columns { workspace_bytes } if self.transposed => {
                self.columns_transposed(device, dst, workspace_bytes)
            }
            Method::Columns { workspace_bytes } => {
                self.columns_forward(device, dst, workspace_bytes)
            }
        }
    }

    fn direct(&self, device: &Device, dst: &Buffer) -> Result<()> {
        let count = self.batch() * self.c_out() * self.positions();
        check_count(self.op, count)?;
        let direction = if self.transposed {
            "conv_transpose"
        } else {
            "conv"
        };
        // SAFETY: the operands lie in their views and fit together, and the output has room for the result.
        unsafe {
            direct::of(direction, self.x.dtype)?.launch(
                device,
                LaunchConfig::for_elements(count),
                Ptr::at(self.x.buffer, self.x.byte_offset(0)),
                Ptr::at(self.kernel.buffer, self.kernel.byte_offset(0)),
                Ptr::to(dst),
                count as u32,
                self.geometry()?,
            )
        }
    }

    /// The kernel without gaps, `[c_out, c_in, …]` or, transposed, `[c_in, c_out, …]`, and its offset.
    pub(super) fn weights(&self, device: &Device) -> Result<(Option<Buffer>, usize)> {
        let stored = self.stored_kernel();
        let view = stored.view();
        if view.is_contiguous() {
            return Ok((None, stored.offset));
        }
        Ok((Some(contiguous(device, &view)?), 0))
    }

    /// All input pixels times the kernel, of shape `c_out x c_in` (transposed: its transpose).
    fn product(&self, device: &Device, dst: &Buffer) -> Result<()> {
        let output = Output {
            buffer: dst,
            dtype: self.x.dtype,
            offset: 0,
            row_stride: self.positions(),
            batch_stride: self.c_out() * self.positions(),
        };
        let (copy, offset) = self.weights(device)?;
        let weights = copy.as_ref().unwrap_or(self.kernel.buffer);
        let mut copy = None;
        let x = (self.x).or_contiguous(device, self.x.pixel_stride().is_some(), &mut copy)?;
        self.multiply_pixels(
            device,
            &x,
            (weights, offset),
            (0, self.batch()),
            (0, self.c_out()),
            &output,
        )
    }

    /// The transpose of a kernel's rows `[c_in, c_out * taps]`, for `channels` of the outputs, times the pixels of
    /// `images`; both are a first and a count. With one tap, plain kernels are multiplied, too.
    fn multiply_pixels(
        &self,
        device: &Device,
        x: &Image,
        (weights, offset): (&Buffer, usize),
        (image, images): (usize, usize),
        (channel, channels): (usize, usize),
        output: &Output,
    ) -> Result<()> {
        let (rows, c_in, pixels) = (channels * self.taps(), self.c_in(), self.pixels());
        let strides = if self.transposed {
            [0, 1, self.c_out() * self.taps()]
        } else {
            [0, c_in, 1]
        };
        let lhs = View {
            buffer: weights,
            dtype: x.dtype,
            offset: offset + channel * self.taps() * strides[1],
            dims: &[images, rows, c_in],
            strides: &strides,
        };
        let rhs = View {
            buffer: x.buffer,
            dtype: x.dtype,
            offset: x.offset + image * x.strides[0],
            dims: &[images, c_in, pixels],
            strides: &[
                x.strides[0],
                x.strides[1],
                x.pixel_stride()
                    .expect("made contiguous if one step does not walk it"),
            ],
        };
        matmul_into(device, (images, rows, pixels, c_in), &lhs, &rhs, output)
    }

    fn columns_forward(&self, device: &Device, dst: &Buffer, workspace: usize) -> Result<()> {
        let (dtype, c_out, positions) = (self.x.dtype, self.c_out(), self.positions());
        let inner = self.size("size of a column", &[self.c_in(), self.taps()])?;
        let room = (workspace / dtype.size_in_bytes()).min(u32::MAX as usize) / inner;
        let tile = room.clamp(1, positions);
        let images = (room / positions).clamp(1, self.batch());
        let columns = self.workspace(device, dtype, &[images, inner, tile])?;
        let (copy, offset) = self.weights(device)?;
        let weights = copy.as_ref().unwrap_or(self.kernel.buffer);
        for image in (0..self.batch()).step_by(images) {
            let images = images.min(self.batch() - image);
            for first in (0..positions).step_by(tile) {
                let tile = tile.min(positions - first);
                let count = images * self.c_in() * tile;
                check_count(self.op, count)?;
                // SAFETY: the images lie in their view, and the workspace has room for the columns of the tile.
                unsafe {
                    im2col::of(dtype)?.launch(
                        device,
                        LaunchConfig::for_elements(count),
                        Ptr::at(self.x.buffer, self.x.byte_offset(image)),
                        Ptr::to(&columns),
                        count as u32,
                        first as u32,
                        tile as u32,
                        self.geometry()?,
                    )?;
                }
                let lhs = View {
                    buffer: weights,
                    dtype,
                    offset,
                    dims: &[images, c_out, inner],
                    strides: &[0, inner, 1],
                };
                let rhs = View {
                    buffer: &columns,
                    dtype,
                    offset: 0,
                    dims: &[images, inner, tile],
                    strides: &[inner * tile, tile, 1],
                };
                let output = Output {
                    buffer: dst,
                    dtype,
                    offset: image * c_out * positions + first,
                    row_stride: positions,
                    batch_stride: c_out * positions,
                };
                matmul_into(device, (images, c_out, tile, inner), &lhs, &rhs, &output)?;
            }
        }
        Ok(())
    }

    fn columns_transposed(&self, device: &Device, dst: &Buffer, workspace: usize) -> Result<()> {
        let (dtype, c_out, pixels) = (self.sum_dtype(), self.c_out(), self.pixels());
        let rows = self.size("columns of a channel", &[self.taps(), pixels])?;
        let room = (workspace / dtype.size_in_bytes()).min(u32::MAX as usize) / rows;
        let channels = room.clamp(1, c_out);
        let images = (room / c_out).clamp(1, self.batch());
        let columns = self.workspace(device, dtype, &[images, channels, rows])?;
        let (copy, offset) = self.weights(device)?;
        let weights = copy.as_ref().unwrap_or(self.kernel.buffer);
        let mut copy = None;
        let x = (self.x).or_contiguous(device, self.x.pixel_stride().is_some(), &mut copy)?;
        for image in (0..self.batch()).step_by(images) {
            let images = images.min(self.batch() - image);
            for channel in (0..c_out).step_by(channels) {
                let channels = channels.min(c_out - channel);
                let output = Output {
                    buffer: &columns,
                    dtype,
                    offset: 0,
                    row_stride: pixels,
                    batch_stride: channels * rows,
                };
                self.multiply_pixels(
                    device,
                    &x,
                    (weights, offset),
                    (image, images),
                    (channel, channels),
                    &output,
                )?;
                let count = images * channels * self.positions();
                check_count(self.op, count)?;
                let first = (image * c_out + channel) * self.positions();
                // SAFETY: the workspace has the columns of these channels, and the output has them.
                unsafe {
                    col2im::of(self.x.dtype)?.launch(
                        device,
                        LaunchConfig::for_elements(count),
                        Ptr::to(&columns),
                        Ptr::at(dst, first * self.x.dtype.size_in_bytes()),
                        count as u32,
                        channels as u32,
                        self.geometry()?,
                    )?;
                }
            }
        }
        Ok(())
    }

    fn workspace(&self, device: &Device, dtype: DType, dims: &[usize; 3]) -> Result<Buffer> {
        let [a, b, c] = *dims;
        device.alloc(self.size("workspace", &[a, b, c, dtype.size_in_bytes()])?)
    }
}
