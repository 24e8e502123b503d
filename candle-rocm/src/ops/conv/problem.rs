//! The sizes of a convolution: what fits together, and what comes out.

use crate::ops::copy::{check_count, contiguous};
use crate::{Buffer, DType, Device, Error, Result, View};
use candle_rocm_kernels::shared::conv::Geometry;

/// Coordinates, padding included, that kernels compute with.
const MAX_EXTENT: usize = i32::MAX as usize;

/// Options along one spatial dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub transposed: bool,
    pub padding: usize,
    pub output_padding: usize,
    pub stride: usize,
    pub dilation: usize,
}

impl Axis {
    /// The same direction, doing nothing: the height of a sequence.
    pub(super) fn unit(self) -> Self {
        Axis {
            transposed: self.transposed,
            padding: 0,
            output_padding: 0,
            stride: 1,
            dilation: 1,
        }
    }

    /// Size of the output for an input of `size` and a kernel of `k`.
    pub(super) fn output(self, op: &'static str, size: usize, k: usize) -> Result<usize> {
        let invalid = |reason: &str| {
            Err(Error::InvalidArgument {
                op,
                reason: format!("{reason} (input size {size}, kernel size {k}, {self:?})"),
            })
        };
        if k == 0 {
            return invalid("the kernel is empty");
        }
        if self.stride == 0 {
            return invalid("the stride must be positive");
        }
        let padding = self.padding.checked_mul(2);
        let taps = self
            .dilation
            .checked_mul(k - 1)
            .and_then(|n| n.checked_add(1));
        // The extent that holds everything: the padded input, or the output before it is cut.
        let extent = if self.transposed {
            if size == 0 {
                return invalid("the input is empty");
            }
            (size - 1)
                .checked_mul(self.stride)
                .and_then(|n| n.checked_add(taps?)?.checked_add(self.output_padding))
        } else {
            padding.and_then(|n| n.checked_add(size))
        };
        let (Some(extent @ ..=MAX_EXTENT), Some(padding), Some(taps)) = (extent, padding, taps)
        else {
            return Err(Error::TooLarge {
                op,
                what: "size of a spatial dimension with padding",
                value: extent.unwrap_or(usize::MAX),
                limit: MAX_EXTENT,
            });
        };
        if self.transposed {
            match extent.checked_sub(padding) {
                Some(output) => Ok(output),
                None => invalid("the padding is larger than the output"),
            }
        } else {
            match extent.checked_sub(taps) {
                Some(room) => Ok(room / self.stride + 1),
                None => invalid("the dilated kernel is larger than the padded input"),
            }
        }
    }
}

/// A four-dimensional operand in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Image<'a> {
    pub buffer: &'a Buffer,
    pub dtype: DType,
    pub offset: usize,
    pub dims: [usize; 4],
    pub strides: [usize; 4],
}

impl<'a> Image<'a> {
    /// A view of three or four dimensions.
    pub(super) fn new(view: &View<'a>) -> Option<Self> {
        let (dims, strides) = match (view.dims, view.strides) {
            (&[n, c, l], &[sn, sc, sl]) => ([n, c, 1, l], [sn, sc, 0, sl]),
            (&[n, c, h, w], &[sn, sc, sh, sw]) => ([n, c, h, w], [sn, sc, sh, sw]),
            _ => return None,
        };
        Some(Image {
            buffer: view.buffer,
            dtype: view.dtype,
            offset: view.offset,
            dims,
            strides,
        })
    }

    pub(super) fn view(&self) -> View<'_> {
        View {
            buffer: self.buffer,
            dtype: self.dtype,
            offset: self.offset,
            dims: &self.dims,
            strides: &self.strides,
        }
    }

    /// The strides as a kernel takes them; those of dimensions without a second element never count.
    pub(super) fn kernel_strides(&self, op: &'static str) -> Result<[u32; 4]> {
        check_count(op, self.view().span().unwrap_or(usize::MAX))?;
        let mut strides = [0; 4];
        for (d, stride) in strides.iter_mut().enumerate() {
            if self.dims[d] > 1 {
                *stride = self.strides[d] as u32;
            }
        }
        Ok(strides)
    }

    /// Distance of neighbouring pixels, if one step walks all rows.
    pub(super) fn pixel_stride(&self) -> Option<usize> {
        let ([.., h, w], [.., row, column]) = (self.dims, self.strides);
        match (h, w) {
            (1, _) => Some(column),
            (_, 1) => Some(row),
            _ => (column.checked_mul(w) == Some(row)).then_some(column),
        }
    }

    /// A copy without gaps in `copy`, or the image itself if `fits`.
    pub(super) fn or_contiguous<'c>(
        self,
        device: &Device,
        fits: bool,
        copy: &'c mut Option<Buffer>,
    ) -> Result<Image<'c>>
    where
        'a: 'c,
    {
        if fits {
            return Ok(self);
        }
        let [_, c, h, w] = self.dims;
        Ok(Image {
            buffer: copy.insert(contiguous(device, &self.view())?),
            offset: 0,
            strides: [c * h * w, h * w, w, 1],
            ..self
        })
    }

    /// Byte offset of the image with this number in the batch.
    pub(super) fn byte_offset(&self, image: usize) -> usize {
        (self.offset + image * self.strides[0]) * self.dtype.size_in_bytes()
    }
}

/// A convolution whose shapes and options fit together.
pub(super) struct Problem<'a> {
    pub op: &'static str,
    pub transposed: bool,
    pub x: Image<'a>,
    /// `[c_out, c_in, height, width]`, whichever way round it lies in memory.
    pub kernel: Image<'a>,
    /// Height and width.
    pub axes: [Axis; 2],
    pub output: [usize; 2],
}

impl<'a> Problem<'a> {
    pub(super) fn new<const RANK: usize>(
        op: &'static str,
        x: &View<'a>,
        kernel: &View<'a>,
        axis: Axis,
    ) -> Result<Self> {
        if kernel.dtype != x.dtype {
            return Err(Error::DTypeMismatch {
                op,
                lhs: x.dtype,
                rhs: kernel.dtype,
            });
        }
        x.check(op)?;
        kernel.check(op)?;
        let mismatch = || Error::ShapeMismatch {
            op,
            lhs: x.dims.to_vec(),
            rhs: kernel.dims.to_vec(),
        };
        if x.dims.len() != RANK || kernel.dims.len() != RANK {
            return Err(mismatch());
        }
        let (Some(x_image), Some(mut kernel_image)) = (Image::new(x), Image::new(kernel)) else {
            return Err(mismatch());
        };
        if axis.transposed {
            kernel_image.dims.swap(0, 1);
            kernel_image.strides.swap(0, 1);
        }
        if kernel_image.dims[1] != x_image.dims[1] {
            return Err(mismatch());
        }
        let axes = [if RANK == 3 { axis.unit() } else { axis }, axis];
        let ([.., h, w], [.., k_h, k_w]) = (x_image.dims, kernel_image.dims);
        Ok(Problem {
            op,
            transposed: axis.transposed,
            output: [axes[0].output(op, h, k_h)?, axes[1].output(op, w, k_w)?],
            axes,
            x: x_image,
            kernel: kernel_image,
        })
    }

    pub(super) fn batch(&self) -> usize {
        self.x.dims[0]
    }

    pub(super) fn c_in(&self) -> usize {
        self.kernel.dims[1]
    }

    pub(super) fn c_out(&self) -> usize {
        self.kernel.dims[0]
    }

    /// The kernel as it lies in memory: `[c_out, c_in, …]` or, transposed, `[c_in, c_out, …]`.
    pub(super) fn stored_kernel(&self) -> Image<'a> {
        let mut stored = self.kernel;
        if self.transposed {
            stored.dims.swap(0, 1);
            stored.strides.swap(0, 1);
        }
        stored
    }

    /// Kernel elements of one channel.
    pub(super) fn taps(&self) -> usize {
        self.kernel.dims[2] * self.kernel.dims[3]
    }

    /// Pixels of an output image.
    pub(super) fn positions(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Pixels of an input image.
    pub(super) fn pixels(&self) -> usize {
        self.x.dims[2] * self.x.dims[3]
    }

    /// Whether output and input pixels are the same and see nothing but each other.
    pub(super) fn is_product(&self) -> bool {
        self.taps() == 1
            && (self.axes.iter()).all(|a| a.stride == 1 && a.padding == 0 && a.output_padding == 0)
    }

    /// Whether matrices of the dtype can be multiplied.
    pub(super) fn has_products(&self) -> bool {
        matches!(
            self.x.dtype,
            DType::F16 | DType::BF16 | DType::F32 | DType::F64
        )
    }

    /// Type that sums are made in.
    pub(super) fn sum_dtype(&self) -> DType {
        match self.x.dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        }
    }

    pub(super) fn geometry(&self) -> Result<Geometry> {
        let planes = [self.taps(), self.pixels(), self.positions()];
        for count in [self.c_in(), self.c_out()].into_iter().chain(planes) {
            check_count(self.op, count)?;
        }
        // Options beyond the largest coordinate move everything but the first element out of sight, as that does.
        let option = |d: usize, f: fn(&Axis) -> usize| f(&self.axes[d]).min(MAX_EXTENT) as u32;
        let [x_batch, x_channel, x_row, x_column] = self.x.kernel_strides(self.op)?;
        let [w_out, w_in, w_row, w_column] = self.kernel.kernel_strides(self.op)?;
        Ok(Geometry {
            c_in: self.c_in() as u32,
            c_out: self.c_out() as u32,
            in_h: self.x.dims[2] as u32,
            in_w: self.x.dims[3] as u32,
            out_h: self.output[0] as u32,
            out_w: self.output[1] as u32,
            k_h: self.kernel.dims[2] as u32,
            k_w: self.kernel.dims[3] as u32,
            stride_h: option(0, |a| a.stride),
            stride_w: option(1, |a| a.stride),
            pad_h: option(0, |a| a.padding),
            pad_w: option(1, |a| a.padding),
            dilation_h: option(0, |a| a.dilation),
            dilation_w: option(1, |a| a.dilation),
            x_batch,
            x_channel,
            x_row,
            x_column,
            w_out,
            w_in,
            w_row,
            w_column,
        })
    }

    /// A product of sizes.
    pub(super) fn size(&self, what: &'static str, sizes: &[usize]) -> Result<usize> {
        (sizes.iter())
            .try_fold(1usize, |n, &d| n.checked_mul(d))
            .ok_or(Error::TooLarge {
                op: self.op,
                what,
                value: usize::MAX,
                limit: isize::MAX as usize,
            })
    }
}
