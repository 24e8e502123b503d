//! Weights in 8-bit floats, in every layout, against the numbers that they stand for.

use super::common::{device, go_on, Draw};
use super::lora::whole;
use super::packed::{models, packed, without};
use super::pipelines::{originals, with_transformer, Tensors};
use super::small::{apart, Pipelines};
use super::stored::{save, stored, File, Stored};
use candle_core::{DType, Device};
use image::RgbImage;
use sd_worker_rocm::pipeline::{Lora, PartSizes, Pipeline, PipelineOptions, Precision};
use sd_worker_rocm::weights::file::Float8;
use sd_worker_rocm::weights::Weights;
use serde_json::{json, Value};
use std::path::Path;

/// The shapes of a file in which dimensions become what `change` says: name, number of the dimension, size.
fn resize(about: &mut Value, file: &str, change: impl Fn(&str, usize, u64) -> u64) {
    let shapes = &mut about["weights"][file]["shapes"];
    for (name, shape) in shapes.as_object_mut().unwrap() {
        for (at, dim) in shape.as_array_mut().unwrap().iter_mut().enumerate() {
            *dim = json!(change(name, at, dim.as_u64().unwrap()));
        }
    }
}

fn set(about: &mut Value, file: &str, settings: Value) {
    let config = about["files"][file].as_object_mut().unwrap();
    config.extend(settings.as_object().unwrap().clone());
}

/// The small models, of which FLUX.1 and the language models are wide enough for blocks of 64.
fn wide() -> Pipelines {
    let mut p = models();
    p.alter("flux", |about| {
        set(
            about,
            "transformer/config.json",
            json!({"attention_head_dim": 64, "axes_dims_rope": [8, 28, 28], "joint_attention_dim": 64}),
        );
        let weights = "transformer/diffusion_pytorch_model.safetensors";
        resize(about, weights, |name, at, dim| match dim {
            24 => 64,
            _ if at == 1 && name.contains("embedder.linear_1") => dim,
            _ if dim >= 32 => 2 * dim,
            _ => dim,
        });
        set(
            about,
            "text_encoder_2/config.json",
            json!({"d_model": 64, "d_ff": 128, "d_kv": 32}),
        );
        resize(about, "text_encoder_2/model.safetensors", |_, _, dim| {
            match dim {
                16 | 24 => 64,
                48 => 128,
                _ => dim,
            }
        });
    });
    p.alter("z_image", |about| {
        set(
            about,
            "text_encoder/config.json",
            json!({"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}),
        );
        resize(
            about,
            "text_encoder/model.safetensors",
            |_, _, dim| match dim {
                24 | 32 => 64,
                48 => 128,
                8 | 16 => 2 * dim,
                _ => dim,
            },
        );
        set(
            about,
            "transformer/config.json",
            json!({"cap_feat_dim": 64}),
        );
        let weights = "transformer/diffusion_pytorch_model.safetensors";
        resize(about, weights, |_, _, dim| match dim {
            24 => 64,
            _ => dim,
        });
    });
    p
}

/// A case's picture after one step in f32, and what the model is said to be computed in.
fn picture(
    p: &Pipelines,
    case: &str,
    path: &Path,
    options: &PipelineOptions,
    device: &Device,
) -> (RgbImage, String) {
    let options = PipelineOptions {
        precision: Precision::F32,
        ..options.clone()
    };
    let mut pipeline = Pipeline::load(path, device, options, &mut |_| {}).unwrap();
    let mut request = p.request(case);
    request.steps = 1;
    let mut drawn = pipeline.draw(&request, &mut go_on).unwrap();
    (drawn.images.remove(0), pipeline.info().precision.clone())
}

/// Pictures are those of the numbers that 8 bits and scales stand for, but for the order of sums.
#[test]
fn every_layout_of_a_transformer() {
    let p = wide();
    let folder = p.folder("flux");
    let tensors = originals(&p, "flux");
    let draw = |path: &Path, change: &dyn Fn(&mut PipelineOptions), device: &Device| {
        let mut options = with_transformer(path);
        change(&mut options);
        picture(&p, "flux", &folder, &options, device)
    };
    let as_it_is = |_: &mut PipelineOptions| {};
    let (exact, wide) = (
        p.place().join("f.safetensors"),
        p.place().join("n.safetensors"),
    );
    candle_core::safetensors::save(&tensors, &exact).unwrap();
    let (exact, _) = draw(&exact, &as_it_is, &Device::Cpu);
    for layout in [
        Stored::Plain(Float8::E4m3),
        Stored::Plain(Float8::E5m2),
        Stored::ComfyOld,
        Stored::ComfyNew,
        Stored::ComfyMetadata,
        Stored::Rows,
        Stored::Areas(128),
        Stored::Mxfp8,
        Stored::Nvfp4,
    ] {
        let (file, metadata, numbers) = stored(&tensors, layout);
        let path = p.place().join("8.safetensors");
        save(&path, &file, &metadata);
        candle_core::safetensors::save(&numbers, &wide).unwrap();
        let (expected, precision) = draw(&wide, &as_it_is, &Device::Cpu);
        assert_eq!(precision, "f32");
        assert!(apart(&expected, &exact) > 1, "{layout:?} rounds nothing");
        let (drawn, precision) = draw(&path, &as_it_is, &Device::Cpu);
        let off = apart(&drawn, &expected);
        assert!(off <= 1, "{layout:?}: {off}");
        let blocks = match layout {
            Stored::Plain(Float8::E5m2) | Stored::Mxfp8 => "f32",
            Stored::Nvfp4 => "NVFP4",
            _ => "F8E4M3",
        };
        assert_eq!(precision, blocks);
        if layout == Stored::ComfyNew {
            let expand = |options: &mut PipelineOptions| options.expand_fp8 = true;
            let (drawn, precision) = draw(&path, &expand, &Device::Cpu);
            assert_eq!((drawn, precision.as_str()), (expected.clone(), "f32"));
        }
        if layout == Stored::Areas(128) && !device().is_cpu() {
            for offload in [false, true] {
                let change = |options: &mut PipelineOptions| options.offload = offload;
                let (drawn, precision) = draw(&path, &change, &device());
                assert_eq!(precision, "F8E4M3");
                let off = apart(&drawn, &expected);
                assert!(off <= 2, "on the device: {off}");
            }
        }
    }
}

/// Files of everything in 8 bits, and encoders as files of their own.
#[test]
fn text_encoders_and_whole_files() {
    let p = wide();
    for model in ["flux", "z_image"] {
        let folder = p.folder(model);
        let all = packed(&p, model);
        let options = PipelineOptions {
            text_encoders: Some(folder.clone()),
            ..PipelineOptions::default()
        };
        let draw = |path: &Path, options: &PipelineOptions| {
            picture(&p, model, path, options, &Device::Cpu)
        };
        for layout in [Stored::Plain(Float8::E4m3), Stored::ComfyOld] {
            let (file, metadata, numbers) = stored(&all, layout);
            let (path, wide) = (
                p.place().join("8.safetensors"),
                p.place().join("n.safetensors"),
            );
            save(&path, &file, &metadata);
            candle_core::safetensors::save(&numbers, &wide).unwrap();
            let (expected, _) = draw(&wide, &options);
            let (drawn, precision) = draw(&path, &options);
            let off = apart(&drawn, &expected);
            assert!(off <= 1, "{model} {layout:?}: {off}");
            assert_eq!(precision, "F8E4M3");

            // The encoders by themselves; tokenizers are the folder's.
            let place = p.place().join(format!("{model}-encoders"));
            std::fs::create_dir_all(&place).unwrap();
            for part in ["tokenizer", "tokenizer_2"] {
                let Ok(files) = std::fs::read_dir(folder.join(part)) else {
                    continue;
                };
                std::fs::create_dir_all(place.join(part)).unwrap();
                for file in files {
                    let file = file.unwrap();
                    let to = place.join(part).join(file.file_name());
                    std::fs::copy(file.path(), to).unwrap();
                }
            }
            for (encoder, name) in [
                ("clip_l", "clip_l"),
                ("t5xxl", "t5xxl_fp8_e4m3fn_scaled"),
                ("qwen3_4b", "qwen_3_4b_fp8_scaled"),
            ] {
                let prefix = format!("text_encoders.{encoder}.transformer.");
                let own: File = file
                    .iter()
                    .filter_map(|(name, raw)| Some((name.strip_prefix(&prefix)?, raw)))
                    .map(|(name, raw)| (name.to_string(), raw.clone()))
                    .collect();
                if !own.is_empty() {
                    save(&place.join(format!("{name}.safetensors")), &own, &[]);
                }
            }
            let rest = p.place().join("rest.safetensors");
            candle_core::safetensors::save(&without(&numbers, "text_encoders."), &rest).unwrap();
            let beside = PipelineOptions {
                text_encoders: Some(place),
                ..PipelineOptions::default()
            };
            let off = apart(&draw(&rest, &beside).0, &expected);
            assert!(off <= 1, "{model} {layout:?}, encoders: {off}");
        }
    }
}

/// Blocks of a size that only the configuration tells, in shards; a scale may lie in another than its matrix.
#[test]
fn folders_with_a_quantization_config() {
    let p = wide();
    let folder = p.folder("z_image");
    let part = folder.join("text_encoder");
    let tensors = p.weights("z_image", "text_encoder/model.safetensors");
    let (file, _, numbers) = stored(&tensors, Stored::Areas(64));
    let draw = || {
        let options = PipelineOptions::default();
        picture(&p, "z_image", &folder, &options, &Device::Cpu).0
    };
    let whole = part.join("model.safetensors");
    candle_core::safetensors::save(&numbers, &whole).unwrap();
    let expected = draw();
    std::fs::remove_file(whole).unwrap();
    let shards = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let (scales, weights): (File, File) =
        (file.into_iter()).partition(|(name, _)| name.ends_with("weight_scale_inv"));
    assert!(scales.len() > 10);
    let mut map = serde_json::Map::new();
    for (shard, tensors) in shards.iter().zip([&weights, &scales]) {
        save(&part.join(shard), tensors, &[]);
        map.extend(tensors.keys().map(|name| (name.clone(), json!(shard))));
    }
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    std::fs::write(part.join("model.safetensors.index.json"), index).unwrap();
    let path = part.join("config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let say = |settings: Value| {
        let mut config = config.clone();
        config["quantization_config"] = settings;
        std::fs::write(&path, config.to_string()).unwrap();
    };
    say(
        json!({"quant_method": "fp8", "weight_block_size": [64, 64], "activation_scheme": "dynamic"}),
    );
    let off = apart(&draw(), &expected);
    assert!(off <= 1, "{off}");
    let refused = || {
        let options = PipelineOptions::default();
        let loaded = Pipeline::load(&folder, &Device::Cpu, options, &mut |_| {});
        let error = loaded.err().unwrap();
        assert_eq!(error.exit_code(), worker::error::EXIT_BAD_INPUT);
        error.to_string()
    };
    say(json!({"quant_method": "torchao", "quant_type": {}}));
    assert!(refused().contains("torchao"), "{}", refused());
    // Another size.
    say(json!({"quant_method": "fp8", "weight_block_size": [128, 64]}));
    assert!(refused().contains("do not fit"), "{}", refused());
}

/// A UNet in 8 bits: matrices stay so, convolutions do not.
#[test]
fn a_unet_in_8_bits() {
    let p = Pipelines::open();
    let folder = p.folder("xl");
    let name = "unet/diffusion_pytorch_model.safetensors";
    let tensors = p.weights("xl", name);
    let (file, _, numbers) = stored(&tensors, Stored::Plain(Float8::E4m3));
    let draw = || {
        let options = PipelineOptions::default();
        picture(&p, "xl", &folder, &options, &device())
    };
    candle_core::safetensors::save(&numbers, folder.join(name)).unwrap();
    let (expected, _) = draw();
    save(&folder.join(name), &file, &[]);
    let (drawn, precision) = draw();
    assert_eq!(precision, "F8E4M3");
    let off = apart(&drawn, &expected);
    assert!(off <= 2, "{off}");
}

/// A LoRA beside matrices of 8-bit floats is the LoRA merged into what they stand for.
#[test]
fn loras_beside_8_bits() {
    let p = wide();
    let folder = p.folder("flux");
    let (file, _, numbers) = stored(&originals(&p, "flux"), Stored::Rows);
    let (eight, plain) = (
        p.place().join("8.safetensors"),
        p.place().join("n.safetensors"),
    );
    save(&eight, &file, &[]);
    candle_core::safetensors::save(&numbers, &plain).unwrap();
    let mut lora = Tensors::new();
    for (layer, outputs, inputs) in [
        ("transformer_blocks.0.attn.to_q", 64, 64),
        ("single_transformer_blocks.1.proj_out", 64, 320),
        // Too narrow for blocks.
        ("x_embedder", 64, 16),
    ] {
        let factor = |rows, columns, seed| (whole(rows, columns, seed) * 0.02).unwrap();
        lora.insert(
            format!("transformer.{layer}.lora_A.weight"),
            factor(3, inputs, 1),
        );
        lora.insert(
            format!("transformer.{layer}.lora_B.weight"),
            factor(outputs, 3, 2),
        );
    }
    let path = p.place().join("lora.safetensors");
    candle_core::safetensors::save(&lora, &path).unwrap();
    let lora = Lora::new(path.to_str().unwrap(), 2.0);
    let mut request = p.request("flux");
    request.steps = 1;
    let mut draw = |pipeline: &mut Pipeline, loras: &[Lora]| -> RgbImage {
        request.loras = loras.to_vec();
        let mut drawn = pipeline.draw(&request, &mut go_on).unwrap();
        drawn.images.remove(0)
    };
    let merged = draw(
        &mut p.load(&folder, with_transformer(&plain)),
        std::slice::from_ref(&lora),
    );
    let mut pipeline = p.load(&folder, with_transformer(&eight));
    let before = draw(&mut pipeline, &[]);
    let with = draw(&mut pipeline, &[lora]);
    let (off, far) = (apart(&with, &merged), apart(&before, &merged));
    assert!(off <= 2 && far > 8, "{off} with the LoRA, {far} without");
    assert_eq!(draw(&mut pipeline, &[]), before);
}

/// Half the memory of 16 bits, and a sixteenth of that for scales; told before loading, too.
#[test]
fn memory_halves() {
    let p = wide();
    let tensors = originals(&p, "flux");
    let (file, _, _) = stored(&tensors, Stored::Plain(Float8::E4m3));
    let path = p.place().join("8.safetensors");
    save(&path, &file, &[]);
    let weights = Weights::open(&path).unwrap();
    let mut blocks = 0;
    let mut elements = 0;
    for name in weights.quantized() {
        let matrix = weights.load_quantized(name, &device()).unwrap();
        assert_eq!(matrix.shape().dims(), weights.shape(name).unwrap());
        blocks += matrix.storage_size_in_bytes();
        elements += matrix.shape().elem_count();
    }
    assert_eq!(blocks, elements / 64 * 68);
    let all: usize = tensors.values().map(|tensor| tensor.elem_count()).sum();
    assert!(elements * 10 > all * 8, "{elements} of {all} are in blocks");
    assert_eq!(
        weights.small(),
        Some((
            weights.quantized().count(),
            tensors.len() - weights.quantized().count()
        ))
    );
    let rest = 2 * (all - elements);
    assert_eq!(weights.bytes_as(DType::BF16), (blocks + rest) as u64);
    assert_eq!(
        weights.clone().expanded().bytes_as(DType::BF16),
        2 * all as u64
    );
    assert_eq!(weights.expanded().quantized().count(), 0);

    let sizes = |expand_fp8| {
        let options = PipelineOptions {
            expand_fp8,
            ..with_transformer(&path)
        };
        let sizes = PartSizes::of(Some(&p.folder("flux")), &options).unwrap();
        (sizes.gpu.denoiser, sizes.cpu.denoiser)
    };
    assert_eq!(sizes(true), (2 * all as u64, 4 * all as u64));
    let rest = rest as u64;
    assert_eq!(
        sizes(false),
        (blocks as u64 + rest, blocks as u64 + 2 * rest)
    );
}
