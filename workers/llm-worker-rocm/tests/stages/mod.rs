//! Models that are divided between stages, for tests.
//!
//! `CANDLE_ROCM_TEST_STAGES` has tests that load their models by [`divided`] do so with so many stages: what holds for
//! one device holds for several.

use candle_core::Device;
use llm_worker_rocm::engine::group::{SplitPlan, StagePlan};
use llm_worker_rocm::model::{LoadOptions, ModelFile};

/// Stages that tests are asked for.
pub fn wanted() -> usize {
    let stages = std::env::var("CANDLE_ROCM_TEST_STAGES").ok();
    stages.map_or(1, |stages| stages.parse().unwrap())
}

/// The options with the model divided between as many stages as tests are asked for.
pub fn divided(file: &ModelFile, device: &Device, options: &LoadOptions) -> LoadOptions {
    LoadOptions {
        split: plan(file, device, wanted()),
        ..options.clone()
    }
}

/// A plan of so many stages, or as many as the model can be cut into, as even as its cuts allow; on the CPU, or on the
/// GPUs that there are in turn.
pub fn plan(file: &ModelFile, device: &Device, stages: usize) -> Option<SplitPlan> {
    let sizes = file.part_sizes();
    let blocks = sizes.blocks.len();
    let mut starts = vec![0];
    for stage in 1..stages {
        let ideal = blocks * stage / stages;
        let last = starts[starts.len() - 1];
        let cuts = sizes.cuts.iter().filter(|cut| **cut > last);
        starts.extend(cuts.min_by_key(|cut| cut.abs_diff(ideal)));
    }
    let count = match device {
        Device::Rocm(_) => candle_core::rocm_backend::candle_rocm::Device::count().unwrap(),
        _ => 1,
    };
    let device = |stage: usize| match device {
        Device::Rocm(_) => Device::new_rocm(stage % count).unwrap(),
        device => device.clone(),
    };
    let ends = starts.iter().skip(1).chain([&blocks]);
    let stages = starts.iter().zip(ends).enumerate();
    let stages: Vec<StagePlan> = stages
        .map(|(stage, (start, end))| StagePlan {
            blocks: *start..*end,
            devices: vec![device(stage)],
            shares: Vec::new(),
        })
        .collect();
    (stages.len() > 1).then_some(SplitPlan { stages })
}
