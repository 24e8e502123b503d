//! An encoder of sounds on a device.

use super::config::SoundConfig;
use super::conformer::Conformer;
use super::features::{Frames, Piece};
use super::file::SoundFile;
use super::kinds::Kind;
use crate::audio::{Tower, TowerShape};
use crate::engine::media;
use crate::vision::activations;
use crate::vision::weights::{Linear, Loader, Norm};
use candle_core::{DType, Device, Module, Result, Tensor};
use std::cell::RefCell;

const LOADING: &str = "loading the encoder of sounds";

/// Pieces that are computed at once.
const PIECES: usize = 8;

/// An encoder's weights on a device.
pub struct SoundEncoder {
    config: SoundConfig,
    parts: Parts,
    device: Device,
    dtype: DType,
}

/// What encodes, and what makes rows of the language model's width of it.
enum Parts {
    /// Whisper's encoder.
    Whisper(Tower, Projector),
    /// Gemma's, and a norm before a matrix.
    Conformer(Conformer, Norm, Linear, Option<Filling>),
}

/// What Gemma 3n has behind the matrix, and what it fills rows up with.
struct Filling {
    norm: Norm,
    /// The row that others are filled up with, `(1, width)`.
    padding: Tensor,
    /// That of the end.
    end: Tensor,
}

/// What makes rows of the language model's width of Whisper's.
enum Projector {
    /// Rows behind each other, then two matrices.
    Stacked { first: Linear, second: Linear },
    /// One matrix, behind means of neighbours.
    Halved(Linear),
}

impl SoundEncoder {
    /// Loads the weights onto a device; `progress` is called with the bytes of each tensor.
    ///
    /// # Errors
    /// [`Error::BadModel`](worker::Error::BadModel) for a file that lacks a tensor or has one too many,
    /// [`Error::Candle`](worker::Error::Candle) if the device has no room.
    pub fn load(file: &SoundFile, device: &Device, progress: &dyn Fn(u64)) -> worker::Result<Self> {
        let config = file.config().clone();
        let dtype = activations(file.weights(), "a.blk.0.attn_out.weight", device);
        let loader = Loader {
            file: file.weights(),
            device,
            dtype,
            progress,
            seen: RefCell::default(),
        };
        let encoder = Self {
            parts: Parts::load(&loader, &config)?,
            device: device.clone(),
            dtype,
            config,
        };
        let is_its = |name: &str| name.starts_with("a.") || name.starts_with("mm.a.");
        loader.check_seen(&|name| !is_its(name))?;
        Ok(encoder)
    }

    /// Elements of the rows that it gives.
    pub fn outputs(&self) -> usize {
        self.config.output
    }

    /// Rows that stand in for the embeddings of a sound's tokens.
    ///
    /// # Errors
    /// If the device fails.
    pub fn encode(&self, sound: &Frames) -> Result<media::Features> {
        let rows = sound.pieces.chunks(PIECES);
        let rows = rows.map(|pieces| self.rows(pieces));
        Ok(media::Features {
            rows: Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)?,
            deep: Vec::new(),
        })
    }

    fn rows(&self, pieces: &[Piece]) -> Result<Tensor> {
        let mel = |piece: &Piece| -> Result<Tensor> {
            let shape = (piece.frames, self.config.bands);
            Tensor::from_vec(piece.mel.clone(), shape, &self.device)?.to_dtype(self.dtype)
        };
        match &self.parts {
            Parts::Whisper(tower, projector) => {
                let embedded = pieces
                    .iter()
                    .map(|piece| tower.embed(&mel(piece)?)?.narrow(0, 0, piece.kept));
                let embedded = Tensor::cat(&embedded.collect::<Result<Vec<_>>>()?, 0)?;
                let lengths: Vec<usize> = pieces.iter().map(|piece| piece.kept).collect();
                let x = tower.mix(&embedded, &lengths)?;
                match projector {
                    Projector::Stacked { first, second } => {
                        let (count, width) = x.dims2()?;
                        let stack = self.config.stack;
                        let x = tower.norm(&x)?;
                        let x = x.reshape((count / stack, stack * width))?;
                        second.forward(&first.forward(&x)?.gelu_erf()?)
                    }
                    Projector::Halved(matrix) => {
                        matrix.forward(&tower.norm(&halved(&x, &lengths)?)?)
                    }
                }
            }
            Parts::Conformer(conformer, norm, matrix, filling) => {
                let rows = pieces.iter().map(|piece| {
                    let x = norm.forward(&conformer.forward(&mel(piece)?)?)?;
                    let x = matrix.forward(&x)?;
                    match filling {
                        Some(filling) => filling.filled(&x, piece.rows),
                        None => Ok(x),
                    }
                });
                Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
            }
        }
    }
}

impl Parts {
    fn load(loader: &Loader, c: &SoundConfig) -> worker::Result<Self> {
        Ok(match c.traits.kind {
            Kind::Gemma4 => {
                let conformer = Conformer::load(loader, c)?;
                let width = conformer.outputs();
                let matrix = loader.linear("mm.a.input_projection", width, c.output)?;
                Self::Conformer(conformer, plain(loader, c, width)?, matrix, None)
            }
            Kind::Gemma3n => {
                let conformer = Conformer::load(loader, c)?;
                let width = conformer.outputs();
                let norm = loader.norm("mm.a.soft_emb_norm", width, true, c.epsilon)?;
                let matrix = loader.linear("mm.a.input_projection", width, c.output)?;
                let filling = Filling::load(loader, c, width, &matrix)?;
                Self::Conformer(conformer, norm, matrix, Some(filling))
            }
            _ => Self::Whisper(Tower::load(loader, shape(c))?, Projector::load(loader, c)?),
        })
    }
}

/// A norm without weights.
fn plain(loader: &Loader, c: &SoundConfig, width: usize) -> worker::Result<Norm> {
    let norm = Norm::plain(width, c.epsilon, loader.dtype, loader.device);
    norm.map_err(worker::Error::candle(LOADING))
}

impl Filling {
    fn load(
        loader: &Loader,
        c: &SoundConfig,
        width: usize,
        matrix: &Linear,
    ) -> worker::Result<Self> {
        let table = loader.tensor("mm.a.embedding.weight")?;
        let tokens = match *table.dims() {
            [tokens, columns] if columns == width && tokens > 0 => tokens,
            _ => {
                return Err(loader.bad(format!(
                    "tensor mm.a.embedding.weight has shape {:?}, rows of {width} are expected",
                    table.dims()
                )))
            }
        };
        let before = loader.norm("mm.a.hard_emb_norm", width, true, c.epsilon)?;
        let norm = plain(loader, c, c.output)?;
        let row = |token: usize| -> worker::Result<Tensor> {
            let row = table.narrow(0, token, 1);
            let row = row.and_then(|row| matrix.forward(&before.forward(&row)?));
            let row = row.and_then(|row| norm.forward(&row));
            row.map_err(worker::Error::candle(LOADING))
        };
        Ok(Self {
            // The last of the encoder's tokens, and the first.
            padding: row(tokens - 1)?,
            end: row(0)?,
            norm,
        })
    }

    /// Rows behind the norm, as many as are wanted.
    fn filled(&self, x: &Tensor, rows: usize) -> Result<Tensor> {
        let missing = (rows - 1).saturating_sub(x.dim(0)?);
        let mut parts = vec![self.norm.forward(x)?];
        parts.extend(std::iter::repeat_n(self.padding.clone(), missing));
        parts.push(self.end.clone());
        Tensor::cat(&parts, 0)
    }
}

impl Projector {
    fn load(loader: &Loader, c: &SoundConfig) -> worker::Result<Self> {
        Ok(match c.traits.kind {
            Kind::Voxtral => {
                let first = loader.linear_from("mm.a.mlp.1", c.stack * c.width)?;
                Self::Stacked {
                    second: loader.linear("mm.a.mlp.2", first.outputs(), c.output)?,
                    first,
                }
            }
            _ => Self::Halved(loader.linear("mm.a.fc", c.width, c.output)?),
        })
    }
}

fn shape(c: &SoundConfig) -> TowerShape {
    TowerShape {
        bands: c.bands,
        width: c.width,
        heads: c.heads,
        hidden: c.hidden,
        blocks: c.blocks,
        positions: c.places,
        epsilon: c.epsilon,
    }
}

/// Means of two rows each of stretches of these lengths; a last one without another is left.
fn halved(x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
    let width = x.dim(1)?;
    let (mut parts, mut start) = (Vec::new(), 0);
    for &length in lengths {
        if length > 1 {
            let pairs = x.narrow(0, start, length / 2 * 2)?;
            parts.push(pairs.reshape((length / 2, 2, width))?.mean(1)?);
        }
        start += length;
    }
    Tensor::cat(&parts, 0)
}
