//! Finer settings of guidance.

use super::limits::{within, InvalidRequest};
use crate::sampling::guidance::{Form, Mimic, Projection};
use clap::Args;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most values of a schedule of guidance.
const MAX_SCHEDULE: usize = 1000;
/// Most layers that can be named.
const MAX_LAYERS: usize = 128;

/// Finer settings of guidance; what is left out is off.
#[derive(Debug, Clone, Default, PartialEq, Args, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct GuidanceTuning {
    /// Share of the steps, 0 to 1, at which guidance begins; before it the prompt's own prediction is taken.
    #[arg(long, value_name = "X")]
    pub guidance_start: Option<f64>,

    /// Share of the steps, 0 to 1, at which guidance ends.
    #[arg(long, value_name = "X")]
    pub guidance_end: Option<f64>,

    /// Noise over image below which every second step goes without guidance (AUTOMATIC1111's s_min_uncond).
    #[arg(long, value_name = "X")]
    pub guidance_min_sigma: Option<f64>,

    /// Guidance of equal parts of the run in turn, instead of one for all: as many values as steps give each its own.
    #[arg(long, value_delimiter = ',', value_name = "X,..")]
    pub guidance_schedule: Vec<f64>,

    /// Leave guidance out from the step on in which both predictions agree this much, 0 to 1 (adaptive guidance; 0.99 or
    /// so).
    #[arg(long, value_name = "X")]
    pub guidance_agreement: Option<f64>,

    /// Most length of a guided prediction, in lengths of the prompt's own (Z-Image's cfg_normalization); 0 leaves out
    /// what Lumina 2 and Qwen-Image do to lengths by themselves.
    #[arg(long, value_name = "X")]
    pub guidance_norm: Option<f64>,

    /// CFG-Zero*, for flow models: scales the negative prompt's prediction to the prompt's.
    #[arg(long)]
    pub cfg_zero: bool,

    /// Steps at the beginning in which CFG-Zero* predicts nothing; 1 unless given.
    #[arg(long, value_name = "N")]
    pub cfg_zero_steps: Option<usize>,

    /// Adaptive projected guidance: the share of the difference along the prompt's prediction that is kept, 0 to 1.
    #[arg(long, value_name = "X")]
    pub apg_eta: Option<f64>,

    /// Adaptive projected guidance: largest length of the difference; 0 is none.
    #[arg(long, value_name = "X")]
    pub apg_norm: Option<f64>,

    /// Adaptive projected guidance: how much of earlier differences is added, usually below 0.
    #[arg(long, allow_hyphen_values = true, value_name = "X")]
    pub apg_momentum: Option<f64>,

    /// Dynamic thresholding: the lower guidance whose range of values the guided prediction is brought to.
    #[arg(long, value_name = "X")]
    pub mimic_guidance: Option<f64>,

    /// Dynamic thresholding: the share of the values, 0 to 1, that is not cut; 1 unless given.
    #[arg(long, value_name = "X")]
    pub mimic_percentile: Option<f64>,

    /// Skip-layer guidance: the transformer's layers that are left out, from 0 (Stable Diffusion 3.5: 7,8,9).
    #[arg(long, value_delimiter = ',', value_name = "N,..")]
    pub skip_layers: Vec<usize>,

    /// Skip-layer guidance: how strongly it moves away from what is predicted without the layers; 2.8 unless given.
    #[arg(long, value_name = "X")]
    pub skip_layer_guidance: Option<f64>,

    /// Skip-layer guidance: share of the steps after which it begins; 0.01 unless given.
    #[arg(long, value_name = "X")]
    pub skip_layer_start: Option<f64>,

    /// Skip-layer guidance: share of the steps before which it ends; 0.2 unless given.
    #[arg(long, value_name = "X")]
    pub skip_layer_end: Option<f64>,

    /// Perturbed-attention guidance, for UNets: how strongly it moves away from what is predicted without attention; 3
    /// is usual.
    #[arg(long, value_name = "X")]
    pub pag_scale: Option<f64>,

    /// Perturbed-attention guidance: the blocks, such as mid, down_blocks.1 or
    /// up_blocks.1.attentions.0, of Stable Diffusion 3 blocks.13; the middle one unless given.
    #[arg(long, value_delimiter = ',', value_name = "BLOCK,..")]
    pub pag_layers: Vec<String>,

    /// Perturbed-attention guidance: how fast it fades with the time steps, 0 to 1; 0 is not at all.
    #[arg(long, value_name = "X")]
    pub pag_adaptive_scale: Option<f64>,
}

/// Guidance away from a prediction of a network that is made worse.
#[derive(Debug, Clone, PartialEq)]
pub struct Away {
    /// How the network is made worse.
    pub perturbation: Perturbation,
    /// How strong it is.
    pub scale: f64,
    /// Shares of the steps after and before which it acts.
    pub between: (f64, f64),
    /// How fast it fades with the time steps.
    pub fading: f64,
}

/// How a network is made worse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Perturbation {
    /// These layers are left out.
    WithoutLayers(Vec<usize>),
    /// In these blocks, or in the middle one, pixels attend to themselves only.
    WithoutAttention(Vec<String>),
}

impl Away {
    /// How strong it is at a time step, in this step of so many.
    pub fn scale_at(&self, timestep: f64, step: usize, steps: usize) -> f64 {
        let (start, end) = self.between;
        let place = step as f64;
        // Strictly between, as diffusers' pipelines count.
        if place <= start * steps as f64 || place >= end * steps as f64 {
            return 0.0;
        }
        (self.scale - self.fading * (1000.0 - timestep)).max(0.0)
    }
}

impl GuidanceTuning {
    /// How the two predictions are brought together.
    pub fn form(&self) -> Form {
        if self.cfg_zero {
            Form::ZeroStar
        } else if let Some(scale) = self.mimic_guidance {
            Form::Mimic(Mimic {
                scale,
                percentile: self.mimic_percentile.unwrap_or(1.0),
            })
        } else if self.projects() {
            Form::Projected(Projection {
                eta: self.apg_eta.unwrap_or(1.0),
                norm: self.apg_norm.unwrap_or(0.0),
                momentum: self.apg_momentum.unwrap_or(0.0),
            })
        } else {
            Form::Plain
        }
    }

    fn projects(&self) -> bool {
        let settings = [self.apg_eta, self.apg_norm, self.apg_momentum];
        settings.iter().any(Option::is_some)
    }

    /// Steps at the beginning in which nothing is predicted.
    pub fn zero_steps(&self) -> usize {
        match self.cfg_zero {
            true => self.cfg_zero_steps.unwrap_or(1),
            false => 0,
        }
    }

    /// Whether this step of so many is guided.
    pub fn is_on(&self, step: usize, steps: usize) -> bool {
        // Whole steps, as diffusers' guiders count.
        let at = |share: f64| (share * steps as f64) as usize;
        let start = at(self.guidance_start.unwrap_or(0.0));
        (start..at(self.guidance_end.unwrap_or(1.0))).contains(&step)
    }

    /// Whether this step is one of those that go without guidance because so little noise is left, as noise over image.
    pub fn is_late(&self, step: usize, ratio: f64) -> bool {
        step % 2 == 1 && self.guidance_min_sigma.is_some_and(|least| ratio < least)
    }

    /// Whether some steps may go without guidance.
    pub fn is_partial(&self) -> bool {
        self.guidance_start.is_some_and(|start| start > 0.0)
            || self.guidance_end.is_some_and(|end| end < 1.0)
            || self.guidance_agreement.is_some()
            || self.guidance_min_sigma.is_some()
            || !self.guidance_schedule.is_empty()
    }

    /// Guidance away from a worse network.
    pub fn away(&self) -> Option<Away> {
        if let Some(scale) = self.pag_scale.filter(|scale| *scale > 0.0) {
            return Some(Away {
                perturbation: Perturbation::WithoutAttention(self.pag_layers.clone()),
                scale,
                between: (-1.0, 1.0),
                fading: self.pag_adaptive_scale.unwrap_or(0.0),
            });
        }
        (!self.skip_layers.is_empty()).then(|| Away {
            perturbation: Perturbation::WithoutLayers(self.skip_layers.clone()),
            scale: self.skip_layer_guidance.unwrap_or(2.8),
            between: (
                self.skip_layer_start.unwrap_or(0.01),
                self.skip_layer_end.unwrap_or(0.2),
            ),
            fading: 0.0,
        })
    }

    /// Checks the settings, whose names in messages are those of the fields.
    ///
    /// # Errors
    /// Names the first field that makes no sense, with what it must be.
    pub fn check(&self, max_guidance: f64) -> Result<(), InvalidRequest> {
        let share = 0.0..=1.0;
        for (field, value, range) in [
            ("guidance_start", self.guidance_start, share.clone()),
            ("guidance_end", self.guidance_end, share.clone()),
            ("guidance_agreement", self.guidance_agreement, share.clone()),
            ("guidance_min_sigma", self.guidance_min_sigma, 0.0..=1e4),
            ("guidance_norm", self.guidance_norm, 0.0..=100.0),
            ("apg_eta", self.apg_eta, share.clone()),
            ("apg_norm", self.apg_norm, 0.0..=1e6),
            ("apg_momentum", self.apg_momentum, -1.0..=1.0),
            ("mimic_guidance", self.mimic_guidance, 0.0..=max_guidance),
            ("mimic_percentile", self.mimic_percentile, 0.1..=1.0),
            ("skip_layer_guidance", self.skip_layer_guidance, 0.0..=30.0),
            ("skip_layer_start", self.skip_layer_start, share.clone()),
            ("skip_layer_end", self.skip_layer_end, share.clone()),
            ("pag_scale", self.pag_scale, 0.0..=30.0),
            ("pag_adaptive_scale", self.pag_adaptive_scale, share),
        ] {
            if let Some(value) = value {
                within(field, field, value, range)?;
            }
        }
        let count = self.guidance_schedule.len();
        let field = "guidance_schedule";
        within(field, "the number of its values", count, 0..=MAX_SCHEDULE)?;
        for value in &self.guidance_schedule {
            within(field, field, *value, 0.0..=max_guidance)?;
        }
        for (field, count) in [
            ("skip_layers", self.skip_layers.len()),
            ("pag_layers", self.pag_layers.len()),
        ] {
            within(field, "the number of layers", count, 0..=MAX_LAYERS)?;
        }
        let forms = [
            ("cfg_zero", self.cfg_zero),
            ("mimic_guidance", self.mimic_guidance.is_some()),
            ("apg_eta", self.projects()),
        ];
        let mut given = forms.iter().filter(|(_, given)| *given);
        if let (Some((one, _)), Some((other, _))) = (given.next(), given.next()) {
            return Err(InvalidRequest::new(
                other,
                format!("{one} and {other} are two forms of guidance; one can be used"),
            ));
        }
        let both = self.pag_scale.is_some_and(|scale| scale > 0.0) && !self.skip_layers.is_empty();
        if both {
            return Err(InvalidRequest::new(
                "skip_layers",
                "either perturbed-attention or skip-layer guidance can be used",
            ));
        }
        Ok(())
    }

    /// Names and values for a picture's parameters text.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let numbers = [
            ("Guidance start", self.guidance_start),
            ("Guidance end", self.guidance_end),
            ("Guidance agreement", self.guidance_agreement),
            ("NGMS", self.guidance_min_sigma),
            ("Guidance norm", self.guidance_norm),
            ("APG eta", self.apg_eta),
            ("APG norm", self.apg_norm),
            ("APG momentum", self.apg_momentum),
            ("Mimic scale", self.mimic_guidance),
            ("Threshold percentile", self.mimic_percentile),
            ("PAG scale", self.pag_scale),
            ("PAG adaptive scale", self.pag_adaptive_scale),
        ];
        let numbers = numbers
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?.to_string())));
        let mut settings: Vec<_> = numbers.collect();
        let list = |items: &[String]| items.join(", ");
        let texts = |items: &[f64]| items.iter().map(f64::to_string).collect::<Vec<_>>();
        if !self.guidance_schedule.is_empty() {
            let values = list(&texts(&self.guidance_schedule));
            settings.push(("Guidance schedule", values));
        }
        if self.cfg_zero {
            settings.push(("CFG-Zero steps", self.zero_steps().to_string()));
        }
        if !self.pag_layers.is_empty() {
            settings.push(("PAG layers", list(&self.pag_layers)));
        }
        if let Some(Away {
            perturbation: Perturbation::WithoutLayers(layers),
            scale,
            between: (start, end),
            ..
        }) = self.away()
        {
            let layers: Vec<_> = layers.iter().map(usize::to_string).collect();
            settings.push(("Skip layers", list(&layers)));
            settings.push(("Skip layer guidance", scale.to_string()));
            settings.push(("Skip layer start", start.to_string()));
            settings.push(("Skip layer end", end.to_string()));
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> GuidanceTuning {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (json, field) in [
            (r#"{"guidance_start": 2}"#, "guidance_start"),
            (r#"{"guidance_schedule": [3, -1]}"#, "guidance_schedule"),
            (r#"{"guidance_norm": -1}"#, "guidance_norm"),
            (r#"{"apg_momentum": -3}"#, "apg_momentum"),
            (r#"{"cfg_zero": true, "apg_norm": 1}"#, "apg_eta"),
            (r#"{"mimic_percentile": 0}"#, "mimic_percentile"),
            (r#"{"pag_scale": 99}"#, "pag_scale"),
            (r#"{"pag_scale": 1, "skip_layers": [1]}"#, "skip_layers"),
        ] {
            assert_eq!(of(json).check(30.0).unwrap_err().field, field, "{json}");
        }
        of("{}").check(30.0).unwrap();
        assert_eq!(of("{}").form(), Form::Plain);
    }

    #[test]
    fn whole_steps_are_guided() {
        let guided = |json: &str, steps| -> Vec<usize> {
            let tuning = of(json);
            (0..steps)
                .filter(|step| tuning.is_on(*step, steps))
                .collect()
        };
        assert_eq!(guided("{}", 3), [0, 1, 2]);
        let part = r#"{"guidance_start": 0.25, "guidance_end": 0.7}"#;
        assert_eq!(guided(part, 8), [2, 3, 4]);
        let late = of(r#"{"guidance_min_sigma": 3}"#);
        let steps = [14.0, 9.0, 5.0, 2.9, 1.0, 0.5].into_iter().enumerate();
        let alone: Vec<usize> = steps
            .filter(|(step, ratio)| late.is_late(*step, *ratio))
            .map(|(step, _)| step)
            .collect();
        assert_eq!(alone, [3, 5]);
        assert!(late.is_partial() && !of("{}").is_late(1, 0.1));
    }
}
