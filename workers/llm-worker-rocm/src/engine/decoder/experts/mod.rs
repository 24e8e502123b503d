//! A mixture of experts in place of the feed-forward part.

mod beside;
mod clamped;
mod host;
mod near;
mod router;
mod routing;
mod streamer;

pub(super) use beside::Beside;
pub(super) use host::{HostExperts, HostStack};
pub(super) use router::{Choice, Router};
pub use routing::{Routing, Scores};
pub(super) use streamer::Streamer;
pub(crate) use streamer::KIND as MEASURED_EXPERTS;

use super::input::{Input, Wanted};
use super::linear::{all_take_float8, Linear};
use super::lora::Active;
use super::rocm;
use super::traits::ClampedGate;
use super::xielu::Xielu;
use candle_core::{DType, Device, Module, Result, Tensor, D};
use candle_nn::{ops, Activation};
use std::sync::Arc;

/// Experts, and what chooses among them.
pub(super) struct Mixture {
    pub router: Router,
    pub experts: Experts,
    pub count: usize,
    pub activation: Activation,
    /// The experts' gate, where it is not the activation.
    pub clamp: Option<ClampedGate>,
    pub shared: Option<Shared>,
    /// From the model's width to the experts' and back, where theirs is another.
    pub latent: Option<(Linear, Linear)>,
    /// Where adapters have something for the experts: what rows of a pass want, and those of an expert on the CPU.
    pub lora: Option<[Arc<Active>; 2]>,
}

/// The experts' matrices.
pub(super) enum Experts {
    /// Each on its own; rows are brought to it.
    Apart(Vec<Expert>),
    /// Those of all on an AMD GPU, one kernel for all tokens.
    Together(Box<rocm::Experts>),
    /// In the host's memory, for a GPU.
    Host(Box<HostExperts>),
}

/// One expert.
pub(super) struct Expert {
    /// None where only the activation is between the others.
    pub gate: Option<Linear>,
    pub up: Linear,
    pub down: Linear,
}

/// An expert of all tokens.
pub(super) struct Shared {
    pub expert: Expert,
    /// What its share is the sigmoid of.
    pub gate: Option<Linear>,
}

impl Expert {
    pub(super) fn forward(&self, x: &Input, activation: Activation) -> Result<Tensor> {
        let hidden = match &self.gate {
            Some(gate) => Linear::gated(gate, &self.up, activation, x)?,
            None => activation.forward(&self.up.forward(x)?)?,
        };
        self.down.forward(&hidden.into())
    }
}

impl Mixture {
    /// `(tokens, width)` to the same.
    pub(super) fn forward(&self, input: &Input) -> Result<Tensor> {
        self.forward_routed(input, self.router.route(input)?)
    }

    /// The same with experts and weights, `(tokens, used)`, that were chosen before.
    fn forward_routed(&self, input: &Input, (ids, weights): (Tensor, Tensor)) -> Result<Tensor> {
        let narrowed = match &self.latent {
            Some((down, _)) => Some(down.forward(input)?),
            None => None,
        };
        let x = narrowed.as_ref().unwrap_or(&input.floats);
        let weights = weights.unsqueeze(D::Minus1)?;
        // `(tokens, used or 1, width)`
        let scales_input = self.router.choice.routing.scales_input;
        let inputs = match scales_input {
            true => x
                .unsqueeze(1)?
                .broadcast_mul(&weights.to_dtype(x.dtype())?)?,
            false => x.unsqueeze(1)?,
        };
        if let Experts::Together(experts) = &self.experts {
            if let Some(sum) = experts.biased_sum(&inputs, &ids, &weights)? {
                return Ok(sum);
            }
        }
        let each = match &self.experts {
            Experts::Apart(experts) => self.apart(experts, &inputs, &ids)?,
            Experts::Together(experts) => experts.forward(&inputs, &ids, self.activation)?,
            Experts::Host(experts) => experts.forward(self, &inputs, &ids)?,
        };
        let each = each.to_dtype(DType::F32)?;
        let weighted = match scales_input {
            true => each,
            false => each.broadcast_mul(&weights)?,
        };
        let mut out = weighted.sum(1)?.to_dtype(x.dtype())?;
        if let Some((_, up)) = &self.latent {
            out = up.forward(&out.into())?;
        }
        if let Some(shared) = &self.shared {
            let mut y = shared.expert.forward(input, self.activation)?;
            if let Some(gate) = &shared.gate {
                y = y.broadcast_mul(&ops::sigmoid(&gate.forward(input)?)?)?;
            }
            out = (out + y)?;
        }
        Ok(out)
    }

    /// `(tokens, used, width)`: what each of a token's experts gives for its input, or the one of all.
    fn apart(&self, experts: &[Expert], inputs: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (tokens, each, width) = inputs.dims3()?;
        let x = inputs.reshape((tokens * each, width))?;
        let slots_of_row = (self.router.choice.used / each) as u32;
        let ids = ids
            .to_device(&Device::Cpu)?
            .flatten_all()?
            .to_vec1::<u32>()?;
        let mut slots: Vec<Vec<u32>> = vec![Vec::new(); self.count];
        for (slot, id) in ids.iter().enumerate() {
            slots[*id as usize].push(slot as u32);
        }
        let mut parts = Vec::new();
        let mut places = vec![0u32; ids.len()];
        let mut done = 0;
        for (expert, slots) in experts.iter().zip(&slots) {
            if slots.is_empty() {
                continue;
            }
            let rows: Vec<u32> = slots.iter().map(|slot| slot / slots_of_row).collect();
            let rows = Tensor::new(rows.as_slice(), x.device())?;
            let rows = x.index_select(&rows, 0)?;
            if let Some([all, own]) = self.lora.as_ref().filter(|[all, _]| !all.is_empty()) {
                let used = self.router.choice.used as u32;
                let tokens: Vec<u32> = slots.iter().map(|slot| slot / used).collect();
                own.take_rows(all, &tokens)?;
            }
            parts.push(match self.clamp {
                Some(clamp) => expert.forward_clamped(&rows.into(), clamp)?,
                None => expert.forward(&rows.into(), self.activation)?,
            });
            for slot in slots {
                places[*slot as usize] = done;
                done += 1;
            }
        }
        if let Some([_, own]) = &self.lora {
            own.take_rows(&Active::default(), &[])?;
        }
        let places = Tensor::new(places.as_slice(), x.device())?;
        let all = Tensor::cat(&parts, 0)?.index_select(&places, 0)?;
        all.reshape((tokens, self.router.choice.used, width))
    }
}

/// The feed-forward part.
pub(super) enum FeedForward {
    Gated {
        gate: Linear,
        up: Linear,
        down: Linear,
        activation: Activation,
    },
    /// Gates no more than so many deviations above the mean of their row are closed.
    Sparse {
        gate: Linear,
        up: Linear,
        down: Linear,
        activation: Activation,
        deviations: f32,
    },
    Plain {
        up: Linear,
        down: Linear,
        activation: Activation,
    },
    Xielu {
        up: Linear,
        down: Linear,
        xielu: Xielu,
    },
    Mixture(Box<Mixture>),
}

impl FeedForward {
    /// Whether all that it does first multiplies 8-bit activations on a GPU.
    pub(super) fn takes_quantized(&self) -> bool {
        match self {
            Self::Gated { gate, up, .. } | Self::Sparse { gate, up, .. } => {
                gate.takes_quantized() && up.takes_quantized()
            }
            Self::Plain { up, .. } | Self::Xielu { up, .. } => up.takes_quantized(),
            Self::Mixture(_) => false,
        }
    }

    /// The 8 bits that all that it does first takes so many rows in.
    pub(super) fn wants(&self, rows: usize) -> Result<Wanted> {
        let float8 = match self {
            Self::Gated { gate, up, .. } | Self::Sparse { gate, up, .. } => {
                all_take_float8(&[gate, up], rows)?
            }
            Self::Plain { up, .. } | Self::Xielu { up, .. } => up.takes_float8(rows)?,
            Self::Mixture(_) => false,
        };
        Ok(match float8 {
            true => Wanted::Floats,
            false => Wanted::integers(self.takes_quantized()),
        })
    }

    pub(super) fn forward(&self, x: &Input) -> Result<Tensor> {
        match self {
            Self::Gated {
                gate,
                up,
                down,
                activation,
            } => down.forward(&Linear::gated(gate, up, *activation, x)?.into()),
            Self::Sparse {
                gate,
                up,
                down,
                activation,
                deviations,
            } => {
                let [gates, ups] = Linear::forward_each([gate, up], x)?;
                let open = above_most(&gates, *deviations)?;
                down.forward(&(activation.forward(&open)? * ups)?.into())
            }
            Self::Plain {
                up,
                down,
                activation,
            } => down.forward(&activation.forward(&up.forward(x)?)?.into()),
            Self::Xielu { up, down, xielu } => {
                down.forward(&xielu.forward(&up.forward(x)?)?.into())
            }
            Self::Mixture(mixture) => mixture.forward(x),
        }
    }
}

/// How far numbers are above so many deviations from the mean of their row; 0 where they are not.
fn above_most(x: &Tensor, deviations: f32) -> Result<Tensor> {
    let mean = x.mean_keepdim(D::Minus1)?;
    let centered = x.broadcast_sub(&mean)?;
    let deviation = centered.sqr()?.mean_keepdim(D::Minus1)?.sqrt()?;
    centered
        .broadcast_sub(&(deviation * f64::from(deviations))?)?
        .relu()
}
