//! Architectures whose state is keys and values.

use crate::engine::sequential::model::{forgetting, LoadResult, Loaded, Pieces};
use crate::engine::sequential::settings::Settings;
use candle_nn::VarBuilder;
use candle_transformers::models as m;
use serde_json::{json, Value as Json};

/// Falcon of the first architecture: one head of keys and values, rotary positions.
pub(crate) fn falcon(settings: &Settings, weights: VarBuilder) -> LoadResult {
    let defaults = [
        ("layer_norm_epsilon", json!(1e-5)),
        ("initializer_range", json!(0.02)),
        ("use_cache", json!(true)),
        ("bos_token_id", json!(11)),
        ("eos_token_id", json!(11)),
        ("hidden_dropout", json!(0.0)),
        ("attention_dropout", json!(0.0)),
        ("alibi", json!(false)),
        ("new_decoder_architecture", json!(false)),
        ("multi_query", json!(true)),
        ("parallel_attn", json!(true)),
        ("bias", json!(false)),
    ];
    let missing: Vec<(&str, Json)> = defaults
        .into_iter()
        .filter(|(key, _)| settings.get(key).is_null())
        .collect();
    for key in ["alibi", "new_decoder_architecture"] {
        settings.require(key, &[Json::Null, false.into()])?;
    }
    settings.require("n_head_kv", &[Json::Null])?;
    settings.require("rope_scaling", &[Json::Null])?;
    settings.require("rope_theta", &[Json::Null, json!(10000.0), json!(10000)])?;
    settings.require("activation", &[Json::Null, "gelu".into()])?;
    // The model code assumes one head of keys and values.
    settings.require("multi_query", &[Json::Null, true.into()])?;
    let config: m::falcon::Config = settings.parse_with(&missing)?;
    let head_dim = config.hidden_size / config.num_attention_heads;
    Ok(Loaded {
        vocab_size: config.vocab_size,
        context: settings.context(settings.number_or("max_position_embeddings", 2048)?),
        token_elements: 2 * head_dim * config.num_hidden_layers,
        pieces: Pieces::First,
        forward: forgetting(
            m::falcon::Falcon::load(weights, config)?,
            |model| model.clear_kv_cache(),
            |model, tokens, _| model.forward(tokens),
        ),
    })
}

/// StableLM without norms of queries and keys.
pub(crate) fn stable_lm(settings: &Settings, weights: VarBuilder) -> LoadResult {
    settings.require("qk_layernorm", &[Json::Null, false.into()])?;
    settings.require("use_parallel_residual", &[Json::Null, false.into()])?;
    settings.require("rope_scaling", &[Json::Null])?;
    settings.require("tie_word_embeddings", &[Json::Null, false.into()])?;
    let mut changes = vec![("use_cache", true.into())];
    // The older name.
    if settings.get("partial_rotary_factor").is_null() {
        changes.push(("partial_rotary_factor", settings.get("rope_pct").clone()));
    }
    let (context, config) = settings.parse_bounded(&changes)?;
    let mut model = m::stable_lm::Model::new(&config, weights)?;
    // A prompt at position 0 begins anew.
    let forward = move |tokens: &_, position| model.forward(tokens, position);
    Loaded::of_attention(settings, context, Pieces::Any, Box::new(forward))
}

/// The first OLMo.
pub(crate) fn olmo(settings: &Settings, weights: VarBuilder) -> LoadResult {
    settings.require("rope_scaling", &[Json::Null])?;
    let mut changes = Vec::new();
    if settings.get("attention_bias").is_null() {
        changes.push(("attention_bias", false.into()));
    }
    let (context, config) = settings.parse_bounded(&changes)?;
    let forward = forgetting(
        m::olmo::Model::new(&config, weights)?,
        |model| model.clear_kv_cache(),
        |model, tokens, position| model.forward(tokens, position),
    );
    Loaded::of_attention(settings, context, Pieces::First, forward)
}

/// The first StarCoder.
pub(crate) fn bigcode(settings: &Settings, weights: VarBuilder) -> LoadResult {
    /// The mask has as many elements as this squared.
    const MAX_POSITIONS: usize = 16 << 10;
    settings.require("tie_word_embeddings", &[Json::Null, true.into()])?;
    settings.require("scale_attn_weights", &[Json::Null, true.into()])?;
    settings.require(
        "activation_function",
        &[Json::Null, "gelu_pytorch_tanh".into()],
    )?;
    let positions = settings.number("n_positions")?;
    if positions > MAX_POSITIONS {
        return Err(format!(
            "config.json: n_positions {positions}, at most {MAX_POSITIONS} is allowed"
        )
        .into());
    }
    let config = m::bigcode::Config {
        vocab_size: settings.number("vocab_size")?,
        max_position_embeddings: positions,
        num_hidden_layers: settings.number("n_layer")?,
        hidden_size: settings.number("n_embd")?,
        layer_norm_epsilon: settings.get("layer_norm_epsilon").as_f64().unwrap_or(1e-5),
        n_inner: match settings.get("n_inner") {
            Json::Null => None,
            _ => Some(settings.number("n_inner")?),
        },
        num_attention_heads: settings.number("n_head")?,
        multi_query: settings.get("multi_query").as_bool().unwrap_or(true),
        use_cache: true,
    };
    let kv_heads = match config.multi_query {
        true => 1,
        false => config.num_attention_heads,
    };
    let head_dim = config.hidden_size / config.num_attention_heads;
    let vocab_size = config.vocab_size;
    let token_elements = 2 * kv_heads * head_dim * config.num_hidden_layers;
    let mut model = m::bigcode::GPTBigCode::load(weights, config)?;
    Ok(Loaded {
        vocab_size,
        context: settings.context(positions),
        token_elements,
        pieces: Pieces::Any,
        // A prompt at position 0 begins anew.
        forward: Box::new(move |tokens, position| model.forward(tokens, position)),
    })
}

/// Kyutai's Helium.
pub(crate) fn helium(settings: &Settings, weights: VarBuilder) -> LoadResult {
    settings.require("rope_scaling", &[Json::Null])?;
    let (context, config) = settings.parse_bounded(&[])?;
    let forward = forgetting(
        m::helium::Model::new(&config, weights)?,
        |model| model.clear_kv_cache(),
        |model, tokens, position| model.forward(tokens, position),
    );
    Loaded::of_attention(settings, context, Pieces::Any, forward)
}
