//! Models whose prompts go through language models, prompt to pixels, against diffusers' pictures:
//! `tests/reference/make_language_pipelines.py` has made them.

use super::common::{go_on, Draw};
use super::small::{apart, Pipelines};
use image::RgbImage;
use sd_worker_rocm::pipeline::{ImageRequest, PipelineOptions};

fn as_it_is(_: &mut ImageRequest) {}

#[test]
fn qwen_image_with_and_without_guidance() {
    let p = Pipelines::of("language_pipelines");
    p.check("qwen_image", as_it_is);
    // Without guidance the small network hardly hears the prompt; it must still not hear the negative one.
    let mut pipeline = p.load(&p.folder("qwen_image"), PipelineOptions::default());
    let mut request = p.request("qwen_image_plain");
    request.negative_prompt = "green".to_string();
    let plain = pipeline
        .draw(&request, &mut go_on)
        .unwrap()
        .images
        .remove(0);
    assert!(apart(&plain, &p.picture("qwen_image_plain")) <= 1);
    assert!(apart(&plain, &p.picture("qwen_image")) > 3);
}

#[test]
fn lumina_2() {
    let p = Pipelines::of("language_pipelines");
    p.check("lumina2", as_it_is);
}

#[test]
fn qwen_image_edit_looks_at_pictures() {
    let p = Pipelines::of("language_pipelines");
    let (start, other) = (p.picture("start"), p.picture("other"));
    let looking = |pictures: &[RgbImage]| {
        let references = pictures.to_vec();
        move |request: &mut ImageRequest| {
            request.references = references.clone();
            request.keep_reference_size = true;
        }
    };
    let both = [start.clone(), other.clone()];
    for (case, pictures) in [
        ("qwen_image_edit", &both[..1]),
        ("qwen_image_edit_plus", &both[..]),
        ("qwen_image_edit_still", &both[..1]),
    ] {
        let mut pipeline = p.load(&p.folder(case), PipelineOptions::default());
        p.check_with(&mut pipeline, case, looking(pictures));
        let mut request = p.request(case);
        looking(std::slice::from_ref(&other))(&mut request);
        let changed = pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0);
        let off = apart(&changed, &p.picture(case));
        assert!(off > 3, "{case}: what is looked at hardly matters ({off})");
        request.prompt = "a <|image_pad|>".to_string();
        let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
        assert!(error.contains("token for pictures"), "{error}");
        request.references.clear();
        let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
        assert!(error.contains("references"), "{error}");
    }
}

#[test]
fn hidream() {
    let p = Pipelines::of("language_pipelines");
    p.check("hidream", as_it_is);
}
