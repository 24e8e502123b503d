//! Requests as pictures tell them, read back: what is written is read, or is said to be left out.

use super::{Networks, Recalled};
use crate::editing::{Editing, Fill};
use crate::faces::RestoreFaces;
use crate::info::{Defaults, Family, ModelInfo, Purpose, Takes, VideoInfo};
use crate::lora::Lora;
use crate::parameters::Parameters;
use crate::request::{
    Control, Hidden, ImageRequest, Init, InterfaceDefaults, IpAdapter, MicroConditions,
    NoiseChange, RegionPrompt, RequestFields, Tuning, VideoRequest,
};
use crate::rng::RngKind;
use crate::sampling::{Sampler, Schedule};
use crate::upscale::Method;
use crate::video::VideoFormat;
use image::{GrayImage, RgbImage};
use worker::{Error, Result};

/// A folder with one network for faces.
struct Folder;

impl Networks for Folder {
    fn upscaler(&self, name: &str) -> Result<Method> {
        Method::of(name)
    }

    fn faces(&self, name: &str) -> Result<RestoreFaces> {
        let known = RestoreFaces::new("gfpgan.safetensors".into(), "retina.safetensors".into());
        match name == known.label() {
            true => Ok(known),
            false => Err(Error::Usage("there is one".to_string())),
        }
    }
}

fn model() -> ModelInfo {
    ModelInfo {
        name: "painter".to_string(),
        family: Family::Sdxl,
        inpainting: false,
        prompt_weights: true,
        references: 0..=4,
        purpose: Purpose::Instructions,
        refined: true,
        precision: "f32".to_string(),
        size_multiple: 8,
        defaults: Defaults {
            width: 64,
            height: 64,
            steps: 4,
            guidance: 5.0,
            sampler: Sampler::Euler,
            schedule: None,
            strength: None,
            unknown_scheduler: None,
            video: Some(VideoInfo {
                time_factor: 4,
                frames: 5,
                fps: 8,
                first: Takes::May,
                last: Takes::May,
                late: true,
                key_frames: true,
                frame_noise: true,
                denoising_decoder: true,
            }),
        },
    }
}

/// A request with another value than the usual one in every field. A new field does not compile here until it is given
/// one; then it is told in a picture's text and read back, or among those that the test names as not.
fn unusual() -> ImageRequest {
    let picture = RgbImage::new(8, 8);
    let tuning: Tuning = serde_json::from_str(
        r#"{"schedule_rho": 5, "s_churn": 2, "step_cache": "deepcache:4", "guidance_end": 0.9, "pag_scale": 2, "tile_x": true}"#,
    )
    .unwrap();
    ImageRequest {
        prompt: "a cat, sitting".to_string(),
        regions: vec![
            RegionPrompt {
                prompt: "a dog: large, brown".to_string(),
                left: 0.25,
                width: 0.5,
                strength: 2.0,
                ..RegionPrompt::default()
            },
            RegionPrompt {
                prompt: "a mask's".to_string(),
                mask: Some(GrayImage::new(8, 8)),
                ..RegionPrompt::default()
            },
        ],
        scheduled_prompts: false,
        each: Vec::new(),
        prompt_weights: Some(false),
        negative_prompt: "rain".to_string(),
        width: 72,
        height: 80,
        steps: 7,
        guidance: 6.5,
        true_guidance: 2.0,
        guidance_rescale: 0.25,
        sampler: Sampler::Ddim,
        schedule: Some(Schedule::Karras),
        seed: 11,
        rng: RngKind::TorchCpu,
        noise: NoiseChange {
            variation_seed: Some(3),
            variation: 0.5,
            from_size: Some((64, 48)),
            step_seed_delta: 9,
            multiplier: Some(1.25),
        },
        batch: 1,
        clip_skip: 2,
        eta: Some(0.5),
        tuning,
        init: Some(Init {
            mask: Some(GrayImage::new(8, 8)),
            mask_blur: 3.0,
            mask_invert: true,
            editing: Editing {
                fill: Fill::Noise,
                only_masked: Some(16),
                ..Editing::default()
            },
            ..Init::new(picture.clone(), 0.6)
        }),
        highres: None,
        restore_faces: Some(RestoreFaces {
            weight: 0.25,
            visibility: 0.75,
            only_center: true,
            ..Folder.faces("gfpgan").unwrap()
        }),
        references: vec![picture.clone()],
        keep_reference_size: true,
        image_guidance: Some(2.0),
        depth: Some(picture.clone()),
        micro: MicroConditions {
            original_size: Some((100, 90)),
            crop: (4, 5),
            target_size: Some((80, 70)),
            aesthetic_score: 7.0,
            negative_aesthetic_score: 1.5,
        },
        refiner_start: Some(0.75),
        video: Some(VideoRequest {
            frames: 9,
            fps: 12,
            first: Some(picture.clone()),
            last: None,
            late_guidance: Some(3.5),
            key_frames: Vec::new(),
            frame_noise: Some(0.125),
            decode_timestep: Some(0.0625),
            decode_noise: Some(0.03125),
            format: VideoFormat::default(),
        }),
        loras: vec![Lora::new("ink", 0.5)],
        controls: vec![Control {
            hidden: Hidden::Masked,
            ..Control::new("net.safetensors".into(), picture.clone())
        }],
        ip_adapters: vec![IpAdapter::new("ip.safetensors".into(), vec![picture])],
        preview_every: 2,
    }
}

/// Settings that are told, and need pictures to be followed again.
const LEFT_OUT: [&str; 10] = [
    "Denoising strength",
    "Mask blur",
    "Masked content",
    "Inpaint area",
    "Masked area padding",
    "Image CFG scale",
    "References",
    "Region: mask 2",
    "IP-Adapters",
    "Resize mode",
];

#[test]
fn what_is_written_is_read() {
    let (asked, info) = (unusual(), model());
    let text = Parameters::of(&asked, 0, &info).to_string();
    let recalled = Recalled::of_text(&text, &Folder).fitting(&info);
    for told in &recalled.left_out {
        let known = LEFT_OUT.iter().any(|name| told.starts_with(name));
        assert!(known, "{told:?} is written and not read");
    }
    let fields = RequestFields::default().over(recalled.fields);
    let again = fields
        .build(&info.defaults, &InterfaceDefaults::OWN)
        .unwrap();
    // Every field: `..` would let a new one be forgotten.
    let ImageRequest {
        prompt,
        regions,
        scheduled_prompts,
        each,
        prompt_weights,
        negative_prompt,
        width,
        height,
        steps,
        guidance,
        true_guidance,
        guidance_rescale,
        sampler,
        schedule,
        seed,
        rng,
        noise,
        batch,
        clip_skip,
        eta,
        tuning,
        micro,
        refiner_start,
        video,
        loras,
        restore_faces,
        // These need pictures or networks, or change nothing in the picture.
        init: _,
        highres: _,
        references: _,
        keep_reference_size: _,
        image_guidance: _,
        depth: _,
        controls: _,
        ip_adapters: _,
        preview_every: _,
    } = again;
    assert_eq!(prompt, asked.prompt);
    let place = |region: &RegionPrompt| {
        let RegionPrompt {
            prompt,
            left,
            top,
            width,
            height,
            mask: _,
            strength,
        } = region;
        (prompt.clone(), [*left, *top, *width, *height, *strength])
    };
    assert_eq!(regions.len(), 1);
    assert_eq!(place(&regions[0]), place(&asked.regions[0]));
    assert_eq!(scheduled_prompts, asked.scheduled_prompts);
    assert!(each.is_empty());
    assert_eq!(prompt_weights, asked.prompt_weights);
    assert_eq!(negative_prompt, asked.negative_prompt);
    assert_eq!((width, height), (asked.width, asked.height));
    assert_eq!((steps, batch), (asked.steps, asked.batch));
    assert_eq!(
        (guidance, true_guidance, guidance_rescale),
        (asked.guidance, asked.true_guidance, asked.guidance_rescale)
    );
    assert_eq!((sampler, schedule), (asked.sampler, asked.schedule));
    assert_eq!((seed, rng), (asked.seed, asked.rng));
    assert_eq!(noise, asked.noise);
    assert_eq!((clip_skip, eta), (asked.clip_skip, asked.eta));
    assert_eq!(tuning, asked.tuning);
    assert_eq!(micro, asked.micro);
    assert_eq!(refiner_start, asked.refiner_start);
    let told = |video: Option<VideoRequest>| {
        let VideoRequest {
            frames,
            fps,
            // These are pictures, and how a file is written.
            first: _,
            last: _,
            key_frames: _,
            frame_noise,
            late_guidance,
            decode_timestep,
            decode_noise,
            format: _,
        } = video.unwrap();
        let numbers = [late_guidance, frame_noise, decode_timestep, decode_noise];
        (frames, fps, numbers)
    };
    assert_eq!(told(video), told(asked.video));
    assert_eq!(loras, asked.loras);
    assert_eq!(restore_faces, asked.restore_faces);
}

#[test]
fn a_second_pass_is_read() {
    let info = model();
    let mut asked = ImageRequest {
        init: None,
        video: None,
        ..unusual()
    };
    let highres = crate::request::HighresFields {
        scale: Some(1.5),
        steps: Some(5),
        strength: Some(0.4),
        sampler: Some("Euler".to_string()),
        schedule: Some("Exponential".to_string()),
        guidance: Some(3.0),
        prompt: Some("a tiger".to_string()),
        negative_prompt: Some("snow".to_string()),
        method: Some(Method::of("lanczos").unwrap()),
        seed: Some(99),
        width: None,
        height: None,
    };
    asked.highres = Some(highres.build(&asked).unwrap());
    let text = Parameters::of(&asked, 0, &info).to_string();
    let recalled = Recalled::of_text(&text, &Folder).fitting(&info);
    let again = recalled
        .fields
        .build(&info.defaults, &InterfaceDefaults::OWN)
        .unwrap();
    let loras = asked.loras.clone();
    let (again, asked) = (again.highres.unwrap(), asked.highres.unwrap());
    assert_eq!((again.width, again.height), (asked.width, asked.height));
    assert_eq!((again.steps, again.strength), (asked.steps, asked.strength));
    assert_eq!(
        (again.sampler, again.schedule),
        (asked.sampler, asked.schedule)
    );
    assert_eq!(again.guidance, asked.guidance);
    assert_eq!(again.method, asked.method);
    assert_eq!(again.prompt, asked.prompt);
    assert_eq!(again.negative_prompt, asked.negative_prompt);
    assert_eq!(again.seed, asked.seed);
    assert!(loras.iter().all(|lora| lora.name == "ink"));
}

#[test]
fn what_a_model_has_no_place_for_is_left_out() {
    let text = Parameters::of(&unusual(), 0, &model()).to_string();
    let mut other = model();
    other.family = Family::Sd1;
    other.refined = false;
    other.defaults.video = None;
    let recalled = Recalled::of_text(&text, &Folder).fitting(&other);
    assert_eq!(recalled.fields.micro, MicroConditions::default());
    assert_eq!(recalled.fields.refiner_start, None);
    assert!(!recalled.fields.video.is_asked());
    for word in ["Stable Diffusion XL", "Refiner", "Frames"] {
        let told = recalled.left_out.iter().any(|told| told.contains(word));
        assert!(told, "{word}: {:?}", recalled.left_out);
    }
}

#[test]
fn faces_of_networks_that_are_not_here_are_left_out() {
    let text = "x\nSteps: 2, Face restoration: CodeFormer, Face restoration weight: 0.3, Face restoration of: center";
    let recalled = Recalled::of_text(text, &Folder);
    assert_eq!(recalled.fields.restore_faces, None);
    assert_eq!(
        recalled.left_out,
        [
            "Face restoration: CodeFormer",
            "Face restoration weight: 0.3",
            "Face restoration of: center"
        ]
    );
}
