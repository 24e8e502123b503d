//! A matrix times a few vectors, all along K: each row is read once.

use super::Product;
use crate::kernels::{kernels, Ptr};
use crate::{DType, Device, DeviceProperties, Family, LaunchConfig, Result};
use candle_rocm_kernels::shared::matmul::{Gemv, GEMV_ROWS, GEMV_THREADS};

/// How many vectors the kernels take.
const VECTORS: [u32; 3] = [1, 4, 8];

kernels! {
    /// Rows times up to so many vectors.
    multiply_vectors = "gemv_{dtype}_{vectors}"
        [dtype: DType = [DType::F16, DType::BF16, DType::F32, DType::F64], vectors: u32 = VECTORS]
        in Family::Gemv, part dtype => (matrices: Ptr, vectors: Ptr, out: Ptr, shape: Gemv);
}

/// Shorter rows leave most of a wave without work.
const LEAST_K: usize = 256;
/// Rows from which on a block works on some together, if there are too few of them for waves.
const LONG_K: usize = 2048;

/// How a product is computed.
pub(super) struct Plan {
    /// Whether the matrix is the left operand, and the vectors are the columns of the right one.
    matrix_is_left: bool,
    shape: Gemv,
}

impl Plan {
    /// If the product is one of a matrix and a few vectors that all lie along K.
    pub fn of(properties: &DeviceProperties, product: &Product) -> Option<Self> {
        let most = VECTORS[VECTORS.len() - 1] as usize;
        let (m, n, k) = (product.m, product.n, product.k);
        let is_one = |count, stride| count == 1 && stride == 1;
        let left = product.left.along_k || is_one(m, product.left.stride);
        let right = product.right.along_k || is_one(n, product.right.stride);
        if m.min(n) > most || k < LEAST_K || !left || !right {
            return None;
        }
        let matrix_is_left = m > n;
        let (matrix, vectors) = match matrix_is_left {
            true => (product.left, product.right),
            false => (product.right, product.left),
        };
        let (rows, vector_count) = (m.max(n), m.min(n));
        let (out_row, out_vector) = match matrix_is_left {
            true => (product.out_stride, 1),
            false => (1, product.out_stride),
        };
        let teams = rows.div_ceil(GEMV_ROWS as usize) * product.batches;
        let lanes = properties.wave_size as usize;
        let by_blocks = k >= LONG_K && !properties.fills(teams.saturating_mul(lanes));
        Some(Plan {
            matrix_is_left,
            shape: Gemv {
                row_stride: matrix.stride as u64,
                vector_stride: vectors.stride as u64,
                out_row: out_row as u64,
                out_vector: out_vector as u64,
                matrix_batch: matrix.batch_stride as u64,
                vectors_batch: vectors.batch_stride as u64,
                out_batch: product.out_batch as u64,
                batches: product.batches as u32,
                rows: rows as u32,
                vectors: vector_count as u32,
                k: k as u32,
                by_blocks: by_blocks.into(),
                wide: product.wide.into(),
            },
        })
    }

    /// # Safety
    /// That of [`multiply`](super::multiply).
    pub unsafe fn launch(&self, device: &Device, product: &Product) -> Result<()> {
        let shape = self.shape;
        let kernel = VECTORS.into_iter().find(|most| *most >= shape.vectors);
        let kernel = multiply_vectors::of(product.dtype, kernel.unwrap_or(0))?;
        let (matrices, vectors) = match self.matrix_is_left {
            true => (product.left.at, product.right.at),
            false => (product.right.at, product.left.at),
        };
        let teams = shape.rows.div_ceil(GEMV_ROWS) as usize * product.batches;
        let per_block = match shape.by_blocks {
            0 => (GEMV_THREADS / device.properties().wave_size) as usize,
            _ => 1,
        };
        let config = LaunchConfig {
            grid: teams
                .div_ceil(per_block)
                .min(LaunchConfig::MAX_GRID as usize) as u32,
            block: GEMV_THREADS,
            shared_bytes: 0,
        };
        // SAFETY: as the caller promises.
        unsafe { kernel.launch(device, config, matrices, vectors, product.out, shape) }
    }
}
