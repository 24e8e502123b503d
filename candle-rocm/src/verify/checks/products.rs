//! Own products of matrices of floats.

use super::{split_dtype, unknown};
use crate::kernels::Ptr;
use crate::ops::matmul::{multiply, multiply_in_tiles, Matrices, Product};
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, spoil_memory, Tensor};
use crate::{DType, DeclaredKernel, Device, Result};

/// `[batches, m, n, k]`, and which of the operands lie along K.
struct Problem {
    dtype: DType,
    sizes: [usize; 4],
    along_k: [bool; 2],
}

/// `gemm_<dtype>_<edge>` and `gemm_join_<dtype>`.
pub(super) fn tiles(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, last)) = kernel.name.rsplit_once('_') else {
        return unknown(kernel);
    };
    let (dtype, edge, parts) = match (split_dtype(&kernel.name), last.parse()) {
        (Some((_, dtype)), _) => (dtype, 64, 3),
        (None, Ok(edge)) => match split_dtype(head) {
            Some((_, dtype)) => (dtype, edge, 1),
            None => return unknown(kernel),
        },
        _ => return unknown(kernel),
    };
    for along_k in [[true, true], [false, true], [true, false], [false, false]] {
        let problem = Problem {
            dtype,
            sizes: [2, 139, 71, 107],
            along_k,
        };
        let wrong = problem.check(device, |product| {
            // SAFETY: the matrices lie in their buffers, of which none is another.
            unsafe { multiply_in_tiles(device, product, edge, parts) }
        })?;
        if wrong.is_some() {
            return Ok(wrong);
        }
    }
    Ok(None)
}

/// `gemv_<dtype>_<vectors>`, with the matrix on either side.
pub(super) fn vectors(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let parsed = kernel.name.rsplit_once('_').and_then(|(head, vectors)| {
        let (_, dtype) = split_dtype(head)?;
        Some((dtype, vectors.parse::<usize>().ok()?))
    });
    let Some((dtype, vectors)) = parsed else {
        return unknown(kernel);
    };
    // Rows for a wave each, and for a block.
    for (k, rows) in [(331, 75), (2099, 37)] {
        for sizes in [[2, rows, vectors, k], [2, vectors, rows, k]] {
            let problem = Problem {
                dtype,
                sizes,
                along_k: [true; 2],
            };
            let wrong = problem.check(device, |product| {
                // SAFETY: the matrices lie in their buffers, of which none is another.
                unsafe { multiply(device, product) }
            })?;
            if wrong.is_some() {
                return Ok(wrong);
            }
        }
    }
    Ok(None)
}

impl Problem {
    fn check(&self, device: &Device, run: impl Fn(&Product) -> Result<()>) -> Finding {
        let [batches, m, n, k] = self.sizes;
        // The operands as they lie in memory: rows of A and columns of B along K, or across it.
        let dims = |lines: usize, along: bool| match along {
            true => [batches, lines, k],
            false => [batches, k, lines],
        };
        let [left_along, right_along] = self.along_k;
        let range = (-1.0, 1.5);
        let left = Tensor::random(device, self.dtype, &dims(m, left_along), range)?;
        let right = Tensor::random(device, self.dtype, &dims(n, right_along), range)?;
        let matrices = |tensor: &'_ Tensor, lines: usize, along_k: bool| Matrices {
            at: Ptr::NULL,
            along_k,
            stride: if along_k { k } else { lines },
            batch_stride: tensor.values.len() / batches,
        };
        let bytes = batches * m * n * self.dtype.size_in_bytes();
        spoil_memory(device, bytes)?;
        let out = device.alloc(bytes)?;
        run(&Product {
            dtype: self.dtype,
            batches,
            m,
            n,
            k,
            left: Matrices {
                at: Ptr::to(left.buffer()),
                ..matrices(&left, m, left_along)
            },
            right: Matrices {
                at: Ptr::to(right.buffer()),
                ..matrices(&right, n, right_along)
            },
            out: Ptr::to(&out),
            wide: false,
            out_stride: n,
            out_batch: m * n,
        })?;
        let at = |lines: usize, along: bool, batch: usize, line: usize, i: usize| match along {
            true => (batch * lines + line) * k + i,
            false => (batch * k + i) * lines + line,
        };
        let mut want = Vec::with_capacity(batches * m * n);
        for element in 0..batches * m * n {
            let (batch, row, column) = (element / (m * n), element / n % m, element % n);
            let term = |i: usize| {
                let x = left.values[at(m, left_along, batch, row, i)];
                x * right.values[at(n, right_along, batch, column, i)]
            };
            want.push((0..k).map(term).sum());
        }
        compare(device, &out, self.dtype, &want)
    }
}
