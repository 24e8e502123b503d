//! Transformers of every family in 8-bit floats, against the numbers that they stand for.

use super::common::{go_on, Draw};
use super::small::{apart, Pipelines};
use super::stored::{save, stored, Stored};
use sd_worker_rocm::pipeline::PipelineOptions;
use sd_worker_rocm::weights::Weights;

#[test]
fn every_family_reads_8_bits() {
    for (group, model, case) in [
        ("flux", "chroma", "chroma"),
        ("flux2", "klein", "klein"),
        ("language_pipelines", "qwen_image", "qwen_image"),
        ("language_pipelines", "lumina2", "lumina2"),
        ("language_pipelines", "hidream", "hidream"),
        ("video", "wan", "wan_one"),
        ("ltx", "ltx", "ltx"),
        ("sana", "sana_b", "sana"),
    ] {
        let p = Pipelines::of(group);
        let file = "transformer/diffusion_pytorch_model.safetensors";
        let (eight, metadata, numbers) = stored(&p.weights(model, file), Stored::ComfyOld);
        let path = |name: &str| p.place().join(format!("{name}.safetensors"));
        save(&path("eight"), &eight, &metadata);
        candle_core::safetensors::save(&numbers, path("numbers")).unwrap();
        let draw = |name: &str| {
            let options = PipelineOptions {
                transformer: Some(path(name)),
                ..PipelineOptions::default()
            };
            let mut request = p.request(case);
            request.steps = 1;
            let mut pipeline = p.load(&p.folder(model), options);
            pipeline
                .draw(&request, &mut go_on)
                .unwrap()
                .images
                .remove(0)
        };
        // Some become wider numbers: these models are small.
        let opened = Weights::open(&path("eight")).unwrap();
        let (stay, wider) = opened.small().unwrap();
        assert!(stay + wider > 10, "{model}: {stay} and {wider}");
        let (expected, drawn) = (draw("numbers"), draw("eight"));
        let off = apart(&drawn, &expected);
        assert!(off <= 1, "{model}: {off}");
    }
}
