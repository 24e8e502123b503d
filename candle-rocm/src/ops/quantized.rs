//! Weights in ggml's block-quantized formats.

use crate::ops::cast::cast;
use crate::ops::copy::copy_strided;
use crate::{Args, Buffer, DType, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// Consecutive elements that one thread of the kernels handles.
const GROUP: usize = 8;

/// One line per format: what it is, its number in GGUF files, its name, elements and bytes of a block.
macro_rules! formats {
    ($($(#[$doc:meta])* $format:ident = $number:literal, $name:literal, $elements:literal, $bytes:literal;)*) => {
        /// Storage format of a weight, as GGUF files number them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum GgmlType {
            $($(#[$doc])* $format,)*
        }

        impl GgmlType {
            /// Every format.
            pub const ALL: &[Self] = &[$(Self::$format),*];

            /// The format's number in a GGUF file.
            pub const fn to_u32(self) -> u32 {
                match self { $(Self::$format => $number,)* }
            }

            /// The name in kernel names and messages.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$format => $name,)* }
            }

            /// Elements of a block; 1 for the plain formats.
            pub const fn block_size(self) -> usize {
                match self { $(Self::$format => $elements,)* }
            }

            /// Bytes of a block.
            pub const fn type_size(self) -> usize {
                match self { $(Self::$format => $bytes,)* }
            }
        }
    };
}

formats! {
    /// Plain binary32.
    F32 = 0, "f32", 1, 4;
    /// Plain binary16.
    F16 = 1, "f16", 1, 2;
    /// Plain bfloat16.
    BF16 = 30, "bf16", 1, 2;
    /// 4 bits, blocks of 32 with a scale.
    Q4_0 = 2, "q4_0", 32, 18;
    /// 4 bits, blocks of 32 with a scale and a minimum.
    Q4_1 = 3, "q4_1", 32, 20;
    /// 5 bits, blocks of 32 with a scale.
    Q5_0 = 6, "q5_0", 32, 22;
    /// 5 bits, blocks of 32 with a scale and a minimum.
    Q5_1 = 7, "q5_1", 32, 24;
    /// 8 bits, blocks of 32 with a scale.
    Q8_0 = 8, "q8_0", 32, 34;
    /// 8 bits, blocks of 32 with a scale and the sum of the block.
    Q8_1 = 9, "q8_1", 32, 36;
    /// 2 bits, blocks of 256 with 16 4-bit scales and minima.
    Q2K = 10, "q2k", 256, 84;
    /// 3 bits, blocks of 256 with 16 6-bit scales.
    Q3K = 11, "q3k", 256, 110;
    /// 4 bits, blocks of 256 with 8 6-bit scales and minima.
    Q4K = 12, "q4k", 256, 144;
    /// 5 bits, blocks of 256 with 8 6-bit scales and minima.
    Q5K = 13, "q5k", 256, 176;
    /// 6 bits, blocks of 256 with 16 8-bit scales.
    Q6K = 14, "q6k", 256, 210;
    /// 8 bits, blocks of 256 with a binary32 scale.
    Q8K = 15, "q8k", 256, 292;
}

impl GgmlType {
    /// The format with the given number in a GGUF file; none for numbers of formats not listed here.
    pub fn from_u32(number: u32) -> Option<Self> {
        let mut formats = Self::ALL.iter().copied();
        formats.find(|format| format.to_u32() == number)
    }

    /// The dtype of the plain formats.
    const fn plain(self) -> Option<DType> {
        match self {
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            Self::BF16 => Some(DType::BF16),
            _ => None,
        }
    }

    /// Bytes that `elements` take.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless they fill whole blocks and their size can be represented.
    fn size_of(self, op: &'static str, elements: usize) -> Result<usize> {
        if !elements.is_multiple_of(self.block_size()) {
            return Err(Error::InvalidArgument {
                op,
                reason: format!(
                    "{elements} elements are not whole blocks of {}, which hold {} each",
                    self.name(),
                    self.block_size()
                ),
            });
        }
        (elements / self.block_size())
            .checked_mul(self.type_size())
            .ok_or(Error::TooLarge {
                op,
                what: "element count",
                value: elements,
                limit: (usize::MAX / self.type_size()).saturating_mul(self.block_size()),
            })
    }

    /// Verifies that a buffer holds `elements`.
    fn check(self, op: &'static str, buffer: &Buffer, elements: usize) -> Result<()> {
        buffer.check_range(op, 0, self.size_of(op, elements)?)
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The first `elem_count` elements of a quantized buffer as `to`: f32, f16 or bf16 (any dtype that
/// [`cast`] has, from the plain formats). Values are computed in f32 and rounded once.
///
/// # Errors
/// [`Error::InvalidArgument`] for a count that ends inside a block, [`Error::OutOfBounds`] if the buffer is
/// shorter, [`Error::UnsupportedDType`] for other dtypes.
pub fn dequantize(
    device: &Device,
    format: GgmlType,
    quantized: &Buffer,
    elem_count: usize,
    to: DType,
) -> Result<Buffer> {
    const OP: &str = "dequantize";
    format.check(OP, quantized, elem_count)?;
    if let Some(dtype) = format.plain() {
        return cast(
            device,
            &View::contiguous(quantized, dtype, &[elem_count], &[1]),
            to,
        );
    }
    if !matches!(to, DType::F32 | DType::F16 | DType::BF16) {
        return Err(Error::UnsupportedDType { op: OP, dtype: to });
    }
    let bytes = elem_count
        .checked_mul(to.size_in_bytes())
        .ok_or(Error::TooLarge {
            op: OP,
            what: "element count",
            value: elem_count,
            limit: usize::MAX / to.size_in_bytes(),
        })?;
    let output = device.alloc(bytes)?;
    if elem_count == 0 {
        return Ok(output);
    }
    let groups = elem_count / GROUP;
    let name = format!("dequantize_{}_{}", format.name(), to.as_str());
    device.kernel(Family::Dequantize, &name)?.launch(
        LaunchConfig::for_elements(groups),
        &Args::new()
            .u64(groups as u64)
            .ptr(quantized, 0)
            .ptr(&output, 0),
    )?;
    Ok(output)
}

/// Most vectors that [`matvec`] multiplies at once. Beyond, dequantizing the matrix once pays.
pub const MATVEC_MAX_COLUMNS: usize = 8;

/// Threads of a block of the matrix-vector kernels. Small blocks spread the few rows of a small matrix over more compute units.
const MATVEC_BLOCK: usize = 64;

/// Threads that share one row of the matrix, as in `quantized/matvec.hip`.
const MATVEC_LANES: usize = 16;

/// `x · weightsᵀ` for a quantized matrix of `rows` by `cols` and up to [`MATVEC_MAX_COLUMNS`] vectors: f32 `x` of
/// `[..., cols]` gives f32 `[..., rows]`. Products are summed in f32.
///
/// # Errors
/// [`Error::InvalidArgument`] for plain formats, rows that end inside a block, or more vectors;
/// [`Error::ShapeMismatch`] if the last dimension of `x` is not `cols`; [`Error::UnsupportedDType`] if `x` is not f32.
pub fn matvec(
    device: &Device,
    format: GgmlType,
    weights: &Buffer,
    rows: usize,
    cols: usize,
    x: &View,
) -> Result<Buffer> {
    const OP: &str = "quantized matvec";
    x.check(OP)?;
    if x.dtype != DType::F32 {
        return Err(Error::UnsupportedDType {
            op: OP,
            dtype: x.dtype,
        });
    }
    if x.dims.last() != Some(&cols) {
        return Err(Error::ShapeMismatch {
            op: OP,
            lhs: x.dims.to_vec(),
            rhs: vec![rows, cols],
        });
    }
    let columns: usize = x.dims[..x.dims.len() - 1].iter().product();
    if columns > MATVEC_MAX_COLUMNS || format.plain().is_some() {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!(
                "a {format} matrix times {columns} vectors; it takes block formats and at most {MATVEC_MAX_COLUMNS} vectors, dequantize and multiply instead"
            ),
        });
    }
    for (what, value) in [("row count", rows), ("column count", cols)] {
        if value > u32::MAX as usize {
            return Err(Error::TooLarge {
                op: OP,
                what,
                value,
                limit: u32::MAX as usize,
            });
        }
    }
    // Rows are whole blocks, so that each starts at a block.
    let row_bytes = format.size_of(OP, cols)?;
    // Both factors are below 2^32.
    format.check(OP, weights, rows * cols)?;
    let bytes = columns * rows * size_of::<f32>();
    if bytes == 0 || row_bytes == 0 {
        return device.alloc_zeroed(bytes);
    }
    let output = device.alloc(bytes)?;
    let packed;
    let (x_buffer, x_offset) = if x.is_contiguous() {
        (x.buffer, x.offset * size_of::<f32>())
    } else {
        packed = device.alloc(x.elem_count() * size_of::<f32>())?;
        copy_strided(device, x, &packed, 0)?;
        (&packed, 0)
    };
    let name = format!("matvec_{format}_{}", columns.next_power_of_two());
    let blocks = rows.div_ceil(MATVEC_BLOCK / MATVEC_LANES);
    device.kernel(Family::Matvec, &name)?.launch(
        LaunchConfig {
            grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
            block: MATVEC_BLOCK as u32,
            shared_bytes: 0,
        },
        &Args::new()
            .u32(rows as u32)
            .u32(cols as u32)
            .u32(columns as u32)
            .ptr(weights, 0)
            .ptr(x_buffer, x_offset)
            .ptr(&output, 0),
    )?;
    Ok(output)
}
