//! The parameters text of AUTOMATIC1111's web UI, and ours.

use super::besides::besides;
use super::{tuning, Networks, Recalled};
use crate::faces::RestoreFaces;
use crate::lora::Lora;
use crate::parameters::Parameters;
use crate::request::{HighresFields, RequestFields};
use crate::rng::RngKind;
use crate::sampling::{Sampler, Schedule};

/// Settings that say where a picture comes from, and nothing about how it is made.
const WITHOUT_EFFECT: [&str; 14] = [
    "Model",
    "Model hash",
    "Version",
    "VAE",
    "VAE hash",
    "Lora hashes",
    "TI hashes",
    "Hashes",
    "User",
    "Time",
    "Batch size",
    "Batch pos",
    "Postprocess upscale by",
    "Postprocess upscaler",
];

/// Reads a text; any text is a prompt at least.
pub(super) fn read(text: &str, networks: &dyn Networks) -> Recalled {
    let said = Parameters::parse(text);
    let mut recalled = Recalled {
        fields: RequestFields {
            prompt: said.prompt.clone(),
            negative_prompt: Some(said.negative_prompt.clone()),
            ..RequestFields::default()
        },
        left_out: Vec::new(),
    };
    let mut highres = HighresFields::default();
    let mut strength = None;
    for (name, value) in &said.settings {
        let fields = &mut recalled.fields;
        let understood = match name.as_str() {
            "Steps" => taken(&mut fields.steps, value),
            "Sampler" => {
                fields.sampler = Some(value.clone());
                Sampler::with_schedule(value).is_ok()
            }
            "Schedule type" => {
                fields.schedule = Some(value.clone());
                value.eq_ignore_ascii_case("automatic") || Schedule::from_name(value).is_ok()
            }
            "CFG scale" => taken(&mut fields.guidance, value),
            "True CFG scale" => taken(&mut fields.true_guidance, value),
            "CFG Rescale" => taken(&mut fields.guidance_rescale, value),
            "Seed" => taken(&mut fields.seed, value),
            "Clip skip" => taken(&mut fields.clip_skip, value),
            "Eta" => taken(&mut fields.eta, value),
            "Size" => sides(value).is_some_and(|(width, height)| {
                (fields.width, fields.height) = (Some(width), Some(height));
                true
            }),
            "RNG" => RngKind::from_name(value).is_ok_and(|rng| {
                fields.rng = Some(rng);
                true
            }),
            "Loras" => loras(value, fields.steps.unwrap_or(1)).is_some_and(|loras| {
                fields.loras = loras;
                true
            }),
            "Variation seed" => taken(&mut fields.noise.variation_seed, value),
            "Variation seed strength" => number(&mut fields.noise.variation, value),
            "Seed resize from" => {
                fields.noise.from_size = sides(value);
                fields.noise.from_size.is_some()
            }
            "ENSD" => number(&mut fields.noise.step_seed_delta, value),
            "Denoising strength" => taken(&mut strength, value),
            "Hires upscale" => taken(&mut highres.scale, value),
            "Hires resize" => sides(value).is_some_and(|(width, height)| {
                (highres.width, highres.height) = (Some(width), Some(height));
                true
            }),
            "Hires seed" => taken(&mut highres.seed, value),
            "Hires steps" => taken(&mut highres.steps, value),
            "Hires upscaler" => networks.upscaler(value).is_ok_and(|method| {
                highres.method = Some(method);
                true
            }),
            "Hires sampler" => {
                highres.sampler = Some(value.clone());
                Sampler::with_schedule(value).is_ok()
            }
            "Hires schedule type" => {
                highres.schedule = Some(value.clone());
                value.eq_ignore_ascii_case("automatic") || Schedule::from_name(value).is_ok()
            }
            "Hires CFG Scale" => taken(&mut highres.guidance, value),
            "Hires prompt" => {
                highres.prompt = Some(value.clone());
                true
            }
            "Hires negative prompt" => {
                highres.negative_prompt = Some(value.clone());
                true
            }
            "Face restoration" => networks.faces(value).is_ok_and(|faces| {
                fields.restore_faces = Some(faces);
                true
            }),
            name => tuning::taken(&mut fields.tuning, name, value)
                .or_else(|| besides(fields, name, value))
                .or_else(|| of_faces(fields.restore_faces.as_mut(), name, value))
                .unwrap_or_else(|| WITHOUT_EFFECT.contains(&name)),
        };
        if !understood {
            recalled.leave_out(format!("{name}: {value}"));
        }
    }
    let fields = &mut recalled.fields;
    if highres != HighresFields::default() {
        highres.strength = strength;
        fields.highres = Some(highres);
    } else if strength.is_some() {
        recalled.leave_out("Denoising strength (it started from a picture)");
    }
    forget_unknown(&mut recalled.fields);
    recalled
}

/// How faces are restored, which stands behind the network's name; whether it could be read, and `None` for a name that
/// is none of these.
fn of_faces(faces: Option<&mut RestoreFaces>, name: &str, value: &str) -> Option<bool> {
    let set: fn(&mut RestoreFaces, &str) -> bool = match name {
        "Face restoration weight" => |faces, value| number(&mut faces.weight, value),
        "Face restoration visibility" => |faces, value| number(&mut faces.visibility, value),
        "Face restoration of" => |faces, value| {
            faces.only_center = value == "center";
            faces.only_center
        },
        _ => return None,
    };
    Some(faces.is_some_and(|faces| set(faces, value)))
}

/// Names that are told as left out are not asked for.
fn forget_unknown(fields: &mut RequestFields) {
    let sampler = |name: &Option<String>| {
        let known = |name: &String| Sampler::with_schedule(name).is_ok();
        name.clone().filter(known)
    };
    let schedule = |name: &Option<String>| {
        let known = |name: &String| {
            name.eq_ignore_ascii_case("automatic") || Schedule::from_name(name).is_ok()
        };
        name.clone().filter(known)
    };
    fields.sampler = sampler(&fields.sampler);
    fields.schedule = schedule(&fields.schedule);
    if let Some(highres) = &mut fields.highres {
        highres.sampler = sampler(&highres.sampler);
        highres.schedule = schedule(&highres.schedule);
    }
}

/// Reads a number; whether it is one.
pub(super) fn taken<T: std::str::FromStr>(into: &mut Option<T>, text: &str) -> bool {
    *into = text.trim().parse().ok();
    into.is_some()
}

/// The same for what is always there.
pub(super) fn number<T: std::str::FromStr>(into: &mut T, text: &str) -> bool {
    let number = text.trim().parse();
    number.is_ok_and(|number| {
        *into = number;
        true
    })
}

/// `512x768`.
pub(super) fn sides(text: &str) -> Option<(usize, usize)> {
    let (width, height) = text.split_once('x')?;
    Some((width.trim().parse().ok()?, height.trim().parse().ok()?))
}

/// `ink: 0.5, paint: 1`, as we write it.
fn loras(text: &str, steps: usize) -> Option<Vec<Lora>> {
    let each = text.split(", ").map(|lora| {
        let (name, settings) = lora.split_once(": ")?;
        Lora::read(name, &settings.split(':').collect::<Vec<_>>(), steps).ok()
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::editing::resample::Resample;
    use crate::recall::Without;
    use crate::upscale::Method;

    #[test]
    fn a_web_uis_text() {
        let read = super::read(
            "a cat <lora:ink:0.5>\nNegative prompt: dog\nSteps: 30, Sampler: DPM++ 2M Karras, CFG scale: 7.5, \
             Seed: 12, Size: 512x768, Model hash: abc, Model: x, Clip skip: 2, RNG: CPU, Denoising strength: 0.4, \
             Hires upscale: 1.5, Hires steps: 9, Hires upscaler: Latent (nearest), Mask blur: 4, Version: v1.9",
            &Without,
        );
        let fields = read.fields;
        assert_eq!(fields.prompt, "a cat <lora:ink:0.5>");
        assert_eq!(fields.negative_prompt.as_deref(), Some("dog"));
        assert_eq!((fields.steps, fields.seed), (Some(30), Some(12)));
        assert_eq!((fields.width, fields.height), (Some(512), Some(768)));
        assert_eq!((fields.clip_skip, fields.guidance), (Some(2), Some(7.5)));
        assert_eq!(fields.rng, Some(RngKind::TorchCpu));
        let highres = fields.highres.unwrap();
        assert_eq!((highres.scale, highres.strength), (Some(1.5), Some(0.4)));
        assert_eq!(highres.method, Some(Method::Latent(Resample::Nearest)));
        assert_eq!(read.left_out, ["Mask blur: 4"]);
    }

    #[test]
    fn what_is_not_understood_is_told() {
        let read = super::read(
            "x\nSteps: many, Sampler: Plaid, Seed: 1, Denoising strength: 0.5, Size: 5, Loras: \"a: 1, b\"",
            &Without,
        );
        assert_eq!(read.left_out.len(), 5, "{:?}", read.left_out);
        assert_eq!(read.fields.sampler, None);
        assert_eq!(read.fields.seed, Some(1));
        assert!(super::read("just a prompt", &Without).left_out.is_empty());
    }
}
