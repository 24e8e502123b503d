//! The adapters of the model, and which of them a request wants.

use super::app::App;
use super::generation::{AdapterFields, SamplingFields};
use crate::adapters::AdapterSource;
use crate::engine::api::AdapterUse;
use axum::extract::State;
use axum::Json;
use serde_json::{json, Value};
use std::sync::{Arc, PoisonError};
use worker::http::{ApiError, JsonBody};

impl App {
    /// The adapters, as far as there is a model.
    pub(super) fn adapters(&self) -> Vec<AdapterSource> {
        let text = self.loaded().ok().and_then(|loaded| loaded.text);
        text.map_or_else(Vec::new, |text| text.adapters.clone())
    }

    /// The adapter that a model's name asks for: its own name, or that behind the model's and a colon.
    pub(super) fn adapter_named(&self, name: &str) -> Option<(usize, AdapterSource)> {
        let own = std::iter::once(&self.options.model).chain(&self.options.aliases);
        let behind = own.filter_map(|own| name.strip_prefix(own.as_str())?.strip_prefix(':'));
        let names: Vec<&str> = behind.chain([name]).collect();
        let mut adapters = self.adapters().into_iter().enumerate();
        adapters.find(|(_, adapter)| names.contains(&adapter.name.as_str()))
    }

    /// The adapters that a request wants.
    ///
    /// # Errors
    /// 400 for a number that no adapter has.
    pub(super) fn wanted_adapters(
        &self,
        fields: &SamplingFields,
    ) -> Result<Arc<[AdapterUse]>, ApiError> {
        let Some(list) = &fields.lora else {
            let named = fields
                .model
                .as_deref()
                .and_then(|name| self.adapter_named(name));
            return Ok(match named {
                Some((adapter, source)) => Arc::from([AdapterUse {
                    adapter,
                    scale: source.scale,
                }]),
                None => self.set_scales().unwrap_or_default().into(),
            });
        };
        Ok(self.wishes(list)?.into())
    }

    /// What a list asks for.
    fn wishes(&self, list: &[AdapterFields]) -> Result<Vec<AdapterUse>, ApiError> {
        let count = self.adapters().len();
        let wish = |fields: &AdapterFields| match fields.id < count {
            true => Ok(AdapterUse {
                adapter: fields.id,
                scale: fields.scale,
            }),
            false => {
                let reason = format!(
                    "lora: there is no adapter {}; the model has {count}",
                    fields.id
                );
                Err(ApiError::field("lora", reason))
            }
        };
        // None of one is as if it were not there, and so are its keys and values.
        let wishes = list.iter().map(wish).collect::<Result<Vec<_>, _>>()?;
        Ok(wishes
            .into_iter()
            .filter(|wish| wish.scale != 0.0)
            .collect())
    }

    /// The adapters that requests get which choose none, once somebody has said so.
    fn set_scales(&self) -> Option<Vec<AdapterUse>> {
        let scales = self.adapter_scales.lock();
        scales.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// `GET /lora-adapters`, as llama.cpp's server has it.
pub async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(described(&app))
}

/// `POST /lora-adapters`, as llama.cpp's server has it: the scales of requests that choose none; adapters that the list
/// leaves out have none.
///
/// # Errors
/// 400 for a number that no adapter has, and for a scale that is no number.
pub async fn set(
    State(app): State<Arc<App>>,
    JsonBody(list): JsonBody<Vec<AdapterFields>>,
) -> Result<Json<Value>, ApiError> {
    app.text()?;
    if let Some(wrong) = list.iter().find(|fields| !fields.scale.is_finite()) {
        let reason = format!("scale: {} is no scale of an adapter", wrong.scale);
        return Err(ApiError::field("scale", reason));
    }
    let wishes = app.wishes(&list)?;
    let scales = app.adapter_scales.lock();
    *scales.unwrap_or_else(PoisonError::into_inner) = Some(wishes);
    Ok(Json(described(&app)))
}

fn described(app: &App) -> Value {
    let set = app.set_scales();
    let adapters = app.adapters().into_iter().enumerate();
    let described = adapters.map(|(id, adapter)| {
        let own = |set: &Vec<AdapterUse>| {
            let own = set.iter().filter(|wish| wish.adapter == id);
            own.map(|wish| wish.scale).sum()
        };
        json!({
            "id": id,
            "name": adapter.name,
            "path": adapter.path.display().to_string(),
            "scale": set.as_ref().map_or(adapter.scale, own),
        })
    });
    described.collect()
}
