//! What `model_index.json` says beside the parts of a model.

use crate::models::config::Others;
use serde_json::{Map, Value};

/// What is read where a family has it, or without effect.
const KNOWN: [&str; 9] = [
    // Of safety checkers and invisible watermarks, of which there are none here.
    "add_watermarker",
    "requires_safety_checker",
    // The refiner's size of time embeddings tells it.
    "requires_aesthetics_score",
    // A request says where attention is perturbed.
    "pag_applied_layers",
    // Read by families.
    "boundary_ratio",
    "expand_timesteps",
    "force_zeros_for_empty_prompt",
    "is_cosxl_edit",
    "is_distilled",
];

/// Refuses settings of a pipeline that are not known. Parts, of which each is named by its library and class, are those of
/// the folder.
///
/// # Errors
/// Names the first.
pub(super) fn check(index: Map<String, Value>) -> Result<(), String> {
    let is_part = |value: &Value| {
        let named = |name: &Value| name.is_string() || name.is_null();
        matches!(value, Value::Array(part) if part.len() == 2 && part.iter().all(named))
    };
    let settings = index.into_iter().filter(|(_, value)| !is_part(value));
    Others::from(settings.collect::<Map<_, _>>()).refuse(&KNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What diffusers 0.42's pipelines of the families here take beside parts, and one that is of no such family.
    #[test]
    fn settings_of_pipelines_are_known_or_refused() {
        let with = |name: &str, value: Value| {
            let mut index = json!({
                "_class_name": "StableDiffusionXLPipeline", "_diffusers_version": "0.42.1", "feature_extractor": [null, null],
                "vae": ["diffusers", "AutoencoderKL"],
            });
            index[name] = value;
            let Value::Object(index) = index else {
                panic!("{name} made it something else")
            };
            check(index)
        };
        for (name, value) in [
            ("requires_safety_checker", json!(true)),
            ("force_zeros_for_empty_prompt", json!(true)),
            ("requires_aesthetics_score", json!(true)),
            ("add_watermarker", json!(true)),
            ("is_cosxl_edit", json!(true)),
            ("is_distilled", json!(true)),
            ("boundary_ratio", json!(0.875)),
            ("expand_timesteps", json!(true)),
            ("pag_applied_layers", json!("mid")),
            ("max_noise_level", Value::Null),
        ] {
            assert_eq!(with(name, value), Ok(()), "{name}");
        }
        for (name, value) in [
            ("max_noise_level", json!(350)),
            ("sample_sigmas", json!([1.0, 0.5])),
            ("hdr_transform", json!("logc3")),
        ] {
            let error = with(name, value).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }
}
