//! Every setting that diffusers' and transformers' classes take is followed, refused, or known to be without effect:
//! `tests/reference/make_configurations.py` lists them, with another value of each.

use super::common::file;
use sd_worker_rocm::models::clip::ClipConfig;
use sd_worker_rocm::models::clip_vision::ClipVisionConfig;
use sd_worker_rocm::models::controlnet::ControlConfig;
use sd_worker_rocm::models::dc_vae::DcVaeConfig;
use sd_worker_rocm::models::language::vision::VisionConfig;
use sd_worker_rocm::models::language::LanguageConfig;
use sd_worker_rocm::models::ltx_vae::LtxVaeConfig;
use sd_worker_rocm::models::preprocess::bit::BitConfig;
use sd_worker_rocm::models::preprocess::dpt::{DepthConfig, Dinov2Config};
use sd_worker_rocm::models::siglip::SiglipConfig;
use sd_worker_rocm::models::t2i_adapter::AdapterConfig;
use sd_worker_rocm::models::t5;
use sd_worker_rocm::models::transformer::chroma::ChromaConfig;
use sd_worker_rocm::models::transformer::flux::FluxConfig;
use sd_worker_rocm::models::transformer::flux2::Flux2Config;
use sd_worker_rocm::models::transformer::flux_control::FluxControlConfig;
use sd_worker_rocm::models::transformer::hidream::HiDreamConfig;
use sd_worker_rocm::models::transformer::ltx::LtxConfig;
use sd_worker_rocm::models::transformer::lumina2::Lumina2Config;
use sd_worker_rocm::models::transformer::qwen_image::QwenImageConfig;
use sd_worker_rocm::models::transformer::sana::SanaConfig;
use sd_worker_rocm::models::transformer::sd3::Sd3Config;
use sd_worker_rocm::models::transformer::sd3_control::Sd3ControlConfig;
use sd_worker_rocm::models::transformer::wan::WanConfig;
use sd_worker_rocm::models::transformer::z_image::ZImageConfig;
use sd_worker_rocm::models::unet::config::UNetConfig;
use sd_worker_rocm::models::vae::patched::PatchedVaeConfig;
use sd_worker_rocm::models::vae::VaeConfig;
use sd_worker_rocm::models::wan_vae::WanVaeConfig;
use sd_worker_rocm::pipeline::preparation::Preparation;
use sd_worker_rocm::pipeline::redux::{ReduxConfig, SiglipPictures};
use sd_worker_rocm::pipeline::vision::ClipPictures;
use sd_worker_rocm::preprocess::seeing::Seeing;
use serde_json::{json, Map, Value};
use std::collections::BTreeMap;

/// What a file says as the network has it, and whether it can be followed.
type Read = fn(&Value) -> Result<(String, Result<(), String>), String>;

/// The usual way of a configuration: read, then checked.
macro_rules! read {
    ($config:ty, |$read:ident| $check:expr) => {
        |json| {
            let $read: $config = serde_json::from_value(json.clone()).map_err(|e| e.to_string())?;
            Ok((format!("{:?}", $read), $check.map(drop)))
        }
    };
    ($config:ty, $check:ident) => {
        read!($config, |config| config.$check())
    };
    ($config:ty) => {
        read!($config, check)
    };
}

/// Of every transformers class.
const NOTES: &str =
    "architectures attention_dropout chunk_size_feed_forward dtype id2label initializer_factor \
     initializer_range label2id output_hidden_states problem_type return_dict transformers_version";

/// Of every decoder, besides.
const OF_DECODERS: &str =
    "bos_token_id eos_token_id max_position_embeddings pad_token_id tie_word_embeddings use_cache";

/// Of every image processor: how it is given the picture, and what belongs to steps that are off.
const OF_PROCESSORS: &str =
    "data_format default_to_square device disable_grouping do_convert_rgb image_seq_length \
     input_data_format pad_size return_tensors";

/// Each class with its configuration here, and the settings that are without effect.
const CLASSES: [(&str, Read, &str); 46] = [
    (
        "CLIPTextConfig",
        read!(ClipConfig),
        "bos_token_id pad_token_id",
    ),
    ("CLIPVisionConfig", read!(ClipVisionConfig), ""),
    ("SiglipVisionConfig", read!(SiglipConfig), "vision_use_head"),
    ("T5Config", read_t5, T5),
    ("UMT5Config", read_t5, T5),
    ("Qwen2Config", read_language, QWEN),
    ("Qwen3Config", read_language, QWEN),
    ("LlamaConfig", read_language, "pretraining_tp"),
    ("MistralConfig", read_language, ""),
    ("Gemma2Config", read_language, "final_logit_softcapping"),
    ("Gemma3TextConfig", read_language, "final_logit_softcapping"),
    ("Qwen2_5_VLTextConfig", read_language, QWEN),
    ("Qwen3VLTextConfig", read_language, ""),
    (
        "Qwen2_5_VLVisionConfig",
        read!(VisionConfig),
        "tokens_per_second",
    ),
    (
        "UNet2DConditionModel",
        read!(UNetConfig, plan),
        "addition_embed_type_num_heads dropout upcast_attention",
    ),
    (
        "ControlNetModel",
        read!(ControlConfig),
        "addition_embed_type_num_heads upcast_attention",
    ),
    (
        "ControlNetUnionModel",
        read!(ControlConfig),
        "addition_embed_type_num_heads upcast_attention",
    ),
    ("T2IAdapter", read!(AdapterConfig), ""),
    ("AutoencoderKL", read!(VaeConfig), "sample_size"),
    (
        "AutoencoderKLFlux2",
        read!(PatchedVaeConfig),
        "batch_norm_momentum sample_size",
    ),
    ("AutoencoderKLWan", read!(WanVaeConfig), "dropout"),
    ("AutoencoderKLQwenImage", read!(WanVaeConfig), "dropout"),
    ("AutoencoderKLLTXVideo", read!(LtxVaeConfig), ""),
    ("AutoencoderDC", read!(DcVaeConfig), ""),
    ("SD3Transformer2DModel", read!(Sd3Config), "sample_size"),
    (
        "SD3ControlNetModel",
        read!(Sd3ControlConfig),
        "out_channels sample_size",
    ),
    ("FluxTransformer2DModel", read!(FluxConfig), ""),
    ("FluxControlNetModel", read!(FluxControlConfig), ""),
    ("Flux2Transformer2DModel", read!(Flux2Config), ""),
    ("ChromaTransformer2DModel", read!(ChromaConfig), ""),
    ("ZImageTransformer2DModel", read!(ZImageConfig), "axes_lens"),
    ("QwenImageTransformer2DModel", read!(QwenImageConfig), ""),
    (
        "Lumina2Transformer2DModel",
        read!(Lumina2Config),
        "axes_lens sample_size scaling_factor",
    ),
    (
        "HiDreamImageTransformer2DModel",
        read!(HiDreamConfig),
        "force_inference_output",
    ),
    (
        "SanaTransformer2DModel",
        read!(SanaConfig),
        "attention_bias dropout guidance_embeds_scale",
    ),
    ("WanTransformer3DModel", read!(WanConfig), ""),
    ("LTXVideoTransformer3DModel", read!(LtxConfig), ""),
    ("ReduxImageEncoder", read!(ReduxConfig), ""),
    ("DPTConfig", read_depth, DPT),
    ("DepthAnythingConfig", read_depth, ""),
    (
        "Dinov2Config",
        read!(Dinov2Config),
        "attention_probs_dropout_prob drop_path_rate hidden_dropout_prob layerscale_value use_mask_token",
    ),
    ("BitConfig", read!(BitConfig), "drop_path_rate"),
    (
        "DPTImageProcessorPil",
        read!(Seeing),
        "crop_size size_divisor",
    ),
    (
        "CLIPImageProcessorPil",
        read!(ClipPictures, |pictures| pictures.check(224)),
        "",
    ),
    (
        "SiglipImageProcessorPil",
        read!(SiglipPictures, |pictures| pictures.check(224)),
        "crop_size",
    ),
    (
        "Qwen2VLImageProcessorPil",
        read!(Preparation, |pictures| pictures.check(&usual_tower())),
        "crop_size",
    ),
];

/// Of training, of tokens, of the decoder.
const T5: &str =
    "classifier_dropout decoder_start_token_id dropout_rate eos_token_id is_encoder_decoder \
     num_decoder_layers pad_token_id use_cache";

/// T5's is the library's own, which has settings that its encoder does not read.
fn read_t5(json: &Value) -> Result<(String, Result<(), String>), String> {
    let read = t5::read_config(json)?;
    let followed = (
        (read.d_ff, read.d_kv, read.d_model, read.vocab_size),
        (read.num_heads, read.num_layers, read.layer_norm_epsilon),
        read.feed_forward_proj,
        (
            read.relative_attention_num_buckets,
            read.relative_attention_max_distance,
        ),
    );
    Ok((format!("{followed:?}"), Ok(())))
}

/// Of training, of hybrids alone, and of parts that depths do not go through.
const DPT: &str =
    "attention_probs_dropout_prob auxiliary_loss_weight backbone_featmap_shape hidden_dropout_prob \
     neck_ignore_stages pooler_act pooler_output_size semantic_classifier_dropout \
     semantic_loss_ignore_index use_auxiliary_head";

/// Depths' are read and checked in one.
fn read_depth(json: &Value) -> Result<(String, Result<(), String>), String> {
    Ok((format!("{:?}", DepthConfig::of(json)?), Ok(())))
}

/// Qwen 2.5 VL's tower as it is published.
fn usual_tower() -> VisionConfig {
    serde_json::from_value(json!({})).unwrap()
}

/// Without a window, which they have where `use_sliding_window` says so.
const QWEN: &str = "max_window_layers sliding_window";

/// Decoders' are read and checked in one.
fn read_language(json: &Value) -> Result<(String, Result<(), String>), String> {
    let config = LanguageConfig::from_json(json)?;
    Ok((format!("{config:?}"), Ok(())))
}

/// Sizes that have no default, or none that makes a network.
fn sizes(class: &str) -> Value {
    match class {
        "HiDreamImageTransformer2DModel" => json!({
            "in_channels": 16, "attention_head_dim": 8, "num_attention_heads": 2, "num_layers": 1,
            "num_single_layers": 1, "caption_channels": [8, 8], "text_emb_dim": 8, "axes_dims_rope": [4, 2, 2],
            "max_resolution": [16, 16], "llama_layers": [0, 1], "num_activated_experts": 1, "num_routed_experts": 2,
            "patch_size": 2,
        }),
        "T5Config" | "UMT5Config" => json!({"is_encoder_decoder": false}),
        "Qwen2Config" => json!({"model_type": "qwen2"}),
        "Qwen3Config" => json!({"model_type": "qwen3"}),
        "LlamaConfig" => json!({"model_type": "llama"}),
        "MistralConfig" => json!({"model_type": "mistral"}),
        "Gemma2Config" => json!({"model_type": "gemma2"}),
        "Gemma3TextConfig" => json!({"model_type": "gemma3_text"}),
        "Qwen2_5_VLTextConfig" => json!({"model_type": "qwen2_5_vl_text", "max_window_layers": 28}),
        "DPTConfig" => json!({"image_size": 383, "use_bias_in_fusion_residual": false}),
        "DepthAnythingConfig" => json!({
            "model_type": "depth_anything",
            "backbone_config": {"model_type": "dinov2", "hidden_size": 384, "num_attention_heads": 6, "image_size": 518,
                "out_indices": [9, 10, 11, 12], "reshape_hidden_states": false},
        }),
        "Dinov2Config" => {
            json!({"image_size": 223, "out_indices": [9, 10, 11, 12], "reshape_hidden_states": false})
        }
        "BitConfig" => json!({
            "depths": [3, 4, 9], "embedding_dynamic_padding": true, "global_padding": "same", "layer_type": "bottleneck",
        }),
        "Qwen3VLTextConfig" => json!({"model_type": "qwen3_vl_text"}),
        _ => json!({}),
    }
}

#[test]
fn every_setting_is_followed_or_refused() {
    let json = std::fs::read(file("tests/fixtures/configurations.json")).unwrap();
    let listed: BTreeMap<String, BTreeMap<String, [Value; 2]>> =
        serde_json::from_slice(&json).unwrap();
    assert_eq!(listed.len(), CLASSES.len());
    let mut wrong = Vec::new();
    for (class, read, without_effect) in CLASSES {
        let settings = &listed[class];
        let mut base: Map<String, Value> = settings
            .iter()
            .filter(|(_, [default, _])| !default.is_null())
            .map(|(name, [default, _])| (name.clone(), default.clone()))
            .collect();
        base.extend(sizes(class).as_object().unwrap().clone());
        if class.starts_with("ControlNet") {
            base.insert("_class_name".to_string(), class.into());
        }
        let (usual, checked) = match read(&Value::Object(base.clone())) {
            Ok(read) => read,
            Err(e) => panic!("{class}: {e}"),
        };
        assert_eq!(checked, Ok(()), "{class}");
        let mut ignored_ones: Vec<&str> = without_effect.split_whitespace().collect();
        if class.ends_with("Config") {
            ignored_ones.extend(NOTES.split_whitespace());
        }
        if settings.contains_key("num_key_value_heads") {
            ignored_ones.extend(OF_DECODERS.split_whitespace());
        }
        if class.ends_with("Pil") {
            ignored_ones.extend(OF_PROCESSORS.split_whitespace());
        }
        for (name, [default, other]) in settings {
            let other = match base.get(name) == Some(other) {
                true => default,
                false => other,
            };
            let mut changed = base.clone();
            changed.insert(name.clone(), other.clone());
            let result = read(&Value::Object(changed));
            let (followed, error) = match result {
                Ok((text, checked)) => (text != usual, checked.err()),
                Err(error) => (false, Some(error)),
            };
            // The library's errors of kinds name the value.
            let names = |error: &String| error.contains(name.as_str()) || error.contains("another");
            let ignored = !followed && error.is_none();
            if error
                .as_ref()
                .is_some_and(|error| !followed && !names(error))
            {
                wrong.push(format!(
                    "{class}.{name} = {other}: the error does not name it: {error:?}"
                ));
            }
            if ignored != ignored_ones.contains(&name.as_str()) {
                wrong.push(format!(
                    "{class}.{name} = {other}: ignored: {ignored}, {error:?}"
                ));
            }
        }
        // What no version of the library has today is not ignored either.
        let mut unknown = base;
        unknown.insert("a_new_setting".to_string(), json!(3));
        let error = match read(&Value::Object(unknown)) {
            Ok((_, checked)) => checked.err(),
            Err(error) => Some(error),
        };
        if !error
            .as_ref()
            .is_some_and(|error| error.contains("a_new_setting"))
        {
            wrong.push(format!("{class}: unknown settings are ignored ({error:?})"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The convolutions before a hybrid's transformer are followed or refused, too, and what joins them to it.
#[test]
fn depths_of_a_hybrid() {
    let bit = json!({
        "model_type": "bit", "depths": [1, 1, 2], "hidden_sizes": [16, 16, 24], "embedding_dynamic_padding": true,
        "global_padding": "same", "layer_type": "bottleneck", "out_features": ["stage1", "stage2", "stage3"],
        "drop_path_rate": 0.0, "use_bfloat16": false,
    });
    let whole = json!({
        "model_type": "dpt", "is_hybrid": true, "backbone_config": bit, "backbone_featmap_shape": [1, 24, 4, 4],
    });
    let read = |name: &str, value: Value| {
        let mut changed = whole.clone();
        changed[name] = value;
        DepthConfig::of(&changed)
    };
    read("backbone", Value::Null).unwrap();
    for (name, value) in [
        ("backbone_featmap_shape", json!([1, 32, 4, 4])),
        ("neck_ignore_stages", json!([0])),
        ("readout_type", json!("add")),
        ("backbone", json!("another/one")),
        ("backbone_config", json!({"model_type": "resnet"})),
        ("backbone_kwargs", json!({"out_indices": [1]})),
    ] {
        let error = read(name, value).unwrap_err();
        assert!(error.contains(name), "{name}: {error}");
    }
    for (name, value) in [
        ("layer_type", Value::Null),
        ("out_indices", json!([1, 3])),
        ("a_new_setting", json!(1)),
    ] {
        let mut other = bit.clone();
        other[name] = value;
        let error = read("backbone_config", other).unwrap_err();
        assert!(error.contains(name), "{name}: {error}");
    }
    // DINOv2 stands below Depth Anything, not below DPT.
    let mut other = whole;
    other["is_hybrid"] = json!(false);
    let error = DepthConfig::of(&other).unwrap_err();
    assert!(error.contains("backbone_config"), "{error}");
}

/// Sums and products of sizes as large as numbers go are not computed.
#[test]
fn sizes_as_large_as_numbers_go() {
    let z_image: ZImageConfig = serde_json::from_value(json!({
        "dim": 64, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "cap_feat_dim": 8,
        "axes_dims": [u64::MAX - 1, 32, 2],
    }))
    .unwrap();
    assert!(z_image.check().unwrap_err().contains("axes_dims"));
    let lumina: Lumina2Config = serde_json::from_value(json!({
        "hidden_size": 64, "num_attention_heads": 2, "num_kv_heads": 2, "axes_dim_rope": [u64::MAX - 1, 32, 2],
    }))
    .unwrap();
    assert!(lumina.check().unwrap_err().contains("axes_dim_rope"));
}

/// Published files of CLIP have both towers, older ones with all that the library knew of writing text.
#[test]
fn a_tower_of_two() {
    let clip = json!({
        "model_type": "clip", "projection_dim": 24, "logit_scale_init_value": 2.6592,
        "text_config": {
            "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
            "num_attention_heads": 4, "eos_token_id": 2, "top_k": 50, "temperature": 1.0, "pruned_heads": {},
            "add_cross_attention": false, "projection_dim": 24,
        },
        "vision_config": {"hidden_size": 32, "num_attention_heads": 2, "image_size": 42, "patch_size": 14,
            "length_penalty": 1.0, "id2label": {"0": "LABEL_0"}},
    });
    let text = ClipConfig::from_json(clip.clone()).unwrap();
    assert_eq!((text.hidden_size, text.projection_dim), (64, Some(24)));
    let vision = ClipVisionConfig::from_json(clip.clone()).unwrap();
    assert_eq!((vision.hidden_size, vision.image_size), (32, 42));
    let siglip = SiglipConfig::from_json(json!({"vision_config": {"hidden_size": 48}})).unwrap();
    assert_eq!(siglip.hidden_size, 48);
    // A tower's own is read whole, and a setting in it that is not known refused.
    let mut own = clip["text_config"].clone();
    assert_eq!(ClipConfig::from_json(own.clone()).unwrap().hidden_size, 64);
    own["pruned_heads"] = json!({"0": [1]});
    let error = ClipConfig::from_json(own).unwrap_err();
    assert!(error.contains("pruned_heads"), "{error}");
    // Where texts end is the tokenizer's to say; a file that says otherwise means another tokenizer.
    assert_eq!(text.check_end(99), Ok(()));
    let mut other = text.clone();
    other.eos_token_id = Some(7);
    assert_eq!(other.check_end(7), Ok(()));
    assert!(other.check_end(99).unwrap_err().contains("eos_token_id"));
}
