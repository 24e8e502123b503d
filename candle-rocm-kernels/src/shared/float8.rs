//! Products of 8-bit floats (e4m3) with scales. Addresses are of device memory.

use super::definition::shared;

shared! {
    /// Elements of K that are multiplied between scalings: a divisor of every block's length.
    const FLOAT8_STEP: u32 = 64;
    /// Threads that work on a tile.
    const FLOAT8_THREADS: u32 = 256;
    /// Rows and columns of a large tile.
    const FLOAT8_LARGE: u32 = 128;
    /// Rows and columns of a small one.
    const FLOAT8_SMALL: u32 = 64;
    /// Elements of K whose floats share a scale, where scales are of blocks.
    const SCALED_BLOCK: u32 = 128;

    /// Where the scales of an operand lie: that of a row's elements of K from k on is
    /// `values[matrix * batch + row / rows * row_stride + k / SCALED_BLOCK * block_stride]`.
    struct Scaling {
        values: *const f32,
        /// Between matrices.
        batch: u64,
        /// Neighbouring rows that share a scale.
        rows: u32,
        row_stride: u32,
        block_stride: u32,
    }

    /// An operand of a product: matrices of rows of K floats without gaps.
    struct ScaledFloats {
        bits: *const u8,
        /// Between matrices.
        batch: u64,
        scales: Scaling,
    }

    /// `y = (a scaled) (b scaled)ᵀ` for each matrix of a batch: a is m x k, b is n x k.
    struct ScaledProduct {
        a: ScaledFloats,
        b: ScaledFloats,
        batches: u32,
        m: u32,
        n: u32,
        k: u32,
        /// Whether scales differ along K.
        in_blocks: u32,
    }

    /// Vectors of 8-bit floats: `columns` of `k` each, whole steps. There is neither a NaN nor a -0 among them: a scale
    /// is NaN instead. Each FLOAT8_STEP share a scale.
    struct FloatActivations {
        /// Aligned to 16 bytes.
        bits: *const u8,
        scales: *const f32,
        k: u32,
        columns: u32,
    }

    /// The same with scales as MX has them, of `stride` floats each, a multiple of 128; those beyond the vectors' length
    /// are zero. The elements i and i + 16 of a block of 32 are neighbours.
    struct MxActivations {
        /// Aligned to 16 bytes.
        bits: *const u8,
        /// The exponent of a power of two for each block, 127 being 1 and 255 NaN; aligned to 4 bytes.
        scales: *const u8,
        stride: u32,
        columns: u32,
    }

    /// A matrix in blocks of floats behind their scale, times vectors: `y[c][row] = w[row] . x[c]`.
    struct FloatBlocks {
        weights: *const u8,
        row_bytes: u64,
        rows: u32,
        /// Of a row.
        blocks: u32,
    }
}
