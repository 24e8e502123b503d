//! The rotary embedding of a file.

use super::keys::{ConfigError, Keys, Result};
use super::{MAX_CONTEXT, MAX_HEAD_DIM};
use crate::engine::decoder::rotary::{Scaling, Yarn};
use crate::engine::decoder::traits::{DecoderTraits, Sections};

/// The rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine::decoder) struct Rope {
    /// Elements of a head that turn.
    pub dims: usize,
    pub base: f32,
    pub scaling: Scaling,
    /// Factor of cosines and sines.
    pub magnitude: f32,
    /// Positions up to which the short factors hold, if there are short and long ones.
    pub original_context: usize,
    /// For each pair of elements, whether it turns by time (0), row (1) or column (2); empty for models without pictures.
    pub axes: Vec<u8>,
}

/// Reads it, for heads of `head_dim` elements.
pub(super) fn rope(
    keys: &Keys,
    traits: &DecoderTraits,
    head_dim: usize,
    context_length: usize,
) -> Result<Rope> {
    let dims = keys
        .count("rope.dimension_count", MAX_HEAD_DIM)?
        .unwrap_or(head_dim);
    if dims > head_dim || dims % 2 != 0 {
        return Err(keys.bad(
            "rope.dimension_count",
            dims,
            format!("an even number up to {head_dim} is needed"),
        ));
    }
    let factor = keys.positive("rope.scaling.factor", true)?.unwrap_or(1.0);
    let original_context = keys
        .count("rope.scaling.original_context_length", MAX_CONTEXT)?
        .unwrap_or(context_length);
    let mut magnitude = keys
        .positive("rope.scaling.attn_factor", true)?
        .unwrap_or(1.0);
    let kind = keys.gguf.get_str(&keys.full("rope.scaling.type"))?;
    let scaling = match kind {
        None | Some("none" | "longrope") => Scaling::None,
        Some("linear") => Scaling::Linear(factor),
        Some("yarn") => {
            magnitude *= 1.0 + 0.1 * factor.ln();
            if traits.tempered {
                let multiplier = keys.positive("rope.scaling.yarn_log_multiplier", true)?;
                magnitude /= 1.0 + 0.1 * multiplier.unwrap_or(0.0) * factor.ln();
            }
            Scaling::Yarn(Yarn {
                factor,
                original_context,
                beta_fast: keys
                    .positive("rope.scaling.yarn_beta_fast", true)?
                    .unwrap_or(32.0),
                beta_slow: keys
                    .positive("rope.scaling.yarn_beta_slow", true)?
                    .unwrap_or(1.0),
                whole_pairs: traits.yarn_whole_pairs,
            })
        }
        Some(kind) => {
            return Err(ConfigError::Unsupported(format!(
                "rotary scaling of type {kind:?}"
            )))
        }
    };
    Ok(Rope {
        dims,
        base: keys.positive("rope.freq_base", false)?.unwrap_or(10_000.0),
        scaling,
        magnitude,
        original_context,
        axes: axes(keys, dims / 2, traits.sections)?,
    })
}

/// What each pair turns by, from the number of pairs for time, row and column.
fn axes(keys: &Keys, pairs: usize, sections: Sections) -> Result<Vec<u8>> {
    const KEY: &str = "rope.dimension_sections";
    if sections == Sections::None {
        return Ok(Vec::new());
    }
    let numbers = match (keys.gguf.get_i32s(&keys.full(KEY))?, sections) {
        (Some(numbers), _) => numbers,
        // A file of a text part alone.
        (None, Sections::Interleaved) => return Ok(Vec::new()),
        (None, _) => &[],
    };
    let used: Vec<usize> = numbers.iter().take(3).map(|n| *n as usize).collect();
    let rest = numbers.iter().skip(3).any(|n| *n != 0);
    let most = |n: &i32| !(0..=pairs as i32).contains(n);
    if used.len() != 3 || rest || numbers.iter().any(most) || used.iter().sum::<usize>() != pairs {
        return Err(keys.bad(
            KEY,
            format!("{numbers:?}"),
            format!("three numbers with the sum {pairs} are needed"),
        ));
    }
    let axis = |pair: usize| match sections {
        Sections::Interleaved => match pair % 3 {
            axis if axis > 0 && pair < 3 * used[axis] => axis,
            _ => 0,
        },
        _ if pair < used[0] => 0,
        _ if pair < used[0] + used[1] => 1,
        _ => 2,
    };
    Ok((0..pairs).map(|pair| axis(pair) as u8).collect())
}
