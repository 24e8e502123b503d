//! What works the queue.

use crate::pipeline::{Generated, ModelInfo, Pipeline, Progress};
use crate::prompt::TokenCounter;
use crate::request::ValidRequest;
use std::ops::ControlFlow;
use worker::device::name_of;
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

    /// Whether the same model on another device can take a part of each step of this request.
    fn divides(&self, _request: &ValidRequest) -> bool {
        false
    }

    /// As [`Self::generate`], together with the same model on another device where the request
    /// [divides](Self::divides).
    ///
    /// # Errors
    /// Those of [`Self::generate`], of either device.
    fn generate_with(
        &mut self,
        _other: &mut dyn Generate,
        request: &ValidRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        self.generate(request, progress)
    }

    /// What counts a prompt's tokens, for models that cut prompts into chunks.
    fn counter(&self) -> Option<TokenCounter> {
        None
    }

    /// The pipeline, if it is one.
    fn as_pipeline(&mut self) -> Option<&mut Pipeline> {
        None
    }
}

impl Generate for Pipeline {
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

    fn counter(&self) -> Option<TokenCounter> {
        self.token_counter()
    }

    fn diagnose(&self, error: &Error) -> DeviceFault {
        let devices = self.place().devices();
        let named = devices.len() > 1;
        let mut first = None;
        for device in devices {
            match diagnose(device, error) {
                DeviceFault::Lost(reason) if named => {
                    return DeviceFault::Lost(format!("{}: {reason}", name_of(device)))
                }
                DeviceFault::Other(text) => first = first.or(Some(DeviceFault::Other(text))),
                // Memory is told of without asking a device.
                fault => return fault,
            }
        }
        first.unwrap_or_else(|| DeviceFault::Other(error.to_string()))
    }

    fn divides(&self, request: &ValidRequest) -> bool {
        self.is_guided(request)
    }

    fn generate_with(
        &mut self,
        other: &mut dyn Generate,
        request: &ValidRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        match other.as_pipeline() {
            Some(other) => self.generate_paired(other, request, progress),
            None => self.generate(request, progress),
        }
    }

    fn as_pipeline(&mut self) -> Option<&mut Pipeline> {
        Some(self)
    }
}
