//! Pre-tokenizers by the names that GGUF files give them in `tokenizer.ggml.pre`.
//!
//! A vocabulary only fits the splitting rules that it was trained with: with others the model still answers, but
//! worse, and nobody notices. So an unknown name is an error. The rules are those published with the models; the names
//! and what a silent file means are llama.cpp's (`src/llama-vocab.cpp` of <https://github.com/ggml-org/llama.cpp>).

use super::rules::*;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::normalizers::utils::Lowercase;
use tokenizers::normalizers::Replace;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior};

/// What the tokens of a vocabulary are spelled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Each character stands for a byte, as in GPT-2.
    Bytes,
    /// Characters stand for themselves, a mark for a space; a character without a token becomes tokens of its bytes.
    Marked,
    /// Characters stand for themselves, white space only parts words; as above without a token.
    Words,
}

/// How a BPE vocabulary with merges splits text before merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    /// Patterns whose matches are split off, one pass after another.
    patterns: &'static [&'static str],
    /// What tokens are spelled in.
    pub(super) alphabet: Alphabet,
    /// Whether text is brought to Unicode normalization form C first.
    nfc: bool,
    /// Whether a piece that is a token as a whole skips the merges.
    pub(super) ignore_merges: bool,
    /// When a beginning-of-sequence token is added.
    pub(super) bos: AddBos,
    /// Whether tokens are merged in the order of their ids where a file brings no merges.
    pub(super) merges_by_id: bool,
    /// Whether texts end with a token of their own, as encoders were trained.
    pub(super) framed: bool,
}

/// When a beginning-of-sequence token is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddBos {
    /// Where the file asks for it.
    IfAsked,
    /// Unless the file forbids it.
    UnlessForbidden,
    /// Always: early files forbid it by mistake.
    Always,
}

const fn split(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer {
        patterns,
        alphabet: Alphabet::Bytes,
        nfc: false,
        ignore_merges: false,
        bos: AddBos::IfAsked,
        merges_by_id: false,
        framed: false,
    }
}

impl PreTokenizer {
    const fn nfc(mut self) -> Self {
        self.nfc = true;
        self
    }
    const fn whole_words(mut self) -> Self {
        self.ignore_merges = true;
        self
    }
    const fn bos(mut self, bos: AddBos) -> Self {
        self.bos = bos;
        self
    }
    const fn spelled(mut self, alphabet: Alphabet) -> Self {
        self.alphabet = alphabet;
        self
    }
    const fn framed(mut self) -> Self {
        self.framed = true;
        self
    }
    const fn merged_by_id(mut self) -> Self {
        self.merges_by_id = true;
        self
    }
}

/// All names. The first of a row is the one that files written here get; of rows with equal splits the first counts.
const TABLE: [(&[&str], PreTokenizer); 36] = [
    (
        &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "olmo",
            "mpt",
            "jais",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "trillion",
            "granite-docling",
        ],
        split(&[GPT2]),
    ),
    (
        &["jina-v1-en", "jina-v2-code", "roberta-bpe"],
        split(&[GPT2]).framed(),
    ),
    (
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        split(&[SINGLE_NUMBER, GPT2]),
    ),
    (
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        split(&[LLAMA3]).whole_words().bos(AddBos::UnlessForbidden),
    ),
    (&["smaug-bpe", "dbrx", "chatglm-bpe"], split(&[LLAMA3])),
    (&["glm4", "glm5"], split(&[LLAMA3]).whole_words()),
    (&["jais-2"], split(&[JAIS2])),
    (&["minicpm5"], split(&MINICPM5).whole_words()),
    (
        &["qwen2", "deepseek-r1-qwen", "megrez", "f2llmv2"],
        split(&[QWEN2]).nfc(),
    ),
    (
        &["stablelm2", "kormo", "hunyuan", "solar-open", "grok-2"],
        split(&[QWEN2]),
    ),
    (&["qwen35"], split(&[QWEN35]).nfc()),
    (&["laguna"], split(&[LINES, QWEN2])),
    (&["ufakzeka"], split(&[UFAKZEKA])),
    (&["seed-coder"], split(&[SEED_CODER])),
    (
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        split(&[BAILINGMOE]),
    ),
    (&["exaone-moe"], split(&[EXAONE_MOE])),
    (
        &["tekken"],
        split(&[TEKKEN]).whole_words().bos(AddBos::UnlessForbidden),
    ),
    (
        &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        split(&[GPT4O]),
    ),
    (&["granite-embed-multi-97m"], split(&[GPT4O]).whole_words()),
    (
        &["tiny_aya", "cohere2moe"],
        split(&[NUMBERS_FROM_RIGHT, GPT4O]),
    ),
    (&["youtu"], split(&YOUTU).whole_words()),
    (&["kimi-k2"], split(&[KIMI_K2]).merged_by_id()),
    (
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        split(&DEEPSEEK3),
    ),
    (&["spark2_5"], split(&SPARK2_5)),
    (&["afmoe"], split(&AFMOE)),
    (&["deepseek-llm"], split(&DEEPSEEK_LLM)),
    (&["deepseek-coder"], split(&DEEPSEEK_CODER)),
    (&["falcon"], split(&FALCON)),
    (&["bloom", "poro-chat", "gpt3-finnish"], split(&[BLOOM])),
    (&["viking"], split(&[BLOOM, SINGLE_NUMBER])),
    (&["superbpe"], split(&SUPERBPE)),
    (
        &["chameleon"],
        split(&CHAMELEON).bos(AddBos::UnlessForbidden),
    ),
    (&["default"], split(&DEFAULT)),
    (
        &["gemma4", "granite-embed-multi-311m"],
        split(&[]).spelled(Alphabet::Marked).bos(AddBos::Always),
    ),
    (&["sarvam-moe"], split(&[]).spelled(Alphabet::Marked)),
    (&["whitespace"], split(&[]).spelled(Alphabet::Words)),
];

impl PreTokenizer {
    /// The rules of a `tokenizer.ggml.pre` name, `None` if it is unknown.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        TABLE
            .iter()
            .find(|(names, _)| names.contains(&name))
            .map(|(_, rules)| *rules)
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
                let same = |(_, known): &&(&[&'static str], Self)| {
                    known.alphabet == Alphabet::Bytes
                        && known.patterns == patterns
                        && known.nfc == nfc
                        && known.ignore_merges == ignore_merges
                };
                TABLE.iter().find(same).map(|(names, _)| names[0])
            })
            .ok_or_else(|| {
                format!("its splitting rules are not implemented ({rules}); take a GGUF file of the model")
            })
    }

    /// What is done to text before it is split; `lowercase` concerns vocabularies of words.
    pub(super) fn normalizer(
        &self,
        lowercase: bool,
    ) -> tokenizers::Result<Option<NormalizerWrapper>> {
        Ok(match self.alphabet {
            Alphabet::Marked => Some(Replace::new(" ", super::SPACE_MARK.to_string())?.into()),
            Alphabet::Words => lowercase.then(|| Lowercase.into()),
            Alphabet::Bytes => self.nfc.then(|| NFC.into()),
        })
    }

    /// The splits followed by the mapping of bytes to printable characters; nothing where text stays whole.
    pub(super) fn build(&self) -> tokenizers::Result<Option<PreTokenizerWrapper>> {
        match self.alphabet {
            Alphabet::Marked => return Ok(None),
            Alphabet::Words => return Ok(Some(WhitespaceSplit.into())),
            Alphabet::Bytes => {}
        }
        let mut steps = Vec::with_capacity(self.patterns.len() + 1);
        for pattern in self.patterns {
            let pattern = SplitPattern::Regex(pattern.to_string());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
            steps.push(split.into());
        }
        steps.push(ByteLevel::new(false, true, false).into());
        Ok(Some(Sequence::new(steps).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::tokenizer::{OffsetReferential, OffsetType, PreTokenizedString};
    use tokenizers::PreTokenizer as _;

    fn split(name: &str, text: &str) -> Vec<String> {
        let rules = PreTokenizer::from_name(name)
            .unwrap()
            .build()
            .unwrap()
            .unwrap();
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
    fn rules_of_scripts_and_numbers() {
        assert_eq!(
            split("tiny_aya", "1234567 1234x"),
            ["1", "234", "567", "_", "123", "4", "x"]
        );
        assert_eq!(
            split("afmoe", "1234567 12x"),
            ["1", "234", "567", "_", "12", "x"]
        );
        assert_eq!(split("superbpe", "a 1234567"), ["a_", "1", "234", "567"]);
        assert_eq!(
            split("jais-2", "a       b"),
            ["a", "_".repeat(4).as_str(), "__", "_b"]
        );
        assert_eq!(split("laguna", "a \n\n b"), ["a", "_", "//", "_b"]);
        assert_eq!(
            split("ufakzeka", "Ali'nin it's"),
            ["Ali", "'nin", "_it", "'s"]
        );
        assert_eq!(
            split("exaone-moe", "one two  3"),
            ["one_two", "_", "_", "3"]
        );
        assert_eq!(split("bailingmoe", "a'S\n\nb"), ["a", "'S", "//", "b"]);
        assert_eq!(split("seed-coder", "};\n"), ["};", "/"]);
        assert_eq!(split("minicpm5", "12345 a"), ["123", "45", "_a"]);
        assert_eq!(
            split("kimi-k2", "aB漢字c 1234"),
            ["a", "B", &mapped("漢字"), "c", "_", "123", "4"]
        );
        assert_eq!(split("youtu", "漢字カ12"), [&mapped("漢字カ"), "1", "2"]);
        assert_eq!(
            split("deepseek-llm", "Ab漢1234 "),
            ["Ab", &mapped("漢"), "1234", "_"]
        );
        assert_eq!(
            split("chameleon", "IMGIMGABCZ 12"),
            ["IMGIMGABCZ", "_", "1", "2"]
        );
    }

    /// The printable characters that stand for a text's bytes.
    fn mapped(text: &str) -> String {
        let mut pieces = PreTokenizedString::from(text);
        ByteLevel::new(false, true, false)
            .pre_tokenize(&mut pieces)
            .unwrap();
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        pieces.into_iter().map(|(piece, _, _)| piece).collect()
    }

    #[test]
    fn no_rule_loses_text() {
        let text = "Hi I'LL  pay 12345$!\n\n ok\r\n\t漢字かな 한국어 e\u{301}\u{200d} 🦀🦀 x_y <sentinel:12> ";
        for (names, rules) in TABLE {
            let mut pieces = PreTokenizedString::from(text);
            if rules.alphabet != Alphabet::Bytes {
                continue;
            }
            rules
                .build()
                .unwrap()
                .unwrap()
                .pre_tokenize(&mut pieces)
                .unwrap();
            let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let whole: String = pieces.into_iter().map(|(piece, _, _)| piece).collect();
            assert_eq!(whole, mapped(text), "{names:?}");
        }
    }

    #[test]
    fn no_name_stands_twice() {
        let mut names: Vec<&str> = TABLE
            .iter()
            .flat_map(|(names, _)| names.iter().copied())
            .collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]), "{names:?}");
    }

    #[test]
    fn what_a_silent_file_means_hangs_on_the_name() {
        let rules = |name: &str| PreTokenizer::from_name(name).unwrap();
        for name in [
            "llama-bpe",
            "glm4",
            "glm5",
            "tekken",
            "minicpm5",
            "youtu",
            "granite-embed-multi-97m",
        ] {
            assert!(rules(name).ignore_merges, "{name}");
        }
        for name in ["chatglm-bpe", "smaug-bpe", "qwen2", "gpt-4o", "kimi-k2"] {
            assert!(!rules(name).ignore_merges, "{name}");
        }
        for name in ["llama-bpe", "jina-v5-nano", "tekken", "chameleon"] {
            assert_eq!(rules(name).bos, AddBos::UnlessForbidden, "{name}");
        }
        for name in ["glm4", "qwen2", "gpt-2", "deepseek-v3"] {
            assert_eq!(rules(name).bos, AddBos::IfAsked, "{name}");
        }
    }

    #[test]
    fn unknown_names_are_not_guessed() {
        assert_eq!(PreTokenizer::from_name("made-up"), None);
    }
}
