//! Models on several devices: two GPUs where the test run has them, two streams of one GPU, or the CPU twice.

use super::common::{device, go_on, request, tiny_on, Draw};
use super::small::{apart, Pipelines};
use candle_core::rocm_backend::candle_rocm;
use candle_core::{Device, Tensor};
use image::RgbImage;
use sd_worker_rocm::pipeline::{
    Control, GuidancePlace, ImageRequest, Init, Lora, PartSizes, Pipeline, PipelineOptions,
    Placement, Precision,
};
use sd_worker_rocm::request::Limits;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

/// Two devices, and whether they compute the same numbers.
fn two() -> ([Device; 2], bool) {
    let first = device();
    let Device::Rocm(gpu) = &first else {
        return ([first.clone(), first], true);
    };
    let count = candle_rocm::Device::count().unwrap();
    let second = Device::new_rocm(usize::from(count > 1)).unwrap();
    let arch = |gpu: &candle_rocm::Device| gpu.properties().arch.clone();
    let same = arch(gpu.device()) == arch(second.as_rocm_device().unwrap().device());
    ([first, second], same)
}

/// The same pictures, to the bit where devices are of one kind.
fn check(ours: &[RgbImage], theirs: &[RgbImage], same: bool, what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (ours, theirs) in ours.iter().zip(theirs) {
        let apart = apart(ours, theirs);
        assert!(apart <= if same { 0 } else { 1 }, "{what}: {apart}");
    }
}

fn load(model: &Path, place: impl Into<Placement>, offload: bool) -> Pipeline {
    let options = PipelineOptions {
        precision: Precision::F32,
        offload,
        ..PipelineOptions::default()
    };
    Pipeline::load(model, place, options, &mut |_| {}).unwrap()
}

fn draw(pipeline: &mut Pipeline, request: &ImageRequest) -> Vec<RgbImage> {
    pipeline.draw(request, &mut go_on).unwrap().images
}

/// A request of each family, with what else takes part in it; on simulated devices, which are slow, of those with the
/// most parts.
fn cases(p: &Pipelines) -> Vec<(&'static str, ImageRequest)> {
    let mask = image::GrayImage::from_fn(48, 32, |x, _| image::Luma([255 * u8::from(x >= 24)]));
    let init = Init {
        mask: Some(mask),
        ..Init::new(p.picture("start"), 1.0)
    };
    let control = Control {
        strength: 0.8,
        ..Control::new(p.folder("controlnet"), p.picture("hint"))
    };
    let case = |name: &str| ImageRequest {
        steps: 2,
        ..p.request(name)
    };
    let mut cases = vec![
        ("sd35", case("sd35")),
        ("flux", case("flux")),
        ("z_image", case("z_image_guided")),
        ("xl", case("xl")),
        (
            "sd",
            ImageRequest {
                controls: vec![control],
                ..case("control")
            },
        ),
        (
            "inpaint",
            ImageRequest {
                init: Some(init),
                ..case("inpaint")
            },
        ),
    ];
    if !device().is_cpu() {
        cases.retain(|(model, _)| ["sd35", "sd"].contains(model));
    }
    cases
}

#[test]
fn parts_on_two_devices_make_the_same_pictures() {
    let p = Pipelines::open();
    let ([first, second], same) = two();
    let apart = Placement {
        text: second.clone(),
        denoiser: first.clone(),
        vae: second.clone(),
        controlnet: second.clone(),
        guidance: GuidancePlace::Together,
    };
    for (model, request) in cases(&p) {
        let folder = p.folder(model);
        let one = draw(&mut load(&folder, &first, false), &request);
        let two = draw(&mut load(&folder, apart.clone(), false), &request);
        check(&two, &one, same, model);
        if model == "sd35" {
            let offloaded = draw(&mut load(&folder, apart.clone(), true), &request);
            check(&offloaded, &one, same, "offloaded");
        }
    }
}

#[test]
fn the_halves_of_guidance_are_the_same_on_two_devices() {
    let p = Pipelines::open();
    let ([first, second], same) = two();
    let place = |guidance| Placement {
        guidance,
        ..Placement::from(&first)
    };
    for (model, request) in cases(&p) {
        let folder = p.folder(model);
        let with = |place: Placement| draw(&mut load(&folder, place, false), &request);
        let in_turn = with(place(GuidancePlace::InTurn));
        let at_once = with(place(GuidancePlace::Second(second.clone())));
        check(&at_once, &in_turn, same, model);
        // One batch is the same up to rounding.
        check(
            &with(place(GuidancePlace::Together)),
            &in_turn,
            false,
            model,
        );
        let mut pair = [&first, &second].map(|device| load(&folder, device, false));
        let [one, other] = &mut pair;
        let valid = request.clone().valid(one.info(), &Limits::LOCAL).unwrap();
        let paired = one.generate_paired(other, &valid, &mut go_on).unwrap();
        check(&paired.images, &in_turn, same, model);
    }
}

#[test]
fn two_devices_follow_what_a_request_asks_for() {
    let ([first, second], same) = two();
    let folder = tempfile::tempdir().unwrap();
    let layer = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q";
    let matrix = |rows: usize, columns: usize| {
        let all = (0..rows * columns).map(|i| (i * 37 % 19) as f32 / 19.0 - 0.5);
        Tensor::from_iter(all, &Device::Cpu)
            .unwrap()
            .reshape((rows, columns))
            .unwrap()
    };
    let tensors = HashMap::from([
        (format!("{layer}.lora_A.weight"), matrix(4, 64)),
        (format!("{layer}.lora_B.weight"), matrix(64, 4)),
    ]);
    candle_core::safetensors::save(&tensors, folder.path().join("odd.safetensors")).unwrap();
    let open = |guidance| {
        let options = PipelineOptions {
            precision: Precision::F32,
            lora_dirs: vec![folder.path().to_path_buf()],
            ..PipelineOptions::default()
        };
        let place = Placement {
            guidance,
            ..Placement::from(&first)
        };
        tiny_on(place, options)
    };
    let mut one = open(GuidancePlace::InTurn);
    let mut two = open(GuidancePlace::Second(second));
    let plain = ImageRequest {
        width: 64,
        height: 64,
        steps: 2,
        batch: 2,
        ..request("a red circle", 1)
    };
    let lora = |strength| ImageRequest {
        loras: vec![Lora::new("odd", strength)],
        ..plain.clone()
    };
    let unguided = ImageRequest {
        guidance: 1.0,
        ..plain.clone()
    };
    let mut seen: Vec<Vec<RgbImage>> = Vec::new();
    for (what, request) in [
        ("plain", &plain),
        ("a LoRA", &lora(2.0)),
        ("without it", &plain),
        ("without guidance", &unguided),
    ] {
        let pictures = draw(&mut two, request);
        check(&pictures, &draw(&mut one, request), same, what);
        seen.push(pictures);
    }
    assert_ne!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
    assert_ne!(seen[0], seen[3]);

    // Previews, and a stop after a step, which leaves both ready for the next.
    let mut previews = 0;
    let stopped = two.draw(
        &ImageRequest {
            preview_every: 1,
            ..plain.clone()
        },
        &mut |progress| {
            previews += usize::from(progress.preview.is_some());
            match progress.step {
                1 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        },
    );
    assert!(stopped.unwrap().cancelled);
    assert_eq!(previews, 1);
    assert_eq!(draw(&mut two, &plain), seen[0]);
}

#[test]
fn sizes_of_parts_are_known_before_they_are_loaded() {
    let p = Pipelines::open();
    let options = PipelineOptions::default();
    let of = |model: &str| PartSizes::of(Some(&p.folder(model)), &options).unwrap();
    let sd = of("sd35");
    for bytes in [sd.gpu.text, sd.gpu.denoiser, sd.gpu.vae] {
        assert!(bytes > 1 << 10, "{sd:?}");
    }
    // Halves on a GPU, whole numbers on the CPU.
    assert_eq!(sd.cpu.denoiser, 2 * sd.gpu.denoiser);
    assert_eq!(sd.cpu.text, 2 * sd.gpu.text);
    assert!(sd.evaluates_twice && !of("flux").evaluates_twice);
    let wide = PipelineOptions {
        precision: Precision::F32,
        ..options
    };
    let wide = PartSizes::of(None, &wide).unwrap();
    assert_eq!(wide.gpu, wide.cpu);
}
