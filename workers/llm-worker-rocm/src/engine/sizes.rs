//! How much of each kind of memory an engine reserves.

use super::api::{DraftSource, EngineOptions};
use super::forward::{CacheOptions, CachePart, Forward};
use super::scheduler::longest_step;
use worker::{Error, Result};

/// Checkpoints of recurrent state that a sequence has use for.
const CHECKPOINTS: usize = 8;

/// What an engine reserves.
pub(super) struct Sizes {
    pub cache: CacheOptions,
    /// Slots of recurrent state of a draft model.
    pub draft_states: usize,
    /// Sequences that run at once.
    pub max_sequences: usize,
    /// Keys before its own that a token sees in layers with blocks of their own.
    pub left: usize,
}

impl Sizes {
    /// As `options` say, or as is of use and fits. A draft model has as many blocks.
    ///
    /// # Errors
    /// [`Error::Usage`] for options that make no sense, [`Error::Runtime`] if memory does not suffice for a single block
    /// or sequence.
    pub(super) fn choose(
        forward: &dyn Forward,
        options: &EngineOptions,
        draft: Option<&dyn Forward>,
    ) -> Result<Self> {
        for (name, value) in [
            ("the block size", options.block_size),
            ("the number of sequences", options.max_sequences),
            ("the number of tokens of a step", options.max_step_tokens),
            ("the context", options.context.unwrap_or(1)),
            ("the number of blocks", options.kv_blocks.unwrap_or(1)),
            ("the number of states", options.states.unwrap_or(1)),
            ("the distance of states", options.state_distance),
        ] {
            if value == 0 {
                return Err(Error::Usage(format!("{name} must be above 0")));
            }
        }
        let own = forward.context_length();
        let context = options.context.unwrap_or(own);
        if context > own {
            return Err(Error::Usage(format!(
                "a context of {context} tokens; this model takes at most {own}"
            )));
        }
        let dtype = options.kv_types(forward.kv_dtype());
        let mut parts = forward.cache_parts(dtype);
        let (states, max_sequences) = states(&parts, options)?;
        for part in &mut parts {
            part.take(states * part.state_bytes);
        }
        let mut draft_states = 0;
        // A draft model is where answers come from.
        if let (Some(draft), Some(part)) = (draft, parts.last_mut()) {
            draft_states = states_of_draft(draft, options, max_sequences, part.room);
            part.take(draft_states * draft.state_bytes());
            part.token_bytes += draft.kv_token_bytes(draft.kv_dtype().into());
        }
        let size = options.block_size;
        let wanted = Wanted {
            context,
            sequences: max_sequences,
            step: longest_step(forward, options.max_step_tokens),
            window: (forward.window()).filter(|_| forward.kv_window_bytes(dtype) > 0),
        };
        let fit = parts
            .iter()
            .map(|part| Blocks::choose(part, options, wanted));
        let blocks = fit.collect::<Result<Vec<_>>>()?;
        // All devices have the same blocks: as many as the fullest one has room for.
        let least = |of: fn(&Blocks) -> usize| blocks.iter().map(of).min().unwrap_or(0);
        let blocks = Blocks {
            full: least(|blocks| blocks.full),
            windows: least(|blocks| blocks.windows),
        };
        let taken = context.min(blocks.full.saturating_mul(size));
        if let Some(keep) = options.context_shift.filter(|keep| keep + 2 > taken) {
            return Err(Error::Usage(format!(
                "{keep} tokens that stay when a context of {taken} tokens is shifted leave none to drop"
            )));
        }
        Ok(Self {
            cache: CacheOptions {
                blocks: blocks.full,
                window_blocks: blocks.windows,
                block_size: size,
                dtype,
                context: taken,
                states,
            },
            draft_states,
            max_sequences,
            left: forward.window().unwrap_or(0),
        })
    }
}

impl CachePart {
    /// Gives room away.
    fn take(&mut self, bytes: usize) {
        self.room = self.room.map(|room| room.saturating_sub(bytes));
    }
}

/// Slots of recurrent state, and for how many of the wanted sequences they suffice: all devices have as many.
fn states(parts: &[CachePart], options: &EngineOptions) -> Result<(usize, usize)> {
    let wanted = options.max_sequences;
    let keep = options.prefix_cache;
    let drafts = match options.speculation.source {
        DraftSource::Off => 0,
        _ => options.speculation.max,
    };
    let recurrent = parts.iter().filter(|part| part.state_bytes > 0);
    let useful = recurrent.map(|part| {
        (
            part,
            useful_states(wanted, drafts, keep, part.room, part.state_bytes),
        )
    });
    let Some((fullest, useful)) = useful.min_by_key(|(_, useful)| *useful) else {
        return Ok((0, wanted));
    };
    let states = options.states.unwrap_or(useful);
    let bytes = fullest.state_bytes;
    if states == 0 {
        return Err(Error::Runtime(format!(
            "there is no memory left for the recurrent state of a sequence, which takes {bytes} bytes; use a smaller model or another device"
        )));
    }
    if states < wanted {
        tracing::warn!(
            "{states} sequences run at once: there is no room for the recurrent state of more"
        );
    }
    Ok((states, wanted.min(states)))
}

/// Slots of recurrent state of a draft model. With too few of them fewer sequences have guesses.
fn states_of_draft(
    draft: &dyn Forward,
    options: &EngineOptions,
    sequences: usize,
    room: Option<usize>,
) -> usize {
    match draft.state_bytes() {
        0 => 0,
        bytes => useful_states(sequences, options.speculation.max, true, room, bytes),
    }
}

/// Slots of recurrent state of so many bytes, where nobody says how many: one for each sequence, if half of the room for
/// the cache suffices, and checkpoints in an eighth of it; in another one as many as each sequence has guesses.
fn useful_states(
    sequences: usize,
    drafts: usize,
    keep: bool,
    room: Option<usize>,
    bytes: usize,
) -> usize {
    let fit = |part: usize| room.map_or(usize::MAX, |room| room / part / bytes);
    let checkpoints = match keep {
        true => (sequences * CHECKPOINTS).min(fit(8)),
        false => 0,
    };
    sequences.min(fit(2)) + checkpoints + (sequences * drafts).min(fit(8))
}

/// What blocks are for.
#[derive(Clone, Copy)]
struct Wanted {
    context: usize,
    sequences: usize,
    /// Tokens of a step.
    step: usize,
    /// Keys before its own that a token sees in layers with a sliding window, if there are such.
    window: Option<usize>,
}

/// Numbers of blocks.
#[derive(Debug, PartialEq, Eq)]
struct Blocks {
    full: usize,
    /// Those of layers with a sliding window; 0 if these have the same blocks as the others.
    windows: usize,
}

impl Blocks {
    fn choose(part: &CachePart, options: &EngineOptions, wanted: Wanted) -> Result<Self> {
        let Wanted {
            context, sequences, ..
        } = wanted;
        let size = options.block_size;
        let [bytes, of_windows] = [part.token_bytes, part.window_bytes].map(|bytes| bytes * size);
        let all = context.div_ceil(size);
        // What a window reaches, and what a step adds before anything is given back.
        let reach = |left: usize| left.div_ceil(size) + 2;
        let step = wanted.step.div_ceil(size);
        let windowed = wanted.window.filter(|left| {
            let shorter = reach(*left) + step < all;
            !options.full_windows && shorter
        });
        let useful = Self {
            full: options.kv_blocks.unwrap_or(all.saturating_mul(sequences)),
            // Twice: for the sequences that run, and for prefixes of those that have ended.
            windows: windowed.map_or(0, |left| 2 * sequences * reach(left) + step),
        };
        let least = windowed.map_or(0, |left| reach(left) + step);
        let of_full = bytes - if windowed.is_some() { of_windows } else { 0 };
        let fit = match (options.kv_blocks, part.room) {
            (None, Some(room)) => useful.within(room, of_full, of_windows, least),
            _ => useful,
        };
        if fit.full == 0 {
            return Err(Error::Runtime(format!(
                "there is no memory left for the cache of keys and values: a block of {size} tokens takes {bytes} bytes; use a smaller model or another device"
            )));
        }
        Ok(Self {
            // A sequence has no more of them than of the others.
            windows: fit.windows.min(fit.full),
            ..fit
        })
    }

    /// As many of both as fit into so many bytes, in the same proportion, but so many windows at least.
    fn within(self, room: usize, of_full: usize, of_windows: usize, least: usize) -> Self {
        let wanted = self.full as f64 * of_full as f64 + self.windows as f64 * of_windows as f64;
        let part = (room as f64 / wanted.max(1.0)).min(1.0);
        let windows = ((self.windows as f64 * part) as usize).max(least);
        let rest = room.saturating_sub(windows * of_windows);
        // Where all layers have a window, the other blocks cost nothing.
        let fit = rest.checked_div(of_full).unwrap_or(self.full);
        Self {
            full: self.full.min(fit),
            windows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_take_half_of_the_room_and_checkpoints_an_eighth_at_most() {
        assert_eq!(useful_states(4, 0, true, None, 1000), 36);
        assert_eq!(useful_states(4, 0, false, None, 1000), 4);
        assert_eq!(useful_states(4, 0, true, Some(80_000), 1000), 4 + 10);
        assert_eq!(useful_states(4, 0, true, Some(6000), 1000), 3);
        assert_eq!(useful_states(4, 0, true, Some(1500), 1000), 0);
        assert_eq!(useful_states(4, 7, false, None, 1000), 32);
        assert_eq!(useful_states(4, 7, false, Some(80_000), 1000), 4 + 10);
    }

    #[test]
    fn both_kinds_of_blocks_shrink_in_proportion() {
        let useful = || Blocks {
            full: 1000,
            windows: 100,
        };
        let blocks = |full, windows| Blocks { full, windows };
        assert_eq!(useful().within(200_000, 100, 500, 10), useful());
        assert_eq!(useful().within(75_000, 100, 500, 10), blocks(500, 50));
        assert_eq!(useful().within(15_000, 100, 500, 20), blocks(50, 20));
        assert_eq!(useful().within(9_000, 100, 500, 20), blocks(0, 20));
        // All layers have a window: the other blocks cost nothing.
        assert_eq!(useful().within(25_000, 0, 500, 20), blocks(1000, 50));
        // None has.
        let full = |full| blocks(full, 0);
        assert_eq!(full(1000).within(60_000, 100, 0, 0), full(600));
    }
}
