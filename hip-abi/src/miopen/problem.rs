//! A convolution of three described tensors: whether they fit together, and what the output's size is.

use super::descriptor::{Convolution, Tensor};
use super::{misused, Failure, Outcome};

/// Element types that MIOpen convolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    F16,
    F32,
    Bf16,
}

impl Type {
    /// By the value of `miopenDataType_t`.
    fn from_code(code: i32) -> Option<Type> {
        Some(match code {
            0 => Type::F16,
            1 => Type::F32,
            5 => Type::Bf16,
            _ => return None,
        })
    }

    pub fn bytes(self) -> usize {
        match self {
            Type::F32 => 4,
            Type::F16 | Type::Bf16 => 2,
        }
    }
}

/// `x` convolved with `w` gives `y`; in the transposed direction `w` is `[c_in, c_out, …]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    pub x: Tensor,
    pub w: Tensor,
    pub y: Tensor,
    pub options: Convolution,
}

/// Size of the output `[batch, channels, height, width]` by MIOpen's rule.
pub(super) fn output(x: &Tensor, w: &Tensor, options: &Convolution) -> Outcome<[usize; 4]> {
    let (&[n, c, height, width], &[w0, w1, kernel_h, kernel_w]) = (&x.dims[..], &w.dims[..]) else {
        return Err(Failure::BadParameter);
    };
    let groups = options.groups;
    let fits = match options.transposed {
        true => w0 == c && c % groups == 0,
        false => w1 * groups == c && w0 % groups == 0,
    };
    if x.data_type != w.data_type || !fits {
        return Err(Failure::BadParameter);
    }
    let size = |axis: usize, size: usize, kernel: usize| {
        let taps = (options.dilation[axis] * (kernel - 1) + 1) as i64;
        let (size, padding) = (size as i64, 2 * options.padding[axis] as i64);
        let stride = options.stride[axis] as i64;
        // Too large a kernel gives an output of 1.
        let output = match options.transposed {
            true => stride * (size - 1) + taps - padding + options.output_padding[axis] as i64,
            false => (size + padding - taps) / stride + 1,
        };
        output.max(1) as usize
    };
    let channels = if options.transposed { w1 * groups } else { w0 };
    Ok([
        n,
        channels,
        size(0, height, kernel_h),
        size(1, width, kernel_w),
    ])
}

impl Problem {
    /// Checks what the real library checks, and that the output is of the right size, which it takes for granted.
    pub fn new(
        function: &str,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        options: Convolution,
    ) -> Outcome<Problem> {
        if y.data_type != x.data_type || y.dims.len() != x.dims.len() {
            return Err(Failure::BadParameter);
        }
        let expected = output(&x, &w, &options)?;
        if y.dims != expected {
            let what = format!(
                "{:?} * {:?} with {options:?} gives {expected:?}, not {:?}; is the padding on the right axis?",
                x.dims, w.dims, y.dims
            );
            return Err(misused(function, what));
        }
        Ok(Problem { x, w, y, options })
    }

    /// The element type, if convolutions of it exist.
    pub fn element(&self) -> Option<Type> {
        Type::from_code(self.x.data_type)
    }

    pub fn is_packed(&self) -> bool {
        [&self.x, &self.w, &self.y].iter().all(|t| t.is_packed())
    }

    pub fn kernel(&self) -> [usize; 2] {
        [self.w.dims[2], self.w.dims[3]]
    }

    /// Input channels that one output sees.
    pub fn c_in(&self) -> usize {
        self.x.dims[1] / self.options.groups
    }

    /// Output channels that one input reaches.
    pub fn c_out(&self) -> usize {
        self.y.dims[1] / self.options.groups
    }

    pub fn outputs(&self) -> usize {
        self.y.dims.iter().product()
    }
}
