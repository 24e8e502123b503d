//! Whole models with a transformer as single files, against the folders that they are made of.

use super::checkpoints::original_vae;
use super::common::{device, go_on, Draw};
use super::pipelines::{originals, Tensors};
use super::small::Pipelines;
use candle_core::{DType, Device, Tensor};
use sd_worker_rocm::pipeline::{Pipeline, PipelineOptions, Precision};
use serde_json::{json, Value};
use std::path::{Path, PathBuf};

/// The small models, altered to what a file without configuration cannot say otherwise: heads of CLIP, groups of the
/// VAE's norms, rotations of Qwen3, CLIP without a projection; FLUX.1 has one head, so that an eighth of it can turn
/// with the index.
pub fn models() -> Pipelines {
    let mut p = Pipelines::open();
    for model in ["sd3", "sd35"] {
        p.alter(model, |about| {
            for tower in ["text_encoder", "text_encoder_2"] {
                about["files"][format!("{tower}/config.json")]["num_attention_heads"] = json!(1);
            }
            let shapes = &mut about["weights"]["text_encoder/model.safetensors"]["shapes"];
            shapes
                .as_object_mut()
                .unwrap()
                .remove("text_projection.weight");
            // 32 channels of CLIP's and 20 of OpenCLIP's projection.
            about["files"]["transformer/config.json"]["pooled_projection_dim"] = json!(52);
            let weights = &mut about["weights"]["transformer/diffusion_pytorch_model.safetensors"];
            weights["shapes"]["time_text_embed.text_embedder.linear_1.weight"] = json!([32, 52]);
            wider_vae(about);
        });
    }
    for model in ["flux", "schnell"] {
        p.alter(model, |about| {
            about["files"]["text_encoder/config.json"]["num_attention_heads"] = json!(1);
            let config = &mut about["files"]["transformer/config.json"];
            config["num_attention_heads"] = json!(1);
            config["attention_head_dim"] = json!(32);
            config["axes_dims_rope"] = json!([4, 14, 14]);
            let weights = &mut about["weights"]["transformer/diffusion_pytorch_model.safetensors"];
            for (name, shape) in weights["shapes"].as_object_mut().unwrap() {
                if name.contains(".attn.norm_") {
                    *shape = json!([32]);
                }
            }
            wider_vae(about);
        });
    }
    p.alter("z_image", |about| {
        let config = &mut about["files"]["text_encoder/config.json"];
        config["rope_parameters"]["rope_theta"] = json!(1e6);
        wider_vae(about);
    });
    p
}

/// A VAE that 32 groups divide.
fn wider_vae(about: &mut Value) {
    let config = &mut about["files"]["vae/config.json"];
    config["block_out_channels"] = json!([32, 64]);
    config["norm_num_groups"] = json!(32);
    let weights = &mut about["weights"]["vae/diffusion_pytorch_model.safetensors"];
    for shape in weights["shapes"].as_object_mut().unwrap().values_mut() {
        for dim in shape.as_array_mut().unwrap() {
            match dim.as_u64() {
                Some(16) => *dim = json!(32),
                Some(32) => *dim = json!(64),
                _ => (),
            }
        }
    }
}

/// A model's tensors under the names that they have in a file for all.
pub fn packed(p: &Pipelines, model: &str) -> Tensors {
    let mut all = Tensors::new();
    for (name, tensor) in originals(p, model) {
        all.insert(format!("model.diffusion_model.{name}"), tensor);
    }
    let flux = !model.starts_with("sd3");
    for (name, tensor) in p.weights(model, "vae/diffusion_pytorch_model.safetensors") {
        let (name, tensor) = original_vae(&name, &tensor, 2);
        let prefix = if flux { "vae" } else { "first_stage_model" };
        all.insert(format!("{prefix}.{name}"), tensor);
    }
    let encoders: &[(&str, &str)] = match model {
        "sd3" => &[("clip_l", "text_encoder"), ("clip_g", "text_encoder_2")],
        "sd35" => &[
            ("clip_l", "text_encoder"),
            ("clip_g", "text_encoder_2"),
            ("t5xxl", "text_encoder_3"),
        ],
        "z_image" => &[("qwen3_4b", "text_encoder")],
        _ => &[("clip_l", "text_encoder"), ("t5xxl", "text_encoder_2")],
    };
    for (name, part) in encoders {
        for (tensor, value) in p.weights(model, &format!("{part}/model.safetensors")) {
            // The tower's part of the names, which newer folders leave out.
            let whole = ["t5xxl", "qwen3_4b"].contains(name)
                || tensor.starts_with("text_model.")
                || tensor.starts_with("text_projection.");
            let tower = if whole { "" } else { "text_model." };
            let name = format!("text_encoders.{name}.transformer.{tower}{tensor}");
            all.insert(name, value);
        }
    }
    all
}

fn save(p: &Pipelines, name: &str, tensors: &Tensors) -> PathBuf {
    let path = p.place().join(format!("{name}.safetensors"));
    candle_core::safetensors::save(tensors, &path).unwrap();
    path
}

pub fn without(tensors: &Tensors, prefix: &str) -> Tensors {
    let kept = tensors.iter().filter(|(name, _)| !name.starts_with(prefix));
    kept.map(|(name, tensor)| (name.clone(), tensor.clone()))
        .collect()
}

fn beside(folder: &Path) -> PipelineOptions {
    PipelineOptions {
        text_encoders: Some(folder.to_path_buf()),
        ..PipelineOptions::default()
    }
}

/// A case's picture after one step.
fn picture(
    p: &Pipelines,
    case: &str,
    path: &Path,
    options: PipelineOptions,
    device: &Device,
) -> Vec<u8> {
    let options = PipelineOptions {
        precision: Precision::F32,
        ..options
    };
    let mut pipeline = Pipeline::load(path, device, options, &mut |_| {}).unwrap();
    let mut request = p.request(case);
    request.steps = 1;
    let generated = pipeline.draw(&request, &mut go_on).unwrap();
    generated.images[0].as_raw().clone()
}

/// What is read from files is the same everywhere, so that one model is enough on a device.
#[test]
fn a_single_file_with_a_transformer_is_the_same_model() {
    let p = models();
    for model in ["sd3", "sd35", "flux", "schnell", "z_image"] {
        let folder = p.folder(model);
        let draw =
            |path: &Path, options, device: &Device| picture(&p, model, path, options, device);
        let all = packed(&p, model);
        let whole = save(&p, model, &all);
        // The folder has the tokenizers.
        let expected = draw(&folder, PipelineOptions::default(), &Device::Cpu);
        assert_eq!(
            draw(&whole, beside(&folder), &Device::Cpu),
            expected,
            "{model}"
        );
        // And the encoders, if the file has none.
        let bare = save(&p, "bare", &without(&all, "text_encoders."));
        assert_eq!(
            draw(&bare, beside(&folder), &Device::Cpu),
            expected,
            "{model}"
        );
        // And a VAE of its own is scaled as the family's.
        let prefix = if model.starts_with("sd3") {
            "first_stage_model."
        } else {
            "vae."
        };
        let vae: Tensors = all
            .iter()
            .filter_map(|(name, tensor)| Some((name.strip_prefix(prefix)?, tensor.clone())))
            .map(|(name, tensor)| (name.to_string(), tensor))
            .collect();
        let options = PipelineOptions {
            vae: Some(save(&p, "vae", &vae)),
            ..beside(&folder)
        };
        let rest = save(&p, "rest", &without(&all, prefix));
        assert_eq!(draw(&rest, options, &Device::Cpu), expected, "{model}");
        if model == "sd35" && !device().is_cpu() {
            let expected = draw(&folder, PipelineOptions::default(), &device());
            assert_eq!(draw(&whole, beside(&folder), &device()), expected);
        }
    }
}

/// Encoders as files with nothing but weights, T5's in 8-bit floats with a scale.
#[test]
fn text_encoders_of_their_own() {
    let p = models();
    let (folder, all) = (p.folder("sd35"), packed(&p, "sd35"));
    let place = p.place().join("encoders");
    std::fs::create_dir_all(place.join("text_encoders")).unwrap();
    for part in ["tokenizer", "tokenizer_2", "tokenizer_3"] {
        std::fs::create_dir(place.join(part)).unwrap();
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            let name = format!("{part}/{name}");
            std::fs::copy(folder.join(&name), place.join(&name)).unwrap();
        }
    }
    let write = |encoder: &str, file: &str, change: &dyn Fn(&str, Tensor) -> Tensors| {
        let prefix = format!("text_encoders.{encoder}.transformer.");
        let tensors: Tensors = all
            .iter()
            .filter_map(|(name, tensor)| Some((name.strip_prefix(&prefix)?, tensor.clone())))
            .flat_map(|(name, tensor)| change(name, tensor))
            .collect();
        let path = place.join(format!("text_encoders/{file}.safetensors"));
        candle_core::safetensors::save(&tensors, path).unwrap();
    };
    let as_it_is = |name: &str, tensor| Tensors::from([(name.to_string(), tensor)]);
    write("clip_l", "clip_l", &as_it_is);
    write("clip_g", "clip_g", &as_it_is);
    write("t5xxl", "t5xxl_fp16", &as_it_is);
    let bare = save(&p, "bare", &without(&all, "text_encoders."));
    let draw = |path: &Path, options| picture(&p, "sd35", path, options, &Device::Cpu);
    let expected = draw(&folder, PipelineOptions::default());
    assert_eq!(draw(&bare, beside(&place)), expected);

    // What 8 bits with a scale hold is what 32 bits hold of their product.
    let scale = Tensor::new(0.0078125f32, &Device::Cpu).unwrap();
    let eight = |tensor: &Tensor| {
        let scaled = (tensor / 0.0078125).unwrap();
        scaled.to_dtype(DType::F8E4M3).unwrap()
    };
    let matrix = |name: &str| name.contains("SelfAttention") && name.ends_with("weight");
    let product = |name: &str, tensor: Tensor| match matrix(name) {
        true => as_it_is(
            name,
            (eight(&tensor).to_dtype(DType::F32).unwrap() * 0.0078125).unwrap(),
        ),
        false => as_it_is(name, tensor),
    };
    write("t5xxl", "t5xxl_fp16", &product);
    let rounded = draw(&bare, beside(&place));
    assert_ne!(rounded, expected);
    let stored = |name: &str, tensor: Tensor| match matrix(name) {
        true => Tensors::from([
            (name.to_string(), eight(&tensor)),
            (name.replace("weight", "scale_weight"), scale.clone()),
            ("scaled_fp8".to_string(), eight(&scale)),
        ]),
        false => as_it_is(name, tensor),
    };
    write("t5xxl", "t5xxl_fp16", &stored);
    assert_eq!(draw(&bare, beside(&place)), rounded);
}

#[test]
fn what_a_single_file_lacks_is_named() {
    let p = models();
    let all = packed(&p, "sd35");
    let empty = p.place().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let refused = |tensors: &Tensors, options: PipelineOptions, reasons: &[&str]| {
        let path = save(&p, "lacking", tensors);
        let loaded = Pipeline::load(&path, &Device::Cpu, options, &mut |_| {});
        let error = loaded.err().expect(reasons[0]);
        assert_eq!(error.exit_code(), worker::error::EXIT_BAD_INPUT);
        for reason in reasons {
            assert!(error.to_string().contains(reason), "{error}");
        }
    };
    let plain = PipelineOptions::default;
    let lacking = |prefix: &str| without(&all, prefix);
    refused(
        &all,
        plain(),
        &["tokenizer_3/tokenizer.json", "--text-encoders"],
    );
    refused(&lacking("first_stage_model."), plain(), &["--vae"]);
    let reasons = ["clip_g", "text_encoder_2", "--text-encoders"];
    refused(&lacking("text_encoders.clip_g."), plain(), &reasons);
    let reasons = ["clip_l", "has neither"];
    refused(&lacking("text_encoders.clip_l."), beside(&empty), &reasons);
    let flux = packed(&p, "flux");
    let reasons = ["no T5", "t5xxl"];
    refused(&without(&flux, "text_encoders.t5xxl."), plain(), &reasons);

    let z_image = packed(&p, "z_image");
    let reasons = ["tokenizer/tokenizer.json", "--text-encoders"];
    refused(&z_image, plain(), &reasons);
    let rest = without(&z_image, "text_encoders.");
    refused(&rest, plain(), &["no Qwen3", "qwen_3_4b"]);

    // Shapes that make no model.
    let sized = |name: &str, shape: &[usize]| {
        let mut tensors = all.clone();
        let zeros = Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
        assert!(tensors.insert(name.to_string(), zeros).is_some());
        tensors
    };
    let transformer = "model.diffusion_model.";
    for (name, shape, reason) in [
        (
            format!("{transformer}pos_embed"),
            [1, 255, 32].as_slice(),
            "not a square",
        ),
        (
            format!("{transformer}context_embedder.weight"),
            &[32],
            "context_embedder",
        ),
        (
            format!("{transformer}x_embedder.proj.weight"),
            &[30, 4, 2, 2],
            "no heads",
        ),
        (
            format!("{transformer}context_embedder.weight"),
            &[32, 1 << 15],
            "joint_attention_dim",
        ),
        (
            "first_stage_model.decoder.up.0.block.0.conv2.weight".to_string(),
            &[33, 33, 3, 3],
            "groups",
        ),
        (
            "text_encoders.clip_l.transformer.text_model.embeddings.position_embedding.weight"
                .to_string(),
            &[0, 32],
            "max_position_embeddings",
        ),
    ] {
        refused(&sized(&name, shape), beside(&p.folder("sd35")), &[reason]);
    }
    let mut flux = flux;
    let odd = Tensor::ones(24, DType::F32, &Device::Cpu).unwrap();
    let norm = "double_blocks.0.img_attn.norm.query_norm.scale";
    assert!(flux.insert(format!("{transformer}{norm}"), odd).is_some());
    refused(&flux, beside(&p.folder("flux")), &["heads of 24"]);
}
