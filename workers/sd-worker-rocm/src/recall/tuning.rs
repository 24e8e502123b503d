//! Finer settings of sampling and guidance, under the names that they have in a picture's text.

use crate::request::tuning::BROWNIAN_NOISE;
use crate::request::Tuning;
use std::str::FromStr;

/// Takes a setting over; whether it could be read, and `None` for a name that is none of these.
pub(super) fn taken(tuning: &mut Tuning, name: &str, value: &str) -> Option<bool> {
    let guidance = &mut tuning.guidance;
    let number = match name {
        "Schedule rho" => &mut tuning.schedule_rho,
        "Schedule min sigma" => &mut tuning.schedule_min_sigma,
        "Schedule max sigma" => &mut tuning.schedule_max_sigma,
        "Beta schedule alpha" => &mut tuning.schedule_alpha,
        "Beta schedule beta" => &mut tuning.schedule_beta,
        "Sigma churn" => &mut tuning.s_churn,
        "Sigma tmin" => &mut tuning.s_tmin,
        "Sigma tmax" => &mut tuning.s_tmax,
        "Sigma noise" => &mut tuning.s_noise,
        "Guidance start" => &mut guidance.guidance_start,
        "Guidance end" => &mut guidance.guidance_end,
        "Guidance agreement" => &mut guidance.guidance_agreement,
        "NGMS" => &mut guidance.guidance_min_sigma,
        "Guidance norm" => &mut guidance.guidance_norm,
        "APG eta" => &mut guidance.apg_eta,
        "APG norm" => &mut guidance.apg_norm,
        "APG momentum" => &mut guidance.apg_momentum,
        "Mimic scale" => &mut guidance.mimic_guidance,
        "Threshold percentile" => &mut guidance.mimic_percentile,
        "PAG scale" => &mut guidance.pag_scale,
        "PAG adaptive scale" => &mut guidance.pag_adaptive_scale,
        "Skip layer guidance" => &mut guidance.skip_layer_guidance,
        "Skip layer start" => &mut guidance.skip_layer_start,
        "Skip layer end" => &mut guidance.skip_layer_end,
        _ => return others(tuning, name, value),
    };
    *number = value.trim().parse().ok();
    Some(number.is_some())
}

fn others(tuning: &mut Tuning, name: &str, value: &str) -> Option<bool> {
    let guidance = &mut tuning.guidance;
    let seamless = &mut tuning.seamless;
    Some(match name {
        BROWNIAN_NOISE => {
            let mut along = false;
            let read = flag(&mut along, value);
            tuning.brownian_noise = read.then_some(along);
            read
        }
        "Guidance schedule" => listed(&mut guidance.guidance_schedule, value),
        "Skip layers" => listed(&mut guidance.skip_layers, value),
        "PAG layers" => listed(&mut guidance.pag_layers, value),
        "Sigmas" => listed(&mut tuning.sigmas, value),
        "Time steps" => listed(&mut tuning.timesteps, value),
        "CFG-Zero steps" => {
            guidance.cfg_zero_steps = value.trim().parse().ok();
            guidance.cfg_zero = guidance.cfg_zero_steps.is_some();
            guidance.cfg_zero
        }
        "Step cache" => {
            tuning.step_cache = value.parse().ok();
            tuning.step_cache.is_some()
        }
        "Tiling" => flag(&mut seamless.tiling, value),
        "Tile X" => flag(&mut seamless.tile_x, value),
        "Tile Y" => flag(&mut seamless.tile_y, value),
        _ => return None,
    })
}

/// `1, 2, 3`.
fn listed<T: FromStr>(into: &mut Vec<T>, text: &str) -> bool {
    let read: Result<Vec<T>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    read.is_ok_and(|list| {
        *into = list;
        true
    })
}

/// `True` or `False`.
fn flag(into: &mut bool, text: &str) -> bool {
    let read = text.trim().to_ascii_lowercase().parse();
    read.is_ok_and(|on| {
        *into = on;
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_told_is_taken_over() {
        for json in [
            r#"{"schedule_rho": 5, "schedule_min_sigma": 0.1, "schedule_max_sigma": 9, "schedule_alpha": 0.5,
                "schedule_beta": 0.4, "s_churn": 2, "s_tmin": 0.2, "s_tmax": 3, "s_noise": 1.1, "step_cache": "fbcache:0.2",
                "guidance_start": 0.1, "guidance_end": 0.9, "guidance_agreement": 0.99, "guidance_min_sigma": 1,
                "guidance_norm": 9,
                "guidance_schedule": [7, 5.5], "apg_eta": 0.5, "apg_norm": 4, "apg_momentum": -0.2, "tiling": true, "brownian_noise": false}"#,
            r#"{"mimic_guidance": 5, "mimic_percentile": 0.9, "pag_scale": 3, "pag_layers": ["mid", "up_blocks.1"],
                "pag_adaptive_scale": 0.1, "sigmas": [9, 1.5, 0.25], "tile_x": true, "brownian_noise": true}"#,
            r#"{"cfg_zero": true, "cfg_zero_steps": 2, "skip_layers": [7, 8], "skip_layer_guidance": 3,
                "skip_layer_start": 0.1, "skip_layer_end": 0.5, "timesteps": [900, 400], "tile_y": true}"#,
        ] {
            let told: Tuning = serde_json::from_str(json).unwrap();
            let mut recalled = Tuning::default();
            for (name, value) in told.settings() {
                assert_eq!(
                    taken(&mut recalled, name, &value),
                    Some(true),
                    "{name}: {value}"
                );
            }
            assert_eq!(recalled, told);
            // What a job is told of it is the same again.
            let again = serde_json::to_value(&recalled).unwrap();
            assert_eq!(serde_json::from_value::<Tuning>(again).unwrap(), told);
        }
        let mut tuning = Tuning::default();
        assert_eq!(taken(&mut tuning, "PAG scale", "much"), Some(false));
        assert_eq!(taken(&mut tuning, "Model", "x"), None);
        assert_eq!(tuning, Tuning::default());
    }
}
