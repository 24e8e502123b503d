//! Matrices of modules' tensors.

use super::packing::{Codes, Packing, ScaleShape, Zeros};
use super::{Integers, Sources};
use crate::hf::files::{Files, Source, Stored};
use crate::hf::quantized::matrix::Matrix;
use crate::hf::quantized::parts::Module;
use safetensors::Dtype;

/// Who has packed a matrix, and what the configuration says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hf::quantized) enum Packer {
    /// GPTQ's.
    Gptq {
        /// Of a code: 4 or 8.
        bits: usize,
        /// Inputs of a group; none if all are one.
        group: Option<usize>,
        /// Whether `g_idx` has to be there.
        ordered: bool,
        /// Whether zero points are stored less by 1.
        less_one: bool,
    },
    /// AWQ's, for matrix products, of 4 bits.
    Awq {
        /// Inputs of a group; none if all are one.
        group: Option<usize>,
    },
    /// compressed-tensors'.
    Tensors {
        /// Of a code: 4 or 8.
        bits: usize,
        shared: IntegerScales,
        /// Whether there are zero points.
        has_zeros: bool,
        /// Whether codes are packed into words.
        is_packed: bool,
    },
}

/// What has a scale of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hf::quantized) enum IntegerScales {
    Tensor,
    Channel,
    /// So many inputs of an output.
    Group(usize),
}

/// The sizes of a matrix.
fn sizes(stored: &Stored, dtype: Dtype, name: &str) -> Result<[usize; 2], String> {
    match stored.shape[..] {
        [rows, columns] if stored.dtype == dtype && rows > 0 && columns > 0 => Ok([rows, columns]),
        _ => Err(format!(
            "{name} of dtype {:?} and shape {:?} is not implemented; {dtype:?} of rows and columns is",
            stored.dtype, stored.shape
        )),
    }
}

fn expect(stored: &Stored, shape: &[usize], name: &str) -> Result<(), String> {
    match stored.shape == shape {
        true => Ok(()),
        false => Err(format!(
            "{name} of shape {:?} must be of {shape:?}",
            stored.shape
        )),
    }
}

/// The place of scales of a dtype that is read.
fn scales(module: &mut Module, name: &str) -> Result<Stored, String> {
    let stored = module.take(name)?;
    match stored.dtype {
        Dtype::F16 | Dtype::BF16 | Dtype::F32 => Ok(stored),
        other => Err(format!("{name} of {other:?} is not implemented")),
    }
}

impl Packer {
    /// Makes a matrix of a module's tensors.
    ///
    /// # Errors
    /// What is missing or does not fit, without the module's name.
    pub(in crate::hf::quantized) fn matrix(
        self,
        module: &mut Module,
        files: &Files,
    ) -> Result<Matrix, String> {
        let (packing, sources, g_idx) = match self {
            Self::Gptq {
                bits,
                group,
                ordered,
                less_one,
            } => gptq(module, bits, group, (ordered, less_one))?,
            Self::Awq { group } => awq(module, group)?,
            Self::Tensors {
                bits,
                shared,
                has_zeros,
                is_packed: true,
            } => packed(module, files, bits, (shared, has_zeros))?,
            Self::Tensors {
                shared, has_zeros, ..
            } => signed(module, shared, has_zeros)?,
        };
        let (outputs, inputs) = (packing.outputs, packing.inputs);
        let layout = Integers::new(packing, sources, g_idx, files)?;
        Ok(Matrix {
            shape: vec![outputs, inputs],
            order: layout.order(),
            layout: Box::new(layout),
            sources: Vec::new(),
            scales: None,
        })
    }
}

type Found = (Packing, Sources, Option<Source>);

fn gptq(
    module: &mut Module,
    bits: usize,
    group: Option<usize>,
    (ordered, less_one): (bool, bool),
) -> Result<Found, String> {
    let codes = module.take("qweight")?;
    let [words, outputs] = sizes(&codes, Dtype::I32, "qweight")?;
    let inputs = words * (32 / bits);
    let g_idx = match module.parts.remove("g_idx") {
        None if ordered => return Err("it has no g_idx".to_string()),
        None => None,
        Some(g_idx) if g_idx.dtype == Dtype::I32 => {
            expect(&g_idx, &[inputs], "g_idx")?;
            Some(g_idx.source)
        }
        Some(g_idx) => return Err(format!("g_idx of {:?} is not implemented", g_idx.dtype)),
    };
    let scales = scales(module, "scales")?;
    let zeros = module.take("qzeros")?;
    sizes(&zeros, Dtype::I32, "qzeros")?;
    let packing = Packing {
        outputs,
        inputs,
        bits,
        group: group.unwrap_or(inputs),
        codes: Codes::Columns,
        zeros: Zeros::Gptq { less_one },
        scale_type: scales.dtype,
        scales: ScaleShape::Groups,
    };
    expect(&scales, &[packing.groups(), outputs], "scales")?;
    expect(&zeros, &[packing.groups(), outputs * bits / 32], "qzeros")?;
    let sources = Sources {
        codes: codes.source,
        scales: scales.source,
        zeros: Some(zeros.source),
    };
    Ok((packing, sources, g_idx))
}

fn awq(module: &mut Module, group: Option<usize>) -> Result<Found, String> {
    const CODES: usize = 8;
    let codes = module.take("qweight")?;
    let [inputs, words] = sizes(&codes, Dtype::I32, "qweight")?;
    let outputs = words * CODES;
    let scales = scales(module, "scales")?;
    let zeros = module.take("qzeros")?;
    sizes(&zeros, Dtype::I32, "qzeros")?;
    let packing = Packing {
        outputs,
        inputs,
        bits: 4,
        group: group.unwrap_or(inputs),
        codes: Codes::Awq,
        zeros: Zeros::Awq,
        scale_type: scales.dtype,
        scales: ScaleShape::Groups,
    };
    expect(&scales, &[packing.groups(), outputs], "scales")?;
    expect(&zeros, &[packing.groups(), words], "qzeros")?;
    let sources = Sources {
        codes: codes.source,
        scales: scales.source,
        zeros: Some(zeros.source),
    };
    Ok((packing, sources, None))
}

/// The group's size and the scales' shape of a matrix of so many outputs and inputs.
fn shared_by(
    scales: &Stored,
    shared: IntegerScales,
    [outputs, inputs]: [usize; 2],
) -> Result<(usize, ScaleShape), String> {
    const NAME: &str = "weight_scale";
    let group = match shared {
        IntegerScales::Tensor => {
            let one = scales.shape.iter().all(|size| *size == 1);
            let message = || format!("{NAME} of shape {:?} must be one number", scales.shape);
            return one.then_some((inputs, ScaleShape::One)).ok_or_else(message);
        }
        IntegerScales::Channel => inputs,
        IntegerScales::Group(size) => size,
    };
    expect(scales, &[outputs, inputs.div_ceil(group)], NAME)?;
    Ok((group, ScaleShape::Outputs))
}

fn packed(
    module: &mut Module,
    files: &Files,
    bits: usize,
    (shared, has_zeros): (IntegerScales, bool),
) -> Result<Found, String> {
    let codes = module.take("weight_packed")?;
    let [rows, words] = sizes(&codes, Dtype::I32, "weight_packed")?;
    let shape = module.take("weight_shape")?;
    let of_shape: Vec<i64> = match shape.dtype {
        Dtype::I64 => files
            .bytes(shape.source)
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
            .collect(),
        Dtype::I32 => files
            .bytes(shape.source)
            .chunks_exact(4)
            .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]).into())
            .collect(),
        other => return Err(format!("weight_shape of {other:?} is not implemented")),
    };
    let per_word = 32 / bits;
    let sized = match of_shape[..] {
        [outputs, inputs] => usize::try_from(outputs)
            .ok()
            .zip(usize::try_from(inputs).ok()),
        _ => None,
    };
    let fits = |(outputs, inputs): &(usize, usize)| {
        *outputs == rows && *inputs > 0 && inputs.div_ceil(per_word) == words
    };
    let Some((outputs, inputs)) = sized.filter(fits) else {
        return Err(format!(
            "weight_shape {of_shape:?} is not that of weight_packed {:?} of {bits} bits",
            codes.shape
        ));
    };
    let scales = scales(module, "weight_scale")?;
    let (group, scale_shape) = shared_by(&scales, shared, [outputs, inputs])?;
    let g_idx = match module.parts.remove("weight_g_idx") {
        Some(g_idx) if g_idx.dtype == Dtype::I32 => {
            expect(&g_idx, &[inputs], "weight_g_idx")?;
            Some(g_idx.source)
        }
        Some(g_idx) => {
            let dtype = g_idx.dtype;
            return Err(format!("weight_g_idx of {dtype:?} is not implemented"));
        }
        None => None,
    };
    let mut packing = Packing {
        outputs,
        inputs,
        bits,
        group,
        codes: Codes::Rows,
        zeros: Zeros::Middle,
        scale_type: scales.dtype,
        scales: scale_shape,
    };
    let zeros = zeros(module, has_zeros, &mut packing)?;
    let sources = Sources {
        codes: codes.source,
        scales: scales.source,
        zeros,
    };
    Ok((packing, sources, g_idx))
}

/// Zero points, which older files have as bytes.
fn zeros(
    module: &mut Module,
    has_zeros: bool,
    packing: &mut Packing,
) -> Result<Option<Source>, String> {
    const NAME: &str = "weight_zero_point";
    if !has_zeros {
        return Ok(None);
    }
    let stored = module.take(NAME)?;
    let groups = packing.groups();
    let is_one = packing.scales == ScaleShape::One;
    packing.zeros = match stored.dtype {
        Dtype::I32 if !is_one => {
            let words = packing.outputs.div_ceil(32 / packing.bits);
            expect(&stored, &[words, groups], NAME)?;
            Zeros::Columns
        }
        Dtype::I8 if is_one => {
            if stored.source.bytes != 1 {
                return Err(format!(
                    "{NAME} of shape {:?} must be one number",
                    stored.shape
                ));
            }
            Zeros::One
        }
        Dtype::I8 => {
            expect(&stored, &[packing.outputs, groups], NAME)?;
            Zeros::Signed
        }
        other => return Err(format!("{NAME} of {other:?} is not implemented")),
    };
    Ok(Some(stored.source))
}

fn signed(module: &mut Module, shared: IntegerScales, has_zeros: bool) -> Result<Found, String> {
    let codes = module.take("weight")?;
    let [outputs, inputs] = sizes(&codes, Dtype::I8, "weight")?;
    let scales = scales(module, "weight_scale")?;
    let (group, scale_shape) = shared_by(&scales, shared, [outputs, inputs])?;
    let mut packing = Packing {
        outputs,
        inputs,
        bits: 8,
        group,
        codes: Codes::Signed,
        zeros: Zeros::Middle,
        scale_type: scales.dtype,
        scales: scale_shape,
    };
    let zeros = zeros(module, has_zeros, &mut packing)?;
    let sources = Sources {
        codes: codes.source,
        scales: scales.source,
        zeros,
    };
    Ok((packing, sources, None))
}
