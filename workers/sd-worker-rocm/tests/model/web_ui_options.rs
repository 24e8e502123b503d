//! Options that only AUTOMATIC1111's web UI has: what they mean, as diffusers has nothing like them.

use super::common::{go_on, Draw};
use super::small::{apart, Pipelines};
use sd_worker_rocm::pipeline::PipelineOptions;
use sd_worker_rocm::request::{HighresFields, Init};
use sd_worker_rocm::sampling::Sampler;

#[test]
fn noise_over_a_picture_has_a_factor() {
    let p = Pipelines::of("prompts");
    let mut pipeline = p.load(&p.folder("sd"), PipelineOptions::default());
    let plain = p.request("plain");
    let mut draw = |seed: u64, multiplier: Option<f64>| {
        let mut request = plain.clone();
        request.init = Some(Init::new(p.picture("plain"), 0.6));
        request.sampler = Sampler::Euler;
        (request.seed, request.noise.multiplier) = (seed, multiplier);
        pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0)
    };
    let usual = draw(1, None);
    assert_eq!(usual, draw(1, Some(1.0)));
    assert!(apart(&usual, &draw(1, Some(0.5))) > 3);
    // Without any noise seeds are the same.
    assert!(apart(&usual, &draw(2, None)) > 3);
    assert_eq!(draw(1, Some(0.0)), draw(2, Some(0.0)));
}

#[test]
fn steps_with_little_noise_go_without_guidance() {
    let p = Pipelines::of("prompts");
    let mut pipeline = p.load(&p.folder("sd"), PipelineOptions::default());
    let mut draw = |least: Option<f64>, start: Option<f64>| {
        let mut request = p.request("plain");
        request.sampler = Sampler::Euler;
        request.steps = 2;
        request.tuning.guidance.guidance_min_sigma = least;
        request.tuning.guidance.guidance_end = start;
        pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0)
    };
    // Of two steps the second is the one that may be left out.
    let half = draw(Some(1e3), None);
    assert_eq!(half, draw(None, Some(0.5)));
    assert!(apart(&half, &draw(None, None)) > 1);
    assert_eq!(draw(Some(1e-3), None), draw(None, None));
}

#[test]
fn a_second_pass_may_have_a_seed_of_its_own() {
    let p = Pipelines::of("prompts");
    let mut pipeline = p.load(&p.folder("sd"), PipelineOptions::default());
    let mut draw = |seed: Option<u64>| {
        let mut request = p.request("plain");
        request.sampler = Sampler::Euler;
        let fields = HighresFields {
            scale: Some(1.5),
            seed,
            ..HighresFields::default()
        };
        request.highres = Some(fields.build(&request).unwrap());
        let first = request.seed;
        let made = pipeline.draw(&request, &mut go_on).unwrap();
        assert_eq!(made.seeds, [first]);
        made.images.into_iter().next().unwrap()
    };
    let usual = draw(None);
    let first = p.request("plain").seed;
    assert_eq!(usual, draw(Some(first)));
    assert!(apart(&usual, &draw(Some(first + 1))) > 3);
}
