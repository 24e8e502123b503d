//! What recurrent models and heads leave behind is saved and read again: the same answers, bit for bit.

use super::transformers::Case;
use super::*;
use llm_worker_rocm::engine::api::{
    DraftSource, EngineOptions, Event, Request, SamplingOptions, SlotAction, SpeculationOptions,
};
use llm_worker_rocm::engine::Engine;

/// Tokens, bits of their probabilities, and tokens that were known before.
type Answer = (Vec<(u32, Option<u32>)>, usize);

fn ask(engine: &Engine, prompt: &[u32]) -> Answer {
    let mut request = Request::new(prompt.to_vec(), SamplingOptions::greedy());
    request.max_tokens = Some(12);
    request.ignore_end = true;
    request.top_logprobs = Some(0);
    let mut ticket = engine.submit(request).unwrap();
    let mut answer = Vec::new();
    loop {
        match ticket.events.blocking_recv().unwrap() {
            Event::Started { .. } | Event::Progress { .. } | Event::Prompt(_) => {}
            Event::Token { token, .. } => {
                answer.push((token.token, token.logprob.map(f32::to_bits)));
            }
            Event::Finished(summary) => return (answer, summary.cached_tokens),
            Event::Failed(failure) => panic!("{failure:?}"),
        }
    }
}

/// A case's model with what guesses for it.
fn engine(case: &Case, source: DraftSource) -> Engine {
    let load = |head: bool| {
        case.load(&LoadOptions {
            head,
            ..LoadOptions::default()
        })
    };
    let model = load(source == DraftSource::Head);
    let model = match source {
        DraftSource::Model => model.with_draft(load(false)).unwrap(),
        _ => model,
    };
    let options = EngineOptions {
        block_size: 4,
        kv_blocks: Some(64),
        max_sequences: 2,
        state_distance: 16,
        speculation: SpeculationOptions {
            source,
            max: 3,
            least_probability: 0.0,
            adaptive: false,
            ..SpeculationOptions::default()
        },
        ..EngineOptions::default()
    };
    Engine::start(model, &options).unwrap()
}

#[test]
fn recurrent_states_and_heads_outlive_their_engine() {
    if !device().is_cpu() {
        // There the rows of a step decide how floats are summed.
        return;
    }
    let prompt: Vec<u32> = (0..41).map(|i| 3 + i * 5 % 26).collect();
    for (name, source) in [
        ("mamba", DraftSource::Off),
        ("qwen3_5-head", DraftSource::Head),
        ("lfm2", DraftSource::Model),
    ] {
        let case = Case::read(name);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slot.bin");
        let before = engine(&case, source);
        let (answer, cached) = ask(&before, &prompt);
        assert_eq!(cached, 0);
        // Up to the last checkpoint: behind a block of the prompt, or of the answer.
        let saved = before.slot(0, 0, SlotAction::Save(path.clone())).unwrap();
        assert!(saved.tokens >= 40, "{name}: {saved:?}");
        let after = engine(&case, source);
        let restored = after.slot(0, 0, SlotAction::Restore(path)).unwrap();
        assert_eq!(restored, saved);
        // A chat that goes on.
        let mut chat = prompt.clone();
        chat.extend(answer.iter().map(|(token, _)| *token));
        chat.extend([9, 4, 8]);
        let expected = ask(&before, &chat);
        assert_eq!(ask(&after, &chat), expected, "{name}");
        assert_eq!(expected.1, saved.tokens, "{name}");
        let drafts = after.status().drafts;
        println!("{name}: {} tokens, {drafts:?}", saved.tokens);
        // The model itself guesses what it says, from the states that were read.
        if source == DraftSource::Model {
            assert_eq!(drafts.accepted, drafts.drafted, "{name}");
            assert!(drafts.accepted > 6, "{name}: {drafts:?}");
        }
    }
}
