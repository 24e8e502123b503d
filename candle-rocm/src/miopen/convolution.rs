//! A convolution as MIOpen is told of it, and the descriptors that tell it.

use crate::sys::miopen::{self, ConvolutionDescriptor, MiOpen, MiOpenStatus, TensorDescriptor};
use crate::DType;
use std::ffi::c_int;
use std::ptr;

/// Shapes, options and dtype of a convolution of packed tensors of four dimensions, each of at most 2^31-1 elements; a
/// sequence has height 1. Pairs are vertical and horizontal: what a sequence's options move is its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// Of all three tensors.
    pub dtype: DType,
    /// Whether it is the transposed convolution.
    pub transposed: bool,
    /// `[batch, c_in, height, width]`.
    pub x: [i32; 4],
    /// `[c_out, c_in, height, width]` or, transposed, `[c_in, c_out, height, width]`: as it lies in memory.
    pub kernel: [i32; 4],
    /// `[batch, c_out, height, width]`.
    pub y: [i32; 4],
    /// Zeros around the input or, transposed, what is cut off the output on each side.
    pub padding: [i32; 2],
    /// Added to a transposed convolution's output at the end; less than the stride.
    pub output_padding: [i32; 2],
    /// Distance of neighbouring outputs in the input or, transposed, the other way round.
    pub stride: [i32; 2],
    /// Distance of neighbouring kernel elements.
    pub dilation: [i32; 2],
}

/// MIOpen's number for a dtype that it convolves.
pub(super) fn data_type(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::F16 => miopen::HALF,
        DType::BF16 => miopen::BFLOAT16,
        DType::F32 => miopen::FLOAT,
        _ => return None,
    })
}

/// A failed call: the function and its status.
pub(super) type Failure = (&'static str, MiOpenStatus);

/// Calls a function of MIOpen, and names it if it fails.
macro_rules! call {
    ($library:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match ($library.$function)($($argument),*) {
            $crate::sys::miopen::SUCCESS => Ok(()),
            status => Err((stringify!($function), status)),
        }
    };
}
pub(super) use call;

/// A convolution's four descriptors.
pub(super) struct Descriptors {
    pub x: Tensor,
    pub kernel: Tensor,
    pub y: Tensor,
    pub convolution: Options,
}

// SAFETY: descriptors are memory of the host that any thread may use, one at a time; a mutex holds them.
unsafe impl Send for Descriptors {}

impl Descriptors {
    /// `data_type` is that of the convolution's dtype.
    pub fn new(
        library: &'static MiOpen,
        data_type: c_int,
        c: &Convolution,
    ) -> Result<Self, Failure> {
        Ok(Descriptors {
            x: Tensor::packed(library, data_type, &c.x)?,
            kernel: Tensor::packed(library, data_type, &c.kernel)?,
            y: Tensor::packed(library, data_type, &c.y)?,
            convolution: Options::new(library, c)?,
        })
    }

    /// The size of the output as MIOpen computes it from the other descriptors.
    pub fn output(&self) -> Result<[c_int; 4], Failure> {
        let [mut n, mut c, mut h, mut w] = [0; 4];
        // SAFETY: the descriptors are alive, and the rest receives the sizes.
        unsafe {
            call!(
                self.x.library,
                miopenGetConvolutionForwardOutputDim(
                    self.convolution.raw,
                    self.x.raw,
                    self.kernel.raw,
                    &mut n,
                    &mut c,
                    &mut h,
                    &mut w,
                )
            )?;
        }
        Ok([n, c, h, w])
    }
}

/// A tensor descriptor.
pub(super) struct Tensor {
    library: &'static MiOpen,
    pub raw: TensorDescriptor,
}

impl Tensor {
    fn packed(
        library: &'static MiOpen,
        data_type: c_int,
        dims: &[i32; 4],
    ) -> Result<Self, Failure> {
        let [_, c, h, w] = *dims;
        let strides = [c * h * w, h * w, w, 1];
        let mut tensor = Tensor {
            library,
            raw: ptr::null_mut(),
        };
        // SAFETY: `raw` receives the descriptor; both arrays have four elements.
        unsafe {
            call!(library, miopenCreateTensorDescriptor(&mut tensor.raw))?;
            call!(
                library,
                miopenSetTensorDescriptor(
                    tensor.raw,
                    data_type,
                    4,
                    dims.as_ptr(),
                    strides.as_ptr()
                )
            )?;
        }
        Ok(tensor)
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the descriptor is ours and not used after this. A failure could only leak it.
            unsafe { (self.library.miopenDestroyTensorDescriptor)(self.raw) };
        }
    }
}

/// A convolution descriptor.
pub(super) struct Options {
    library: &'static MiOpen,
    pub raw: ConvolutionDescriptor,
}

impl Options {
    fn new(library: &'static MiOpen, c: &Convolution) -> Result<Self, Failure> {
        let mut options = Options {
            library,
            raw: ptr::null_mut(),
        };
        let mode = if c.transposed {
            miopen::TRANSPOSE
        } else {
            miopen::CONVOLUTION
        };
        let attributes = [
            // Results do not vary from run to run, as with the own kernels.
            (miopen::ATTRIBUTE_DETERMINISTIC, 1),
            // A transposed convolution is a gradient to MIOpen, which it would compute through bf16 on gfx90a.
            (miopen::ATTRIBUTE_FP16_ALTERNATIVE, 0),
        ];
        let ([pad_h, pad_w], [stride_h, stride_w]) = (c.padding, c.stride);
        let ([dilation_h, dilation_w], [extra_h, extra_w]) = (c.dilation, c.output_padding);
        // SAFETY: `raw` receives the descriptor, which the other calls use.
        unsafe {
            call!(library, miopenCreateConvolutionDescriptor(&mut options.raw))?;
            call!(
                library,
                miopenInitConvolutionDescriptor(
                    options.raw,
                    mode,
                    pad_h,
                    pad_w,
                    stride_h,
                    stride_w,
                    dilation_h,
                    dilation_w
                )
            )?;
            if c.transposed {
                call!(
                    library,
                    miopenSetTransposeConvOutputPadding(options.raw, extra_h, extra_w)
                )?;
            }
            for (attribute, value) in attributes {
                call!(
                    library,
                    miopenSetConvolutionAttribute(options.raw, attribute, value)
                )?;
            }
            call!(
                library,
                miopenSetConvolutionFindMode(options.raw, miopen::FIND_MODE_NORMAL)
            )?;
        }
        Ok(options)
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: as for a tensor descriptor.
            unsafe { (self.library.miopenDestroyConvolutionDescriptor)(self.raw) };
        }
    }
}
