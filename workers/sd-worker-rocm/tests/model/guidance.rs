//! Forms of guidance, guidance away from a worse network, and steps that take over work, beside diffusers':
//! `reference/make_guidance.py` says how the pictures were made.

use super::common::{go_on, Draw};
use super::small::{apart, Pipelines};
use candle_core::{Device, Tensor};
use sd_worker_rocm::pipeline::{ImageRequest, Pipeline, PipelineOptions};
use sd_worker_rocm::request::{GuidanceTuning, StepCache};
use sd_worker_rocm::sampling::guidance::{Length, Memory};
use sd_worker_rocm::sampling::{Guidance, Sampler};
use serde::Deserialize;

#[derive(Deserialize)]
struct Forms {
    steps: Vec<[Vec<f32>; 2]>,
    cases: Vec<Form>,
}

#[derive(Deserialize)]
struct Form {
    tuning: GuidanceTuning,
    outputs: Vec<Vec<f32>>,
}

#[test]
fn forms_are_diffusers() {
    let forms: Forms =
        serde_json::from_str(include_str!("../reference/guidance_forms.json")).unwrap();
    let tensor = |values: &[f32]| Tensor::from_slice(values, (2, 3, 4, 5), &Device::Cpu).unwrap();
    assert_eq!(forms.cases.len(), 5);
    for case in &forms.cases {
        let guidance = Guidance {
            form: case.tuning.form(),
            length: Length::Free,
            scale: 4.0,
            rescale: 0.0,
        };
        let mut memory = Memory::default();
        for ([positive, negative], expected) in forms.steps.iter().zip(&case.outputs) {
            let (positive, negative) = (tensor(positive), tensor(negative));
            let guided = guidance.combine(&negative, &positive, &mut memory).unwrap();
            let guided = guided.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let pairs = guided.iter().zip(expected).map(|(a, b)| (a - b).abs());
            let worst = pairs.fold(0f32, f32::max);
            assert!(worst < 2e-5, "{:?}: {worst}", case.tuning);
        }
    }
}

fn draw(pipeline: &mut Pipeline, request: &ImageRequest) -> image::RgbImage {
    pipeline.draw(request, &mut go_on).unwrap().images.remove(0)
}

#[test]
fn away_from_a_network_without_attention() {
    let models = Pipelines::of("guidance");
    let mut pipeline = models.load(&models.folder("sd"), PipelineOptions::default());
    for (case, layers, fading, rescale) in [
        ("pag", vec![], None, 0.0),
        (
            "pag_blocks",
            vec!["down_blocks.0", "up_blocks.1.attentions.0"],
            None,
            0.0,
        ),
        ("pag_fading", vec!["mid"], Some(0.004), 0.0),
        ("pag_rescaled", vec!["mid"], None, 0.7),
    ] {
        models.check_with(&mut pipeline, case, |request| {
            let guidance = &mut request.tuning.guidance;
            guidance.pag_scale = Some(3.0);
            guidance.pag_layers = layers.iter().map(|layer| layer.to_string()).collect();
            guidance.pag_adaptive_scale = fading;
            request.guidance_rescale = rescale;
        });
    }
    let without = draw(&mut pipeline, &models.request("pag"));
    assert!(apart(&without, &models.picture("pag")) > 3);
    for block in ["down_blocks.1", "up_blocks.9", "mid.x", ""] {
        let mut request = models.request("pag");
        request.tuning.guidance.pag_scale = Some(1.0);
        request.tuning.guidance.pag_layers = vec![block.to_string()];
        let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
        assert!(error.contains("pag_layers"), "{error}");
    }
}

#[test]
fn away_from_a_network_without_layers() {
    let models = Pipelines::of("guidance");
    let mut pipeline = models.load(&models.folder("sd3"), PipelineOptions::default());
    for (case, start, end) in [("skip", 0.0, 0.7), ("skip_late", 0.4, 1.0)] {
        models.check_with(&mut pipeline, case, |request| {
            let guidance = &mut request.tuning.guidance;
            guidance.skip_layers = vec![1];
            guidance.skip_layer_guidance = Some(2.5);
            guidance.skip_layer_start = Some(start);
            guidance.skip_layer_end = Some(end);
        });
    }
    let without = draw(&mut pipeline, &models.request("skip"));
    assert!(apart(&without, &models.picture("skip")) > 3);
    let mut request = models.request("skip");
    request.tuning.guidance.skip_layers = vec![3];
    let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
    assert!(error.contains("no layer 3"), "{error}");
}

#[test]
fn unets_take_over_inner_blocks() {
    let models = Pipelines::of("guidance");
    let mut pipeline = models.load(&models.folder("sd"), PipelineOptions::default());
    models.check_with(&mut pipeline, "deep", |request| {
        request.tuning.step_cache = Some(StepCache::Deep(2));
    });
    models.check_with(&mut pipeline, "not_deep", |request| {
        request.tuning.step_cache = Some(StepCache::Deep(1));
    });
    assert!(apart(&models.picture("deep"), &models.picture("not_deep")) > 3);
}

#[test]
fn flux_takes_over_blocks() {
    let models = Pipelines::of("guidance");
    let mut pipeline = models.load(&models.folder("flux"), PipelineOptions::default());
    for (case, cache) in [
        ("uncached", None),
        ("tea", Some(StepCache::Tea(0.4))),
        ("first_block", Some(StepCache::FirstBlock(0.55))),
        ("uncached", Some(StepCache::FirstBlock(0.0))),
    ] {
        models.check_with(&mut pipeline, case, |request| {
            request.tuning.step_cache = cache
        });
    }
    for case in ["tea", "first_block"] {
        assert!(apart(&models.picture(case), &models.picture("uncached")) > 3);
    }
}

/// Guidance that begins late, ends early, or follows a schedule is a plain run's where it is the same.
#[test]
fn guidance_in_parts_of_a_run() {
    let models = Pipelines::of("guidance");
    let mut pipeline = models.load(&models.folder("sd"), PipelineOptions::default());
    let plain = models.request("not_deep");
    let mut draw = |change: &dyn Fn(&mut ImageRequest)| {
        let mut request = plain.clone();
        change(&mut request);
        draw(&mut pipeline, &request)
    };
    let guided = draw(&|_| {});
    let alone = draw(&|request| request.guidance = 1.0);
    let constant = draw(&|request| {
        request.guidance = 2.0;
        request.tuning.guidance.guidance_schedule = vec![4.0];
    });
    assert!(apart(&constant, &guided) <= 1);
    let ended = draw(&|request| request.tuning.guidance.guidance_end = Some(0.0));
    assert!(apart(&ended, &alone) <= 1);
    // Half of the steps, said in three ways.
    let half = draw(&|request| request.tuning.guidance.guidance_end = Some(0.5));
    let listed = draw(&|request| {
        request.tuning.guidance.guidance_schedule = vec![4.0, 4.0, 1.0, 1.0];
    });
    assert!(apart(&half, &listed) <= 1);
    let agreed = draw(&|request| request.tuning.guidance.guidance_agreement = Some(0.0));
    for (one, other) in [
        (&half, &guided),
        (&half, &alone),
        (&agreed, &guided),
        (&agreed, &alone),
    ] {
        assert!(apart(one, other) > 3);
    }
    let never = draw(&|request| request.tuning.guidance.guidance_agreement = Some(1.0));
    assert!(apart(&never, &guided) <= 1);
}

/// CFG++ of guidance 1 goes along the negative prompt's noise, which plain guidance of 1 does not ask for.
#[test]
fn samplers_that_ask_for_the_negative_prompt() {
    let models = Pipelines::of("guidance");
    let mut pipeline = models.load(&models.folder("sd"), PipelineOptions::default());
    let request = |sampler, negative: &str| ImageRequest {
        sampler,
        guidance: 1.0,
        negative_prompt: negative.to_string(),
        ..models.request("not_deep")
    };
    let mut drawn = |sampler, negative| draw(&mut pipeline, &request(sampler, negative));
    let (plain, blue) = (drawn(Sampler::Euler, ""), drawn(Sampler::Euler, "blue"));
    assert_eq!(apart(&plain, &blue), 0);
    let plus = drawn(Sampler::EulerCfgPlusPlus, "a red door");
    // The prompt itself as the negative one leaves nothing to go along but the prompt's noise.
    assert!(apart(&plus, &plain) <= 1);
    assert!(apart(&drawn(Sampler::EulerCfgPlusPlus, "blue"), &plain) > 3);
}
