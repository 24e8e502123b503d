//! The kernel families: one device file, one launcher and one test each.

/// A family of kernels, compiled and loaded as one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Writing one value everywhere.
    Fill,
    /// `x * mul + add`, powers and ELU.
    Affine,
    /// Functions of one operand.
    Unary,
    /// Arithmetic and comparison of two operands.
    Binary,
    /// Conversion between dtypes.
    Cast,
    /// Selection by a condition.
    Ternary,
    /// Sums, extrema and their indices along axes.
    Reduce,
    /// The same where elements lie in packs, along rows or across columns.
    ReducePacks,
    /// Gather, scatter and index operations.
    Indexing,
    /// The same along dense rows, in LDS.
    IndexingRows,
    /// Strided and two-dimensional copies.
    Copy,
    /// Random numbers.
    Rand,
    /// Convolutions, plain and transposed.
    Conv,
    /// Softmax and rotary embeddings.
    Nn,
    /// RMS norm and layer norm, also of a sum.
    Norm,
    /// Group norm, also with SiLU.
    GroupNorm,
    /// Gated activations.
    Gated,
    /// Matrices of experts times the rows routed to them.
    MoeRows,
    /// Attention by tiles.
    AttentionTiled,
    /// Attention of a few rows to many keys.
    AttentionDecode,
    /// Attention by matrix instructions on f16.
    AttentionMatrixF16,
    /// The same on bf16.
    AttentionMatrixBf16,
    /// Masked softmax over a matrix of products.
    AttentionScores,
    /// Writing to and reading from a paged cache of keys and values.
    KvCache,
    /// Pooling over windows of images.
    Pool,
    /// Images at another size.
    Upsample,
    /// argsort along the last dimension.
    Sort,
    /// The choice of next tokens from logits.
    Sampling,
    /// Block-quantized weights to floating point.
    Dequantize,
    /// The same for the IQ formats, the ternary ones and the 4-bit floats.
    DequantizeIq,
    /// Rows of quantized tables.
    QuantizedEmbedding,
    /// Activations to 8 bits.
    QuantizeActivations,
    /// Matrices in blocks of 32 times a few 8-bit vectors.
    MatvecSmall,
    /// Matrices in K formats times a few 8-bit vectors.
    MatvecK,
    /// Matrices in formats with codebooks times a few 8-bit vectors.
    MatvecCodebook,
    /// Matrices in formats with a table of levels times a few 8-bit vectors.
    MatvecLevels,
    /// Matrices in blocks of 32 times many 8-bit vectors.
    MatmulSmall,
    /// Matrices in K formats times many 8-bit vectors.
    MatmulK,
    /// Matrices in formats with codebooks times many 8-bit vectors.
    MatmulCodebook,
    /// Matrices in formats with a table of levels times many 8-bit vectors.
    MatmulLevels,
    /// Quantized matrices of experts times the vectors routed to them.
    MoeQuantized,
}

impl Family {
    /// Every family.
    pub const ALL: &'static [Self] = &[
        Self::Fill,
        Self::Affine,
        Self::Unary,
        Self::Binary,
        Self::Cast,
        Self::Ternary,
        Self::Reduce,
        Self::ReducePacks,
        Self::Indexing,
        Self::IndexingRows,
        Self::Copy,
        Self::Rand,
        Self::Conv,
        Self::Nn,
        Self::Norm,
        Self::GroupNorm,
        Self::Gated,
        Self::MoeRows,
        Self::AttentionTiled,
        Self::AttentionDecode,
        Self::AttentionMatrixF16,
        Self::AttentionMatrixBf16,
        Self::AttentionScores,
        Self::KvCache,
        Self::Pool,
        Self::Upsample,
        Self::Sort,
        Self::Sampling,
        Self::Dequantize,
        Self::DequantizeIq,
        Self::QuantizedEmbedding,
        Self::QuantizeActivations,
        Self::MatvecSmall,
        Self::MatvecK,
        Self::MatvecCodebook,
        Self::MatvecLevels,
        Self::MatmulSmall,
        Self::MatmulK,
        Self::MatmulCodebook,
        Self::MatmulLevels,
        Self::MoeQuantized,
    ];

    /// The family's device file, relative to this package's `hip` directory.
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Fill => "fill.hip",
            Self::Affine => "affine.hip",
            Self::Unary => "unary.hip",
            Self::Binary => "binary.hip",
            Self::Cast => "cast.hip",
            Self::Ternary => "ternary.hip",
            Self::Reduce => "reduce.hip",
            Self::ReducePacks => "reduce_packs.hip",
            Self::Indexing => "indexing.hip",
            Self::IndexingRows => "indexing_rows.hip",
            Self::Copy => "copy.hip",
            Self::Rand => "rand.hip",
            Self::Conv => "conv.hip",
            Self::Nn => "nn.hip",
            Self::Norm => "norm.hip",
            Self::GroupNorm => "group_norm.hip",
            Self::Gated => "gated.hip",
            Self::MoeRows => "moe/rows.hip",
            Self::AttentionTiled => "attention/tiled.hip",
            Self::AttentionDecode => "attention/decode.hip",
            Self::AttentionMatrixF16 => "attention/matrix_f16.hip",
            Self::AttentionMatrixBf16 => "attention/matrix_bf16.hip",
            Self::AttentionScores => "attention/scores.hip",
            Self::KvCache => "attention/kv_cache.hip",
            Self::Pool => "pool.hip",
            Self::Upsample => "upsample.hip",
            Self::Sort => "sort.hip",
            Self::Sampling => "sampling.hip",
            Self::Dequantize => "quantized/dequantize.hip",
            Self::DequantizeIq => "quantized/dequantize_iq.hip",
            Self::QuantizedEmbedding => "quantized/embedding.hip",
            Self::QuantizeActivations => "quantized/activations.hip",
            Self::MatvecSmall => "quantized/matvec_small.hip",
            Self::MatvecK => "quantized/matvec_k.hip",
            Self::MatvecCodebook => "quantized/matvec_codebook.hip",
            Self::MatvecLevels => "quantized/matvec_levels.hip",
            Self::MatmulSmall => "quantized/matmul_small.hip",
            Self::MatmulK => "quantized/matmul_k.hip",
            Self::MatmulCodebook => "quantized/matmul_codebook.hip",
            Self::MatmulLevels => "quantized/matmul_levels.hip",
            Self::MoeQuantized => "moe/quantized.hip",
        }
    }
}
