//! Perturbed-attention guidance of transformers, against diffusers: `tests/reference/make_perturbed.py` has made the
//! pictures.

use super::common::{go_on, Draw};
use super::small::{apart, Pipelines};
use sd_worker_rocm::pipeline::PipelineOptions;

#[test]
fn pictures_that_do_not_see_themselves() {
    let models = Pipelines::of("perturbed");
    let mut pipeline = models.load(&models.folder("sd3"), PipelineOptions::default());
    for (case, layers, scale) in [
        // The middle one of three.
        ("middle", vec![], 3.0),
        ("middle", vec!["blocks.1"], 3.0),
        ("two", vec!["transformer_blocks.0", "2"], 3.0),
        ("strong", vec!["blocks.1"], 9.0),
    ] {
        models.check_with(&mut pipeline, case, |request| {
            let guidance = &mut request.tuning.guidance;
            guidance.pag_scale = Some(scale);
            guidance.pag_layers = layers.iter().map(|layer| layer.to_string()).collect();
        });
    }
    assert!(apart(&models.picture("middle"), &models.picture("two")) > 3);
    let request = models.request("middle");
    let plain = pipeline
        .draw(&request, &mut go_on)
        .unwrap()
        .images
        .remove(0);
    assert!(apart(&plain, &models.picture("middle")) > 3);
    for layer in ["blocks.3", "mid", ""] {
        let mut request = models.request("middle");
        request.tuning.guidance.pag_scale = Some(1.0);
        request.tuning.guidance.pag_layers = vec![layer.to_string()];
        let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
        assert!(error.contains("pag_layers"), "{error}");
    }
}
