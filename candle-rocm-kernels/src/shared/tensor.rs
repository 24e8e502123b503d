//! Of the operations on tensors.

use super::definition::shared;

/// Shapes and strides.
pub mod dims {
    super::shared! {
        /// Dimensions that a kernel can walk.
        const MAX_RANK: u32 = 8;

        /// Sizes, outermost first. By value in a kernel's arguments, but by const reference in what the kernel calls: a
        /// copy of a kernel's argument would be indexed in scratch memory.
        #[derive(Default, Eq)]
        struct Dims {
            rank: u32,
            size: [u32; MAX_RANK as usize],
        }

        /// Distances between neighbours in elements, outermost first. By reference as Dims.
        #[derive(Default, Eq)]
        struct Strides {
            s: [u32; MAX_RANK as usize],
        }
    }
}

/// The word in which kernels report an index that is out of range.
pub mod index_error {
    super::shared! {
        /// The device's error word; the first report stays until the host has read it.
        struct IndexError {
            /// The number of an IndexOp; 0: none.
            op: u32,
            /// Of the dimension that is indexed.
            size: u32,
            /// What is out of range.
            index: i64,
        }
    }
}

/// Copies.
pub mod copy {
    super::shared! {
        /// Words along the edge of a tile that is transposed, of two elements of up to 4 bytes or of one.
        const TILE_WORDS: u32 = 32;
        /// Threads that transpose one.
        const TRANSPOSE_BLOCK: u32 = 256;
    }
}

/// Rows along the last dimension.
pub mod rows {
    super::shared! {
        /// Bytes of a row that a thread keeps in registers: four packs.
        const KEPT_BYTES: u32 = 64;
        /// Most elements of a row that a thread keeps where a wave has a row.
        const MOST_KEPT_BY_WAVE: u32 = 16;

        /// Vectors that several rows share, each as long as a row: that of row r begins at element
        /// `r / inner * outer + r % inner * step`.
        struct RowVectors {
            inner: u32,
            outer: u32,
            step: u32,
        }
    }
}

/// RMS norm and layer norm.
pub mod norm {
    super::shared! {
        /// Rows of input, of which `residual` may be null; both inputs have rows of their own stride, outputs are
        /// packed.
        struct Shape {
            rows: u64,
            row_stride: u64,
            residual_stride: u64,
            columns: u32,
            eps: f32,
        }
    }
}

/// Group norm.
pub mod group_norm {
    super::shared! {
        /// Elements of a row that one thread keeps in registers.
        const GROUP_KEPT: u32 = 16;

        /// Images as rows: a group of `channels` channels of `pixels` each lies together. Few long rows are cut into
        /// `parts` of `part` elements, a multiple of the packs', so that all of the GPU has work.
        struct Groups {
            rows: u64,
            groups: u32,
            channels: u32,
            pixels: u32,
            parts: u32,
            part: u32,
            eps: f32,
            silu: u32,
        }

        /// Mean of each part of each row, and the sum of the squared differences to it.
        struct Moments {
            mean: f32,
            squares: f32,
        }
    }
}

/// Gated activations.
pub mod gated {
    super::shared! {
        /// Rows of `columns` elements; those of the inputs are `gate_stride` and `up_stride` elements apart, those of
        /// the output are packed. A step is a pack of a row, or what is left of the row after whole packs.
        struct Gated {
            gate_stride: u64,
            up_stride: u64,
            columns: u64,
            row_steps: u32,
            steps: u32,
        }
    }
}

/// What follows a product.
pub mod epilogue {
    super::shared! {
        /// Rows of `columns` elements; those of the product and of what is added are `stride` and `residual_stride`
        /// elements apart, those of the output are packed. Steps are those of gated activations. `one_bias` says that a
        /// row has one number for all of its columns.
        struct Epilogue {
            stride: u64,
            residual_stride: u64,
            columns: u64,
            row_steps: u32,
            steps: u32,
            one_bias: u32,
        }
    }
}

/// Rotary embeddings.
pub mod rope {
    super::shared! {
        /// Where the pairs of a rotary embedding lie. `src` is [batch, heads, time, 2 half], `time_inner`, or [batch,
        /// time, heads, 2 half]. A thread turns the same pairs of every `group`-th head with one reading of the tables.
        struct Rope {
            /// Of the first `group` heads.
            pairs: u32,
            half: u32,
            time: u32,
            heads: u32,
            group: u32,
            time_inner: u32,
            /// Elements between batches of [batch, time, half] tables, 0 for [time, half] ones.
            cos_batch: u32,
            sin_batch: u32,
            interleaved: u32,
        }
    }
}

/// Gradients of operations whose own headers are those of inference.
pub mod backward {
    super::shared! {
        /// What a norm takes from each element of a row, and what it multiplies the difference by.
        struct Statistics {
            mean: f32,
            scale: f32,
        }

        /// Columns of a block that sums over rows.
        const PART_COLUMNS: u32 = 64;
        /// Its threads.
        const PART_THREADS: u32 = 256;

        /// Where gradients of queries, keys and values are written: strides in elements. Those of rows and keys of all
        /// sequences have no batches.
        #[derive(Default)]
        struct GradientStrides {
            q_batch: u64,
            k_batch: u64,
            v_batch: u64,
            q_row: u32,
            q_head: u32,
            k_row: u32,
            k_head: u32,
            v_row: u32,
            v_head: u32,
        }
    }
}

/// Pooling.
pub mod pool {
    super::shared! {
        /// Windows over images.
        struct Pool {
            outputs: u32,
            channels: u32,
            out_h: u32,
            out_w: u32,
            window_h: u32,
            window_w: u32,
            step_h: u32,
            step_w: u32,
            /// Of the input, outermost first.
            strides: [u32; 4],
        }
    }
}

/// Images at another size.
pub mod upsample {
    super::shared! {
        /// Sizes of input and output.
        struct Upsample {
            outputs: u32,
            channels: u32,
            out_h: u32,
            out_w: u32,
            in_h: u32,
            in_w: u32,
            /// Of the input, outermost first.
            strides: [u32; 4],
            /// Input elements per output element.
            scale_h: f64,
            scale_w: f64,
            align_corners: u32,
        }
    }
}

/// Convolutions.
pub mod conv {
    super::shared! {
        /// Sizes of one problem, and the operands' strides in elements. Coordinates with padding fit in 31 bits, spans
        /// of operands in 32.
        struct Geometry {
            c_in: u32,
            c_out: u32,
            in_h: u32,
            in_w: u32,
            out_h: u32,
            out_w: u32,
            k_h: u32,
            k_w: u32,
            stride_h: u32,
            stride_w: u32,
            pad_h: u32,
            pad_w: u32,
            dilation_h: u32,
            dilation_w: u32,
            x_batch: u32,
            x_channel: u32,
            x_row: u32,
            x_column: u32,
            w_out: u32,
            w_in: u32,
            w_row: u32,
            w_column: u32,
        }
    }
}

/// Sorting.
pub mod sort {
    super::shared! {
        /// Threads of a block that sorts tiles.
        const SORT_BLOCK: u32 = 512;
        /// Elements of a tile.
        const TILE: u32 = 2048;

        /// Rows to be sorted.
        struct Rows {
            rows: u32,
            columns: u32,
            tiles_per_row: u32,
            /// Of the columns rounded up to a power of two, at most TILE.
            log_width: u32,
            descending: u32,
        }
    }
}

/// Cumulative sums.
pub mod scan {
    super::shared! {
        /// Threads of a block.
        const SCAN_BLOCK: u32 = 256;
        /// Elements that a thread has at a time.
        const SCAN_ITEMS: u32 = 8;

        /// Sums along the middle one of three dimensions.
        struct Scan {
            /// The last dimension.
            columns: u64,
            /// The middle one.
            reduced: u64,
            /// The product of the other two.
            lines: u64,
            /// Elements of each part but the last.
            part_size: u64,
            /// Of lines and parts, one for a block at a time.
            tiles: u64,
            parts: u32,
            /// The logarithm of a power of two up to SCAN_BLOCK.
            lanes_log2: u32,
            /// From the end.
            reversed: u32,
        }
    }
}

/// Reductions.
pub mod reduce {
    use super::dims::{Dims, Strides};

    super::shared! {
        /// Threads of a block.
        const REDUCE_BLOCK: u32 = 256;
        /// Most columns that a thread has of a sum or an extremum, and of an extremum's index.
        const MOST_COLUMNS: u32 = 8;
        /// The same of an extremum's index.
        const MOST_INDEX_COLUMNS: u32 = 4;

        /// What is reduced over what, in any layout.
        struct Plan {
            outputs: u64,
            reduced: u64,
            /// Reduced elements of each part but the last.
            part_size: u64,
            /// Of sums of floats: what they are divided by.
            divisor: f64,
            parts: u32,
            /// A power of two up to REDUCE_BLOCK.
            lanes: u32,
            lanes_fast: u32,
            kept_dims: Dims,
            kept_strides: Strides,
            reduced_dims: Dims,
            reduced_strides: Strides,
        }

        /// The same where elements come in packs, in elements. Rows: outputs lie `row_stride` apart. Columns: matrices
        /// of `reduced` rows with `matrix_columns` outputs each; all strides and counts but `reduced` are multiples of
        /// a pack.
        struct PacksPlan {
            outputs: u64,
            reduced: u64,
            /// Reduced elements of each part but the last.
            part_size: u64,
            /// Of sums of floats: what they are divided by.
            divisor: f64,
            /// Of outputs and parts, one for a block at a time.
            tiles: u64,
            row_stride: u64,
            matrix_stride: u64,
            matrix_columns: u64,
            parts: u32,
            /// The logarithm of a power of two up to REDUCE_BLOCK.
            lanes_log2: u32,
        }
    }
}

/// Gather and scatter.
pub mod indexing {
    super::shared! {
        /// Numbers of the dtypes of indices.
        const ID_U8: u32 = 0;
        /// See `ID_U8`.
        const ID_U32: u32 = 1;
        /// See `ID_U8`.
        const ID_I64: u32 = 2;
        /// See `ID_U8`.
        const ID_I16: u32 = 3;
        /// See `ID_U8`.
        const ID_I32: u32 = 4;
        /// Bytes of LDS that `gather_rows` has for a row and `scatter_rows` for the windows of a block's waves.
        const ROW_BYTES: u32 = 16384;
        /// Threads of a block of `gather_rows`.
        const GATHER_BLOCK: u32 = 256;
        /// Waves of a block of `scatter_rows` at most.
        const SCATTER_WAVES: u32 = 8;

        /// The indexed dimension, the type of the indices, and the operation's number in IndexError.
        struct Indexing {
            op: u32,
            id_type: u32,
            size: u32,
            stride: u32,
        }

        /// Steps along the indexed dimension.
        struct Along {
            count: u32,
            id_stride: u32,
            src_stride: u32,
        }
    }
}

/// Random numbers.
pub mod rand {
    super::shared! {
        /// Rounds of the generator.
        const ROUNDS: u32 = 10;

        /// The two words of the key for each round: the key and, from round to round, constants added to it.
        struct RoundKeys {
            k: [[u32; 2]; ROUNDS as usize],
        }
    }
}

/// Mixtures of experts.
pub mod moe {
    super::shared! {
        /// Outputs of one slot that a wave computes together, so that a pack of x serves as many rows of the matrix.
        const OUTPUTS: u32 = 4;
        /// Slots of a tile.
        const TILE_M: u32 = 32;
        /// Outputs of a tile.
        const TILE_N: u32 = 64;
        /// Threads that work on a tile.
        const TILE_THREADS: u32 = 128;

        /// Sizes of a problem; `op` is the operation's number in IndexError.
        struct Experts {
            slots: u32,
            slots_per_row: u32,
            experts: u32,
            n: u32,
            k: u32,
            op: u32,
            /// Whether the largest number of an expert stands for a slot without one, and is not a mistake.
            may_lack: u32,
        }

        /// A gate between the products with experts' matrices: sizes, the factor in its sigmoid and what it clamps to.
        struct ExpertGate {
            slots: u32,
            columns: u32,
            experts: u32,
            alpha: f32,
            limit: f32,
        }

        /// Sums over `used` slots of each token.
        struct ExpertSum {
            tokens: u32,
            used: u32,
            columns: u32,
            experts: u32,
        }
    }
}

/// The choice of next tokens.
pub mod sampling {
    super::shared! {
        /// In place of a token if a row has NaN.
        const NOT_A_NUMBER: u32 = u32::MAX;
        /// In place of a token if all of a row is minus infinity.
        const NOTHING_LEFT: u32 = u32::MAX - 1;

        /// What becomes of one logit before the choice: `logit + bias`, divided by `penalty` if that is above 0 and
        /// multiplied otherwise, less `subtract`. At most one for a row and token.
        struct Edit {
            /// The row.
            row: u32,
            /// The token.
            token: u32,
            /// Added first.
            bias: f32,
            /// 1 is off.
            penalty: f32,
            /// Taken off last.
            subtract: f32,
        }

        /// How a row's token is chosen.
        struct Choice {
            /// 0 takes the largest logit.
            temperature: f32,
            /// Only so many of the largest; 0 is all.
            top_k: u32,
            /// Only those nearest to the expected surprise that together have this share; 1 is all.
            typical_p: f32,
            /// Only the largest that together have this share; 1 is all.
            top_p: f32,
            /// Only those whose logarithm of the probability is no further below the largest; minus infinity is all.
            log_min_p: f32,
            /// Only those so many standard deviations of the logits below the largest at most; 0 is all.
            top_n_sigma: f32,
            /// The temperature goes up and down by so much, by the logits' entropy; 0 is off.
            dynamic_range: f32,
            /// What the share of the largest entropy is raised to for that.
            dynamic_exponent: f32,
            /// Of those with this share, all but the least likely are left out; 1 is off.
            xtc_threshold: f32,
            /// The low and the high word of the seed.
            seed: [u32; 2],
            /// Place in the random sequence.
            position: u32,
        }
    }

    impl Edit {
        /// Words of an edit in device memory.
        pub const WORDS: usize = size_of::<Self>() / size_of::<u32>();

        /// The edit as it lies in device memory.
        pub fn words(&self) -> [u32; Self::WORDS] {
            // SAFETY: it is words of 4 bytes, without padding.
            unsafe { std::mem::transmute(*self) }
        }
    }

    impl Choice {
        /// Words of a choice in device memory.
        pub const WORDS: usize = size_of::<Self>() / size_of::<u32>();

        /// The choice as it lies in device memory.
        pub fn words(&self) -> [u32; Self::WORDS] {
            // SAFETY: it is words of 4 bytes, without padding.
            unsafe { std::mem::transmute(*self) }
        }
    }
}

/// Recurrences over states.
pub mod state_space {
    super::shared! {
        /// Threads of a block.
        const STATE_BLOCK: u32 = 256;
        /// Lanes that share lines of a state.
        const STATE_LANES: u32 = 16;
        /// Lines that these have together.
        const STATE_LINES: u32 = 4;
        /// Elements of RWKV 7's heads.
        const WKV_HEAD: u32 = 64;

        /// The selective scan.
        struct SelectiveScan {
            /// Elements between rows.
            x_row: u64,
            dt_row: u64,
            b_row: u64,
            c_row: u64,
            rows: u32,
            slots: u32,
            sequences: u32,
            /// Blocks that a sequence's channels take.
            tiles: u32,
            channels: u32,
            /// Channels of a head.
            head_size: u32,
            /// Heads that share inputs and outputs of the state.
            heads_per_group: u32,
            /// Between which steps in time are held.
            least_step: f32,
            most_step: f32,
        }

        /// RWKV 7's scan, over rows without gaps.
        struct WkvScan {
            rows: u32,
            slots: u32,
            sequences: u32,
            tiles: u32,
            channels: u32,
        }

        /// The gated linear recurrence, over rows without gaps.
        struct GatedRecurrence {
            rows: u32,
            slots: u32,
            sequences: u32,
            channels: u32,
        }
    }
}
