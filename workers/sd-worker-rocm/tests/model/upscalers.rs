//! Networks that make pictures larger, against the same in PyTorch: `tests/reference/make_upscalers.py` has made them,
//! and `make_upscalers_of_windows.py` those that spandrel and transformers have.

use super::common::{device, difference, file, tensors};
use super::hashed::{uniform, weight};
use candle_core::{DType, Tensor};
use image::RgbImage;
use sd_worker_rocm::editing::resize::Filter;
use sd_worker_rocm::models::upscale::Layout;
use sd_worker_rocm::models::VarBuilder;
use sd_worker_rocm::upscale::{enlarge, Network, Tiling};
use sd_worker_rocm::weights::Weights;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

pub struct Upscalers {
    about: serde_json::Value,
    outputs: HashMap<String, Tensor>,
    place: tempfile::TempDir,
}

impl Upscalers {
    pub fn open() -> Self {
        Self::of("upscalers")
    }

    fn of(group: &str) -> Self {
        let path = |ending| format!("tests/fixtures/networks/{group}.{ending}");
        let json = std::fs::read(file(&path("json"))).unwrap();
        Self {
            about: serde_json::from_slice(&json).unwrap(),
            outputs: tensors(&path("safetensors")),
            place: tempfile::tempdir().unwrap(),
        }
    }

    fn tensors(&self, name: &str) -> HashMap<String, Tensor> {
        let shapes = self.about[name]["shapes"].as_object().unwrap();
        let tensors = shapes.iter().map(|(tensor, shape)| {
            let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
            let made = match &self.about[name]["form"][tensor] {
                serde_json::Value::Null => weight(name, tensor, &shape),
                form => {
                    let values: Vec<f32> = serde_json::from_value(form.clone()).unwrap();
                    Tensor::from_vec(values, shape, &candle_core::Device::Cpu).unwrap()
                }
            };
            (tensor.clone(), made)
        });
        tensors.collect()
    }

    fn write(&self, name: &str, tensors: &HashMap<String, Tensor>) -> PathBuf {
        let path = self.place.path().join(format!("{name}.safetensors"));
        candle_core::safetensors::save(tensors, &path).unwrap();
        path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.write(name, &self.tensors(name))
    }
}

fn go_on(_: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn networks_are_known_by_their_shapes() {
    all_are_pytorchs(&Upscalers::open(), 17);
}

#[test]
fn networks_of_windows_are_known_by_their_shapes() {
    let u = Upscalers::of("upscalers_of_windows");
    all_are_pytorchs(&u, 14);
    for (name, kind) in [
        ("swin2_transformers", "Swin2SR"),
        ("swin_jpeg", "SwinIR"),
        ("hat_2x", "HAT"),
        ("dat_light", "DAT"),
    ] {
        let weights = Weights::open(&u.file(name)).unwrap();
        assert_eq!(Layout::of(&weights).unwrap().0.kind(), kind);
    }
    // Offsets that are no window's: refused, whatever they are.
    for values in [[f32::NAN, 3.0], [-1.0, 3.0], [1.0, 1e9], [2.0, 3.0]] {
        let mut tensors = u.tensors("dat_2x");
        let name = "params.layers.0.blocks.0.attn.attns.0.rpe_biases";
        let offsets = Tensor::new(&[values], &candle_core::Device::Cpu).unwrap();
        tensors.insert(name.to_string(), offsets);
        let error = match Network::open(&u.write("offsets", &tensors), &device()) {
            Ok(network) => panic!("{} was taken", network.kind()),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("offsets"), "{error}");
    }
}

fn all_are_pytorchs(u: &Upscalers, count: usize) {
    let device = device();
    let names: Vec<&String> = u.about.as_object().unwrap().keys().collect();
    assert_eq!(names.len(), count);
    for name in names {
        let weights = Weights::open(&u.file(name)).unwrap();
        let (layout, weights) = Layout::of(&weights).unwrap();
        let expected = &u.outputs[name];
        let scale = layout.scale();
        let (_, _, height, width) = expected.dims4().unwrap();
        let shape = (1, 3, height / scale, width / scale);
        let count = shape.1 * shape.2 * shape.3;
        let x = uniform(&format!("{name}.picture"), count);
        let x = Tensor::from_vec(x, shape, &device).unwrap();
        let x = x.affine(0.5, 0.5).unwrap();
        let loaded = weights.load_all(DType::F32, &device).unwrap();
        let vb = VarBuilder::from_tensors(loaded, DType::F32, &device);
        let output = layout.build(vb).unwrap().forward(&x).unwrap();
        let off = difference(&output, expected);
        assert!(off < 1e-4, "{name}: {off}");
    }
}

#[test]
fn pictures_in_tiles_and_in_any_size() {
    let u = Upscalers::open();
    let mut network = Network::open(&u.file("compact_2x"), &device()).unwrap();
    assert_eq!(network.scale(), 2);
    let picture = RgbImage::from_fn(70, 50, |x, y| {
        image::Rgb([(x * 3) as u8, (y * 5) as u8, ((x * y) % 200) as u8])
    });
    let whole = Tiling {
        size: 0,
        overlap: 0,
    };
    // It sees four pixels around, a quarter of what neighbours share.
    let tiles = Tiling {
        size: 48,
        overlap: 16,
    };
    let whole = network.run(&picture, &whole, &mut go_on).unwrap().unwrap();
    let joined = network.run(&picture, &tiles, &mut go_on).unwrap().unwrap();
    assert_eq!(joined.dimensions(), (140, 100));
    let off = super::small::apart(&whole, &joined);
    assert!(off <= 1, "{off}");

    // Two passes and a filter to 3.5 times; without a network the filter alone.
    let mut told = Vec::new();
    let mut tell = |done, total| {
        told.push((done, total));
        ControlFlow::Continue(())
    };
    let size = (245, 175);
    let way = Some((&mut network, &tiles));
    let large = enlarge(&picture, way, Filter::Lanczos, size, &mut tell);
    let large = large.unwrap().unwrap();
    assert_eq!(large.dimensions(), size);
    let (done, total) = *told.last().unwrap();
    assert_eq!((done, told[0].0), (total, 0));
    assert_eq!(total, tiles.count((70, 50)) + tiles.count((140, 100)));
    let plain = enlarge(&picture, None, Filter::Lanczos, size, &mut |_, _| {
        ControlFlow::Continue(())
    });
    assert!(super::small::apart(&plain.unwrap().unwrap(), &large) > 3);
    let stop = &mut |_, _| ControlFlow::Break(());
    let way = Some((&mut network, &tiles));
    assert!(enlarge(&picture, way, Filter::Lanczos, size, stop)
        .unwrap()
        .is_none());
}

#[test]
fn other_files_are_refused_by_name() {
    let u = Upscalers::open();
    let refused = |path: &Path| match Network::open(path, &device()) {
        Ok(network) => panic!("{} was taken", network.kind()),
        Err(error) => error.to_string(),
    };
    let zeros =
        |shape: &[usize]| Tensor::zeros(shape, DType::F32, &candle_core::Device::Cpu).unwrap();
    let with = |names: &[(&str, &[usize])]| {
        let tensors = names
            .iter()
            .map(|(name, shape)| (name.to_string(), zeros(shape)));
        u.write("other", &tensors.collect())
    };
    for (names, part) in [
        (vec![("block_1.c1_r.sk.weight", &[2usize][..])], "SPAN"),
        (vec![("something.weight", &[2][..])], "no upscaler"),
        (
            vec![("stylegan_decoder.style_mlp.1.weight", &[2][..])],
            "GFPGAN",
        ),
    ] {
        let text = refused(&with(&names));
        assert!(text.contains(part), "{text}");
    }
    // A pickle, with what to do about it.
    let pickle = u.place.path().join("4x.pth");
    std::fs::write(&pickle, b"PK\x03\x04archive/data.pkl").unwrap();
    let text = refused(&pickle);
    assert!(text.contains("safetensors"), "{text}");
    // Parts that are missing, and shapes that make no sense.
    let mut tensors = u.tensors("esrgan_4x");
    tensors.remove("model.3.weight");
    refused(&u.write("part", &tensors));
    let mut tensors = u.tensors("swin_light");
    let table = "params.layers.0.residual_group.blocks.0.attn.relative_position_bias_table";
    tensors.insert(table.to_string(), zeros(&[48, 2]));
    let text = refused(&u.write("window", &tensors));
    assert!(text.contains("window"), "{text}");
    let mut tensors = u.tensors("compact_2x");
    tensors.insert("params.body.999999999.weight".to_string(), zeros(&[1]));
    let text = refused(&u.write("many", &tensors));
    assert!(text.contains("layers"), "{text}");
}
