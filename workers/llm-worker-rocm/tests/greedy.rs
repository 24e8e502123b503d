//! SmolLM2 as users run it, against the greedy answers of llama.cpp and of float32.

mod smollm2;

use llm_worker_rocm::chat::{Message, Role};
use llm_worker_rocm::engine::SamplingOptions;
use llm_worker_rocm::generate::Request;
use smollm2::{cases, difference, first_logits, model, model_file, Case, LogProb, MAX_TOKENS};
use std::ops::ControlFlow;
use worker::signal::Interrupt;

/// Allowed difference of the first token's top logits, relative to the largest.
const LOGIT_TOLERANCE: f32 = 0.02;

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
    let chat = [Message::new(Role::User, "Are dogs real?")];
    let prompt = template.render(&chat).unwrap();
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

/// How many of the reference's tokens have to be found: all, but where the device rounds activations to 8 bits only those before the
/// first near tie, which such rounding may decide either way.
fn decided_steps(case: &Case) -> usize {
    const NEAR_TIE: f32 = 0.5;
    let is = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|v| v == value);
    let rounds = is("CANDLE_ROCM_TEST_DEVICE", "rocm") && !is("CANDLE_ROCM_QMATMUL", "dequantize");
    let steps = &case.llama_cpp.top3_logprobs;
    let near_tie = |top: &Vec<LogProb>| top[0].logprob - top[1].logprob < NEAR_TIE;
    let first = steps.iter().position(near_tie).filter(|_| rounds);
    first.unwrap_or(case.llama_cpp.tokens.len())
}

#[test]
fn first_logits_and_greedy_answers_match_the_references() {
    let mut model = model();
    let mut failures = Vec::new();
    let mut exact = 0;
    for case in cases() {
        let prompt = &case.prompt;
        let logits = first_logits(&mut model, &case);
        let difference = difference(&logits, &expected_logits(&case, &logits));
        println!("{prompt:?}: first logits differ by {difference:.4}");
        if difference.is_nan() || difference > LOGIT_TOLERANCE {
            failures.push(format!("{prompt:?}: first logits differ by {difference}"));
        }
        if !case.assert_exact {
            continue;
        }
        exact += 1;
        let expected = &case.float32.as_ref().unwrap().tokens;
        assert_eq!(
            expected, &case.llama_cpp.tokens,
            "the references agree where exact"
        );
        let request = Request {
            prompt: case.prompt_tokens.clone(),
            max_tokens: MAX_TOKENS,
            sampling: SamplingOptions::greedy(),
        };
        let mut streamed = String::new();
        let generation = model
            .generate(&request, &Interrupt::manual(), &mut |piece| {
                streamed.push_str(piece);
                ControlFlow::Continue(())
            })
            .unwrap();
        let decided = decided_steps(&case);
        if !(generation.tokens == *expected
            || generation.tokens.len() >= decided
                && generation.tokens[..decided] == expected[..decided])
        {
            failures.push(format!(
                "{prompt:?}: got {:?} for {expected:?}",
                generation.tokens
            ));
        }
        assert_eq!(streamed, generation.text);
        assert_eq!(streamed, model.tokenizer.decode(&generation.tokens));
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(exact > 0, "the fixture has exact cases");
}
