//! What the tests share.

use candle_core::{Device, Tensor};
use sd_worker_rocm::pipeline::{Generated, Pipeline, PipelineOptions, Placement, Progress};
use sd_worker_rocm::request::{ImageRequest, Limits};
use sd_worker_rocm::rng::RngKind;
use sd_worker_rocm::sampling::{Sampler, Schedule};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

pub fn device() -> Device {
    let name = std::env::var("CANDLE_ROCM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    let request: worker::device::DeviceRequest = name.parse().unwrap();
    request.select().unwrap().device
}

pub fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub fn tensors(path: &str) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(file(path), &Device::Cpu).unwrap()
}

/// Largest absolute difference.
pub fn difference(a: &Tensor, b: &Tensor) -> f32 {
    let a = a.to_device(&Device::Cpu).unwrap();
    let b = b.to_device(&Device::Cpu).unwrap();
    assert_eq!(a.dims(), b.dims());
    (a - b)
        .unwrap()
        .abs()
        .unwrap()
        .flatten_all()
        .unwrap()
        .max(0)
        .unwrap()
        .to_scalar()
        .unwrap()
}

/// A request that the tests' model meets, as its reference was made.
pub fn request(prompt: &str, seed: u64) -> ImageRequest {
    ImageRequest {
        prompt: prompt.to_string(),
        width: 128,
        height: 128,
        steps: 20,
        guidance: 5.0,
        sampler: Sampler::Ddim,
        schedule: Some(Schedule::Discrete),
        seed,
        rng: RngKind::TorchCpu,
        ..ImageRequest::default()
    }
}

pub trait Draw {
    /// Checks a request and makes its pictures.
    fn draw(
        &mut self,
        request: &ImageRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> worker::Result<Generated>;
}

impl Draw for Pipeline {
    fn draw(
        &mut self,
        request: &ImageRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> worker::Result<Generated> {
        let request = request.clone().valid(self.info(), &Limits::LOCAL)?;
        self.generate(&request, progress)
    }
}

/// The tests' model.
pub fn tiny(options: PipelineOptions) -> Pipeline {
    tiny_on(&device(), options)
}

/// The same somewhere else.
pub fn tiny_on(place: impl Into<Placement>, options: PipelineOptions) -> Pipeline {
    let folder = file("models/tiny-shapes-sd");
    Pipeline::load(&folder, place, options, &mut |_| {}).unwrap()
}

pub fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
