//! Models whose prompts go through language models, prompt to pixels, against diffusers' pictures:
//! `tests/reference/make_language_pipelines.py` has made them.

use super::common::{go_on, Draw};
use super::small::{apart, Pipelines};
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
