//! The architectures of GGUF files.

use super::families::adapt;
use super::settings::MAX_CONTEXT;
use super::{Loaded, Pieces};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{bail, Device, Result};
use candle_transformers::models::quantized_lfm2::ModelWeights;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use worker::gguf::Gguf;

/// Architectures by llama.cpp's names.
const ARCHITECTURES: [&str; 1] = ["lfm2"];

/// Whether this module has the architecture of a file.
pub(super) fn recognises(header: &Gguf) -> bool {
    header
        .get_str("general.architecture")
        .is_ok_and(|name| name.is_some_and(|name| ARCHITECTURES.contains(&name)))
}

/// Checks what the model code divides by and allocates from.
pub(super) fn check(header: &Gguf) -> std::result::Result<(), String> {
    let number = |key: &str, most: u32| -> std::result::Result<u32, String> {
        let key = format!("lfm2.{key}");
        let value = header.require_u32(&key).map_err(|e| e.to_string())?;
        match (1..=most).contains(&value) {
            true => Ok(value),
            false => Err(format!(
                "metadata {key} is {value}: 1 to {most} is possible"
            )),
        }
    };
    let width = number("embedding_length", 1 << 17)?;
    let heads = number("attention.head_count", 4096)?;
    let blocks = number("block_count", 1024)?;
    number("shortconv.l_cache", 64)?;
    number("context_length", 1 << 26)?;
    if width % heads != 0 || (width / heads) % 2 != 0 {
        return Err(format!(
            "{heads} heads cannot share a width of {width} in even parts"
        ));
    }
    let kv_heads = kv_heads(header)?;
    if kv_heads.len() != blocks as usize {
        return Err(format!(
            "metadata lfm2.attention.head_count_kv has {} numbers for {blocks} blocks",
            kv_heads.len()
        ));
    }
    match kv_heads.iter().find(|n| **n > 0 && heads % **n != 0) {
        Some(n) => Err(format!("{n} key-value heads for {heads} heads")),
        None => Ok(()),
    }
}

/// Key-value heads of each block; 0 where it is a convolution.
fn kv_heads(header: &Gguf) -> std::result::Result<Vec<u32>, String> {
    let key = "lfm2.attention.head_count_kv";
    let list = header.get_i32s(key).map_err(|e| e.to_string())?;
    let list = list.ok_or_else(|| format!("metadata {key} is missing"))?;
    list.iter()
        .map(|n| u32::try_from(*n).map_err(|_| format!("metadata {key} has {n}")))
        .collect()
}

/// Loads a checked file.
pub(super) fn load(
    path: &Path,
    header: &Gguf,
    device: &Device,
    asked: Option<usize>,
) -> Result<Loaded> {
    let mut file = BufReader::new(File::open(path)?);
    let mut content = Content::read(&mut file)?;
    if content.tensor_infos.len() != header.tensors().count() {
        bail!("this family is read from one file; join the parts with gguf-split --merge")
    }
    let number = |key: &str| header.get_u32(&format!("lfm2.{key}")).ok().flatten();
    let own = number("context_length").unwrap_or(1) as usize;
    let context = own.min(MAX_CONTEXT).min(asked.unwrap_or(usize::MAX));
    let key = "lfm2.context_length".to_string();
    content.metadata.insert(key, Value::U32(context as u32));
    let head_dim = number("embedding_length").unwrap_or(1)
        / number("attention.head_count").unwrap_or(1).max(1);
    let kv_heads: u32 = kv_heads(header).unwrap_or_default().iter().sum();
    let Some(&[_, vocab_size]) = header.tensor("token_embd.weight").map(|t| &t.dims[..]) else {
        bail!("tensor token_embd.weight is missing")
    };
    Ok(Loaded {
        vocab_size: vocab_size as usize,
        context,
        token_elements: 2 * (kv_heads * head_dim) as usize,
        pieces: Pieces::First,
        model: adapt(
            ModelWeights::from_gguf(content, &mut file, device)?,
            |model, tokens, position| model.forward(tokens, position),
            // A prompt at position 0 begins anew.
            |_| Ok(()),
        ),
    })
}
