//! Matrices times matrices, in tiles. Where there are too few tiles to fill the GPU, K is cut into parts, whose results
//! are added.

use super::{Product, OP};
use crate::kernels::{kernels, Ptr};
use crate::{DType, Device, DeviceProperties, Error, Family, LaunchConfig, Result};
use candle_rocm_kernels::shared::matmul::{Gemm, DEPTH, GEMM_THREADS, LARGE_TILE, SMALL_TILE};

kernels! {
    /// Square tiles of so many rows.
    multiply_tiles = "gemm_{dtype}_{edge}"
        [dtype: DType = [DType::F16, DType::BF16, DType::F32], edge: u32 = [LARGE_TILE, SMALL_TILE]]
        in Family::Gemm, part dtype => (a: Ptr, b: Ptr, out: Ptr, shape: Gemm);

    /// The same of f64, whose sums take twice the registers.
    multiply_small_tiles = "gemm_{dtype}_64" [dtype: DType = [DType::F64]]
        in Family::Gemm, part dtype => (a: Ptr, b: Ptr, out: Ptr, shape: Gemm);

    /// Adds the results of the parts.
    join_parts = "gemm_join_{dtype}" [dtype: DType = [DType::F16, DType::BF16, DType::F32, DType::F64]]
        in Family::Gemm, part dtype => (partial: Ptr, out: Ptr, shape: Gemm);
}

/// Blocks for each compute unit that hide each other's waiting.
const BLOCKS_PER_UNIT: usize = 2;
/// Elements of K that are worth a part of their own: adding its result costs about as much as a few of them.
const LEAST_PART: usize = 256;
/// Blocks at most; each takes several tiles then.
const MAX_GRID: usize = 1 << 20;

/// How a product is computed.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    edge: u32,
    parts: usize,
    /// Elements of K in each part but the last.
    part: usize,
    tiles: usize,
}

impl Plan {
    /// # Errors
    /// [`Error::TooLarge`] for a matrix with 2^32 tiles or more.
    pub fn of(properties: &DeviceProperties, product: &Product) -> Result<Self> {
        let wanted = properties.units() * BLOCKS_PER_UNIT;
        let (m, n, k) = (product.m, product.n, product.k);
        let per_matrix = |edge: u32| m.div_ceil(edge as usize) * n.div_ceil(edge as usize);
        let all = |edge| per_matrix(edge).saturating_mul(product.batches);
        let has_large = product.dtype != DType::F64 && m.min(n) > SMALL_TILE as usize;
        let edge = match has_large && all(LARGE_TILE) >= wanted {
            true => LARGE_TILE,
            false => SMALL_TILE,
        };
        if u32::try_from(per_matrix(edge)).is_err() {
            return Err(Error::TooLarge {
                op: OP,
                what: "number of tiles of a matrix",
                value: per_matrix(edge),
                limit: u32::MAX as usize,
            });
        }
        let tiles = all(edge);
        let parts = (wanted / tiles).min(k / LEAST_PART).max(1);
        let part = k.div_ceil(parts).next_multiple_of(DEPTH as usize);
        let parts = k.div_ceil(part);
        Ok(Plan {
            edge,
            parts,
            part,
            tiles: tiles.saturating_mul(parts),
        })
    }

    /// Tiles of a given size, and K in so many parts: for verification, whose matrices are small.
    pub fn forced(product: &Product, edge: u32, parts: usize) -> Self {
        let (m, n, k) = (product.m, product.n, product.k);
        let part = k.div_ceil(parts).next_multiple_of(DEPTH as usize);
        let parts = k.div_ceil(part);
        let per_matrix = m.div_ceil(edge as usize) * n.div_ceil(edge as usize);
        Plan {
            edge,
            parts,
            part,
            tiles: per_matrix * product.batches * parts,
        }
    }

    fn shape(&self, product: &Product) -> Gemm {
        Gemm {
            a_stride: product.left.stride as u64,
            b_stride: product.right.stride as u64,
            out_stride: product.out_stride as u64,
            a_batch: product.left.batch_stride as u64,
            b_batch: product.right.batch_stride as u64,
            out_batch: product.out_batch as u64,
            out_part: 0,
            batches: product.batches as u32,
            m: product.m as u32,
            n: product.n as u32,
            k: product.k as u32,
            a_along_k: product.left.along_k.into(),
            b_along_k: product.right.along_k.into(),
            parts: self.parts as u32,
            part: self.part as u32,
            wide: product.wide.into(),
        }
    }

    /// # Safety
    /// That of [`multiply`](super::multiply).
    pub unsafe fn launch(&self, device: &Device, product: &Product) -> Result<()> {
        let shape = self.shape(product);
        if self.parts == 1 {
            // SAFETY: as the caller promises.
            return unsafe { self.launch_tiles(device, product, product.out, shape) };
        }
        let matrix = product.m * product.n;
        let count = matrix * product.batches;
        let size = match product.dtype {
            DType::F64 => size_of::<f64>(),
            _ => size_of::<f32>(),
        };
        let partial = device.alloc(self.parts * count * size)?;
        let partial = Ptr::to(&partial);
        let in_parts = Gemm {
            out_stride: product.n as u64,
            out_batch: matrix as u64,
            out_part: count as u64,
            wide: 1,
            ..shape
        };
        let joined = Gemm {
            out_part: count as u64,
            ..shape
        };
        let join = join_parts::of(product.dtype)?;
        // SAFETY: as the caller promises; there is room for the results of all parts.
        unsafe {
            self.launch_tiles(device, product, partial, in_parts)?;
            let config = LaunchConfig::for_elements(count);
            join.launch(device, config, partial, product.out, joined)
        }
    }

    /// # Safety
    /// The operands lie in their buffers, and the results, as the shape has them, in theirs.
    unsafe fn launch_tiles(
        &self,
        device: &Device,
        product: &Product,
        out: Ptr,
        shape: Gemm,
    ) -> Result<()> {
        let config = LaunchConfig {
            grid: self.tiles.min(MAX_GRID) as u32,
            block: GEMM_THREADS,
            shared_bytes: 0,
        };
        let (a, b, dtype) = (product.left.at, product.right.at, product.dtype);
        // SAFETY: as the caller promises.
        unsafe {
            match dtype {
                DType::F64 => {
                    multiply_small_tiles::of(dtype)?.launch(device, config, a, b, out, shape)
                }
                _ => multiply_tiles::of(dtype, self.edge)?.launch(device, config, a, b, out, shape),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Matrices;
    use super::*;
    use crate::sys::hip::DeviceProp;

    fn plan(dtype: DType, [batches, m, n, k]: [usize; 4]) -> Plan {
        let mut properties = DeviceProperties::from_raw(&DeviceProp::zeroed());
        properties.compute_units = 100;
        let matrices = Matrices {
            at: Ptr::NULL,
            along_k: true,
            stride: k,
            batch_stride: 0,
        };
        let product = Product {
            dtype,
            batches,
            m,
            n,
            k,
            left: matrices,
            right: matrices,
            out: Ptr::NULL,
            wide: false,
            out_stride: n,
            out_batch: m * n,
        };
        Plan::of(&properties, &product).unwrap()
    }

    #[test]
    fn tiles_and_parts_fill_the_gpu_and_no_more() {
        let large = plan(DType::F16, [1, 4096, 4096, 4096]);
        assert_eq!((large.edge, large.parts, large.tiles), (128, 1, 1024));
        assert_eq!(plan(DType::F64, [1, 4096, 4096, 64]).edge, 64);
        // Four tiles, with 200 wanted.
        let deep = plan(DType::F32, [1, 128, 128, 8192]);
        assert_eq!((deep.edge, deep.part, deep.tiles), (64, 256, 4 * 32));
        let shallow = plan(DType::F32, [1, 128, 128, 100]);
        assert_eq!((shallow.parts, shallow.part), (1, 128));
    }

    #[test]
    fn parts_are_all_of_k() {
        for k in [1, 63, 64, 511, 512, 1000, 12_345] {
            let plan = plan(DType::BF16, [2, 20, 30, k]);
            assert!(plan.part.is_multiple_of(64) && plan.parts * plan.part >= k);
            assert!((plan.parts - 1) * plan.part < k, "{plan:?}");
        }
    }
}
