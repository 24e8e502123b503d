//! ControlNets of transformers, against diffusers' pictures: `tests/reference/make_sd3_controls.py` and
//! `make_flux_controls.py` have made them.

use super::common::{go_on, Draw};
use super::controls::{control, with};
use super::pipelines::{original, Layers, Tensors, FLUX, FLUX_BLOCK};
use super::small::Pipelines;
use candle_core::{DType, Device, Tensor};
use image::{GrayImage, Luma};
use sd_worker_rocm::models::transformer::flux_control::{FluxControl, FluxControlConfig};
use sd_worker_rocm::models::VarBuilder;
use sd_worker_rocm::pipeline::{Control, ImageRequest, Init, Pipeline, PipelineOptions};
use sd_worker_rocm::request::{ControlMode, Hidden, Limits};
use std::path::PathBuf;

/// What Stability's files for 3.5 have in a block.
const SD35_BLOCK: Layers = &[
    ("attn.qkv", &["attn.to_q", "attn.to_k", "attn.to_v"]),
    ("attn.proj", &["attn.to_out.0"]),
    ("mlp.fc1", &["ff.net.0.proj"]),
    ("mlp.fc2", &["ff.net.2"]),
    ("adaLN_modulation.1", &["norm1.linear"]),
];

/// What XLabs' files have besides the transformer's layers.
const XLABS: Layers = &[
    ("pos_embed_input", &["controlnet_x_embedder"]),
    ("controlnet_blocks.0", &["controlnet_blocks.0"]),
    ("controlnet_blocks.1", &["controlnet_blocks.1"]),
    ("input_hint_block.0", &["input_hint_block.conv_in"]),
    ("input_hint_block.2", &["input_hint_block.blocks.0"]),
    ("input_hint_block.4", &["input_hint_block.blocks.1"]),
    ("input_hint_block.6", &["input_hint_block.blocks.2"]),
    ("input_hint_block.8", &["input_hint_block.blocks.3"]),
    ("input_hint_block.10", &["input_hint_block.blocks.4"]),
    ("input_hint_block.12", &["input_hint_block.blocks.5"]),
    ("input_hint_block.14", &["input_hint_block.conv_out"]),
];

/// The file of a network's weights.
const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";

fn refused(pipeline: &mut Pipeline, request: &ImageRequest, control: Control, what: &str) {
    let request = ImageRequest {
        controls: vec![control],
        ..request.clone()
    };
    let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
    assert!(error.contains(what), "{error}");
}

/// Tensors as a single file.
fn file(p: &Pipelines, name: &str, tensors: &Tensors) -> PathBuf {
    let path = p.place().join(format!("{name}.safetensors"));
    candle_core::safetensors::save(tensors, &path).unwrap();
    path
}

/// With the text and a table of positions of its own; without either; two of them; one that paints; from a picture.
#[test]
fn controlnets_of_stable_diffusion_3() {
    let p = Pipelines::of("sd3_controls");
    let mut pipeline = p.load(&p.folder("sd3"), PipelineOptions::default());
    let plain = || control(&p, "plain", "hint", 0.8);
    p.check_with(&mut pipeline, "plain_case", with(vec![plain()]));
    p.differs(
        &mut pipeline,
        "plain_case",
        with(vec![control(&p, "plain", "other", 0.8)]),
    );
    let large = || control(&p, "large", "hint", 0.7);
    p.check_with(&mut pipeline, "large_case", with(vec![large()]));
    p.differs(&mut pipeline, "large_case", with(vec![plain()]));
    let canny = Control {
        kind: Some("canny".to_string()),
        ..large()
    };
    p.check_with(&mut pipeline, "canny", with(vec![canny]));
    p.differs(&mut pipeline, "canny", with(vec![large()]));
    let two = |end| {
        let start = 0.25;
        let second = control(&p, "second", "other", 0.5);
        with(vec![
            Control { end, ..plain() },
            Control { start, ..second },
        ])
    };
    p.check_with(&mut pipeline, "two", two(0.5));
    p.differs(&mut pipeline, "two", two(1.0));
    let start = p.picture("other");
    p.check_with(&mut pipeline, "from_a_picture", |request| {
        request.init = Some(Init::new(start.clone(), 0.75));
        request.controls = vec![plain()];
    });
    let request = p.request("plain_case");
    refused(
        &mut pipeline,
        &request,
        control(&p, "sd3", "hint", 0.8),
        "config.json",
    );
    let mode = ControlMode::Guess;
    refused(&mut pipeline, &request, Control { mode, ..plain() }, "UNet");
    let kind = Some("pose".to_string());
    let told = Control {
        kind: kind.clone(),
        ..large()
    };
    refused(&mut pipeline, &request, told, "blur, canny, depth");
    refused(
        &mut pipeline,
        &request,
        Control { kind, ..plain() },
        "only unions",
    );
}

#[test]
fn a_controlnet_of_stable_diffusion_3_that_paints() {
    let p = Pipelines::of("sd3_controls");
    let mut pipeline = p.load(&p.folder("sd3"), PipelineOptions::default());
    let mask = |left| {
        let inside = move |x, y| (left..40).contains(&x) && (8..28).contains(&y);
        Hidden::White(GrayImage::from_fn(48, 32, |x, y| {
            Luma([255 * u8::from(inside(x, y))])
        }))
    };
    let painting = |hidden| Control {
        hidden,
        ..control(&p, "painting", "hint", 0.8)
    };
    p.check_with(&mut pipeline, "painted", with(vec![painting(mask(20))]));
    p.differs(&mut pipeline, "painted", with(vec![painting(mask(10))]));
    let request = p.request("painted");
    refused(
        &mut pipeline,
        &request,
        painting(Hidden::Nothing),
        "inpaint",
    );
    let hidden = mask(20);
    let plain = Control {
        hidden,
        ..control(&p, "plain", "hint", 0.8)
    };
    refused(&mut pipeline, &request, plain, "no channel for a mask");
    let steered = ImageRequest {
        controls: vec![painting(mask(20))],
        ..request
    };
    assert!(steered.valid(pipeline.info(), &Limits::LOCAL).is_ok());
}

/// Files under diffusers' names, and those of 3.5 large under Stability's.
#[test]
fn single_files_of_stable_diffusion_3() {
    let p = Pipelines::of("sd3_controls");
    let mut pipeline = p.load(&p.folder("sd3"), PipelineOptions::default());
    let path = file(&p, "one", &p.weights("plain", WEIGHTS));
    let plain = Control::new(path, p.picture("hint"));
    let strength = 0.8;
    p.check_with(
        &mut pipeline,
        "plain_case",
        with(vec![Control { strength, ..plain }]),
    );
    let (mut ours, mut theirs) = (p.weights("large", WEIGHTS), Tensors::new());
    for i in 0..2 {
        let block = format!("transformer_blocks.{i}.");
        original(&mut ours, &mut theirs, &block, &block, SD35_BLOCK);
    }
    theirs.extend(ours);
    let large = Control::new(file(&p, "two", &theirs), p.picture("hint"));
    let strength = 0.7;
    p.check_with(
        &mut pipeline,
        "large_case",
        with(vec![Control { strength, ..large }]),
    );
    let other = file(
        &p,
        "other",
        &p.weights("sd3", "vae/diffusion_pytorch_model.safetensors"),
    );
    let other = Control::new(other, p.picture("hint"));
    refused(
        &mut pipeline,
        &p.request("plain_case"),
        other,
        "pos_embed_input",
    );
}

/// A union of FLUX.1's says by its tensors how many kinds it knows.
#[test]
fn a_union_of_flux_in_a_single_file() {
    let p = Pipelines::of("flux_controls");
    let mut pipeline = p.load(&p.folder("flux"), PipelineOptions::default());
    let path = file(&p, "union", &p.weights("flux_union", WEIGHTS));
    let union = |kind: &str| Control {
        kind: Some(kind.to_string()),
        strength: 0.7,
        ..Control::new(path.clone(), p.picture("hint"))
    };
    p.check_with(&mut pipeline, "flux_depth_case", with(vec![union("depth")]));
    let without = Control {
        strength: 0.0,
        ..union("depth")
    };
    p.differs(&mut pipeline, "flux_depth_case", with(vec![without]));
    let request = p.request("flux_depth_case");
    refused(&mut pipeline, &request, union("sketch"), "canny, tile");
    let transformer = p.weights("flux", "transformer/diffusion_pytorch_model.safetensors");
    let other = Control::new(file(&p, "other", &transformer), p.picture("hint"));
    refused(&mut pipeline, &request, other, "no controlnet_blocks");
}

/// XLabs', which see pixels, as a folder of diffusers' and as a file under names of their own.
#[test]
fn controlnets_of_flux_that_see_pixels() {
    let p = Pipelines::of("flux_controls");
    let mut pipeline = p.load(&p.folder("flux_eight"), PipelineOptions::default());
    let (mut ours, mut theirs) = (p.weights("flux_pixels", WEIGHTS), Tensors::new());
    for i in 0..2 {
        let (old, new) = (
            format!("double_blocks.{i}."),
            format!("transformer_blocks.{i}."),
        );
        original(&mut ours, &mut theirs, &old, &new, FLUX_BLOCK);
    }
    original(&mut ours, &mut theirs, "", "", FLUX);
    original(&mut ours, &mut theirs, "", "", XLABS);
    assert!(ours.is_empty(), "{:?}", ours.keys());
    for model in [p.folder("flux_pixels"), file(&p, "xlabs", &theirs)] {
        let pixels = |picture: &str| Control {
            strength: 0.8,
            ..Control::new(model.clone(), p.picture(picture))
        };
        p.check_with(
            &mut pipeline,
            "flux_pixels_case",
            with(vec![pixels("wide")]),
        );
        let without = Control {
            strength: 0.0,
            ..pixels("wide")
        };
        p.differs(&mut pipeline, "flux_pixels_case", with(vec![without]));
    }
    // With these weights little is left of a picture behind so many convolutions: it is compared where it enters.
    let config = std::fs::read(p.folder("flux_pixels").join("config.json")).unwrap();
    let config: FluxControlConfig = serde_json::from_slice(&config).unwrap();
    let vb = VarBuilder::from_tensors(p.weights("flux_pixels", WEIGHTS), DType::F32, &Device::Cpu);
    let net = FluxControl::new(vb, &config).unwrap();
    let wide = p.picture("wide");
    let bytes = wide.as_raw().iter();
    let values: Vec<f32> = bytes.map(|byte| f32::from(*byte) / 127.5 - 1.0).collect();
    let pixels = Tensor::from_vec(values, (1, 48, 64, 3), &Device::Cpu).unwrap();
    let pixels = pixels.permute((0, 3, 1, 2)).unwrap().contiguous().unwrap();
    let expected = p.numbers("pixels_embedded");
    let off = |x: &Tensor| -> f32 {
        let off = (x - expected).unwrap().abs().unwrap().max_all().unwrap();
        off.to_scalar().unwrap()
    };
    assert!(off(&net.hint(&pixels).unwrap()) < 1e-6);
    assert!(off(&net.hint(&pixels.neg().unwrap()).unwrap()) > 1e-4);
}
