//! What tells the architectures apart that the decoder runs. The register of architectures has these facts for each.

use super::experts::Routing;
pub use candle_core::rocm_backend::candle_rocm::ops::moe::ClampedGate;

/// What an architecture does where others do something else. What a file can tell by itself (sizes, biases, experts,
/// windows) is not here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecoderTraits {
    /// The rotary embedding turns neighbours, not halves.
    pub interleaved: bool,
    /// What norms subtract and divide by.
    pub norm: NormKind,
    /// Norms before attention and the feed-forward part.
    pub pre_norms: bool,
    /// Norms of what these give.
    pub post_norms: bool,
    /// Norms of queries and keys, before they turn.
    pub qk_norms: bool,
    /// The same without weights, where they turn.
    pub plain_qk_norms: bool,
    /// That of the feed-forward part.
    pub activation: Activation,
    /// How the embedding is scaled, unless the file says.
    pub embedding: EmbeddingScale,
    /// How a router's numbers become weights, unless the file says.
    pub routing: Routing,
    /// The feed-forward part works on the block's input beside attention, not behind it, unless the file says
    /// otherwise.
    pub parallel: bool,
    /// What follows from the number of the block.
    pub layers: Layers,
    /// What the file's `logit_scale` does to logits.
    pub logit_scale: LogitScale,
    /// Positions of a chunk in blocks that turn queries and keys, unless the file says: a row sees keys of its own chunk
    /// only.
    pub chunk: Option<u32>,
    /// What queries of blocks that do not turn them are multiplied by, unless the file says.
    pub temperature: Option<Temperature>,
    /// Blocks of the one model whose scores are scaled by its width over its heads, not by the size of a head: nothing
    /// but its depth tells it.
    pub scores_by_width_at: Option<usize>,
    /// Norms of queries and keys come behind the turn.
    pub qk_norms_behind: bool,
    /// There may be norms of queries and keys, or none.
    pub optional_qk_norms: bool,
    /// Factor of scores, unless the file says, in place of the root of a head's size.
    pub score_scale: Option<f32>,
    /// Experts work beside the feed-forward part, with norms of their own.
    pub experts_beside: bool,
    /// The stream may have a factor behind each block.
    pub stream_scales: bool,
    /// Norms of values, without weights.
    pub value_norms: bool,
    /// Blocks without a matrix of values take what their keys are made of.
    pub keys_as_values: bool,
    /// Each head has a sink: a score that counts in the sum of the softmax, and has no value.
    pub sinks: bool,
    /// The gate of experts, which have biases then, where it is another than the activation.
    pub clamped_gates: Option<ClampedGate>,
    /// YaRN changes frequencies from a whole pair on and up to one.
    pub yarn_whole_pairs: bool,
    /// How pairs of elements are shared among time, row and column of pictures (M-RoPE).
    pub sections: Sections,
    /// Rows of a picture that see all of it do so in blocks with a window only.
    pub ahead_in_windows: bool,
    /// The recurrence of blocks that have one.
    pub recurrence: Recurrence,
    /// Which blocks have it, and what they have beside it.
    pub parts: BlockParts,
    /// The matrix of queries has a gate behind each head's, whose sigmoid multiplies what attention gives.
    pub gated_attention: bool,
    /// Heads of a gated delta rule go from key head to key head, and do not share one with their neighbours.
    pub tiled_heads: bool,
    /// What attention keeps in place of keys and values.
    pub latent: Latent,
    /// Blocks have experts where they have a router; the file does not say it otherwise.
    pub experts_where_routed: bool,
    /// Norms have no weights.
    pub plain_norms: bool,
    /// Norms of queries and keys are layer norms with weights of each head; there may be none.
    pub norms_of_heads: bool,
    /// The feed-forward part works on the block's input beside attention where it has no norm of its own.
    pub parallel_without_norm: bool,
    /// Positions have embeddings, which are added to those of tokens.
    pub learned_positions: bool,
    /// If the file says so, queries have a temperature at all positions, and cosines and sines a divisor.
    pub tempered: bool,
    /// Blocks go on from what their norms give, not from the stream before.
    pub normed_stream: bool,
}

/// Whether attention keeps a latent vector for each token in place of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latent {
    /// It does not.
    None,
    /// It does.
    Plain,
    /// It does, and looks at the keys that an indexer chooses.
    Indexed {
        /// The indexer's rotary embedding turns neighbours, not halves.
        interleaved: bool,
    },
}

/// What mixes tokens by a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recurrence {
    /// None.
    None,
    /// Mamba's selective scan: each channel has rates of its own.
    Mamba,
    /// Mamba 2's: a head's channels share one rate.
    Mamba2,
    /// Griffin's gated linear recurrence.
    Griffin,
    /// RWKV 7's, with the part that takes the feed-forward part's place.
    Rwkv7,
    /// The gated delta rule, behind a convolution.
    Delta,
    /// A gated convolution alone.
    ShortConvolution,
    /// Linear attention whose heads forget at rates of their own: "lightning attention".
    Lightning,
}

/// The parts of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockParts {
    /// Attention and the feed-forward part.
    Attention,
    /// The recurrence alone, in each block.
    Recurrent,
    /// The recurrence in place of attention where a block has no heads of keys and values.
    RecurrentWithoutHeads,
    /// The recurrence in place of attention in blocks that the file lists, or between each so-manieth.
    RecurrentBetween,
    /// One part each: attention where there are heads of keys and values, else the feed-forward part where it has a
    /// width, else the recurrence.
    One,
    /// The recurrence beside attention, and the feed-forward part.
    Beside,
}

/// Factors of queries that grow with the position: `1 + scale ln(1 + floor((position + offset) / length))`.
/// ("Scalable-Softmax Is Superior for Attention", Nakanishi, 2025.)
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    /// See above.
    pub scale: f32,
    /// Positions of a step.
    pub length: u32,
    /// See above.
    pub offset: u32,
}

/// What norms do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Division by the root mean square.
    Rms,
    /// Mean and variance.
    Layer,
}

/// The feed-forward part's activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// SiLU.
    Silu,
    /// GELU by tanh.
    Gelu,
    /// GELU itself.
    ExactGelu,
    /// The square of ReLU.
    SquaredRelu,
    /// xIELU, with numbers of each block; there is no gate.
    Xielu,
}

/// The factor of the embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// None.
    None,
    /// The square root of the width.
    Root,
}

/// What blocks differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// All alike; a window is everywhere, if there is one.
    Same,
    /// All but each `n`-th block have the window; with their own rotary base, if `local_base` is given.
    Windowed {
        /// That `n`, unless the file says.
        period: u32,
        /// Rotary base of blocks with a window.
        local_base: Option<u32>,
        /// Blocks without window have no rotary embedding.
        positionless: bool,
    },
    /// Each `n`-th block has no rotary embedding, unless the file lists those that have one.
    Positionless {
        /// That `n`.
        period: u32,
    },
    /// All alike in files that have no window; in others all but each `n`-th block have the window.
    MaybeWindowed {
        /// That `n`, unless the file says.
        period: u32,
        /// Blocks with a window turn by the file's base without its scaling.
        unscaled: bool,
        /// Blocks without window have no rotary embedding.
        positionless: bool,
    },
}

/// Which of time, row and column a pair of elements turns by; for text all three are the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sections {
    /// The place only.
    None,
    /// One behind the other.
    Split,
    /// In turn, as long as each has pairs left; time has the rest.
    Interleaved,
}

/// What a factor of logits in the file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitScale {
    /// Divides them.
    Divides,
    /// Multiplies them.
    Multiplies,
}

impl DecoderTraits {
    /// Llama's.
    pub const LLAMA: Self = Self {
        interleaved: true,
        norm: NormKind::Rms,
        pre_norms: true,
        post_norms: false,
        qk_norms: false,
        plain_qk_norms: false,
        activation: Activation::Silu,
        embedding: EmbeddingScale::None,
        routing: Routing::NORMALISED,
        parallel: false,
        layers: Layers::Same,
        logit_scale: LogitScale::Divides,
        chunk: None,
        temperature: None,
        scores_by_width_at: None,
        qk_norms_behind: false,
        optional_qk_norms: false,
        score_scale: None,
        experts_beside: false,
        stream_scales: false,
        value_norms: false,
        keys_as_values: false,
        sinks: false,
        clamped_gates: None,
        yarn_whole_pairs: true,
        recurrence: Recurrence::None,
        parts: BlockParts::Attention,
        sections: Sections::None,
        ahead_in_windows: false,
        latent: Latent::None,
        gated_attention: false,
        tiled_heads: false,
        experts_where_routed: false,
        plain_norms: false,
        norms_of_heads: false,
        parallel_without_norm: false,
        learned_positions: false,
        tempered: false,
        normed_stream: false,
    };
}
