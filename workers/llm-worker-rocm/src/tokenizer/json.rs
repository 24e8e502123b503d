//! The tokenizer of a Hugging Face folder: `tokenizer.json` with the settings beside it.

use super::detokenize::{byte_of_char, Pieces};
use super::{
    byte_token, ends, Encoder, Parts, SpecialToken, Tokenizer, TokenizerError, SPACE_MARK,
};
use crate::folder::read_json;
use crate::hf::of_thinker;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::path::Path;
use worker::tokenizer_json;

/// More tokens than any vocabulary has; ids come from the file.
const MAX_VOCABULARY: u32 = 4 << 20;

impl Tokenizer {
    /// Reads `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and `config.json` of a folder.
    ///
    /// # Errors
    /// [`TokenizerError`] if there is no `tokenizer.json`, or a file is damaged.
    pub fn from_folder(folder: &Path) -> Result<Self, TokenizerError> {
        let invalid = |e: worker::Error| TokenizerError::Invalid(e.to_string());
        let read = |name: &str| read_json(folder, name).map_err(invalid);
        let tokenizer = read("tokenizer.json")?.ok_or_else(|| {
            TokenizerError::Invalid(format!("{} has no tokenizer.json", folder.display()))
        })?;
        let settings = read("tokenizer_config.json")?.unwrap_or(Json::Null);
        let generation = read("generation_config.json")?.unwrap_or(Json::Null);
        let config = read("config.json")?.unwrap_or(Json::Null);
        Self::from_json(&tokenizer, &settings, &[&generation, of_thinker(&config)])
    }

    /// The same from the files' contents; `configs` may name the tokens that begin and end texts, the first that does
    /// counts.
    fn from_json(
        tokenizer: &Json,
        settings: &Json,
        configs: &[&Json],
    ) -> Result<Self, TokenizerError> {
        let invalid = |e: String| TokenizerError::Invalid(format!("tokenizer.json: {e}"));
        let growth = tokenizer_json::check(tokenizer).map_err(invalid)?;
        let inner = tokenizer_json::guarded(|| {
            let mut inner: tokenizers::Tokenizer =
                serde_json::from_value(tokenizer.clone()).map_err(|e| e.to_string())?;
            // Some files carry the settings of the program that wrote them.
            let settings = inner.with_truncation(None).map_err(|e| e.to_string())?;
            settings.with_padding(None);
            for text in tokenizer_json::TRIALS {
                // An error is that text's own; a panic is not.
                let _ = inner.encode_fast(text, true);
            }
            Ok(inner)
        })
        .map_err(invalid)?;

        // The library numbers added tokens itself where the vocabulary does not have them.
        for token in tokenizer["added_tokens"].as_array().into_iter().flatten() {
            let text = token["content"].as_str().unwrap_or_default();
            let given = inner.token_to_id(text).map(u64::from);
            if given != token["id"].as_u64() {
                return Err(TokenizerError::Invalid(format!(
                    "tokenizer.json: token {text:?} has id {} out of order",
                    token["id"]
                )));
            }
        }
        let vocabulary = inner.get_vocab(true);
        let vocab_size = vocabulary
            .values()
            .max()
            .map_or(0, |id| id.saturating_add(1));
        if vocab_size == 0 || vocab_size > MAX_VOCABULARY {
            return Err(TokenizerError::Invalid(format!(
                "a vocabulary of {vocab_size} tokens"
            )));
        }
        let added: HashMap<u32, (String, bool)> = inner
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, token)| (id, (token.content, token.special)))
            .collect();
        let control: HashMap<u32, String> = added
            .iter()
            .filter(|(_, (_, special))| *special)
            .map(|(id, (text, _))| (*id, text.clone()))
            .collect();
        let mut texts = vec![String::new(); vocab_size as usize];
        for (text, id) in vocabulary {
            texts[id as usize] = text;
        }
        let spelling = Spelling::of(tokenizer);
        let pieces = Pieces::new((0..vocab_size).map(|id| match added.get(&id) {
            Some((_, true)) => Vec::new(),
            Some((text, false)) => text.as_bytes().to_vec(),
            None => spelling.bytes(&texts[id as usize]),
        }));

        let spelled = |key: &str| -> Option<SpecialToken> {
            let text = settings[key]
                .as_str()
                .or(settings[key]["content"].as_str())?;
            let id = inner.token_to_id(text)?;
            Some(SpecialToken {
                id,
                text: text.to_string(),
            })
        };
        let numbered = |key: &str| -> Vec<u32> {
            let ids = |config: &&Json| -> Vec<u32> {
                let id = |json: &Json| json.as_u64().and_then(|id| u32::try_from(id).ok());
                match &config[key] {
                    Json::Array(ids) => ids.iter().filter_map(id).collect(),
                    one => id(one).into_iter().collect(),
                }
            };
            configs
                .iter()
                .map(ids)
                .find(|ids| !ids.is_empty())
                .unwrap_or_default()
        };
        let token = |name: &str| {
            spelled(&format!("{name}_token")).or_else(|| {
                let id = numbered(&format!("{name}_token_id")).first().copied()?;
                let text = inner.id_to_token(id)?;
                Some(SpecialToken { id, text })
            })
        };
        let (bos, eos) = (token("bos"), token("eos"));
        let framed = inner.encode_fast("a", true)?.get_ids().to_vec();
        let adds_bos = bos
            .as_ref()
            .is_some_and(|bos| framed.first() == Some(&bos.id));
        let flag = |key: &str| settings[key].as_bool();
        let find = |text: &str| {
            let id = inner.token_to_id(text)?;
            added.get(&id).map(|(_, special)| (id, *special))
        };
        let ends = ends::end_ids(
            numbered("eos_token_id"),
            eos.as_ref().map(|token| token.id),
            find,
        );
        Ok(Self::assemble(Parts {
            add_bos: flag("add_bos_token").unwrap_or(adds_bos),
            add_eos: flag("add_eos_token").unwrap_or(false),
            framed_by_library: framed != inner.encode_fast("a", false)?.get_ids(),
            ends,
            fill_in: Default::default(),
            vocab_size: vocab_size as usize,
            encoder: Encoder::Library {
                inner: Box::new(inner),
                growth,
            },
            pieces,
            control,
            bos,
            eos,
        }))
    }
}

/// How tokens spell their bytes.
enum Spelling {
    /// Each character stands for a byte.
    ByteLevel,
    /// A mark stands for a space, `<0x0A>` for a byte.
    Marked,
    /// `##` goes on a word, anything else begins one.
    WordPiece,
}

impl Spelling {
    /// By the decoder; by the model and the pre-tokenizer where the file has none.
    fn of(tokenizer: &Json) -> Self {
        let mentions = |part: &str, kind: &str| contains_type(&tokenizer[part], kind);
        if mentions("decoder", "ByteLevel") || mentions("pre_tokenizer", "ByteLevel") {
            Self::ByteLevel
        } else if mentions("decoder", "WordPiece") || mentions("model", "WordPiece") {
            Self::WordPiece
        } else {
            Self::Marked
        }
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        match self {
            // A character outside of the byte alphabet can only stand for itself.
            Self::ByteLevel => text
                .chars()
                .map(byte_of_char)
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| text.as_bytes().to_vec()),
            Self::Marked => match byte_token(text) {
                Some(byte) => vec![byte],
                None => text.replace(SPACE_MARK, " ").into_bytes(),
            },
            Self::WordPiece => match text.strip_prefix("##") {
                Some(rest) => rest.as_bytes().to_vec(),
                None => format!(" {text}").into_bytes(),
            },
        }
    }
}

/// Whether a part of the file, or one of the steps that it consists of, is of a type.
fn contains_type(part: &Json, kind: &str) -> bool {
    let steps = ["decoders", "pretokenizers", "normalizers"];
    part["type"] == kind
        || steps
            .iter()
            .filter_map(|steps| part[*steps].as_array())
            .flatten()
            .any(|step| contains_type(step, kind))
}
