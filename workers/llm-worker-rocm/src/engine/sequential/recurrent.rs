//! Families whose state does not grow with the sequence, or only within a window.

use super::families::{adapt, Trouble};
use super::settings::Settings;
use super::{Loaded, Pieces};
use candle_nn::VarBuilder;
use candle_transformers::models as m;
use serde_json::{json, Value as Json};

type Outcome = std::result::Result<Loaded, Trouble>;

/// RecurrentGemma: recurrent blocks, and attention within a window.
pub(super) fn recurrent_gemma(settings: &Settings, weights: VarBuilder) -> Outcome {
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
    let model = m::recurrent_gemma::Model::new(&config, weights.pp("model"))?;
    Ok(Loaded {
        vocab_size: settings.number("vocab_size")?,
        context,
        token_elements: settings.attention_elements()?,
        pieces: Pieces::First,
        model: adapt(
            model.clone(),
            |model, tokens, position| model.forward(tokens, position),
            move |state| {
                *state = model.clone();
                Ok(())
            },
        ),
    })
}

/// What both Mambas' code fixes.
fn require_usual(settings: &Settings) -> std::result::Result<(), String> {
    settings.require("conv_kernel", &[Json::Null, 4.into()])?;
    settings.require("use_bias", &[Json::Null, false.into()])?;
    settings.require("use_conv_bias", &[Json::Null, true.into()])?;
    settings.require("layer_norm_epsilon", &[Json::Null, json!(1e-5)])?;
    settings.require("hidden_act", &[Json::Null, "silu".into()])
}

/// Mamba.
pub(super) fn mamba(settings: &Settings, weights: VarBuilder) -> Outcome {
    require_usual(settings)?;
    let width = settings.number("hidden_size")?;
    settings.require("state_size", &[Json::Null, 16.into()])?;
    settings.require("expand", &[Json::Null, 2.into()])?;
    let rank = width.div_ceil(16);
    settings.require("time_step_rank", &[Json::Null, "auto".into(), rank.into()])?;
    settings.require("tie_word_embeddings", &[Json::Null, true.into()])?;
    let config = m::mamba::Config {
        d_model: width,
        n_layer: settings.number("num_hidden_layers")?,
        vocab_size: settings.number("vocab_size")?,
        pad_vocab_size_multiple: 1,
    };
    let (dtype, device) = (weights.dtype(), weights.device().clone());
    let model = m::mamba::Model::new(&config, weights.pp("backbone"))?;
    let state = m::mamba::State::new(1, &config, dtype, &device)?;
    Ok(Loaded {
        vocab_size: config.vocab_size,
        context: settings.context(usize::MAX),
        token_elements: 0,
        pieces: Pieces::One,
        model: adapt(
            (model, state),
            |(model, state), tokens, _| model.forward(&tokens.squeeze(0)?, state),
            move |(_, state)| {
                *state = m::mamba::State::new(1, &config, dtype, &device)?;
                Ok(())
            },
        ),
    })
}

/// Mamba 2.
pub(super) fn mamba2(settings: &Settings, weights: VarBuilder) -> Outcome {
    require_usual(settings)?;
    settings.require("rms_norm", &[Json::Null, true.into()])?;
    settings.require("norm_before_gate", &[Json::Null, false.into()])?;
    settings.require("tie_word_embeddings", &[Json::Null, true.into()])?;
    let inner = settings.number("hidden_size")? * settings.number_or("expand", 2)?;
    let heads = inner / settings.number("head_dim")?;
    settings.require("num_heads", &[Json::Null, heads.into()])?;
    let config: m::mamba2::Config =
        settings.parse_with(&[("pad_vocab_size_multiple", 1.into())])?;
    let (dtype, device) = (weights.dtype(), weights.device().clone());
    let model = m::mamba2::Model::new(&config, weights.pp("backbone"))?;
    let state = m::mamba2::State::new(1, &config, dtype, &device)?;
    Ok(Loaded {
        vocab_size: config.vocab_size,
        context: settings.context(usize::MAX),
        token_elements: 0,
        pieces: Pieces::One,
        model: adapt(
            (model, state),
            |(model, state), tokens, _| model.forward(&tokens.squeeze(0)?, state),
            move |(_, state)| {
                *state = m::mamba2::State::new(1, &config, dtype, &device)?;
                Ok(())
            },
        ),
    })
}
