//! Videos of whole models, prompt and pictures to frames, against diffusers': `tests/reference/make_video.py` has made
//! them.

use super::common::{go_on, Draw};
use super::pipelines::{write_gguf, Tensors};
use super::small::{apart, Pipelines};
use candle_core::quantized::GgmlDType;
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder, DynamicImage, RgbImage};
use sd_worker_rocm::lora::Lora;
use sd_worker_rocm::pipeline::{Generated, ImageRequest, Pipeline, PipelineOptions};
use sd_worker_rocm::request::VideoRequest;
use sd_worker_rocm::video::VideoFormat;
use std::io::Cursor;
use std::ops::ControlFlow;

/// What diffusers was asked for, as a file that keeps every pixel.
pub fn request(p: &Pipelines, case: &str) -> ImageRequest {
    let number = |key: &str| p.asked(case)[key].as_f64();
    ImageRequest {
        video: Some(VideoRequest {
            frames: number("frames").unwrap() as usize,
            fps: number("fps").map_or(16, |fps| fps as usize),
            first: None,
            last: None,
            key_frames: Vec::new(),
            frame_noise: number("image_cond_noise_scale"),
            late_guidance: number("guidance_scale_2"),
            decode_timestep: number("decode_timestep"),
            decode_noise: number("decode_noise_scale"),
            format: VideoFormat::WebP,
        }),
        guidance_rescale: number("guidance_rescale").unwrap_or(0.0),
        ..p.request(case)
    }
}

pub fn ends(request: &mut ImageRequest, first: &RgbImage, last: Option<&RgbImage>) {
    let video = request.video.as_mut().unwrap();
    video.first = Some(first.clone());
    video.last = last.cloned();
}

/// The frames below each other.
fn stacked(made: &Generated) -> RgbImage {
    let frames: Vec<RgbImage> = match made.videos.first() {
        None => vec![made.images[0].clone()],
        Some(file) => {
            let decoder = WebPDecoder::new(Cursor::new(file)).unwrap();
            let frames = decoder.into_frames().map(|frame| {
                let frame = frame.unwrap().into_buffer();
                DynamicImage::from(frame).to_rgb8()
            });
            frames.collect()
        }
    };
    assert_eq!(frames[0], made.images[0]);
    let bytes = frames.iter().flat_map(|frame| frame.as_raw().clone());
    let (width, height) = frames[0].dimensions();
    RgbImage::from_raw(width, height * frames.len() as u32, bytes.collect()).unwrap()
}

pub fn draw(pipeline: &mut Pipeline, request: &ImageRequest) -> RgbImage {
    stacked(&pipeline.draw(request, &mut go_on).unwrap())
}

/// Makes a case's video and compares every frame; another prompt must give others.
pub fn check(
    p: &Pipelines,
    pipeline: &mut Pipeline,
    case: &str,
    change: impl Fn(&mut ImageRequest),
) {
    let mut request = request(p, case);
    change(&mut request);
    let apart = |request: &ImageRequest, pipeline: &mut Pipeline| {
        apart(&draw(pipeline, request), &p.picture(case))
    };
    let off = apart(&request, pipeline);
    assert!(off <= 1, "{case}: {off}");
    request.prompt = "a blue sea".to_string();
    let off = apart(&request, pipeline);
    assert!(off > 3, "{case}: the prompt hardly matters ({off})");
}

pub fn load(p: &Pipelines, model: &str) -> Pipeline {
    p.load(&p.folder(model), PipelineOptions::default())
}

#[test]
fn text_to_video() {
    let p = Pipelines::of("video");
    let mut pipeline = load(&p, "wan");
    check(&p, &mut pipeline, "wan", |_| {});
    check(&p, &mut pipeline, "wan_one", |_| {});
    // Without a video a picture is asked for.
    let picture = ImageRequest {
        video: None,
        ..request(&p, "wan_one")
    };
    let off = apart(&draw(&mut pipeline, &picture), &p.picture("wan_one"));
    assert!(off <= 1, "{off}");
}

#[test]
fn late_steps_by_another_network() {
    let p = Pipelines::of("video");
    let mut pipeline = load(&p, "wan_late");
    check(&p, &mut pipeline, "wan_late", |_| {});
    check(&p, &mut pipeline, "wan_late_guided", |_| {});
    // The option has a say, and the networks take turns again.
    let off = apart(&p.picture("wan_late"), &p.picture("wan_late_guided"));
    assert!(off > 3, "{off}");
    check(&p, &mut pipeline, "wan_late", |_| {});
    let mut offloaded = p.load(
        &p.folder("wan_late"),
        PipelineOptions {
            offload: true,
            ..PipelineOptions::default()
        },
    );
    check(&p, &mut offloaded, "wan_late", |_| {});
}

#[test]
fn pictures_to_video() {
    let p = Pipelines::of("video");
    let (first, last) = (p.picture("first"), p.picture("last"));
    let one = |request: &mut ImageRequest| ends(request, &first, None);
    let both = |request: &mut ImageRequest| ends(request, &first, Some(&last));
    check(&p, &mut load(&p, "wan_picture"), "wan_picture", one);
    check(&p, &mut load(&p, "wan_pictures"), "wan_pictures", both);
    let mut pipeline = load(&p, "wan22_picture");
    check(&p, &mut pipeline, "wan22_picture", one);
    check(&p, &mut pipeline, "wan22_pictures", both);
    let other = draw(&mut pipeline, &{
        let mut request = request(&p, "wan22_picture");
        ends(&mut request, &last, None);
        request
    });
    assert!(apart(&other, &p.picture("wan22_picture")) > 3);
}

#[test]
fn a_first_latent_that_is_there() {
    let p = Pipelines::of("video");
    let mut pipeline = load(&p, "wan_small");
    check(&p, &mut pipeline, "wan_small", |_| {});
    let first = p.picture("first64");
    check(&p, &mut pipeline, "wan_small_picture", |request| {
        ends(request, &first, None);
    });
}

#[test]
fn what_a_model_of_videos_does_not_take() {
    let p = Pipelines::of("video");
    let picture = p.picture("first");
    let mut text = load(&p, "wan");
    let mut starts = load(&p, "wan22_picture");
    let refused = |pipeline: &mut Pipeline, change: &dyn Fn(&mut ImageRequest), named: &str| {
        let mut request = request(&p, "wan");
        change(&mut request);
        let error = pipeline.draw(&request, &mut go_on).unwrap_err();
        assert!(error.to_string().contains(named), "{named}: {error}");
    };
    let video = |change: fn(&mut VideoRequest)| {
        move |request: &mut ImageRequest| change(request.video.as_mut().unwrap())
    };
    refused(&mut text, &video(|v| v.frames = 8), "5 or 9");
    refused(&mut text, &video(|v| v.frames = 0), "frames");
    refused(&mut text, &video(|v| v.fps = 0), "fps");
    refused(
        &mut text,
        &video(|v| v.late_guidance = Some(2.0)),
        "late_guidance",
    );
    let first = |request: &mut ImageRequest| ends(request, &picture, None);
    refused(&mut text, &first, "first_frame");
    refused(&mut starts, &|_| {}, "first_frame");
    refused(
        &mut starts,
        &|request| {
            ends(request, &picture, Some(&picture));
            request.video.as_mut().unwrap().frames = 1;
        },
        "one frame",
    );
}

#[test]
fn a_video_is_broken_off_while_it_is_decoded() {
    let p = Pipelines::of("video");
    let mut pipeline = load(&p, "wan");
    let mut decoding = 0;
    let made = pipeline.draw(&request(&p, "wan"), &mut |progress| {
        decoding += usize::from(progress.stage == sd_worker_rocm::pipeline::Stage::Decode);
        match decoding {
            2 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    let made = made.unwrap();
    assert!(made.cancelled && made.videos.is_empty());
}

/// diffusers' names of a block's layers, and the original's.
const LAYERS: [(&str, &str); 15] = [
    ("attn1.to_q.", "self_attn.q."),
    ("attn1.to_k.", "self_attn.k."),
    ("attn1.to_v.", "self_attn.v."),
    ("attn1.to_out.0.", "self_attn.o."),
    ("attn1.norm_", "self_attn.norm_"),
    ("attn2.to_q.", "cross_attn.q."),
    ("attn2.to_k.", "cross_attn.k."),
    ("attn2.to_v.", "cross_attn.v."),
    ("attn2.to_out.0.", "cross_attn.o."),
    ("attn2.norm_added_k.", "cross_attn.norm_k_img."),
    ("attn2.norm_", "cross_attn.norm_"),
    ("norm2.", "norm3."),
    ("ffn.net.0.proj.", "ffn.0."),
    ("ffn.net.2.", "ffn.2."),
    ("scale_shift_table", "modulation"),
];

/// The same of other layers.
const OTHERS: [(&str, &str); 7] = [
    (
        "condition_embedder.time_embedder.linear_1.",
        "time_embedding.0.",
    ),
    (
        "condition_embedder.time_embedder.linear_2.",
        "time_embedding.2.",
    ),
    ("condition_embedder.time_proj.", "time_projection.1."),
    (
        "condition_embedder.text_embedder.linear_1.",
        "text_embedding.0.",
    ),
    (
        "condition_embedder.text_embedder.linear_2.",
        "text_embedding.2.",
    ),
    ("proj_out.", "head.head."),
    ("scale_shift_table", "head.modulation"),
];

fn original(name: &str) -> String {
    let block = name
        .strip_prefix("blocks.")
        .and_then(|rest| rest.split_once('.'));
    let (before, layer, table) = match block {
        Some((block, layer)) => (format!("blocks.{block}."), layer, &LAYERS[..]),
        None => (String::new(), name, &OTHERS[..]),
    };
    let found = table.iter().find(|(ours, _)| layer.starts_with(ours));
    match found {
        Some((ours, theirs)) => format!("{before}{theirs}{}", &layer[ours.len()..]),
        None => name.to_string(),
    }
}

fn originals(p: &Pipelines, model: &str, part: &str) -> Tensors {
    let file = format!("{part}/diffusion_pytorch_model.safetensors");
    let tensors = p.weights(model, &file).into_iter();
    tensors
        .map(|(name, tensor)| (original(&name), tensor))
        .collect()
}

/// Transformers in files of their own under the original's names, both of a model that has two, and as GGUF with the
/// five dimensions of a convolution of videos.
#[test]
fn transformers_under_the_originals_names() {
    let p = Pipelines::of("video");
    let folder = p.folder("wan_late");
    let path = |name: &str| p.place().join(name);
    let save = |tensors: &Tensors, name: &str| {
        candle_core::safetensors::save(tensors, path(name)).unwrap();
        path(name)
    };
    let early = originals(&p, "wan_late", "transformer");
    assert!(
        early.contains_key("blocks.0.self_attn.q.weight") && early.contains_key("head.modulation")
    );
    let late = save(
        &originals(&p, "wan_late", "transformer_2"),
        "late.safetensors",
    );
    write_gguf(&path("early.gguf"), &early, GgmlDType::F32, "F32");
    for early in [save(&early, "early.safetensors"), path("early.gguf")] {
        let options = PipelineOptions {
            transformer: Some(early),
            late_transformer: Some(late.clone()),
            ..PipelineOptions::default()
        };
        check(&p, &mut p.load(&folder, options), "wan_late", |_| {});
    }
    // Both have a say.
    let options = PipelineOptions {
        transformer: Some(late),
        ..PipelineOptions::default()
    };
    let other = draw(&mut p.load(&folder, options), &request(&p, "wan_late"));
    assert!(apart(&other, &p.picture("wan_late")) > 3);
}

/// LoRAs under all names, for early steps, for late ones, and for both.
#[test]
fn loras_of_videos() {
    let p = Pipelines::of("video");
    let mut pipeline = load(&p, "wan_late");
    let save = |file: &str, prefix: &str, layer: &str| {
        let matrix = |name: &str, shape: &[usize]| super::hashed::weight("lora", name, shape);
        let tensors = Tensors::from([
            (
                format!("{prefix}{layer}.lora_A.weight"),
                matrix("a", &[4, 32]),
            ),
            (
                format!("{prefix}{layer}.lora_B.weight"),
                matrix("b", &[32, 4]),
            ),
        ]);
        let path = p.place().join(file);
        candle_core::safetensors::save(&tensors, &path).unwrap();
        path.display().to_string()
    };
    let mut with = |names: &[String]| {
        let mut request = request(&p, "wan_late");
        request.loras = names
            .iter()
            .map(|name| Lora::new(name.clone(), 1.0))
            .collect();
        draw(&mut pipeline, &request)
    };
    let ours = "blocks.0.attn1.to_q";
    let both = with(&[save("ours.safetensors", "transformer.", ours)]);
    assert!(apart(&both, &p.picture("wan_late")) > 3);
    for (file, prefix, layer) in [
        (
            "theirs.safetensors",
            "diffusion_model.",
            "blocks.0.self_attn.q",
        ),
        ("kohya.safetensors", "lora_unet_", "blocks_0_self_attn_q"),
    ] {
        assert_eq!(with(&[save(file, prefix, layer)]), both, "{file}");
    }
    let early = save("x_high_noise.safetensors", "transformer.", ours);
    let late = save("x_low_noise.safetensors", "transformer.", ours);
    let (of_early, of_late) = (
        with(std::slice::from_ref(&early)),
        with(std::slice::from_ref(&late)),
    );
    assert!(of_early != both && of_late != both && of_early != of_late);
    assert_eq!(with(&[early, late]), both);
    // A name may say it, too.
    let named = save("named.safetensors", "transformer_2.", ours);
    assert_eq!(with(&[named]), of_late);
}
