//! What preprocessors make of a picture, against OpenCV and networks in PyTorch: `tests/reference/make_preprocessors.py`
//! has made it.

use super::common::{device, file, tensors};
use super::hashed::weight;
use candle_core::Tensor;
use image::RgbImage;
use sd_worker_rocm::preprocess::{filters, Kind, Preprocessor};
use std::collections::HashMap;

struct Made(HashMap<String, Tensor>);

impl Made {
    fn open() -> Self {
        Self(tensors("tests/fixtures/networks/preprocessors.safetensors"))
    }

    /// Grey or colours.
    fn picture(&self, name: &str) -> RgbImage {
        let tensor = &self.0[name];
        let dims = tensor.dims();
        let bytes: Vec<u8> = tensor.flatten_all().unwrap().to_vec1().unwrap();
        let bytes = match dims.len() {
            3 => bytes,
            _ => bytes.into_iter().flat_map(|grey| [grey; 3]).collect(),
        };
        RgbImage::from_raw(dims[1] as u32, dims[0] as u32, bytes).unwrap()
    }

    /// How many bytes are further apart than `allowed`.
    fn apart(&self, name: &str, preprocessor: Preprocessor, allowed: u8) -> usize {
        let made = preprocessor.run(&self.picture("scene"), &device()).unwrap();
        let expected = self.picture(name);
        assert_eq!(made.dimensions(), expected.dimensions());
        let pairs = made.iter().zip(expected.iter());
        pairs.filter(|(a, b)| a.abs_diff(**b) > allowed).count()
    }
}

fn with(kind: Kind, thresholds: &[f64]) -> Preprocessor {
    Preprocessor {
        thresholds: [thresholds.first().copied(), thresholds.get(1).copied()],
        ..Preprocessor::new(kind)
    }
}

#[test]
fn filters_are_opencvs() {
    let made = Made::open();
    let canny = |low, high| with(Kind::Canny, &[low, high]);
    for (name, preprocessor, other) in [
        ("canny_100_200", canny(100.0, 200.0), canny(30.0, 60.0)),
        ("canny_30_60", canny(30.0, 60.0), canny(100.0, 200.0)),
        ("canny_250_20", canny(250.0, 20.0), canny(100.0, 200.0)),
        (
            "scribble",
            with(Kind::Scribble, &[]),
            with(Kind::Scribble, &[60.0]),
        ),
        (
            "threshold",
            with(Kind::Threshold, &[90.0]),
            with(Kind::Threshold, &[]),
        ),
        (
            "intensity",
            with(Kind::Intensity, &[]),
            with(Kind::None, &[]),
        ),
    ] {
        assert_eq!(made.apart(name, preprocessor, 0), 0, "{name}");
        assert!(made.apart(name, other, 0) > 30, "{name}");
    }
    // Sums of floats in another order, cut off or in fixed point: 1.
    for (name, preprocessor, other) in [
        ("lineart", with(Kind::Lineart, &[]), with(Kind::Invert, &[])),
        ("blur", with(Kind::Blur, &[3.0]), with(Kind::Blur, &[])),
        (
            "luminance",
            with(Kind::Luminance, &[]),
            with(Kind::Luminance, &[0.6]),
        ),
        (
            "shuffle",
            with(Kind::Shuffle, &[5.0]),
            with(Kind::Shuffle, &[]),
        ),
    ] {
        assert_eq!(made.apart(name, preprocessor, 1), 0, "{name}");
        assert!(made.apart(name, other, 1) > 30, "{name}");
    }
}

#[test]
fn scribbles_of_soft_edges_are_opencvs() {
    let made = Made::open();
    let grey = filters::intensity(&made.picture("scene"), 1.0);
    let thinned = filters::thinned(&grey);
    let pairs = thinned.iter().zip(made.picture("thinned").into_raw());
    // What OpenCV softens in fixed point is cut at a threshold.
    let off = pairs.filter(|(a, b)| **a != *b).count();
    let white = thinned.iter().filter(|byte| **byte == 255).count();
    assert!(
        off <= 60 && white > 600 && white + 600 < thinned.len(),
        "{off}, {white}"
    );
}

#[test]
fn networks_are_pytorchs() {
    let made = Made::open();
    let json = std::fs::read(file("tests/fixtures/networks/preprocessors.json")).unwrap();
    let about: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let place = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let shapes = about[name]["shapes"].as_object().unwrap();
        let tensors = shapes.iter().map(|(tensor, shape)| {
            let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
            let mut made = weight(name, tensor, &shape);
            // As the script does.
            if name == "hed" && tensor.ends_with("projection.weight") {
                made = (made * 0.02).unwrap();
            }
            (tensor.clone(), made)
        });
        let path = place.path().join(format!("{name}.safetensors"));
        let tensors: HashMap<String, Tensor> = tensors.collect();
        candle_core::safetensors::save(&tensors, &path).unwrap();
        path
    };
    for (name, kind) in [
        ("hed", Kind::SoftEdge),
        ("safe", Kind::SoftEdgeSafe),
        ("lines", Kind::LineartNetwork),
    ] {
        let of_hed = name != "lines";
        let network = Some(write(if of_hed { "hed" } else { name }));
        let preprocessor = Preprocessor {
            network,
            ..Preprocessor::new(kind)
        };
        // What is cut at a threshold may fall to either side of it.
        let allowed = if kind == Kind::SoftEdgeSafe { 30 } else { 0 };
        assert!(
            made.apart(name, preprocessor.clone(), 1) <= allowed,
            "{name}"
        );
        // Another picture gives other lines.
        let upside_down = image::imageops::flip_vertical(&made.picture("scene"));
        let other = preprocessor.run(&upside_down, &device()).unwrap();
        assert!(super::small::apart(&other, &made.picture(name)) > 30);
    }
    // The wrong file, and a picture that is too small.
    let path = Some(write("lines"));
    let wrong = |kind| Preprocessor {
        network: path.clone(),
        ..Preprocessor::new(kind)
    };
    let picture = made.picture("scene");
    assert!(wrong(Kind::SoftEdge).run(&picture, &device()).is_err());
    let small = RgbImage::new(7, 9);
    wrong(Kind::LineartNetwork).run(&small, &device()).unwrap();
}
