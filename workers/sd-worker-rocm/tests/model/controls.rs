//! ControlNets of every kind and T2I-Adapters, against diffusers' pictures: `tests/reference/make_controls.py` has made
//! them.

use super::common::{go_on, Draw};
use super::small::Pipelines;
use candle_core::{DType, Device, Tensor};
use image::{GrayImage, Luma};
use sd_worker_rocm::models::t2i_adapter::{AdapterConfig, Kind, T2iAdapter};
use sd_worker_rocm::models::VarBuilder;
use sd_worker_rocm::pipeline::{Control, ImageRequest, PipelineOptions};
use sd_worker_rocm::request::{ControlMode, Hidden};
use sd_worker_rocm::weights::{ldm, Weights};
use std::collections::HashMap;

/// A network's folder with the picture that it follows, at this strength.
pub fn control(p: &Pipelines, name: &str, picture: &str, strength: f64) -> Control {
    Control {
        strength,
        ..Control::new(p.folder(name), p.picture(picture))
    }
}

/// Sets a request's networks.
pub fn with(controls: Vec<Control>) -> impl Fn(&mut ImageRequest) {
    move |request| request.controls = controls.clone()
}

#[test]
fn controlnets_of_stable_diffusion() {
    let p = Pipelines::of("controls");
    let mut pipeline = p.load(&p.folder("sd"), PipelineOptions::default());
    let plain = || control(&p, "plain", "hint", 0.8);
    for (case, mode) in [
        ("guess", ControlMode::Guess),
        ("prompt", ControlMode::Prompt),
        ("control", ControlMode::Control),
    ] {
        p.check_with(&mut pipeline, case, with(vec![Control { mode, ..plain() }]));
        p.differs(&mut pipeline, case, with(vec![plain()]));
    }
    for (case, model) in [("backward", "backward"), ("pooling", "pooling")] {
        let only = control(&p, model, "hint", 0.8);
        p.check_with(&mut pipeline, case, with(vec![only]));
    }
    let mask = GrayImage::from_fn(48, 32, |x, y| {
        Luma([255 * u8::from((20..40).contains(&x) && (8..28).contains(&y))])
    });
    let hidden = Control {
        hidden: Hidden::White(mask),
        ..plain()
    };
    p.check_with(&mut pipeline, "hidden", with(vec![hidden]));
    p.differs(&mut pipeline, "hidden", with(vec![plain()]));
    let two = |end| {
        let first = Control { end, ..plain() };
        let second = control(&p, "backward", "other", 0.5);
        let start = 0.25;
        with(vec![first, Control { start, ..second }])
    };
    p.check_with(&mut pipeline, "two", two(0.5));
    p.differs(&mut pipeline, "two", two(1.0));
}

#[test]
fn adapters_of_stable_diffusion() {
    let p = Pipelines::of("controls");
    let mut pipeline = p.load(&p.folder("sd"), PipelineOptions::default());
    let one = |name: &str, strength| with(vec![control(&p, name, "hint", strength)]);
    p.check_with(&mut pipeline, "full", one("full", 0.7));
    p.differs(&mut pipeline, "full", one("full", 0.0));
    p.check_with(&mut pipeline, "light", one("light", 0.7));
    let second = control(&p, "full", "other", 0.4);
    let both = vec![control(&p, "full", "hint", 0.7), second];
    p.check_with(&mut pipeline, "adapters", with(both));
}

#[test]
fn xl_with_unions_and_adapters() {
    let p = Pipelines::of("controls");
    let mut pipeline = p.load(&p.folder("xl"), PipelineOptions::default());
    let guess = Control {
        mode: ControlMode::Guess,
        ..control(&p, "xl_plain", "hint", 0.8)
    };
    p.check_with(&mut pipeline, "xl_guess", with(vec![guess]));
    let union = |kind: &str| {
        with(vec![Control {
            kind: Some(kind.to_string()),
            ..control(&p, "union", "hint", 0.8)
        }])
    };
    p.check_with(&mut pipeline, "union_1", union("depth"));
    p.check_with(&mut pipeline, "union_3", union("3"));
    p.differs(&mut pipeline, "union_3", union("depth"));
    let adapter = Control {
        end: 0.5,
        ..control(&p, "xl_full", "hint", 0.7)
    };
    p.check_with(&mut pipeline, "xl_adapter", with(vec![adapter.clone()]));
    let whole = Control {
        end: 1.0,
        ..adapter
    };
    p.differs(&mut pipeline, "xl_adapter", with(vec![whole]));
    // What makes no sense is named.
    let mut refused = |control: Control, what: &str| {
        let mut request = p.request("union_1");
        request.controls = vec![control];
        let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(control(&p, "union", "hint", 0.8), "openpose, depth");
    let kind = Some("sketches".to_string());
    refused(
        Control {
            kind: kind.clone(),
            ..control(&p, "union", "hint", 0.8)
        },
        "canny",
    );
    refused(
        Control {
            kind,
            ..control(&p, "xl_plain", "hint", 0.8)
        },
        "only unions",
    );
    refused(
        Control {
            mode: ControlMode::Guess,
            ..control(&p, "xl_full", "hint", 0.8)
        },
        "T2I-Adapters",
    );
}

/// Of FLUX.1: networks with and without single blocks and guidance, a union, two of as many blocks with shares.
#[test]
fn controlnets_of_flux() {
    let p = Pipelines::of("flux_controls");
    let mut pipeline = p.load(&p.folder("flux"), PipelineOptions::default());
    let one = |name: &str, strength| with(vec![control(&p, name, "hint", strength)]);
    p.check_with(&mut pipeline, "flux_blind_case", one("flux_blind", 0.8));
    p.differs(&mut pipeline, "flux_blind_case", one("flux_blind", 0.0));
    let union = |kind: &str, picture: &str, strength| Control {
        kind: Some(kind.to_string()),
        ..control(&p, "flux_union", picture, strength)
    };
    let depth = vec![union("depth", "hint", 0.7)];
    p.check_with(&mut pipeline, "flux_depth_case", with(depth));
    let first = Control {
        end: 0.5,
        ..control(&p, "flux_plain", "hint", 0.8)
    };
    let second = Control {
        start: 0.25,
        ..union("canny", "other", 0.5)
    };
    p.check_with(&mut pipeline, "flux_two_case", with(vec![first, second]));
    let mut refused = |control: Control, what: &str| {
        let mut request = p.request("flux_depth_case");
        request.controls = vec![control];
        let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(control(&p, "flux_union", "hint", 0.8), "canny, tile");
    refused(control(&p, "flux", "hint", 0.8), "config.json");
    let guess = Control {
        mode: ControlMode::Guess,
        ..control(&p, "flux_blind", "hint", 0.8)
    };
    refused(guess, "UNet");
}

/// Single files say by their tensors' shapes what they are.
#[test]
fn a_union_in_a_single_file() {
    let p = Pipelines::of("controls");
    let tensors = p.weights("union", "diffusion_pytorch_model.safetensors");
    let path = p.place().join("union.safetensors");
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let mut pipeline = p.load(&p.folder("xl"), PipelineOptions::default());
    let union = Control {
        kind: Some("canny".to_string()),
        strength: 0.8,
        ..Control::new(path, p.picture("hint"))
    };
    p.check_with(&mut pipeline, "union_3", with(vec![union]));
}

#[test]
fn adapters_in_single_files() {
    let place = tempfile::tempdir().unwrap();
    let read = |shapes: &[(&str, &[usize])]| {
        let tensors = shapes.iter().map(|(name, shape)| {
            let tensor = Tensor::zeros(*shape, DType::F32, &Device::Cpu).unwrap();
            (name.to_string(), tensor)
        });
        let path = place.path().join("adapter.safetensors");
        candle_core::safetensors::save(&tensors.collect(), &path).unwrap();
        ldm::t2i_adapter(&Weights::open(&path).unwrap())
    };
    // The original's names: two residual layers a block, counted through.
    let mut full: Vec<(String, Vec<usize>)> =
        vec![("conv_in.weight".to_string(), vec![8, 192, 3, 3])];
    let widths = [8usize, 16, 32, 32];
    for layer in 0..8 {
        let width = widths[layer / 2];
        full.push((
            format!("body.{layer}.block1.weight"),
            vec![width, width, 3, 3],
        ));
        full.push((
            format!("body.{layer}.block2.weight"),
            vec![width, width, 1, 1],
        ));
        if layer == 2 || layer == 4 {
            full.push((
                format!("body.{layer}.in_conv.weight"),
                vec![width, width / 2, 1, 1],
            ));
        }
    }
    let shapes: Vec<(&str, &[usize])> = full
        .iter()
        .map(|(n, s)| (n.as_str(), s.as_slice()))
        .collect();
    let (config, weights) = read(&shapes).unwrap();
    assert_eq!(config.channels, widths);
    assert_eq!((config.in_channels, config.downscale_factor), (3, 8));
    assert_eq!(
        (config.num_res_blocks, config.adapter_type),
        (2, Kind::FullAdapter)
    );
    let built = |config: &AdapterConfig, weights: &Weights| {
        let tensors = weights.load_all(DType::F32, &Device::Cpu).unwrap();
        // Biases do not matter here.
        let bias = |name: &str| name.replace(".weight", ".bias");
        let biases = tensors.iter().map(|(name, tensor)| {
            let zeros = Tensor::zeros(tensor.dims()[0], DType::F32, &Device::Cpu).unwrap();
            (bias(name), zeros)
        });
        let biases: HashMap<_, _> = biases.collect();
        let tensors = tensors.into_iter().chain(biases).collect();
        let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        let adapter = T2iAdapter::new(vb, config).unwrap();
        let picture = Tensor::zeros((1, 3, 32, 64), DType::F32, &Device::Cpu).unwrap();
        let features = adapter.features(&picture).unwrap();
        features
            .iter()
            .map(|x| x.dims()[1..].to_vec())
            .collect::<Vec<_>>()
    };
    let sizes = [[8, 4, 8], [16, 2, 4], [32, 1, 2], [32, 1, 1]];
    assert_eq!(built(&config, &weights), sizes.map(|size| size.to_vec()));
    // Its light ones, and Stable Diffusion XL's under diffusers' names.
    let light: Vec<(String, Vec<usize>)> = (0..3)
        .flat_map(|i| {
            let (inputs, outputs) = ([64, 8, 16][i], [8, 16, 16][i]);
            [
                (
                    format!("body.{i}.in_conv.weight"),
                    vec![outputs / 4, inputs, 1, 1],
                ),
                (
                    format!("body.{i}.body.0.block1.weight"),
                    vec![outputs / 4, outputs / 4, 3, 3],
                ),
                (
                    format!("body.{i}.body.0.block2.weight"),
                    vec![outputs / 4, outputs / 4, 3, 3],
                ),
                (
                    format!("body.{i}.out_conv.weight"),
                    vec![outputs, outputs / 4, 1, 1],
                ),
            ]
        })
        .collect();
    let shapes: Vec<(&str, &[usize])> = light
        .iter()
        .map(|(n, s)| (n.as_str(), s.as_slice()))
        .collect();
    let (config, weights) = read(&shapes).unwrap();
    assert_eq!(
        (config.in_channels, config.adapter_type),
        (1, Kind::LightAdapter)
    );
    assert_eq!(config.channels, [8, 16]);
    let sizes = [[8, 4, 8], [16, 2, 4], [16, 1, 2]];
    assert_eq!(built(&config, &weights), sizes.map(|size| size.to_vec()));
    let (config, _) = read(&[
        ("adapter.conv_in.weight", &[8, 768, 3, 3]),
        ("adapter.body.0.resnets.0.block1.weight", &[8, 8, 3, 3]),
    ])
    .unwrap();
    assert_eq!(
        (config.downscale_factor, config.adapter_type),
        (16, Kind::FullAdapterXl)
    );
    assert!(read(&[("unrelated.weight", &[8, 8])]).is_none());
}
