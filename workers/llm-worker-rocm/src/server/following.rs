//! The server of a node that has a part of a model: it tells how that is, and answers nothing else.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use worker::serve::{Figure, Frame, Identity, Routes, Served, Status, Worker};

/// A part of a model that node 0 computes with.
#[derive(Clone, Default)]
pub struct Following(Arc<Mutex<Option<String>>>);

impl Following {
    /// It is of no more use: another node has failed, or this one.
    pub fn lose(&self, reason: &str) {
        let mut lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert_with(|| reason.to_string());
    }
}

impl Served for Following {
    fn status(&self) -> Status {
        let lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Status {
            lost: lost.clone(),
            ..Status::default()
        }
    }

    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }

    fn ends_at_once(&self) -> bool {
        true
    }

    fn stop(&self, _: Duration) {}
}

/// The server of such a node.
pub struct FollowerApp {
    /// What every worker has.
    pub frame: Frame<Following>,
    model: String,
}

impl FollowerApp {
    /// A server whose part of the model is still to be loaded.
    pub fn new(identity: Identity, model: String) -> Arc<Self> {
        Arc::new(Self {
            frame: Frame::new(identity, "llm"),
            model,
        })
    }
}

impl Worker for FollowerApp {
    type Loaded = Following;

    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    fn frame(&self) -> &Frame<Following> {
        &self.frame
    }

    fn model(&self) -> String {
        self.model.clone()
    }

    fn routes() -> Routes<Self> {
        Routes::default()
    }
}
