//! Small models, written to a folder as diffusers writes them: the scripts `make_*.py` in `tests/reference` say what they
//! are, a group of models each.

use super::common::{device, file, go_on, tensors, Draw};
use super::hashed::weight;
use candle_core::Tensor;
use image::RgbImage;
use sd_worker_rocm::pipeline::{ImageRequest, Pipeline, PipelineOptions, Precision};
use sd_worker_rocm::rng::RngKind;
use sd_worker_rocm::sampling::{Sampler, Schedule};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The models.
pub struct Pipelines {
    about: Value,
    pictures: HashMap<String, Tensor>,
    place: tempfile::TempDir,
}

impl Pipelines {
    /// The models of the first families.
    pub fn open() -> Self {
        Self::of("pipelines")
    }

    /// A group of models.
    pub fn of(group: &str) -> Self {
        let about = format!("tests/fixtures/pipelines/{group}.json");
        let json = std::fs::read(file(&about)).unwrap();
        Self {
            about: serde_json::from_slice(&json).unwrap(),
            pictures: tensors(&format!("tests/fixtures/pipelines/{group}.safetensors")),
            place: tempfile::tempdir().unwrap(),
        }
    }

    /// Changes what a model is, before it is written.
    pub fn alter(&mut self, model: &str, change: impl Fn(&mut Value)) {
        change(&mut self.about["models"][model]);
    }

    /// Where the folders are.
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// The folder of a model.
    pub fn folder(&self, model: &str) -> PathBuf {
        let folder = self.place.path().join(model);
        if folder.exists() {
            return folder;
        }
        let about = &self.about["models"][model];
        let at = |name: &str| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        let entries = |key: &str| about[key].as_object().unwrap().iter();
        for (name, content) in entries("files") {
            std::fs::write(at(name), content.to_string()).unwrap();
        }
        for (name, kind) in entries("tokenizers") {
            let tokenizer = &self.about["tokenizers"][kind.as_str().unwrap()];
            std::fs::write(at(name), tokenizer.to_string()).unwrap();
        }
        for (name, _) in entries("weights") {
            candle_core::safetensors::save(&self.weights(model, name), at(name)).unwrap();
        }
        folder
    }

    /// The tensors of one of a model's files.
    pub fn weights(&self, model: &str, name: &str) -> HashMap<String, Tensor> {
        let about = &self.about["models"][model]["weights"][name];
        let prefix = about["prefix"].as_str().unwrap();
        let shapes = about["shapes"].as_object().unwrap();
        shapes
            .iter()
            .map(|(tensor, shape)| {
                let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
                (tensor.clone(), weight(prefix, tensor, &shape))
            })
            .collect()
    }

    /// What is said of a case.
    pub fn case(&self, case: &str) -> &Value {
        &self.about["cases"][case]
    }

    /// Numbers that were kept.
    pub fn numbers(&self, name: &str) -> &Tensor {
        &self.pictures[name]
    }

    pub fn picture(&self, name: &str) -> RgbImage {
        let tensor = &self.pictures[name];
        let (height, width, _) = tensor.dims3().unwrap();
        let bytes = tensor.flatten_all().unwrap().to_vec1().unwrap();
        RgbImage::from_raw(width as u32, height as u32, bytes).unwrap()
    }

    /// What diffusers was asked for, as the script has it.
    pub fn asked(&self, case: &str) -> &Value {
        &self.about["cases"][case]["request"]
    }

    /// What diffusers was asked for.
    pub fn request(&self, case: &str) -> ImageRequest {
        let about = self.asked(case);
        let number = |key: &str| about[key].as_u64().unwrap() as usize;
        let text = |key: &str| about[key].as_str().unwrap().to_string();
        ImageRequest {
            prompt: text("prompt"),
            negative_prompt: text("negative_prompt"),
            width: number("width"),
            height: number("height"),
            steps: number("steps"),
            guidance: about["guidance"].as_f64().unwrap(),
            sampler: Sampler::from_name(&text("sampler")).unwrap(),
            schedule: Some(Schedule::Discrete),
            seed: number("seed") as u64,
            rng: RngKind::TorchCpu,
            ..ImageRequest::default()
        }
    }

    /// A model in f32.
    pub fn load(&self, path: &Path, options: PipelineOptions) -> Pipeline {
        let options = PipelineOptions {
            precision: Precision::F32,
            ..options
        };
        Pipeline::load(path, &device(), options, &mut |_| {}).unwrap()
    }

    /// Draws a case's picture and compares it; another prompt must give another picture.
    pub fn check(&self, case: &str, change: impl Fn(&mut ImageRequest)) {
        let model = self.about["cases"][case]["model"].as_str().unwrap();
        let mut pipeline = self.load(&self.folder(model), PipelineOptions::default());
        self.check_with(&mut pipeline, case, change);
    }

    pub fn check_with(
        &self,
        pipeline: &mut Pipeline,
        case: &str,
        change: impl Fn(&mut ImageRequest),
    ) {
        let mut request = self.request(case);
        change(&mut request);
        let mut draw =
            |request: &ImageRequest| pipeline.draw(request, &mut go_on).unwrap().images.remove(0);
        let apart = apart(&draw(&request), &self.picture(case));
        assert!(apart <= 1, "{case}: {apart}");
        request.prompt = "a blue sea".to_string();
        let other = self::apart(&draw(&request), &self.picture(case));
        assert!(other > 3, "{case}: the prompt hardly matters ({other})");
    }
}

impl Pipelines {
    /// Draws what must not be a case's picture: an option that is followed matters.
    pub fn differs(&self, pipeline: &mut Pipeline, case: &str, change: impl Fn(&mut ImageRequest)) {
        let mut request = self.request(case);
        change(&mut request);
        let image = pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0);
        let apart = apart(&image, &self.picture(case));
        assert!(
            apart > 3,
            "{case}: what was changed hardly matters ({apart})"
        );
    }
}

/// Largest difference of two pictures' bytes.
pub fn apart(a: &RgbImage, b: &RgbImage) -> u8 {
    assert_eq!(a.dimensions(), b.dimensions());
    let bytes = a.as_raw().iter().zip(b.as_raw());
    bytes.map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}
