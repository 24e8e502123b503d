//! Videos of whole models, prompt and pictures to frames, against diffusers': `tests/reference/make_video.py` has made
//! them.

use super::common::{go_on, Draw};
use super::small::{apart, Pipelines};
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder, DynamicImage, RgbImage};
use sd_worker_rocm::pipeline::{Generated, ImageRequest, Pipeline, PipelineOptions};
use sd_worker_rocm::request::VideoRequest;
use sd_worker_rocm::video::VideoFormat;
use std::io::Cursor;
use std::ops::ControlFlow;

/// What diffusers was asked for, as a file that keeps every pixel.
fn request(p: &Pipelines, case: &str) -> ImageRequest {
    let number = |key: &str| p.asked(case)[key].as_f64();
    ImageRequest {
        video: Some(VideoRequest {
            frames: number("frames").unwrap() as usize,
            fps: 16,
            first: None,
            last: None,
            late_guidance: number("guidance_scale_2"),
            format: VideoFormat::WebP,
        }),
        ..p.request(case)
    }
}

fn ends(request: &mut ImageRequest, first: &RgbImage, last: Option<&RgbImage>) {
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

fn draw(pipeline: &mut Pipeline, request: &ImageRequest) -> RgbImage {
    stacked(&pipeline.draw(request, &mut go_on).unwrap())
}

/// Makes a case's video and compares every frame; another prompt must give others.
fn check(p: &Pipelines, pipeline: &mut Pipeline, case: &str, change: impl Fn(&mut ImageRequest)) {
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

fn load(p: &Pipelines, model: &str) -> Pipeline {
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
