//! Products with quantized weights. Addresses are of device memory.

use super::definition::shared;
use std::ffi::c_void;

shared! {
    /// Elements per step of the tiled products: the smallest whole number of units of every format, and what
    /// activations are padded to.
    const K_STEP: u32 = 128;
    /// Rows of the matrix in a wide tile: for mma.sync, too.
    const WIDE_ROWS: u32 = 64;
    /// Columns of a wide tile.
    const WIDE_COLUMNS: u32 = 64;
    /// Waves that work on a wide tile.
    const WIDE_WAVES: u32 = 4;
    /// Columns of a wide tile for mma.sync: unpacking rows is a larger part of the work there.
    const MMA_WIDE_COLUMNS: u32 = 128;
    /// Waves that work on a wide tile for mma.sync.
    const MMA_WIDE_WAVES: u32 = 8;
    /// What a block with a wide tile may have of LDS on nvptx, whatever the format: q2k's steps are the largest.
    const MMA_WIDE_BYTES: u32 = 77056;
    /// Rows of the matrix in a narrow tile, for few columns: more blocks share the reading of the matrix.
    const NARROW_ROWS: u32 = 32;
    /// Columns of a narrow tile.
    const NARROW_COLUMNS: u32 = 16;
    /// Waves that work on a narrow tile.
    const NARROW_WAVES: u32 = 2;
    /// As MMA_WIDE_BYTES, with a narrow tile.
    const MMA_NARROW_BYTES: u32 = 22784;
    /// Waves that take the steps of a product with few columns in turn.
    const FEW_WAVES: u32 = 8;
    /// Blocks of elements of a step of a product of halves in low tiles, for mma.sync.
    const MMA_LOW_BLOCKS: u32 = 4;
    /// What a block of a product of halves in tall tiles may have of LDS on nvptx, whatever the format: q6k's steps are
    /// the largest. For 8 columns.
    const TALL_BYTES_8: u32 = 73152;
    /// For 16 columns.
    const TALL_BYTES_16: u32 = 85632;
    /// For 32 columns.
    const TALL_BYTES_32: u32 = 110592;
    /// The same in low tiles, for 8 columns.
    const LOW_BYTES_8: u32 = 84864;
    /// For 16 columns.
    const LOW_BYTES_16: u32 = 109824;
    /// For 32 columns.
    const LOW_BYTES_32: u32 = 159744;
    /// Numbers of the dtypes of results.
    const OUTPUT_F32: u32 = 0;
    /// See `OUTPUT_F32`.
    const OUTPUT_F16: u32 = 1;
    /// See `OUTPUT_F32`.
    const OUTPUT_BF16: u32 = 2;
    /// Numbers of the functions that are applied to results.
    const ACTIVATION_NONE: u32 = 0;
    /// See `ACTIVATION_NONE`.
    const ACTIVATION_SILU: u32 = 1;
    /// See `ACTIVATION_NONE`.
    const ACTIVATION_GELU: u32 = 2;
    /// See `ACTIVATION_NONE`.
    const ACTIVATION_GELU_ERF: u32 = 3;
    /// Experts that the sorting kernel has counters for.
    const MAX_EXPERTS: u32 = 1024;

    /// Scale of 32 elements, and the sums of each half of their quants.
    #[align(8)]
    struct ActivationScale {
        d: f32,
        sum: [i16; 2],
    }

    /// Vectors in 8 bits: `columns` of `stride` quants each, a multiple of 128; those beyond the vectors' length are
    /// zero.
    struct Activations {
        /// Four quants each, aligned to 16 bytes.
        quants: *const u32,
        scales: *const ActivationScale,
        stride: u32,
        columns: u32,
    }

    /// What is done to a sum of products before it is stored. y, bias and residual have one type. All choices are the
    /// same for every thread: branches on them cost a scalar instruction.
    struct Output {
        y: *mut c_void,
        /// One per row of the matrix, or null.
        bias: *const c_void,
        /// One per element of y, or null.
        residual: *const c_void,
        /// OUTPUT_F32 or one of its kind.
        dtype: u32,
        /// ACTIVATION_NONE or one of its kind.
        activation: u32,
    }

    /// A matrix that is multiplied in one pass. With `up`,
    /// `y[c][row] = activation(w[row] . x[c]) * (up[row] . x[c])`,
    /// the two rows being one of each matrix; else two of w.
    struct Matvec {
        weights: *const u8,
        up: *const u8,
        rows: u32,
        /// Of a row.
        units: u32,
        row_bytes: u64,
        lanes: u32,
    }

    /// A matrix that is multiplied in tiles.
    struct Matmul {
        weights: *const u8,
        row_bytes: u64,
        rows: u32,
        /// Of a row.
        units: u32,
        /// Of one matrix.
        column_tiles: u32,
    }

    /// A tile's columns in the order of experts.
    struct ExpertTile {
        expert: u32,
        first: u32,
        count: u32,
    }

    /// Routing of columns to matrices; `tiles` is null for one matrix, and everything below unused.
    struct Experts {
        /// The first word counts those that follow.
        tiles: *const ExpertTile,
        /// Rows of the output, sorted by expert.
        order: *const u32,
        matrix_bytes: u64,
        /// How many neighbouring rows of the output have one column of activations.
        outputs_per_input: u32,
    }

    /// Pairs of a token and one of its experts.
    struct Slots {
        /// One for each slot; the largest number names none and gives zeros.
        experts_of: *const u32,
        /// In an IndexError.
        op: u32,
        slots: u32,
        experts: u32,
        /// How many neighbouring slots share a column of activations.
        slots_per_column: u32,
        matrix_bytes: u64,
    }
}

impl Experts {
    /// One matrix for all columns.
    pub const NONE: Self = Self {
        tiles: std::ptr::null(),
        order: std::ptr::null(),
        matrix_bytes: 0,
        outputs_per_input: 0,
    };
}
