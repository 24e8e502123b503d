//! Pre-tokenizers by the names that GGUF files give them in `tokenizer.ggml.pre`.
//!
//! A vocabulary only fits the splitting rules that it was trained with: with others the model still answers, but
//! worse, and nobody notices. So an unknown name is an error. The rules are those published with the models.

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior};

/// English contractions, letters, numbers, punctuation, white space: GPT-2's rule.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Each digit stands alone.
const SINGLE_NUMBER: &str = r"\p{N}";
/// Contractions in any case, numbers in groups of up to three: Llama 3's rule.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As Llama 3's with single digits: Qwen 2's rule.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As Qwen 2's with combining marks among the letters: Qwen 3.5's rule.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words split where capitals begin, single digits: Mistral's Tekken.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with contractions and groups of digits: GPT-4o's rule, Llama 4's and Phi-4-mini's.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Digits, then Chinese and Japanese, then words with a leading sign: DeepSeek V3's rules.
const DEEPSEEK3: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
];
/// DeepSeek-Coder's rules.
const DEEPSEEK_CODER: [&str; 5] = [
    "[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[一-龥ࠀ-一가-퟿]+",
    r"\p{N}",
];
/// Falcon's rules.
const FALCON: [&str; 3] = [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"];
/// Words up to white space or punctuation: Bloom's rule.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
/// What files without a known rule were converted for: punctuation and digit groups split before GPT-2's rule.
const DEFAULT: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"];

/// Names that a `tokenizer.json` can be found to mean, one for each set of rules.
const KNOWN_BY_RULES: [&str; 11] = [
    "gpt-2",
    "smollm",
    "llama-bpe",
    "smaug-bpe",
    "qwen2",
    "qwen35",
    "stablelm2",
    "tekken",
    "gpt-4o",
    "deepseek-v3",
    "deepseek-coder",
];

/// How a byte-level BPE vocabulary splits text before merging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    /// Patterns whose matches are split off, one pass after another.
    patterns: &'static [&'static str],
    /// Whether text is brought to Unicode normalization form C first.
    nfc: bool,
    /// Whether a piece that is a token as a whole skips the merges.
    pub(super) ignore_merges: bool,
    /// Whether a beginning-of-sequence token is added when the file does not say.
    pub(super) add_bos: bool,
}

impl PreTokenizer {
    /// The rules of a `tokenizer.ggml.pre` name, `None` if it is unknown.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let rules = |patterns| Self {
            patterns,
            nfc: false,
            ignore_merges: false,
            add_bos: false,
        };
        Some(match name {
            "default" => rules(&DEFAULT),
            "gpt2" | "gpt-2" | "olmo" | "phi-2" | "mpt" | "jais" | "jina-v1-en"
            | "jina-v2-code" | "roberta-bpe" | "gigachat" | "exaone4" | "trillion"
            | "granite-docling" | "mellum" | "modern-bert" => rules(&[GPT2]),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone"
            | "minerva-7b" => rules(&[SINGLE_NUMBER, GPT2]),
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" => Self {
                ignore_merges: true,
                add_bos: true,
                ..rules(&[LLAMA3])
            },
            "smaug-bpe" | "dbrx" | "chatglm-bpe" | "glm4" => rules(&[LLAMA3]),
            "qwen2" | "deepseek-r1-qwen" | "megrez" => Self {
                nfc: true,
                ..rules(&[QWEN2])
            },
            "qwen35" => Self {
                nfc: true,
                ..rules(&[QWEN35])
            },
            "stablelm2" | "hunyuan" | "solar-open" | "grok-2" => rules(&[QWEN2]),
            "tekken" => Self {
                ignore_merges: true,
                ..rules(&[TEKKEN])
            },
            "gpt-4o" | "llama4" | "kanana2" => rules(&[GPT4O]),
            "deepseek-v3" | "hunyuan-dense" => rules(&DEEPSEEK3),
            "deepseek-coder" => rules(&DEEPSEEK_CODER),
            "falcon" => rules(&FALCON),
            "poro-chat" | "bloom" | "gpt3-finnish" => rules(&[BLOOM]),
            "viking" => rules(&[BLOOM, SINGLE_NUMBER]),
            _ => return None,
        })
    }

    /// The name of the rules that a `tokenizer.json` spells out.
    ///
    /// # Errors
    /// What the file asks for, if no known rules are the same.
    pub(super) fn name_of(tokenizer: &serde_json::Value) -> Result<&'static str, String> {
        let rules = &tokenizer["pre_tokenizer"];
        let steps = match rules["pretokenizers"].as_array() {
            Some(steps) => steps.clone(),
            None => vec![rules.clone()],
        };
        // A step of GPT-2's own is the byte mapping with its rule inside.
        let patterns: Option<Vec<&str>> = steps
            .iter()
            .filter_map(|step| match step["type"].as_str() {
                Some("ByteLevel") if step["use_regex"].as_bool() == Some(false) => None,
                Some("ByteLevel") => Some(Some(GPT2)),
                Some("Digits") if step["individual_digits"].as_bool() == Some(true) => {
                    Some(Some(SINGLE_NUMBER))
                }
                Some("Split") if step["behavior"] == "Isolated" => {
                    Some(step["pattern"]["Regex"].as_str())
                }
                _ => Some(None),
            })
            .collect();
        let nfc = tokenizer["normalizer"]["type"] == "NFC";
        let ignore_merges = tokenizer["model"]["ignore_merges"].as_bool() == Some(true);
        patterns
            .and_then(|patterns| {
                KNOWN_BY_RULES
                    .into_iter()
                    .find(|name| {
                        Self::from_name(name).is_some_and(|known| {
                            known.patterns == patterns
                                && known.nfc == nfc
                                && known.ignore_merges == ignore_merges
                        })
                    })
            })
            .ok_or_else(|| {
                format!("its splitting rules are not implemented ({rules}); take a GGUF file of the model")
            })
    }

    pub(super) fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.nfc.then(|| NFC.into())
    }

    /// The splits followed by the mapping of bytes to printable characters.
    pub(super) fn build(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let mut steps = Vec::with_capacity(self.patterns.len() + 1);
        for pattern in self.patterns {
            let pattern = SplitPattern::Regex(pattern.to_string());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
            steps.push(split.into());
        }
        steps.push(ByteLevel::new(false, true, false).into());
        Ok(Sequence::new(steps).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::tokenizer::{OffsetReferential, OffsetType, PreTokenizedString};
    use tokenizers::PreTokenizer as _;

    fn split(name: &str, text: &str) -> Vec<String> {
        let rules = PreTokenizer::from_name(name).unwrap().build().unwrap();
        let mut text = PreTokenizedString::from(text);
        rules.pre_tokenize(&mut text).unwrap();
        text.get_splits(OffsetReferential::Original, OffsetType::Byte)
            .into_iter()
            .map(|(piece, _, _)| piece.replace('Ġ', "_").replace('Ċ', "/"))
            .collect()
    }

    #[test]
    fn each_rule_splits_as_its_model_was_trained() {
        let text = "Hi I'LL  pay 12345$!\n\n ok";
        assert_eq!(
            split("gpt2", text),
            ["Hi", "_I", "'", "LL", "_", "_pay", "_12345", "$!", "//", "_ok"]
        );
        assert_eq!(
            split("smollm", text),
            ["Hi", "_I", "'", "LL", "_", "_pay", "_", "1", "2", "3", "4", "5", "$!", "//", "_ok"]
        );
        assert_eq!(
            split("llama-bpe", text),
            ["Hi", "_I", "'LL", "_", "_pay", "_", "123", "45", "$!//", "_ok"]
        );
        assert_eq!(
            split("qwen2", text),
            ["Hi", "_I", "'LL", "_", "_pay", "_", "1", "2", "3", "4", "5", "$!//", "_ok"]
        );
        assert_eq!(
            split("default", text),
            ["Hi", "_I", "'", "LL", "_", "_pay", "_", "123", "45", "$!", "//", "_ok"]
        );
    }

    #[test]
    fn capitals_begin_words_where_the_rule_says_so() {
        let text = "camelCase it's 12345 x/\n";
        assert_eq!(
            split("tekken", text),
            ["camel", "Case", "_it", "'s", "_", "1", "2", "3", "4", "5", "_x", "//"]
        );
        assert_eq!(
            split("gpt-4o", text),
            ["camel", "Case", "_it's", "_", "123", "45", "_x", "//"]
        );
    }

    #[test]
    fn rules_of_several_passes() {
        let text = "x=漢字12 (a)";
        assert_eq!(
            split("deepseek-v3", text)
                .concat()
                .chars()
                .filter(|c| *c == '_')
                .count(),
            1
        );
        assert_eq!(
            split("deepseek-v3", "if(a) 1234"),
            ["if", "(a", ")", "_", "123", "4"]
        );
        assert_eq!(
            split("deepseek-coder", "a b. 12"),
            ["a", "_b", ".", "_", "1", "2"]
        );
        assert_eq!(
            split("falcon", "a$b 1234"),
            ["a", "$", "b", "_", "123", "4"]
        );
        assert_eq!(
            split("bloom", "one two.three"),
            ["one", "_two", ".", "three"]
        );
    }

    #[test]
    fn unknown_names_are_not_guessed() {
        assert_eq!(PreTokenizer::from_name("made-up"), None);
    }
}
