//! Families with recurrent states: from folders and from the GGUF files that `quantize` makes of them, in pieces of
//! prompts beside each other, and token by token from states that others have left.

use super::device;
use super::formats::{difference_of_prompt, each, load, write_gguf};
use super::transformers::{tokens, tolerance};
use candle_core::Tensor;
use llm_worker_rocm::engine::api::GraphUse;
use llm_worker_rocm::engine::forward::{
    CacheOptions, DecodeOutput, Forward, Step, StepSequence, StepState,
};
use llm_worker_rocm::model::open_weights;
use std::cell::Cell;

/// Of each family, the ways that it can be.
const CASES: [&str; 16] = [
    "mamba",
    "falcon-mamba",
    "mamba2",
    "mamba2-groups",
    "granite4",
    "granite4-experts",
    "falcon-h1",
    "falcon-h1-norm",
    "nemotron-h",
    "nemotron-h-experts",
    "nemotron-h-latent",
    "recurrent-gemma",
    "recurrent-gemma-window",
    "minimax",
    "jamba",
    "jamba-dense",
];
pub const BLOCK: usize = 16;
/// Where tokens no longer come one by one.
const STEPS_END: usize = 16;

pub fn rows(logits: &Tensor) -> Vec<Vec<f32>> {
    logits.to_vec2().unwrap()
}

/// Tokens `start..end` of a text whose blocks begin at `first`.
fn part(first: u32, start: usize, end: usize, state: StepState) -> StepSequence {
    StepSequence {
        id: first.into(),
        blocks: vec![first, first + 1],
        keys: end,
        rows: end - start,
        state: Some(state),
        ..StepSequence::default()
    }
}

/// The text in pieces beside another one, with a checkpoint on the way; a few tokens one by one, on a GPU as graphs from
/// the second on; the rest; and once more from the checkpoint.
pub fn in_steps(mut forward: Box<dyn Forward>) -> Vec<Vec<f32>> {
    let text = tokens();
    forward
        .reserve(&CacheOptions {
            blocks: 6,
            block_size: BLOCK,
            dtype: forward.kv_dtype().into(),
            context: 32,
            states: 4,
            window_blocks: 0,
        })
        .unwrap();
    forward.set_graphs(GraphUse::On);
    let graphs = Cell::new(0);
    let mut run = |tokens: Vec<u32>, sequences: Vec<StepSequence>| {
        let outputs = (0..tokens.len() as u32).collect();
        let step = Step {
            tokens,
            sequences,
            outputs,
        };
        match step.is_decode() {
            false => rows(&forward.forward(&step).unwrap()),
            true => {
                let decoded = forward.decode(&step, None).unwrap();
                graphs.set(graphs.get() + usize::from(decoded.graph));
                match decoded.output {
                    DecodeOutput::Logits(logits, _) => rows(&logits),
                    DecodeOutput::Tokens(_) => panic!("tokens that nobody asked for"),
                }
            }
        }
    };
    let state = |from: Option<u32>, after: &[u32]| StepState {
        from,
        after: after.to_vec(),
    };
    let other: Vec<u32> = text.iter().rev().copied().collect();
    // The state behind the sixth token stays in slot 1, that behind the seventh goes on.
    let both = [&other[..3], &text[..7]].concat();
    let sequences = vec![
        part(2, 0, 3, state(None, &[0])),
        part(0, 0, 7, state(None, &[1, 3])),
    ];
    let mut found = run(both, sequences).split_off(3);
    let both = [&text[7..12], &other[3..9]].concat();
    let sequences = vec![
        part(0, 7, 12, state(Some(3), &[3])),
        part(2, 3, 9, state(Some(0), &[0])),
    ];
    found.extend(run(both, sequences).into_iter().take(5));
    for at in 12..STEPS_END {
        let sequences = vec![
            part(2, at - 3, at - 2, state(Some(0), &[0])),
            part(0, at, at + 1, state(Some(3), &[3])),
        ];
        found.extend(run(vec![other[at - 3], text[at]], sequences).split_off(1));
    }
    let rest = vec![part(0, STEPS_END, text.len(), state(Some(3), &[3]))];
    found.extend(run(text[STEPS_END..].to_vec(), rest));
    // The first step of a shape is never a graph.
    match device().is_rocm() {
        true => assert!(graphs.get() >= STEPS_END - 13, "{} graphs", graphs.get()),
        false => assert_eq!(graphs.get(), 0),
    }
    // From the checkpoint, as if the seventh token had been taken back.
    let again = run(
        text[6..14].to_vec(),
        vec![part(0, 6, 14, state(Some(1), &[2]))],
    );
    for (row, again) in again.iter().enumerate() {
        let largest = again.iter().fold(0f32, |a, b| a.max(b.abs()));
        let pairs = again.iter().zip(&found[6 + row]);
        let difference = pairs.fold(0f32, |a, (x, y)| a.max((x - y).abs()));
        assert!(
            difference <= tolerance() * largest,
            "{difference} of {largest}"
        );
    }
    found
}

#[test]
fn both_formats_compute_what_transformers_does() {
    each(&CASES, |case, folder| {
        let file = folder.join("model.gguf");
        write_gguf(&*open_weights(folder).unwrap(), &file);
        let steps = case.difference_of(&in_steps(load(&file).forward));
        difference_of_prompt(case, folder).max(steps)
    });
}
