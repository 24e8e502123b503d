//! Of recurrences along sequences that have a state.

use super::definition::shared;

/// Causal depthwise convolutions.
pub mod causal_conv {
    super::shared! {
        /// Channels of a block, one for each thread.
        const CONV_BLOCK: u32 = 256;
        /// Rows of a block, no fewer than a state has.
        const CONV_ROWS: u32 = 16;
        /// The largest kernel.
        const MAX_KERNEL: u32 = 8;

        /// Rows and the elements between them; a state has the last `kernel - 1` rows.
        struct CausalConv {
            x_stride: u64,
            before_stride: u64,
            after_stride: u64,
            rows: u32,
            channels: u32,
            sequences: u32,
            slots: u32,
            kernel: u32,
            /// Blocks along the longest sequence, and beside each other along the channels.
            tiles: u32,
            groups: u32,
            silu: u32,
        }
    }
}

/// The gated delta rule.
pub mod delta_rule {
    super::shared! {
        /// Threads of a block.
        const DELTA_BLOCK: u32 = 256;
        /// Columns of a state that a block has.
        const DELTA_COLUMNS: u32 = 32;
        /// Most rows of a sequence that are computed one by one.
        const DELTA_STEPS: u32 = 16;
        /// Rows that are computed together.
        const DELTA_CHUNK: u32 = 64;
        /// Numbers that are kept for each row and head where rows are computed together.
        const DELTA_SCRATCH: u32 = 132;

        /// Rows and the elements between them; a state is [value_heads, key_size, value_size].
        struct DeltaRule {
            q_stride: u32,
            k_stride: u32,
            v_stride: u32,
            a_stride: u32,
            b_stride: u32,
            rows: u32,
            longest: u32,
            slots: u32,
            key_heads: u32,
            value_heads: u32,
            key_size: u32,
            value_size: u32,
            /// Value head h belongs to key head h % key_heads; otherwise neighbours belong to one.
            tiled: u32,
            /// Chunks of the longest sequence.
            chunks: u32,
            /// Blocks beside each other along the columns.
            tiles: u32,
            /// All there is to do, for a block at a time.
            tasks: u32,
            /// Factor of the queries.
            scale: f32,
            /// Added to the squared length of keys and queries.
            epsilon: f32,
        }
    }
}
