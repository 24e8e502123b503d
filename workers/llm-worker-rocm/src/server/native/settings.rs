//! How an answer is generated, as llama.cpp's server tells it.

use super::request::NativeFields;
use crate::engine::api::{Aim, MirostatVersion, SamplingOptions};
use crate::server::generation::SamplingFields;
use crate::tokenizer::Tokenizer;
use serde_json::{json, Map, Value};

/// Settings of samplers, whatever else a request asks for.
pub fn of_sampling(options: &SamplingOptions) -> Map<String, Value> {
    let dry = options.dry.as_ref();
    let xtc = options.xtc;
    let dynamic = options.dynamic_temperature;
    let (mirostat, tau, eta) = match options.aim {
        Some(Aim::Mirostat { version, tau, eta }) => {
            let number = match version {
                MirostatVersion::V1 => 1,
                MirostatVersion::V2 => 2,
            };
            (number, tau, eta)
        }
        _ => (0, 5.0, 0.1),
    };
    let (target, decay) = match options.aim {
        Some(Aim::AdaptiveP { target, decay }) => (target, decay),
        _ => (-1.0, 0.9),
    };
    let last = |count: usize| i64::try_from(count).unwrap_or(-1);
    let samplers = options.order.samplers().iter().map(|s| s.name());
    let settings = json!({
        "temperature": options.temperature,
        "dynatemp_range": dynamic.map_or(0.0, |d| d.range),
        "dynatemp_exponent": dynamic.map_or(1.0, |d| d.exponent),
        "top_k": options.top_k.unwrap_or(0),
        "top_p": options.top_p.unwrap_or(1.0),
        "min_p": options.min_p.unwrap_or(0.0),
        "top_n_sigma": options.top_n_sigma.unwrap_or(-1.0),
        "xtc_probability": xtc.map_or(0.0, |x| x.probability),
        "xtc_threshold": xtc.map_or(0.1, |x| x.threshold),
        "typical_p": options.typical_p.unwrap_or(1.0),
        "repeat_last_n": last(options.repeat_last_n),
        "repeat_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "dry_multiplier": dry.map_or(0.0, |d| d.multiplier),
        "dry_base": dry.map_or(1.75, |d| d.base),
        "dry_allowed_length": dry.map_or(2, |d| d.allowed_length),
        "dry_penalty_last_n": dry.map_or(-1, |d| last(d.last_n)),
        "dry_sequence_breakers": dry.map_or_else(Vec::new, |d| d.breakers.to_vec()),
        "mirostat": mirostat,
        "mirostat_tau": tau,
        "mirostat_eta": eta,
        "adaptive_target": target,
        "adaptive_decay": decay,
        "samplers": samplers.collect::<Vec<_>>(),
    });
    match settings {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// All settings of a request, but for its seed. `most` is how many tokens an answer may have.
pub fn of_request(
    sampling: &SamplingFields,
    fields: &NativeFields,
    options: &SamplingOptions,
    most: Option<usize>,
    tokenizer: &Tokenizer,
) -> Map<String, Value> {
    let ignore_eos = sampling.ignore_eos.unwrap_or(false);
    // JSON has no minus infinity: null is what must not come.
    let bias = |(token, bias): (u32, f32)| {
        let bias = Some(bias).filter(|bias| bias.is_finite());
        json!({"token": token, "bias": bias})
    };
    let mut biases: Vec<(u32, f32)> = options.logit_bias.iter().map(|(t, b)| (*t, *b)).collect();
    biases.sort_unstable_by_key(|(token, _)| *token);
    if ignore_eos {
        let ends = tokenizer.end_ids().iter();
        biases.extend(ends.map(|end| (*end, f32::NEG_INFINITY)));
    }
    let most = most.map_or(-1, |most| i64::try_from(most).unwrap_or(i64::MAX));
    let lora = sampling.lora.iter().flatten();
    let lora = lora.map(|lora| json!({"id": lora.id, "scale": lora.scale}));
    let rest = json!({
        "stop": sampling.stop.clone().map_or_else(Vec::new, |stop| stop.into_vec()),
        "max_tokens": most,
        "n_predict": most,
        "n_keep": fields.n_keep.unwrap_or(0),
        "n_discard": 0,
        "ignore_eos": ignore_eos,
        "stream": sampling.stream(),
        "logit_bias": biases.into_iter().map(bias).collect::<Vec<_>>(),
        "n_probs": fields.n_probs.unwrap_or(0),
        "min_keep": 0,
        "grammar": sampling.grammar.as_deref().unwrap_or_default(),
        "post_sampling_probs": fields.post_sampling_probs.unwrap_or(false),
        "lora": lora.collect::<Vec<_>>(),
    });
    let mut settings = of_sampling(options);
    if let Value::Object(rest) = rest {
        settings.extend(rest);
    }
    settings
}
