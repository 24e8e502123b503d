//! `tokenizer.json` in the terms of GGUF's metadata.

use super::config::Config;
use super::{read_json as json, required_json};
use crate::tokenizer::pre_tokenizer_of;
use serde_json::Value as Json;
use std::path::Path;
use worker::gguf::{Array, Value};
use worker::{Error, Result};

/// Codes of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// The tokenizer's metadata, with the chat template.
pub(super) fn metadata(folder: &Path, config: &Config) -> Result<Vec<(String, Value)>> {
    let bad = |reason: String| Error::BadModel {
        path: folder.join("tokenizer.json"),
        reason,
    };
    let tokenizer = required_json(folder, "tokenizer.json")?;
    let settings = json(folder, "tokenizer_config.json")?.unwrap_or(Json::Null);
    let generation = json(folder, "generation_config.json")?.unwrap_or(Json::Null);

    let mut metadata = vocabulary(&tokenizer, config).map_err(bad)?;
    let pre = pre_tokenizer_of(&tokenizer).map_err(bad)?;
    let text = |v: &str| Value::String(v.to_string());
    metadata.push(("tokenizer.ggml.model".to_string(), text("gpt2")));
    metadata.push(("tokenizer.ggml.pre".to_string(), text(pre)));
    metadata.push((
        "tokenizer.ggml.merges".to_string(),
        merges(&tokenizer).map_err(bad)?,
    ));
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
    if let Some(template) = chat_template(folder, &settings)? {
        metadata.push((
            "tokenizer.chat_template".to_string(),
            Value::String(template),
        ));
    }
    Ok(metadata)
}

/// Spellings and kinds by id. Ids of the embedding table that no token has are unused.
fn vocabulary(
    tokenizer: &Json,
    config: &Config,
) -> std::result::Result<Vec<(String, Value)>, String> {
    let model = &tokenizer["model"];
    if model["type"].as_str().unwrap_or("BPE") != "BPE"
        || model["byte_fallback"].as_bool() == Some(true)
    {
        return Err(
            "only byte-level BPE tokenizers are converted; take a GGUF file of the model"
                .to_string(),
        );
    }
    let vocab = model["vocab"].as_object().ok_or("model.vocab is missing")?;
    let size = config.vocab as usize;
    let mut tokens: Vec<String> = (0..size).map(|id| format!("[UNUSED{id}]")).collect();
    let mut kinds = vec![UNUSED; size];
    let mut set = |id: &Json, text: &str, kind: i32| {
        let place = id.as_u64().map(|id| id as usize).filter(|id| *id < size);
        let place =
            place.ok_or_else(|| format!("token {text:?} has id {id}, the model has {size}"))?;
        tokens[place] = text.to_string();
        kinds[place] = kind;
        Ok::<(), String>(())
    };
    for (text, id) in vocab {
        set(id, text, NORMAL)?;
    }
    for token in tokenizer["added_tokens"].as_array().into_iter().flatten() {
        let text = token["content"]
            .as_str()
            .ok_or("an added token has no content")?;
        let special = token["special"].as_bool() == Some(true);
        set(
            &token["id"],
            text,
            if special { CONTROL } else { USER_DEFINED },
        )?;
    }
    Ok(vec![
        (
            "tokenizer.ggml.tokens".to_string(),
            Value::Array(Array::String(tokens)),
        ),
        (
            "tokenizer.ggml.token_type".to_string(),
            Value::Array(Array::I32(kinds)),
        ),
    ])
}

/// Merges are strings "a b" or, in newer files, pairs.
fn merges(tokenizer: &Json) -> std::result::Result<Value, String> {
    let merges = tokenizer["model"]["merges"]
        .as_array()
        .ok_or("model.merges is missing")?;
    let merge = |merge: &Json| match merge {
        Json::String(text) => Ok(text.clone()),
        Json::Array(pair) => match &pair[..] {
            [Json::String(left), Json::String(right)] => Ok(format!("{left} {right}")),
            _ => Err(format!("merge {merge} is no pair")),
        },
        _ => Err(format!("merge {merge} is no pair")),
    };
    let merges = merges
        .iter()
        .map(merge)
        .collect::<std::result::Result<_, _>>()?;
    Ok(Value::Array(Array::String(merges)))
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
fn chat_template(folder: &Path, settings: &Json) -> Result<Option<String>> {
    let path = folder.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
        Ok(template) => return Ok(Some(template)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::Io { path, source }),
    }
    let template = match &settings["chat_template"] {
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
