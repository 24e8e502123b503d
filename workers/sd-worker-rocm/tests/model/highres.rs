//! Second passes over larger pictures, against diffusers' two pipelines, and against two requests.

use super::common::{go_on, Draw};
use super::small::{apart, Pipelines};
use super::upscalers::Upscalers;
use image::RgbImage;
use sd_worker_rocm::editing::resample::Resample;
use sd_worker_rocm::editing::resize::Filter;
use sd_worker_rocm::pipeline::{ImageRequest, Init, Pipeline, PipelineOptions};
use sd_worker_rocm::request::highres::{Highres, HighresFields};
use sd_worker_rocm::request::Limits;
use sd_worker_rocm::upscale::{enlarge, Method, Network, Tiling};
use std::ops::ControlFlow;

/// The second pass of diffusers' pictures.
fn second(request: &ImageRequest, method: Method) -> Highres {
    let fields = HighresFields {
        width: Some(72),
        height: Some(48),
        method: Some(method),
        strength: Some(0.5),
        prompt: Some("a blue door".to_string()),
        ..HighresFields::default()
    };
    fields.build(request).unwrap()
}

fn draw(pipeline: &mut Pipeline, request: &ImageRequest) -> RgbImage {
    pipeline.draw(request, &mut go_on).unwrap().images.remove(0)
}

#[test]
fn latents_are_stretched_and_painted_again() {
    let p = Pipelines::of("editing");
    for model in ["edit", "sd3"] {
        let mut pipeline = p.load(&p.folder(model), PipelineOptions::default());
        let name = match model {
            "edit" => "highres",
            _ => "highres_sd3",
        };
        for (kind, resample) in [
            ("bilinear", Resample::Bilinear { antialias: false }),
            ("bicubic", Resample::Bicubic { antialias: false }),
        ] {
            let case = format!("{name}_{kind}");
            let mut request = p.request(&case);
            let highres = second(&request, Method::Latent(resample));
            request.highres = Some(highres.clone());
            let off = apart(&draw(&mut pipeline, &request), &p.picture(&case));
            assert!(off <= 1, "{case}: {off}");
            request.highres = Some(Highres {
                method: Method::Latent(Resample::NearestExact),
                ..highres
            });
            let off = apart(&draw(&mut pipeline, &request), &p.picture(&case));
            assert!(off > 3, "{case}: the way hardly matters ({off})");
        }
    }
}

#[test]
fn pictures_are_enlarged_and_painted_again() {
    let p = Pipelines::of("editing");
    let u = Upscalers::open();
    let mut pipeline = p.load(&p.folder("edit"), PipelineOptions::default());
    let first = p.request("highres_bilinear");
    let small = draw(&mut pipeline, &first);
    let file = u.file("compact_2x");
    let mut network = Network::open(&file, pipeline.device()).unwrap();
    for method in [Method::Pixels(Filter::Bicubic), Method::Network(file)] {
        let highres = second(&first, method.clone());
        let request = ImageRequest {
            highres: Some(highres.clone()),
            ..first.clone()
        };
        let mut steps = Vec::new();
        let request = request.valid(pipeline.info(), &Limits::LOCAL).unwrap();
        let drawn = pipeline.generate(&request, &mut |told| {
            steps.push((told.step, told.total));
            ControlFlow::Continue(())
        });
        let drawn = drawn.unwrap().images.remove(0);
        // Four steps, then half of four.
        assert!(
            steps.is_sorted() && steps.iter().all(|(_, total)| *total == 6),
            "{steps:?}"
        );
        assert_eq!(steps.last(), Some(&(6, 6)));

        let tiling = Tiling::default();
        let (way, filter) = match &method {
            Method::Pixels(filter) => (None, *filter),
            _ => (Some((&mut network, &tiling)), Filter::Lanczos),
        };
        let larger = enlarge(&small, way, filter, (72, 48), &mut |_, _| {
            ControlFlow::Continue(())
        });
        let by_hand = ImageRequest {
            init: Some(Init::new(larger.unwrap().unwrap(), 0.5)),
            ..highres.request(&first)
        };
        assert_eq!(apart(&draw(&mut pipeline, &by_hand), &drawn), 0);
    }
}

#[test]
fn second_passes_are_checked_as_the_first() {
    let p = Pipelines::of("editing");
    let pipeline = p.load(&p.folder("edit"), PipelineOptions::default());
    let first = p.request("highres_bilinear");
    let refused = |change: &dyn Fn(&mut ImageRequest, &mut Highres)| {
        let mut request = first.clone();
        let mut highres = second(&first, Method::Pixels(Filter::Box));
        change(&mut request, &mut highres);
        request.highres = Some(highres);
        request
            .valid(pipeline.info(), &Limits::LOCAL)
            .unwrap_err()
            .to_string()
    };
    let text = refused(&|_, highres| highres.width = 1 << 20);
    assert!(text.contains("second pass: width"), "{text}");
    let text = refused(&|_, highres| highres.steps = 0);
    assert!(text.contains("second pass: steps"), "{text}");
    let text = refused(&|_, highres| highres.strength = 1.5);
    assert!(text.contains("strength"), "{text}");
    let text = refused(&|request, _| request.init = Some(Init::new(p.picture("start"), 0.5)));
    assert!(text.contains("from text"), "{text}");
}
