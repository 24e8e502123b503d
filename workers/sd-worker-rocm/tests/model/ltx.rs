//! LTX-Video, prompt and pictures to frames, against diffusers': `tests/reference/make_ltx.py` has made them.

use super::common::{difference, go_on, Draw};
use super::hashed::{network, nothing_absent};
use super::pipelines::{write_gguf, Tensors};
use super::small::{apart, Pipelines};
use super::videos::{check, draw, ends, load, request};
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use sd_worker_rocm::lora::Lora;
use sd_worker_rocm::models::codec::LatentCodec;
use sd_worker_rocm::models::ltx_vae::{LtxVae, LtxVaeConfig};
use sd_worker_rocm::models::transformer::ltx::LtxConfig;
use sd_worker_rocm::models::VarBuilder;
use sd_worker_rocm::pipeline::{ImageRequest, Pipeline, PipelineOptions, Switch};
use sd_worker_rocm::request::VideoRequest;
use sd_worker_rocm::sampling::Schedule;
use sd_worker_rocm::weights::{ltx_vae, Weights};

fn plain(_: &mut ImageRequest) {}

/// Another value of an option must give other frames than diffusers'.
#[track_caller]
fn matters(
    p: &Pipelines,
    pipeline: &mut Pipeline,
    case: &str,
    change: impl Fn(&mut VideoRequest, &mut ImageRequest),
) {
    let mut request = request(p, case);
    request.schedule = pipeline.info().defaults.schedule;
    let mut video = request.video.take().unwrap();
    change(&mut video, &mut request);
    request.video = Some(video);
    let off = apart(&draw(pipeline, &request), &p.picture(case));
    assert!(off > 3, "{case}: the option hardly matters ({off})");
}

#[test]
fn text_and_a_first_frame() {
    let p = Pipelines::of("ltx");
    let mut pipeline = load(&p, "ltx");
    for case in ["ltx", "ltx_slow", "ltx_rescaled"] {
        check(&p, &mut pipeline, case, plain);
    }
    let first = p.picture("first");
    check(&p, &mut pipeline, "ltx_picture", |request| {
        ends(request, &first, None);
    });
    matters(&p, &mut pipeline, "ltx_slow", |video, _| video.fps = 25);
    matters(&p, &mut pipeline, "ltx_picture", |_, _| {});
}

#[test]
fn decoders_that_take_out_the_last_noise() {
    let p = Pipelines::of("ltx");
    let mut pipeline = load(&p, "ltx_noise");
    check(&p, &mut pipeline, "ltx_noise", plain);
    check(&p, &mut pipeline, "ltx_noise_more", plain);
    // The makers' values are what is taken otherwise.
    check(&p, &mut pipeline, "ltx_noise", |request| {
        let video = request.video.as_mut().unwrap();
        (video.decode_timestep, video.decode_noise) = (None, None);
    });
    matters(&p, &mut pipeline, "ltx_noise_more", |video, _| {
        video.decode_noise = Some(0.0);
    });
    matters(&p, &mut pipeline, "ltx_noise_more", |video, _| {
        video.decode_timestep = Some(0.0);
    });
    check(&p, &mut load(&p, "ltx_causal"), "ltx_causal", plain);
}

#[test]
fn pictures_as_any_frames() {
    let p = Pipelines::of("ltx");
    let mut pipeline = load(&p, "ltx_keyed");
    let usual = pipeline.info().defaults.schedule;
    assert_eq!(usual, Some(Schedule::LinearQuadratic));
    let named = |request: &mut ImageRequest| request.schedule = usual;
    check(&p, &mut pipeline, "ltx_keyed", named);
    check(&p, &mut pipeline, "ltx_keyed_one", named);
    let picture = |name: &str| p.picture(name);
    let first = picture("first");
    check(&p, &mut pipeline, "ltx_keyed_first", |request| {
        named(request);
        ends(request, &first, None);
    });
    let (middle, last) = (picture("middle"), picture("last"));
    check(&p, &mut pipeline, "ltx_keyed_last", |request| {
        named(request);
        request.video.as_mut().unwrap().last = Some(last.clone());
    });
    let all = |video: &mut VideoRequest| {
        (video.first, video.last) = (Some(first.clone()), Some(last.clone()));
        video.key_frames = vec![(5, middle.clone())];
    };
    check(&p, &mut pipeline, "ltx_keyed_all", |request| {
        named(request);
        all(request.video.as_mut().unwrap());
    });
    matters(&p, &mut pipeline, "ltx_keyed_all", |video, _| {
        all(video);
        video.key_frames[0].0 = 2;
    });
    matters(&p, &mut pipeline, "ltx_keyed_all", |video, _| {
        all(video);
        video.frame_noise = Some(0.0);
    });
}

#[test]
fn tiles_have_no_seams() {
    let p = Pipelines::of("ltx");
    let wide = |switch| {
        let options = PipelineOptions {
            vae_tiling: switch,
            ..PipelineOptions::default()
        };
        let mut request = request(&p, "ltx");
        (request.width, request.height, request.steps) = (8 * 72, 16, 1);
        draw(&mut p.load(&p.folder("ltx"), options), &request)
    };
    assert!(apart(&wide(Switch::On), &wide(Switch::Off)) <= 1);
}

#[test]
fn what_a_model_does_not_take() {
    let p = Pipelines::of("ltx");
    let picture = p.picture("first");
    let refused = |model: &str, change: &dyn Fn(&mut VideoRequest), named: &str| {
        let mut request = request(&p, "ltx");
        change(request.video.as_mut().unwrap());
        let error = load(&p, model).draw(&request, &mut go_on).unwrap_err();
        assert!(error.to_string().contains(named), "{named}: {error}");
    };
    refused("ltx", &|v| v.decode_timestep = Some(0.1), "decode_timestep");
    refused("ltx", &|v| v.decode_noise = Some(0.1), "decode_noise");
    refused("ltx", &|v| v.frame_noise = Some(0.1), "frame_noise");
    refused("ltx", &|v| v.last = Some(picture.clone()), "last_frame");
    let frame = |at: usize| (at, picture.clone());
    refused("ltx", &|v| v.key_frames = vec![frame(2)], "key_frames");
    for wrong in [vec![frame(0)], vec![frame(5)], vec![frame(2), frame(2)]] {
        refused("ltx_keyed", &|v| v.key_frames = wrong.clone(), "key_frames");
    }
}

#[test]
fn configurations_that_are_not_implemented() {
    for (json, named) in [
        (r#"{"patch_size": 2}"#, "patch_size"),
        (r#"{"patch_size_t": 2}"#, "patch_size_t"),
        (r#"{"qk_norm": "layer_norm"}"#, "qk_norm"),
        (r#"{"activation_fn": "gelu"}"#, "activation_fn"),
        (r#"{"attention_bias": false}"#, "attention_bias"),
        (r#"{"cross_attention_dim": 4096}"#, "cross_attention_dim"),
        (
            r#"{"norm_elementwise_affine": true}"#,
            "norm_elementwise_affine",
        ),
        (r#"{"out_channels": 64}"#, "out_channels"),
        (r#"{"num_layers": 0}"#, "num_layers"),
        (r#"{"audio_in_channels": 8}"#, "audio_in_channels"),
    ] {
        let config: LtxConfig = serde_json::from_str(json).unwrap();
        let error = config.check().unwrap_err();
        assert!(error.contains(named), "{json}: {error}");
    }
    for (json, named) in [
        (r#"{"patch_size_t": 2}"#, "patch_size_t"),
        (r#"{"in_channels": 4}"#, "in_channels"),
        (r#"{"block_out_channels": []}"#, "block_out_channels"),
        (
            r#"{"block_out_channels": [0, 1, 1, 1]}"#,
            "block_out_channels",
        ),
        (r#"{"down_block_types": ["DownBlock"]}"#, "down_block_types"),
        (r#"{"layers_per_block": [1]}"#, "layers_per_block"),
        (r#"{"upsample_factor": [1, 3, 1, 1]}"#, "upsample_factor"),
        (r#"{"upsample_factor": [2, 2, 2, 2]}"#, "fit together"),
        (
            r#"{"timestep_conditioning": true}"#,
            "timestep_conditioning",
        ),
        (
            r#"{"spatial_compression_ratio": 8}"#,
            "spatial_compression_ratio",
        ),
        (
            r#"{"temporal_compression_ratio": 4}"#,
            "temporal_compression_ratio",
        ),
        (
            r#"{"decoder_spatio_temporal_scaling": [true, true, false, false]}"#,
            "larger 2 times",
        ),
        (r#"{"scaling_factor": 0}"#, "scaling_factor"),
        (r#"{"unheard_of": 1}"#, "unheard_of"),
    ] {
        let config: LtxVaeConfig = serde_json::from_str(json).unwrap();
        let error = config.check().unwrap_err();
        assert!(error.contains(named), "{json}: {error}");
    }
}

/// The original's name of a transformer's tensor.
fn original(name: &str) -> String {
    let parts = [
        ("proj_in", "patchify_proj"),
        ("time_embed", "adaln_single"),
        ("norm_q", "q_norm"),
        ("norm_k", "k_norm"),
    ];
    let parts = parts.iter();
    parts.fold(name.to_string(), |name, (ours, theirs)| {
        name.replace(ours, theirs)
    })
}

/// Single files with T5 in them, and transformers in files of their own, as safetensors and GGUF.
#[test]
fn files_under_the_originals_names() {
    let p = Pipelines::of("ltx");
    let path = |name: &str| p.place().join(name);
    for (model, settings, case) in [
        ("ltx", "{}", "ltx"),
        (
            "ltx_keyed",
            r#"{"transformer": {"causal_temporal_positioning": true}}"#,
            "ltx_keyed",
        ),
    ] {
        let folder = p.folder(model);
        let part = |name: &str, file: &str| p.weights(model, &format!("{name}/{file}.safetensors"));
        let transformer: Tensors = part("transformer", "diffusion_pytorch_model")
            .into_iter()
            .map(|(name, tensor)| (original(&name), tensor))
            .collect();
        assert!(transformer.contains_key("transformer_blocks.0.attn1.q_norm.weight"));
        let mut all = Tensors::new();
        for (name, tensor) in &transformer {
            all.insert(format!("model.diffusion_model.{name}"), tensor.clone());
        }
        for (name, tensor) in part("text_encoder", "model") {
            all.insert(format!("text_encoders.t5xxl.transformer.{name}"), tensor);
        }
        let file = path(&format!("{model}.safetensors"));
        let metadata = [("config".to_string(), settings.to_string())].into();
        safetensors::serialize_to_file(&all, Some(metadata), &file).unwrap();
        let options = PipelineOptions {
            vae: Some(folder.join("vae")),
            text_encoders: Some(folder.clone()),
            ..PipelineOptions::default()
        };
        let mut pipeline = p.load(&file, options);
        let usual = pipeline.info().defaults.schedule;
        check(&p, &mut pipeline, case, |request| request.schedule = usual);
        let gguf = path(&format!("{model}.gguf"));
        write_gguf(&gguf, &transformer, GgmlDType::F32, "F32");
        let options = PipelineOptions {
            transformer: Some(gguf),
            ..PipelineOptions::default()
        };
        check(&p, &mut p.load(&folder, options), case, |request| {
            request.schedule = usual;
        });
    }
}

/// LoRAs under all names.
#[test]
fn loras() {
    let p = Pipelines::of("ltx");
    let mut pipeline = load(&p, "ltx");
    let mut with = |file: &str, layer: &str| {
        let matrix = |name: &str, shape: &[usize]| super::hashed::weight("lora", name, shape);
        let tensors = Tensors::from([
            (format!("{layer}.lora_A.weight"), matrix("a", &[4, 4])),
            (format!("{layer}.lora_B.weight"), matrix("b", &[64, 4])),
        ]);
        let path = p.place().join(file);
        candle_core::safetensors::save(&tensors, &path).unwrap();
        let mut request = request(&p, "ltx");
        request.loras = vec![Lora::new(path.display().to_string(), 1.0)];
        draw(&mut pipeline, &request)
    };
    let ours = with("ours.safetensors", "transformer.proj_in");
    assert!(apart(&ours, &p.picture("ltx")) > 3);
    assert_eq!(
        with("theirs.safetensors", "diffusion_model.patchify_proj"),
        ours
    );
    assert_eq!(with("kohya.safetensors", "lora_unet_patchify_proj"), ours);
}

/// What the original's lists of layers are, of each generation: diffusers' names, in the list's order.
const DOWN: [&[&str]; 2] = [
    &[
        "down_blocks.0.resnets",
        "down_blocks.0.downsamplers.0",
        "down_blocks.0.conv_out",
        "down_blocks.1.resnets",
        "down_blocks.1.downsamplers.0",
        "down_blocks.1.conv_out",
        "down_blocks.2.resnets",
        "down_blocks.2.downsamplers.0",
        "down_blocks.3.resnets",
        "mid_block.resnets",
    ],
    &[
        "down_blocks.0.resnets",
        "down_blocks.0.downsamplers.0",
        "down_blocks.1.resnets",
        "down_blocks.1.downsamplers.0",
        "down_blocks.2.resnets",
        "down_blocks.2.downsamplers.0",
        "down_blocks.3.resnets",
        "down_blocks.3.downsamplers.0",
        "mid_block.resnets",
    ],
];
const UP: [&[&str]; 2] = [
    &[
        "mid_block.resnets",
        "up_blocks.0.resnets",
        "up_blocks.1.upsamplers.0",
        "up_blocks.1.resnets",
        "up_blocks.2.conv_in",
        "up_blocks.2.upsamplers.0",
        "up_blocks.2.resnets",
        "up_blocks.3.conv_in",
        "up_blocks.3.upsamplers.0",
        "up_blocks.3.resnets",
    ],
    &[
        "mid_block.resnets",
        "up_blocks.0.upsamplers.0",
        "up_blocks.0.resnets",
        "up_blocks.1.upsamplers.0",
        "up_blocks.1.resnets",
        "up_blocks.2.upsamplers.0",
        "up_blocks.2.resnets",
        "up_blocks.3.upsamplers.0",
        "up_blocks.3.resnets",
    ],
];

/// The original's name of an autoencoder's tensor.
fn original_vae(name: &str, down: &[&str], up: &[&str]) -> String {
    match name {
        "latents_mean" => return "per_channel_statistics.mean-of-means".to_string(),
        "latents_std" => return "per_channel_statistics.std-of-means".to_string(),
        _ => {}
    }
    let (side, rest) = name.split_once('.').unwrap();
    let (list, layers) = match side {
        "encoder" => ("down_blocks", down),
        _ => ("up_blocks", up),
    };
    let rest = rest
        .replace("conv_shortcut.conv.", "conv_shortcut.")
        .replace("norm3.", "norm3.norm.");
    for (i, layer) in layers.iter().enumerate() {
        if let Some(rest) = rest.strip_prefix(&format!("{layer}.")) {
            let resnets = if layer.ends_with("resnets") {
                "res_blocks."
            } else {
                ""
            };
            return format!("{side}.{list}.{i}.{resnets}{rest}");
        }
        let timed = layer.replace("resnets", "time_embedder.");
        if let Some(rest) = rest.strip_prefix(&timed) {
            return format!("{side}.{list}.{i}.time_embedder.{rest}");
        }
    }
    let rest = rest.replace("time_embedder.", "last_time_embedder.");
    let rest = match rest.as_str() {
        "scale_shift_table" => "last_scale_shift_table".to_string(),
        _ => rest,
    };
    format!("{side}.{rest}")
}

#[test]
fn autoencoders_in_files() {
    let device = Device::Cpu;
    let place = tempfile::tempdir().unwrap();
    let first = serde_json::json!({
        "latent_channels": 6, "block_out_channels": [4, 8, 16, 16], "decoder_block_out_channels": [4, 8, 16, 16], "layers_per_block": [1, 2, 1, 1, 1],
        "decoder_layers_per_block": [1, 2, 1, 1, 1],
    });
    let more = |json: &serde_json::Value, more: serde_json::Value| {
        let mut json = json.as_object().unwrap().clone();
        json.extend(more.as_object().unwrap().clone());
        serde_json::Value::Object(json)
    };
    let middle = more(
        &first,
        serde_json::json!({
            "decoder_block_out_channels": [8, 16, 32], "decoder_layers_per_block": [1, 2, 1, 1], "decoder_spatio_temporal_scaling": [true, true, true],
            "decoder_inject_noise": [false, true, false, true], "upsample_residual": [true, true, true], "upsample_factor": [2, 2, 2], "timestep_conditioning": true,
        }),
    );
    let newer = more(
        &middle,
        serde_json::json!({
            "block_out_channels": [4, 8, 16, 32, 64], "down_block_types": vec!["LTXVideo095DownBlock3D"; 4], "spatio_temporal_scaling": vec![true; 4],
            "downsample_type": ["spatial", "temporal", "spatiotemporal", "spatiotemporal"], "decoder_inject_noise": vec![false; 4],
        }),
    );
    for (generation, json) in [first, middle, newer].into_iter().enumerate() {
        let (down, up) = (DOWN[generation / 2], UP[generation.min(1)]);
        let config: LtxVaeConfig = serde_json::from_value(json).unwrap();
        let (vae, tensors) = network("vae", nothing_absent, &device, |vb| {
            LtxVae::new(vb, &config)
        });
        let theirs: Tensors = tensors
            .into_iter()
            .map(|(name, tensor)| (original_vae(&name, down, up), tensor))
            .collect();
        assert!(theirs.contains_key("decoder.up_blocks.0.res_blocks.0.conv1.conv.weight"));
        let path = place.path().join(format!("{generation}.safetensors"));
        candle_core::safetensors::save(&theirs, &path).unwrap();
        let (found, weights) = ltx_vae::take(&Weights::open(&path).unwrap()).unwrap();
        assert_eq!(format!("{found:?}"), format!("{config:?}"));
        let tensors = weights.load_all(DType::F32, &device).unwrap();
        let vb = VarBuilder::from_tensors(tensors, DType::F32, &device);
        let again = LtxVae::new(vb, &found).unwrap();
        let values = super::hashed::uniform("picture", 3 * 32 * 64);
        let picture = Tensor::from_vec(values, (1, 3, 32, 64), &device).unwrap();
        let (one, other) = (
            vae.encode(&picture).unwrap(),
            again.encode(&picture).unwrap(),
        );
        assert_eq!(difference(&one, &other), 0.0);
        let decode = |vae: &LtxVae| vae.decode(&one, None).unwrap();
        assert_eq!(difference(&decode(&vae), &decode(&again)), 0.0);
    }
}
