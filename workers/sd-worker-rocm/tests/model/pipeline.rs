//! Requests of many kinds to the tests' model.

use super::classify::classify;
use super::common::{go_on, request, tiny, Draw};
use image::{GrayImage, Luma, Rgb, RgbImage};
use sd_worker_rocm::pipeline::{
    ImageRequest, Init, Lora, Pipeline, PipelineOptions, Progress, Stage, Switch,
};
use sd_worker_rocm::sampling::Sampler;
use std::ops::ControlFlow;

const PROMPT: &str = "two green squares on a white background";

fn picture(pipeline: &mut Pipeline, request: &ImageRequest) -> RgbImage {
    pipeline.draw(request, &mut go_on).unwrap().images.remove(0)
}

fn largest(a: &RgbImage, b: &RgbImage) -> u8 {
    assert_eq!(a.dimensions(), b.dimensions());
    let pairs = a.as_raw().iter().zip(b.as_raw());
    pairs.map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

#[test]
fn a_seed_means_one_picture_whatever_the_batch() {
    let mut pipeline = tiny(PipelineOptions::default());
    for sampler in [Sampler::EulerAncestral, Sampler::DpmPlusPlus2M] {
        let mut batch = request(PROMPT, 7);
        batch.steps = 6;
        batch.batch = 3;
        batch.sampler = sampler;
        let together = pipeline.draw(&batch, &mut go_on).unwrap();
        assert_eq!(together.seeds, [7, 8, 9]);
        assert!(largest(&together.images[0], &together.images[1]) > 50);
        let mut one = batch.clone();
        one.batch = 1;
        one.seed = 9;
        let alone = pipeline.draw(&one, &mut go_on).unwrap();
        let apart = largest(&together.images[2], &alone.images[0]);
        assert!(apart <= 1, "{sampler:?}: {apart}");
    }
}

#[test]
fn progress_previews_and_cancelling() {
    let mut pipeline = tiny(PipelineOptions::default());
    let mut request = request(PROMPT, 1);
    request.steps = 6;
    request.preview_every = 2;
    let mut seen = Vec::new();
    let mut previews = Vec::new();
    let mut watch = |progress: Progress| {
        seen.push((progress.stage, progress.step, progress.total));
        previews.extend(progress.preview.map(|p| (progress.step, p.dimensions())));
        ControlFlow::Continue(())
    };
    let generated = pipeline.draw(&request, &mut watch).unwrap();
    assert_eq!(generated.timings.evaluations, 6);
    let steps: Vec<usize> = seen
        .iter()
        .filter(|(stage, ..)| *stage == Stage::Denoise)
        .map(|(_, step, _)| *step)
        .collect();
    assert_eq!(steps, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(seen.first(), Some(&(Stage::Encode, 0, 6)));
    assert_eq!(seen.last(), Some(&(Stage::Decode, 6, 6)));
    assert_eq!(previews, [(2, (128, 128)), (4, (128, 128))]);

    let mut told = 0;
    let mut stop = |progress: Progress| {
        told += 1;
        match (progress.stage, progress.step) {
            (Stage::Denoise, 2) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    let generated = pipeline.draw(&request, &mut stop).unwrap();
    assert!(generated.cancelled && generated.images.is_empty());
    // Encoding, the start, and two steps: nothing after the answer.
    assert_eq!((told, generated.timings.evaluations), (4, 2));
}

#[test]
fn a_picture_to_start_from() {
    let mut pipeline = tiny(PipelineOptions::default());
    let circle = pipeline
        .draw(&request("a red circle on a blue background", 1), &mut go_on)
        .unwrap()
        .images
        .remove(0);
    let init = |strength| Init::new(circle.clone(), strength);
    // Little strength keeps the picture, all of it obeys the new prompt.
    let mut weak = request("a yellow heart on a black background", 5);
    weak.init = Some(init(0.1));
    let kept = pipeline.draw(&weak, &mut go_on).unwrap().images.remove(0);
    let scene = classify(&kept).unwrap();
    assert_eq!((scene.foreground, scene.background), ("red", "blue"));
    weak.init = Some(init(1.0));
    let new = pipeline.draw(&weak, &mut go_on).unwrap().images.remove(0);
    let scene = classify(&new).unwrap();
    assert_eq!((scene.foreground, scene.background), ("yellow", "black"));
}

#[test]
fn only_what_the_mask_shows_is_painted() {
    let mut pipeline = tiny(PipelineOptions::default());
    let grey = RgbImage::from_pixel(128, 128, Rgb([128; 3]));
    let right = GrayImage::from_fn(128, 128, |x, _| Luma([if x >= 64 { 255 } else { 0 }]));
    for invert in [false, true] {
        let mut request = request("a large red square on a red background", 3);
        request.steps = 8;
        request.init = Some(Init {
            mask: Some(right.clone()),
            mask_blur: 2.0,
            mask_invert: invert,
            ..Init::new(grey.clone(), 1.0)
        });
        let painted = pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0);
        let changed = |range: std::ops::Range<u32>| {
            let pixels = range.flat_map(|x| (0..128).map(move |y| (x, y)));
            let apart = pixels.map(|(x, y)| painted.get_pixel(x, y).0[1].abs_diff(128));
            apart.map(u64::from).sum::<u64>() / (128 * 32)
        };
        let (left, right) = (changed(0..32), changed(96..128));
        let (kept, new) = if invert { (right, left) } else { (left, right) };
        assert_eq!(kept, 0, "invert {invert}");
        assert!(new > 20, "invert {invert}: {new}");
    }
}

#[test]
fn offloading_and_tiling_change_nothing() {
    let mut wide = request("a red circle on a blue background", 1);
    wide.width = 192;
    wide.height = 256;
    wide.steps = 4;
    let whole = tiny(PipelineOptions::default())
        .draw(&wide, &mut go_on)
        .unwrap();
    let options = PipelineOptions {
        offload: true,
        vae_tiling: Switch::On,
        ..PipelineOptions::default()
    };
    let other = tiny(options).draw(&wide, &mut go_on).unwrap();
    assert_eq!(whole.images[0].dimensions(), (192, 256));
    let apart = largest(&whole.images[0], &other.images[0]);
    assert!(apart <= 2, "{apart}");
}

#[test]
fn prompts_of_many_chunks_and_weights() {
    let mut pipeline = tiny(PipelineOptions::default());
    let mut long = request(&format!("{PROMPT}, {}", "nice ".repeat(100)), 2);
    long.steps = 3;
    let one = picture(&mut pipeline, &long);
    long.prompt = long.prompt.replace("green", "(green:1.5)");
    assert_ne!(one, picture(&mut pipeline, &long));
    long.clip_skip = 2;
    let skipped = picture(&mut pipeline, &long);
    long.clip_skip = 1;
    assert_ne!(skipped, picture(&mut pipeline, &long));
}

#[test]
fn impossible_requests_are_refused_with_a_reason() {
    let mut pipeline = tiny(PipelineOptions::default());
    type Change = fn(&mut ImageRequest);
    let cases: [(&str, Change); 7] = [
        ("multiple of 8", |r| r.width = 100),
        ("multiple of 8", |r| r.height = 0),
        ("batch", |r| r.batch = 0),
        ("guidance", |r| r.guidance = f64::NAN),
        ("guidance rescale", |r| r.guidance_rescale = 2.0),
        ("steps", |r| r.steps = 0),
        ("no LoRA", |r| {
            r.loras = vec![Lora::new("../../etc/passwd.x", 1.0)]
        }),
    ];
    for (reason, change) in cases {
        let mut request = request(PROMPT, 1);
        change(&mut request);
        let error = pipeline.draw(&request, &mut go_on).unwrap_err();
        assert_eq!(error.exit_code(), worker::error::EXIT_BAD_INPUT, "{error}");
        assert!(error.to_string().contains(reason), "{reason}: {error}");
    }
}
