//! SmolLM2 as users run it, against the greedy answers of llama.cpp and of float32.

mod smollm2;

use llm_worker_rocm::chat::{message, RenderOptions};
use llm_worker_rocm::engine::api::{EngineOptions, Event, Request, SamplingOptions, Ticket};
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::engine::Engine;
use smollm2::{
    cases, decided_steps, difference, first_logits, model, model_file, Case, MAX_TOKENS,
};

/// Allowed difference of the first token's top logits, relative to the largest. Both sides round activations to 8 bits,
/// and differ from float32 by up to 3.6 % each, depending on the order of sums; `float32.rs` compares exact arithmetic.
const LOGIT_TOLERANCE: f32 = 0.04;

#[test]
fn prompts_are_tokenized_as_the_references_did() {
    let file = model_file();
    for case in cases() {
        let tokens = file.tokenizer().encode(&case.prompt, true).unwrap();
        assert_eq!(tokens, case.prompt_tokens, "{:?}", case.prompt);
        // The text in between special tokens comes back unchanged.
        let mut plain = case.prompt.clone();
        for special in ["<|im_start|>", "<|im_end|>"] {
            plain = plain.replace(special, "");
        }
        assert_eq!(file.tokenizer().decode(&tokens), plain);
    }
}

#[test]
fn the_template_of_the_file_gives_the_references_prompts() {
    let template = model_file().chat_template().unwrap();
    let chat = [message("user", "Are dogs real?")];
    let options = RenderOptions {
        add_generation_prompt: true,
        ..RenderOptions::default()
    };
    let prompt = template.render(&chat, None, &options).unwrap().text;
    assert!(cases().iter().any(|case| case.prompt == prompt), "{prompt}");
}

/// llama.cpp's most likely first tokens as logits. Log-probabilities are logits less a constant, which comes from ours.
fn expected_logits(case: &Case, logits: &[f32]) -> Vec<(u32, f32)> {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f32 = logits.iter().map(|l| (l - largest).exp()).sum();
    let constant = largest + sum.ln();
    let top = case.llama_cpp.top3_logprobs[0].iter();
    top.map(|p| (p.id, p.logprob + constant)).collect()
}

#[test]
fn first_logits_match_the_references() {
    let mut model = Scorer::new(model());
    let mut failures = Vec::new();
    // A plain text and one from a template, with references of both kinds: each further one is more of the same sums.
    let most = if is_short() { 3 } else { usize::MAX };
    for case in cases().into_iter().take(most) {
        let prompt = &case.prompt;
        let logits = first_logits(&mut model, &case);
        let difference = difference(&logits, &expected_logits(&case, &logits));
        println!("{prompt:?}: first logits differ by {difference:.4}");
        if difference.is_nan() || difference > LOGIT_TOLERANCE {
            failures.push(format!("{prompt:?}: first logits differ by {difference}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Whether answers are short: a simulated device computes eight tokens of each unless `FULL` is set, and one of them
/// alone, enough for prompts in pieces, a batch and a graph that is replayed.
fn is_short() -> bool {
    let set = |variable: &str| std::env::var(variable).is_ok_and(|value| !value.is_empty());
    set("HIP_SIM_ARCH") && set("CANDLE_ROCM_TEST_DEVICE") && !set("FULL")
}

/// Tokens of an answer.
fn most_tokens() -> usize {
    if is_short() {
        8
    } else {
        MAX_TOKENS
    }
}

/// All of a request's tokens.
fn answer(ticket: &mut Ticket) -> Vec<u32> {
    let mut tokens = Vec::new();
    loop {
        match ticket.events.blocking_recv().expect("an event of the end") {
            Event::Started { .. } | Event::Progress { .. } | Event::Prompt(_) => {}
            Event::Token { token, .. } => tokens.push(token.token),
            Event::Finished(_) => return tokens,
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
}

/// One after another, and all at once: in a batch, where prompts are cut into pieces, and blocks run out.
#[test]
fn greedy_answers_match_the_references_alone_and_together() {
    let model = model();
    let options = EngineOptions {
        kv_blocks: Some(24),
        context: Some(256),
        max_step_tokens: 24,
        prefix_cache: false,
        ..EngineOptions::default()
    };
    let tokenizer = model.tokenizer.clone();
    let engine = Engine::start(model, &options).unwrap();
    let exact: Vec<Case> = cases().into_iter().filter(|c| c.assert_exact).collect();
    assert!(exact.len() > 1, "the fixture has exact cases");
    let submit = |case: &Case| {
        let greedy = SamplingOptions::greedy();
        engine.submit(Request {
            max_tokens: Some(most_tokens()),
            ..Request::new(case.prompt_tokens.clone(), greedy)
        })
    };
    let mut failures = Vec::new();
    let mut compare = |case: &Case, tokens: &[u32], how: &str| {
        let expected = &case.float32.as_ref().unwrap().tokens;
        assert_eq!(
            expected, &case.llama_cpp.tokens,
            "the references agree where exact"
        );
        let decided = decided_steps(case).min(most_tokens());
        let expected = &expected[..expected.len().min(most_tokens())];
        if !(tokens == expected
            || tokens.len() >= decided && tokens[..decided] == expected[..decided])
        {
            let prompt = &case.prompt;
            failures.push(format!("{prompt:?} {how}: {tokens:?} for {expected:?}"));
        }
        let mut detokenizer = tokenizer.detokenizer();
        let mut streamed: String = tokens.iter().map(|t| detokenizer.push(*t)).collect();
        streamed.push_str(&detokenizer.finish());
        assert_eq!(streamed, tokenizer.decode(tokens));
    };
    let lone = if is_short() { 1 } else { exact.len() };
    for case in &exact[..lone] {
        compare(case, &answer(&mut submit(case).unwrap()), "alone");
    }
    let mut tickets: Vec<Ticket> = exact.iter().map(|case| submit(case).unwrap()).collect();
    for (case, ticket) in exact.iter().zip(&mut tickets) {
        compare(case, &answer(ticket), "together");
    }
    assert!(failures.is_empty(), "{failures:#?}");
    let status = engine.status();
    println!("{status:?}");
    assert_eq!(status.kv_blocks_used, 0);
}
