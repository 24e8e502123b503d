//! Networks that look at pictures for ControlNets, against transformers' classes and PyTorch:
//! `tests/reference/make_vision.py` has made it.

use super::common::{device, difference, file, tensors};
use super::hashed::{uniform, weight};
use candle_core::{DType, Device, Tensor};
use image::{Rgb, RgbImage};
use sd_worker_rocm::models::preprocess::body::Body;
use sd_worker_rocm::models::preprocess::mlsd::Mlsd;
use sd_worker_rocm::models::VarBuilder;
use sd_worker_rocm::preprocess::lines::{self, Line};
use sd_worker_rocm::preprocess::planes::Numbers;
use sd_worker_rocm::preprocess::{pose, Kind, NetworkFolders, NetworkKind, Preprocessor};
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;

struct Made {
    about: Value,
    kept: HashMap<String, Tensor>,
    place: tempfile::TempDir,
}

impl Made {
    fn open() -> Self {
        let json = std::fs::read(file("tests/fixtures/networks/vision.json")).unwrap();
        Self {
            about: serde_json::from_slice(&json).unwrap(),
            kept: tensors("tests/fixtures/networks/vision.safetensors"),
            place: tempfile::tempdir().unwrap(),
        }
    }

    fn weights(&self, name: &str) -> HashMap<String, Tensor> {
        let about = &self.about[name];
        let gain = about["gain"].as_f64().unwrap();
        let shapes = about["shapes"].as_object().unwrap().iter();
        let made = shapes.map(|(tensor, shape)| {
            let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
            let made = weight(name, tensor, &shape);
            match shape.len() > 1 {
                true => (tensor.clone(), (made * gain).unwrap()),
                false => (tensor.clone(), made),
            }
        });
        made.collect()
    }

    /// A folder as transformers writes it, or a file.
    fn network(&self, name: &str) -> PathBuf {
        let files = self.about[name]["files"].as_object();
        let path = match files {
            None => self.place.path().join(format!("{name}.safetensors")),
            Some(files) => {
                let folder = self.place.path().join(name);
                std::fs::create_dir_all(&folder).unwrap();
                for (file, content) in files {
                    std::fs::write(folder.join(file), content.to_string()).unwrap();
                }
                folder.join("model.safetensors")
            }
        };
        candle_core::safetensors::save(&self.weights(name), &path).unwrap();
        match files {
            None => path,
            Some(_) => self.place.path().join(name),
        }
    }

    fn scene(&self) -> RgbImage {
        let bytes = self.kept["scene"].flatten_all().unwrap().to_vec1().unwrap();
        RgbImage::from_raw(92, 68, bytes).unwrap()
    }

    /// Grey or colours.
    fn picture(&self, name: &str) -> RgbImage {
        let tensor = &self.kept[name];
        let dims = tensor.dims();
        let bytes: Vec<u8> = tensor.flatten_all().unwrap().to_vec1().unwrap();
        let bytes = match dims.len() {
            3 => bytes,
            _ => bytes.into_iter().flat_map(|grey| [grey; 3]).collect(),
        };
        RgbImage::from_raw(dims[1] as u32, dims[0] as u32, bytes).unwrap()
    }

    fn run(&self, kind: Kind, network: PathBuf) -> RgbImage {
        let preprocessor = Preprocessor {
            network: Some(network),
            ..Preprocessor::new(kind)
        };
        preprocessor.run(&self.scene(), &device()).unwrap()
    }

    fn builder(&self, name: &str) -> VarBuilder {
        VarBuilder::from_tensors(self.weights(name), DType::F32, &device())
    }
}

/// Pixels of which a colour is further apart than `allowed`.
fn apart(a: &RgbImage, b: &RgbImage, allowed: u8) -> usize {
    assert_eq!(a.dimensions(), b.dimensions());
    let pixels = a.pixels().zip(b.pixels());
    let differs = |(a, b): &(&Rgb<u8>, &Rgb<u8>)| {
        let mut colours = a.0.iter().zip(b.0);
        colours.any(|(a, b)| a.abs_diff(b) > allowed)
    };
    pixels.filter(differs).count()
}

#[test]
fn depths_are_transformers() {
    let made = Made::open();
    for (name, kind) in [
        ("dpt", Kind::DepthMidas),
        ("hybrid", Kind::DepthMidas),
        ("anything", Kind::DepthAnything),
        ("metric", Kind::Depth),
    ] {
        let picture = made.run(kind, made.network(name));
        let expected = made.picture(&format!("{name}.picture"));
        // Fractions are cut off: a sum's last bit may make another byte of it.
        assert_eq!(apart(&picture, &expected, 1), 0, "{name}");
        assert!(apart(&picture, &made.scene(), 30) > 1000, "{name}");
    }
    let normals = made.run(Kind::Normal, made.network("dpt"));
    // Pixels at the threshold of the background may fall to either side.
    assert!(apart(&normals, &made.picture("normals"), 1) <= 3);
    let flat = Preprocessor {
        network: Some(made.network("dpt")),
        thresholds: [Some(1.0), None],
        ..Preprocessor::new(Kind::Normal)
    };
    let flat = flat.run(&made.scene(), &device()).unwrap();
    assert!(apart(&flat, &normals, 1) > 1000);
}

#[test]
fn lines_of_anime_are_pytorchs() {
    let made = Made::open();
    let picture = made.run(Kind::LineartAnime, made.network("anime"));
    assert_eq!(apart(&picture, &made.picture("anime.picture"), 1), 0);
}

fn inputs(name: &str, shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    let values = uniform(name, count);
    Tensor::from_vec(values, shape, &device()).unwrap()
}

/// How far apart at most, as a share of the largest.
fn off(a: &Tensor, b: &Tensor) -> f32 {
    let largest = b.abs().unwrap().max_all().unwrap();
    difference(a, b) / largest.to_scalar::<f32>().unwrap()
}

#[test]
fn bodies_are_pytorchs() {
    let made = Made::open();
    let network = Body::new(made.builder("body")).unwrap();
    let x = (inputs("body.picture", &[1, 3, 24, 32]) * 0.5).unwrap();
    let (fields, maps) = network.forward(&x).unwrap();
    for (found, name) in [(fields, "body.fields"), (maps, "body.maps")] {
        let off = off(&found.squeeze(0).unwrap(), &made.kept[name]);
        assert!(off < 1e-4, "{name}: {off}");
    }
    assert!(network.forward(&inputs("x", &[1, 3, 20, 32])).is_err());
    // From a picture to a drawing, of the picture's size.
    let drawn = made.run(Kind::Pose, made.network("body"));
    assert_eq!(drawn.dimensions(), (92, 68));
}

type Joints = Vec<Option<(f64, f64)>>;

/// Bumps at joints, and the direction of limbs within three pixels of them, as the script makes them.
fn maps_of(people: &[Joints], width: usize, height: usize) -> (Vec<Numbers>, Vec<Numbers>) {
    const LIMBS: [(usize, usize, usize); 19] = [
        (1, 2, 12),
        (1, 5, 20),
        (2, 3, 14),
        (3, 4, 16),
        (5, 6, 22),
        (6, 7, 24),
        (1, 8, 0),
        (8, 9, 2),
        (9, 10, 4),
        (1, 11, 6),
        (11, 12, 8),
        (12, 13, 10),
        (1, 0, 28),
        (0, 14, 30),
        (14, 16, 34),
        (0, 15, 32),
        (15, 17, 36),
        (2, 16, 18),
        (5, 17, 26),
    ];
    let empty = || Numbers {
        width,
        height,
        values: vec![0.0; width * height],
    };
    let mut maps: Vec<Numbers> = (0..19).map(|_| empty()).collect();
    let mut fields: Vec<Numbers> = (0..38).map(|_| empty()).collect();
    let pixels = || (0..width * height).map(|i| (i, (i % width) as f64, (i / width) as f64));
    for person in people {
        for (joint, place) in person.iter().enumerate() {
            let Some((px, py)) = place else { continue };
            for (i, x, y) in pixels() {
                let bump = (-((x - px).powi(2) + (y - py).powi(2)) / 12.5).exp() as f32;
                let value = &mut maps[joint].values[i];
                *value = value.max(bump);
            }
        }
        for (a, b, field) in LIMBS {
            let (Some((ax, ay)), Some((bx, by))) = (person[a], person[b]) else {
                continue;
            };
            let length = (bx - ax).hypot(by - ay);
            let (dx, dy) = ((bx - ax) / length, (by - ay) / length);
            for (i, x, y) in pixels() {
                let along = (x - ax) * dx + (y - ay) * dy;
                let across = ((x - ax) * dy - (y - ay) * dx).abs();
                if (-1.0..=length + 1.0).contains(&along) && across <= 3.0 {
                    fields[field].values[i] = dx as f32;
                    fields[field + 1].values[i] = dy as f32;
                }
            }
        }
    }
    (maps, fields)
}

#[test]
fn people_are_put_together_and_drawn() {
    let made = Made::open();
    let about = &made.about["people"];
    let read = |key: &str| -> Vec<Joints> { serde_json::from_value(about[key].clone()).unwrap() };
    let (given, expected) = (read("given"), read("found"));
    let (maps, fields) = maps_of(&given, 128, 96);
    let found = pose::people(&maps, &fields);
    let found: Vec<Joints> = found.iter().map(|person| person.to_vec()).collect();
    assert_eq!(found, expected);
    // Without fields nothing belongs together.
    let none: Vec<Numbers> = fields
        .iter()
        .map(|field| Numbers {
            values: vec![0.0; field.values.len()],
            ..field.clone()
        })
        .collect();
    assert!(pose::people(&maps, &none).is_empty());
    let people: Vec<pose::Person> = expected
        .iter()
        .map(|joints| joints.clone().try_into().unwrap())
        .collect();
    let drawn = pose::draw(&people, 128, 96);
    let picture = made.picture("people.picture");
    let coloured = picture.pixels().filter(|pixel| pixel.0 != [0; 3]).count();
    // OpenCV draws polygons around ellipses: their edges differ by a pixel here and there.
    let off = apart(&drawn, &picture, 0);
    assert!(
        coloured > 1000 && off * 10 < coloured,
        "{off} of {coloured}"
    );
}

#[test]
fn straight_lines_are_pytorchs() {
    let made = Made::open();
    let network = Mlsd::new(made.builder("mlsd")).unwrap();
    let maps = network.forward(&inputs("mlsd.picture", &[1, 4, 48, 64]));
    let maps = maps.unwrap();
    let off = off(&maps.squeeze(0).unwrap(), &made.kept["mlsd.maps"]);
    assert!(off < 1e-4, "{off}");
    let about = &made.about["lines"];
    let (least, longer) = (
        about["least"].as_f64().unwrap(),
        about["longer"].as_f64().unwrap(),
    );
    let of = |key: &str| -> Vec<[f32; 4]> { serde_json::from_value(about[key].clone()).unwrap() };
    let found = lines::lines(&made.kept["mlsd.maps"].unsqueeze(0).unwrap(), least, longer).unwrap();
    let expected = of("found");
    assert_eq!(found.len(), expected.len());
    for (line, [a, b, c, d]) in found.iter().zip(expected) {
        let ends = [
            line.from.0 - a,
            line.from.1 - b,
            line.to.0 - c,
            line.to.1 - d,
        ];
        assert!(ends.iter().all(|off| off.abs() < 1e-3), "{line:?}");
    }
    let fewer = lines::lines(&maps, 0.999, longer).unwrap();
    assert!(fewer.len() < found.len());
    let ends: Vec<Line> = (of("drawn").iter())
        .map(|[a, b, c, d]| Line {
            from: (*a, *b),
            to: (*c, *d),
        })
        .collect();
    let drawn = lines::draw(&ends, (80, 60), (1.0, 1.0));
    // Where a line lies between two pixels, or is cut at an edge, OpenCV may choose the pixel beside.
    let picture = made.picture("lines.picture");
    let far = |a: &RgbImage, b: &RgbImage| {
        let white = |x: u32, y: u32| b.get_pixel(x, y).0 == [255; 3];
        let near = |x: u32, y: u32| {
            let rows = y.saturating_sub(1)..(y + 2).min(b.height());
            rows.into_iter().any(|row| {
                let mut columns = x.saturating_sub(1)..(x + 2).min(b.width());
                columns.any(|column| white(column, row))
            })
        };
        let pixels = a.enumerate_pixels();
        pixels
            .filter(|(x, y, pixel)| pixel.0 == [255; 3] && !near(*x, *y))
            .count()
    };
    let (beyond, missing) = (far(&drawn, &picture), far(&picture, &drawn));
    assert!(beyond + missing <= 4, "{beyond}, {missing}");
    let drawn = made.run(Kind::Mlsd, made.network("mlsd"));
    assert_eq!(drawn.dimensions(), (92, 68));
}

#[test]
fn folders_have_the_networks_of_preprocessors() {
    let made = Made::open();
    let folders = NetworkFolders::new(vec![made.place.path().to_path_buf()]);
    let usual = folders.kinds();
    assert!(usual.contains(&Kind::Canny) && !usual.contains(&Kind::Depth));
    assert_eq!(folders.find(Kind::Depth), None);
    let (dpt, body) = (made.network("dpt"), made.network("body"));
    std::fs::write(made.place.path().join("notes.txt"), "x").unwrap();
    std::fs::write(made.place.path().join("broken.safetensors"), "x").unwrap();
    assert_eq!(NetworkKind::of(&dpt).unwrap(), NetworkKind::Dpt);
    let kinds = folders.kinds();
    for (kind, there) in [
        (Kind::Depth, true),
        (Kind::DepthMidas, true),
        (Kind::Normal, true),
        (Kind::Pose, true),
        (Kind::DepthAnything, false),
        (Kind::LineartAnime, false),
    ] {
        assert_eq!(kinds.contains(&kind), there, "{kind:?}");
    }
    assert_eq!(folders.find(Kind::Pose), Some(body.clone()));
    // Coarse lines are drawn by a file that says so, others by one that does not.
    let lines = |name: &str| {
        let shape = weight("lines", "model0.1.weight", &[8, 3, 7, 7]);
        let path = made.place.path().join(name);
        let tensors = HashMap::from([("model0.1.weight".to_string(), shape)]);
        candle_core::safetensors::save(&tensors, &path).unwrap();
        path
    };
    let coarse = lines("sk_model2.safetensors");
    assert_eq!(folders.find(Kind::LineartCoarse), Some(coarse));
    assert_eq!(folders.find(Kind::LineartNetwork), None);
    let fine = lines("sk_model.safetensors");
    assert_eq!(folders.find(Kind::LineartNetwork), Some(fine));
    // A network of another kind, and settings that are not implemented.
    let refused = |kind, network: &PathBuf| {
        let preprocessor = Preprocessor {
            network: Some(network.clone()),
            ..Preprocessor::new(kind)
        };
        let refused = preprocessor.run(&made.scene(), &Device::Cpu);
        refused.unwrap_err().to_string()
    };
    assert!(refused(Kind::Depth, &body).contains("Body"));
    for (file, change, named) in [
        ("config.json", ("hidden_act", "relu"), "hidden_act"),
        ("config.json", ("readout_type", "mean"), "readout_type"),
        ("preprocessor_config.json", ("resample", "9"), "resample"),
        ("preprocessor_config.json", ("do_pad", "true"), "do_pad"),
    ] {
        let dpt = made.network("dpt");
        let path = dpt.join(file);
        let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json[change.0] = serde_json::from_str(change.1).unwrap_or_else(|_| change.1.into());
        std::fs::write(&path, json.to_string()).unwrap();
        let error = refused(Kind::DepthMidas, &dpt);
        assert!(
            error.contains(named) || error.contains(change.1),
            "{named}: {error}"
        );
    }
    let onnx = made.place.path().join("dw-ll_ucoco_384.onnx");
    std::fs::write(&onnx, "x").unwrap();
    assert!(refused(Kind::Pose, &onnx).contains("ONNX"));
}
