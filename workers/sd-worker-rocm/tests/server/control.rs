//! ControlNets.

use crate::support::{generation, picture, Server};
use crate::{common, hashed, small};
use sd_worker_rocm::image_io;
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::pipeline::PipelineOptions;
use sd_worker_rocm::preprocess::{Kind, NetworkFolders, Preprocessor};
use sd_worker_rocm::server::{ControlFolders, ServerOptions};
use serde_json::{json, Value};

/// A small model with its ControlNet, as tools for the web UI and as rbee's clients ask for it, against diffusers'
/// picture.
#[test]
fn controlnets() {
    let p = small::Pipelines::open();
    let model = p.load(&p.folder("sd"), PipelineOptions::default());
    p.folder("controlnet");
    let options = ServerOptions {
        controls: ControlFolders::new(vec![p.place().to_path_buf()]),
        ..ServerOptions::default()
    };
    let server = Server::over(
        Box::new(model),
        Default::default(),
        QueueOptions::default(),
        options,
    );
    let (_, list) = server.get("/controlnet/model_list");
    assert_eq!(list["model_list"], json!(["controlnet"]));
    let hint = image_io::encode(&p.picture("hint"), image_io::Format::Png, 0, None).unwrap();
    let hint = image_io::to_base64(&hint);
    let unit = json!({
        "enabled": true, "module": "none", "model": "controlnet [0123abcd]", "weight": 0.8, "image": {"image": hint}, "mask": null,
        "resize_mode": "Crop and Resize", "control_mode": "Balanced", "pixel_perfect": true, "processor_res": 512,
        "guidance_start": 0.0, "guidance_end": 1.0,
    });
    let body = |units: Value| {
        json!({
            "prompt": "a red door", "steps": 3, "cfg_scale": 4.0, "width": 48, "height": 32, "seed": 7, "sampler_name": "DDIM",
            "override_settings": {"randn_source": "CPU"}, "alwayson_scripts": {"ControlNet": {"args": units}},
        })
    };
    let (status, answer) = server.post("/sdapi/v1/txt2img", &body(json!([unit])));
    assert_eq!(status, 200, "{answer}");
    let drawn = picture(&answer["images"][0]);
    assert!(small::apart(&drawn, &p.picture("control")) <= 1);
    let mut off = unit.clone();
    off["enabled"] = json!(false);
    let (status, answer) = server.post("/sdapi/v1/txt2img", &body(json!([off])));
    assert_eq!(status, 200, "{answer}");
    let drawn = picture(&answer["images"][0]);
    assert!(small::apart(&drawn, &p.picture("sd")) <= 1);
    // A picture of the request's shape fits in every way.
    for mode in [json!("Just Resize"), json!(1), json!("Resize and Fill")] {
        let mut fitted = unit.clone();
        fitted["resize_mode"] = mode.clone();
        let (status, answer) = server.post("/sdapi/v1/txt2img", &body(json!([fitted])));
        assert_eq!(status, 200, "{answer}");
        let drawn = picture(&answer["images"][0]);
        assert!(small::apart(&drawn, &p.picture("control")) <= 1, "{mode}");
    }
    // Edges steer another way than the picture itself.
    let mut edges = unit.clone();
    edges["module"] = json!("canny");
    let (status, answer) = server.post("/sdapi/v1/txt2img", &body(json!([edges])));
    assert_eq!(status, 200, "{answer}");
    let drawn = picture(&answer["images"][0]);
    assert!(small::apart(&drawn, &p.picture("control")) > 3);
    // The start picture stands in for a unit's own.
    let mut bare = unit.clone();
    bare["image"] = json!("");
    let mut start = body(json!([bare]));
    start["init_images"] = json!([hint]);
    assert_eq!(server.post("/sdapi/v1/img2img", &start).0, 200);
    for (field, value) in [
        ("model", json!("sd")),
        ("module", json!("openpose_full")),
        ("module", json!("softedge_hed")),
        ("control_mode", json!("Nothing is important")),
        ("resize_mode", json!(3)),
        ("weight", json!(3.0)),
        ("guidance_start", json!(1.5)),
        ("image", json!("no picture")),
    ] {
        let mut unit = unit.clone();
        unit[field] = value;
        let (status, answer) = server.post("/sdapi/v1/txt2img", &body(json!([unit])));
        assert_eq!(status, 400, "{field}: {answer}");
    }

    let mut job = generation("a red door");
    for (field, value) in [
        ("steps", json!(3)),
        ("guidance_scale", json!(4.0)),
        ("width", json!(48)),
        ("height", json!(32)),
        ("seed", json!(7)),
        ("sampler", json!("DDIM")),
        ("rng", json!("torch-cpu")),
        (
            "controls",
            json!([{"model": "controlnet", "image": hint, "strength": 0.8}]),
        ),
    ] {
        job[field] = value;
    }
    let id = server.submit(&job);
    let events = server.events(&format!("/v1/jobs/{id}/stream"), "GET", b"");
    let (name, complete) = events.last().unwrap();
    assert_eq!(name, "complete");
    let drawn = picture(&complete["image"]);
    assert!(small::apart(&drawn, &p.picture("control")) <= 1);
}

/// A server tells of the preprocessors whose networks lie in its folder, and runs them.
#[test]
fn preprocessors_by_networks() {
    let folder = tempfile::tempdir().unwrap();
    let options = ServerOptions {
        preprocessors: NetworkFolders::new(vec![folder.path().to_path_buf()]),
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    let listed = |name: &str| {
        let (_, list) = server.get("/controlnet/module_list");
        let modules = list["module_list"]
            .as_array()
            .unwrap()
            .contains(&json!(name));
        assert_eq!(list["module_detail"][name].is_object(), modules);
        let (_, types) = server.get("/controlnet/control_types");
        let types = types["control_types"]["All"]["module_list"].as_array();
        assert_eq!(types.unwrap().contains(&json!(name)), modules);
        modules
    };
    let scene = image::RgbImage::from_fn(40, 32, |x, y| {
        image::Rgb([(x * 6) as u8, (y * 7) as u8, ((x * y) % 255) as u8])
    });
    let bytes = image_io::encode(&scene, image_io::Format::Png, 0, None).unwrap();
    let asked = json!({"controlnet_module": "softedge_hed", "controlnet_images": [image_io::to_base64(&bytes)]});
    let detect = || server.post("/controlnet/detect", &asked);
    assert!(listed("canny") && !listed("softedge_hed"));
    let (status, refused) = detect();
    assert_eq!(status, 400, "{refused}");
    let reason = refused["detail"].as_str().unwrap();
    assert!(reason.contains("softedge_hed") && reason.contains("--preprocessor-dir"));

    let json = common::file("tests/fixtures/networks/preprocessors.json");
    let about: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let shapes = about["hed"]["shapes"].as_object().unwrap().iter();
    let tensors = shapes.map(|(name, shape)| {
        let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
        (name.clone(), hashed::weight("hed", name, &shape))
    });
    let tensors: std::collections::HashMap<_, _> = tensors.collect();
    let path = folder.path().join("ControlNetHED.safetensors");
    candle_core::safetensors::save(&tensors, &path).unwrap();
    // Without another start.
    assert!(listed("softedge_hed") && listed("scribble_hed") && !listed("openpose"));
    let (status, answer) = detect();
    assert_eq!(status, 200, "{answer}");
    let edges = picture(&answer["images"][0]);
    let preprocessor = Preprocessor {
        network: Some(path),
        ..Preprocessor::new(Kind::SoftEdge)
    };
    let expected = preprocessor.run(&scene, &candle_core::Device::Cpu).unwrap();
    assert_eq!(edges, expected);
    let (_, choices) = server.get("/v1/choices");
    let names = choices["preprocessors"].as_array().unwrap();
    assert!(names.iter().any(|row| row["name"] == "softedge-hed"));
    assert!(!names.iter().any(|row| row["name"] == "depth"));
}
