//! Grammars that begin in the midst of an answer, and how far a prompt is read, in the engine.

use super::speculation::look_up;
use super::*;
use llm_worker_rocm::grammar::{Compiled, Grammars, LazyGrammar, Notation, Trigger};
use llm_worker_rocm::tokenizer::Tokenizer;

/// The letters from a to m.
const LETTERS: std::ops::RangeInclusive<u32> = 7..=19;

/// Answers in text: without control tokens.
fn in_text(seed: Option<u64>, max_tokens: usize) -> Request {
    let sampling = SamplingOptions {
        logit_bias: (0..3).map(|token| (token, f32::NEG_INFINITY)).collect(),
        ..seed.map_or_else(SamplingOptions::greedy, warm)
    };
    request(TOKENS.to_vec(), sampling, max_tokens)
}

fn bound(
    seed: Option<u64>,
    max_tokens: usize,
    compiled: &Compiled,
    trigger: &Trigger,
    tokenizer: &Arc<Tokenizer>,
) -> Request {
    let triggers = std::slice::from_ref(trigger);
    let lazy = LazyGrammar::new(compiled.clone(), triggers, tokenizer.clone(), None).unwrap();
    Request {
        constraint: Some(lazy.constraint()),
        ..in_text(seed, max_tokens)
    }
}

/// Alone, in a batch, with guesses and with blocks that run out, an answer is as it would be without the grammar up to
/// the trigger, and then as the grammar says.
#[test]
fn a_grammar_begins_in_the_midst_of_an_answer() {
    const LENGTH: usize = 30;
    let loaded = model(|_| {});
    let tokenizer = loaded.tokenizer.clone();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let engine = Engine::start(loaded, &options()).unwrap();
    let guessing = start(EngineOptions {
        speculation: look_up(),
        ..options()
    });
    let crowded = start(EngineOptions {
        kv_blocks: Some(24),
        ..options()
    });
    for seed in [None, Some(3)] {
        let free = tokens(&mut engine.submit(in_text(seed, LENGTH)).unwrap());
        let text = tokenizer.decode(&free);
        // The text of two tokens of it, as late as possible where nothing before is the same.
        let word = |at: usize| tokenizer.decode(&free[at..at + 2]);
        let first =
            |at: &usize| text.find(&word(*at)) == Some(tokenizer.decode(&free[..*at]).len());
        let at = (0..LENGTH - 12).rev().find(first).unwrap();
        let (word, before) = (word(at), at + 2);
        let quoted = serde_json::to_string(&word).unwrap();
        let grammar = format!("start: {quoted} REST\nREST: /[a-m]{{99}}/");
        let compiled = grammars.compile(Notation::Lark, &grammar).unwrap();
        let trigger = Trigger::Word(word);
        let ask = || bound(seed, LENGTH, &compiled, &trigger, &tokenizer);
        let alone = tokens(&mut engine.submit(ask()).unwrap());
        assert_eq!(alone[..before], free[..before]);
        let rest = &alone[before..];
        assert!(rest.iter().all(|token| LETTERS.contains(token)), "{rest:?}");
        assert_eq!(alone.len(), LENGTH);
        for engine in [&engine, &guessing, &crowded] {
            let mut together: Vec<Ticket> = (0..4)
                .flat_map(|i| [ask(), in_text(Some(i), LENGTH)])
                .map(|asked| engine.submit(asked).unwrap())
                .collect();
            for (index, ticket) in together.iter_mut().enumerate() {
                let found = tokens(ticket);
                assert!(index % 2 == 1 || found == alone, "{index}");
            }
        }
    }
    assert!(crowded.status().preemptions > 0);
    assert!(guessing.status().drafts.drafted > 0);
}

#[test]
fn progress_is_told_after_each_step_of_a_prompt() {
    let engine = start(EngineOptions {
        max_step_tokens: 16,
        ..options()
    });
    let read = |progress: bool| {
        let asked = Request {
            progress,
            ..request(prompt(2, 50), SamplingOptions::greedy(), 2)
        };
        let mut ticket = engine.submit(asked).unwrap();
        let (mut known, mut told) = (0, Vec::new());
        loop {
            match ticket.events.blocking_recv().unwrap() {
                Event::Started { cached_tokens, .. } => known = cached_tokens,
                Event::Progress { computed, .. } => told.push(computed),
                Event::Finished(_) => return (known, told),
                _ => {}
            }
        }
    };
    assert_eq!(read(true), (0, vec![16, 32, 48, 50]));
    assert_eq!(read(true), (48, vec![50]));
    assert_eq!(read(false), (48, vec![]));
}
