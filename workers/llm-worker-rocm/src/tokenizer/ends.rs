//! Which tokens end an answer.
//!
//! Files name one or two and often miss the one that their own chat template ends a turn with, or give it the type of
//! ordinary text. So tokens of known spellings count, too. The list is llama.cpp's (`src/llama-vocab.cpp` of
//! <https://github.com/ggml-org/llama.cpp>) with the ends of roles that it leaves to metadata.

/// Spellings that end an answer whatever the type of the token.
const ENDS: [&str; 36] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot|>",
    "<|eom|>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
    "<｜end▁of▁sentence｜>",
    // Marks between files, where a completion in the middle of one has nothing more to say.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
    "<|plamo:eos|>",
];

/// Control tokens that begin another role's turn.
const ROLES: [&str; 3] = ["<|end_of_role|>", "<|user|>", "<|observation|>"];

/// Keys of GGUF's metadata that name a token that ends an answer.
pub(super) const KEYS: [&str; 5] = [
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

/// The tokens that end an answer, in ascending order. `named` are those of the model's files; `find` gives a spelling's
/// id and whether it is a control token.
pub(super) fn end_ids(
    named: impl IntoIterator<Item = u32>,
    eos: Option<u32>,
    find: impl Fn(&str) -> Option<(u32, bool)>,
) -> Vec<u32> {
    let spelled = |text: &str| find(text).map(|(id, _)| id);
    let has = |text: &str| spelled(text).is_some();
    let mut ids: Vec<u32> = named.into_iter().collect();
    ids.extend(ENDS.iter().filter_map(|text| spelled(text)));
    let roles = ROLES.iter().filter_map(|text| find(text));
    ids.extend(roles.filter(|(_, control)| *control).map(|(id, _)| id));

    // Where calls and answers have ends of their own (gpt-oss, Solar), this one only ends a part of the answer.
    let calls = has("<|call|>") || has("<|calls|>");
    if calls && (has("<|return|>") || has("<|flush|>")) {
        ids.retain(|id| Some(*id) != spelled("<|end|>"));
    }
    // Gemma and PLaMo have a tag of HTML that is spelled like an end.
    let is_tag = has("<|tool_response>")
        || has("<|plamo:eos|>")
        || has("<end_of_turn>") && find("</s>").is_some_and(|(_, control)| !control);
    if is_tag {
        ids.retain(|id| Some(*id) != spelled("</s>"));
    }
    ids.extend(eos);
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(tokens: &[(&str, bool)], named: &[u32], eos: Option<&str>) -> Vec<&'static str> {
        let find = |text: &str| {
            let place = tokens.iter().position(|(token, _)| *token == text)?;
            Some((place as u32, tokens[place].1))
        };
        let eos = eos.map(|text| find(text).unwrap().0);
        end_ids(named.iter().copied(), eos, find)
            .into_iter()
            .map(|id| tokens[id as usize].0.to_string().leak() as &str)
            .collect()
    }

    #[test]
    fn spellings_count_whatever_their_type() {
        for text in ENDS {
            assert_eq!(ends(&[("a", false), (text, false)], &[], None), [text]);
            assert_eq!(ends(&[("a", false), (text, true)], &[0], None), ["a", text]);
        }
        let roles = [("<|user|>", false), ("<|observation|>", true)];
        assert_eq!(ends(&roles, &[], None), ["<|observation|>"]);
    }

    #[test]
    fn the_end_of_a_part_is_no_end() {
        let harmony = [("<|return|>", true), ("<|call|>", true), ("<|end|>", true)];
        assert_eq!(
            ends(&harmony, &[], Some("<|return|>")),
            ["<|return|>", "<|call|>"]
        );
        let solar = [("<|flush|>", true), ("<|calls|>", true), ("<|end|>", true)];
        assert_eq!(ends(&solar, &[], None), ["<|flush|>", "<|calls|>"]);
        let phi = [("<|end|>", true), ("<|call|>", true)];
        assert_eq!(ends(&phi, &[], None), ["<|end|>", "<|call|>"]);
    }

    #[test]
    fn a_tag_is_no_end() {
        let gemma = [("<eos>", true), ("<end_of_turn>", true), ("</s>", false)];
        assert_eq!(ends(&gemma, &[], Some("<eos>")), ["<eos>", "<end_of_turn>"]);
        let gemma4 = [
            ("<eos>", true),
            ("<turn|>", true),
            ("<|tool_response>", true),
            ("</s>", true),
        ];
        assert_eq!(
            ends(&gemma4, &[], None),
            ["<eos>", "<turn|>", "<|tool_response>"]
        );
        let llama = [("<s>", true), ("</s>", false)];
        assert_eq!(ends(&llama, &[], None), ["</s>"]);
    }
}
