//! The choice of experts in one launch.

use crate::kernels::{kernels, Ptr};
use crate::ops::check::Op;
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::latent::{
    Router, CHOSEN, MAX_EXPERTS, MAX_USED, SIGMOID, SOFTMAX,
};

kernels! {
    /// A wave for each token.
    route_tokens = "moe_route" in Family::MoeRouter
        => (logits: Ptr, bias: Ptr, ids: Ptr, weights: Ptr, how: Router);
}

const OP: Op = Op("moe-route");

/// What a router's numbers become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
    /// They choose as they are; weights are the softmax over the chosen ones.
    Chosen,
}

/// How experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// Experts of a token.
    pub used: usize,
    /// What the numbers become.
    pub scores: Scores,
    /// Groups of experts, and how many of them a token uses; 1 and 1 without any.
    pub groups: (usize, usize),
    /// Of how many of its best experts, 1 or 2, the scores make a group's.
    pub best_of_group: usize,
    /// Weights are divided by their sum and this.
    pub normalised: Option<f32>,
    /// Factor of the weights.
    pub scale: f32,
}

/// The experts of each token, the one chosen first at the beginning (of two that are the same the one before), and
/// their weights: u32 and f32 `[tokens, used]`. `logits` is f32 `[tokens, experts]`; `bias`, f32 `[experts]`, is added
/// to the scores that choose.
///
/// # Errors
/// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch), [`Error::ShapeMismatch`](crate::Error::ShapeMismatch),
/// [`Error::InvalidView`](crate::Error::InvalidView); [`Error::InvalidArgument`](crate::Error::InvalidArgument) for more
/// than 1024 experts or 64 of a token, views with gaps, and groups that do not fit.
pub fn route(
    device: &Device,
    logits: &View,
    bias: Option<&View>,
    how: &Route,
) -> Result<(Buffer, Buffer)> {
    let &[tokens, experts] = logits.dims else {
        return Err(OP.invalid(format!("{:?} are no rows of numbers", logits.dims)));
    };
    for view in std::iter::once(logits).chain(bias) {
        OP.has_dtype(view, DType::F32)?;
        view.check(OP.0)?;
        if !view.is_contiguous() {
            return Err(OP.invalid(format!("{:?} with strides {:?}", view.dims, view.strides)));
        }
    }
    if let Some(bias) = bias.filter(|bias| *bias.dims != [experts]) {
        return Err(OP.mismatch(logits, bias));
    }
    let (groups, groups_used) = how.groups;
    let fits = experts <= MAX_EXPERTS as usize
        && how.used <= (MAX_USED as usize).min(experts)
        && groups > 0
        && (1..=groups).contains(&groups_used)
        && experts.is_multiple_of(groups)
        && (experts / groups).saturating_mul(groups_used) >= how.used
        && (1..=2).contains(&how.best_of_group);
    if !fits {
        return Err(OP.invalid(format!(
            "{how:?} of {experts} experts; up to {MAX_USED} of up to {MAX_EXPERTS} can be chosen, in groups of one size"
        )));
    }
    let tokens_of_grid = OP.narrow("number of tokens", tokens, i32::MAX as u32)?;
    let count = tokens * how.used;
    let (ids, weights) = (device.alloc(count * 4)?, device.alloc(count * 4)?);
    if count == 0 {
        return Ok((ids, weights));
    }
    let config = LaunchConfig {
        grid: tokens_of_grid,
        block: device.properties().wave_size,
        shared_bytes: 0,
    };
    let sizes = Router {
        tokens: tokens_of_grid,
        experts: experts as u32,
        used: how.used as u32,
        scores: match how.scores {
            Scores::Softmax => SOFTMAX,
            Scores::Sigmoid => SIGMOID,
            Scores::Chosen => CHOSEN,
        },
        groups: groups as u32,
        groups_used: groups_used as u32,
        best_of_group: how.best_of_group as u32,
        normalised: how.normalised.is_some().into(),
        epsilon: how.normalised.unwrap_or(0.0),
        scale: how.scale,
    };
    // SAFETY: the views were checked, and there is room for the experts of all tokens.
    unsafe {
        route_tokens::of()?.launch(
            device,
            config,
            Ptr::of(logits),
            Ptr::of_optional(bias),
            Ptr::to(&ids),
            Ptr::to(&weights),
            sizes,
        )?;
    }
    Ok((ids, weights))
}
