//! Probabilities of prompts' tokens, and prompts that are read and not answered.

use super::*;
use llm_worker_rocm::engine::api::{PromptToken, MAX_TOP_LOGPROBS};

/// What is told of a prompt, and the tokens behind it.
pub fn told(ticket: &mut Ticket) -> (Vec<PromptToken>, Vec<u32>) {
    let (mut told, mut tokens) = (Vec::new(), Vec::new());
    loop {
        match ticket.events.blocking_recv().expect("an event of the end") {
            Event::Started { cached_tokens, .. } => assert_eq!(cached_tokens, 0),
            Event::Progress { .. } => {}
            Event::Prompt(part) => told.extend(part),
            Event::Token { token, .. } => tokens.push(token.token),
            Event::Finished(summary) => {
                assert_eq!(summary.generated_tokens, tokens.len());
                return (told, tokens);
            }
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
}

fn asked(prompt: &[u32], top: usize, max_tokens: usize) -> Request {
    Request {
        prompt_logprobs: Some(top),
        ..request(prompt.to_vec(), SamplingOptions::greedy(), max_tokens)
    }
}

/// What softmax makes of the logits of the whole prompt at once, as the command `perplexity` computes it.
fn expected(prompt: &[u32]) -> Vec<Vec<f64>> {
    let logits = Scorer::new(model(|_| {})).all_logits(prompt).unwrap();
    let log_softmax = |row: Vec<f32>| {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        row.iter().map(|x| f64::from(*x) - sum.ln()).collect()
    };
    rows(&logits).into_iter().map(log_softmax).collect()
}

fn compare(prompt: &[u32], top: usize, found: &[PromptToken]) {
    assert_eq!(found.len(), prompt.len() - 1);
    // A GPU takes other kernels for few rows than for many.
    let tolerance = if device().is_cpu() { 1e-4 } else { 5e-3 };
    for ((found, token), expected) in found.iter().zip(&prompt[1..]).zip(expected(prompt)) {
        assert_eq!(found.token, *token);
        let near = |logprob: f32, token: u32| {
            let expected = expected[token as usize];
            let difference = (f64::from(logprob) - expected).abs();
            assert!(
                difference < tolerance,
                "{logprob} of {token}, not {expected}"
            );
        };
        near(found.logprob, *token);
        assert_eq!(found.top.len(), top.min(33));
        for (token, logprob) in &found.top {
            near(*logprob, *token);
        }
        assert!(found.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        let largest = expected.iter().copied().fold(f64::MIN, f64::max);
        if let Some((_, first)) = found.top.first() {
            assert!((f64::from(*first) - largest).abs() < tolerance);
        }
    }
}

#[test]
fn prompts_are_told_alone_and_together_with_many_blocks_and_few() {
    let prompts: Vec<Vec<u32>> = (0..6).map(|i| prompt(i, 2 + i * 11)).collect();
    for (kv_blocks, max_step_tokens, preempts) in
        [(320, 512, false), (320, 7, false), (24, 5, true)]
    {
        let engine = start(EngineOptions {
            kv_blocks: Some(kv_blocks),
            max_step_tokens,
            ..options()
        });
        // What is known of their beginnings is of no use to them.
        let answers: Vec<Vec<u32>> = prompts
            .iter()
            .map(|p| tokens(&mut engine.submit(request(p.clone(), warm(3), 20)).unwrap()))
            .collect();
        let mut tickets = Vec::new();
        for (i, prompt) in prompts.iter().enumerate() {
            let told = Request {
                sampling: warm(3),
                ..asked(prompt, i, 20)
            };
            tickets.push(engine.submit(told).unwrap());
            tickets.push(engine.submit(request(prompt.clone(), warm(3), 20)).unwrap());
        }
        for (i, pair) in tickets.chunks_mut(2).enumerate() {
            let (found, behind) = told(&mut pair[0]);
            compare(&prompts[i], i, &found);
            if device().is_cpu() {
                assert_eq!(behind, answers[i]);
                assert_eq!(tokens(&mut pair[1]), answers[i]);
            } else {
                tokens(&mut pair[1]);
            }
        }
        let status = eventually(&engine, nothing_held);
        assert_eq!(status.preemptions > 0, preempts, "{status:?}");
    }
}

#[test]
fn a_prompt_may_be_read_and_not_answered() {
    let engine = start(EngineOptions {
        context: Some(40),
        ..options()
    });
    // All of the context, as no token comes behind it.
    let long = prompt(2, 40);
    let (found, answer) = told(&mut engine.submit(asked(&long, 2, 0)).unwrap());
    compare(&long, 2, &found);
    assert!(answer.is_empty());
    let (found, answer) = told(&mut engine.submit(asked(&long[..1], 2, 0)).unwrap());
    assert_eq!((found.len(), answer.len()), (0, 0));
    let mut silent = engine
        .submit(request(long.clone(), SamplingOptions::greedy(), 0))
        .unwrap();
    let (_, summary) = outcome(&mut silent);
    let summary = summary.unwrap();
    assert_eq!(summary.reason, FinishReason::Length);
    assert_eq!((summary.prompt_tokens, summary.generated_tokens), (40, 0));
    // What was read is known now.
    let mut again = engine
        .submit(request(long[..39].to_vec(), SamplingOptions::greedy(), 1))
        .unwrap();
    assert_eq!(outcome(&mut again).1.unwrap().cached_tokens, 36);
    let failure = engine.submit(asked(&long, 2, 1)).err().unwrap();
    assert!(matches!(failure, Failure::TooLong { .. }));
    let failure = engine.submit(asked(&long, MAX_TOP_LOGPROBS + 1, 0)).err();
    assert!(matches!(failure, Some(Failure::Invalid(_))));
    eventually(&engine, nothing_held);
}

#[test]
fn a_prompt_nobody_waits_for_any_more_is_not_told() {
    let engine = Engine::start(
        model(long),
        &EngineOptions {
            kv_blocks: Some(512),
            max_step_tokens: 4,
            ..options()
        },
    )
    .unwrap();
    let mut ticket = engine.submit(asked(&prompt(1, 1500), 4, 1)).unwrap();
    assert!(matches!(
        ticket.events.blocking_recv(),
        Some(Event::Started { .. })
    ));
    drop(ticket);
    let status = eventually(&engine, |status| status.requests_cancelled == 1);
    assert!(status.prompt_tokens < 1500, "{status:?}");
    eventually(&engine, nothing_held);
}
