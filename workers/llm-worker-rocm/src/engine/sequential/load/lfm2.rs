//! LFM2, short convolutions and attention, of a folder and of a GGUF file.

use crate::engine::sequential::model::{with_state, GgufLoader, LoadResult, Loaded, Pieces};
use crate::engine::sequential::settings::{Settings, MAX_CONTEXT};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{bail, Device, Result};
use candle_nn::VarBuilder;
use candle_transformers::models::lfm2::{Cache, Config, LayerType, Model};
use candle_transformers::models::quantized_lfm2::ModelWeights;
use serde_json::{json, Value as Json};
use std::io::BufReader;
use std::path::Path;
use worker::file;
use worker::gguf::Gguf;

/// Of a folder.
pub(crate) fn lfm2(settings: &Settings, weights: VarBuilder) -> LoadResult {
    settings.require("conv_bias", &[Json::Null, false.into()])?;
    let context = settings.context(settings.number_or("max_position_embeddings", 128_000)?);
    let heads = settings.number("num_attention_heads")?;
    let layer_types: Vec<LayerType> = settings
        .get("layer_types")
        .as_array()
        .ok_or("config.json: layer_types is missing".to_string())?
        .iter()
        .map(|kind| serde_json::from_value(kind.clone()))
        .collect::<std::result::Result<_, _>>()
        .map_err(|e| format!("config.json: layer_types: {e}"))?;
    let config = Config {
        vocab_size: settings.number("vocab_size")?,
        hidden_size: settings.number("hidden_size")?,
        intermediate_size: intermediate_size(settings)?,
        num_hidden_layers: settings.number("num_hidden_layers")?,
        num_attention_heads: heads,
        num_key_value_heads: settings.number_or("num_key_value_heads", heads)?,
        norm_eps: settings.get("norm_eps").as_f64().unwrap_or(1e-5),
        rope_theta: settings.get("rope_theta").as_f64().unwrap_or(1e6) as f32,
        max_position_embeddings: context,
        conv_l_cache: settings.number_or("conv_L_cache", 3)?,
        conv_bias: false,
        tie_embedding: ["tie_embedding", "tie_word_embeddings"]
            .iter()
            .find_map(|key| settings.get(key).as_bool())
            .unwrap_or(true),
        bos_token_id: None,
        eos_token_id: None,
        use_flash_attn: false,
        layer_types,
    };
    if config.layer_types.len() != config.num_hidden_layers {
        return Err(format!(
            "config.json: {} layer_types for {} layers",
            config.layer_types.len(),
            config.num_hidden_layers
        )
        .into());
    }
    let cache = Cache::new(true, weights.dtype(), &config, weights.device())?;
    let forward = with_state(
        Model::new(&config, weights)?,
        move || Ok(cache.clone()),
        |model, tokens, position, cache| model.forward(tokens, position, cache),
    )?;
    Loaded::of_attention(settings, context, Pieces::First, forward)
}

/// What the feed-forward part's width in the configuration comes to.
fn intermediate_size(settings: &Settings) -> std::result::Result<usize, String> {
    let mut size = match settings.get("block_ff_dim") {
        Json::Null => settings.number("intermediate_size")?,
        _ => settings.number("block_ff_dim")?,
    };
    if settings.get("block_auto_adjust_ff_dim") != &json!(false) {
        size = 2 * size / 3;
        if let Some(factor) = settings.get("block_ffn_dim_multiplier").as_f64() {
            size = (factor * size as f64) as usize;
        }
        size = size.next_multiple_of(settings.number_or("block_multiple_of", 256)?);
    }
    Ok(size)
}

/// Of a GGUF file.
pub(crate) const LFM2_GGUF: GgufLoader = GgufLoader {
    check: check_gguf,
    load: load_gguf,
};

/// Checks what the model code divides by and allocates from.
fn check_gguf(header: &Gguf) -> std::result::Result<(), String> {
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
fn load_gguf(path: &Path, header: &Gguf, device: &Device, asked: Option<usize>) -> Result<Loaded> {
    let mut file = BufReader::new(file::open(path)?);
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
    let mut model = ModelWeights::from_gguf(content, &mut file, device)?;
    Ok(Loaded {
        vocab_size: vocab_size as usize,
        context,
        token_elements: 2 * (kv_heads * head_dim) as usize,
        pieces: Pieces::First,
        // A prompt at position 0 begins anew.
        forward: Box::new(move |tokens, position| model.forward(tokens, position)),
    })
}
