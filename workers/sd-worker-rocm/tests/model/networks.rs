//! Networks of every kind against diffusers' numbers: `tests/reference/make_networks.py` has made them.

use super::common::{device, difference, file, tensors};
use super::hashed::{uniform, weight};
use candle_core::{DType, Device, Result, Tensor};
use sd_worker_rocm::models::clip::{ClipConfig, ClipTextEncoder};
use sd_worker_rocm::models::controlnet::{ControlConfig, ControlNet};
use sd_worker_rocm::models::taesd::Taesd;
use sd_worker_rocm::models::transformer::block_residuals::BlockResiduals;
use sd_worker_rocm::models::transformer::flux::{Flux, FluxConfig};
use sd_worker_rocm::models::transformer::sd3::{Sd3, Sd3Config};
use sd_worker_rocm::models::transformer::z_image::{ZImage, ZImageConfig};
use sd_worker_rocm::models::unet::config::UNetConfig;
use sd_worker_rocm::models::unet::{Extra, UNet};
use sd_worker_rocm::models::vae::{Vae, VaeConfig};
use sd_worker_rocm::models::VarBuilder;
use serde::de::DeserializeOwned;
use std::collections::HashMap;

pub struct Networks {
    about: serde_json::Value,
    outputs: HashMap<String, Tensor>,
    pub device: Device,
}

impl Networks {
    /// The networks of the first families.
    pub fn open() -> Self {
        Self::of("networks")
    }

    /// A group of networks: the script `make_GROUP.py` has made it.
    pub fn of(group: &str) -> Self {
        let place = format!("tests/fixtures/networks/{group}");
        let json = std::fs::read(file(&format!("{place}.json"))).unwrap();
        Self {
            about: serde_json::from_slice(&json).unwrap(),
            outputs: tensors(&format!("{place}.safetensors")),
            device: device(),
        }
    }

    pub fn config<C: DeserializeOwned>(&self, name: &str) -> C {
        serde_json::from_value(self.about[name]["config"].clone()).unwrap()
    }

    /// A network's tensors under diffusers' names.
    pub fn tensors(&self, name: &str) -> HashMap<String, Tensor> {
        let shapes = self.about[name]["shapes"].as_object().unwrap();
        shapes
            .iter()
            .map(|(tensor, shape)| {
                let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
                (tensor.clone(), weight(name, tensor, &shape))
            })
            .collect()
    }

    pub fn build<C: DeserializeOwned, M>(
        &self,
        name: &str,
        build: impl Fn(VarBuilder, &C) -> Result<M>,
    ) -> M {
        let vb = VarBuilder::from_tensors(self.tensors(name), DType::F32, &self.device);
        build(vb, &self.config(name)).unwrap()
    }

    /// Unit variance, as `normal` of the script.
    pub fn normal(&self, name: &str, shape: &[usize]) -> Tensor {
        let values = uniform(name, shape.iter().product());
        let values = Tensor::from_vec(values, shape, &self.device).unwrap();
        (values * 3f64.sqrt()).unwrap()
    }

    #[track_caller]
    pub fn same(&self, name: &str, ours: &Tensor, limit: f32) {
        let off = difference(ours, &self.outputs[name]);
        assert!(off <= limit, "{name}: {off}");
    }
}

#[test]
fn sdxl_and_its_controlnet() {
    let n = Networks::open();
    let unet = n.build("xl", |vb, config: &UNetConfig| UNet::new(vb, config));
    let control = n.build("xl_control", |vb, config: &ControlConfig| {
        ControlNet::new(vb, config)
    });
    let (x, text) = (
        n.normal("x", &[2, 4, 12, 10]),
        n.normal("text", &[2, 7, 48]),
    );
    let extra = Extra {
        pooled: Some(n.normal("pooled", &[2, 20])),
        numbers: vec![vec![96.0, 80.0, 0.0, 0.0, 96.0, 80.0]],
        guidance: None,
    };
    let condition = unet.condition(&text, &extra).unwrap();
    n.same(
        "xl",
        &unet.forward(&x, 601.0, &condition, None).unwrap(),
        2e-4,
    );
    let hint = Tensor::from_vec(uniform("hint", 3 * 96 * 80), (1, 3, 96, 80), &n.device).unwrap();
    let hint = control.hint(&hint.affine(0.5, 0.5).unwrap()).unwrap();
    let of_control = control.condition(&text, &extra, 0).unwrap();
    let strengths = vec![0.7; control.residuals() + 1];
    let residuals = control
        .forward(&x, 601.0, &of_control, (&hint, 0), 2, &strengths)
        .unwrap();
    let output = unet
        .forward(&x, 601.0, &condition, Some(&residuals))
        .unwrap();
    n.same("xl_control", &output, 2e-4);
}

#[test]
fn nine_channels_uneven_sizes_and_embedded_guidance() {
    let n = Networks::open();
    let unet = n.build("lcm", |vb, config: &UNetConfig| UNet::new(vb, config));
    let extra = Extra {
        guidance: Some(7.5),
        ..Extra::default()
    };
    let condition = unet
        .condition(&n.normal("text24", &[2, 7, 24]), &extra)
        .unwrap();
    let x = n.normal("x9", &[2, 9, 9, 11]);
    n.same(
        "lcm",
        &unet.forward(&x, 251.0, &condition, None).unwrap(),
        2e-4,
    );
}

#[test]
fn text_tower_with_projection() {
    let n = Networks::open();
    let clip = n.build("clip_g", |vb, config: &ClipConfig| {
        ClipTextEncoder::new(vb, config)
    });
    let padded = |ids: &[u32]| {
        let mut ids = ids.to_vec();
        ids.resize(12, 0);
        ids
    };
    let ids = [padded(&[198, 5, 17, 120, 199]), padded(&[198, 3, 199])];
    let output = clip.forward(&ids, &[4, 2], 1, false).unwrap();
    n.same("clip_g.hidden", &output.hidden, 1e-4);
    n.same("clip_g.pooled", &output.pooled, 1e-4);
}

#[test]
fn autoencoders() {
    let n = Networks::open();
    let vae = n.build("vae16", |vb, config: &VaeConfig| Vae::new(vb, config));
    let latents = vae.unscale(&n.normal("z16", &[1, 16, 12, 10])).unwrap();
    n.same("vae16.decoded", &vae.decode_raw(&latents).unwrap(), 2e-4);
    n.same(
        "vae16.decoded",
        &vae.decode_tiled(&latents, 4).unwrap(),
        2e-4,
    );
    let picture = uniform("picture", 3 * 20 * 24);
    let picture = Tensor::from_vec(picture, (1, 3, 20, 24), &n.device).unwrap();
    let encoded = vae.scale(&vae.encode_mean(&picture).unwrap()).unwrap();
    n.same("vae16.encoded", &encoded, 2e-4);
    let vb = VarBuilder::from_tensors(n.tensors("taesd"), DType::F32, &n.device);
    let taesd = Taesd::new(vb, 4).unwrap();
    // diffusers gives -1 to 1.
    let decoded = taesd.decode(&n.normal("z4", &[1, 4, 6, 5])).unwrap();
    n.same("taesd", &decoded.affine(2.0, -1.0).unwrap(), 2e-4);
}

#[test]
fn transformers() {
    let n = Networks::open();
    let (x, text) = (
        n.normal("x4", &[2, 4, 12, 8]),
        n.normal("context", &[2, 9, 24]),
    );
    let pooled = n.normal("pooled", &[2, 20]);
    for name in ["sd3", "sd35"] {
        let net = n.build(name, |vb, config: &Sd3Config| Sd3::new(vb, config));
        n.same(name, &net.forward(&x, 601.0, &text, &pooled).unwrap(), 2e-4);
    }
    for name in ["flux", "schnell"] {
        let net = n.build(name, |vb, config: &FluxConfig| Flux::new(vb, config));
        let none = BlockResiduals::default();
        let rope = net.rope(9, (12, 8), &[], &x).unwrap();
        let output = net
            .forward(&x, 600.0, 3.5, &text, &pooled, None, &rope, &none)
            .unwrap();
        n.same(name, &output, 2e-4);
    }
    let net = n.build("z_image", |vb, config: &ZImageConfig| {
        ZImage::new(vb, config)
    });
    let x = n.normal("xz", &[1, 4, 8, 12]);
    let text = n.normal("contextz", &[1, 20, 24]);
    let positions = net.positions(20, 8, 12, &x).unwrap();
    let output = net.forward(&x, 0.4, &text, &positions).unwrap();
    n.same("z_image", &output.reshape((4, 1, 8, 12)).unwrap(), 2e-4);
}
