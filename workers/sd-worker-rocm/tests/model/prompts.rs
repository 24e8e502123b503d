//! Prompts that change, are composed and have regions, noise that varies, LoRAs that come on the way: against pictures of
//! `tests/reference/make_prompts.py`.

use super::common::{go_on, Draw};
use super::hashed::weight;
use super::small::{apart, Pipelines};
use image::{GrayImage, Luma, RgbImage};
use sd_worker_rocm::lora::Lora;
use sd_worker_rocm::pipeline::{ImageRequest, Pipeline, PipelineOptions};
use sd_worker_rocm::request::{NoiseChange, PicturePrompt, RegionPrompt};
use std::collections::HashMap;

fn open() -> (Pipelines, Pipeline) {
    let p = Pipelines::of("prompts");
    let pipeline = p.load(&p.folder("sd"), PipelineOptions::default());
    (p, pipeline)
}

fn draw(pipeline: &mut Pipeline, request: &ImageRequest) -> Vec<RgbImage> {
    pipeline.draw(request, &mut go_on).unwrap().images
}

#[test]
fn prompts_that_change_and_prompts_that_are_composed() {
    let (p, mut pipeline) = open();
    for case in ["plain", "schedule", "turns", "and", "and_unguided"] {
        p.check_with(&mut pipeline, case, |_| {});
    }
    // Taken as they are, brackets are weights of attention.
    let mut request = p.request("schedule");
    request.scheduled_prompts = false;
    let literal = draw(&mut pipeline, &request).remove(0);
    assert!(apart(&literal, &p.picture("schedule")) > 3);
    request = p.request("and_unguided");
    request.prompt = "a AND b:-1".to_string();
    let error = pipeline.draw(&request, &mut go_on).unwrap_err();
    assert!(error.to_string().contains("AND"), "{error}");
    // Every text on the way is encoded: there is a limit.
    request.steps = 600;
    request.prompt = (1..600).map(|n| format!("[{n}:{n}]")).collect();
    let error = pipeline.draw(&request, &mut go_on).unwrap_err();
    assert!(error.to_string().contains("256 texts"), "{error}");
    request.steps = 100;
    request.prompt = (1..100)
        .map(|n| format!("[{}:{n}]", "word ".repeat(4)))
        .collect();
    let error = pipeline.draw(&request, &mut go_on).unwrap_err();
    assert!(error.to_string().contains("chunks"), "{error}");
}

#[test]
fn regions_by_rectangle_and_by_mask() {
    let (p, mut pipeline) = open();
    let right = RegionPrompt {
        prompt: "blue sky".to_string(),
        left: 0.5,
        width: 0.5,
        strength: 1.5,
        ..RegionPrompt::default()
    };
    let mask = GrayImage::from_fn(48, 32, |x, _| Luma([255 * u8::from(x >= 24)]));
    let painted = RegionPrompt {
        left: 0.0,
        width: 1.0,
        mask: Some(mask),
        ..right.clone()
    };
    for region in [right.clone(), painted] {
        p.check_with(&mut pipeline, "region", |request| {
            request.regions = vec![region.clone()];
        });
    }
    let mut request = p.request("region");
    request.regions = vec![RegionPrompt { left: 0.0, ..right }];
    let elsewhere = draw(&mut pipeline, &request).remove(0);
    assert!(apart(&elsewhere, &p.picture("region")) > 1);
}

#[test]
fn variations_and_seeds_of_another_size() {
    let (p, mut pipeline) = open();
    let varied = NoiseChange {
        variation_seed: Some(40),
        variation: 0.3,
        ..NoiseChange::default()
    };
    p.check_with(&mut pipeline, "variation", |r| r.noise = varied.clone());
    for (case, size) in [("seed_smaller", (32, 20)), ("seed_larger", (36, 40))] {
        p.check_with(&mut pipeline, case, |request| {
            request.noise.from_size = Some(size);
        });
    }
    // The second picture varies to the next seed; alone it is the same one.
    let mut request = p.request("variation");
    request.noise = varied;
    request.noise.variation_seed = Some(39);
    request.batch = 2;
    let two = draw(&mut pipeline, &request);
    assert!(apart(&two[1], &p.picture("variation")) <= 1);
    assert!(apart(&two[0], &two[1]) > 3);
    let alone = draw(&mut pipeline, &request.pictures(1, 1)).remove(0);
    assert!(apart(&alone, &two[1]) <= 1);
    // Noise on the way has seeds of its own.
    let mut request = p.request("plain");
    request.eta = Some(1.0);
    let before = draw(&mut pipeline, &request).remove(0);
    request.noise.step_seed_delta = 31337;
    assert!(apart(&draw(&mut pipeline, &request)[0], &before) > 3);
    request.eta = None;
    let still = draw(&mut pipeline, &request).remove(0);
    assert!(apart(&still, &p.picture("plain")) <= 1);
}

#[test]
fn every_picture_with_its_own_prompt() {
    let (p, mut pipeline) = open();
    let mut request = p.request("plain");
    request.seed -= 1;
    request.batch = 2;
    request.each = ["a cat", "a red door"]
        .map(|prompt| PicturePrompt {
            prompt: prompt.to_string(),
            negative_prompt: String::new(),
            loras: Vec::new(),
        })
        .to_vec();
    let mut steps = Vec::new();
    let drawn = pipeline.draw(&request, &mut |told| {
        steps.push((told.step, told.total));
        go_on(told)
    });
    let drawn = drawn.unwrap();
    assert_eq!(drawn.seeds, [6, 7]);
    assert!(apart(&drawn.images[1], &p.picture("plain")) <= 1);
    // Progress goes on through both.
    assert!(
        steps.windows(2).all(|pair| pair[0].0 <= pair[1].0),
        "{steps:?}"
    );
    assert_eq!(steps.last(), Some(&(8, 8)));
}

#[test]
fn a_lora_in_some_steps_and_blocks() {
    let (p, mut pipeline) = open();
    let layers = [
        (
            "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q",
            32,
            32,
        ),
        (
            "up_blocks.1.attentions.1.transformer_blocks.0.ff.net.2",
            32,
            128,
        ),
    ];
    let mut tensors = HashMap::new();
    for (layer, outputs, inputs) in layers {
        for (part, shape) in [("A", [4, inputs]), ("B", [outputs, 4])] {
            let name = format!("unet.{layer}.lora_{part}.weight");
            tensors.insert(name.clone(), weight("lora", &name, &shape));
        }
    }
    let path = p.place().join("lora.safetensors");
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let name = path.to_str().unwrap();
    let lora = |text: &str| {
        let parts: Vec<&str> = text.split(':').collect();
        vec![Lora::read(name, &parts, 4).unwrap()]
    };
    let mut request = p.request("lora");
    let before = draw(&mut pipeline, &request).remove(0);
    assert!(apart(&before, &p.picture("plain")) <= 1);
    for settings in [
        "2:OUT04=0.25:start=2",
        "2:up_blocks.1.attentions=0.25:start=0.5",
        "0:unet=2:up=0.25:step=2-4",
    ] {
        p.check_with(&mut pipeline, "lora", |r| r.loras = lora(settings));
    }
    for settings in [
        "2:OUT04=0.25",
        "2:start=2",
        "2:OUT04=0.25:stop=2",
        "2:te=2:unet=1:OUT04=0.25:start=2",
    ] {
        request.loras = lora(settings);
        let other = draw(&mut pipeline, &request).remove(0);
        assert!(apart(&other, &p.picture("lora")) > 0, "{settings}");
    }
    request.loras = lora("2:OUT09=1");
    let error = pipeline.draw(&request, &mut go_on).unwrap_err();
    assert!(error.to_string().contains("OUT09"), "{error}");
    request.loras.clear();
    assert_eq!(draw(&mut pipeline, &request)[0], before);
}
