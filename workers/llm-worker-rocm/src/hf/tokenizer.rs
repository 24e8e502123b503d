//! `tokenizer.json` in the terms of GGUF's metadata.

use super::config::Config;
use super::world;
use crate::folder::{read_json, required_json};
use crate::tokenizer::{byte_token, pre_tokenizer_of};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::path::Path;
use worker::gguf::{Array, Value};
use worker::{file, Error, Result};

/// Longest chat template that is read; the longest in use has 20 kB.
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;

/// Codes of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The tokenizer's metadata, with the chat template. What GGUF has no words for is left out: such a model runs with its
/// own `tokenizer.json`, but cannot be written as a GGUF file.
pub(super) fn metadata(folder: &Path, config: &Config) -> Result<Vec<(String, Value)>> {
    let bad = |reason: String| Error::BadModel {
        path: folder.join("tokenizer.json"),
        reason,
    };
    if config.vocabulary_is_a_file {
        return world(folder, config);
    }
    let tokenizer = required_json(folder, "tokenizer.json")?;
    let settings = read_json(folder, "tokenizer_config.json")?.unwrap_or(Json::Null);
    let generation = read_json(folder, "generation_config.json")?.unwrap_or(Json::Null);

    let vocabulary = Vocabulary::read(&tokenizer, config).map_err(bad)?;
    let mut metadata = vocabulary.metadata();
    metadata.extend(rules(&tokenizer, &vocabulary).map_err(bad)?);
    let mut id = |key: &str, id: Option<u32>| {
        metadata.extend(id.map(|id| (format!("tokenizer.ggml.{key}"), Value::U32(id))));
    };
    // Where a chat model has several ends, the first is that of the text and the last that of a turn.
    let ends = match &generation["eos_token_id"] {
        Json::Array(ids) => ids
            .iter()
            .filter_map(Json::as_u64)
            .map(|id| id as u32)
            .collect(),
        Json::Number(n) => n.as_u64().map(|id| vec![id as u32]).unwrap_or_default(),
        _ => config.eos.clone(),
    };
    id("bos_token_id", config.bos);
    id("eos_token_id", ends.first().copied());
    id(
        "eot_token_id",
        ends.last().copied().filter(|_| ends.len() > 1),
    );
    if let Some(add) = adds_bos(&tokenizer, &settings) {
        metadata.push(("tokenizer.ggml.add_bos_token".to_string(), Value::Bool(add)));
    }
    if let Some(template) = chat_template(folder)? {
        metadata.push((
            "tokenizer.chat_template".to_string(),
            Value::String(template),
        ));
    }
    Ok(metadata)
}

/// Those of a folder with RWKV's vocabulary file.
fn world(folder: &Path, config: &Config) -> Result<Vec<(String, Value)>> {
    let mut paths = world::FILES.iter().map(|name| folder.join(name));
    let path = paths
        .find(|path| path.exists())
        .ok_or_else(|| Error::BadModel {
            path: folder.to_path_buf(),
            reason: format!("it has no {}", world::FILES[0]),
        })?;
    let text = file::read_text(&path, world::MAX_BYTES).map_err(Error::io(&path))?;
    let metadata = world::metadata(&text, config.vocab as usize);
    let mut metadata = metadata.map_err(|reason| Error::BadModel { path, reason })?;
    let template = chat_template(folder)?;
    metadata.extend(template.map(|template| {
        let key = "tokenizer.chat_template".to_string();
        (key, Value::String(template))
    }));
    Ok(metadata)
}

/// Spellings and kinds by id. Ids of the embedding table that no token has are unused.
struct Vocabulary {
    tokens: Vec<String>,
    kinds: Vec<i32>,
}

impl Vocabulary {
    fn read(tokenizer: &Json, config: &Config) -> std::result::Result<Self, String> {
        let size = config.vocab as usize;
        let mut vocabulary = Self {
            tokens: (0..size).map(|id| format!("[UNUSED{id}]")).collect(),
            kinds: vec![UNUSED; size],
        };
        let too_large =
            |text: &str, id: u64| format!("token {text:?} has id {id}, the model has {size}");
        let model = &tokenizer["model"];
        match &model["vocab"] {
            Json::Object(vocab) => {
                for (text, id) in vocab {
                    let id = id
                        .as_u64()
                        .ok_or_else(|| format!("token {text:?} has the id {id}"))?;
                    if !vocabulary.set(id, text, NORMAL) {
                        return Err(too_large(text, id));
                    }
                }
            }
            // A vocabulary of probabilities is a list.
            Json::Array(vocab) => {
                for (id, entry) in vocab.iter().enumerate() {
                    let text = entry[0]
                        .as_str()
                        .ok_or("a token of model.vocab has no text")?;
                    if !vocabulary.set(id as u64, text, NORMAL) {
                        return Err(too_large(text, id as u64));
                    }
                }
            }
            _ => return Err("model.vocab is missing".to_string()),
        }
        for token in tokenizer["added_tokens"].as_array().into_iter().flatten() {
            let text = token["content"]
                .as_str()
                .ok_or("an added token has no content")?;
            let special = token["special"].as_bool() == Some(true);
            let id = token["id"].as_u64().ok_or("an added token has no id")?;
            // Marks of images and the like may lie beyond what a text model has.
            vocabulary.set(id, text, if special { CONTROL } else { USER_DEFINED });
        }
        Ok(vocabulary)
    }

    fn set(&mut self, id: u64, text: &str, kind: i32) -> bool {
        let Some(place) = usize::try_from(id)
            .ok()
            .filter(|id| *id < self.tokens.len())
        else {
            return false;
        };
        self.tokens[place] = text.to_string();
        self.kinds[place] = kind;
        true
    }

    fn metadata(&self) -> Vec<(String, Value)> {
        vec![
            (
                "tokenizer.ggml.tokens".to_string(),
                Value::Array(Array::String(self.tokens.clone())),
            ),
            (
                "tokenizer.ggml.token_type".to_string(),
                Value::Array(Array::I32(self.kinds.clone())),
            ),
        ]
    }
}

/// How text becomes tokens, in the words of GGUF; nothing where it has none.
fn rules(
    tokenizer: &Json,
    vocabulary: &Vocabulary,
) -> std::result::Result<Vec<(String, Value)>, String> {
    let model = &tokenizer["model"];
    let set = |key: &str, value: Value| (format!("tokenizer.ggml.{key}"), value);
    let text = |v: &str| Value::String(v.to_string());
    if model["type"].as_str().unwrap_or("BPE") != "BPE" {
        return Ok(Vec::new());
    }
    let merges = merges(tokenizer)?;
    if model["byte_fallback"].as_bool() == Some(true) {
        // The earlier a merge, the higher the score of what it makes.
        let mut scores = vec![-(merges.len() as f32); vocabulary.tokens.len()];
        let ids: HashMap<&str, usize> = vocabulary
            .tokens
            .iter()
            .enumerate()
            .map(|(id, token)| (token.as_str(), id))
            .collect();
        for (rank, (left, right)) in merges.iter().enumerate().rev() {
            if let Some(&id) = ids.get(format!("{left}{right}").as_str()) {
                scores[id] = -(rank as f32);
            }
        }
        let kinds: Vec<i32> = vocabulary
            .tokens
            .iter()
            .zip(&vocabulary.kinds)
            .map(|(token, &kind)| match kind {
                NORMAL if byte_token(token).is_some() => BYTE,
                CONTROL if model["unk_token"] == **token => UNKNOWN,
                kind => kind,
            })
            .collect();
        let prefixed = mentions(&tokenizer["normalizer"], "Prepend")
            || tokenizer["pre_tokenizer"]["prepend_scheme"]
                .as_str()
                .is_some_and(|scheme| scheme != "never");
        return Ok(vec![
            set("model", text("llama")),
            set("scores", Value::Array(Array::F32(scores))),
            set("token_type", Value::Array(Array::I32(kinds))),
            set("add_space_prefix", Value::Bool(prefixed)),
        ]);
    }
    let Ok(pre) = pre_tokenizer_of(tokenizer) else {
        return Ok(Vec::new());
    };
    let merges = merges
        .into_iter()
        .map(|(left, right)| format!("{left} {right}"));
    Ok(vec![
        set("model", text("gpt2")),
        set("pre", text(pre)),
        set("merges", Value::Array(Array::String(merges.collect()))),
    ])
}

fn mentions(part: &Json, kind: &str) -> bool {
    let steps = part["normalizers"].as_array();
    part["type"] == kind || steps.into_iter().flatten().any(|step| mentions(step, kind))
}

/// Merges are strings "a b" or, in newer files, pairs.
fn merges(tokenizer: &Json) -> std::result::Result<Vec<(String, String)>, String> {
    let not_a_pair = |merge: &Json| format!("merge {merge} is not a pair");
    let merge = |merge: &Json| match merge {
        Json::String(text) => text
            .split_once(' ')
            .map(|(left, right)| (left.to_string(), right.to_string()))
            .ok_or_else(|| not_a_pair(merge)),
        Json::Array(pair) => match &pair[..] {
            [Json::String(left), Json::String(right)] => Ok((left.clone(), right.clone())),
            _ => Err(not_a_pair(merge)),
        },
        _ => Err(not_a_pair(merge)),
    };
    tokenizer["model"]["merges"]
        .as_array()
        .ok_or("model.merges is missing")?
        .iter()
        .map(merge)
        .collect()
}

/// Whether texts begin with the BOS token: by the settings, else by the post-processor's template for one text.
fn adds_bos(tokenizer: &Json, settings: &Json) -> Option<bool> {
    if let Some(add) = settings["add_bos_token"].as_bool() {
        return Some(add);
    }
    let bos = settings["bos_token"]
        .as_str()
        .or(settings["bos_token"]["content"].as_str())?;
    let post = &tokenizer["post_processor"];
    let steps = post["processors"]
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![post.clone()]);
    Some(
        steps
            .iter()
            .any(|step| step["single"][0]["SpecialToken"]["id"].as_str() == Some(bos)),
    )
}

/// From a file of its own, else from the settings; of several, the one called "default".
///
/// # Errors
/// [`Error::Io`] if a file cannot be read, [`Error::BadModel`] if one is not JSON.
fn chat_template(folder: &Path) -> Result<Option<String>> {
    let settings = read_json(folder, "tokenizer_config.json")?.unwrap_or(Json::Null);
    let path = folder.join("chat_template.jinja");
    match file::read_text(&path, MAX_TEMPLATE_BYTES) {
        Ok(template) => return Ok(Some(template)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::Io { path, source }),
    }
    // Models that also see had a file for it of their own for a while.
    let older = read_json(folder, "chat_template.json")?.unwrap_or(Json::Null);
    let template = match settings
        .get("chat_template")
        .unwrap_or(&older["chat_template"])
    {
        Json::String(template) => Some(template.clone()),
        Json::Array(all) => all
            .iter()
            .find(|t| t["name"] == "default")
            .and_then(|t| t["template"].as_str())
            .map(str::to_string),
        _ => None,
    };
    Ok(template)
}
