//! What makes a score of an encoder's vectors.

use crate::architectures::EncoderKind;
use crate::embedding::pooling::Pooling;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_nn::VarBuilder;
use serde_json::Value as Json;
use worker::gguf::{self, MappedGguf, Weights};

/// A classifier of one label over the vector of a text.
pub(super) struct Head {
    pooling: Pooling,
    /// A layer before the last, where there is one.
    dense: Option<Dense>,
    norm: Option<Norm>,
    /// `(1, width)` and its bias.
    output: (Tensor, Option<Tensor>),
}

struct Dense {
    weight: Tensor,
    bias: Option<Tensor>,
    activation: Activation,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Activation {
    Tanh,
    Gelu,
}

struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    epsilon: f32,
}

impl Head {
    /// That of a folder.
    ///
    /// # Errors
    /// A text for a head of another shape.
    pub(super) fn of_folder(
        kind: EncoderKind,
        config: &Json,
        weights: &VarBuilder,
        width: usize,
    ) -> Result<Self, String> {
        let labels = config["id2label"].as_object().map(|labels| labels.len());
        let labels = config["num_labels"].as_u64().map(|n| n as usize).or(labels);
        if labels.is_some_and(|labels| labels != 1) {
            return Err(format!(
                "a classifier of {} labels gives no scores; one label is needed",
                labels.unwrap_or_default()
            ));
        }
        let get = |name: &str, shape: &[usize]| {
            let found = weights.contains_tensor(name);
            found.then(|| weights.get(shape, name)).transpose()
        };
        let get = |name: &str, shape: &[usize]| get(name, shape).map_err(|e| e.to_string());
        let need = |name: &str, shape: &[usize]| {
            get(name, shape)?.ok_or_else(|| format!("tensor {name} is missing"))
        };
        let dense = |name: &str, activation| -> Result<Dense, String> {
            Ok(Dense {
                weight: need(&format!("{name}.weight"), &[width, width])?,
                bias: get(&format!("{name}.bias"), &[width])?,
                activation,
            })
        };
        let output = |name: &str| -> Result<(Tensor, Option<Tensor>), String> {
            Ok((
                need(&format!("{name}.weight"), &[1, width])?,
                get(&format!("{name}.bias"), &[1])?,
            ))
        };
        match kind {
            EncoderKind::Bert => Ok(Self {
                pooling: Pooling::First,
                dense: Some(dense("bert.pooler.dense", Activation::Tanh)?),
                norm: None,
                output: output("classifier")?,
            }),
            EncoderKind::XlmRoberta => Ok(Self {
                pooling: Pooling::First,
                dense: Some(dense("classifier.dense", Activation::Tanh)?),
                norm: None,
                output: output("classifier.out_proj")?,
            }),
            EncoderKind::ModernBert => {
                let pooling = match config["classifier_pooling"].as_str() {
                    None | Some("cls") => Pooling::First,
                    Some("mean") => Pooling::Mean,
                    Some(other) => {
                        return Err(format!(
                            "config.json: classifier_pooling {other:?} is not implemented"
                        ))
                    }
                };
                match config["classifier_activation"].as_str() {
                    None | Some("gelu") => {}
                    Some(other) => {
                        return Err(format!(
                            "config.json: classifier_activation {other:?} is not implemented"
                        ))
                    }
                }
                Ok(Self {
                    pooling,
                    dense: Some(dense("head.dense", Activation::Gelu)?),
                    norm: Some(Norm {
                        weight: need("head.norm.weight", &[width])?,
                        bias: get("head.norm.bias", &[width])?,
                        epsilon: config["norm_eps"].as_f64().unwrap_or(1e-5) as f32,
                    }),
                    output: output("classifier")?,
                })
            }
            EncoderKind::NomicBert => {
                Err("a NomicBERT with a classifier is not implemented".to_string())
            }
        }
    }

    /// That of a GGUF file of BERT or XLM-RoBERTa: `cls` and `cls.output`.
    ///
    /// # Errors
    /// A text for a head of another shape.
    pub(super) fn of_gguf(
        file: &MappedGguf,
        width: usize,
        device: &Device,
    ) -> Result<Self, String> {
        let get = |name: &str, dims: &[usize]| -> Result<Option<Tensor>, String> {
            if file.header().tensor(name).is_none() {
                return Ok(None);
            }
            let load = || {
                let tensor = gguf::load(file, name, device).map_err(candle_core::Error::wrap)?;
                tensor
                    .dequantize(device)?
                    .to_dtype(DType::F32)?
                    .reshape(dims)
            };
            load().map(Some).map_err(|e| format!("tensor {name}: {e}"))
        };
        let output = get("cls.output.weight", &[1, width])?;
        let dense = get("cls.weight", &[width, width])?.map(|weight| {
            Ok::<_, String>(Dense {
                weight,
                bias: get("cls.bias", &[width])?,
                activation: Activation::Tanh,
            })
        });
        Ok(Self {
            pooling: Pooling::First,
            dense: dense.transpose()?,
            norm: None,
            output: (
                output.ok_or("tensor cls.output.weight is missing")?,
                get("cls.output.bias", &[1])?,
            ),
        })
    }

    /// A number for each text, of the vectors of its tokens, `(texts, tokens, width)`; `mask` of `(texts, tokens)` is 1
    /// for its own.
    pub(super) fn forward(&self, hidden: &Tensor, mask: &Tensor) -> CandleResult<Vec<f32>> {
        let mut x = self.pooling.apply(hidden, mask)?;
        if let Some(dense) = &self.dense {
            x = linear(&x, &dense.weight, dense.bias.as_ref())?;
            x = match dense.activation {
                Activation::Tanh => x.tanh()?,
                Activation::Gelu => x.gelu_erf()?,
            };
        }
        if let Some(norm) = &self.norm {
            let bias = match &norm.bias {
                Some(bias) => bias.clone(),
                None => norm.weight.zeros_like()?,
            };
            x = candle_nn::ops::layer_norm(&x, &norm.weight, &bias, norm.epsilon)?;
        }
        let (weight, bias) = &self.output;
        linear(&x, weight, bias.as_ref())?.squeeze(1)?.to_vec1()
    }
}

fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> CandleResult<Tensor> {
    let y = x.matmul(&weight.t()?)?;
    match bias {
        Some(bias) => y.broadcast_add(bias),
        None => Ok(y),
    }
}
