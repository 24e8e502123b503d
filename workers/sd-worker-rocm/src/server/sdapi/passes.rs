//! What the web UI's clients say of passes beside the first: highres fix, and a refiner.

use super::state::plain_name;
use crate::request::HighresFields;
use crate::server::App;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use worker::http::{json, ApiError};

/// Highres fix: a second pass over a larger picture.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "WebUiPasses")]
#[serde(default)]
pub(super) struct Passes {
    enable_hr: bool,
    hr_scale: Option<f64>,
    hr_upscaler: Option<String>,
    /// 0 is as many as the first pass has.
    hr_second_pass_steps: Option<usize>,
    /// 0 is by the scale.
    hr_resize_x: Option<usize>,
    hr_resize_y: Option<usize>,
    hr_sampler_name: Option<String>,
    hr_scheduler: Option<String>,
    hr_prompt: Option<String>,
    hr_negative_prompt: Option<String>,
    hr_cfg: Option<f64>,
    hr_checkpoint_name: Option<String>,
    firstphase_width: usize,
    firstphase_height: usize,
    denoising_strength: Option<f64>,
    refiner_checkpoint: Option<String>,
    /// Share of the steps at which the refiner takes over.
    refiner_switch_at: Option<f64>,
}

impl Passes {
    /// Reads the fields of a body whose numbers are numbers.
    ///
    /// # Errors
    /// 400 that names the field that is wrong.
    pub(super) fn read(map: &Map<String, Value>) -> Result<Self, ApiError> {
        json::from_value(&Value::Object(map.clone()))
    }

    /// The second pass, if there is one.
    ///
    /// # Errors
    /// 400 for an upscaler or a model that is not there, and the older form by the first pass's size.
    pub(super) fn highres(&self, app: &App) -> Result<Option<HighresFields>, ApiError> {
        if !self.enable_hr {
            return Ok(None);
        }
        for (field, side) in [
            ("firstphase_width", self.firstphase_width),
            ("firstphase_height", self.firstphase_height),
        ] {
            if side > 0 {
                let reason = format!(
                    "{field} is not implemented here; use hr_scale or hr_resize_x and hr_resize_y"
                );
                return Err(ApiError::field(field, reason));
            }
        }
        let model = self.hr_checkpoint_name.as_deref().unwrap_or("");
        if !["", "None", "Use same checkpoint"].contains(&model) {
            app.same_model(model).map_err(|_| {
                let reason = format!("the second pass has the first one's model, not {model}");
                ApiError::field("hr_checkpoint_name", reason)
            })?;
        }
        let method = self
            .hr_upscaler
            .as_deref()
            .map(|name| app.options().upscalers.find(name));
        let method = method.transpose();
        Ok(Some(HighresFields {
            scale: self.hr_scale,
            width: self.hr_resize_x,
            height: self.hr_resize_y,
            method: method.map_err(|e| ApiError::field("hr_upscaler", e.to_string()))?,
            steps: self.hr_second_pass_steps,
            strength: self.denoising_strength,
            sampler: self.hr_sampler_name.clone(),
            schedule: self.hr_scheduler.clone(),
            guidance: self.hr_cfg,
            prompt: self.hr_prompt.clone(),
            negative_prompt: self.hr_negative_prompt.clone(),
            seed: None,
        }))
    }

    /// Share of the steps at which the refiner takes over, if the client named one.
    ///
    /// # Errors
    /// 400 where the server has no refiner.
    pub(super) fn refiner_start(&self, app: &App) -> Result<Option<f64>, ApiError> {
        let refiner = self.refiner_checkpoint.as_deref().map(plain_name);
        if refiner.is_none_or(|name| ["", "None"].contains(&name)) {
            return Ok(None);
        }
        match app.queue().info().refined {
            true => Ok(self.refiner_switch_at),
            false => Err(ApiError::field(
                "refiner_checkpoint",
                "this server has no refiner; it is started with one by --refiner",
            )),
        }
    }
}
