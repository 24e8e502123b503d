//! Matrices of modules' tensors.

use super::float4::{Float4, Kind};
use super::float8::Float8;
use super::matrix::{Layout, Matrix};
use super::parts::{unexpected, Module};
use super::scales::{few, Scales, Shared};
use super::scheme::{Quantization, Scheme};
use crate::hf::files::{Files, Source, Stored};
use safetensors::Dtype;
use worker::gguf::Format;

/// What the model says of a matrix.
pub(in crate::hf) struct Known<'a> {
    /// The outputs of so many matrices that may have been fused in this one.
    pub fused: &'a dyn Fn(usize, usize) -> Option<Vec<usize>>,
    /// Whether matrices of a stack of this shape lie there with rows of outputs.
    pub turned: &'a dyn Fn(&[usize]) -> bool,
}

impl Quantization {
    /// Makes a matrix of a module's tensors.
    ///
    /// # Errors
    /// What is missing, does not fit or is not implemented, without the module's name.
    pub(in crate::hf) fn matrix(
        &self,
        name: &str,
        mut module: Module,
        files: &Files,
        known: &Known,
    ) -> Result<Matrix, String> {
        let Some(scheme) = self.of_module(name) else {
            return Err(unexpected(self, &module));
        };
        let sources: Vec<Source> = module.parts.values().map(|part| part.source).collect();
        let mut matrix = match scheme {
            Scheme::Float8(shared) => float8(&mut module, shared, known)?,
            Scheme::Float4 { kind, inverted } => float4(&mut module, kind, inverted, files, known)?,
            Scheme::Integers(packer) => packer.matrix(&mut module, files)?,
        };
        if let Some(other) = module.parts.keys().next() {
            return Err(format!("its {other} is not implemented"));
        }
        matrix.sources = sources;
        Ok(matrix)
    }
}

/// Matrices, outputs and inputs of a tensor.
fn sizes(stored: &Stored) -> Result<[usize; 3], String> {
    let sizes = match stored.shape[..] {
        [outputs, inputs] => [1, outputs, inputs],
        [matrices, outputs, inputs] => [matrices, outputs, inputs],
        _ => [0; 3],
    };
    match sizes.contains(&0) {
        false => Ok(sizes),
        true => Err(format!("its shape {:?} is of no matrix", stored.shape)),
    }
}

fn refuse_dtype<T>(stored: &Stored, expected: &str) -> Result<T, String> {
    Err(format!(
        "its dtype is {:?}, {expected} is expected",
        stored.dtype
    ))
}

fn float8(module: &mut Module, shared: Shared, known: &Known) -> Result<Matrix, String> {
    let weight = module.take("weight")?;
    if weight.dtype != Dtype::F8_E4M3 {
        return refuse_dtype(&weight, "F8_E4M3");
    }
    let [matrices, mut outputs, mut inputs] = sizes(&weight)?;
    let turned = (known.turned)(&weight.shape);
    if turned {
        (outputs, inputs) = (inputs, outputs);
        if matches!(shared, Shared::Block(_)) {
            return Err("blocks of experts with rows of outputs are not implemented".to_string());
        }
    }
    // Files call it as they like.
    let names = ["weight_scale", "weight_scale_inv"];
    let name = names.iter().find(|name| module.parts.contains_key(**name));
    let stored = module.take(name.unwrap_or(&names[0]))?;
    let fused = |count: usize| (known.fused)(count, outputs);
    let scales = Scales::new(&stored, shared, [matrices, outputs, inputs], fused)?;
    let layout = Float8 {
        weight: weight.source,
        scales,
        outputs,
        inputs,
        turned,
    };
    Ok(of_layout(&weight, [matrices, outputs, inputs], layout))
}

fn of_layout(weight: &Stored, sizes: [usize; 3], layout: impl Layout + 'static) -> Matrix {
    Matrix {
        shape: sizes[3 - weight.shape.len()..].to_vec(),
        layout: Box::new(layout),
        sources: Vec::new(),
        scales: None,
        order: None,
    }
}

fn float4(
    module: &mut Module,
    kind: Kind,
    inverted: bool,
    files: &Files,
    known: &Known,
) -> Result<Matrix, String> {
    let names = ["weight_packed", "weight"];
    let name = names.iter().find(|name| module.parts.contains_key(**name));
    let weight = module.take(name.unwrap_or(&names[0]))?;
    if !matches!(weight.dtype, Dtype::U8 | Dtype::I8) {
        return refuse_dtype(&weight, "U8");
    }
    let [matrices, outputs, bytes] = sizes(&weight)?;
    let inputs = bytes * 2;
    let whole = [matrices, outputs, inputs];
    if (known.turned)(&whole[3 - weight.shape.len()..]) {
        return Err("4-bit experts with rows of outputs are not implemented".to_string());
    }
    let scales = module.take("weight_scale")?;
    let is_known = match kind {
        Kind::Mx => matches!(scales.dtype, Dtype::U8 | Dtype::F8_E8M0),
        Kind::Nv => scales.dtype == Dtype::F8_E4M3,
    };
    if !is_known {
        return Err(format!("scales of {:?} are not implemented", scales.dtype));
    }
    let mut expected = weight.shape.clone();
    *expected.last_mut().expect("a matrix has dimensions") = inputs / kind.group();
    if !inputs.is_multiple_of(kind.group()) || scales.shape != expected {
        return Err(format!(
            "scales of shape {:?} do not fit bytes of shape {:?}",
            scales.shape, weight.shape
        ));
    }
    let global = match kind {
        Kind::Mx => None,
        Kind::Nv => {
            let part = match inverted {
                true => "weight_global_scale",
                false => "weight_scale_2",
            };
            let mut global = few(files, &module.take(part)?, matrices)?;
            if inverted {
                global.iter_mut().for_each(|scale| *scale = scale.recip());
            }
            Some(global)
        }
    };
    let layout = Float4 {
        kind,
        weight: weight.source,
        scales: scales.source,
        global: global.clone(),
        outputs,
        inputs,
    };
    let has_blocks = layout.format() != Format::BF16;
    let mut matrix = of_layout(&weight, [matrices, outputs, inputs], layout);
    matrix.scales = global.filter(|_| has_blocks);
    Ok(matrix)
}
