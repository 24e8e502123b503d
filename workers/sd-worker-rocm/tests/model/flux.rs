//! FLUX.1's variants against diffusers' pictures: schedules, guidance by a negative prompt, Kontext, Depth and Canny,
//! Fill, Chroma.

use super::common::{device, go_on, Draw};
use super::pipelines::{originals, with_transformer, write_gguf};
use super::small::{apart, Pipelines};
use candle_core::quantized::GgmlDType;
use sd_worker_rocm::info::ModelInfo;
use sd_worker_rocm::pipeline::{ImageRequest, Init, Pipeline, PipelineOptions};
use sd_worker_rocm::request::{IpAdapter, Limits};

fn open(p: &Pipelines, model: &str) -> Pipeline {
    p.load(&p.folder(model), PipelineOptions::default())
}

/// How far a request's picture is from a case's.
fn off(p: &Pipelines, pipeline: &mut Pipeline, case: &str, request: &ImageRequest) -> u8 {
    let picture = pipeline.draw(request, &mut go_on).unwrap().images.remove(0);
    apart(&picture, &p.picture(case))
}

fn refused(request: ImageRequest, info: &ModelInfo) -> String {
    request.valid(info, &Limits::LOCAL).unwrap_err().to_string()
}

#[test]
fn a_negative_prompt_beside_the_condition() {
    let p = Pipelines::of("flux");
    let mut pipeline = open(&p, "dev");
    p.check_with(&mut pipeline, "true_cfg", |request| {
        request.true_guidance = 2.5;
    });
    let mut request = p.request("true_cfg");
    assert!(off(&p, &mut pipeline, "true_cfg", &request) > 3);
    request.true_guidance = 2.5;
    request.negative_prompt = "a green house".to_string();
    assert!(off(&p, &mut pipeline, "true_cfg", &request) > 3);
}

#[test]
fn brackets_are_text_unless_they_are_to_be_weights() {
    let p = Pipelines::of("flux");
    let mut pipeline = open(&p, "dev");
    p.check_with(&mut pipeline, "brackets", |_| ());
    p.check_with(&mut pipeline, "weights", |request| {
        request.prompt_weights = Some(true);
    });
    let request = p.request("weights");
    assert!(off(&p, &mut pipeline, "weights", &request) > 3);
    // Weights of 1 are none.
    let mut request = ImageRequest {
        prompt: request.prompt.replace(":3.0", ":1.0"),
        prompt_weights: Some(true),
        ..request
    };
    assert!(off(&p, &mut pipeline, "weights", &request) > 3);
    let weighted = pipeline
        .draw(&request, &mut go_on)
        .unwrap()
        .images
        .remove(0);
    request.prompt = request.prompt.replace(['(', ')'], "").replace(":1.0", "");
    request.prompt_weights = None;
    let plain = pipeline
        .draw(&request, &mut go_on)
        .unwrap()
        .images
        .remove(0);
    assert_eq!(apart(&weighted, &plain), 0);
}

#[test]
fn redux_makes_prompts_of_pictures() {
    let p = Pipelines::of("flux");
    let mut pipeline = open(&p, "dev");
    let folder = p.folder("redux");
    let adapter = |picture: &str, strength| IpAdapter {
        strength,
        ..IpAdapter::new(folder.clone(), vec![p.picture(picture)])
    };
    let two = [adapter("redux_one", 0.7), adapter("redux_other", 0.5)];
    for (case, adapters) in [
        ("redux", vec![adapter("redux_one", 1.0)]),
        ("redux_two", two.to_vec()),
    ] {
        let mut request = p.request(case);
        request.ip_adapters = adapters;
        let off = off(&p, &mut pipeline, case, &request);
        assert!(off <= 1, "{case}: {off}");
    }
    let mut request = p.request("redux_two");
    for others in [
        vec![],
        vec![adapter("redux_one", 0.7), adapter("redux_other", 0.9)],
    ] {
        request.ip_adapters = others;
        assert!(off(&p, &mut pipeline, "redux_two", &request) > 1);
    }
    let mut masked = adapter("redux_one", 1.0);
    masked.mask = Some(image::GrayImage::new(8, 8));
    request.ip_adapters = vec![masked];
    let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
    assert!(error.contains("masks"), "{error}");
    request.ip_adapters = vec![IpAdapter::new(
        p.folder("dev"),
        vec![p.picture("redux_one")],
    )];
    let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
    assert!(error.contains("image_encoder"), "{error}");

    // The layers as a file of their own, which needs the encoder's folder.
    let file = p.place().join("redux.safetensors");
    let layers = "image_embedder/diffusion_pytorch_model.safetensors";
    candle_core::safetensors::save(&p.weights("redux", layers), &file).unwrap();
    let mut request = p.request("redux");
    request.ip_adapters = vec![IpAdapter::new(file, vec![p.picture("redux_one")])];
    let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
    assert!(error.contains("--image-encoder"), "{error}");
    let preparation = "preprocessor_config.json";
    let encoder = folder.join("image_encoder");
    let from = folder.join("feature_extractor").join(preparation);
    std::fs::copy(from, encoder.join(preparation)).unwrap();
    let options = PipelineOptions {
        image_encoder: Some(encoder),
        ..PipelineOptions::default()
    };
    let mut pipeline = p.load(&p.folder("dev"), options);
    let off = off(&p, &mut pipeline, "redux", &request);
    assert!(off <= 1, "{off}");
}

#[test]
fn every_schedule_of_schnell() {
    let mut p = Pipelines::of("flux");
    let mut seen = Vec::new();
    for case in [
        "plain",
        "karras",
        "exponential",
        "beta",
        "shifted",
        "dynamic",
    ] {
        let case = format!("schnell_{case}");
        let scheduler = p.case(&case)["scheduler"].clone();
        p.alter("schnell", |about| {
            about["files"]["scheduler/scheduler_config.json"] = scheduler.clone();
        });
        let folder = p.folder("schnell");
        let mut pipeline = p.load(&folder, PipelineOptions::default());
        let schedule = pipeline.info().defaults.schedule;
        let request = ImageRequest {
            schedule,
            ..p.request(&case)
        };
        let picture = pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0);
        let off = apart(&picture, &p.picture(&case));
        assert!(off <= 1, "{case}: {off}");
        assert!(
            seen.iter().all(|other| apart(other, &picture) > 1),
            "{case}"
        );
        seen.push(picture);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn kontext_looks_at_pictures() {
    let p = Pipelines::of("flux");
    let mut pipeline = open(&p, "kontext");
    let reference = p.picture("reference");
    let small = image::imageops::crop_imm(&reference, 0, 0, 32, 24).to_image();
    for (case, picture) in [("kontext", &reference), ("kontext_small", &small)] {
        p.check_with(&mut pipeline, case, |request| {
            request.references = vec![picture.clone()];
            request.keep_reference_size = true;
        });
    }
    let request = |references| ImageRequest {
        references,
        keep_reference_size: true,
        ..p.request("kontext")
    };
    for other in [
        vec![],
        vec![p.picture("depth")],
        vec![reference.clone(), small],
    ] {
        let count = other.len();
        let off = off(&p, &mut pipeline, "kontext", &request(other));
        assert!(off > 1, "{count}: {off}");
    }
    let error = refused(request(vec![reference; 9]), pipeline.info());
    assert!(error.contains("0 to 8"), "{error}");
}

#[test]
fn depth_and_canny_look_at_one_picture() {
    let p = Pipelines::of("flux");
    let mut pipeline = open(&p, "control");
    p.check_with(&mut pipeline, "control", |request| {
        request.references = vec![p.picture("depth")];
    });
    let mut request = p.request("control");
    let error = refused(request.clone(), pipeline.info());
    assert!(error.contains("1 to 1"), "{error}");
    request.references = vec![p.picture("reference")];
    assert!(off(&p, &mut pipeline, "control", &request) > 3);
    pipeline.warm_up().unwrap();
}

#[test]
fn fill_sees_the_mask() {
    let p = Pipelines::of("flux");
    let mut pipeline = open(&p, "fill");
    let inside = |x, y| x >= 24 && y >= 4;
    let mask = |inside: &dyn Fn(u32, u32) -> bool| {
        image::GrayImage::from_fn(48, 32, |x, y| image::Luma([255 * u8::from(inside(x, y))]))
    };
    let with = |mask: image::GrayImage| {
        let image = p.picture("start");
        move |request: &mut ImageRequest| {
            request.init = Some(Init {
                mask: Some(mask.clone()),
                ..Init::new(image.clone(), 1.0)
            });
        }
    };
    p.check_with(&mut pipeline, "fill", with(mask(&inside)));
    let mut request = p.request("fill");
    with(mask(&|x, y| x >= 22 && y >= 4))(&mut request);
    assert!(off(&p, &mut pipeline, "fill", &request) > 3);
}

#[test]
fn chroma_reads_its_text_alone() {
    let p = Pipelines::of("flux");
    let mut pipeline = open(&p, "chroma");
    p.check_with(&mut pipeline, "chroma", |_| ());
    p.check_with(&mut pipeline, "chroma_unguided", |_| ());
    let mut request = p.request("chroma");
    request.negative_prompt = "a green house".to_string();
    assert!(off(&p, &mut pipeline, "chroma", &request) > 3);
    request.true_guidance = 2.0;
    let error = refused(request, pipeline.info());
    assert!(error.contains("guidance_scale"), "{error}");
}

/// Each variant's transformer under the originals' names, in safetensors and GGUF.
#[test]
fn transformers_of_their_own() {
    let p = Pipelines::of("flux");
    let pictures = |request: &mut ImageRequest, case: &str| match case {
        "control" => request.references = vec![p.picture("depth")],
        "kontext" => {
            request.references = vec![p.picture("reference")];
            request.keep_reference_size = true;
        }
        _ => {}
    };
    for case in ["kontext", "control", "chroma"] {
        let tensors = originals(&p, case);
        let path = p.place().join(format!("{case}.safetensors"));
        candle_core::safetensors::save(&tensors, &path).unwrap();
        let gguf = p.place().join(format!("{case}.gguf"));
        write_gguf(&gguf, &tensors, GgmlDType::F32, "F32");
        for path in [path, gguf] {
            let mut pipeline = p.load(&p.folder(case), with_transformer(&path));
            p.check_with(&mut pipeline, case, |request| pictures(request, case));
        }
    }
    // Chroma's has FLUX.1's blocks, and is another family's.
    let path = p.place().join("chroma.safetensors");
    let loaded = Pipeline::load(
        &p.folder("kontext"),
        &device(),
        with_transformer(&path),
        &mut |_| {},
    );
    let error = loaded.err().unwrap().to_string();
    assert!(error.contains("a transformer of Chroma"), "{error}");
}

#[test]
fn what_looks_at_nothing_refuses_pictures() {
    let p = Pipelines::of("flux");
    let pipeline = open(&p, "dev");
    let mut request = p.request("true_cfg");
    request.references = vec![p.picture("reference")];
    let error = refused(request, pipeline.info());
    assert!(error.contains("does not look at pictures"), "{error}");
}
