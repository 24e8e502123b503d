//! Products of matrices of floats.

use super::definition::shared;

shared! {
    /// Threads that work on a tile.
    const GEMM_THREADS: u32 = 256;
    /// Rows and columns of a large tile.
    const LARGE_TILE: u32 = 128;
    /// Rows and columns of a small one.
    const SMALL_TILE: u32 = 64;
    /// A multiple of the elements of K that any kernel has in LDS at once.
    const DEPTH: u32 = 64;
    /// Rows of a matrix that are multiplied with vectors at once.
    const GEMV_ROWS: u32 = 2;
    /// Threads of a block that does so.
    const GEMV_THREADS: u32 = 256;

    /// `out = a b` for each matrix of a batch: a is m x k, b is k x n. All strides are in elements.
    struct Gemm {
        /// Between the rows of a, or, unless `a_along_k`, between its columns; 1 between the others.
        a_stride: u64,
        /// Between the columns of b, or, unless `b_along_k`, between its rows; 1 between the others.
        b_stride: u64,
        /// Between the rows of the result.
        out_stride: u64,
        /// Between matrices.
        a_batch: u64,
        /// See `a_batch`.
        b_batch: u64,
        /// See `a_batch`.
        out_batch: u64,
        /// Between results of the parts of K.
        out_part: u64,
        batches: u32,
        m: u32,
        n: u32,
        k: u32,
        a_along_k: u32,
        b_along_k: u32,
        /// K is multiplied in so many parts, each with a result of its own.
        parts: u32,
        /// Of each part but the last: a multiple of DEPTH.
        part: u32,
        /// Whether results have the type that sums are made in.
        wide: u32,
    }

    /// `out[v][r] = matrix[r] . vectors[v]` for each matrix of a batch; rows and vectors lie along K.
    struct Gemv {
        /// Between the rows of the matrix.
        row_stride: u64,
        /// Between vectors.
        vector_stride: u64,
        /// Between the results of neighbouring rows.
        out_row: u64,
        /// Between the results of neighbouring vectors.
        out_vector: u64,
        /// Between matrices.
        matrix_batch: u64,
        /// See `matrix_batch`.
        vectors_batch: u64,
        /// See `matrix_batch`.
        out_batch: u64,
        batches: u32,
        rows: u32,
        vectors: u32,
        k: u32,
        /// Whether a block has GEMV_ROWS rows at a time, else each of its waves.
        by_blocks: u32,
        /// Whether results have the type that sums are made in.
        wide: u32,
    }
}
