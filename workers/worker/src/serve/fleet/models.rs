//! Which models there are, by which names.

use super::child::Child;
use super::config::Catalogue;
use super::handle::Fleet;
use super::schedule::{Id, Phase, Slot};
use super::state::{Model, ModelView};
use crate::http::ApiError;
use crate::serve::supervise::crashes::Crashes;
use crate::text::beginning;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Code of a request for a model that is not there.
const NOT_FOUND: &str = "model_not_found";

impl Fleet {
    /// Takes the models of a catalogue in place of those that there were.
    pub(super) fn take(&self, catalogue: Catalogue, at_start: bool) {
        let now = Instant::now();
        let (most, window) = self.0.options.crashes;
        let mut steps = Vec::new();
        let mut state = self.lock();
        let mut kept: Vec<Id> = Vec::new();
        for settings in catalogue.models {
            let known = state
                .models
                .iter()
                .position(|model| model.settings.name == settings.name);
            let id = match known {
                Some(id) => {
                    // What runs in another way than it is to ends; the next request starts it anew.
                    if state.models[id].settings.arguments != settings.arguments {
                        steps.extend(state.schedule.unload(id));
                    }
                    id
                }
                None => {
                    state
                        .schedule
                        .slots
                        .push(Slot::new(settings.place, settings.needs, now));
                    state.models.push(Model {
                        settings: settings.clone(),
                        child: None,
                        waiters: Vec::new(),
                        crashes: Crashes::new(most, window),
                        failure: None,
                        progress: (0.0, String::new()),
                        info: Vec::new(),
                        gone: false,
                        created: crate::time::unix(),
                    });
                    state.models.len() - 1
                }
            };
            let slot = &mut state.schedule.slots[id];
            slot.pinned = settings.pinned;
            slot.can_sleep = settings.can_sleep;
            slot.patience = settings.patience;
            slot.place = settings.place;
            let load = settings.load && at_start;
            state.models[id].settings = settings;
            state.models[id].gone = false;
            if load {
                state.schedule.want(id);
            }
            kept.push(id);
        }
        for id in 0..state.models.len() {
            if !kept.contains(&id) && !state.models[id].gone {
                state.models[id].gone = true;
                steps.extend(state.schedule.unload(id));
            }
        }
        let mut names = HashMap::new();
        for (id, model) in state
            .models
            .iter()
            .enumerate()
            .filter(|(_, model)| !model.gone)
        {
            let own = std::iter::once(&model.settings.name).chain(&model.settings.aliases);
            names.extend(own.map(|name| (name.clone(), id)));
        }
        let first = kept.first().copied();
        let single = first.filter(|_| kept.len() == 1 || self.0.options.first_is_default);
        let default = catalogue
            .default
            .as_ref()
            .and_then(|name| names.get(name).copied());
        state.default = default.or(single);
        state.names = names;
        drop(state);
        self.run(steps);
    }

    /// Reads anew which models there are.
    ///
    /// # Errors
    /// 500 that says what is wrong with files or folders; everything stays as it is then.
    pub fn reread(&self) -> std::result::Result<(), ApiError> {
        let catalogue = (self.0.options.reread)().map_err(|e| ApiError::internal(e.to_string()))?;
        self.take(catalogue, false);
        self.tell("*", "models_reload", &Value::Null);
        self.go_on();
        Ok(())
    }

    /// The model of a name or an alias; a tag `:latest` counts as none, and what follows a model's name and a colon is
    /// for the model to know.
    ///
    /// # Errors
    /// 404 with the names that there are.
    pub(super) fn find(&self, name: &str) -> std::result::Result<Id, ApiError> {
        let state = self.lock();
        let known = |name: &str| state.names.get(name).copied();
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let before_colon = || name.rsplit_once(':').and_then(|(model, _)| known(model));
        known(name)
            .or_else(|| known(plain))
            .or_else(before_colon)
            .ok_or_else(|| ApiError {
                code: NOT_FOUND,
                param: Some("model".to_string()),
                ..ApiError::not_found(format!(
                    "there is no model {:?} here; {}",
                    beginning(name, 200),
                    state.listing()
                ))
            })
    }

    /// The model of requests that name none.
    ///
    /// # Errors
    /// 400 with the names that there are.
    pub(super) fn default_model(&self) -> std::result::Result<Id, ApiError> {
        let state = self.lock();
        state.default.ok_or_else(|| {
            let reason = format!("the request names no model; {}", state.listing());
            ApiError::field("model", reason)
        })
    }

    /// Makes a model the one of requests that name none.
    ///
    /// # Errors
    /// 404 for a name that is none's.
    pub fn set_default(&self, name: &str) -> std::result::Result<(), ApiError> {
        let id = self.find(name)?;
        self.lock().default = Some(id);
        Ok(())
    }

    /// The name of the model of requests that name none, if there is one.
    pub fn default_name(&self) -> Option<String> {
        let state = self.lock();
        state
            .default
            .map(|id| state.models[id].settings.name.clone())
    }

    /// All models.
    pub fn list(&self) -> Vec<ModelView> {
        self.lock().views().collect()
    }

    /// A model's name.
    pub(super) fn name(&self, id: Id) -> String {
        self.lock().models[id].settings.name.clone()
    }

    /// What a model's process said of it in `/v1/models`: an entry for it, and one for each of its adapters.
    pub(super) fn details(&self) -> Vec<(ModelView, Vec<Value>)> {
        let state = self.lock();
        let of_running = |id: Id| {
            let running = matches!(
                state.schedule.slots[id].phase,
                Phase::Loaded | Phase::Sleeping
            );
            state.models[id]
                .info
                .iter()
                .filter(|_| running)
                .cloned()
                .collect()
        };
        let ids = (0..state.models.len()).filter(|&id| !state.models[id].gone);
        ids.map(|id| (state.view(id), of_running(id))).collect()
    }

    /// The processes of all models that are loaded or asleep.
    pub(super) fn running(&self) -> Vec<Arc<Child>> {
        let state = self.lock();
        let phases = state.schedule.slots.iter().map(|slot| slot.phase);
        let running = state.models.iter().zip(phases).filter(|(_, phase)| {
            matches!(
                phase,
                Phase::Loaded | Phase::Sleeping | Phase::Waking | Phase::FallingAsleep
            )
        });
        running
            .filter_map(|(model, _)| model.child.clone())
            .collect()
    }
}
