//! Architectures whose state does not grow with the sequence, or only within a window.

use crate::engine::sequential::model::{with_state, ForwardFn, LoadResult, Loaded, Pieces};
use crate::engine::sequential::settings::Settings;
use candle_nn::VarBuilder;
use candle_transformers::models as m;
use serde_json::{json, Value as Json};

/// RecurrentGemma: recurrent blocks, and attention within a window.
pub(crate) fn recurrent_gemma(settings: &Settings, weights: VarBuilder) -> LoadResult {
    settings.require("tie_word_embeddings", &[Json::Null, true.into()])?;
    // The model code's attention has no window: it is right as long as the window is not full.
    let context = settings.context(settings.number("attention_window_size")?);
    let kinds = ["block_types", "_block_types"]
        .map(|key| settings.get(key))
        .into_iter()
        .find(|kinds| kinds.as_array().is_some_and(|kinds| !kinds.is_empty()))
        .ok_or("config.json: block_types is missing".to_string())?
        .clone();
    let mut changes = vec![("max_seq_len", context.into())];
    match settings.get("_block_types") {
        Json::Null => changes.push(("block_types", kinds)),
        _ => changes.push(("_block_types", kinds)),
    }
    let heads = settings.number("num_attention_heads")?;
    if settings.get("num_key_value_heads").is_null() {
        changes.push(("num_key_value_heads", heads.into()));
    }
    let config = settings.parse_with(&changes)?;
    // Its state lies in the model: that of a sequence is a copy, which shares the weights.
    let fresh = m::recurrent_gemma::Model::new(&config, weights.pp("model"))?;
    let forward = with_state(
        (),
        move || Ok(fresh.clone()),
        |(), tokens, position, model| model.forward(tokens, position),
    )?;
    Loaded::of_attention(settings, context, Pieces::First, forward)
}

/// What both Mambas' code fixes.
fn require_usual(settings: &Settings) -> std::result::Result<(), String> {
    settings.require("conv_kernel", &[Json::Null, 4.into()])?;
    settings.require("use_bias", &[Json::Null, false.into()])?;
    settings.require("use_conv_bias", &[Json::Null, true.into()])?;
    settings.require("layer_norm_epsilon", &[Json::Null, json!(1e-5)])?;
    settings.require("hidden_act", &[Json::Null, "silu".into()])?;
    settings.require("tie_word_embeddings", &[Json::Null, true.into()])
}

/// A model of states alone.
fn of_states(settings: &Settings, forward: ForwardFn) -> LoadResult {
    Ok(Loaded {
        forward,
        vocab_size: settings.number("vocab_size")?,
        context: settings.context(usize::MAX),
        token_elements: 0,
        pieces: Pieces::One,
    })
}

/// Mamba.
pub(crate) fn mamba(settings: &Settings, weights: VarBuilder) -> LoadResult {
    require_usual(settings)?;
    let width = settings.number("hidden_size")?;
    settings.require("state_size", &[Json::Null, 16.into()])?;
    settings.require("expand", &[Json::Null, 2.into()])?;
    let rank = width.div_ceil(16);
    settings.require("time_step_rank", &[Json::Null, "auto".into(), rank.into()])?;
    let config = m::mamba::Config {
        d_model: width,
        n_layer: settings.number("num_hidden_layers")?,
        vocab_size: settings.number("vocab_size")?,
        pad_vocab_size_multiple: 1,
    };
    let (dtype, device) = (weights.dtype(), weights.device().clone());
    let forward = with_state(
        m::mamba::Model::new(&config, weights.pp("backbone"))?,
        move || m::mamba::State::new(1, &config, dtype, &device),
        |model, tokens, _, state| model.forward(&tokens.squeeze(0)?, state),
    )?;
    of_states(settings, forward)
}

/// Mamba 2.
pub(crate) fn mamba2(settings: &Settings, weights: VarBuilder) -> LoadResult {
    require_usual(settings)?;
    settings.require("rms_norm", &[Json::Null, true.into()])?;
    settings.require("norm_before_gate", &[Json::Null, false.into()])?;
    let inner = settings.number("hidden_size")? * settings.number_or("expand", 2)?;
    let heads = inner / settings.number("head_dim")?;
    settings.require("num_heads", &[Json::Null, heads.into()])?;
    let config: m::mamba2::Config =
        settings.parse_with(&[("pad_vocab_size_multiple", 1.into())])?;
    let (dtype, device) = (weights.dtype(), weights.device().clone());
    let forward = with_state(
        m::mamba2::Model::new(&config, weights.pp("backbone"))?,
        move || m::mamba2::State::new(1, &config, dtype, &device),
        |model, tokens, _, state| model.forward(&tokens.squeeze(0)?, state),
    )?;
    of_states(settings, forward)
}
