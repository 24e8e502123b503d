//! Networks for faces with small random weights, as files: those that `tests/reference/make_faces.py` computed with.

use super::common::{device, difference, file, tensors};
use super::hashed::{uniform, weight};
use candle_core::{DType, Device, Tensor};
use image::RgbImage;
use sd_worker_rocm::models::VarBuilder;
use sd_worker_rocm::weights::Weights;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The networks of the script, and what it made with them.
pub struct Made {
    pub about: serde_json::Value,
    pub outputs: HashMap<String, Tensor>,
    place: tempfile::TempDir,
}

impl Made {
    pub fn open() -> Self {
        let json = std::fs::read(file("tests/fixtures/networks/faces.json")).unwrap();
        Self {
            about: serde_json::from_slice(&json).unwrap(),
            outputs: tensors("tests/fixtures/networks/faces.safetensors"),
            place: tempfile::tempdir().unwrap(),
        }
    }

    pub fn tensors(&self, name: &str) -> HashMap<String, Tensor> {
        let shapes = self.about[name]["shapes"].as_object().unwrap();
        let tensors = shapes.iter().map(|(tensor, shape)| {
            let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
            let made = match tensor.contains(".noises.") {
                true => self.uniform(&format!("{name}.{tensor}"), &shape),
                false => weight(name, tensor, &shape),
            };
            (tensor.clone(), made)
        });
        tensors.collect()
    }

    pub fn uniform(&self, name: &str, shape: &[usize]) -> Tensor {
        let values = uniform(name, shape.iter().product());
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    pub fn write(&self, name: &str, tensors: &HashMap<String, Tensor>) -> PathBuf {
        let path = self.place.path().join(format!("{name}.safetensors"));
        candle_core::safetensors::save(tensors, &path).unwrap();
        path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.write(name, &self.tensors(name))
    }

    /// Where files are written.
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// A detector that is sure of a face at each of the largest places, which are 32 pixels apart: some 15 pixels between
    /// the eyes, to the left and right of its middle. So no network has weights.
    pub fn sure_detector(&self) -> HashMap<String, Tensor> {
        let mut detector = self.tensors("residual");
        for (name, tensor) in &mut detector {
            if name.contains("Head.") {
                *tensor = tensor.zeros_like().unwrap();
            }
        }
        let face = [-0.3f32, -0.2, 0.3, -0.2, 0.0, 0.0, -0.3, 0.3, 0.3, 0.3];
        set(
            &mut detector,
            "LandmarkHead.2.conv1x1.bias",
            &[face, face].concat(),
        );
        // The largest places, of 256 pixels; others are never sure.
        set(
            &mut detector,
            "ClassHead.2.conv1x1.bias",
            &[0.0, 9.0, 9.0, 0.0],
        );
        let sized = -5.0 * (256f32 / 30.0).ln();
        set(
            &mut detector,
            "BboxHead.2.conv1x1.bias",
            &[0.0, 0.0, sized, sized, 0.0, 0.0, sized, sized],
        );
        detector
    }

    pub fn weights(&self, name: &str) -> (Weights, VarBuilder) {
        let weights = Weights::open(&self.file(name)).unwrap();
        let loaded = weights.load_all(DType::F32, &device()).unwrap();
        let vb = VarBuilder::from_tensors(loaded, DType::F32, &device());
        (weights, vb)
    }

    pub fn same(&self, name: &str, output: &Tensor, allowed: f32) {
        let off = difference(output, &self.outputs[name]);
        assert!(off < allowed, "{name}: {off}");
    }

    pub fn input(&self, name: &str, shape: &[usize]) -> Tensor {
        self.uniform(name, shape).to_device(&device()).unwrap()
    }

    pub fn picture(&self, name: &str) -> RgbImage {
        let tensor = &self.outputs[name];
        let (height, width, _) = tensor.dims3().unwrap();
        let bytes: Vec<u8> = tensor.flatten_all().unwrap().to_vec1().unwrap();
        RgbImage::from_raw(width as u32, height as u32, bytes).unwrap()
    }
}

pub fn set(tensors: &mut HashMap<String, Tensor>, name: &str, values: &[f32]) {
    tensors.insert(name.to_string(), Tensor::new(values, &Device::Cpu).unwrap());
}
