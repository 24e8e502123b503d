//! What is done to a model by its name.

use super::handle::{get, post, Fleet, PATIENCE};
use super::proxy;
use super::schedule::{Phase, Step};
use super::state::stopping;
use crate::http::error::CANCELLED;
use crate::http::ApiError;
use axum::body::Bytes;
use serde_json::Value;

impl Fleet {
    /// Has a model loaded, or woken up; whether it is told by its state.
    ///
    /// # Errors
    /// 400 if it is there already, 404 if there is none, 503 if the server ends.
    pub fn load(&self, name: &str) -> std::result::Result<(), ApiError> {
        let id = self.find(name)?;
        {
            let mut state = self.lock();
            if state.stopping {
                return Err(stopping());
            }
            let phase = state.schedule.slots[id].phase;
            if !matches!(phase, Phase::Unloaded | Phase::Unloading | Phase::Sleeping) {
                return Err(ApiError::field(
                    "model",
                    "the model is loaded or loading already",
                ));
            }
            state.schedule.want(id);
        }
        self.go_on();
        Ok(())
    }

    /// Has a model loaded and waits for that.
    ///
    /// # Errors
    /// As those of requests for it.
    pub async fn load_and_wait(&self, name: &str) -> std::result::Result<(), ApiError> {
        let id = self.find(name)?;
        self.lease(id, Some(true), None).await.map(drop)
    }

    /// Asks a model something small with a JSON body, on the server's own account: status and JSON. It is loaded for that.
    ///
    /// # Errors
    /// As those of requests for it, and 503 if its process goes away.
    pub async fn ask(
        &self,
        name: &str,
        path: &str,
        body: &Value,
    ) -> std::result::Result<(u16, Value), ApiError> {
        let id = self.find(name)?;
        let lease = self.lease(id, None, None).await?;
        let mut request = post(path);
        *request.body_mut() = Bytes::from(body.to_string());
        let answer = proxy::ask(&lease.child, request, PATIENCE).await;
        let (status, body) = answer.map_err(|trouble| trouble.error(name))?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    /// Asks all models that are loaded, on the server's own account: names and JSON of those that answer 200.
    pub async fn ask_loaded(&self, method: &str, path: &str) -> Vec<(String, Value)> {
        let mut answers = Vec::new();
        for child in self.running() {
            let request = if method == "POST" {
                post(path)
            } else {
                get(path)
            };
            if let Ok((200, body)) = proxy::ask(&child, request, PATIENCE).await {
                let json = serde_json::from_slice(&body).unwrap_or_default();
                answers.push((child.name.clone(), json));
            }
        }
        answers
    }

    /// Has a model unloaded: what it answers now has the server's grace to end.
    ///
    /// # Errors
    /// 400 if it is not there, 404 if there is none.
    pub fn unload(&self, name: &str) -> std::result::Result<(), ApiError> {
        let id = self.find(name)?;
        let mut state = self.lock();
        let is_loading = state.schedule.slots[id].phase == Phase::Loading;
        let Some(step) = state.schedule.unload(id) else {
            return Err(ApiError::field("model", "the model is not loaded"));
        };
        // Who waits for a load that is not to be waits for nothing.
        let waiters = match is_loading {
            true => state.dismiss(id),
            false => Vec::new(),
        };
        drop(state);
        for (_, waiter) in waiters {
            let reason = "the model was unloaded before it was there";
            let _ = waiter.send(Err(ApiError::unavailable(CANCELLED, reason)));
        }
        self.run(vec![step]);
        self.go_on();
        Ok(())
    }

    /// A model's state, as in its [`ModelView`].
    ///
    /// # Errors
    /// 404 if there is none.
    pub fn state(&self, name: &str) -> std::result::Result<&'static str, ApiError> {
        let id = self.find(name)?;
        Ok(self.lock().view(id).state)
    }

    /// Has an idle model put to sleep and waits for that; whether it sleeps then.
    ///
    /// # Errors
    /// 404 if there is none.
    pub async fn sleep(&self, name: &str) -> std::result::Result<bool, ApiError> {
        let id = self.find(name)?;
        let step = self.lock().schedule.sleep(id);
        if let Some(Step::Sleep(id)) = step {
            self.fall_asleep(id).await;
        }
        Ok(self.lock().schedule.slots[id].phase == Phase::Sleeping)
    }
}
