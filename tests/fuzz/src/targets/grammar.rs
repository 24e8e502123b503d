//! Grammars and schemas, compiled and followed. The first line of an input names the kind.

use super::damaged_json;
use super::files::tiny_llama;
use crate::target::{Target, Verdict};
use crate::{corpus, mutate, Random};
use llm_worker_rocm::grammar::Grammars;
use llm_worker_rocm::tokenizer::Tokenizer;

/// Words of the languages and of schemas.
const WORDS: [&str; 34] = [
    "root",
    "start",
    "::=",
    ":",
    "|",
    "(",
    ")",
    "[",
    "]",
    "{0,99999}",
    "{,}",
    "*",
    "+",
    "?",
    "\"a\"",
    "/x*/",
    "%ignore",
    "\\u",
    "\n",
    "^",
    "-",
    ".",
    "(?i)",
    "\"$ref\":\"#\"",
    "\"type\"",
    "\"allOf\":[{}]",
    "\"pattern\":\"(\"",
    "\"minItems\":99999999",
    "\"enum\":[]",
    "\"required\":[\"x\"]",
    "<|im_end|>",
    "%json {}",
    "&",
    "~",
];
/// Tokens of an answer that is tried.
const ANSWER: usize = 8;

struct GrammarTarget {
    corpus: Vec<(String, String)>,
    grammars: Grammars,
}

pub(crate) fn target() -> Box<dyn Target> {
    let gguf = worker::gguf::Gguf::read(std::io::Cursor::new(tiny_llama().bytes()));
    let gguf = gguf.expect("the small model is valid");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("and so is its tokenizer");
    let split = corpus::texts("grammar").into_iter().filter_map(|text| {
        let (kind, text) = text.split_once('\n')?;
        Some((kind.to_string(), text.to_string()))
    });
    Box::new(GrammarTarget {
        corpus: split.collect(),
        grammars: Grammars::new(&tokenizer).expect("its vocabulary suits grammars"),
    })
}

impl Target for GrammarTarget {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let (kind, text) = random.pick(&self.corpus);
        let damaged = match kind.as_str() {
            "schema" => damaged_json(std::slice::from_ref(text), &WORDS, random),
            _ => mutate::text(text, &WORDS, &random.pick(&self.corpus).1.clone(), random)
                .into_bytes(),
        };
        [kind.as_bytes(), b"\n", &damaged].concat()
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        let text = String::from_utf8_lossy(input);
        let (kind, text) = text.split_once('\n').unwrap_or_default();
        let compiled = match kind {
            "gbnf" => self.grammars.gbnf(text),
            "lark" => self.grammars.lark(text),
            "regex" => self.grammars.regex(text),
            _ => match serde_json::from_str(text) {
                Ok(schema) => self.grammars.json_schema(&schema),
                Err(_) => return Verdict::Refused,
            },
        };
        let Ok(mut constraint) = compiled else {
            return Verdict::Refused;
        };
        for _ in 0..ANSWER {
            let Ok(mask) = constraint.mask() else { break };
            let allowed = mask.iter().enumerate().find(|(_, word)| **word != 0);
            let Some((place, word)) = allowed else { break };
            let token = place as u32 * u32::BITS + word.trailing_zeros();
            if constraint.accept(token).is_err() {
                break;
            }
        }
        Verdict::Accepted
    }

    fn memory(&self, bytes: usize) -> usize {
        1024 * bytes + (768 << 20)
    }
}
