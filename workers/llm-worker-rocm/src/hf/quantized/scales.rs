//! Scales of 8-bit floats, whatever they are of.

use crate::hf::files::{Files, Stored};
use half::{bf16, f16};
use safetensors::Dtype;

/// What a scale is of, as a configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shared {
    /// The whole matrix.
    Tensor,
    /// An output.
    Channel,
    /// Rows times columns.
    Block([usize; 2]),
}

/// Scales of a matrix or a stack of them: each is of some rows and of some columns.
#[derive(Debug)]
pub(super) struct Scales {
    stored: Stored,
    /// Rows of scales of a matrix of the stack; 0 if all share them.
    rows: usize,
    /// Scales of such a row.
    columns: usize,
    /// Which row of scales an output has.
    row_of: Rows,
    /// Columns that share a scale.
    pub width: usize,
}

#[derive(Debug)]
enum Rows {
    /// So many outputs share one.
    Every(usize),
    /// Outputs below the first bound have the first, and so on: those of matrices that were fused.
    Below(Vec<usize>),
}

impl Scales {
    /// Takes a tensor of scales of a stack of `[matrices, outputs, inputs]`. `parts` are the outputs of the matrices that
    /// may have been fused, each with its own scale, by how many there are.
    pub(super) fn new(
        stored: &Stored,
        shared: Shared,
        [matrices, outputs, inputs]: [usize; 3],
        parts: impl Fn(usize) -> Option<Vec<usize>>,
    ) -> Result<Self, String> {
        if !matches!(
            stored.dtype,
            Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F8_E8M0 | Dtype::U8
        ) {
            return Err(format!("scales of {:?} are not implemented", stored.dtype));
        }
        let (height, width) = match shared {
            Shared::Tensor => (outputs, inputs),
            Shared::Channel => (1, inputs),
            Shared::Block([height, width]) => (height, width),
        };
        let (rows, columns) = (outputs.div_ceil(height), inputs.div_ceil(width));
        let count: usize = stored.shape.iter().product();
        // Dimensions of 1 are there or not.
        let shape: Vec<usize> = stored.shape.iter().copied().filter(|d| *d != 1).collect();
        let expected = [matrices, rows, columns];
        let is_expected = shape.iter().eq(expected.iter().filter(|d| **d != 1));
        let scales = |rows, columns, row_of, width| {
            Ok(Self {
                stored: stored.clone(),
                rows,
                columns,
                row_of,
                width,
            })
        };
        if is_expected {
            return scales(rows, columns, Rows::Every(height), width);
        }
        if shared != Shared::Tensor {
            return Err(format!(
                "scales of shape {:?} do not fit a shape of {:?}, {} are expected",
                stored.shape,
                [matrices, outputs, inputs],
                matrices * rows * columns
            ));
        }
        if count == 1 {
            return scales(0, 1, Rows::Every(outputs), inputs);
        }
        // Files whose configuration speaks of one scale have one for each output, too, or for each fused matrix.
        let of_one = count / matrices;
        if count.is_multiple_of(matrices) && of_one == outputs {
            return scales(outputs, 1, Rows::Every(1), inputs);
        }
        let fused = count
            .is_multiple_of(matrices)
            .then(|| parts(of_one))
            .flatten();
        let fused = fused.filter(|all| all.len() == of_one && all.iter().sum::<usize>() == outputs);
        match fused {
            Some(all) => {
                let ends = all.iter().scan(0, |end, part| {
                    *end += part;
                    Some(*end)
                });
                scales(of_one, 1, Rows::Below(ends.collect()), inputs)
            }
            None => Err(format!(
                "scales of shape {:?} do not fit a shape of {:?}, one is expected",
                stored.shape,
                [matrices, outputs, inputs]
            )),
        }
    }

    /// The scales of a row of the stack, checked.
    pub(super) fn of_row(
        &self,
        files: &Files,
        matrix: usize,
        output: usize,
        out: &mut Vec<f32>,
    ) -> Result<(), String> {
        let within = match &self.row_of {
            Rows::Every(height) => output / height,
            Rows::Below(ends) => ends.partition_point(|end| *end <= output),
        };
        let first = match self.rows {
            0 => 0,
            rows => (matrix * rows + within) * self.columns,
        };
        let data = files.bytes(self.stored.source);
        out.clear();
        for i in first..first + self.columns {
            let value = number(data, self.stored.dtype, i);
            if !(value.is_finite() && value > 0.0) {
                return Err(format!("a scale is {value}"));
            }
            out.push(value);
        }
        Ok(())
    }
}

/// A number of a tensor of one of the dtypes that scales have; those of one byte without a sign are powers of two.
fn number(data: &[u8], dtype: Dtype, i: usize) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_le_bytes([data[2 * i], data[2 * i + 1]]).to_f32(),
        Dtype::BF16 => bf16::from_le_bytes([data[2 * i], data[2 * i + 1]]).to_f32(),
        Dtype::F32 => {
            let at = &data[4 * i..4 * i + 4];
            f32::from_le_bytes([at[0], at[1], at[2], at[3]])
        }
        _ => power_of_two(data[i]),
    }
}

/// `2^(bits - 127)`, NaN for 255: e8m0 of the MX formats.
pub(super) fn power_of_two(bits: u8) -> f32 {
    match bits {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(bits) << 23),
    }
}

/// All numbers of a tensor of few, which are above zero: scales of whole matrices.
pub(super) fn few(files: &Files, stored: &Stored, count: usize) -> Result<Vec<f32>, String> {
    let found: usize = stored.shape.iter().product();
    let of_all = match (stored.dtype, found) {
        (Dtype::F32 | Dtype::F16 | Dtype::BF16, 1) => true,
        (Dtype::F32 | Dtype::F16 | Dtype::BF16, found) if found == count => false,
        _ => {
            return Err(format!(
                "a scale of {:?} and shape {:?} is no number for each of {count} matrices",
                stored.dtype, stored.shape
            ))
        }
    };
    let data = files.bytes(stored.source);
    let at = |i: usize| number(data, stored.dtype, if of_all { 0 } else { i });
    let values: Vec<f32> = (0..count).map(at).collect();
    match values.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
        Some(other) => Err(format!("a scale is {other}")),
        None => Ok(values),
    }
}
