//! Products of f8e4m3 matrices. What multiplies halves takes them: f16 has every value of f8e4m3, and products are
//! written in f32, from which each sum is rounded once.

use super::{matmul_into, Output};
use crate::ops::cast::cast;
use crate::view::contiguous_strides;
use crate::{Buffer, DType, Device, Result, View};

/// The product, contiguous. `b`, `m`, `n` and `k` are positive, and the operands checked.
pub(super) fn matmul(
    device: &Device,
    bmnk: (usize, usize, usize, usize),
    lhs: &View,
    rhs: &View,
) -> Result<Buffer> {
    let (b, m, n, _) = bmnk;
    let (left, right) = (Halves::of(device, lhs)?, Halves::of(device, rhs)?);
    let sums = device.alloc(b * m * n * size_of::<f32>())?;
    let output = Output {
        buffer: &sums,
        dtype: DType::F32,
        offset: 0,
        row_stride: n,
        batch_stride: m * n,
    };
    matmul_into(device, bmnk, &left.view(lhs), &right.view(rhs), &output)?;
    let dims = [b * m * n];
    cast(
        device,
        &View::contiguous(&sums, DType::F32, &dims, &[1]),
        DType::F8E4M3,
    )
}

/// An operand as f16. What is repeated by a stride of 0 is not written more than once.
struct Halves {
    buffer: Buffer,
    strides: Vec<usize>,
}

impl Halves {
    fn of(device: &Device, x: &View) -> Result<Self> {
        let once = |(&dim, &stride): (&usize, &usize)| if stride == 0 { 1 } else { dim };
        let dims: Vec<usize> = x.dims.iter().zip(x.strides).map(once).collect();
        let buffer = cast(device, &View { dims: &dims, ..*x }, DType::F16)?;
        let mut strides = contiguous_strides(&dims);
        for (stride, &of_x) in strides.iter_mut().zip(x.strides) {
            if of_x == 0 {
                *stride = 0;
            }
        }
        Ok(Halves { buffer, strides })
    }

    fn view<'a>(&'a self, x: &View<'a>) -> View<'a> {
        View {
            buffer: &self.buffer,
            dtype: DType::F16,
            offset: 0,
            dims: x.dims,
            strides: &self.strides,
        }
    }
}
