//! Products of 8-bit floats (e4m3) with scales of tensors, rows or blocks.

use super::check::Op;
use super::operand::Operand;
use super::quantized::Epilogue;
use crate::kernels::kernels;
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Only, Result, View};
use candle_rocm_kernels::shared::float8::{
    ScaledFloats, ScaledProduct, Scaling, FLOAT8_LARGE, FLOAT8_SMALL, FLOAT8_THREADS, SCALED_BLOCK,
};
use candle_rocm_kernels::shared::quantized::Output;

kernels! {
    /// By matrix instructions, in tiles of so many rows and columns.
    by_matrix = "scaled_matrix_{edge}" [edge: u32 = [FLOAT8_LARGE, FLOAT8_SMALL]]
        in Family::Scaled, only Only::Matrix => (s: ScaledProduct, output: Output);

    /// On any GPU.
    by_vector = "scaled_vector" in Family::Scaled => (s: ScaledProduct, output: Output);
}

const OP: &str = "scaled matmul";

/// Elements along K, and rows of `b`, that share a scale of blocks.
pub const BLOCK: usize = SCALED_BLOCK as usize;

/// What the floats of an operand are multiplied with: f32, contiguous.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// One number for all.
    Tensor(View<'a>),
    /// One for each row of K elements: `[.., m]` or `[.., n]`, a dimension of 1 behind it or not.
    Rows(View<'a>),
    /// One for each [`BLOCK`] elements of K, the last block shorter where K is no multiple: of `a`, `[.., m, ⌈k/128⌉]`;
    /// of `b`, whose rows share them as well, `[.., ⌈n/128⌉, ⌈k/128⌉]`.
    Blocks(View<'a>),
}

/// `(a · scale_a) (b · scale_b)ᵀ + bias` for `a` of `[.., m, k]` and `b` of `[.., n, k]`, both of [`DType::F8E4M3`]:
/// `[.., m, n]` of `to` (f32, f16 or bf16). `b` has the leading dimensions of `a` or none; `bias` is `[n]` of `to`.
///
/// Products are exact, by instructions on 8-bit floats where the GPU has them, and sums are in f32, rounded once. A NaN
/// makes all results NaN that it takes part in, also where the hardware reads these bits as a number.
///
/// # Errors
/// [`Error::UnsupportedDType`], [`Error::DTypeMismatch`], [`Error::ShapeMismatch`], [`Error::InvalidArgument`] for
/// scales of another number or layout, [`Error::TooLarge`] for 2^31 rows or elements of one, or 2^32 scales of a matrix.
pub fn scaled_matmul(
    device: &Device,
    a: &View,
    b: &View,
    scale_a: &Scales,
    scale_b: &Scales,
    bias: Option<&View>,
    to: DType,
) -> Result<Buffer> {
    let problem = Problem::new(device, a, b)?;
    let (tile, tiles) = problem.tile(device)?;
    problem.run(device, tile, tiles, (scale_a, scale_b), bias, to)
}

/// [`scaled_matmul`] by a kernel of the caller's choice: for verification, whose matrices are small.
pub(crate) fn in_tiles(
    device: &Device,
    tile: Tile,
    (a, b): (&View, &View),
    scales: (&Scales, &Scales),
    to: DType,
) -> Result<Buffer> {
    let problem = Problem::new(device, a, b)?;
    let tiles = problem.tiles(tile);
    problem.run(device, tile, tiles, scales, None, to)
}

/// The kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tile {
    /// By matrix instructions, of so many rows and columns.
    Matrix(u32),
    /// By multiplications of each thread.
    Vector,
}

/// Blocks of threads for each compute unit that hide each other's waiting.
const BLOCKS_PER_UNIT: usize = 2;

struct Problem<'a> {
    a: Operand<'a>,
    b: Operand<'a>,
    batches: usize,
    m: usize,
    n: usize,
    k: usize,
    /// Whether `b` has a matrix for each of `a`.
    pairs: bool,
}

impl<'a> Problem<'a> {
    fn new(device: &Device, a: &View<'a>, b: &View<'a>) -> Result<Self> {
        let op = Op(OP);
        for view in [a, b] {
            view.check(OP)?;
            if view.dtype != DType::F8E4M3 {
                return Err(op.unsupported(view.dtype));
            }
            if !view.buffer.device().same_device(device) {
                return Err(Error::DeviceMismatch { op: OP });
            }
        }
        let ([outer @ .., m, k], [b_outer @ .., n, b_k]) = (a.dims, b.dims) else {
            return Err(op.mismatch(a, b));
        };
        let pairs = !b_outer.is_empty();
        if k != b_k || pairs && b_outer != outer {
            return Err(op.mismatch(a, b));
        }
        let outer: usize = outer.iter().product();
        let (batches, m) = match pairs {
            true => (outer, *m),
            false => (1, outer.saturating_mul(*m)),
        };
        let most = i32::MAX as u32;
        op.narrow("number of matrices", batches, most)?;
        op.narrow("number of rows", m, most)?;
        op.narrow("number of columns", *n, most)?;
        op.narrow("length of a row", *k, most)?;
        Ok(Problem {
            a: Operand::contiguous(device, a)?,
            b: Operand::contiguous(device, b)?,
            batches,
            m,
            n: *n,
            k: *k,
            pairs,
        })
    }

    fn tiles(&self, tile: Tile) -> usize {
        let edge = match tile {
            Tile::Matrix(edge) => edge as usize,
            Tile::Vector => FLOAT8_SMALL as usize,
        };
        let per_matrix = self.m.div_ceil(edge).saturating_mul(self.n.div_ceil(edge));
        per_matrix.saturating_mul(self.batches)
    }

    /// The kernel that suits, and how many tiles it has.
    fn tile(&self, device: &Device) -> Result<(Tile, usize)> {
        let large = self.tiles(Tile::Matrix(FLOAT8_LARGE));
        let is_wide = self.m.min(self.n) > FLOAT8_SMALL as usize;
        let wanted = device.properties().units() * BLOCKS_PER_UNIT;
        let edge = match is_wide && large >= wanted {
            true => FLOAT8_LARGE,
            false => FLOAT8_SMALL,
        };
        let tile = match device.matrix()?.is_some() && by_matrix::of(edge)?.works(device)? {
            true => Tile::Matrix(edge),
            false => Tile::Vector,
        };
        Ok((tile, self.tiles(tile)))
    }

    fn run(
        &self,
        device: &Device,
        tile: Tile,
        tiles: usize,
        (scale_a, scale_b): (&Scales, &Scales),
        bias: Option<&View>,
        to: DType,
    ) -> Result<Buffer> {
        let op = Op(OP);
        op.float(to, false)?;
        // A kernel counts those of a matrix.
        op.narrow(
            "number of tiles of a matrix",
            tiles / self.batches.max(1),
            u32::MAX,
        )?;
        let scale_a = self.scaling(device, scale_a, (self.batches, self.m), 1)?;
        let matrices = if self.pairs { self.batches } else { 1 };
        let scale_b = self.scaling(device, scale_b, (matrices, self.n), BLOCK)?;
        let in_blocks = scale_a.block_stride != 0 || scale_b.block_stride != 0;
        let rows = self.batches * self.m;
        let bytes = rows
            .checked_mul(self.n)
            .and_then(|count| count.checked_mul(to.size_in_bytes()))
            .ok_or(Error::TooLarge {
                op: OP,
                what: "number of results",
                value: rows.saturating_mul(self.n),
                limit: usize::MAX / to.size_in_bytes(),
            })?;
        let y = device.alloc(bytes)?;
        let epilogue = Epilogue {
            bias: bias.copied(),
            ..Epilogue::default()
        };
        let output = epilogue.raw(OP, device, &y, to, (rows, self.n))?;
        if y.is_empty() {
            return Ok(y);
        }
        let floats = |operand: &Operand, scales, batch: usize| {
            let view = operand.view();
            let bits = view.buffer.as_ptr().cast_const().cast::<u8>();
            ScaledFloats {
                bits: bits.wrapping_add(view.offset),
                batch: batch as u64,
                scales,
            }
        };
        let product = ScaledProduct {
            a: floats(&self.a, scale_a, self.m * self.k),
            b: floats(
                &self.b,
                scale_b,
                if self.pairs { self.n * self.k } else { 0 },
            ),
            batches: self.batches as u32,
            m: self.m as u32,
            n: self.n as u32,
            k: self.k as u32,
            in_blocks: in_blocks.into(),
        };
        let config = LaunchConfig {
            grid: tiles.min(LaunchConfig::MAX_GRID as usize) as u32,
            block: FLOAT8_THREADS,
            shared_bytes: 0,
        };
        // SAFETY: operands, scales and bias were checked to lie in their buffers, on this device, with as many elements
        // as the product has; the result has room for all of it.
        unsafe {
            match tile {
                Tile::Matrix(edge) => {
                    by_matrix::of(edge)?.launch(device, config, product, output)?
                }
                Tile::Vector => by_vector::of()?.launch(device, config, product, output)?,
            }
        }
        Ok(y)
    }

    /// The scales of an operand with so many matrices and rows of each; in blocks, `shared` rows have the same ones.
    fn scaling(
        &self,
        device: &Device,
        scales: &Scales,
        (matrices, rows): (usize, usize),
        shared: usize,
    ) -> Result<Scaling> {
        let op = Op(OP);
        let blocks = self.k.div_ceil(BLOCK);
        // The elements of a matrix's scales, and the distances between them.
        let (view, count, rows_each, row_stride, block_stride) = match scales {
            Scales::Tensor(view) => (view, None, 1, 0, 0),
            Scales::Rows(view) => (view, Some(rows), 1, 1, 0),
            Scales::Blocks(view) => {
                let lines = rows.div_ceil(shared);
                let count = lines.checked_mul(blocks).ok_or(Error::TooLarge {
                    op: OP,
                    what: "number of scales",
                    value: usize::MAX,
                    limit: u32::MAX as usize,
                })?;
                (view, Some(count), shared, blocks, 1)
            }
        };
        view.check(OP)?;
        op.has_dtype(view, DType::F32)?;
        if !view.buffer.device().same_device(device) {
            return Err(Error::DeviceMismatch { op: OP });
        }
        let wanted = count.map_or(1, |count| count.saturating_mul(matrices));
        if view.elem_count() != wanted || !view.is_contiguous() {
            return Err(op.invalid(format!(
                "scales of shape {:?} with strides {:?}; these operands have {wanted} of this kind, contiguous",
                view.dims, view.strides
            )));
        }
        op.narrow("number of scales of a matrix", count.unwrap_or(1), u32::MAX)?;
        let values = view.buffer.as_ptr().cast_const().cast::<f32>();
        Ok(Scaling {
            values: values.wrapping_add(view.offset),
            batch: if matrices == 1 {
                0
            } else {
                count.unwrap_or(0) as u64
            },
            rows: rows_each as u32,
            row_stride: row_stride as u32,
            block_stride,
        })
    }
}
