//! The web UI's settings: those that are followed can be changed for good by `POST /sdapi/v1/options` and for one request
//! by `override_settings`; those that would change pictures in ways that are not implemented must be what they are.

use super::lenient::number;
use crate::faces::WEIGHT;
use crate::image_io::Format;
use crate::request::Tuning;
use crate::rng::RngKind;
use crate::sampling::Sampler;
use serde_json::{json, Map, Value};
use worker::http::ApiError;

/// Settings that are followed.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::server) struct Settings {
    /// As requests have it; 1 is none.
    pub(super) clip_skip: usize,
    pub(super) rng: RngKind,
    /// Of the pictures in answers.
    pub(super) format: Format,
    /// Of JPEG, 1 to 100.
    pub(super) quality: u8,
    /// Whether pictures say what they were made with.
    pub(super) parameters: bool,
    /// A preview with every n-th step; 0 gives none.
    pub(super) preview_every: usize,
    /// Added to seeds for noise that samplers draw on the way.
    pub(super) step_seed_delta: u64,
    /// `eta` of DDIM and its kin, and of samplers that draw noise on the way; `None` is the sampler's own.
    eta_ddim: Option<f64>,
    eta_ancestral: Option<f64>,
    /// Factor of the noise that a picture to start from is covered with.
    pub(super) noise_multiplier: f64,
    /// The network that restores faces, and how much of the given face it lets through.
    pub(super) faces: (String, f64),
    /// Of the sampler and the schedule.
    tuning: Tuning,
}

/// Settings of [`Tuning`], where they are, and the web UI's default, which leaves them to the sampler.
type Place = fn(&mut Tuning) -> &mut Option<f64>;
const TUNING: [(&str, Place, f64); 11] = [
    ("s_churn", |t| &mut t.s_churn, 0.0),
    ("s_tmin", |t| &mut t.s_tmin, 0.0),
    ("s_tmax", |t| &mut t.s_tmax, 0.0),
    ("s_noise", |t| &mut t.s_noise, 1.0),
    ("s_min_uncond", |t| &mut t.guidance.guidance_min_sigma, 0.0),
    ("skip_early_cond", |t| &mut t.guidance.guidance_start, 0.0),
    ("rho", |t| &mut t.schedule_rho, 0.0),
    ("sigma_min", |t| &mut t.schedule_min_sigma, 0.0),
    ("sigma_max", |t| &mut t.schedule_max_sigma, 0.0),
    ("beta_dist_alpha", |t| &mut t.schedule_alpha, 0.6),
    ("beta_dist_beta", |t| &mut t.schedule_beta, 0.6),
];

impl Settings {
    /// What is set at the server's start.
    pub(in crate::server) fn new(preview_every: usize) -> Self {
        Self {
            clip_skip: 1,
            rng: RngKind::default(),
            format: Format::Png,
            quality: 90,
            parameters: true,
            preview_every,
            step_seed_delta: 0,
            eta_ddim: None,
            eta_ancestral: None,
            noise_multiplier: 1.0,
            faces: ("CodeFormer".to_string(), WEIGHT),
            tuning: Tuning::default(),
        }
    }

    /// The `eta` of a sampler for a request that says nothing of it.
    pub(super) fn eta(&self, sampler: &str) -> Option<f64> {
        let (sampler, _) = Sampler::with_schedule(sampler).ok()?;
        match sampler {
            Sampler::Ddim => self.eta_ddim,
            // These have another one of their own.
            Sampler::DpmFast | Sampler::DpmAdaptive => self.eta_ancestral.or(Some(1.0)),
            _ => self.eta_ancestral,
        }
    }

    /// What a request says of itself before what is set here.
    pub(super) fn tuning(&self, own: Tuning) -> Tuning {
        let (mut own, mut ours) = (own, self.tuning.clone());
        for (_, place, usual) in TUNING {
            let said = place(&mut own).filter(|value| *value != usual);
            *place(&mut own) = said.or(*place(&mut ours));
        }
        // The web UI's noise is that of a Brownian motion whichever random numbers are asked for.
        own.brownian_noise = (self.rng == RngKind::TorchCpu).then_some(true);
        own
    }

    /// All settings by the web UI's names, but for the model.
    pub(super) fn list(&self) -> Map<String, Value> {
        let rng = match self.rng {
            RngKind::Philox => "NV",
            RngKind::TorchCpu => "CPU",
        };
        let followed = json!({
            "CLIP_stop_at_last_layers": self.clip_skip,
            "randn_source": rng,
            "samples_format": self.format.extension(),
            "jpeg_quality": self.quality,
            "enable_pnginfo": self.parameters,
            "live_previews_enable": self.preview_every > 0,
            "show_progress_every_n_steps": self.preview_every,
            "eta_noise_seed_delta": self.step_seed_delta,
            "eta_ddim": self.eta_ddim.unwrap_or(0.0),
            "eta_ancestral": self.eta_ancestral.unwrap_or(1.0),
            "initial_noise_multiplier": self.noise_multiplier,
            "face_restoration_model": self.faces.0,
            "code_former_weight": self.faces.1,
        });
        let mut all: Map<String, Value> = Map::new();
        if let Value::Object(followed) = followed {
            all.extend(followed);
        }
        let mut tuning = self.tuning.clone();
        for (name, place, usual) in TUNING {
            let value = place(&mut tuning).unwrap_or(usual);
            all.insert(name.to_string(), json!(value));
        }
        all.extend(FIXED.map(|(name, value)| (name.to_string(), value.json())));
        all
    }

    /// Changes one setting. `field` is what an error is about.
    ///
    /// # Errors
    /// 400 for a value that makes no sense, and for a setting that cannot be changed.
    pub(super) fn set(&mut self, field: &str, name: &str, value: &Value) -> Result<(), ApiError> {
        let bad = || ApiError::field(field, format!("{name}: {value} is not valid"));
        let whole = |least: u64, most: u64| {
            let number = number(value).and_then(|number| number.as_u64());
            number
                .filter(|number| (least..=most).contains(number))
                .ok_or_else(bad)
        };
        let share = |most: f64| {
            let number = number(value).and_then(|number| number.as_f64());
            number
                .filter(|number| (0.0..=most).contains(number))
                .ok_or_else(bad)
        };
        match name {
            "CLIP_stop_at_last_layers" => self.clip_skip = whole(1, 12)? as usize,
            "randn_source" => {
                let name = value.as_str().ok_or_else(bad)?;
                self.rng = RngKind::from_name(name).map_err(|_| bad())?;
            }
            "samples_format" => {
                let name = value.as_str().ok_or_else(bad)?;
                self.format = Format::from_name(name).map_err(|_| bad())?;
            }
            "eta_noise_seed_delta" => self.step_seed_delta = whole(0, u64::MAX)?,
            "eta_ddim" => self.eta_ddim = Some(share(1.0)?).filter(|eta| *eta != 0.0),
            "eta_ancestral" => self.eta_ancestral = Some(share(1.0)?).filter(|eta| *eta != 1.0),
            "initial_noise_multiplier" => self.noise_multiplier = share(1.5)?,
            "face_restoration_model" => {
                self.faces.0 = value.as_str().ok_or_else(bad)?.to_string();
            }
            "code_former_weight" => self.faces.1 = share(1.0)?,
            "jpeg_quality" => self.quality = whole(1, 100)? as u8,
            "enable_pnginfo" => self.parameters = value.as_bool().ok_or_else(bad)?,
            "live_previews_enable" => match value.as_bool().ok_or_else(bad)? {
                false => self.preview_every = 0,
                true => self.preview_every = self.preview_every.max(1),
            },
            // The web UI gives only the last one for -1.
            "show_progress_every_n_steps" => {
                let every = number(value).and_then(|number| number.as_i64());
                self.preview_every = usize::try_from(every.ok_or_else(bad)?).unwrap_or(0);
            }
            _ if TUNING.iter().any(|(known, ..)| *known == name) => {
                let value = number(value)
                    .and_then(|number| number.as_f64())
                    .ok_or_else(bad)?;
                let mut tuning = self.tuning.clone();
                for (_, place, usual) in TUNING.iter().filter(|(known, ..)| *known == name) {
                    *place(&mut tuning) = Some(value).filter(|value| value != usual);
                }
                tuning.check(f64::INFINITY).map_err(|_| bad())?;
                self.tuning = tuning;
            }
            _ if is_harmless(name) => {}
            _ => match FIXED.iter().find(|(fixed, _)| *fixed == name) {
                Some((_, usual)) if usual.is(value) => {}
                Some((_, usual)) => {
                    return Err(ApiError::field(
                        field,
                        format!(
                            "{name}: {value} is not implemented here; it is {}",
                            usual.json()
                        ),
                    ))
                }
                None => {
                    return Err(ApiError::field(
                        field,
                        format!("{name} is not implemented here; leave it out"),
                    ))
                }
            },
        }
        Ok(())
    }
}

/// What a setting is that cannot be changed.
#[derive(Clone, Copy)]
enum Usual {
    Off,
    On,
    Number(f64),
    /// The first is shown, the others mean the same.
    Text(&'static [&'static str]),
    /// An empty list.
    Nothing,
}

impl Usual {
    fn json(self) -> Value {
        match self {
            Self::Off => json!(false),
            Self::On => json!(true),
            Self::Number(value) if value.fract() == 0.0 => json!(value as i64),
            Self::Number(value) => json!(value),
            Self::Text(texts) => json!(texts[0]),
            Self::Nothing => json!([]),
        }
    }

    fn is(self, value: &Value) -> bool {
        match self {
            _ if value.is_null() => true,
            Self::Off => *value == json!(false),
            Self::On => *value == json!(true),
            Self::Number(usual) => number(value).and_then(|n| n.as_f64()) == Some(usual),
            Self::Text(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
            Self::Nothing => value.as_array().is_some_and(Vec::is_empty),
        }
    }
}

/// Settings that change pictures and have no other value here.
const FIXED: [(&str, Usual); 21] = [
    ("sd_vae", Usual::Text(&["Automatic", "None", "Default"])),
    ("sd_hypernetwork", Usual::Text(&["None", ""])),
    ("sd_checkpoint_hash", Usual::Text(&[""])),
    ("forge_additional_modules", Usual::Nothing),
    ("img2img_extra_noise", Usual::Number(0.0)),
    ("img2img_color_correction", Usual::Off),
    ("img2img_fix_steps", Usual::Off),
    ("inpainting_mask_weight", Usual::Number(1.0)),
    ("face_restoration", Usual::Off),
    ("tiling", Usual::Off),
    ("s_min_uncond_all", Usual::Off),
    ("token_merging_ratio", Usual::Number(0.0)),
    ("token_merging_ratio_img2img", Usual::Number(0.0)),
    ("token_merging_ratio_hr", Usual::Number(0.0)),
    ("always_discard_next_to_last_sigma", Usual::Off),
    ("sgm_noise_multiplier", Usual::Off),
    ("emphasis", Usual::Text(&["Original"])),
    ("enable_batch_seeds", Usual::On),
    ("sdxl_crop_left", Usual::Number(0.0)),
    ("sdxl_crop_top", Usual::Number(0.0)),
    ("return_grid", Usual::Off),
];

/// Settings that change no picture: files and folders of the web UI's own, its page, how it computes.
fn is_harmless(name: &str) -> bool {
    const BEGINNINGS: [&str; 8] = [
        "outdir_",
        "save_",
        "grid_",
        "samples_save",
        "live_preview",
        "sd_checkpoint",
        "use_save_to_dirs",
        "show_",
    ];
    const NAMES: [&str; 12] = [
        "samples_filename_pattern",
        "directories_filename_pattern",
        "cross_attention_optimization",
        "upcast_attn",
        "memmon_poll_rate",
        "do_not_show_images",
        "export_for_4chan",
        "do_not_add_watermark",
        "progressbar",
        "batch_cond_uncond",
        "add_model_name_to_info",
        "webp_lossless",
    ];
    NAMES.contains(&name)
        || (BEGINNINGS.iter().any(|start| name.starts_with(start)) && name != "sd_checkpoint_hash")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::guidance_tuning::GuidanceTuning;

    #[test]
    fn what_was_read_can_be_posted_back() {
        for every in [0, 3] {
            let settings = Settings::new(every);
            let mut again = settings.clone();
            for (name, value) in settings.list() {
                again.set("x", &name, &value).unwrap();
            }
            assert_eq!(again, settings);
        }
    }

    #[test]
    fn settings_are_followed_or_refused() {
        let mut settings = Settings::new(0);
        for (name, value) in [
            ("CLIP_stop_at_last_layers", json!("2")),
            ("randn_source", json!("CPU")),
            ("samples_format", json!("jpg")),
            ("jpeg_quality", json!(80.0)),
            ("enable_pnginfo", json!(false)),
            ("show_progress_every_n_steps", json!(5)),
            ("sd_vae", json!("None")),
            ("outdir_samples", json!("anything")),
            ("eta_noise_seed_delta", json!("31337")),
            ("s_churn", json!("0.5")),
            ("rho", json!(5)),
            ("s_min_uncond", json!(2)),
            ("eta_ancestral", json!("0.5")),
            ("initial_noise_multiplier", json!(0.9)),
            ("face_restoration_model", json!("GFPGAN")),
            ("code_former_weight", json!("0.25")),
            ("sigma_max", json!(0)),
        ] {
            settings.set("f", name, &value).unwrap();
        }
        let expected = Settings {
            clip_skip: 2,
            rng: RngKind::TorchCpu,
            format: Format::Jpeg,
            quality: 80,
            parameters: false,
            preview_every: 5,
            step_seed_delta: 31337,
            eta_ddim: None,
            eta_ancestral: Some(0.5),
            noise_multiplier: 0.9,
            faces: ("GFPGAN".to_string(), 0.25),
            tuning: Tuning {
                s_churn: Some(0.5),
                schedule_rho: Some(5.0),
                guidance: GuidanceTuning {
                    guidance_min_sigma: Some(2.0),
                    ..GuidanceTuning::default()
                },
                ..Tuning::default()
            },
        };
        assert_eq!(settings, expected);
        for (name, value) in [
            ("CLIP_stop_at_last_layers", json!(13)),
            ("randn_source", json!(1)),
            ("samples_format", json!("gif")),
            ("jpeg_quality", json!(0)),
            ("eta_noise_seed_delta", json!(-1)),
            ("sd_vae", json!("other.safetensors")),
            ("sd_checkpoint_hash", json!("1234")),
            ("a_new_setting", json!(1)),
            ("rho", json!(-1)),
            ("eta_ddim", json!(1.5)),
            ("initial_noise_multiplier", json!(-0.1)),
            ("s_noise", json!("much")),
        ] {
            let error = settings.set("f", name, &value).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("f"), "{name}");
            assert!(error.message.contains(name), "{}", error.message);
        }
        // Of the processor's random numbers, too, as the web UI has it.
        let along = Tuning {
            brownian_noise: Some(true),
            ..expected.tuning.clone()
        };
        assert_eq!(settings.tuning(Tuning::default()), along);
        let own = Tuning {
            s_churn: Some(2.0),
            s_noise: Some(1.0),
            ..Tuning::default()
        };
        let both = settings.tuning(own);
        assert_eq!(
            (both.s_churn, both.s_noise, both.schedule_rho),
            (Some(2.0), None, Some(5.0))
        );
    }
}
