//! Whole models of every family, prompt to pixels, against diffusers' pictures.

use super::common::{device, go_on, Draw};
use super::networks::Networks;
use super::small::{apart, Pipelines};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use sd_worker_rocm::pipeline::{
    Control, ImageRequest, Init, Pipeline, PipelineOptions, Progress, Switch,
};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use worker::gguf::{Format, GgufWriter, NewTensor, Value};
use worker::graphs::GraphUse;

fn as_it_is(_: &mut ImageRequest) {}

#[test]
fn stable_diffusion_3_without_and_with_t5() {
    let p = Pipelines::open();
    p.check("sd3", as_it_is);
    p.check("sd35", as_it_is);
}

#[test]
fn flux_dev_and_schnell() {
    let p = Pipelines::open();
    p.check("flux", as_it_is);
    p.check("schnell", as_it_is);
}

#[test]
fn z_image_without_and_with_guidance() {
    let p = Pipelines::open();
    p.check("z_image", as_it_is);
    p.check("z_image_guided", as_it_is);
}

#[test]
fn stable_diffusion_xl() {
    let p = Pipelines::open();
    p.check("xl", as_it_is);
    p.check("xl_no_negative", as_it_is);
}

#[test]
fn a_controlnet_steers() {
    let p = Pipelines::open();
    let model = p.folder("controlnet");
    let mut pipeline = p.load(&p.folder("sd"), PipelineOptions::default());
    let control = |strength| {
        let (model, image) = (model.clone(), p.picture("hint"));
        move |request: &mut ImageRequest| {
            request.controls = vec![Control {
                strength,
                ..Control::new(model.clone(), image.clone())
            }];
        }
    };
    p.check_with(&mut pipeline, "sd", as_it_is);
    p.check_with(&mut pipeline, "control", control(0.8));
    // Without strength it has no say.
    p.check_with(&mut pipeline, "sd", control(0.0));
}

#[test]
fn inpainting_with_nine_channels() {
    let p = Pipelines::open();
    let mask = image::GrayImage::from_fn(48, 32, |x, _| image::Luma([255 * u8::from(x >= 24)]));
    p.check("inpaint", |request| {
        request.init = Some(Init {
            mask: Some(mask.clone()),
            ..Init::new(p.picture("start"), 1.0)
        });
    });
}

/// Every part of the largest family, brought to the device only while it runs.
#[test]
fn offloaded_parts() {
    let p = Pipelines::open();
    let options = PipelineOptions {
        offload: true,
        vae_tiling: Switch::On,
        ..PipelineOptions::default()
    };
    let mut pipeline = p.load(&p.folder("sd35"), options);
    p.check_with(&mut pipeline, "sd35", as_it_is);
}

pub type Tensors = HashMap<String, Tensor>;

/// The original's name of a layer, and diffusers' names of what is stacked in it.
pub type Layers<'a> = &'a [(&'a str, &'a [&'a str])];

pub const FLUX_BLOCK: Layers = &[
    ("img_mod.lin", &["norm1.linear"]),
    ("txt_mod.lin", &["norm1_context.linear"]),
    ("img_attn.qkv", &["attn.to_q", "attn.to_k", "attn.to_v"]),
    (
        "txt_attn.qkv",
        &["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
    ),
    ("img_attn.proj", &["attn.to_out.0"]),
    ("txt_attn.proj", &["attn.to_add_out"]),
    ("img_mlp.0", &["ff.net.0.proj"]),
    ("img_mlp.2", &["ff.net.2"]),
    ("txt_mlp.0", &["ff_context.net.0.proj"]),
    ("txt_mlp.2", &["ff_context.net.2"]),
    ("img_attn.norm.query_norm", &["attn.norm_q"]),
    ("img_attn.norm.key_norm", &["attn.norm_k"]),
    ("txt_attn.norm.query_norm", &["attn.norm_added_q"]),
    ("txt_attn.norm.key_norm", &["attn.norm_added_k"]),
];
const FLUX_SINGLE: Layers = &[
    ("modulation.lin", &["norm.linear"]),
    (
        "linear1",
        &["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"],
    ),
    ("linear2", &["proj_out"]),
    ("norm.query_norm", &["attn.norm_q"]),
    ("norm.key_norm", &["attn.norm_k"]),
];
pub const FLUX: Layers = &[
    ("img_in", &["x_embedder"]),
    ("txt_in", &["context_embedder"]),
    (
        "time_in.in_layer",
        &["time_text_embed.timestep_embedder.linear_1"],
    ),
    (
        "time_in.out_layer",
        &["time_text_embed.timestep_embedder.linear_2"],
    ),
    (
        "vector_in.in_layer",
        &["time_text_embed.text_embedder.linear_1"],
    ),
    (
        "vector_in.out_layer",
        &["time_text_embed.text_embedder.linear_2"],
    ),
    (
        "guidance_in.in_layer",
        &["time_text_embed.guidance_embedder.linear_1"],
    ),
    (
        "guidance_in.out_layer",
        &["time_text_embed.guidance_embedder.linear_2"],
    ),
    ("final_layer.linear", &["proj_out"]),
    ("final_layer.adaLN_modulation.1", &["norm_out.linear"]),
];
const SD3_BLOCK: Layers = &[
    ("x_block.adaLN_modulation.1", &["norm1.linear"]),
    ("x_block.attn.qkv", &["attn.to_q", "attn.to_k", "attn.to_v"]),
    ("x_block.attn.proj", &["attn.to_out.0"]),
    ("x_block.attn.ln_q", &["attn.norm_q"]),
    ("x_block.attn.ln_k", &["attn.norm_k"]),
    (
        "x_block.attn2.qkv",
        &["attn2.to_q", "attn2.to_k", "attn2.to_v"],
    ),
    ("x_block.attn2.proj", &["attn2.to_out.0"]),
    ("x_block.attn2.ln_q", &["attn2.norm_q"]),
    ("x_block.attn2.ln_k", &["attn2.norm_k"]),
    ("x_block.mlp.fc1", &["ff.net.0.proj"]),
    ("x_block.mlp.fc2", &["ff.net.2"]),
    (
        "context_block.adaLN_modulation.1",
        &["norm1_context.linear"],
    ),
    (
        "context_block.attn.qkv",
        &["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
    ),
    ("context_block.attn.proj", &["attn.to_add_out"]),
    ("context_block.attn.ln_q", &["attn.norm_added_q"]),
    ("context_block.attn.ln_k", &["attn.norm_added_k"]),
    ("context_block.mlp.fc1", &["ff_context.net.0.proj"]),
    ("context_block.mlp.fc2", &["ff_context.net.2"]),
];
const SD3: Layers = &[
    ("x_embedder.proj", &["pos_embed.proj"]),
    ("context_embedder", &["context_embedder"]),
    (
        "t_embedder.mlp.0",
        &["time_text_embed.timestep_embedder.linear_1"],
    ),
    (
        "t_embedder.mlp.2",
        &["time_text_embed.timestep_embedder.linear_2"],
    ),
    (
        "y_embedder.mlp.0",
        &["time_text_embed.text_embedder.linear_1"],
    ),
    (
        "y_embedder.mlp.2",
        &["time_text_embed.text_embedder.linear_2"],
    ),
    ("final_layer.linear", &["proj_out"]),
    ("final_layer.adaLN_modulation.1", &["norm_out.linear"]),
];

/// Takes the tensors of `layers` out of `ours` and names and stacks them as the original does.
/// Moves layers under names that begin with `new`, if there are any, to the originals' under `old`.
pub fn original(ours: &mut Tensors, theirs: &mut Tensors, old: &str, new: &str, layers: Layers) {
    for (name, parts) in layers {
        for kind in ["weight", "bias"] {
            let parts: Vec<Tensor> = parts
                .iter()
                .filter_map(|part| ours.remove(&format!("{new}{part}.{kind}")))
                .collect();
            if parts.is_empty() {
                continue;
            }
            let kind = if name.ends_with("_norm") {
                "scale"
            } else {
                kind
            };
            let stacked = Tensor::cat(&parts, 0).unwrap();
            theirs.insert(format!("{old}{name}.{kind}"), stacked);
        }
    }
}

fn swap_halves(tensors: &mut Tensors, layer: &str) {
    for kind in ["weight", "bias"] {
        let tensor = tensors.get_mut(&format!("{layer}.{kind}")).unwrap();
        let half = tensor.dim(0).unwrap() / 2;
        let halves = [tensor.narrow(0, half, half), tensor.narrow(0, 0, half)];
        let halves = halves.map(Result::unwrap);
        *tensor = Tensor::cat(&halves, 0).unwrap();
    }
}

/// A model's transformer as its makers name it.
pub fn originals(p: &Pipelines, model: &str) -> Tensors {
    let mut ours = p.weights(model, "transformer/diffusion_pytorch_model.safetensors");
    let mut theirs = Tensors::new();
    if model == "z_image" {
        for (name, tensor) in &ours {
            if let Some(layer) = name.strip_suffix("attention.to_q.weight") {
                let part = |part: &str| ours[&format!("{layer}attention.{part}.weight")].clone();
                let stacked = Tensor::cat(&[tensor.clone(), part("to_k"), part("to_v")], 0);
                theirs.insert(format!("{layer}attention.qkv.weight"), stacked.unwrap());
            } else if !name.contains("attention.to_k.") && !name.contains("attention.to_v.") {
                let name = name
                    .replace("all_x_embedder.2-1.", "x_embedder.")
                    .replace("all_final_layer.2-1.", "final_layer.")
                    .replace("to_out.0.", "out.")
                    .replace("norm_q.", "q_norm.")
                    .replace("norm_k.", "k_norm.");
                theirs.insert(name, tensor.clone());
            }
        }
        return theirs;
    }
    let (blocks, layers) = match model {
        "sd3" | "sd35" => (SD3_BLOCK, SD3),
        _ => (FLUX_BLOCK, FLUX),
    };
    let block = if model.starts_with("sd3") {
        "joint_blocks"
    } else {
        "double_blocks"
    };
    for i in 0..2 {
        let (old, new) = (format!("{block}.{i}."), format!("transformer_blocks.{i}."));
        original(&mut ours, &mut theirs, &old, &new, blocks);
        let (old, new) = (
            format!("single_blocks.{i}."),
            format!("single_transformer_blocks.{i}."),
        );
        original(&mut ours, &mut theirs, &old, &new, FLUX_SINGLE);
    }
    original(&mut ours, &mut theirs, "", "", layers);
    if model == "chroma" {
        for (name, tensor) in std::mem::take(&mut ours) {
            let name = name
                .replace(".linear_1.", ".in_layer.")
                .replace(".linear_2.", ".out_layer.");
            let name = match name.contains(".norms.") {
                true => name.replace(".weight", ".scale"),
                false => name,
            };
            theirs.insert(name, tensor);
        }
    } else {
        swap_halves(&mut theirs, "final_layer.adaLN_modulation.1");
    }
    if let Some(table) = ours.remove("pos_embed.pos_embed") {
        theirs.insert("pos_embed".to_string(), table);
        // The text ends in the last block.
        swap_halves(
            &mut theirs,
            "joint_blocks.1.context_block.adaLN_modulation.1",
        );
    }
    assert!(ours.is_empty(), "{:?}", ours.keys());
    theirs
}

pub fn with_transformer(path: &Path) -> PipelineOptions {
    PipelineOptions {
        transformer: Some(path.to_path_buf()),
        ..PipelineOptions::default()
    }
}

#[test]
fn transformers_under_the_originals_names() {
    let p = Pipelines::open();
    for (model, prefix) in [
        ("flux", ""),
        ("sd35", "model.diffusion_model."),
        ("z_image", ""),
    ] {
        let tensors: Tensors = originals(&p, model)
            .into_iter()
            .map(|(name, tensor)| (format!("{prefix}{name}"), tensor))
            .collect();
        let path = p.place().join(format!("{model}.safetensors"));
        candle_core::safetensors::save(&tensors, &path).unwrap();
        let mut pipeline = p.load(&p.folder(model), with_transformer(&path));
        p.check_with(&mut pipeline, model, as_it_is);
    }
    // Another family's is refused, and a transformer is no model.
    let path = p.place().join("z_image.safetensors");
    for (model, options, reason) in [
        (
            p.folder("flux"),
            with_transformer(&path),
            "the model is FLUX.1",
        ),
        (path.clone(), PipelineOptions::default(), "--transformer"),
        (p.folder("sd"), with_transformer(&path), "a UNet"),
    ] {
        let loaded = Pipeline::load(&model, &Device::Cpu, options, &mut |_| {});
        let error = loaded.err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// Writes matrices whose rows are whole blocks as `dtype`, the rest as f32.
pub fn write_gguf(path: &Path, tensors: &Tensors, dtype: GgmlDType, name: &str) {
    let kind = |tensor: &Tensor| match tensor.dims() {
        [_, columns] if columns.is_multiple_of(dtype.block_size()) => (dtype, name),
        _ => (GgmlDType::F32, "F32"),
    };
    let table: Vec<NewTensor> = tensors
        .iter()
        .map(|(name, tensor)| NewTensor {
            name: name.clone(),
            dims: tensor.dims().iter().rev().map(|d| *d as u64).collect(),
            format: Format::from_name(kind(tensor).1).unwrap(),
        })
        .collect();
    let architecture = Value::String("flux".to_string());
    let metadata = [("general.architecture".to_string(), architecture)];
    let file = std::fs::File::create(path).unwrap();
    let mut writer = GgufWriter::new(file, &metadata, &table).unwrap();
    for entry in &table {
        let tensor = &tensors[&entry.name];
        let quantized = QTensor::quantize(tensor, kind(tensor).0).unwrap();
        writer.write(&quantized.data().unwrap()).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn quantized_transformers() {
    let p = Pipelines::open();
    let tensors = originals(&p, "flux");
    let draw = |pipeline: &mut Pipeline, request: &ImageRequest| {
        let generated = pipeline.draw(request, &mut go_on).unwrap();
        generated.images.into_iter().next().unwrap()
    };
    let request = p.request("flux");
    // Rounding to 8 and to 4 bits moves small models' pictures so far.
    for (dtype, name, limit) in [
        (GgmlDType::F32, "F32", 1),
        (GgmlDType::Q8_0, "Q8_0", 24),
        (GgmlDType::Q4_0, "Q4_0", 160),
    ] {
        let path = p.place().join(format!("flux-{name}.gguf"));
        write_gguf(&path, &tensors, dtype, name);
        for offload in [false, true] {
            let options = PipelineOptions {
                offload,
                ..with_transformer(&path)
            };
            let mut pipeline = p.load(&p.folder("flux"), options);
            let expected = if name == "F32" { "f32" } else { name };
            assert_eq!(pipeline.info().precision, expected);
            let off = apart(&draw(&mut pipeline, &request), &p.picture("flux"));
            assert!(off <= limit, "{name}: {off}");
            assert!(off > 1 || name == "F32", "{name} is not quantized");
        }
    }
}

/// TAESD shows every step but the last, eight pixels a latent; all parts come to the device only while they run.
#[test]
fn taesd_previews_of_an_offloaded_model() {
    let p = Pipelines::open();
    let path = p.place().join("taesd.safetensors");
    candle_core::safetensors::save(&Networks::open().tensors("taesd"), &path).unwrap();
    let options = PipelineOptions {
        taesd: Some(path),
        offload: true,
        ..PipelineOptions::default()
    };
    let mut pipeline = p.load(&p.folder("sd"), options);
    let mut request = p.request("sd");
    request.preview_every = 1;
    let mut sizes = Vec::new();
    let mut look = |progress: Progress| {
        sizes.extend(progress.preview.map(|preview| preview.dimensions()));
        ControlFlow::Continue(())
    };
    let generated = pipeline.draw(&request, &mut look).unwrap();
    assert_eq!(sizes, [(192, 128); 2]);
    assert!(apart(&generated.images[0], &p.picture("sd")) <= 1);
}

/// Counters are those of the process, so the test runs once more in one of its own.
#[test]
fn a_step_waits_for_nothing_but_the_step_before() {
    const ALONE: &str = "SD_TEST_ALONE";
    if device().is_cpu() {
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        let here = std::env::current_exe().unwrap();
        let test = "pipelines::a_step_waits_for_nothing_but_the_step_before";
        let mut alone = std::process::Command::new(here);
        let status = alone.args(["--exact", test]).env(ALONE, "1").status();
        assert!(status.unwrap().success());
        return;
    }
    let p = Pipelines::open();
    let options = PipelineOptions {
        // Every launch is counted.
        graphs: GraphUse::Off,
        ..PipelineOptions::default()
    };
    let mut pipeline = p.load(&p.folder("sd"), options);
    let client = hip_sim::client::Client::find().unwrap();
    let mut request = p.request("sd");
    let mut counted = |steps: usize| {
        request.steps = steps;
        client.reset_counters();
        let generated = pipeline.draw(&request, &mut go_on).unwrap();
        (client.counters().synchronizations, generated.timings)
    };
    counted(2);
    let (few, timings) = counted(2);
    assert!(timings.launches > 100, "{}", timings.launches);
    let (many, longer) = counted(6);
    // A step more is one event to wait for, and as much work as the others.
    assert_eq!(many - few, 4);
    assert!(longer.launches > timings.launches);
    assert_eq!((longer.launches - timings.launches) % 4, 0);
}
