//! The kernel families: one device file, one launcher and one test each.

/// The one list of families: what each is for, its name and its device file.
macro_rules! families {
    ($($(#[$doc:meta])* $family:ident = $file:literal;)*) => {
        /// A family of kernels, compiled and loaded as one module or in parts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Family {
            $($(#[$doc])* $family,)*
        }

        impl Family {
            /// Every family.
            pub const ALL: &'static [Self] = &[$(Self::$family),*];

            /// The family's device file, relative to this package's `hip` directory.
            pub const fn file_name(self) -> &'static str {
                match self { $(Self::$family => $file,)* }
            }
        }
    };
}

families! {
    /// What instructions make of known values, to be compared with what they should.
    Instructions = "instructions.hip";
    /// Writing one value everywhere.
    Fill = "fill.hip";
    /// `x * mul + add`, powers and ELU.
    Affine = "affine.hip";
    /// Functions of one operand.
    Unary = "unary.hip";
    /// Arithmetic and comparison of two operands.
    Binary = "binary.hip";
    /// Conversion between dtypes.
    Cast = "cast.hip";
    /// Selection by a condition.
    Ternary = "ternary.hip";
    /// Sums, extrema and their indices along axes.
    Reduce = "reduce.hip";
    /// The same where elements lie in packs, along rows or across columns.
    ReducePacks = "reduce_packs.hip";
    /// Cumulative sums along axes.
    Scan = "scan.hip";
    /// Gather, scatter and index operations.
    Indexing = "indexing.hip";
    /// The same along dense rows, in LDS.
    IndexingRows = "indexing_rows.hip";
    /// Strided and two-dimensional copies.
    Copy = "copy.hip";
    /// Random numbers.
    Rand = "rand.hip";
    /// Convolutions, plain and transposed.
    Conv = "conv.hip";
    /// Softmax along rows.
    Softmax = "softmax.hip";
    /// Gradient of softmax.
    SoftmaxBackward = "softmax_backward.hip";
    /// Rotary embeddings.
    Rope = "rope.hip";
    /// RMS norm and layer norm, also of a sum.
    Norm = "norm.hip";
    /// Gradients of RMS norm and layer norm.
    NormBackward = "norm_backward.hip";
    /// Group norm, also with SiLU.
    GroupNorm = "group_norm.hip";
    /// Gradients of group norm.
    GroupNormBackward = "group_norm_backward.hip";
    /// Gated activations.
    Gated = "gated.hip";
    /// Gradients of gated activations.
    GatedBackward = "gated_backward.hip";
    /// Bias, activation, gate and residual connection behind a product.
    Epilogue = "epilogue.hip";
    /// Products of matrices of floats, in tiles.
    Gemm = "matmul/gemm.hip";
    /// Matrices of floats times a few vectors.
    Gemv = "matmul/gemv.hip";
    /// Products of 8-bit floats with scales.
    Scaled = "matmul/scaled.hip";
    /// The choice of experts.
    MoeRouter = "moe/router.hip";
    /// Matrices of experts times the rows routed to them.
    MoeRows = "moe/rows.hip";
    /// Attention by tiles.
    AttentionTiled = "attention/tiled.hip";
    /// Attention by tiles with dropout, and gradients of attention.
    AttentionBackward = "attention/backward.hip";
    /// Attention of a few rows to many keys.
    AttentionDecode = "attention/decode.hip";
    /// Attention to latent vectors, and the choice of keys for it.
    AttentionLatent = "attention/latent.hip";
    /// Attention by matrix instructions on f16.
    AttentionMatrixF16 = "attention/matrix_f16.hip";
    /// The same on bf16.
    AttentionMatrixBf16 = "attention/matrix_bf16.hip";
    /// Masked softmax over a matrix of products.
    AttentionScores = "attention/scores.hip";
    /// Writing to and reading from a paged cache of keys and values.
    KvCache = "attention/kv_cache.hip";
    /// Causal convolutions along sequences with states.
    CausalConv = "causal_conv.hip";
    /// The gated delta rule along sequences with states.
    DeltaRule = "delta_rule.hip";
    /// Pooling over windows of images.
    Pool = "pool.hip";
    /// Images at another size.
    Upsample = "upsample.hip";
    /// Recurrences over states: selective scans, RWKV 7, gated linear recurrences.
    StateSpace = "state_space.hip";
    /// argsort along the last dimension.
    Sort = "sort.hip";
    /// The choice of next tokens from logits.
    Sampling = "sampling.hip";
    /// Block-quantized weights to floating point.
    Dequantize = "quantized/dequantize.hip";
    /// The same for the IQ formats, the ternary ones and the 4-bit floats.
    DequantizeIq = "quantized/dequantize_iq.hip";
    /// Rows of quantized tables.
    QuantizedEmbedding = "quantized/embedding.hip";
    /// Activations to 8 bits.
    QuantizeActivations = "quantized/activations.hip";
    /// Matrices in blocks of 32 times a few 8-bit vectors.
    MatvecSmall = "quantized/matvec_small.hip";
    /// Matrices in K formats times a few 8-bit vectors.
    MatvecK = "quantized/matvec_k.hip";
    /// Matrices in formats with codebooks times a few 8-bit vectors.
    MatvecCodebook = "quantized/matvec_codebook.hip";
    /// Matrices in formats with a table of levels times a few 8-bit vectors.
    MatvecLevels = "quantized/matvec_levels.hip";
    /// Matrices of 8-bit floats times a few vectors of floats.
    MatvecF8 = "quantized/matvec_f8.hip";
    /// Matrices in blocks of 32 times many 8-bit vectors.
    MatmulSmall = "quantized/matmul_small.hip";
    /// Matrices in K formats times many 8-bit vectors.
    MatmulK = "quantized/matmul_k.hip";
    /// Matrices in formats with codebooks times many 8-bit vectors.
    MatmulCodebook = "quantized/matmul_codebook.hip";
    /// Matrices in formats with a table of levels times many 8-bit vectors.
    MatmulLevels = "quantized/matmul_levels.hip";
    /// Matrices in K formats times a few 8-bit vectors, as f16.
    MatmulHalves = "quantized/matmul_halves.hip";
    /// Activations to 8-bit floats.
    QuantizeFloats = "quantized/activations_float8.hip";
    /// Matrices of 8-bit floats in blocks times many vectors of 8-bit floats.
    MatmulFloat8 = "quantized/matmul_float8.hip";
    /// Matrices of 8-bit floats times many vectors of floats.
    MatmulF8 = "quantized/matmul_f8.hip";
    /// Matrices of 4-bit floats in MX blocks times many vectors of 8-bit floats.
    MatmulMx = "quantized/matmul_mx.hip";
    /// Collectives of several GPUs that reach each other's memory.
    Collective = "collective.hip";
    /// Gates of experts with biases, and sums over the experts of tokens.
    MoeGate = "moe/gate.hip";
    /// Quantized matrices of experts times the vectors routed to them.
    MoeQuantized = "moe/quantized.hip";
    /// Matrices of 8-bit floats of experts times the vectors routed to them.
    MoeF8 = "moe/f8.hip";
}
