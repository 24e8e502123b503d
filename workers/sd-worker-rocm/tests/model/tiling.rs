//! Pictures whose opposite edges meet, against diffusers with patched convolutions (`tests/reference/make_tiling.py`), and
//! rolled ones: what moves out at one edge comes in at the other.

use super::common::{device, difference, go_on, Draw};
use super::hashed::weight;
use super::small::{apart, Pipelines};
use candle_core::{DType, Tensor};
use sd_worker_rocm::editing::resize::Filter;
use sd_worker_rocm::models::codec::LatentCodec;
use sd_worker_rocm::models::unet::config::UNetConfig;
use sd_worker_rocm::models::unet::{Extra, UNet};
use sd_worker_rocm::models::vae::{Vae, VaeConfig};
use sd_worker_rocm::models::wrap::Wrap;
use sd_worker_rocm::models::VarBuilder;
use sd_worker_rocm::pipeline::{Control, ImageRequest, Init, PipelineOptions, Switch};
use sd_worker_rocm::request::{HighresFields, Limits, Seamless};
use sd_worker_rocm::upscale::{enlarge_seamless, Method};

fn tiling(tile_x: bool, tile_y: bool) -> impl Fn(&mut ImageRequest) {
    move |request| {
        request.tuning.seamless = Seamless {
            tiling: tile_x && tile_y,
            tile_x,
            tile_y,
        }
    }
}

#[test]
fn textures() {
    let p = Pipelines::of("tiling");
    let mut pipeline = p.load(&p.folder("tiling"), PipelineOptions::default());
    for (case, x, y) in [("both", true, true), ("x", true, false), ("y", false, true)] {
        p.check_with(&mut pipeline, case, tiling(x, y));
        p.differs(&mut pipeline, case, tiling(!x, y));
    }
    let from_picture = |on| {
        let init = Init::new(p.picture("start"), 0.7);
        move |request: &mut ImageRequest| {
            tiling(on, on)(request);
            request.init = Some(init.clone());
        }
    };
    p.check_with(&mut pipeline, "from_picture", from_picture(true));
    p.differs(&mut pipeline, "from_picture", from_picture(false));
    // The VAE in tiles sees what lies at the other edge, too.
    let mut tiled = p.load(
        &p.folder("tiling"),
        PipelineOptions {
            vae_tiling: Switch::On,
            ..PipelineOptions::default()
        },
    );
    p.check_with(&mut tiled, "x", tiling(true, false));

    let mut pipeline = p.load(&p.folder("steered"), PipelineOptions::default());
    let steered = |on| {
        let folder = p.folder("steered").join("controlnet");
        let control = Control::new(folder, p.picture("start"));
        move |request: &mut ImageRequest| {
            tiling(on, on)(request);
            request.controls = vec![control.clone()];
        }
    };
    p.check_with(&mut pipeline, "steered", steered(true));
    p.differs(&mut pipeline, "steered", steered(false));
}

/// Moved down and to the right by so much, where it comes in again at the other side.
fn rolled(x: &Tensor, down: usize, right: usize) -> Tensor {
    let x = x.roll(down as i32, 2).unwrap();
    x.roll(right as i32, 3).unwrap()
}

#[test]
fn rolled_latents_make_rolled_pictures() {
    let p = Pipelines::of("tiling");
    let folder = p.folder("tiling");
    let json = |part: &str| std::fs::read(folder.join(part).join("config.json")).unwrap();
    let build = |part: &str, wrap| {
        let file = format!("{part}/diffusion_pytorch_model.safetensors");
        let tensors = p.weights("tiling", &file);
        VarBuilder::from_tensors(tensors, DType::F32, &device()).wrapped(wrap)
    };
    let on = |x, y| Wrap { x, y };
    let noise = weight("tiling", "noise", &[1, 4, 16, 24]);
    let noise = noise.to_device(&device()).unwrap();
    let text = weight("tiling", "text", &[1, 5, 32]);
    let text = text.to_device(&device()).unwrap();
    let config: UNetConfig = serde_json::from_slice(&json("unet")).unwrap();
    let denoised = |wrap, x: &Tensor| {
        let unet = UNet::new(build("unet", wrap), &config).unwrap();
        let condition = unet.condition(&text, &Extra::default()).unwrap();
        unet.forward(x, 500.0, &condition, None).unwrap()
    };
    let config: VaeConfig = serde_json::from_slice(&json("vae")).unwrap();
    let decoded = |wrap, tile, x: &Tensor| {
        let vae = Vae::new(build("vae", wrap), &config).unwrap();
        vae.decode(x, tile).unwrap()
    };
    let encoded = |wrap, x: &Tensor| {
        let vae = Vae::new(build("vae", wrap), &config).unwrap();
        vae.encode(x).unwrap()
    };
    // By multiples of what the networks halve.
    let (down, right) = (4, 10);
    let moved = rolled(&noise, down, right);
    for wrap in [on(true, true), on(true, false), on(false, true)] {
        let both = wrap == on(true, true);
        let same = |a: Tensor, b: Tensor| difference(&a, &b) < 1e-4;
        let whole = denoised(wrap, &noise);
        assert_eq!(
            same(denoised(wrap, &moved), rolled(&whole, down, right)),
            both
        );
        let picture = decoded(wrap, None, &noise);
        for tile in [None, Some(7)] {
            let made = decoded(wrap, tile, &moved);
            assert_eq!(same(made, rolled(&picture, 2 * down, 2 * right)), both);
        }
        let latents = encoded(wrap, &picture);
        let made = encoded(wrap, &rolled(&picture, 2 * down, 2 * right));
        assert_eq!(same(made, rolled(&latents, down, right)), both);
        let (down, right) = if wrap.y { (down, 0) } else { (0, right) };
        let made = denoised(wrap, &rolled(&noise, down, right));
        assert!(same(made, rolled(&whole, down, right)));
    }
}

#[test]
fn a_second_pass_and_other_families() {
    let p = Pipelines::of("tiling");
    let mut pipeline = p.load(&p.folder("tiling"), PipelineOptions::default());
    let mut first = p.request("both");
    tiling(true, true)(&mut first);
    let method = Method::of("lanczos").unwrap();
    let highres = HighresFields {
        width: Some(72),
        height: Some(48),
        strength: Some(0.5),
        method: Some(method),
        ..HighresFields::default()
    };
    let highres = highres.build(&first).unwrap();
    let mut draw = |request: &ImageRequest| {
        let mut drawn = pipeline.draw(request, &mut go_on).unwrap();
        drawn.images.remove(0)
    };
    let small = draw(&first);
    let larger = |wrap| {
        let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
        let larger = enlarge_seamless(&small, None, Filter::Lanczos, (72, 48), wrap, &mut go_on);
        larger.unwrap().unwrap()
    };
    let wrap = first.tuning.seamless.wrap();
    assert!(apart(&larger(wrap), &larger(Wrap::default())) > 3);
    let by_hand = ImageRequest {
        init: Some(Init::new(larger(wrap), 0.5)),
        ..highres.request(&first)
    };
    let twice = ImageRequest {
        highres: Some(highres),
        ..first.clone()
    };
    assert_eq!(apart(&draw(&by_hand), &draw(&twice)), 0);
    let mut request = p.request("both");
    tiling(true, false)(&mut request);
    let mut info = pipeline.info().clone();
    info.family = sd_worker_rocm::info::Family::Flux;
    let refused = request.valid(&info, &Limits::LOCAL).unwrap_err();
    assert_eq!(refused.field, "tile_x");
}
