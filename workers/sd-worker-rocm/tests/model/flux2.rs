//! FLUX.2's models against diffusers' pictures.

use super::checkpoints::original_vae;
use super::common::{go_on, Draw};
use super::pipelines::{with_transformer, write_gguf, Tensors};
use super::small::{apart, Pipelines};
use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use image::RgbImage;
use sd_worker_rocm::pipeline::{ImageRequest, Lora, Pipeline, PipelineOptions};
use serde_json::json;
use std::path::{Path, PathBuf};

fn open(p: &Pipelines, model: &str) -> Pipeline {
    p.load(&p.folder(model), PipelineOptions::default())
}

/// How far a request's picture is from a case's.
fn off(p: &Pipelines, pipeline: &mut Pipeline, case: &str, request: &ImageRequest) -> u8 {
    let picture = pipeline.draw(request, &mut go_on).unwrap().images.remove(0);
    apart(&picture, &p.picture(case))
}

fn looking(references: Vec<RgbImage>) -> impl Fn(&mut ImageRequest) {
    move |request| request.references.clone_from(&references)
}

#[test]
fn dev_with_and_without_pictures_to_look_at() {
    let p = Pipelines::of("flux2");
    let mut pipeline = open(&p, "dev");
    p.check_with(&mut pipeline, "dev", |_| ());
    let both = vec![p.picture("reference"), p.picture("second")];
    p.check_with(&mut pipeline, "dev_references", looking(both.clone()));
    let mut request = p.request("dev_references");
    for other in [
        vec![],
        both[..1].to_vec(),
        vec![both[1].clone(), both[0].clone()],
    ] {
        let count = other.len();
        request.references = other;
        let off = off(&p, &mut pipeline, "dev_references", &request);
        assert!(off > 1, "{count}: {off}");
    }
    request.references = both;
    request.guidance = 1.0;
    assert!(off(&p, &mut pipeline, "dev_references", &request) > 1);
}

#[test]
fn klein_distilled_and_not() {
    let p = Pipelines::of("flux2");
    let mut pipeline = open(&p, "klein");
    assert_eq!(pipeline.info().defaults.guidance, 1.0);
    p.check_with(&mut pipeline, "klein", |_| ());
    // It has learnt guidance away.
    p.check_with(&mut pipeline, "klein", |request| request.guidance = 5.0);
    let reference = vec![p.picture("reference")];
    p.check_with(&mut pipeline, "klein_reference", looking(reference));
    let request = p.request("klein_reference");
    assert!(off(&p, &mut pipeline, "klein_reference", &request) > 1);
    let mut pipeline = open(&p, "klein_base");
    p.check_with(&mut pipeline, "klein_base", |_| ());
    let mut request = p.request("klein_base");
    request.negative_prompt = "a green house".to_string();
    assert!(off(&p, &mut pipeline, "klein_base", &request) > 3);
}

/// The names of FLUX.2's makers for a transformer of diffusers' names.
fn originals(tensors: &Tensors) -> Tensors {
    let swapped = |tensor: &Tensor| {
        let half = tensor.dim(0).unwrap() / 2;
        let halves = [half, 0].map(|start| tensor.narrow(0, start, half).unwrap());
        Tensor::cat(&halves, 0).unwrap()
    };
    let mut theirs = Tensors::new();
    for (name, tensor) in tensors {
        let mut name = name.clone();
        let mut tensor = tensor.clone();
        let stacks = [
            ("attn.to_q.", ["to_k", "to_v"]),
            ("attn.add_q_proj.", ["add_k_proj", "add_v_proj"]),
        ];
        for (first, others) in stacks {
            if name.contains(first) && name.starts_with("transformer_blocks.") {
                let mut parts = vec![tensor.clone()];
                for other in others {
                    parts.push(tensors[&name.replace(first, &format!("attn.{other}."))].clone());
                }
                tensor = Tensor::cat(&parts, 0).unwrap();
            }
        }
        let stacked = [
            "attn.to_k.",
            "attn.to_v.",
            "attn.add_k_proj.",
            "attn.add_v_proj.",
        ];
        if stacked.iter().any(|part| name.contains(part)) {
            continue;
        }
        if name.starts_with("norm_out.") {
            tensor = swapped(&tensor);
        }
        for (ours, original) in [
            ("single_transformer_blocks.", "single_blocks."),
            ("transformer_blocks.", "double_blocks."),
            ("attn.to_qkv_mlp_proj.", "linear1."),
            ("attn.to_q.", "img_attn.qkv."),
            ("attn.add_q_proj.", "txt_attn.qkv."),
            ("attn.to_out.0.", "img_attn.proj."),
            ("attn.to_add_out.", "txt_attn.proj."),
            ("attn.to_out.", "linear2."),
            ("attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"),
            ("attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"),
            ("ff.linear_in.", "img_mlp.0."),
            ("ff.linear_out.", "img_mlp.2."),
            ("ff_context.linear_in.", "txt_mlp.0."),
            ("ff_context.linear_out.", "txt_mlp.2."),
            ("x_embedder.", "img_in."),
            ("context_embedder.", "txt_in."),
            (
                "time_guidance_embed.timestep_embedder.linear_1.",
                "time_in.in_layer.",
            ),
            (
                "time_guidance_embed.timestep_embedder.linear_2.",
                "time_in.out_layer.",
            ),
            (
                "time_guidance_embed.guidance_embedder.linear_1.",
                "guidance_in.in_layer.",
            ),
            (
                "time_guidance_embed.guidance_embedder.linear_2.",
                "guidance_in.out_layer.",
            ),
            ("_modulation_img.linear.", "_modulation_img.lin."),
            ("_modulation_txt.linear.", "_modulation_txt.lin."),
            (
                "single_stream_modulation.linear.",
                "single_stream_modulation.lin.",
            ),
            ("norm_out.linear.", "final_layer.adaLN_modulation.1."),
            ("proj_out.", "final_layer.linear."),
        ] {
            name = name.replace(ours, original);
        }
        let norms = match name.starts_with("single_blocks.") {
            true => ["norm.query_norm.scale", "norm.key_norm.scale"],
            false => [
                "img_attn.norm.query_norm.scale",
                "img_attn.norm.key_norm.scale",
            ],
        };
        name = name
            .replace("attn.norm_q.weight", norms[0])
            .replace("attn.norm_k.weight", norms[1]);
        theirs.insert(name, tensor);
    }
    theirs
}

const TRANSFORMER: &str = "transformer/diffusion_pytorch_model.safetensors";

#[test]
fn transformers_of_their_own() {
    let p = Pipelines::of("flux2");
    for case in ["dev", "klein_base"] {
        let tensors = originals(&p.weights(case, TRANSFORMER));
        let path = p.place().join(format!("{case}.safetensors"));
        candle_core::safetensors::save(&tensors, &path).unwrap();
        let gguf = p.place().join(format!("{case}.gguf"));
        write_gguf(&gguf, &tensors, GgmlDType::F32, "F32");
        for path in [path, gguf] {
            let mut pipeline = p.load(&p.folder(case), with_transformer(&path));
            p.check_with(&mut pipeline, case, |_| ());
        }
    }
}

/// All in one file: the transformer and the autoencoder under their makers' names, the autoencoder also alone and under
/// diffusers'. What such a file cannot say, groups of norms and rotations, is altered.
#[test]
fn single_files() {
    let mut p = Pipelines::of("flux2");
    p.alter("klein_base", |about| {
        let files = &mut about["files"];
        files["text_encoder/config.json"]["rope_parameters"]["rope_theta"] = json!(1e6);
        files["vae/config.json"]["block_out_channels"] = json!([32, 64]);
        files["vae/config.json"]["norm_num_groups"] = json!(32);
        let weights = &mut about["weights"]["vae/diffusion_pytorch_model.safetensors"];
        for (name, shape) in weights["shapes"].as_object_mut().unwrap() {
            for dim in shape.as_array_mut().unwrap() {
                match dim.as_u64() {
                    Some(16) if !name.starts_with("bn.") => *dim = json!(32),
                    Some(32) => *dim = json!(64),
                    _ => (),
                }
            }
        }
    });
    let folder = p.folder("klein_base");
    let draw = |path: &Path, vae: Option<PathBuf>| {
        let options = PipelineOptions {
            text_encoders: (path != folder).then(|| folder.clone()),
            vae,
            ..PipelineOptions::default()
        };
        let mut request = p.request("klein_base");
        request.steps = 1;
        let mut pipeline = p.load(path, options);
        pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0)
    };
    let expected = draw(&folder, None);
    let save = |name: &str, tensors: &Tensors| {
        let path = p.place().join(format!("{name}.safetensors"));
        candle_core::safetensors::save(tensors, &path).unwrap();
        path
    };
    let ours = p.weights("klein_base", "vae/diffusion_pytorch_model.safetensors");
    let theirs: Tensors = ours
        .iter()
        .map(|(name, tensor)| match name.split_once("quant_conv.") {
            Some(("", rest)) => (format!("encoder.quant_conv.{rest}"), tensor.clone()),
            Some((_, rest)) => (format!("decoder.post_quant_conv.{rest}"), tensor.clone()),
            None => original_vae(name, tensor, 2),
        })
        .collect();
    let mut all = Tensors::new();
    for (name, tensor) in originals(&p.weights("klein_base", TRANSFORMER)) {
        all.insert(format!("model.diffusion_model.{name}"), tensor);
    }
    for (name, tensor) in p.weights("klein_base", "text_encoder/model.safetensors") {
        all.insert(format!("text_encoders.qwen3_4b.transformer.{name}"), tensor);
    }
    let without = save("without-base", &all);
    for (name, vae) in [("theirs", &theirs), ("ours", &ours)] {
        let vae = save(name, vae);
        assert!(draw(&without, Some(vae)) == expected, "{name}");
    }
    for (name, tensor) in theirs {
        all.insert(format!("vae.{name}"), tensor);
    }
    assert!(draw(&save("all-base", &all), None) == expected);
}

/// LoRAs under kohya's and the makers' names, whose layers are stacked, against diffusers' names.
#[test]
fn loras_under_all_names() {
    let p = Pipelines::of("flux2");
    let (mut original, mut kohya, mut ours) = (Tensors::new(), Tensors::new(), Tensors::new());
    let factor = |rows: usize, columns: usize| {
        let values = (0..rows * columns).map(|i| ((i * 37 % 11) as f32 - 5.0) * 0.03);
        Tensor::from_vec(values.collect::<Vec<f32>>(), (rows, columns), &Device::Cpu).unwrap()
    };
    for (layer, inputs, outputs, parts) in [
        (
            "double_blocks.0.txt_attn.qkv",
            32,
            96,
            &["add_q_proj", "add_k_proj", "add_v_proj"]
                .map(|part| format!("transformer_blocks.0.attn.{part}"))[..],
        ),
        (
            "double_blocks.0.img_mlp.0",
            32,
            192,
            &["transformer_blocks.0.ff.linear_in".to_string()],
        ),
        (
            "single_blocks.1.linear2",
            128,
            32,
            &["single_transformer_blocks.1.attn.to_out".to_string()],
        ),
        (
            "single_stream_modulation.lin",
            32,
            96,
            &["single_stream_modulation.linear".to_string()],
        ),
    ] {
        let (down, up) = (factor(3, inputs), factor(outputs, 3));
        let share = outputs / parts.len();
        for (i, part) in parts.iter().enumerate() {
            let rows = up
                .narrow(0, i * share, share)
                .unwrap()
                .force_contiguous()
                .unwrap();
            ours.insert(format!("transformer.{part}.lora_B.weight"), rows);
            ours.insert(format!("transformer.{part}.lora_A.weight"), down.clone());
        }
        let flat = layer.replace('.', "_");
        kohya.insert(format!("lora_unet_{flat}.lora_up.weight"), up.clone());
        kohya.insert(format!("lora_unet_{flat}.lora_down.weight"), down.clone());
        original.insert(format!("diffusion_model.{layer}.lora_B.weight"), up);
        original.insert(format!("diffusion_model.{layer}.lora_A.weight"), down);
    }
    let mut pipeline = open(&p, "klein");
    let mut request = p.request("klein");
    request.steps = 1;
    let mut draw = |lora: Option<(&str, &Tensors)>| {
        request.loras = lora.map_or(Vec::new(), |(name, tensors)| {
            let path = p.place().join(format!("{name}.safetensors"));
            candle_core::safetensors::save(tensors, &path).unwrap();
            vec![Lora::new(path.to_str().unwrap(), 1.0)]
        });
        pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0)
    };
    let expected = draw(Some(("ours", &ours)));
    assert!(apart(&draw(None), &expected) > 3);
    assert!(draw(Some(("original", &original))) == expected);
    assert!(draw(Some(("kohya", &kohya))) == expected);
}

#[test]
fn shifts_that_a_folder_may_ask_for() {
    let mut p = Pipelines::of("flux2");
    let mut pictures = Vec::new();
    for case in ["klein_linear", "klein_terminal"] {
        let scheduler = p.case(case)["scheduler"].clone();
        p.alter("klein", |about| {
            about["files"]["scheduler/scheduler_config.json"] = scheduler.clone();
        });
        let folder = p.folder("klein");
        let mut pipeline = p.load(&folder, PipelineOptions::default());
        let request = p.request(case);
        let picture = pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0);
        let off = apart(&picture, &p.picture(case));
        assert!(off <= 1, "{case}: {off}");
        pictures.push(picture);
        std::fs::remove_dir_all(folder).unwrap();
    }
    assert!(apart(&pictures[0], &pictures[1]) > 1);
}
