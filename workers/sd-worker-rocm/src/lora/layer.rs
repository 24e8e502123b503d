//! From the tensors of a layer in a file to the change that they are.

use super::names::{Part, Target};
use super::scale::Scales;
use crate::models::change::{Axis, Change, Factor, Kind};
use crate::models::low_rank::LowRank;
use crate::models::rotation::rotations;
use crate::weights::Weights;
use candle_core::{bail, DType, Device, Result, Tensor};
use std::collections::BTreeMap;

/// What a file says of one layer: names of tensors.
#[derive(Debug, Default)]
pub(super) struct Layer(BTreeMap<Part, String>);

/// The tensors of a model that a layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// The matrix, convolution or norm.
    Weight,
    /// What is added behind it.
    Bias,
}

/// Reads a layer's tensors.
pub(super) struct Reader<'a> {
    pub(super) weights: &'a Weights,
    pub(super) scales: &'a Scales,
    pub(super) device: &'a Device,
}

impl Layer {
    /// Takes a tensor of the file.
    pub(super) fn put(&mut self, part: Part, name: String) {
        self.0.insert(part, name);
    }

    fn has(&self, part: Part) -> bool {
        self.0.contains_key(&part)
    }

    /// The kind's name, for messages.
    pub(super) fn kind(&self) -> &'static str {
        let kinds = [
            (Part::DoraScale, "DoRA"),
            (Part::Magnitude, "DoRA"),
            (Part::Hada1A, "LoHa"),
            (Part::Lokr1, "LoKr"),
            (Part::Lokr1A, "LoKr"),
            (Part::OftBlocks, "OFT"),
            (Part::OftDiag, "OFT"),
            (Part::OftPeft, "OFT"),
            (Part::BoftPeft, "BOFT"),
            (Part::Ia3, "IA3"),
            (Part::Ia3Peft, "IA3"),
            (Part::GeneralA1, "GLoRA"),
            (Part::Diff, "full differences"),
            (Part::SetWeight, "full weights"),
        ];
        let found = kinds.iter().find(|(part, _)| self.has(*part));
        found.map_or("LoRA", |(_, kind)| kind)
    }
}

impl Reader<'_> {
    /// The changes of a layer.
    ///
    /// # Errors
    /// If tensors are missing or of wrong shapes.
    pub(super) fn changes(
        &self,
        target: &Target,
        layer: &Layer,
        strength: f64,
    ) -> Result<Vec<(Of, Change)>> {
        let mut changes = Vec::new();
        if let Some(change) = self.of_weight(target, layer, strength)? {
            changes.push((Of::Weight, change));
        }
        let bias = match (
            self.get(layer, Part::DiffBias)?,
            self.get(layer, Part::UpBias)?,
        ) {
            (Some(difference), None) => Some(difference),
            (None, Some(bias)) => {
                let rank = self.need(layer, Part::Down)?.dim(0)?;
                Some((bias * self.scale(target, layer, rank)?)?)
            }
            (None, None) => None,
            (Some(_), Some(_)) => bail!("two differences of one bias"),
        };
        if let Some(bias) = bias {
            changes.push((
                Of::Bias,
                Change::Other {
                    kind: Kind::Full(bias),
                    strength,
                },
            ));
        }
        if changes.is_empty() {
            bail!("it has no tensors but {:?}", layer.0.keys().next())
        }
        Ok(changes)
    }

    fn of_weight(&self, target: &Target, layer: &Layer, strength: f64) -> Result<Option<Change>> {
        let lengths = match (
            self.get(layer, Part::DoraScale)?,
            self.get(layer, Part::Magnitude)?,
        ) {
            (Some(scale), _) => Some((scale, false)),
            (None, Some(magnitude)) => Some((magnitude, true)),
            (None, None) => None,
        };
        let Some((lengths, within)) = lengths else {
            return self.plain(target, layer, strength);
        };
        // LyCORIS has (outputs, 1, …) or (1, inputs, …), PEFT always lengths of the outputs.
        let outputs = within || lengths.dim(0)? == lengths.elem_count();
        let Some(change) = self.plain(target, layer, 1.0)? else {
            bail!("DoRA without matrices")
        };
        Ok(Some(Change::Other {
            kind: Kind::Decomposed {
                change: Box::new(change),
                lengths: lengths.flatten_all()?,
                axis: if outputs { Axis::Outputs } else { Axis::Inputs },
                within,
            },
            strength,
        }))
    }

    /// The change without DoRA's lengths.
    fn plain(&self, target: &Target, layer: &Layer, strength: f64) -> Result<Option<Change>> {
        let has = |part| layer.has(part);
        let other = |kind| Some(Change::Other { kind, strength });
        if has(Part::Down) || has(Part::Up) {
            let (down, up) = (self.need(layer, Part::Down)?, self.need(layer, Part::Up)?);
            let scale = self.scale(target, layer, down.dim(0)?)?;
            return Ok(Some(Change::LowRank(LowRank {
                up: (matrix(&up)? * (strength * scale))?,
                down: matrix(&down)?,
                core: self.get(layer, Part::Mid)?,
            })));
        }
        Ok(if has(Part::Hada1A) {
            let of = |a, b, core| {
                let core = self.get(layer, core)?;
                product(&self.need(layer, a)?, &self.need(layer, b)?, core)
            };
            let rank = self.need(layer, Part::Hada1B)?.dim(0)?;
            other(Kind::Hadamard {
                factors: [
                    of(Part::Hada1A, Part::Hada1B, Part::Hada1T)?,
                    of(Part::Hada2A, Part::Hada2B, Part::Hada2T)?,
                ],
                scale: self.scale(target, layer, rank)?,
            })
        } else if has(Part::Lokr1) || has(Part::Lokr1A) {
            let mut rank = None;
            let mut of = |whole, a, b, core: Option<Part>| -> Result<Factor> {
                if let Some(whole) = self.get(layer, whole)? {
                    return Ok(Factor::Matrix(matrix(&whole)?));
                }
                let (a, b) = (self.need(layer, a)?, self.need(layer, b)?);
                rank = Some(b.dim(0)?);
                let core = core.map(|core| self.get(layer, core)).transpose()?;
                product(&a, &b, core.flatten()).map(Factor::Product)
            };
            let factors = [
                of(Part::Lokr1, Part::Lokr1A, Part::Lokr1B, None)?,
                of(Part::Lokr2, Part::Lokr2A, Part::Lokr2B, Some(Part::Lokr2T))?,
            ];
            let scale = match rank {
                Some(rank) => self.scale(target, layer, rank)?,
                // Two whole matrices have no rank: LyCORIS writes an alpha that says nothing, PEFT divides by its own.
                None => self.scales.of_full(target).unwrap_or(1.0),
            };
            other(Kind::Kronecker { factors, scale })
        } else if has(Part::OftBlocks) {
            self.rotation(layer)?.and_then(other)
        } else if has(Part::OftDiag) {
            let blocks = self.need(layer, Part::OftDiag)?;
            blocks.dims3()?;
            let rescale = None;
            other(Kind::Rotation { blocks, rescale })
        } else if has(Part::OftPeft) {
            let Some(turns) = self.scales.turns(target) else {
                bail!("how it turns stands in adapter_config.json, which is not beside it")
            };
            let stages = turns.rotations(&self.need(layer, Part::OftPeft)?)?;
            let rescale = None;
            other(Kind::OfInputs { stages, rescale })
        } else if has(Part::BoftPeft) {
            let blocks = self.need(layer, Part::BoftPeft)?;
            blocks.dims4()?;
            // PEFT halves the skew part, and has the other sign.
            let stages = rotations(&(blocks * -0.5)?, None)?;
            let rescale = self.get(layer, Part::BoftScale)?;
            let rescale = rescale.map(|factors| factors.flatten_all()).transpose()?;
            other(Kind::OfInputs { stages, rescale })
        } else if has(Part::Ia3) {
            let axis = match self.number(layer, Part::OnInput)?.unwrap_or(0.0) {
                0.0 => Axis::Outputs,
                _ => Axis::Inputs,
            };
            let vector = self.need(layer, Part::Ia3)?.flatten_all()?;
            other(Kind::Scaled { vector, axis })
        } else if has(Part::Ia3Peft) {
            let vector = self.need(layer, Part::Ia3Peft)?;
            let axis = match vector.dim(0)? == vector.elem_count() {
                true => Axis::Outputs,
                false => Axis::Inputs,
            };
            // PEFT multiplies the weight by it.
            let vector = (vector.flatten_all()? - 1.0)?;
            other(Kind::Scaled { vector, axis })
        } else if has(Part::GeneralA1) {
            Some(self.general(target, layer, strength)?)
        } else if let Some(difference) = self.get(layer, Part::Diff)? {
            other(Kind::Full(difference))
        } else {
            self.get(layer, Part::SetWeight)?
                .map(Kind::Set)
                .and_then(other)
        })
    }

    fn rotation(&self, layer: &Layer) -> Result<Option<Kind>> {
        let blocks = self.need(layer, Part::OftBlocks)?;
        let rescale = self.get(layer, Part::Rescale)?;
        let rescale = rescale.map(|factors| factors.flatten_all()).transpose()?;
        let rank = blocks.rank();
        let outputs: usize = match blocks.dims() {
            [count, size, _] | [_, count, size, _] => count * size,
            other => bail!("blocks of shape {other:?}"),
        };
        if rescale
            .as_ref()
            .is_some_and(|factors| factors.elem_count() != outputs)
        {
            bail!("OFT rescales other outputs than it turns")
        }
        // Alpha is the most that blocks may turn, for each output; 0 is no limit.
        let most = self.number(layer, Part::Alpha)?.filter(|most| *most > 0.0);
        let blocks = rotations(&blocks, most.map(|most| most * outputs as f64))?;
        Ok(Some(match rank {
            3 => Kind::Rotation { blocks, rescale },
            _ => Kind::Butterfly { blocks, rescale },
        }))
    }

    fn general(&self, target: &Target, layer: &Layer, strength: f64) -> Result<Change> {
        let [a1, a2, b1, b2] = [
            self.need(layer, Part::GeneralA1)?,
            self.need(layer, Part::GeneralA2)?,
            self.need(layer, Part::GeneralB1)?,
            self.need(layer, Part::GeneralB2)?,
        ];
        // LyCORIS before 2.0 had the two of each pair the other way around: the second has the inputs now.
        let now = a2.dim(0)? <= a1.dim(0)?;
        let ((a1, a2), (b1, b2)) = match now {
            true => ((a1, a2), (b1, b2)),
            false => ((a2, a1), (b2, b1)),
        };
        let pair = |up: &Tensor, down: &Tensor, core| {
            Result::Ok(LowRank {
                up: matrix(up)?,
                down: matrix(down)?,
                core,
            })
        };
        let rank = a2.dim(0)?;
        Ok(Change::Other {
            kind: Kind::General {
                own: pair(&b1, &b2, self.get(layer, Part::GeneralBMid)?)?,
                of_weight: pair(&a1, &a2, None)?,
                scale: self.scale(target, layer, rank)?,
            },
            strength,
        })
    }

    /// Alpha over rank, or what the file says for whole networks.
    fn scale(&self, target: &Target, layer: &Layer, rank: usize) -> Result<f64> {
        Ok(match self.number(layer, Part::Alpha)? {
            Some(alpha) => alpha / rank as f64,
            None => self.scales.factor(target, rank).unwrap_or(1.0),
        })
    }

    fn number(&self, layer: &Layer, part: Part) -> Result<Option<f64>> {
        let Some(tensor) = self.get(layer, part)? else {
            return Ok(None);
        };
        let number = tensor.flatten_all()?.get(0)?.to_scalar::<f32>()?;
        Ok(Some(f64::from(number)))
    }

    fn get(&self, layer: &Layer, part: Part) -> Result<Option<Tensor>> {
        let Some(name) = layer.0.get(&part) else {
            return Ok(None);
        };
        let tensor = self.weights.load(name, DType::F32, self.device);
        let tensor = tensor.map_err(candle_core::Error::wrap)?;
        match tensor.elem_count() {
            0 => bail!("{name} is empty"),
            _ => Ok(Some(tensor)),
        }
    }

    fn need(&self, layer: &Layer, part: Part) -> Result<Tensor> {
        match self.get(layer, part)? {
            Some(tensor) if tensor.rank() > 0 => Ok(tensor),
            Some(_) => bail!("its part {part:?} is a number"),
            None => bail!("its part {part:?} is missing"),
        }
    }
}

/// A tensor as `(rows, everything else)`.
fn matrix(x: &Tensor) -> Result<Tensor> {
    match x.rank() {
        0 | 1 => bail!("{:?} is not a matrix", x.dims()),
        2 => Ok(x.clone()),
        _ => x.flatten_from(1),
    }
}

/// LyCORIS' pair of matrices; with a core the first is `(rank, outputs)`.
fn product(a: &Tensor, b: &Tensor, core: Option<Tensor>) -> Result<LowRank> {
    let a = matrix(a)?;
    Ok(LowRank {
        up: match core {
            Some(_) => a.t()?.contiguous()?,
            None => a,
        },
        down: matrix(b)?,
        core,
    })
}
