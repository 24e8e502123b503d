//! From the tower's rows to the language model's.

use super::block::{activate, unweighted};
use super::config::VisionConfig;
use super::kinds::{Activation, Kind};
use super::weights::{Linear, Loader, Norm};
use candle_core::{DType, Module, Result, Tensor};
use worker::{Error, Result as WorkerResult};

/// Epsilon of norms that are the library's own.
const USUAL_EPSILON: f32 = 1e-5;

/// What makes rows of the language model's width.
pub(super) enum Projector {
    /// Groups of patches behind each other, then two matrices; a norm of a group comes first where there is one.
    Merger {
        norm: Option<Norm>,
        first: Linear,
        second: Linear,
    },
    /// The mean of each group, a norm and a matrix.
    Mean { norm: Norm, matrix: Linear },
    /// The mean of each group, another scale and origin, a norm without a weight and a matrix.
    Pooled {
        standard: Option<[Tensor; 2]>,
        matrix: Linear,
    },
    /// A norm of each patch and a matrix for groups, where there are groups, then two matrices.
    Merged {
        groups: Option<(Norm, Linear)>,
        first: Linear,
        second: Linear,
    },
    /// Groups behind each other, then a matrix.
    Shuffle { matrix: Linear },
}

impl Projector {
    pub(super) fn load(loader: &Loader, c: &VisionConfig) -> WorkerResult<Self> {
        let wide = c.width * c.merge * c.merge;
        Ok(match c.traits.kind {
            Kind::Qwen2Vl | Kind::Qwen25Vl | Kind::Qwen3Vl | Kind::Llava => {
                let first = loader.linear_from("mm.0", wide)?;
                Self::Merger {
                    norm: None,
                    second: loader.linear("mm.2", first.outputs(), c.output)?,
                    first,
                }
            }
            Kind::InternVl => {
                let first = loader.linear_from("mm.1", wide)?;
                Self::Merger {
                    norm: Some(loader.norm("mm.0", wide, false, USUAL_EPSILON)?),
                    second: loader.linear("mm.3", first.outputs(), c.output)?,
                    first,
                }
            }
            Kind::Gemma3 => {
                let shape = [c.width, c.output];
                let matrix = Linear {
                    weight: loader.shaped("mm.input_projection.weight", &shape)?,
                    bias: None,
                };
                Self::Mean {
                    norm: loader.norm("mm.soft_emb_norm", c.width, true, c.epsilon)?,
                    matrix,
                }
            }
            Kind::Gemma4 => Self::Pooled {
                standard: match loader.has("v.std_bias") {
                    true => Some([
                        loader.vector("v.std_bias", c.width)?,
                        loader.vector("v.std_scale", c.width)?,
                    ]),
                    false => None,
                },
                matrix: loader.linear("mm.input_projection", c.width, c.output)?,
            },
            Kind::Pixtral => {
                let groups = match c.merge {
                    1 => None,
                    merge => {
                        let name = "mm.patch_merger.weight";
                        let weight = loader.shaped(name, &[c.width, wide])?;
                        // Of each element first, then of the patches of a group.
                        let weight = weight
                            .reshape((c.width, c.width, merge * merge))
                            .and_then(|weight| weight.transpose(1, 2)?.contiguous())
                            .and_then(|weight| weight.reshape((c.width, wide)))
                            .map_err(Error::candle("loading the encoder of pictures"))?;
                        let norm = loader.norm("mm.input_norm", c.width, true, c.epsilon)?;
                        Some((norm, loader.turned(weight, None)?))
                    }
                };
                let first = loader.linear_from("mm.1", c.width)?;
                Self::Merged {
                    groups,
                    second: loader.linear("mm.2", first.outputs(), c.output)?,
                    first,
                }
            }
            Kind::Idefics3 => Self::Shuffle {
                matrix: loader.linear("mm.model.fc", wide, c.output)?,
            },
        })
    }

    /// What a block's rows give besides, for the decoder's first blocks.
    pub(super) fn load_deep(loader: &Loader, c: &VisionConfig, block: usize) -> WorkerResult<Self> {
        let wide = c.width * c.merge * c.merge;
        let name = |part: &str| format!("v.deepstack.{block}.{part}");
        let first = loader.linear_from(&name("fc1"), wide)?;
        Ok(Self::Merger {
            norm: Some(loader.norm(&name("norm"), wide, false, c.epsilon)?),
            second: loader.linear(&name("fc2"), first.outputs(), c.output)?,
            first,
        })
    }

    /// Rows of `tiles` tiles of `grid` patches, in groups already where the tower's patches come in groups.
    pub(super) fn forward(
        &self,
        c: &VisionConfig,
        x: &Tensor,
        tiles: usize,
        grid: (usize, usize),
    ) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let group = c.merge * c.merge;
        let grouped = |x: &Tensor| match c.traits.sections || group == 1 {
            true => x.reshape((rows / group, group * width)),
            false => neighbours(x, tiles, grid, c.merge)?.reshape((rows / group, group * width)),
        };
        match self {
            Self::Merger {
                norm,
                first,
                second,
            } => {
                let mut x = grouped(x)?;
                if let Some(norm) = norm {
                    x = norm.forward(&x)?;
                }
                second.forward(&activate(&first.forward(&x)?, Activation::Gelu)?)
            }
            Self::Mean { norm, matrix } => {
                let mean = neighbours(x, tiles, grid, c.merge)?.mean(1)?;
                matrix.forward(&norm.forward(&mean)?)
            }
            Self::Pooled { standard, matrix } => {
                let mean = neighbours(x, tiles, grid, c.merge)?.mean(1)?;
                // Halves may not reach so far.
                let mut rows = (mean.to_dtype(DType::F32)? * (width as f64).sqrt())?;
                if let Some([origin, scale]) = standard {
                    rows = rows
                        .broadcast_sub(&origin.to_dtype(DType::F32)?)?
                        .broadcast_mul(&scale.to_dtype(DType::F32)?)?;
                }
                let rows = unweighted(&rows, c.epsilon)?;
                matrix.forward(&rows.to_dtype(x.dtype())?)
            }
            Self::Merged {
                groups,
                first,
                second,
            } => {
                let x = match groups {
                    Some((norm, matrix)) => matrix.forward(&grouped(&norm.forward(x)?)?)?,
                    None => x.clone(),
                };
                second.forward(&activate(&first.forward(&x)?, Activation::Gelu)?)
            }
            Self::Shuffle { matrix } => matrix.forward(&grouped(x)?),
        }
    }
}

/// `(tiles * rows * columns, width)` to `(groups, side * side, width)`: groups of `side` x `side` neighbours.
fn neighbours(
    x: &Tensor,
    tiles: usize,
    (rows, columns): (usize, usize),
    side: usize,
) -> Result<Tensor> {
    let width = x.dim(1)?;
    let (down, across) = (rows / side, columns / side);
    x.reshape((tiles * down, side, across, side * width))?
        .transpose(1, 2)?
        .contiguous()?
        .reshape((tiles * down * across, side * side, width))
}

/// The tower's last norm, where it has one that counts.
pub(super) fn last_norm(loader: &Loader, c: &VisionConfig) -> WorkerResult<Option<Norm>> {
    let norm = loader.norm_if_there("v.post_ln", c.width, c.traits.rms, c.epsilon)?;
    let needed = matches!(
        c.traits.kind,
        Kind::Qwen2Vl | Kind::Qwen25Vl | Kind::Qwen3Vl | Kind::Gemma3 | Kind::Idefics3
    );
    match norm {
        None if needed => Err(Error::BadModel {
            path: loader.file.path().to_path_buf(),
            reason: "tensor v.post_ln.weight is missing".to_string(),
        }),
        // Features are taken before it.
        Some(_) if c.traits.kind == Kind::Llava => Ok(None),
        norm => Ok(norm),
    }
}
