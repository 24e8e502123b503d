//! Blocks with a sliding window that keep only what it reaches give the same answers as those that keep everything.

use super::*;
use llm_worker_rocm::engine::api::{Event, Request, Status};
use llm_worker_rocm::engine::{Engine, EngineOptions, SamplingOptions};

/// Tokens and their probabilities, bit by bit.
type Answer = Vec<(u32, u32)>;

fn answer(ticket: &mut llm_worker_rocm::engine::api::Ticket) -> Answer {
    let mut answer = Vec::new();
    loop {
        match ticket.events.blocking_recv().expect("an event of the end") {
            Event::Started { .. } | Event::Progress { .. } | Event::Prompt(_) => {}
            Event::Token { token, .. } => {
                answer.push((token.token, token.logprob.unwrap().to_bits()));
            }
            Event::Finished(_) => return answer,
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
}

/// Twice the same requests, the second time with known prefixes.
fn answers(file: &File, full_windows: bool) -> (Vec<Answer>, Status) {
    let on_cpu = device().is_cpu();
    let options = EngineOptions {
        full_windows,
        kv_blocks: Some(72),
        block_size: 4,
        max_step_tokens: 16,
        max_sequences: 3,
        // Known prefixes and company change how many rows a GPU computes at once, and so the last bits.
        prefix_cache: on_cpu,
        ..EngineOptions::default()
    };
    let engine = Engine::start(load(file), &options).unwrap();
    let submit = |i: u32| {
        let prompt: Vec<u32> = (0..20 + 9 * i).map(|t| 3 + t * (7 + i / 2) % 29).collect();
        let request = Request {
            max_tokens: Some(if on_cpu { 20 } else { 8 }),
            ignore_end: true,
            top_logprobs: Some(0),
            ..Request::new(prompt, SamplingOptions::greedy())
        };
        engine.submit(request).unwrap()
    };
    let mut answers = Vec::new();
    for _ in 0..2 {
        if on_cpu {
            let mut tickets: Vec<_> = (0..4).map(submit).collect();
            answers.extend(tickets.iter_mut().map(answer));
        } else {
            answers.push(answer(&mut submit(2)));
        }
    }
    (answers, engine.status())
}

#[test]
fn windows_that_keep_what_they_reach_change_no_bit() {
    // One with both kinds of blocks is enough where each step takes seconds.
    let names = ["gemma2", "phi3", "gemma3", "cohere2"];
    let count = if device().is_cpu() { names.len() } else { 1 };
    for name in &names[..count] {
        let family = families().into_iter().find(|f| f.name == *name).unwrap();
        let file = file(&family, &tensors(&family));
        let (full, of_full) = answers(&file, true);
        let (found, status) = answers(&file, false);
        assert_eq!(found, full, "{name}");
        assert_eq!(of_full.kv_window_blocks_total, 0);
        let windows = status.kv_window_blocks_total;
        assert!(windows > 0 && windows < status.kv_blocks_total, "{windows}");
        assert!(status.prefix_hit_tokens > 0 || !device().is_cpu());
    }
}
