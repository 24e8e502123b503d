//! What works the queue.

use crate::pipeline::{Generated, ModelInfo, Progress};
use crate::request::ValidRequest;
use std::ops::ControlFlow;
use worker::fault::{diagnose, DeviceFault};
use worker::{Error, Result};

/// What makes pictures: the pipeline, or a stand-in for tests.
pub trait Generate: Send {
    /// What the model is.
    fn info(&self) -> &ModelInfo;

    /// Makes the pictures of a request. `progress` is told before the first and after every step and may break it off.
    ///
    /// # Errors
    /// [`worker::Error::Usage`] for requests that the model cannot serve, others if device or memory fail.
    fn generate(
        &mut self,
        request: &ValidRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated>;

    /// What an error of [`Self::generate`] says about the device.
    fn diagnose(&self, error: &Error) -> DeviceFault;
}

impl Generate for crate::pipeline::Pipeline {
    fn info(&self) -> &ModelInfo {
        self.info()
    }

    fn generate(
        &mut self,
        request: &ValidRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        self.generate(request, progress)
    }

    fn diagnose(&self, error: &Error) -> DeviceFault {
        diagnose(self.device(), error)
    }
}
