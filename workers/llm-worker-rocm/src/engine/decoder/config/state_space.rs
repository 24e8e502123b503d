//! The selective scan of a file.

use super::keys::{Keys, Result};
use crate::engine::decoder::mixers::MAX_KERNEL;
use crate::engine::decoder::traits::{DecoderTraits, Recurrence};

/// Most channels of any model are 18,432.
const MAX_CHANNELS: u32 = 1 << 20;
/// Most elements of a channel's state in use are 256.
const MAX_STATES: u32 = 1 << 12;

/// Sizes of a head's state that GPUs have kernels for.
const SIZES: [usize; 5] = [16, 32, 64, 128, 256];

/// The sizes of a selective scan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::engine::decoder) struct StateSpace {
    /// Channels.
    pub inner: usize,
    /// Elements of a channel's state.
    pub states: usize,
    /// Rows that the convolution sees.
    pub kernel: usize,
    /// Width of the steps in time before they are spread over channels (Mamba), or heads (Mamba 2 and the others).
    pub rank: usize,
    /// Groups of heads that share inputs and outputs of the state.
    pub groups: usize,
    /// Steps, inputs and outputs have norms without weights, with this epsilon.
    pub norms: Option<f32>,
    /// Least and most step.
    pub limits: (f32, f32),
}

impl StateSpace {
    /// Channels of the convolution.
    pub fn convolved(&self, recurrence: Recurrence) -> usize {
        match recurrence {
            Recurrence::Mamba2 => self.inner + 2 * self.groups * self.states,
            _ => self.inner,
        }
    }
}

/// Reads it, if blocks have one.
pub(super) fn state_space(keys: &Keys, traits: &DecoderTraits) -> Result<Option<StateSpace>> {
    if matches!(
        traits.recurrence,
        Recurrence::None | Recurrence::Delta | Recurrence::ShortConvolution
    ) {
        return Ok(None);
    }
    if traits.recurrence == Recurrence::Rwkv7 {
        return rwkv7(keys).map(Some);
    }
    if traits.recurrence == Recurrence::Lightning {
        return lightning(keys).map(Some);
    }
    let inner = keys.require_count("ssm.inner_size", MAX_CHANNELS)?;
    if traits.recurrence == Recurrence::Griffin {
        return griffin(keys, inner).map(Some);
    }
    let states = keys.require_count("ssm.state_size", MAX_STATES)?;
    let kernel = keys.require_count("ssm.conv_kernel", MAX_KERNEL as u32)?;
    let rank = keys.require_count("ssm.time_step_rank", MAX_CHANNELS)?;
    let groups = keys.count("ssm.group_count", MAX_CHANNELS)?.unwrap_or(1);
    if kernel < 2 {
        return Err(keys.bad("ssm.conv_kernel", kernel, "at least 2 is needed"));
    }
    if traits.recurrence == Recurrence::Mamba2 {
        if inner % rank != 0 || rank % groups != 0 {
            return Err(keys.bad(
                "ssm.time_step_rank",
                rank,
                format!("{inner} channels in {groups} groups cannot share so many heads evenly"),
            ));
        }
        // Four channels at once.
        if (inner / rank) % 4 != 0 {
            return Err(keys.bad(
                "ssm.time_step_rank",
                rank,
                format!(
                    "heads of {} channels, a multiple of 4 is needed",
                    inner / rank
                ),
            ));
        }
    }
    let sizes: &[usize] = match traits.recurrence {
        Recurrence::Mamba2 => &SIZES,
        _ => &[16, 64],
    };
    if !sizes.contains(&states) {
        return Err(keys.bad(
            "ssm.state_size",
            states,
            format!("one of {sizes:?} is needed"),
        ));
    }
    let norms = match keys.bool("ssm.dt_b_c_rms")? {
        Some(true) => Some(match keys.positive("ssm.norm_rms_epsilon", false)? {
            Some(epsilon) => epsilon,
            None => keys
                .gguf
                .require_f32(&keys.full("attention.layer_norm_rms_epsilon"))?,
        }),
        _ => None,
    };
    Ok(Some(StateSpace {
        inner,
        states,
        kernel,
        rank,
        groups,
        norms,
        limits: (
            keys.positive("ssm.time_step_min", true)?.unwrap_or(0.0),
            keys.positive("ssm.time_step_max", true)?
                .unwrap_or(f32::INFINITY),
        ),
    }))
}

/// Heads of 64 channels, and one state for each of them; each part sees the row before its own.
fn rwkv7(keys: &Keys) -> Result<StateSpace> {
    // What GPUs have a kernel for, and all models have.
    const HEAD: usize = 64;
    let size = keys.require_count("wkv.head_size", MAX_CHANNELS)?;
    let inner = keys.require_count("embedding_length", MAX_CHANNELS)?;
    if size != HEAD || inner % HEAD != 0 {
        return Err(keys.bad(
            "wkv.head_size",
            size,
            format!("{inner} channels need {HEAD}"),
        ));
    }
    if let Some(shifts) = keys.u32("token_shift_count")?.filter(|shifts| *shifts != 2) {
        return Err(keys.bad("token_shift_count", shifts, "2 is needed"));
    }
    Ok(StateSpace {
        inner,
        states: HEAD,
        kernel: 2,
        rank: inner / HEAD,
        groups: 1,
        norms: None,
        limits: (0.0, f32::INFINITY),
    })
}

/// Heads with states of their own, which have as many elements for each channel as the head has channels.
fn lightning(keys: &Keys) -> Result<StateSpace> {
    let heads = keys.require_count("attention.head_count", MAX_CHANNELS)?;
    let size = keys.require_count("attention.key_length", MAX_STATES)?;
    if !SIZES.contains(&size) {
        return Err(keys.bad(
            "attention.key_length",
            size,
            format!("one of {SIZES:?} is needed"),
        ));
    }
    Ok(StateSpace {
        inner: heads * size,
        states: size,
        kernel: 0,
        rank: heads,
        groups: heads,
        norms: None,
        limits: (0.0, f32::INFINITY),
    })
}

/// Gates have a block of the diagonal for each head.
fn griffin(keys: &Keys, inner: usize) -> Result<StateSpace> {
    let kernel = keys.require_count("ssm.conv_kernel", MAX_KERNEL as u32)?;
    let rank = keys.require_count("ssm.time_step_rank", MAX_CHANNELS)?;
    if kernel < 2 || !inner.is_multiple_of(rank) {
        return Err(keys.bad(
            "ssm.time_step_rank",
            rank,
            format!("{inner} channels with a convolution over {kernel} rows"),
        ));
    }
    Ok(StateSpace {
        inner,
        states: 1,
        kernel,
        rank,
        groups: 1,
        norms: None,
        limits: (0.0, f32::INFINITY),
    })
}
