//! rocBLAS's products, and Composable Kernel's attention.

use super::attention;
use crate::blas::{matmul_by_rocblas, Output};
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, spoil_memory, Tensor};
use crate::verify::product::Product;
use crate::{Device, View};
use candle_rocm_kernels::CkInstance;

/// `(b, m, n, k)`: batches, and sizes that no tile divides.
const SIZES: (usize, usize, usize, usize) = (2, 67, 43, 75);

/// A product of row-major matrices that reaches rocBLAS in the given way: as `Cᵀ = Bᵀ Aᵀ`, whose first operand is the
/// right one.
pub(super) fn product(device: &Device, product: &Product) -> Finding {
    let (b, m, n, k) = SIZES;
    let [right, left] = product.transposed;
    let x = Tensor::random(device, product.dtype, &[b, m, k], (-1.0, 1.0))?;
    let y = Tensor::random(device, product.dtype, &[b, k, n], (-1.0, 1.5))?;
    // Transposed in memory, each is read along the other dimension.
    let strides = |transposed: bool, rows: usize, columns: usize| match transposed {
        true => [rows * columns, 1, rows],
        false => [rows * columns, columns, 1],
    };
    let (x_strides, y_strides) = (strides(left, m, k), strides(right, k, n));
    let (x_dims, y_dims) = ([b, m, k], [b, k, n]);
    let lhs = View {
        dims: &x_dims,
        strides: &x_strides,
        ..x.view()
    };
    let rhs = View {
        dims: &y_dims,
        strides: &y_strides,
        ..y.view()
    };
    let bytes = b * m * n * product.output.size_in_bytes();
    spoil_memory(device, bytes)?;
    let out = device.alloc(bytes)?;
    let output = Output {
        buffer: &out,
        dtype: product.output,
        offset: 0,
        row_stride: n,
        batch_stride: m * n,
    };
    matmul_by_rocblas(device, SIZES, &lhs, &rhs, &output)?;
    let mut want = Vec::with_capacity(b * m * n);
    for i in 0..b * m * n {
        let (batch, row, column) = (i / (m * n), i / n % m, i % n);
        let term = |t: usize| {
            let [by, ry, cy] = x_strides;
            let x = x.values[batch * by + row * ry + t * cy];
            let [by, ry, cy] = y_strides;
            x * y.values[batch * by + t * ry + column * cy]
        };
        want.push((0..k).map(term).sum());
    }
    compare(device, &out, product.output, &want)
}

pub(super) fn composable(device: &Device, instance: CkInstance) -> Finding {
    attention::composable(device, instance)
}
