//! ControlNets.

use crate::small;
use crate::support::{generation, picture, Server};
use sd_worker_rocm::image_io;
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::pipeline::PipelineOptions;
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
