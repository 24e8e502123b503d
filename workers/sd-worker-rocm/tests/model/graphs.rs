//! Evaluations that are recorded and repeated: the same pictures as launch by launch, to the bit. On the simulated device
//! only; the CPU has no graphs.

use super::common::{device, go_on, request, Draw};
use super::small::Pipelines;
use candle_core::{Device, Tensor};
use image::RgbImage;
use sd_worker_rocm::pipeline::{
    Control, Generated, ImageRequest, Lora, Pipeline, PipelineOptions, Precision,
};
use sd_worker_rocm::request::{StepCache, Tuning};
use sd_worker_rocm::sampling::Sampler;
use std::collections::HashMap;
use std::ops::ControlFlow;
use worker::graphs::GraphUse;

/// A pipeline whose evaluations are recorded, and one whose evaluations are not.
struct Pair {
    recorded: Pipeline,
    launched: Pipeline,
}

impl Pair {
    fn new(load: impl Fn(PipelineOptions) -> Pipeline) -> Self {
        let with = |graphs| {
            load(PipelineOptions {
                precision: Precision::F32,
                graphs,
                ..PipelineOptions::default()
            })
        };
        Self {
            recorded: with(GraphUse::On),
            launched: with(GraphUse::Off),
        }
    }

    fn of(p: &Pipelines, model: &str) -> Self {
        Self::new(|options| p.load(&p.folder(model), options))
    }

    /// The pictures of a request by both, which are the same, and how the first made them.
    fn same(&mut self, what: &str, request: &ImageRequest) -> Generated {
        let launched = self.launched.draw(request, &mut go_on).unwrap();
        let recorded = self.recorded.draw(request, &mut go_on).unwrap();
        assert_eq!(launched.timings.graphs, 0, "{what}");
        assert_eq!(launched.timings.evaluations, recorded.timings.evaluations);
        assert!(recorded.images == launched.images, "{what}");
        recorded
    }

    /// As [`Self::same`], where all evaluations but the first by each of so many networks are graphs.
    fn repeated(&mut self, what: &str, request: &ImageRequest, networks: usize) -> Vec<RgbImage> {
        let made = self.same(what, request);
        let (steps, timings) = (request.steps, made.timings);
        let evaluations = networks * timings.evaluations;
        assert_eq!(
            timings.graphs,
            evaluations - networks,
            "{what}: {timings:?}"
        );
        assert_eq!(timings.recorded, networks, "{what}: {steps} steps");
        assert_eq!(self.recorded.without_graphs(), None, "{what}");
        made.images
    }
}

/// Whether there are graphs.
fn is_on_a_gpu() -> bool {
    device().is_rocm()
}

/// Whether everything is to be tried: the simulator takes most of a second for an evaluation.
fn is_full() -> bool {
    std::env::var_os("FULL").is_some_and(|full| !full.is_empty())
}

/// A request of few steps.
fn short(p: &Pipelines, case: &str) -> ImageRequest {
    ImageRequest {
        steps: 3,
        ..p.request(case)
    }
}

#[test]
fn the_steps_of_a_unet_are_recorded() {
    if !is_on_a_gpu() {
        return;
    }
    let p = Pipelines::open();
    let mut pair = Pair::of(&p, "sd");
    let plain = short(&p, "sd");
    let first = pair.repeated("the first", &plain, 1);
    // Stopped within the steps, it goes on with the next picture.
    let stopped = pair
        .recorded
        .draw(&plain, &mut |progress| match progress.step {
            2 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
    assert!(stopped.unwrap().cancelled);
    let other = ImageRequest {
        prompt: "a blue sea".to_string(),
        ..plain.clone()
    };
    assert_ne!(pair.repeated("another prompt", &other, 1), first);
    // What looks at its own numbers is not recorded, and says so.
    let cached = ImageRequest {
        steps: 2,
        tuning: Tuning {
            step_cache: Some(StepCache::Deep(2)),
            ..Tuning::default()
        },
        ..plain.clone()
    };
    assert_eq!(pair.same("a step cache", &cached).timings.graphs, 0);
    let why = pair.recorded.without_graphs().unwrap();
    assert!(why.contains("step_cache"), "{why}");
    let why = pair.launched.without_graphs().unwrap();
    assert!(why.contains("off"), "{why}");
    if !is_full() {
        return;
    }
    let larger = ImageRequest {
        width: plain.height,
        height: plain.width,
        batch: 2,
        sampler: Sampler::Heun,
        ..plain.clone()
    };
    pair.repeated(
        "another size, two pictures, two evaluations a step",
        &larger,
        1,
    );
    let unguided = ImageRequest {
        guidance: 1.0,
        ..plain.clone()
    };
    pair.repeated("without guidance", &unguided, 1);
    let control = Control {
        end: 0.5,
        ..Control::new(p.folder("controlnet"), p.picture("hint"))
    };
    let controlled = ImageRequest {
        controls: vec![control],
        steps: 6,
        ..plain.clone()
    };
    // Two graphs: with the ControlNet and without.
    let made = pair.same("a ControlNet in the first half", &controlled);
    assert_eq!((made.timings.graphs, made.timings.recorded), (4, 2));
    assert_eq!(pair.repeated("the first again", &plain, 1), first);
}

#[test]
fn the_steps_of_transformers_are_recorded() {
    if !is_on_a_gpu() {
        return;
    }
    let p = Pipelines::open();
    let mut cases = vec![("sd35", "sd35", 1)];
    if is_full() {
        // Texts of several lengths go through one after the other.
        cases.extend([("flux", "flux", 1), ("z_image", "z_image_guided", 2)]);
    }
    for (model, case, networks) in cases {
        let mut pair = Pair::of(&p, model);
        pair.repeated(case, &short(&p, case), networks);
    }
}

#[test]
fn a_graph_knows_the_weights_of_its_picture() {
    if !is_on_a_gpu() || !is_full() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let layer = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q";
    let matrix = |rows: usize, columns: usize| {
        let all = (0..rows * columns).map(|i| (i * 37 % 19) as f32 / 19.0 - 0.5);
        let all = Tensor::from_iter(all, &Device::Cpu).unwrap();
        all.reshape((rows, columns)).unwrap()
    };
    let tensors = HashMap::from([
        (format!("{layer}.lora_A.weight"), matrix(4, 64)),
        (format!("{layer}.lora_B.weight"), matrix(64, 4)),
    ]);
    candle_core::safetensors::save(&tensors, folder.path().join("odd.safetensors")).unwrap();
    let mut pair = Pair::new(|options| {
        super::common::tiny(PipelineOptions {
            lora_dirs: vec![folder.path().to_path_buf()],
            ..options
        })
    });
    let plain = ImageRequest {
        width: 64,
        height: 64,
        steps: 3,
        ..request("a red circle", 1)
    };
    let adapted = ImageRequest {
        loras: vec![Lora::new("odd", 2.0)],
        ..plain.clone()
    };
    let first = pair.repeated("plain", &plain, 1);
    assert_ne!(pair.repeated("a LoRA", &adapted, 1), first);
    assert_eq!(pair.repeated("without it", &plain, 1), first);
}

#[test]
fn a_recording_that_fails_fails_no_picture() {
    const ALONE: &str = "SD_TEST_ALONE";
    if !is_on_a_gpu() || !is_full() {
        return;
    }
    let Ok(fault) = std::env::var(ALONE) else {
        for (name, value, why) in [
            ("HIP_SIM_FAIL", "capture:1", "cannot be recorded"),
            ("HIP_SIM_WRONG", "graph", "differ"),
        ] {
            let here = std::env::current_exe().unwrap();
            let test = "graphs::a_recording_that_fails_fails_no_picture";
            let mut alone = std::process::Command::new(here);
            let alone = alone.args(["--exact", test]).env(ALONE, why);
            assert!(alone.env(name, value).status().unwrap().success(), "{why}");
        }
        return;
    };
    let p = Pipelines::open();
    let mut pair = Pair::of(&p, "sd");
    let made = pair.same(&fault, &short(&p, "sd"));
    assert_eq!(made.timings.graphs, 0);
    let why = pair.recorded.without_graphs().unwrap();
    assert!(why.contains(&fault), "{why}");
}
