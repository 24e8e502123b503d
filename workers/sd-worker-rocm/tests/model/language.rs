//! Language models of every kind against transformers' numbers: `tests/reference/make_language.py` has made them.

use super::hashed::uniform;
use super::networks::Networks;
use candle_core::{DType, Tensor};
use image::RgbImage;
use sd_worker_rocm::models::language::seeing::{Seeing, SeeingConfig};
use sd_worker_rocm::models::language::vision::Patches;
use sd_worker_rocm::models::language::{Language, LanguageConfig};
use sd_worker_rocm::models::VarBuilder;
use serde_json::{json, Value};

const IDS: [u32; 12] = [5, 17, 120, 3, 88, 42, 199, 61, 9, 130, 77, 150];

fn config(n: &Networks, name: &str, change: &dyn Fn(&mut Value)) -> LanguageConfig {
    let mut json: Value = n.config(name);
    change(&mut json);
    LanguageConfig::from_json(&json).unwrap()
}

fn build(n: &Networks, name: &str, states: &[usize], change: &dyn Fn(&mut Value)) -> Language {
    let config = config(n, name, change);
    n.build(name, |vb, _: &Value| Language::new(vb, &config, states))
}

fn as_it_is(_: &mut Value) {}

#[track_caller]
fn same(n: &Networks, name: &str, states: &[usize], ours: &[Tensor]) {
    for (state, ours) in states.iter().zip(ours) {
        n.same(&format!("{name}.{state}"), ours, 2e-4);
    }
}

/// As `same`, and with this setting changed the last state is another.
#[track_caller]
fn check(name: &str, states: &[usize], seen: Option<&[bool]>, setting: &str, other: Value) {
    let n = Networks::of("language");
    let run = |change: &dyn Fn(&mut Value)| {
        let net = build(&n, name, states, change);
        net.forward(&IDS, seen).unwrap()
    };
    let ours = run(&as_it_is);
    same(&n, name, states, &ours);
    let changed = run(&|json| *json.pointer_mut(setting).unwrap() = other.clone());
    let off = super::common::difference(ours.last().unwrap(), changed.last().unwrap());
    assert!(off > 1e-2, "{name}: {setting} hardly matters ({off})");
}

#[test]
fn qwen2_with_a_window_in_its_last_layers() {
    check("qwen2", &[0, 1, 3, 4], None, "/sliding_window", json!(6));
}

#[test]
fn qwen3_whole_and_padded_on_either_side() {
    check(
        "qwen3",
        &[1, 3, 4],
        None,
        "/rope_parameters/rope_theta",
        json!(1e3),
    );
    let left: Vec<bool> = (0..12).map(|at| at >= 3).collect();
    let eps = "/rms_norm_eps";
    check("qwen3_left", &[3, 4], Some(&left), eps, json!(0.1));
    let right: Vec<bool> = (0..12).map(|at| at < 8).collect();
    check("qwen3_right", &[3, 4], Some(&right), eps, json!(0.1));
}

#[test]
fn llama_stretched_for_long_texts() {
    let factor = "/rope_parameters/factor";
    check("llama", &[1, 2, 4], None, factor, json!(1.0));
}

#[test]
fn mistral_with_and_without_a_window() {
    check("mistral", &[2, 4], None, "/sliding_window", json!(6));
    check("mistral_whole", &[2, 4], None, "/sliding_window", json!(6));
}

#[test]
fn gemma_2_and_3() {
    let cap = "/attn_logit_softcapping";
    check("gemma2", &[0, 3, 4], None, cap, json!(1.0));
    check("gemma2", &[0, 3, 4], None, "/sliding_window", json!(6));
    let scale = "/query_pre_attn_scalar";
    check("gemma2", &[0, 3, 4], None, scale, json!(30));
    let left: Vec<bool> = (0..12).map(|at| at >= 2).collect();
    let factor = "/rope_parameters/full_attention/factor";
    check("gemma3", &[0, 3, 4], Some(&left), factor, json!(1.0));
}

#[test]
fn tokens_that_stand_in_pictures() {
    let n = Networks::of("language");
    let states = [2, 4];
    let net = build(&n, "qwen3_vl", &states, &as_it_is);
    let times = [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8];
    let rows = [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8];
    let columns = [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8];
    let positions: Vec<[usize; 3]> = (0..12)
        .map(|at| [times[at], rows[at], columns[at]])
        .collect();
    let embedded = net.rows(&IDS).unwrap();
    let ours = net.forward_rows(&embedded, &positions, None).unwrap();
    same(&n, "qwen3_vl", &states, &ours);
    let text = net.forward(&IDS, None).unwrap();
    assert!(super::common::difference(&ours[1], &text[1]) > 1e-2);
}

/// Older files have the rotations' settings in other places.
#[test]
fn older_files_say_the_same() {
    let n = Networks::of("language");
    let older = |name: &str, change: &dyn Fn(&mut Value)| {
        let renamed = config(&n, name, &|json| {
            json.as_object_mut().unwrap().remove("rope_parameters");
            change(json);
        });
        assert_eq!(renamed, config(&n, name, &as_it_is), "{name}");
    };
    older("qwen3", &|json| {
        json["rope_theta"] = json!(1e6);
        json.as_object_mut().unwrap().remove("layer_types");
    });
    older("qwen2", &|json| {
        json.as_object_mut().unwrap().remove("layer_types");
    });
    older("llama", &|json| {
        json["rope_theta"] = json!(500.0);
        json["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64});
    });
    older("gemma3", &|json| {
        json["rope_scaling"] = json!({"rope_type": "linear", "factor": 8.0});
        json.as_object_mut().unwrap().remove("layer_types");
    });
    // Whole models have the text's settings in a part of theirs.
    let text: Value = n.config("gemma3");
    let whole = json!({"model_type": "gemma3", "text_config": text});
    let of_text = config(&n, "gemma3", &as_it_is);
    assert_eq!(LanguageConfig::from_json(&whole).unwrap(), of_text);
}

#[test]
fn what_is_not_followed_is_refused_by_name() {
    let n = Networks::of("language");
    let cases = [
        ("qwen3", "model_type", json!("qwen9"), "qwen9"),
        (
            "qwen3",
            "rope_parameters",
            json!({"rope_type": "yarn", "factor": 4.0}),
            "yarn",
        ),
        (
            "llama",
            "rope_parameters",
            json!({"rope_type": "llama3", "factor": 4.0}),
            "low_freq_factor",
        ),
        (
            "llama",
            "partial_rotary_factor",
            json!(0.5),
            "partial_rotary_factor",
        ),
        (
            "qwen2",
            "layer_types",
            json!(["full_attention"]),
            "layer_types",
        ),
        (
            "gemma3",
            "layer_types",
            json!(["chunked_attention", "", "", ""]),
            "chunked_attention",
        ),
        (
            "gemma3",
            "use_bidirectional_attention",
            json!(true),
            "bidirectional",
        ),
        ("gemma2", "hidden_activation", json!("quick"), "activation"),
        ("gemma2", "sliding_window", json!(0), "sliding_window"),
        ("gemma3", "sliding_window_pattern", json!(0), "pattern"),
        ("qwen3", "num_key_value_heads", json!(3), "heads"),
        (
            "qwen3",
            "num_hidden_layers",
            json!(1u64 << 40),
            "num_hidden_layers",
        ),
        ("qwen3", "hidden_size", json!(null), "hidden_size"),
        (
            "qwen3_vl",
            "rope_parameters",
            json!({"mrope_section": [9, 9, 9]}),
            "mrope_section",
        ),
    ];
    for (name, setting, value, reason) in cases {
        let mut json: Value = n.config(name);
        json[setting] = value;
        let error = LanguageConfig::from_json(&json).unwrap_err();
        assert!(error.contains(reason), "{setting}: {error}");
    }
    // States and tokens that there are not.
    let config = config(&n, "qwen3", &as_it_is);
    let net = n.build("qwen3", |vb, _: &Value| {
        let error = Language::new(vb.clone(), &config, &[5]).unwrap_err();
        assert!(error.to_string().contains("4 layers"), "{error}");
        Language::new(vb, &config, &[1])
    });
    let error = net.forward(&[200], None).unwrap_err().to_string();
    assert!(error.contains("token 200"), "{error}");
}

/// As the script makes pictures: truncated bytes of the name's numbers.
fn picture(name: &str, width: u32, height: u32) -> RgbImage {
    let values = uniform(name, (3 * width * height) as usize);
    let bytes = values.iter().map(|u| ((u + 1.0) * 127.5) as u8).collect();
    RgbImage::from_raw(width, height, bytes).unwrap()
}

#[test]
fn qwen2_5_vl_sees_pictures() {
    let n = Networks::of("language");
    let json: Value = n.config("qwen2_5_vl");
    let config = SeeingConfig::from_json(&json).unwrap();
    let states = [0, 2, 4];
    let tensors = n.tensors("qwen2_5_vl").into_iter().map(|(name, tensor)| {
        let name = name.strip_prefix("language_model.").unwrap_or(&name);
        (name.to_string(), tensor)
    });
    let vb = VarBuilder::from_tensors(tensors.collect(), DType::F32, &super::common::device());
    let net = Seeing::new(vb, &config, &states).unwrap();
    let cut = |picture: &RgbImage| {
        let mean = [0.48145466, 0.4578275, 0.40821073];
        let deviation = [0.268_629_54, 0.261_302_6, 0.275_777_1];
        Patches::new(picture, mean, deviation, &config.vision)
    };
    let pictures = [
        cut(&picture("p0", 40, 24)).unwrap(),
        cut(&picture("p1", 8, 16)).unwrap(),
    ];
    let ids = [5, 191, 190, 192, 7, 191, 190, 192, 9, 11];
    let ours = net.forward(&ids, &pictures).unwrap();
    same(&n, "qwen2_5_vl", &states, &ours);
    let error = net.forward(&ids, &pictures[..1]).unwrap_err().to_string();
    assert!(error.contains("2 places for 1 pictures"), "{error}");
    assert!(cut(&picture("p0", 41, 24)).is_err());
    for (setting, value, reason) in [
        ("window_size", json!(7), "window_size"),
        ("num_heads", json!(3), "heads"),
        ("out_hidden_size", json!(16), "out_hidden_size"),
        ("in_channels", json!(1), "in_channels"),
        ("hidden_act", json!("loud"), "vision_config"),
        ("rope_parameters", json!({"rope_type": "yarn"}), "yarn"),
    ] {
        let mut json = json.clone();
        json["vision_config"][setting] = value;
        let error = SeeingConfig::from_json(&json).unwrap_err();
        assert!(error.contains(reason), "{setting}: {error}");
    }
}
