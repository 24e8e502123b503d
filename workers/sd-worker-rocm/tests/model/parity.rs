//! diffusers' numbers.

use super::common::{device, difference, file, go_on, request, tensors, tiny, Draw};
use super::hashed::{clip_absent, network, nothing_absent, unet_absent};
use candle_core::{DType, Tensor};
use sd_worker_rocm::models::clip::{ClipConfig, ClipTextEncoder};
use sd_worker_rocm::models::unet::config::UNetConfig;
use sd_worker_rocm::models::unet::{Extra, UNet};
use sd_worker_rocm::models::vae::{Vae, VaeConfig};
use sd_worker_rocm::pipeline::{picture, Pipeline, PipelineOptions, Precision};
use sd_worker_rocm::request::ImageRequest;
use sd_worker_rocm::sampling::{NoiseSchedule, Sampler, SamplerOptions, SamplerRun, Schedule};
use sd_worker_rocm::weights::folder::Folder;
use std::collections::HashMap;

const TINY_SD: &str = "../../tests/fixtures/tiny-sd";
const SHAPES: &str = "models/tiny-shapes-sd/reference/reference.safetensors";

fn ids(reference: &HashMap<String, Tensor>, name: &str) -> Vec<u32> {
    let ids = reference[name].flatten_all().unwrap();
    let ids = ids.to_dtype(DType::U32).unwrap().to_vec1().unwrap();
    assert_eq!(ids.len(), 77);
    ids
}

fn bytes(picture: &Tensor) -> Vec<u8> {
    let picture = picture.affine(0.5, 0.5).unwrap();
    picture::from_tensor(&picture).unwrap()[0].as_raw().clone()
}

/// Every step of the pipeline, each from the reference's state before it.
#[test]
fn tiny_sd() {
    let device = device();
    let reference = tensors(&format!("{TINY_SD}/reference.safetensors"));
    let folder = Folder::Disk(file(TINY_SD));
    let config: ClipConfig = folder.part("text_encoder").config().unwrap();
    let (clip, _) = network("text_encoder", clip_absent, &device, |vb| {
        ClipTextEncoder::new(vb, &config)
    });
    for which in ["cond", "uncond"] {
        let ids = ids(&reference, &format!("input_ids_{which}"));
        let end = ids.iter().position(|id| *id == 49407).unwrap();
        let text = clip.forward(&[ids], &[end], 0, true).unwrap().hidden;
        let off = difference(&text, &reference[&format!("text_{which}")]);
        assert!(off <= 1e-4, "text {which}: {off}");
    }

    let config: UNetConfig = folder.part("unet").config().unwrap();
    let (unet, _) = network("unet", unet_absent, &device, |vb| UNet::new(vb, &config));
    let text = Tensor::cat(&[&reference["text_uncond"], &reference["text_cond"]], 0).unwrap();
    let text = text.to_device(&device).unwrap();
    let condition = unet.condition(&text, &Extra::default()).unwrap();
    let json = std::fs::read_to_string(file(&format!("{TINY_SD}/scheduler/scheduler_config.json")));
    let schedule = NoiseSchedule::from_config(&json.unwrap()).unwrap();
    let options = SamplerOptions {
        eta: Some(0.0),
        ..SamplerOptions::new(Sampler::Ddim, Schedule::Discrete, 6)
    };
    let mut run = SamplerRun::new(&schedule, &options).unwrap();
    let mut x = reference["latents_init"].to_device(&device).unwrap();
    let mut worst = 0f32;
    while !run.is_done() {
        let i = run.index();
        let mut network = |x: &Tensor, level: &sd_worker_rocm::sampling::NoiseLevel| {
            let both = Tensor::cat(&[x, x], 0)?;
            let out = unet.forward(&both, level.timestep, &condition, None)?;
            let (uncond, cond) = (out.narrow(0, 0, 1)?, out.narrow(0, 1, 1)?);
            worst = worst
                .max(difference(
                    &uncond,
                    &reference[&format!("noise_uncond_{i}")],
                ))
                .max(difference(&cond, &reference[&format!("noise_cond_{i}")]));
            let noise = (&uncond + ((&cond - &uncond)? * 7.5)?)?;
            Ok(schedule.prediction.denoised(x, &noise, level)?.into())
        };
        x = run
            .step(&x, &mut network, &mut || unreachable!("DDIM without noise"))
            .unwrap()
            .x;
    }
    assert!(worst <= 5e-4, "noise: {worst}");

    let config: VaeConfig = folder.part("vae").config().unwrap();
    let (vae, _) = network("vae", nothing_absent, &device, |vb| Vae::new(vb, &config));
    let image = vae.decode_raw(&vae.unscale(&x).unwrap()).unwrap();
    let off = difference(&image, &reference["image"]);
    assert!(off <= 5e-3, "image: {off}");
    let (ours, theirs) = (bytes(&image), bytes(&reference["image"]));
    let apart = ours.iter().zip(&theirs).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(apart <= Some(1), "bytes: {apart:?}");
    let clamped = reference["image"].clamp(-1f32, 1f32).unwrap();
    let encoded = vae
        .encode_mean(&clamped.to_device(&device).unwrap())
        .unwrap();
    let off = difference(&encoded, &reference["vae_enc_mean"]);
    assert!(off <= 5e-4, "encoding: {off}");

    // Tiles of 5 latents with margins, against the picture in one piece.
    let tiled = vae.decode_tiled(&vae.unscale(&x).unwrap(), 5).unwrap();
    let off = difference(&tiled, &image);
    assert!(off <= 1e-4, "tiles: {off}");
}

/// The built-in model through the whole program: prompt to bytes.
#[test]
fn tiny_shapes() {
    let mut pipeline = tiny(PipelineOptions {
        precision: Precision::F32,
        ..PipelineOptions::default()
    });
    let reference = tensors(SHAPES);
    for (i, prompt) in [
        "a red circle on a blue background",
        "two green squares on a white background",
        "a picture of three large yellow stars on a black background",
    ]
    .iter()
    .enumerate()
    {
        let generated = pipeline
            .draw(&request(prompt, i as u64 + 1), &mut go_on)
            .unwrap();
        let theirs = bytes(&reference[&format!("{i}.image")]);
        let ours = generated.images[0].as_raw();
        let apart: Vec<u8> = ours
            .iter()
            .zip(&theirs)
            .map(|(a, b)| a.abs_diff(*b))
            .collect();
        let differing = apart.iter().filter(|d| **d > 0).count();
        assert!(
            apart.iter().all(|d| *d <= 1),
            "{prompt}: {:?}",
            apart.iter().max()
        );
        assert!(differing < 200, "{prompt}: {differing} bytes differ");
    }
}

/// 16-bit arithmetic stays close: what published numbers of candle in f16 are apart.
#[test]
fn tiny_shapes_in_f16() {
    let options = PipelineOptions {
        precision: Precision::F16,
        ..PipelineOptions::default()
    };
    let mut pipeline = tiny(options);
    let prompt = "a red circle on a blue background";
    let generated = pipeline.draw(&request(prompt, 1), &mut go_on).unwrap();
    let theirs = bytes(&tensors(SHAPES)["0.image"]);
    let ours = generated.images[0].as_raw();
    let apart = ours.iter().zip(&theirs).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(apart <= Some(8), "{apart:?}");
}

/// What the program carries draws what it is asked for.
#[cfg(feature = "built-in-model")]
#[test]
fn the_built_in_model() {
    let mut pipeline = Pipeline::builtin(&device(), PipelineOptions::default()).unwrap();
    let defaults = pipeline.info().defaults.clone();
    assert_eq!((defaults.width, defaults.height), (256, 256));
    let asked = ImageRequest {
        width: defaults.width,
        height: defaults.height,
        steps: 6,
        guidance: defaults.guidance,
        sampler: Sampler::DpmPlusPlus2M,
        ..request("a large red circle on a white background", 1)
    };
    let drawn = pipeline.draw(&asked, &mut go_on).unwrap();
    let picture = &drawn.images[0];
    let [red, green, blue] = picture.get_pixel(128, 128).0;
    assert!(red > 150 && green < 90 && blue < 90, "{red} {green} {blue}");
    for corner in [(8, 8), (247, 8), (8, 247), (247, 247)] {
        let rgb = picture.get_pixel(corner.0, corner.1).0;
        assert!(rgb.iter().all(|c| *c > 200), "{corner:?} {rgb:?}");
    }
}
