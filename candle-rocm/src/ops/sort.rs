//! Sorting along the last dimension.

use super::copy::contiguous;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::sort::{self, Rows, SORT_BLOCK};

kernels! {
    /// Sorts rows, or tiles of wider ones: indices to `dst`, or keys with indices to `pairs`; the other is null.
    sort_tiles = "argsort_{dtype}" [dtype: DType = DType::ALL] in Family::Sort
        => (src: Ptr, dst: Ptr, pairs: Ptr, rows: Rows);

    /// Compares and exchanges pairs that are at least a tile apart.
    step_across = "argsort_step_{width}" [width: &'static str = ["narrow", "wide"]] in Family::Sort
        => (pairs: Ptr, rows: Rows, log_comparisons: u32, distance: u32, mask: u32);

    /// The steps within tiles; the last ones give the indices to `dst`.
    merge_tiles = "argsort_tile_{width}" [width: &'static str = ["narrow", "wide"]] in Family::Sort
        => (pairs: Ptr, dst: Ptr, rows: Rows);
}

const OP: &str = "argsort";

/// Elements of a tile.
const TILE: usize = sort::TILE as usize;
/// Bytes of pairs that one batch of wide rows takes at most, unless a single row takes more.
const MAX_PAIR_BYTES: usize = 64 << 20;
/// Blocks that sort tiles at most, for each compute unit: several times what it runs at once, which is four.
const TILE_BLOCKS_PER_UNIT: usize = 32;
/// Rows, and elements of a row, that the kernels can count.
const LIMIT: usize = 1 << 31;

/// The indices, as u32, that sort each row along the last dimension in ascending or descending order; any dtype, any
/// width. Equal elements keep their order, in both directions. Zeros of either sign are equal. NaN is greater than
/// every number: last in ascending order, first in descending order, as in PyTorch. (candle's CPU back end leaves the
/// order of rows with NaN to its sorting algorithm.)
///
/// Rows of more than 2048 elements take 8 bytes of working memory per element (16 for i64 and f64), rows being sorted
/// in batches of 64 MiB.
///
/// # Errors
/// [`Error::InvalidArgument`] for a tensor without dimensions; [`Error::TooLarge`] for more than 2^31 rows, or elements
/// in a row; [`Error::InvalidView`], [`Error::OutOfMemory`].
pub fn argsort(device: &Device, x: &View, ascending: bool) -> Result<Buffer> {
    x.check(OP)?;
    let Some((&columns, outer)) = x.dims.split_last() else {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: "a tensor without dimensions has no last one".into(),
        });
    };
    let dst = device.alloc(x.elem_count().saturating_mul(size_of::<u32>()))?;
    if dst.is_empty() {
        return Ok(dst);
    }
    let rows: usize = outer.iter().product();
    for (what, value) in [("number of rows", rows), ("elements of a row", columns)] {
        if value > LIMIT {
            return Err(Error::TooLarge {
                op: OP,
                what,
                value,
                limit: LIMIT,
            });
        }
    }
    let copy = match x.is_contiguous() {
        true => None,
        false => Some(contiguous(device, x)?),
    };
    let (src, offset) = match &copy {
        Some(copy) => (copy, 0),
        None => (x.buffer, x.offset),
    };
    let sort = Sort {
        device,
        dtype: x.dtype,
        src,
        dst: &dst,
        columns,
        ascending,
    };
    if columns <= TILE {
        sort.tiles(offset, 0, rows, None)?;
        return Ok(dst);
    }
    let row_bytes = columns * sort.pair_bytes();
    let batch = (MAX_PAIR_BYTES / row_bytes).clamp(1, rows);
    let pairs = device.alloc(batch * row_bytes)?;
    for first in (0..rows).step_by(batch) {
        sort.wide(offset, first, batch.min(rows - first), &pairs)?;
    }
    Ok(dst)
}

struct Sort<'a> {
    device: &'a Device,
    dtype: DType,
    src: &'a Buffer,
    dst: &'a Buffer,
    columns: usize,
    ascending: bool,
}

impl Sort<'_> {
    /// Whether key and index do not fit into 8 bytes.
    fn is_wide(&self) -> bool {
        self.dtype.size_in_bytes() == 8
    }

    fn pair_bytes(&self) -> usize {
        if self.is_wide() {
            16
        } else {
            8
        }
    }

    fn rows(&self, rows: usize) -> Rows {
        Rows {
            rows: rows as u32,
            columns: self.columns as u32,
            tiles_per_row: self.columns.div_ceil(TILE) as u32,
            log_width: self.columns.next_power_of_two().min(TILE).trailing_zeros(),
            descending: (!self.ascending).into(),
        }
    }

    fn tile_config(&self, rows: &Rows) -> LaunchConfig {
        let units = self.device.properties().compute_units.max(1) as usize;
        let tiles = rows.rows.div_ceil(TILE as u32 >> rows.log_width) as usize
            * rows.tiles_per_row as usize;
        LaunchConfig {
            grid: tiles.min(units * TILE_BLOCKS_PER_UNIT) as u32,
            block: SORT_BLOCK,
            shared_bytes: 0,
        }
    }

    /// Sorts rows, or each tile of wider ones, from row `first` on. `pairs` takes the outcome of the latter.
    fn tiles(
        &self,
        offset: usize,
        first: usize,
        rows: usize,
        pairs: Option<&Buffer>,
    ) -> Result<()> {
        let layout = self.rows(rows);
        let from = (offset + first * self.columns) * self.dtype.size_in_bytes();
        let (dst, pairs) = match pairs {
            Some(pairs) => (Ptr::NULL, Ptr::to(pairs)),
            None => (self.indices(first), Ptr::NULL),
        };
        let (config, src) = (self.tile_config(&layout), Ptr::at(self.src, from));
        let kernel = sort_tiles::of(self.dtype)?;
        // SAFETY: source and outcome have the rows.
        unsafe { kernel.launch(self.device, config, src, dst, pairs, layout) }
    }

    /// Where the outcome has the indices of rows from `first` on.
    fn indices(&self, first: usize) -> Ptr<'_> {
        Ptr::at(self.dst, first * self.columns * size_of::<u32>())
    }

    /// Sorts `rows` rows that are wider than a tile.
    fn wide(&self, offset: usize, first: usize, rows: usize, pairs: &Buffer) -> Result<()> {
        self.tiles(offset, first, rows, Some(pairs))?;
        let width = if self.is_wide() { "wide" } else { "narrow" };
        let (across, within) = (step_across::of(width)?, merge_tiles::of(width)?);
        let (layout, pairs) = (self.rows(rows), Ptr::to(pairs));
        let padded = self.columns.next_power_of_two();
        let config = LaunchConfig::for_elements(rows * (padded / 2));
        let step = |distance: usize, mask: usize| {
            let comparisons = (padded / 2).trailing_zeros();
            let (distance, mask) = (distance as u32, mask as u32);
            // SAFETY: there are pairs of all rows.
            unsafe {
                across.launch(
                    self.device,
                    config,
                    pairs,
                    layout,
                    comparisons,
                    distance,
                    mask,
                )
            }
        };
        let mut group = 2 * TILE;
        while group <= padded {
            step(group / 2, group - 1)?;
            let mut distance = group / 4;
            while distance >= TILE {
                step(distance, distance)?;
                distance /= 2;
            }
            let dst = if group == padded {
                self.indices(first)
            } else {
                Ptr::NULL
            };
            let config = self.tile_config(&layout);
            // SAFETY: there are pairs of all rows, and room for their indices.
            unsafe { within.launch(self.device, config, pairs, dst, layout)? };
            group *= 2;
        }
        Ok(())
    }
}
