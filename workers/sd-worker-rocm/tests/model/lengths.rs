//! Guidance whose predictions keep a length, against diffusers' pictures: `tests/reference/make_lengths.py` has made them.

use super::small::Pipelines;
use sd_worker_rocm::pipeline::PipelineOptions;

#[test]
fn rows_of_lumina() {
    let p = Pipelines::of("lengths");
    let load = |model: &str| p.load(&p.folder(model), PipelineOptions::default());
    let mut lumina = load("lumina2");
    p.check_with(&mut lumina, "lumina2_free", |request| {
        request.tuning.guidance.guidance_norm = Some(0.0);
    });
    p.differs(&mut lumina, "lumina2_free", |_| {});
    p.check_with(&mut lumina, "lumina2_part", |request| {
        request.tuning.guidance.guidance_end = Some(0.4);
    });
    p.differs(&mut lumina, "lumina2_part", |_| {});
}

#[test]
fn whole_pictures_of_z_image() {
    let p = Pipelines::of("lengths");
    let mut z_image = p.load(&p.folder("z_image"), PipelineOptions::default());
    p.check_with(&mut z_image, "z_image_far", |_| {});
    p.check_with(&mut z_image, "z_image_normed", |request| {
        request.tuning.guidance.guidance_norm = Some(0.8);
    });
    p.differs(&mut z_image, "z_image_normed", |_| {});
}
