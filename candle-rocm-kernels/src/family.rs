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
    /// Gather, scatter and index operations.
    Indexing,
    /// Strided and two-dimensional copies.
    Copy,
    /// Random numbers.
    Rand,
    /// Convolutions, plain and transposed.
    Conv,
    /// Softmax, norms and rotary embeddings.
    Nn,
    /// Pooling over windows of images.
    Pool,
    /// Images at another size.
    Upsample,
    /// argsort along the last dimension.
    Sort,
    /// Block-quantized weights to floating point.
    Dequantize,
    /// Block-quantized matrices times a few vectors.
    Matvec,
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
        Self::Indexing,
        Self::Copy,
        Self::Rand,
        Self::Conv,
        Self::Nn,
        Self::Pool,
        Self::Upsample,
        Self::Sort,
        Self::Dequantize,
        Self::Matvec,
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
            Self::Indexing => "indexing.hip",
            Self::Copy => "copy.hip",
            Self::Rand => "rand.hip",
            Self::Conv => "conv.hip",
            Self::Nn => "nn.hip",
            Self::Pool => "pool.hip",
            Self::Upsample => "upsample.hip",
            Self::Sort => "sort.hip",
            Self::Dequantize => "quantized/dequantize.hip",
            Self::Matvec => "quantized/matvec.hip",
        }
    }
}
