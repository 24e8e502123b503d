//! `tokenizer.json` as both workers read it, and texts through what comes out.

use super::{damaged_json, JSON_WORDS};
use crate::target::{Target, Verdict};
use crate::{corpus, Random};
use llm_worker_rocm::tokenizer::Tokenizer;
use sd_worker_rocm::prompt::tokenizer::{ClipTokenizer, Tokenize};

/// Texts with what tokenizers treat in ways of their own.
const TEXTS: [&str; 5] = [
    "the cat's 1234 <|im_end|> (x)",
    "",
    "  ä\u{301}\u{feff}\0\u{ffff}🙂\n\n\t",
    "...........",
    "</s><unk>[CLS]",
];

struct Tokenizers {
    corpus: Vec<String>,
    folder: tempfile::TempDir,
}

pub(crate) fn target() -> Box<dyn Target> {
    Box::new(Tokenizers {
        corpus: corpus::texts("tokenizer"),
        folder: tempfile::tempdir().expect("a folder for files can be made"),
    })
}

impl Target for Tokenizers {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        damaged_json(&self.corpus, &JSON_WORDS, random)
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        let path = self.folder.path().join("tokenizer.json");
        if let Err(error) = std::fs::write(&path, input) {
            return Verdict::Fault(error.to_string());
        }
        let language = Tokenizer::from_folder(self.folder.path());
        if let Ok(tokenizer) = &language {
            for text in TEXTS {
                let _ = tokenizer.encode(text, true);
            }
        }
        let image = ClipTokenizer::from_json(input, None);
        if let Ok(tokenizer) = &image {
            for text in TEXTS {
                let _ = tokenizer.encode(text);
            }
        }
        match language.is_ok() || image.is_ok() {
            true => Verdict::Accepted,
            false => Verdict::Refused,
        }
    }

    fn memory(&self, bytes: usize) -> usize {
        256 * bytes + (256 << 20)
    }
}
