//! Models on disk: single files against folders, and what is refused.

use super::common::{device, file, go_on, request, tiny, Draw};
use super::networks::Networks;
use candle_core::{DType, Device, Tensor};
use sd_worker_rocm::pipeline::{Pipeline, PipelineOptions};
use sd_worker_rocm::weights::openclip::text_tower;
use sd_worker_rocm::weights::Weights;
use std::collections::HashMap;
use std::path::Path;

type Tensors = HashMap<String, Tensor>;

/// Tokens of words in CLIP's vocabulary.
const RED: usize = 736;
const CIRCLE: usize = 7117;

/// The original's name of a UNet's tensor, for one layer a block.
fn original_unet(name: &str) -> String {
    let resnet = |rest: &str| {
        rest.replace("norm1.", "in_layers.0.")
            .replace("conv1.", "in_layers.2.")
            .replace("time_emb_proj.", "emb_layers.1.")
            .replace("norm2.", "out_layers.0.")
            .replace("conv2.", "out_layers.3.")
            .replace("conv_shortcut.", "skip_connection.")
    };
    let parts: Vec<&str> = name.splitn(5, '.').collect();
    match parts.as_slice() {
        ["time_embedding", "linear_1", kind] => format!("time_embed.0.{kind}"),
        ["time_embedding", "linear_2", kind] => format!("time_embed.2.{kind}"),
        ["conv_in", kind] => format!("input_blocks.0.0.{kind}"),
        ["conv_norm_out", kind] => format!("out.0.{kind}"),
        ["conv_out", kind] => format!("out.2.{kind}"),
        ["mid_block", "resnets", i, ..] => {
            let rest = name.splitn(4, '.').last().unwrap();
            let at = 2 * i.parse::<usize>().unwrap();
            format!("middle_block.{at}.{}", resnet(rest))
        }
        ["mid_block", "attentions", ..] => {
            format!("middle_block.1.{}", name.splitn(4, '.').last().unwrap())
        }
        ["down_blocks", block, kind, _, rest] => {
            let at = 1 + 2 * block.parse::<usize>().unwrap();
            match *kind {
                "resnets" => format!("input_blocks.{at}.0.{}", resnet(rest)),
                "attentions" => format!("input_blocks.{at}.1.{rest}"),
                _ => format!("input_blocks.{}.0.{}", at + 1, rest.replace("conv.", "op.")),
            }
        }
        ["up_blocks", block, kind, layer, rest] => {
            let block: usize = block.parse().unwrap();
            let at = 2 * block + layer.parse::<usize>().unwrap();
            match *kind {
                "resnets" => format!("output_blocks.{at}.0.{}", resnet(rest)),
                "attentions" => format!("output_blocks.{at}.1.{rest}"),
                // Behind the attention, where there is one.
                _ => format!(
                    "output_blocks.{}.{}.{rest}",
                    2 * block + 1,
                    if block == 0 { 1 } else { 2 }
                ),
            }
        }
        _ => panic!("{name}"),
    }
}

/// The original's name of a VAE's tensor, of so many blocks each way, and its shape there.
pub fn original_vae(name: &str, tensor: &Tensor, blocks: usize) -> (String, Tensor) {
    let name = name
        .replace("mid_block.resnets.0.", "mid.block_1.")
        .replace("mid_block.resnets.1.", "mid.block_2.")
        .replace("mid_block.attentions.0.group_norm.", "mid.attn_1.norm.")
        .replace("mid_block.attentions.0.to_q.", "mid.attn_1.q.")
        .replace("mid_block.attentions.0.to_k.", "mid.attn_1.k.")
        .replace("mid_block.attentions.0.to_v.", "mid.attn_1.v.")
        .replace("mid_block.attentions.0.to_out.0.", "mid.attn_1.proj_out.")
        .replace("conv_norm_out.", "norm_out.")
        .replace("conv_shortcut.", "nin_shortcut.")
        .replace("downsamplers.0.", "downsample.")
        .replace("upsamplers.0.", "upsample.")
        .replace("down_blocks.", "down.")
        .replace("resnets.", "block.");
    let name = match name.split_once("up_blocks.") {
        Some((side, rest)) => {
            let (level, rest) = rest.split_once('.').unwrap();
            let level = blocks - 1 - level.parse::<usize>().unwrap();
            format!("{side}up.{level}.{rest}")
        }
        None => name,
    };
    // Attention is of 1x1 convolutions there.
    let tensor = match tensor.dims() {
        [o, i] => tensor.reshape((*o, *i, 1, 1)).unwrap(),
        _ => tensor.clone(),
    };
    (name, tensor)
}

fn tensors(path: &str) -> Tensors {
    candle_core::safetensors::load(file(path), &Device::Cpu).unwrap()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => std::fs::copy(entry.path(), target).map(drop).unwrap(),
        }
    }
}

fn set(path: &Path, changes: &[(&str, serde_json::Value)]) {
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for (key, value) in changes {
        json[key] = value.clone();
    }
    std::fs::write(path, json.to_string()).unwrap();
}

/// One model in both forms gives one picture. What a single file cannot say is set in the folder to what version 1 has.
#[test]
fn a_single_file_is_the_same_model() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("folder");
    copy(&file("models/tiny-shapes-sd"), &folder);
    set(
        &folder.join("unet/config.json"),
        &[("attention_head_dim", 8.into())],
    );
    set(
        &folder.join("text_encoder/config.json"),
        &[("num_attention_heads", 1.into())],
    );
    set(
        &folder.join("vae/config.json"),
        &[
            ("norm_num_groups", 32.into()),
            ("scaling_factor", 0.18215.into()),
        ],
    );
    let mut all = Tensors::new();
    for (name, tensor) in tensors("models/tiny-shapes-sd/unet/diffusion_pytorch_model.safetensors")
    {
        let name = format!("model.diffusion_model.{}", original_unet(&name));
        assert!(all.insert(name, tensor).is_none());
    }
    for (name, tensor) in tensors("models/tiny-shapes-sd/vae/diffusion_pytorch_model.safetensors") {
        let (name, tensor) = original_vae(&name, &tensor, 4);
        all.insert(format!("first_stage_model.{name}"), tensor);
    }
    for (name, tensor) in tensors("models/tiny-shapes-sd/text_encoder/model.safetensors") {
        all.insert(format!("cond_stage_model.transformer.{name}"), tensor);
    }
    let single = place.path().join("single.safetensors");
    candle_core::safetensors::save(&all, &single).unwrap();

    let mut small = request("a red circle on a blue background", 1);
    small.steps = 2;
    let picture = |path: &Path| {
        let options = PipelineOptions::default();
        let mut pipeline = Pipeline::load(path, &device(), options, &mut |_| {}).unwrap();
        pipeline.draw(&small, &mut go_on).unwrap().images
    };
    assert_eq!(picture(&folder), picture(&single));

    // A VAE of its own replaces the model's, from both kinds of files.
    let vae: Tensors = all
        .iter()
        .filter_map(|(name, tensor)| {
            let name = name.strip_prefix("first_stage_model.")?;
            Some((name.to_string(), (tensor * 0.5).unwrap()))
        })
        .collect();
    let other = place.path().join("vae.safetensors");
    candle_core::safetensors::save(&vae, &other).unwrap();
    let options = PipelineOptions {
        vae: Some(other),
        ..PipelineOptions::default()
    };
    let mut pipeline = Pipeline::load(&single, &device(), options, &mut |_| {}).unwrap();
    let replaced = pipeline.draw(&small, &mut go_on).unwrap().images;
    assert_ne!(picture(&single), replaced);
}

/// OpenCLIP's names, stacked matrices and transposed projection mean the same tower.
#[test]
fn openclip_towers() {
    let tower = Networks::open().tensors("clip_g");
    let mut original = Tensors::new();
    for (name, tensor) in &tower {
        let new = name
            .replace("text_model.embeddings.token_embedding.", "token_embedding.")
            .replace(
                "text_model.embeddings.position_embedding.weight",
                "positional_embedding",
            )
            .replace("text_model.final_layer_norm.", "ln_final.")
            .replace("text_model.encoder.layers.", "transformer.resblocks.")
            .replace("layer_norm1.", "ln_1.")
            .replace("layer_norm2.", "ln_2.")
            .replace("mlp.fc1.", "mlp.c_fc.")
            .replace("mlp.fc2.", "mlp.c_proj.")
            .replace("self_attn.out_proj.", "attn.out_proj.");
        if let Some((layer, kind)) = new.split_once("self_attn.q_proj.") {
            let of = |part: &str| &tower[&name.replace("q_proj", part)];
            let stacked = Tensor::cat(&[tensor, of("k_proj"), of("v_proj")], 0).unwrap();
            original.insert(format!("{layer}attn.in_proj_{kind}"), stacked);
        } else if new == "text_projection.weight" {
            let transposed = tensor.t().unwrap().contiguous().unwrap();
            original.insert("text_projection".to_string(), transposed);
        } else if !new.contains("self_attn.") {
            original.insert(new, tensor.clone());
        }
    }
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("tower.safetensors");
    candle_core::safetensors::save(&original, &path).unwrap();
    let renamed = text_tower(&Weights::open(&path).unwrap());
    let loaded = renamed.load_all(DType::F32, &Device::Cpu).unwrap();
    assert_eq!(loaded.len(), tower.len());
    for (name, tensor) in &tower {
        let values = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(loaded[name].dims(), tensor.dims(), "{name}");
        assert_eq!(renamed.shape(name).unwrap(), tensor.dims(), "{name}");
        assert_eq!(values(&loaded[name]), values(tensor), "{name}");
    }
}

#[test]
fn what_is_no_model_is_refused_with_a_reason() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let save = |name: &str, tensor: &str| {
        let one = Tensor::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
        let tensors = Tensors::from([(tensor.to_string(), one)]);
        candle_core::safetensors::save(&tensors, at(name)).unwrap();
    };
    std::fs::write(at("zip.safetensors"), b"PK\x03\x04rest of an archive").unwrap();
    std::fs::write(at("old.ckpt"), b"\x80\x02}q\x00.").unwrap();
    std::fs::write(at("model.gguf"), b"GGUF\x03\x00\x00\x00").unwrap();
    std::fs::write(at("huge.safetensors"), [0xff; 64]).unwrap();
    std::fs::write(at("empty.safetensors"), b"").unwrap();
    save("other.safetensors", "layer.weight");
    save("flux.safetensors", "double_blocks.0.img_attn.qkv.weight");
    save(
        "half.safetensors",
        "model.diffusion_model.input_blocks.0.0.weight",
    );
    let whole = std::fs::read(at("other.safetensors")).unwrap();
    std::fs::write(at("cut.safetensors"), &whole[..whole.len() - 3]).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    for (name, reason) in [
        ("zip.safetensors", "pickle"),
        ("old.ckpt", "torch.load"),
        ("model.gguf", "truncated"),
        ("huge.safetensors", "not a safetensors file"),
        ("empty.safetensors", "not a safetensors file"),
        ("cut.safetensors", "not a safetensors file"),
        ("other.safetensors", "not a checkpoint"),
        ("flux.safetensors", "FLUX"),
        ("half.safetensors", "denoiser"),
        ("folder", "model_index.json"),
        ("missing.safetensors", "No such file"),
    ] {
        let options = PipelineOptions::default();
        let error = match Pipeline::load(&at(name), &Device::Cpu, options, &mut |_| {}) {
            Ok(_) => panic!("{name} was loaded"),
            Err(error) => error,
        };
        assert!(error.to_string().contains(reason), "{name}: {error}");
        assert_eq!(error.exit_code(), worker::error::EXIT_BAD_INPUT, "{name}");
    }
}

/// Words of textual inversions stand for their vectors.
#[test]
fn textual_inversion() {
    let place = tempfile::tempdir().unwrap();
    let embeddings = tensors("models/tiny-shapes-sd/text_encoder/model.safetensors");
    let table = &embeddings["text_model.embeddings.token_embedding.weight"];
    let mut plain = tiny(PipelineOptions::default());
    let mut small = request("a red circle on a blue background", 1);
    small.steps = 3;
    let expected = plain.draw(&small, &mut go_on).unwrap().images;
    // "red circle" under another name.
    let vectors = Tensor::cat(
        &[
            table.narrow(0, RED, 1).unwrap(),
            table.narrow(0, CIRCLE, 1).unwrap(),
        ],
        0,
    );
    let vectors = Tensors::from([("emb_params".to_string(), vectors.unwrap())]);
    candle_core::safetensors::save(&vectors, place.path().join("zorblax.safetensors")).unwrap();
    let options = PipelineOptions {
        embeddings: vec![place.path().to_path_buf()],
        ..PipelineOptions::default()
    };
    let mut pipeline = tiny(options);
    small.prompt = "a zorblax on a blue background".to_string();
    assert_eq!(pipeline.draw(&small, &mut go_on).unwrap().images, expected);
}
