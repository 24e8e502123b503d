//! What needs a look inside: LoRAs merged and undone, networks that leave the device.

use super::denoiser::Denoiser;
use super::{Generated, Pipeline, PipelineOptions, Progress, Stage};
use crate::lora::Lora;
use crate::request::{ImageRequest, Limits};
use crate::sampling::{Sampler, Schedule};
use candle_core::{DType, Device, Tensor};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use worker::Result;

trait Draw {
    /// Checks the request and makes its pictures.
    fn draw(
        &mut self,
        request: &ImageRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated>;
}

impl Draw for Pipeline {
    fn draw(
        &mut self,
        request: &ImageRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let request = request.clone().valid(self.info(), &Limits::LOCAL)?;
        self.generate(&request, progress)
    }
}

/// The tests' model on the CPU.
fn tiny(options: PipelineOptions) -> Pipeline {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-shapes-sd");
    Pipeline::load(Path::new(folder), &Device::Cpu, options, &mut |_| {}).unwrap()
}

fn request(loras: Vec<Lora>) -> ImageRequest {
    ImageRequest {
        prompt: "a red circle".to_string(),
        width: 64,
        height: 64,
        steps: 1,
        sampler: Sampler::Euler,
        schedule: Some(Schedule::Discrete),
        seed: 1,
        loras,
        ..ImageRequest::default()
    }
}

fn values(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

fn matrix(rows: usize, columns: usize, seed: u32) -> Tensor {
    let value = |i: u32| ((i * 37 + seed) % 19) as f32 / 19.0 - 0.5;
    let all: Vec<f32> = (0..(rows * columns) as u32).map(value).collect();
    Tensor::from_vec(all, (rows, columns), &Device::Cpu).unwrap()
}

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn save(&self, name: &str, tensors: &[(&str, Tensor)]) -> PathBuf {
        let tensors: HashMap<String, Tensor> = tensors
            .iter()
            .map(|(name, tensor)| (name.to_string(), tensor.clone()))
            .collect();
        let path = self.folder.path().join(format!("{name}.safetensors"));
        candle_core::safetensors::save(&tensors, &path).unwrap();
        path
    }
}

const LINEAR: &str = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.weight";
const CONV: &str = "down_blocks.0.resnets.0.conv1.weight";
const TEXT: &str = "text_model.encoder.layers.0.mlp.fc1.weight";

#[test]
fn loras_are_merged_as_written_and_undone_bit_for_bit() {
    let files = Files {
        folder: tempfile::tempdir().unwrap(),
    };
    let alpha = Tensor::new(2f32, &Device::Cpu).unwrap();
    let (down, up) = (matrix(4, 64, 1), matrix(64, 4, 2));
    // A LoCon with a core: (64, 3), (3, 3, 3, 3), (3, 64).
    let (outer, inner) = (matrix(64, 3, 3), matrix(3, 64, 4));
    let core = matrix(9, 9, 5).reshape((3, 3, 3, 3)).unwrap();
    let (text_down, text_up) = (matrix(2, 32, 6), matrix(128, 2, 7));
    files.save(
        "kohya",
        &[
            ("lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_down.weight", down.clone()),
            ("lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_up.weight", up.clone()),
            ("lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.alpha", alpha.clone()),
            ("lora_unet_down_blocks_0_resnets_0_conv1.lora_down.weight", inner.reshape((3, 64, 1, 1)).unwrap()),
            ("lora_unet_down_blocks_0_resnets_0_conv1.lora_mid.weight", core.clone()),
            ("lora_unet_down_blocks_0_resnets_0_conv1.lora_up.weight", outer.reshape((64, 3, 1, 1)).unwrap()),
            ("lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight", text_down.clone()),
            ("lora_te_text_model_encoder_layers_0_mlp_fc1.lora_up.weight", text_up.clone()),
        ],
    );
    let peft = files.save(
        "peft",
        &[
            (
                "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.weight",
                down.clone(),
            ),
            (
                "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora_B.weight",
                up.clone(),
            ),
        ],
    );
    let options = PipelineOptions {
        lora_dirs: vec![files.folder.path().to_path_buf()],
        ..PipelineOptions::default()
    };
    let mut pipeline = tiny(options);
    let unet = |p: &Pipeline, name: &str| match &p.denoiser {
        Denoiser::UNet(unet) => values(unet.module.tensor(name).unwrap()),
        Denoiser::Transformer(_) => panic!("the built-in model has a UNet"),
    };
    let text = |p: &Pipeline| values(p.text.towers[0].module.tensor(TEXT).unwrap());
    let before = [
        unet(&pipeline, LINEAR),
        unet(&pipeline, CONV),
        text(&pipeline),
    ];
    let mut go_on = |_| ControlFlow::Continue(());
    let plain = pipeline.draw(&request(vec![]), &mut go_on).unwrap();

    let lora = |name: &str, strength| Lora::new(name, strength);
    let both = vec![lora("kohya", 0.5), lora(peft.to_str().unwrap(), 0.25)];
    let changed = pipeline.draw(&request(both), &mut go_on).unwrap();
    assert_ne!(plain.images, changed.images);
    // up down, times alpha over rank and strength, for both files.
    let product = up.matmul(&down).unwrap();
    let share = 0.5 * 2.0 / 4.0 + 0.25;
    let delta = values(&(product * share).unwrap());
    for ((old, new), delta) in before[0].iter().zip(unet(&pipeline, LINEAR)).zip(delta) {
        assert!((old + delta - new).abs() < 1e-5);
    }
    let (outer, core, inner) = (values(&outer), values(&core), values(&inner));
    let new = unet(&pipeline, CONV);
    for (o, i, kl) in [(0, 0, 0), (5, 60, 4), (63, 31, 8)] {
        let mut delta = 0f32;
        for p in 0..3 {
            for q in 0..3 {
                delta += outer[o * 3 + p] * core[(p * 3 + q) * 9 + kl] * inner[q * 64 + i];
            }
        }
        let at = (o * 64 + i) * 9 + kl;
        assert!((before[1][at] + 0.5 * delta - new[at]).abs() < 1e-5);
    }
    let delta = values(&(text_up.matmul(&text_down).unwrap() * 0.5).unwrap());
    for ((old, new), delta) in before[2].iter().zip(text(&pipeline)).zip(delta) {
        assert!((old + delta - new).abs() < 1e-5);
    }

    let again = pipeline.draw(&request(vec![]), &mut go_on).unwrap();
    assert_eq!(plain.images, again.images);
    let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    for (before, after) in before.iter().zip([
        unet(&pipeline, LINEAR),
        unet(&pipeline, CONV),
        text(&pipeline),
    ]) {
        assert_eq!(bits(before), bits(&after));
    }
}

#[test]
fn loras_of_other_models_are_refused_and_leave_no_trace() {
    let files = Files {
        folder: tempfile::tempdir().unwrap(),
    };
    let other = files.save(
        "other",
        &[
            (
                "lora_unet_down_blocks_7_resnets_0_conv1.lora_down.weight",
                matrix(1, 64, 0),
            ),
            (
                "lora_unet_down_blocks_7_resnets_0_conv1.lora_up.weight",
                matrix(64, 1, 0),
            ),
        ],
    );
    let narrow = files.save(
        "narrow",
        &[
            (
                "unet.down_blocks.0.resnets.0.conv1.lora_A.weight",
                matrix(1, 64, 0),
            ),
            (
                "unet.down_blocks.0.resnets.0.conv1.lora_B.weight",
                matrix(64, 1, 0),
            ),
        ],
    );
    let oft = files.save("oft", &[("base_model.model.x.oft_r", matrix(1, 1, 0))]);
    let pickle = files.folder.path().join("old.pt");
    std::fs::write(&pickle, b"PK\x03\x04").unwrap();
    let mut pipeline = tiny(PipelineOptions::default());
    let mut go_on = |_| ControlFlow::Continue(());
    for (path, reason) in [
        (other, "another kind of model"),
        (narrow, "merging a LoRA"),
        (oft, "OFT of PEFT"),
        (pickle, "pickle"),
    ] {
        let lora = Lora::new(path.to_str().unwrap(), 1.0);
        let error = pipeline.draw(&request(vec![lora]), &mut go_on).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert!(pipeline.merged.is_empty());
    }
}

#[test]
fn offloaded_networks_leave_the_device_however_a_request_ends() {
    let options = PipelineOptions {
        offload: true,
        ..PipelineOptions::default()
    };
    let mut pipeline = tiny(options);
    let is_resting = |p: &Pipeline| match &p.denoiser {
        Denoiser::UNet(unet) => unet.module.is_resting() && p.vae.is_resting(),
        Denoiser::Transformer(_) => panic!("the built-in model has a UNet"),
    };
    for end in [(Stage::Denoise, 0), (Stage::Denoise, 1), (Stage::Decode, 1)] {
        let mut stop = |progress: Progress| match (progress.stage, progress.step) == end {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let generated = pipeline.draw(&request(vec![]), &mut stop).unwrap();
        assert!(generated.cancelled && is_resting(&pipeline), "{end:?}");
    }
    let mut go_on = |_| ControlFlow::Continue(());
    // A step that fails: the denoiser has no fifth channel.
    let channels = std::mem::replace(&mut pipeline.latent_channels, 5);
    pipeline.draw(&request(vec![]), &mut go_on).unwrap_err();
    pipeline.latent_channels = channels;
    assert!(is_resting(&pipeline));
    // The VAE has no fifth channel, either.
    let wrong = Tensor::zeros((1, 5, 8, 8), DType::F32, &Device::Cpu).unwrap();
    pipeline.vae.decode(&wrong).unwrap_err();
    assert!(is_resting(&pipeline));
    assert!(
        !pipeline
            .draw(&request(vec![]), &mut go_on)
            .unwrap()
            .cancelled
    );
    assert!(is_resting(&pipeline));
}

#[test]
fn a_long_prompt_can_be_stopped_while_it_is_encoded() {
    let mut pipeline = tiny(PipelineOptions::default());
    let long = ImageRequest {
        prompt: "a BREAK ".repeat(40),
        ..request(vec![])
    };
    let mut encoding = |until: usize| {
        let mut asked = 0;
        let mut stop = |progress: Progress| {
            assert_eq!(progress.stage, Stage::Encode);
            asked += 1;
            match asked == until {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let generated = pipeline.draw(&long, &mut stop).unwrap();
        assert!(generated.cancelled);
        asked
    };
    // Both prompts are of 40 chunks then, 8 in each run.
    assert_eq!(encoding(4), 4);
    assert_eq!(encoding(9), 9);
}

#[test]
fn lora_files_stay_open_until_they_change() {
    let files = Files {
        folder: tempfile::tempdir().unwrap(),
    };
    let names = [
        "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_down.weight",
        "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_up.weight",
    ];
    let save = |name: &str, seed: u32| {
        files.save(
            name,
            &[
                (names[0], matrix(4, 64, seed)),
                (names[1], matrix(64, 4, 2)),
            ],
        )
    };
    let (one, two) = (save("one", 1), save("two", 3));
    let mut pipeline = tiny(PipelineOptions::default());
    let mut linear = |path: &std::path::Path| {
        let lora = Lora::new(path.to_str().unwrap(), 1.0);
        pipeline.set_loras(&request(vec![lora])).unwrap();
        let Denoiser::UNet(unet) = &pipeline.denoiser else {
            panic!("the built-in model has a UNet")
        };
        let values = values(unet.module.tensor(LINEAR).unwrap());
        (values, pipeline.lora_files.opened)
    };
    let (first, opened) = linear(&one);
    assert_eq!(opened, 1);
    // The same again, and the same after another one.
    assert_eq!(linear(&one), (first.clone(), 1));
    let (other, opened) = linear(&two);
    assert_eq!(opened, 2);
    assert_ne!(other, first);
    assert_eq!(linear(&one), (first.clone(), 2));
    // Written anew under its name: read anew, though the request is the same.
    assert_eq!(save("one", 3), one);
    assert_eq!(linear(&one), (other.clone(), 3));
    std::fs::remove_file(&two).unwrap();
    let lora = Lora::new(two.to_str().unwrap(), 1.0);
    assert!(pipeline.set_loras(&request(vec![lora])).is_err());
}
