//! The parameters text that web UIs put into pictures.
//!
//! ```text
//! a red circle
//! Negative prompt: blurry
//! Steps: 20, Sampler: Euler a, Schedule type: Karras, CFG scale: 7, Seed: 5, Size: 512x512
//! ```

use crate::editing::Editing;
use crate::faces::RestoreFaces;
use crate::info::ModelInfo;
use crate::request::tuning::BROWNIAN_NOISE;
use crate::request::{ImageRequest, MicroConditions, RegionPrompt};
use crate::rng::RngKind;
use std::fmt;

const NEGATIVE: &str = "Negative prompt: ";
/// The setting that names the program.
const VERSION: &str = "Version";
/// What made the picture.
const PROGRAM: &str = concat!("sd-worker-rocm ", env!("CARGO_PKG_VERSION"));
/// A line with fewer settings than this is part of the prompt.
const MIN_SETTINGS: usize = 3;

/// What a picture was made with.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parameters {
    /// The prompt.
    pub prompt: String,
    /// The negative prompt.
    pub negative_prompt: String,
    /// Names and values in the order of the text.
    pub settings: Vec<(String, String)>,
}

impl Parameters {
    /// The parameters of the picture of this number of a request.
    pub fn of(request: &ImageRequest, picture: usize, model: &ModelInfo) -> Self {
        let (seed, variation) = request.seeds_of(picture);
        let whole = request;
        let own = (!request.each.is_empty()).then(|| request.pictures(picture, 1));
        let request = own.as_ref().unwrap_or(request);
        let mut settings = vec![
            ("Steps", request.steps.to_string()),
            ("Sampler", request.sampler.label().to_string()),
            ("Schedule type", request.schedule().label().to_string()),
            ("CFG scale", request.guidance.to_string()),
            ("Seed", seed.to_string()),
            ("Size", format!("{}x{}", request.width, request.height)),
            ("Model", model.name.clone()),
        ];
        if let Some(init) = &request.init {
            settings.push(("Denoising strength", init.strength.to_string()));
            if init.mask.is_some() {
                settings.push(("Mask blur", init.mask_blur.to_string()));
            }
            settings.extend(editing(&init.editing));
        }
        if let Some(image_guidance) = request.image_guidance {
            settings.push(("Image CFG scale", image_guidance.to_string()));
        }
        if let Some(start) = request.refiner_start.filter(|_| model.refined) {
            settings.push(("Refiner switch at", start.to_string()));
        }
        let (told, usual) = (&request.micro, MicroConditions::default());
        for (name, size) in [
            ("Original size", told.original_size),
            ("Target size", told.target_size),
            ("Crop", Some(told.crop).filter(|crop| *crop != usual.crop)),
        ] {
            if let Some((x, y)) = size {
                settings.push((name, format!("{x}x{y}")));
            }
        }
        for (name, score, usual) in [
            (
                "Aesthetic score",
                told.aesthetic_score,
                usual.aesthetic_score,
            ),
            (
                "Negative aesthetic score",
                told.negative_aesthetic_score,
                usual.negative_aesthetic_score,
            ),
        ] {
            if score != usual {
                settings.push((name, score.to_string()));
            }
        }
        if let Some(video) = request.video.as_ref().filter(|video| video.frames > 1) {
            settings.push(("Frames", video.frames.to_string()));
            settings.push(("FPS", video.fps.to_string()));
            for (name, value) in [
                ("Late CFG scale", video.late_guidance),
                ("Frame noise", video.frame_noise),
                ("Decode timestep", video.decode_timestep),
                ("Decode noise", video.decode_noise),
            ] {
                settings.extend(value.map(|value| (name, value.to_string())));
            }
        }
        if let Some(highres) = &request.highres {
            settings.extend(highres.settings(request));
        }
        if let Some(faces) = &request.restore_faces {
            settings.extend(faces.settings());
        }
        if request.clip_skip > 1 {
            settings.push(("Clip skip", request.clip_skip.to_string()));
        }
        if let Some(eta) = request.eta {
            settings.push(("Eta", eta.to_string()));
        }
        if let Some(weights) = request.prompt_weights {
            settings.push(("Prompt weights", weights.to_string()));
        }
        if request.true_guidance != 1.0 {
            settings.push(("True CFG scale", request.true_guidance.to_string()));
        }
        if !request.references.is_empty() {
            settings.push(("References", request.references.len().to_string()));
        }
        let finer = request.tuning.settings().into_iter();
        let goes_along = request.sampler.goes_along();
        settings.extend(finer.filter(|(name, _)| goes_along || *name != BROWNIAN_NOISE));
        if request.guidance_rescale != 0.0 {
            settings.push(("CFG Rescale", request.guidance_rescale.to_string()));
        }
        if !request.loras.is_empty() {
            let loras: Vec<_> = request
                .loras
                .iter()
                .map(|lora| format!("{}: {lora}", file_stem(&lora.name)))
                .collect();
            settings.push(("Loras", loras.join(", ")));
        }
        if let Some(variation) = variation {
            settings.push(("Variation seed", variation.to_string()));
            let strength = whole.noise.variation;
            settings.push(("Variation seed strength", strength.to_string()));
        }
        if let Some((width, height)) = whole.noise.from_size {
            settings.push(("Seed resize from", format!("{width}x{height}")));
        }
        if whole.noise.step_seed_delta != 0 {
            settings.push(("ENSD", whole.noise.step_seed_delta.to_string()));
        }
        if let Some(multiplier) = whole.noise.multiplier {
            settings.push(("Noise multiplier", multiplier.to_string()));
        }
        for (i, region) in request.regions.iter().enumerate() {
            settings.push(("Region", region_text(i, region)));
        }
        if !request.scheduled_prompts {
            settings.push(("Scheduled prompts", "no".to_string()));
        }
        if !request.ip_adapters.is_empty() {
            let adapters = request.ip_adapters.iter().map(|adapter| {
                let name = adapter.model.to_string_lossy();
                format!("{}: {}", file_stem(&name), adapter.strength)
            });
            settings.push(("IP-Adapters", adapters.collect::<Vec<_>>().join(", ")));
        }
        settings.push((
            "RNG",
            match request.rng {
                RngKind::Philox => "NV",
                RngKind::TorchCpu => "CPU",
            }
            .to_string(),
        ));
        settings.push((VERSION, PROGRAM.to_string()));
        Self {
            prompt: request.prompt.clone(),
            negative_prompt: request.negative_prompt.clone(),
            settings: settings
                .into_iter()
                .map(|(name, value)| (name.to_string(), value))
                .collect(),
        }
    }

    /// Reads a parameters text; any text is one.
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        let (body, settings) = match text.rsplit_once('\n') {
            Some((body, line)) => (body, read_settings(line)),
            None => ("", read_settings(text)),
        };
        let (body, settings) = if settings.len() < MIN_SETTINGS {
            (text, Vec::new())
        } else {
            (body, settings)
        };
        let (prompt, negative) = match body.strip_prefix(NEGATIVE) {
            Some(negative) => ("", negative),
            None => body
                .split_once(&format!("\n{NEGATIVE}"))
                .unwrap_or((body, "")),
        };
        Self {
            prompt: prompt.trim().to_string(),
            negative_prompt: negative.trim().to_string(),
            settings,
        }
    }

    /// A setting's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.settings.iter().find(|(n, _)| n == name)?;
        Some(&found.1)
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.prompt)?;
        if !self.negative_prompt.is_empty() {
            writeln!(f, "{NEGATIVE}{}", self.negative_prompt)?;
        }
        for (i, (name, value)) in self.settings.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            if value.contains([',', '\n', ':']) {
                write!(f, "{comma}{name}: {}", serde_json::json!(value))?;
            } else {
                write!(f, "{comma}{name}: {value}")?;
            }
        }
        Ok(())
    }
}

/// `Name: value, Name: "quoted, value"`; nothing if the line is not of this form.
fn read_settings(line: &str) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let Some((name, after)) = rest.split_once(':') else {
            return Vec::new();
        };
        let is_name = name
            .chars()
            .all(|c| c.is_alphanumeric() || " -_/".contains(c));
        if name.is_empty() || !is_name {
            return Vec::new();
        }
        let after = after.trim_start();
        let (value, left) = if after.starts_with('"') {
            let mut stream = serde_json::Deserializer::from_str(after).into_iter::<String>();
            match stream.next() {
                Some(Ok(value)) => (value, &after[stream.byte_offset()..]),
                _ => return Vec::new(),
            }
        } else {
            let end = after.find(',').unwrap_or(after.len());
            (after[..end].trim().to_string(), &after[end..])
        };
        settings.push((name.trim().to_string(), value));
        let left = left.trim_start();
        rest = left.strip_prefix(',').unwrap_or(left).trim_start();
    }
    settings
}

/// What was done to the picture that was started from, in the words of AUTOMATIC1111's web UI where it has some.
fn editing(editing: &Editing) -> Vec<(&'static str, String)> {
    let usual = Editing::default();
    let mut settings = Vec::new();
    if editing.fit != usual.fit {
        settings.push(("Resize mode", editing.fit.label().to_string()));
    }
    if editing.fill != usual.fill {
        settings.push(("Masked content", editing.fill.label().to_string()));
    }
    if let Some(padding) = editing.only_masked {
        settings.push(("Inpaint area", "Only masked".to_string()));
        settings.push(("Masked area padding", padding.to_string()));
    }
    if editing.soft {
        settings.push(("Soft mask", "True".to_string()));
    }
    if let Some(soft) = editing.soft_inpainting {
        settings.extend(soft.settings());
    }
    if !editing.outpaint.is_empty() {
        settings.push(("Outpaint", editing.outpaint.to_string()));
    }
    settings
}

/// The text of a picture that was made larger, with what was done to it behind what it said.
pub fn upscaled(text: &str, scale: f64, upscaler: &str) -> String {
    let done = vec![
        ("Postprocess upscale by", scale.to_string()),
        ("Postprocess upscaler", upscaler.to_string()),
    ];
    with(text, done)
}

/// The text of a picture whose faces were restored, with what was done behind what it said.
pub fn restored(text: &str, faces: &RestoreFaces) -> String {
    with(text, faces.settings())
}

fn with(text: &str, done: Vec<(&'static str, String)>) -> String {
    let mut parameters = Parameters::parse(text);
    for (name, value) in done {
        parameters.settings.retain(|(known, _)| known != name);
        parameters.settings.push((name.to_string(), value));
    }
    if parameters.get(VERSION).is_none() {
        parameters
            .settings
            .push((VERSION.to_string(), PROGRAM.to_string()));
    }
    parameters.to_string()
}

/// A region as `--region` reads it; of a mask there is only its place in the order.
fn region_text(number: usize, region: &RegionPrompt) -> String {
    let RegionPrompt {
        prompt,
        left,
        top,
        width,
        height,
        mask,
        strength,
    } = region;
    match mask {
        Some(_) => format!("mask {},{strength}:{prompt}", number + 1),
        None => format!("{left},{top},{width},{height},{strength}:{prompt}"),
    }
}

/// A path's last part without its extension; a name as it is.
fn file_stem(name: &str) -> &str {
    let last = name.rsplit(['/', '\\']).next().unwrap_or(name);
    last.strip_suffix(".safetensors").unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_web_ui() {
        let text = "a cat, (sitting:1.2)\nsecond line\nNegative prompt: dog,\nrain\nSteps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7.5, Seed: 18446744073709551615, Size: 512x768, Lora hashes: \"a: 12, b: \\\"x\\\"\", Version: v1.9.4";
        let read = Parameters::parse(text);
        assert_eq!(read.prompt, "a cat, (sitting:1.2)\nsecond line");
        assert_eq!(read.negative_prompt, "dog,\nrain");
        assert_eq!(read.get("Sampler"), Some("DPM++ 2M"));
        assert_eq!(read.get("Seed"), Some("18446744073709551615"));
        assert_eq!(read.get("Lora hashes"), Some("a: 12, b: \"x\""));
        assert_eq!(read.to_string(), text);
    }

    #[test]
    fn any_text_is_a_prompt() {
        for text in [
            "",
            "just a prompt",
            "a: b, c: d",
            "x\ny: \"unfinished, z: 1, w: 2",
        ] {
            assert_eq!(Parameters::parse(text).prompt, text);
        }
        let only_negative = Parameters::parse("Negative prompt: x\nSteps: 1, Seed: 2, Size: 3x4");
        assert_eq!(only_negative.prompt, "");
        assert_eq!(only_negative.negative_prompt, "x");
    }
}
