//! Attention and its cache of keys and values.

use super::definition::shared;

shared! {
    /// How elements lie in memory.
    const F16: u32 = 0;
    /// See `F16`.
    const BF16: u32 = 1;
    /// See `F16`.
    const F32: u32 = 2;
    /// Two's complement bytes with an f16 factor for each SCALED of them; see `F16`.
    const I8: u32 = 3;
    /// See `F16`.
    const F64: u32 = 4;
    /// No operand; see `F16`.
    const NONE: u32 = 5;
    /// A nibble and, for each SCALED of them, an f16 factor; `attention/packed.h` says how. See `F16`.
    const Q4_0: u32 = 6;
    /// The same, and an f16 for what a nibble of 0 stands for; see `F16`.
    const Q4_1: u32 = 7;
    /// As `Q4_0` with a fifth bit; see `F16`.
    const Q5_0: u32 = 8;
    /// As `Q4_1` with a fifth bit; see `F16`.
    const Q5_1: u32 = 9;
    /// As `Q4_0`, of the levels of ggml's IQ4_NL; see `F16`.
    const IQ4_NL: u32 = 10;
    /// f8e4m3, and an f16 factor for each `1 << shift`; see `F16`.
    const F8: u32 = 11;
    /// Elements of one factor.
    const SCALED: u32 = 32;
    /// A `left` or `right` of Shape without limit.
    const UNLIMITED: u32 = u32::MAX;
    /// Packed rows of a block of the tiled kernels.
    const TILED_ROWS: u32 = 64;
    /// Columns that a chunk of the tiled kernels holds; kernels differ in the number of chunks.
    const TILED_CHUNK: u32 = 64;
    /// Threads of a block of the tiled kernels.
    const TILED_THREADS: u32 = 256;
    /// Threads of a block that splits keys.
    const SPLIT_THREADS: u32 = 256;
    /// Threads of a block that joins parts.
    const COMBINE_THREADS: u32 = 512;
    /// Parts at most, which one block joins.
    const MAX_PARTS: u32 = 64;
    /// Lanes that read one key together, at least: blocks have LDS for so many groups.
    const LEAST_LANES: u32 = 8;
    /// f32 values that a part has besides its sums.
    const PART_EXTRA: u32 = 4;

    /// Sizes, strides (in elements) and options by value.
    #[derive(Default)]
    struct Shape {
        batch: u32,
        heads: u32,
        kv_heads: u32,
        /// Heads of queries that share a head of keys.
        group: u32,
        /// Rows and keys of every sequence, or of the longest.
        rows: u32,
        keys: u32,
        /// Sizes of a key and of a value.
        width: u32,
        v_width: u32,
        q_format: u32,
        /// Formats of keys and values, which differ in packed caches only.
        k_format: u32,
        v_format: u32,
        /// Of a packed cache: binary logarithms of the elements that an F8 factor is for, and how many neighbours were
        /// turned together before they were stored, 0 for none.
        k_shift: u32,
        v_shift: u32,
        k_rotation: u32,
        v_rotation: u32,
        q_batch: u64,
        k_batch: u64,
        v_batch: u64,
        o_batch: u64,
        q_row: u32,
        q_head: u32,
        k_row: u32,
        k_head: u32,
        v_row: u32,
        v_head: u32,
        o_row: u32,
        o_head: u32,
        /// Keys of a cache block, 0 without one; then `k_batch` and `v_batch` are strides of blocks.
        block_size: u32,
        /// Entries of a sequence in the block table.
        table_row: u32,
        left: u32,
        right: u32,
        /// Positions of a chunk, beyond which no row sees; 0 without chunks.
        chunk: u32,
        scale: f32,
        /// 0 without one.
        softcap: f32,
        /// Prefix ranges of a sequence.
        ranges: u32,
        /// NONE without a mask.
        mask_format: u32,
        mask_batch: u64,
        mask_head: u64,
        mask_row: u64,
        mask_key: u64,
        /// Elements between heads in the log-sum-exp.
        lse_head: u64,
    }

    /// Which rows a matrix of scores holds: [heads of the group, rows, keys] of a sequence and head of keys, from row
    /// `first_row` on.
    struct Part {
        sequence: u32,
        kv_head: u32,
        first_row: u32,
        rows: u32,
    }

    /// What is written to a cache: sizes, and strides in elements.
    #[derive(Default)]
    struct Write {
        tokens: u32,
        heads: u32,
        kv_heads: u32,
        width: u32,
        v_width: u32,
        /// Dimensions that turn; 0: none.
        rotary: u32,
        interleaved: u32,
        format: u32,
        /// Formats of keys and values, which differ in packed caches only.
        k_format: u32,
        v_format: u32,
        /// Of a packed cache, as in Shape.
        k_shift: u32,
        v_shift: u32,
        k_rotation: u32,
        v_rotation: u32,
        block_size: u32,
        q_token: u32,
        q_head: u32,
        k_token: u32,
        k_head: u32,
        v_token: u32,
        v_head: u32,
        k_block: u64,
        v_block: u64,
        k_entry: u32,
        k_cache_head: u32,
        v_entry: u32,
        v_cache_head: u32,
    }

    /// Vectors that turn: their numbers, size and strides in elements, and how many neighbours turn together.
    #[derive(Default)]
    struct Turn {
        tokens: u32,
        heads: u32,
        width: u32,
        format: u32,
        row: u32,
        head: u32,
        size: u32,
    }
}
