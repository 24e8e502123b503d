//! The architectures of safetensors folders, and how each becomes a [`Model`].

use super::recurrent;
use super::settings::Settings;
use super::{Adapter, Loaded, Model, Pieces};
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models as m;
use serde_json::{json, Value as Json};

/// An architecture of `config.json`.
pub(super) struct Family {
    pub name: &'static str,
    /// Whether the output matrix is the embedding table unless the file says otherwise.
    pub tied: bool,
    /// Whether its code computes in f16 and bf16; else weights become f32.
    pub halves: bool,
    /// See [`super::weights::Files`].
    pub stand_ins: &'static [(&'static str, &'static str)],
    pub load: fn(&Settings, VarBuilder) -> std::result::Result<Loaded, Trouble>,
}

/// Why a family's model was not made.
pub(super) enum Trouble {
    /// The configuration is at fault.
    Settings(String),
    /// candle or the file is.
    Candle(candle_core::Error),
}

impl From<String> for Trouble {
    fn from(reason: String) -> Self {
        Self::Settings(reason)
    }
}

impl From<candle_core::Error> for Trouble {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(error)
    }
}

type Outcome = std::result::Result<Loaded, Trouble>;

const fn family(name: &'static str, load: fn(&Settings, VarBuilder) -> Outcome) -> Family {
    Family {
        name,
        tied: false,
        halves: false,
        stand_ins: &[],
        load,
    }
}

/// Every architecture.
pub(super) const FAMILIES: [Family; 11] = [
    Family {
        halves: true,
        ..family("DeepseekV2ForCausalLM", deepseek2)
    },
    Family {
        tied: true,
        halves: true,
        ..family("Lfm2ForCausalLM", lfm2)
    },
    Family {
        tied: true,
        halves: true,
        stand_ins: &[("lm_head.weight", "transformer.word_embeddings.weight")],
        ..family("FalconForCausalLM", falcon)
    },
    Family {
        halves: true,
        ..family("StableLmForCausalLM", stable_lm)
    },
    Family {
        halves: true,
        ..family("OlmoForCausalLM", olmo)
    },
    Family {
        tied: true,
        ..family("GPTBigCodeForCausalLM", bigcode)
    },
    family("HeliumForCausalLM", helium),
    Family {
        tied: true,
        ..family("GraniteMoeHybridForCausalLM", granite_hybrid)
    },
    Family {
        tied: true,
        ..family("RecurrentGemmaForCausalLM", recurrent::recurrent_gemma)
    },
    Family {
        tied: true,
        stand_ins: &[("backbone.embedding.weight", "backbone.embeddings.weight")],
        ..family("MambaForCausalLM", recurrent::mamba)
    },
    Family {
        tied: true,
        ..family("Mamba2ForCausalLM", recurrent::mamba2)
    },
];

/// The family of a configuration.
pub(super) fn of(config: &Json) -> Option<&'static Family> {
    let name = config["architectures"][0].as_str()?;
    FAMILIES.iter().find(|family| family.name == name)
}

/// A model from a value, what runs it, and what makes it forget.
pub(super) fn adapt<M: Send + 'static>(
    model: M,
    forward: impl FnMut(&mut M, &Tensor, usize) -> Result<Tensor> + Send + 'static,
    clear: impl FnMut(&mut M) -> Result<()> + Send + 'static,
) -> Box<dyn Model> {
    Box::new(Adapter {
        model,
        forward,
        clear,
    })
}

/// DeepSeek-V2: multi-head latent attention, whose keys and values are stored for each head.
fn deepseek2(settings: &Settings, weights: VarBuilder) -> Outcome {
    if !settings.get("n_routed_experts").is_null() {
        settings.number("num_experts_per_tok")?;
    }
    let context = settings.context(settings.number("max_position_embeddings")?);
    let config = settings.parse_with(&[("max_position_embeddings", context.into())])?;
    let head = settings.number("qk_rope_head_dim")?
        + settings.number("qk_nope_head_dim")?
        + settings.number("v_head_dim")?;
    Ok(Loaded {
        model: adapt(
            m::deepseek2::DeepSeekV2::new(&config, weights)?,
            |model, tokens, position| model.forward(tokens, position),
            |model| {
                model.clear_kv_cache();
                Ok(())
            },
        ),
        vocab_size: settings.number("vocab_size")?,
        context,
        token_elements: settings.number("num_hidden_layers")?
            * settings.number("num_attention_heads")?
            * head,
        pieces: Pieces::Any,
    })
}

/// LFM2: short convolutions and attention.
fn lfm2(settings: &Settings, weights: VarBuilder) -> Outcome {
    settings.require("conv_bias", &[Json::Null, false.into()])?;
    let context = settings.context(settings.number_or("max_position_embeddings", 128_000)?);
    let hidden = settings.number("hidden_size")?;
    let heads = settings.number("num_attention_heads")?;
    let layer_types: Vec<m::lfm2::LayerType> = settings
        .get("layer_types")
        .as_array()
        .ok_or("config.json: layer_types is missing".to_string())?
        .iter()
        .map(|kind| serde_json::from_value(kind.clone()))
        .collect::<std::result::Result<_, _>>()
        .map_err(|e| format!("config.json: layer_types: {e}"))?;
    let config = m::lfm2::Config {
        vocab_size: settings.number("vocab_size")?,
        hidden_size: hidden,
        intermediate_size: lfm2_intermediate_size(settings)?,
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
    let cache = m::lfm2::Cache::new(true, weights.dtype(), &config, weights.device())?;
    let model = m::lfm2::Model::new(&config, weights)?;
    Ok(Loaded {
        vocab_size: config.vocab_size,
        context,
        token_elements: settings.attention_elements()?,
        pieces: Pieces::First,
        model: adapt(
            (model, cache.clone()),
            |(model, cache), tokens, position| model.forward(tokens, position, cache),
            move |(_, state)| {
                *state = cache.clone();
                Ok(())
            },
        ),
    })
}

/// What the feed-forward part's width in the configuration comes to.
fn lfm2_intermediate_size(settings: &Settings) -> std::result::Result<usize, String> {
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

/// Falcon of the first architecture: one head of keys and values, rotary positions.
fn falcon(settings: &Settings, weights: VarBuilder) -> Outcome {
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
        model: adapt(
            m::falcon::Falcon::load(weights, config)?,
            |model, tokens, _| model.forward(tokens),
            |model| {
                model.clear_kv_cache();
                Ok(())
            },
        ),
    })
}

/// StableLM without norms of queries and keys.
fn stable_lm(settings: &Settings, weights: VarBuilder) -> Outcome {
    settings.require("qk_layernorm", &[Json::Null, false.into()])?;
    settings.require("use_parallel_residual", &[Json::Null, false.into()])?;
    settings.require("rope_scaling", &[Json::Null])?;
    settings.require("tie_word_embeddings", &[Json::Null, false.into()])?;
    let context = settings.context(settings.number("max_position_embeddings")?);
    let mut changes = vec![
        ("max_position_embeddings", context.into()),
        ("use_cache", true.into()),
    ];
    // The older name.
    if settings.get("partial_rotary_factor").is_null() {
        changes.push(("partial_rotary_factor", settings.get("rope_pct").clone()));
    }
    let config = settings.parse_with(&changes)?;
    Ok(Loaded {
        vocab_size: settings.number("vocab_size")?,
        context,
        token_elements: settings.attention_elements()?,
        pieces: Pieces::Any,
        model: adapt(
            m::stable_lm::Model::new(&config, weights)?,
            |model, tokens, position| model.forward(tokens, position),
            // A prompt at position 0 begins anew.
            |_| Ok(()),
        ),
    })
}

/// The first OLMo.
fn olmo(settings: &Settings, weights: VarBuilder) -> Outcome {
    settings.require("rope_scaling", &[Json::Null])?;
    let context = settings.context(settings.number("max_position_embeddings")?);
    let mut changes = vec![("max_position_embeddings", context.into())];
    if settings.get("attention_bias").is_null() {
        changes.push(("attention_bias", false.into()));
    }
    let config = settings.parse_with(&changes)?;
    Ok(Loaded {
        vocab_size: settings.number("vocab_size")?,
        context,
        token_elements: settings.attention_elements()?,
        pieces: Pieces::First,
        model: adapt(
            m::olmo::Model::new(&config, weights)?,
            |model, tokens, position| model.forward(tokens, position),
            |model| {
                model.clear_kv_cache();
                Ok(())
            },
        ),
    })
}

/// The first StarCoder.
fn bigcode(settings: &Settings, weights: VarBuilder) -> Outcome {
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
    Ok(Loaded {
        vocab_size: config.vocab_size,
        context: settings.context(positions),
        token_elements: 2 * kv_heads * head_dim * config.num_hidden_layers,
        pieces: Pieces::Any,
        model: adapt(
            m::bigcode::GPTBigCode::load(weights, config)?,
            |model, tokens, position| model.forward(tokens, position),
            // A prompt at position 0 begins anew.
            |_| Ok(()),
        ),
    })
}

/// Kyutai's Helium.
fn helium(settings: &Settings, weights: VarBuilder) -> Outcome {
    settings.require("rope_scaling", &[Json::Null])?;
    let context = settings.context(settings.number("max_position_embeddings")?);
    let config = settings.parse_with(&[("max_position_embeddings", context.into())])?;
    Ok(Loaded {
        vocab_size: settings.number("vocab_size")?,
        context,
        token_elements: settings.attention_elements()?,
        pieces: Pieces::Any,
        model: adapt(
            m::helium::Model::new(&config, weights)?,
            |model, tokens, position| model.forward(tokens, position),
            |model| {
                model.clear_kv_cache();
                Ok(())
            },
        ),
    })
}

/// Granite 4 without state-space layers and experts.
fn granite_hybrid(settings: &Settings, weights: VarBuilder) -> Outcome {
    settings.require("num_local_experts", &[Json::Null, 0.into()])?;
    settings.require("position_embedding_type", &["rope".into()])?;
    settings.require("attention_bias", &[Json::Null, false.into()])?;
    settings.require("tie_word_embeddings", &[Json::Null, true.into()])?;
    settings.require("rope_scaling", &[Json::Null])?;
    let context = settings.context(settings.number("max_position_embeddings")?);
    let config: m::granitemoehybrid::GraniteMoeHybridConfig =
        settings.parse_with(&[("max_position_embeddings", context.into())])?;
    let config = config.into_config(false);
    let cache = m::granitemoehybrid::GraniteMoeHybridCache::new(
        true,
        weights.dtype(),
        &config,
        weights.device(),
    )?;
    let model = m::granitemoehybrid::GraniteMoeHybrid::load(weights, &config)?;
    Ok(Loaded {
        vocab_size: config.vocab_size,
        context,
        token_elements: settings.attention_elements()?,
        pieces: Pieces::Any,
        model: adapt(
            (model, cache.clone()),
            |(model, cache), tokens, position| model.forward(tokens, position, cache),
            move |(_, state)| {
                *state = cache.clone();
                Ok(())
            },
        ),
    })
}
