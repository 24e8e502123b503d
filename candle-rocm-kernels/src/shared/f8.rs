//! Products of matrices of 8-bit floats with vectors of floats. Addresses are of device memory.

use super::definition::shared;
use std::ffi::c_void;

shared! {
    /// Elements of a row that a lane of the product in one pass takes at a time.
    const F8_UNIT: u32 = 16;
    /// Rows that its lanes share, of up to two vectors.
    const F8_ROWS: u32 = 2;
    /// The same of more vectors, whose reading counts then.
    const F8_ROWS_OF_MANY: u32 = 4;
    /// Rows of the matrix in a tile.
    const F8_TILE_ROWS: u32 = 128;
    /// Columns of a wide tile.
    const F8_WIDE_COLUMNS: u32 = 64;
    /// The same of vectors of f32, which are two numbers each: LDS has room for two blocks.
    const F8_WIDE_COLUMNS_F32: u32 = 32;
    /// Columns of a narrow tile.
    const F8_NARROW_COLUMNS: u32 = 16;
    /// Threads that work on a tile.
    const F8_TILE_THREADS: u32 = 256;
    /// Rows of the matrix that a block multiplies with a few vectors.
    const F8_FEW_ROWS: u32 = 16;
    /// Waves that take the blocks of these rows in turn.
    const F8_FEW_WAVES: u32 = 8;

    /// Vectors of floats: `columns` of `stride` elements behind each other, the first at a multiple of 16 bytes.
    struct Vectors {
        x: *const c_void,
        /// A multiple of 64, at which a vector's elements end.
        stride: u32,
        columns: u32,
    }
}
