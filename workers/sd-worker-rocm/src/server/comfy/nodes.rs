//! The nodes of ComfyUI that graphs here may have: one table for what is checked and for what `/object_info` tells.

use crate::sampling::{Sampler, Schedule};
use crate::server::App;
use serde_json::{json, Map, Value};

/// A class of nodes.
pub(super) struct Class {
    /// Its name in graphs.
    pub(super) name: &'static str,
    /// Its name for people.
    label: &'static str,
    category: &'static str,
    pub(super) inputs: &'static [Input],
    /// Types of what it gives.
    pub(super) outputs: &'static [&'static str],
}

/// An input.
pub(super) struct Input {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Whether it may be left out.
    pub(super) optional: bool,
}

/// What an input takes.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// What another node gives.
    Link(&'static str),
    Whole {
        usual: i64,
        least: i64,
        most: u64,
    },
    Number {
        usual: f64,
        least: f64,
        most: f64,
    },
    Text,
    /// One of names that the server knows, or of these.
    OneOf(Names),
    Fixed(&'static [&'static str]),
}

/// Names that the server knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// The model.
    Models,
    /// The model, in place of files of its text encoders.
    Encoders,
    /// The VAE beside the model, or the model.
    Vaes,
    Loras,
    Controls,
    Upscalers,
    Samplers,
    Schedules,
    /// Pictures that were sent here.
    Pictures,
}

const MODEL: &str = "MODEL";
const CLIP: &str = "CLIP";
const VAE: &str = "VAE";
const CONDITIONING: &str = "CONDITIONING";
const LATENT: &str = "LATENT";
const IMAGE: &str = "IMAGE";
const MASK: &str = "MASK";

const fn needs(name: &'static str, kind: Kind) -> Input {
    Input {
        name,
        kind,
        optional: false,
    }
}

const fn may(name: &'static str, kind: Kind) -> Input {
    Input {
        name,
        kind,
        optional: true,
    }
}

const fn link(name: &'static str, of: &'static str) -> Input {
    needs(name, Kind::Link(of))
}

const fn one_of(name: &'static str, names: Names) -> Input {
    needs(name, Kind::OneOf(names))
}

const fn whole(name: &'static str, usual: i64, least: i64, most: u64) -> Input {
    needs(name, Kind::Whole { usual, least, most })
}

const fn number(name: &'static str, usual: f64, least: f64, most: f64) -> Input {
    needs(name, Kind::Number { usual, least, most })
}

/// A longest side that ComfyUI's nodes take.
const SIDE: u64 = 16384;
const SEED: u64 = u64::MAX;
const WIDTH: Input = whole("width", 512, 16, SIDE);
const HEIGHT: Input = whole("height", 512, 16, SIDE);
const BATCH: Input = whole("batch_size", 1, 1, 4096);
const STEPS: Input = whole("steps", 20, 1, 10000);
const CFG: Input = number("cfg", 8.0, 0.0, 100.0);
const SAMPLER: Input = one_of("sampler_name", Names::Samplers);
const SCHEDULER: Input = one_of("scheduler", Names::Schedules);
const DENOISE: Input = number("denoise", 1.0, 0.0, 1.0);
const STRENGTH: Input = number("strength", 1.0, 0.0, 10.0);
const SWITCH: Kind = Kind::Fixed(&["enable", "disable"]);
const ENLARGERS: Input = needs(
    "upscale_method",
    Kind::Fixed(&["nearest-exact", "bilinear", "bicubic"]),
);
const SCALERS: Input = needs(
    "upscale_method",
    Kind::Fixed(&["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]),
);
const CROP: Input = needs("crop", Kind::Fixed(&["disabled", "center"]));
const CHANNEL: Input = needs("channel", Kind::Fixed(&["alpha", "red", "green", "blue"]));
const GUIDANCE: Input = number("guidance", 3.5, 0.0, 100.0);
const EMPTY: &[Input] = &[WIDTH, HEIGHT, BATCH];
const CLIP_TYPES: Kind = Kind::Fixed(&[
    "stable_diffusion",
    "sdxl",
    "sd3",
    "flux",
    "flux2",
    "chroma",
    "lumina2",
    "qwen_image",
    "hidream",
]);

const fn class(
    name: &'static str,
    label: &'static str,
    category: &'static str,
    inputs: &'static [Input],
    outputs: &'static [&'static str],
) -> Class {
    Class {
        name,
        label,
        category,
        inputs,
        outputs,
    }
}

/// All classes.
#[rustfmt::skip]
pub(super) const CLASSES: [Class; 45] = [
    class("CheckpointLoaderSimple", "Load Checkpoint", "loaders", &[one_of("ckpt_name", Names::Models)], &[MODEL, CLIP, VAE]),
    class("UNETLoader", "Load Diffusion Model", "advanced/loaders", &[
        one_of("unet_name", Names::Models), needs("weight_dtype", Kind::Fixed(&["default"]))], &[MODEL]),
    class("CLIPLoader", "Load CLIP", "advanced/loaders", &[
        one_of("clip_name", Names::Encoders), needs("type", CLIP_TYPES), may("device", Kind::Fixed(&["default", "cpu"]))], &[CLIP]),
    class("DualCLIPLoader", "DualCLIPLoader", "advanced/loaders", &[
        one_of("clip_name1", Names::Encoders), one_of("clip_name2", Names::Encoders), needs("type", CLIP_TYPES),
        may("device", Kind::Fixed(&["default", "cpu"]))], &[CLIP]),
    class("TripleCLIPLoader", "TripleCLIPLoader", "advanced/loaders", &[
        one_of("clip_name1", Names::Encoders), one_of("clip_name2", Names::Encoders), one_of("clip_name3", Names::Encoders)], &[CLIP]),
    class("VAELoader", "Load VAE", "loaders", &[one_of("vae_name", Names::Vaes)], &[VAE]),
    class("LoraLoader", "Load LoRA", "loaders", &[
        link("model", MODEL), link("clip", CLIP), one_of("lora_name", Names::Loras),
        number("strength_model", 1.0, -100.0, 100.0), number("strength_clip", 1.0, -100.0, 100.0)], &[MODEL, CLIP]),
    class("LoraLoaderModelOnly", "LoraLoaderModelOnly", "loaders", &[
        link("model", MODEL), one_of("lora_name", Names::Loras), number("strength_model", 1.0, -100.0, 100.0)], &[MODEL]),
    class("ControlNetLoader", "Load ControlNet Model", "loaders", &[one_of("control_net_name", Names::Controls)], &["CONTROL_NET"]),
    class("UpscaleModelLoader", "Load Upscale Model", "loaders", &[one_of("model_name", Names::Upscalers)], &["UPSCALE_MODEL"]),
    class("CLIPSetLastLayer", "CLIP Set Last Layer", "conditioning", &[
        link("clip", CLIP), needs("stop_at_clip_layer", Kind::Whole { usual: -1, least: -24, most: 0 })], &[CLIP]),
    class("CLIPTextEncode", "CLIP Text Encode (Prompt)", "conditioning", &[needs("text", Kind::Text), link("clip", CLIP)], &[CONDITIONING]),
    class("CLIPTextEncodeFlux", "CLIPTextEncodeFlux", "advanced/conditioning/flux", &[
        link("clip", CLIP), needs("clip_l", Kind::Text), needs("t5xxl", Kind::Text), GUIDANCE], &[CONDITIONING]),
    class("CLIPTextEncodeSDXL", "CLIPTextEncodeSDXL", "advanced/conditioning", &[
        link("clip", CLIP), whole("width", 1024, 0, SIDE), whole("height", 1024, 0, SIDE), whole("crop_w", 0, 0, SIDE),
        whole("crop_h", 0, 0, SIDE), whole("target_width", 1024, 0, SIDE), whole("target_height", 1024, 0, SIDE),
        needs("text_g", Kind::Text), needs("text_l", Kind::Text)], &[CONDITIONING]),
    class("FluxGuidance", "FluxGuidance", "advanced/conditioning/flux", &[link("conditioning", CONDITIONING), GUIDANCE], &[CONDITIONING]),
    class("ConditioningZeroOut", "ConditioningZeroOut", "advanced/conditioning", &[link("conditioning", CONDITIONING)], &[CONDITIONING]),
    class("ControlNetApply", "Apply ControlNet (OLD)", "conditioning/controlnet", &[
        link("conditioning", CONDITIONING), link("control_net", "CONTROL_NET"), link("image", IMAGE), STRENGTH], &[CONDITIONING]),
    class("ControlNetApplyAdvanced", "Apply ControlNet", "conditioning/controlnet", &[
        link("positive", CONDITIONING), link("negative", CONDITIONING), link("control_net", "CONTROL_NET"), link("image", IMAGE),
        STRENGTH, number("start_percent", 0.0, 0.0, 1.0), number("end_percent", 1.0, 0.0, 1.0), may("vae", Kind::Link(VAE))],
        &[CONDITIONING, CONDITIONING]),
    class("InpaintModelConditioning", "InpaintModelConditioning", "conditioning/inpaint", &[
        link("positive", CONDITIONING), link("negative", CONDITIONING), link("vae", VAE), link("pixels", IMAGE), link("mask", MASK),
        may("noise_mask", Kind::Fixed(&["true"]))], &[CONDITIONING, CONDITIONING, LATENT]),
    class("RescaleCFG", "RescaleCFG", "advanced/model", &[link("model", MODEL), number("multiplier", 0.7, 0.0, 1.0)], &[MODEL]),
    class("EmptyLatentImage", "Empty Latent Image", "latent", EMPTY, &[LATENT]),
    class("EmptySD3LatentImage", "EmptySD3LatentImage", "latent/sd3", EMPTY, &[LATENT]),
    class("EmptyFlux2LatentImage", "Empty Flux 2 Latent", "latent", EMPTY, &[LATENT]),
    class("VAEEncode", "VAE Encode", "latent", &[link("pixels", IMAGE), link("vae", VAE)], &[LATENT]),
    class("VAEEncodeForInpaint", "VAE Encode (for Inpainting)", "latent/inpaint", &[
        link("pixels", IMAGE), link("vae", VAE), link("mask", MASK), whole("grow_mask_by", 6, 0, 64)], &[LATENT]),
    class("SetLatentNoiseMask", "Set Latent Noise Mask", "latent/inpaint", &[link("samples", LATENT), link("mask", MASK)], &[LATENT]),
    class("RepeatLatentBatch", "Repeat Latent Batch", "latent/batch", &[link("samples", LATENT), whole("amount", 1, 1, 64)], &[LATENT]),
    class("LatentUpscale", "Upscale Latent", "latent", &[
        link("samples", LATENT), ENLARGERS, whole("width", 512, 16, SIDE), whole("height", 512, 16, SIDE), CROP], &[LATENT]),
    class("LatentUpscaleBy", "Upscale Latent By", "latent", &[link("samples", LATENT), ENLARGERS, number("scale_by", 1.5, 0.01, 8.0)], &[LATENT]),
    class("KSampler", "KSampler", "sampling", &[
        link("model", MODEL), whole("seed", 0, 0, SEED), STEPS, CFG, SAMPLER, SCHEDULER, link("positive", CONDITIONING),
        link("negative", CONDITIONING), link("latent_image", LATENT), DENOISE], &[LATENT]),
    class("KSamplerAdvanced", "KSampler (Advanced)", "sampling", &[
        link("model", MODEL), needs("add_noise", SWITCH), whole("noise_seed", 0, 0, SEED), STEPS, CFG, SAMPLER, SCHEDULER,
        link("positive", CONDITIONING), link("negative", CONDITIONING), link("latent_image", LATENT),
        whole("start_at_step", 0, 0, 10000), whole("end_at_step", 10000, 0, 10000), needs("return_with_leftover_noise", SWITCH)],
        &[LATENT]),
    class("SamplerCustomAdvanced", "SamplerCustomAdvanced", "sampling/custom_sampling", &[
        link("noise", "NOISE"), link("guider", "GUIDER"), link("sampler", "SAMPLER"), link("sigmas", "SIGMAS"),
        link("latent_image", LATENT)], &[LATENT, LATENT]),
    class("RandomNoise", "RandomNoise", "sampling/custom_sampling/noise", &[whole("noise_seed", 0, 0, SEED)], &["NOISE"]),
    class("KSamplerSelect", "KSamplerSelect", "sampling/custom_sampling/samplers", &[SAMPLER], &["SAMPLER"]),
    class("BasicScheduler", "BasicScheduler", "sampling/custom_sampling/schedulers", &[link("model", MODEL), SCHEDULER, STEPS, DENOISE], &["SIGMAS"]),
    class("BasicGuider", "BasicGuider", "sampling/custom_sampling/guiders", &[link("model", MODEL), link("conditioning", CONDITIONING)], &["GUIDER"]),
    class("CFGGuider", "CFGGuider", "sampling/custom_sampling/guiders", &[
        link("model", MODEL), link("positive", CONDITIONING), link("negative", CONDITIONING), CFG], &["GUIDER"]),
    class("VAEDecode", "VAE Decode", "latent", &[link("samples", LATENT), link("vae", VAE)], &[IMAGE]),
    class("LoadImage", "Load Image", "image", &[one_of("image", Names::Pictures)], &[IMAGE, MASK]),
    class("LoadImageMask", "Load Image (as Mask)", "mask", &[one_of("image", Names::Pictures), CHANNEL], &[MASK]),
    class("InvertMask", "InvertMask", "mask", &[link("mask", MASK)], &[MASK]),
    class("ImageScale", "Upscale Image", "image/upscaling", &[
        link("image", IMAGE), SCALERS, whole("width", 512, 1, SIDE), whole("height", 512, 1, SIDE), CROP], &[IMAGE]),
    class("ImageUpscaleWithModel", "Upscale Image (using Model)", "image/upscaling", &[
        link("upscale_model", "UPSCALE_MODEL"), link("image", IMAGE)], &[IMAGE]),
    class("SaveImage", "Save Image", "image", &[link("images", IMAGE), needs("filename_prefix", Kind::Text)], &[]),
    class("PreviewImage", "Preview Image", "image", &[link("images", IMAGE)], &[]),
];

/// The class of this name.
pub(super) fn find(name: &str) -> Option<&'static Class> {
    CLASSES.iter().find(|class| class.name == name)
}

/// The names of a kind.
pub(super) fn names(app: &App, of: Names) -> Vec<String> {
    let model = || app.queue().info().name.clone();
    let files = |list: Vec<(String, std::path::PathBuf)>| -> Vec<String> {
        let name = |path: std::path::PathBuf| Some(path.file_name()?.to_str()?.to_string());
        list.into_iter()
            .filter_map(|(_, path)| name(path))
            .collect()
    };
    match of {
        Names::Models | Names::Encoders => {
            let aliases = app.options().aliases.iter().cloned();
            std::iter::once(model()).chain(aliases).collect()
        }
        Names::Vaes => {
            let vae = app.options().vae.as_ref().and_then(|path| path.file_name());
            let vae = vae.map(|name| name.to_string_lossy().into_owned());
            vec![vae.unwrap_or_else(model)]
        }
        Names::Loras => files(app.options().loras.list()),
        Names::Controls => files(app.options().controls.list()),
        Names::Upscalers => files(app.options().upscalers.list()),
        Names::Samplers => (Sampler::ALL.iter())
            // The first of them is ComfyUI's.
            .filter_map(|sampler| sampler.aliases().first())
            .map(|name| name.to_string())
            .collect(),
        Names::Schedules => (Schedule::ALL.iter())
            .filter_map(|schedule| schedule.aliases().first())
            .map(|name| name.to_string())
            .collect(),
        Names::Pictures => app.comfy().uploads().names(),
    }
}

/// Whether a name is one of its kind: by what `/object_info` tells, or as ComfyUI's users write it.
pub(super) fn knows(app: &App, of: Names, name: &str) -> bool {
    let stem = crate::recall::comfy::recipe::stem;
    match of {
        Names::Samplers => Sampler::from_name(name).is_ok(),
        Names::Schedules => Schedule::from_name(name).is_ok(),
        Names::Pictures => app.comfy().uploads().get(name).is_some(),
        _ => names(app, of).iter().any(|known| stem(known) == stem(name)),
    }
}

/// A class as `/object_info` tells of it.
pub(super) fn described(app: &App, class: &Class) -> Value {
    let (mut needed, mut optional) = (Map::new(), Map::new());
    for input in class.inputs {
        let into = if input.optional {
            &mut optional
        } else {
            &mut needed
        };
        into.insert(input.name.to_string(), kind(app, input));
    }
    let order = |optional| -> Vec<&str> {
        let inputs = class.inputs.iter();
        let of = inputs.filter(|input| input.optional == optional);
        of.map(|input| input.name).collect()
    };
    json!({
        "input": {"required": needed, "optional": optional},
        "input_order": {"required": order(false), "optional": order(true)},
        "output": class.outputs,
        "output_is_list": vec![false; class.outputs.len()],
        "output_name": class.outputs,
        "name": class.name,
        "display_name": class.label,
        "description": "",
        "python_module": "nodes",
        "category": class.category,
        "output_node": class.outputs.is_empty(),
    })
}

fn kind(app: &App, input: &Input) -> Value {
    match input.kind {
        Kind::Link(of) => json!([of]),
        Kind::Whole { usual, least, most } => {
            json!(["INT", {"default": usual, "min": least, "max": most}])
        }
        Kind::Number { usual, least, most } => {
            json!(["FLOAT", {"default": usual, "min": least, "max": most, "step": 0.01}])
        }
        Kind::Text => json!(["STRING", {"multiline": input.name != "filename_prefix"}]),
        Kind::Fixed(names) => json!([names]),
        Kind::OneOf(Names::Pictures) => {
            json!([names(app, Names::Pictures), {"image_upload": true}])
        }
        Kind::OneOf(of) => json!([names(app, of)]),
    }
}

/// All classes as `/object_info` tells of them.
pub(super) fn all(app: &App) -> Value {
    let classes = CLASSES
        .iter()
        .map(|class| (class.name.to_string(), described(app, class)));
    Value::Object(classes.collect())
}
