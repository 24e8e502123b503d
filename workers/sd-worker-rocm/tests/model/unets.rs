//! UNets of other kinds, prompt to pixels, against diffusers' pictures: `tests/reference/make_unets.py` has made them.

use super::common::{go_on, Draw};
use super::small::Pipelines;
use sd_worker_rocm::pipeline::{ImageRequest, Init, MicroConditions, Pipeline, PipelineOptions};
use sd_worker_rocm::request::Limits;

fn as_it_is(_: &mut ImageRequest) {}

fn start(p: &Pipelines, strength: f64) -> Option<Init> {
    Some(Init::new(p.picture("start"), strength))
}

#[test]
fn a_refiner_takes_over() {
    let p = Pipelines::of("unets");
    let options = PipelineOptions {
        refiner: Some(p.folder("refiner")),
        ..PipelineOptions::default()
    };
    let mut pipeline = p.load(&p.folder("base"), options);
    let from = |start| move |request: &mut ImageRequest| request.refiner_start = Some(start);
    p.check_with(&mut pipeline, "refined", from(0.3));
    p.check_with(&mut pipeline, "refined_scored", |request| {
        request.refiner_start = Some(0.3);
        request.micro.aesthetic_score = 9.0;
        request.micro.negative_aesthetic_score = 1.0;
    });
    p.check_with(&mut pipeline, "refined_multistep", from(0.5));
    p.differs(&mut pipeline, "refined", from(0.7));
    // Without one: the model alone.
    p.check_with(&mut pipeline, "told", |request| {
        request.refiner_start = Some(1.0);
        request.micro = told();
    });
    let steps = |start: Option<f64>| {
        let mut request = p.request("refined");
        request.refiner_start = start;
        let mut told = Vec::new();
        let mut progress = |progress: sd_worker_rocm::pipeline::Progress| {
            told.push((progress.step, progress.total));
            std::ops::ControlFlow::Continue(())
        };
        let mut pipeline = p.load(
            &p.folder("base"),
            PipelineOptions {
                refiner: Some(p.folder("refiner")),
                offload: true,
                ..PipelineOptions::default()
            },
        );
        pipeline.draw(&request, &mut progress).unwrap();
        told
    };
    let told = steps(None);
    assert!(told.is_sorted(), "{told:?}");
    assert_eq!(told.last(), Some(&(5, 5)));
}

fn told() -> MicroConditions {
    MicroConditions {
        original_size: Some((70, 20)),
        crop: (9, 5),
        target_size: Some((40, 64)),
        ..MicroConditions::default()
    }
}

#[test]
fn sizes_that_xl_is_told() {
    let p = Pipelines::of("unets");
    let mut pipeline = p.load(&p.folder("base"), PipelineOptions::default());
    p.check_with(&mut pipeline, "told", |request| request.micro = told());
    p.differs(&mut pipeline, "told", as_it_is);
}

/// EDM's noise, and an autoencoder with statistics of its latents.
#[test]
fn playground_2_5() {
    let p = Pipelines::of("unets");
    p.check("playground", |request| request.schedule = None);
}

#[test]
fn a_refiner_alone() {
    let p = Pipelines::of("unets");
    p.check("refiner_alone", |request| request.init = start(&p, 0.6));
}

#[test]
fn pictures_changed_as_instructed() {
    let p = Pipelines::of("unets");
    let mut pipeline = p.load(&p.folder("instruct"), PipelineOptions::default());
    p.check_with(&mut pipeline, "instruct", |r| r.init = start(&p, 1.0));
    p.check_with(&mut pipeline, "instruct_plain", |r| r.init = start(&p, 1.0));
    p.check_with(&mut pipeline, "instruct_close", |r| {
        r.init = start(&p, 1.0);
        r.image_guidance = Some(3.0);
    });
    p.differs(&mut pipeline, "instruct", |r| {
        r.init = start(&p, 1.0);
        r.image_guidance = Some(1.0);
    });
    p.differs(&mut pipeline, "instruct", |r| r.init = start(&p, 0.5));
    let without = pipeline.draw(&p.request("instruct"), &mut go_on);
    assert!(without
        .unwrap_err()
        .to_string()
        .contains("give the picture"));
    assert_eq!(pipeline.info().defaults.strength, Some(1.0));
    pipeline.warm_up_in_turn().unwrap();
    // Halves one after the other come to the same.
    let place = sd_worker_rocm::pipeline::Placement {
        guidance: sd_worker_rocm::pipeline::GuidancePlace::InTurn,
        ..(&super::common::device()).into()
    };
    let mut in_turn = Pipeline::load(
        &p.folder("instruct"),
        place,
        PipelineOptions {
            precision: sd_worker_rocm::pipeline::Precision::F32,
            ..PipelineOptions::default()
        },
        &mut |_| {},
    )
    .unwrap();
    p.check_with(&mut in_turn, "instruct", |r| r.init = start(&p, 1.0));
}

#[test]
fn pictures_changed_as_instructed_by_xl() {
    let p = Pipelines::of("unets");
    p.check("instruct_xl", |request| request.init = start(&p, 1.0));
    p.check("instruct_cosxl", |request| request.init = start(&p, 1.0));
}

#[test]
fn pictures_that_depths_shape() {
    let p = Pipelines::of("unets");
    let mut pipeline = p.load(&p.folder("depth"), PipelineOptions::default());
    let with = |depth: image::RgbImage| {
        let init = start(&p, 0.8);
        move |request: &mut ImageRequest| {
            request.init = init.clone();
            request.depth = Some(depth.clone());
        }
    };
    p.check_with(&mut pipeline, "depth", with(p.picture("depths")));
    p.differs(&mut pipeline, "depth", with(p.picture("start")));
    let error = pipeline.draw(&p.request("depth"), &mut go_on).unwrap_err();
    assert!(error.to_string().contains("--depth-image"), "{error}");
    pipeline.warm_up().unwrap();
}

#[test]
fn options_of_other_models_are_refused_by_name() {
    let p = Pipelines::of("unets");
    let pipeline = p.load(&p.folder("base"), PipelineOptions::default());
    let refused = |field: &str, change: &dyn Fn(&mut ImageRequest)| {
        let mut request = p.request("told");
        change(&mut request);
        let error = request.valid(pipeline.info(), &Limits::LOCAL).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    };
    refused("image_guidance", &|r| r.image_guidance = Some(2.0));
    refused("depth_image", &|r| r.depth = Some(p.picture("depths")));
    refused("refiner_start", &|r| r.refiner_start = Some(0.5));
    refused("refiner_start", &|r| r.refiner_start = Some(f64::NAN));
    refused("aesthetic_score", &|r| r.micro.aesthetic_score = 11.0);
    refused("original_size", &|r| {
        r.micro.original_size = Some((usize::MAX, 1));
    });
}
