//! stable-diffusion.cpp's API, as its own page documents it.

use crate::support::{info, picture, png, Server};
use sd_worker_rocm::image_io;
use sd_worker_rocm::info::{Takes, VideoInfo};
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::pipeline::{Defaults, ModelInfo};
use sd_worker_rocm::server::{LoraFolders, ServerOptions};
use serde_json::{json, Value};
use std::time::{Duration, Instant};

fn submit(server: &Server, kind: &str, body: &Value) -> String {
    let (status, answer) = server.post(&format!("/sdcpp/v1/{kind}"), body);
    assert_eq!(status, 202, "{answer}");
    assert_eq!(
        (&answer["kind"], &answer["status"]),
        (&json!(kind), &json!("queued"))
    );
    answer["poll_url"].as_str().unwrap().to_string()
}

fn ended(server: &Server, url: &str) -> Value {
    let begun = Instant::now();
    loop {
        let (status, job) = server.get(url);
        assert_eq!(status, 200, "{job}");
        if !["queued", "generating"].contains(&job["status"].as_str().unwrap()) {
            return job;
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The example of its page, smaller.
fn example() -> Value {
    json!({
        "prompt": "a cat sitting on a chair <lora:ink:1>", "negative_prompt": "", "clip_skip": -1, "width": 64, "height": 96,
        "strength": 0.75, "seed": 5, "batch_count": 2, "auto_resize_ref_image": true, "increase_ref_index": false,
        "control_strength": 0.9, "ip_adapter_strength": 1.0, "embed_image_metadata": true, "init_image": null,
        "ref_images": [], "mask_image": null, "control_image": null, "ip_adapter_image": null,
        "sample_params": {
            "scheduler": "karras", "sample_method": "euler_a", "sample_steps": 3, "eta": 1.0, "shifted_timestep": 0,
            "custom_sigmas": [], "flow_shift": 0.0,
            "guidance": {"txt_cfg": 6.5, "img_cfg": 7.0, "distilled_guidance": 3.5,
                "slg": {"layers": [7, 8, 9], "layer_start": 0.01, "layer_end": 0.2, "scale": 0.0}}},
        "lora": [{"path": "sub/ink.safetensors", "multiplier": 0.5}],
        "hires": {"enabled": false, "upscaler": "Latent", "scale": 2.0, "target_width": 0, "target_height": 0, "steps": 0,
            "denoising_strength": 0.7, "custom_sigmas": [], "upscale_tile_size": 128},
        "vae_tiling_params": {"enabled": false, "tile_size_x": 0},
        "cache_mode": "disabled", "cache_option": "", "scm_mask": "", "scm_policy_dynamic": true,
        "output_format": "png", "output_compression": 100,
    })
}

/// `null` is as good as left out.
fn without_nulls(mut body: Value) -> Value {
    body.as_object_mut()
        .unwrap()
        .retain(|_, value| !value.is_null());
    body
}

fn server() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ink.safetensors"), "").unwrap();
    let options = ServerOptions {
        loras: LoraFolders::new(vec![folder.path().to_path_buf()]),
        ..ServerOptions::default()
    };
    (folder, Server::with(QueueOptions::default(), options))
}

#[test]
fn the_example_of_its_page() {
    let (_folder, server) = server();
    for body in [example(), without_nulls(example())] {
        let job = ended(&server, &submit(&server, "img_gen", &body));
        assert_eq!(job["status"], "completed", "{job}");
        let images = job["result"]["images"].as_array().unwrap();
        assert_eq!(
            (images.len(), &job["result"]["output_format"]),
            (2, &json!("png"))
        );
        assert_eq!(picture(&images[1]["b64_json"]).dimensions(), (64, 96));
        let limits = image_io::DecodeLimits::default();
        let file = image_io::from_base64(images[0]["b64_json"].as_str().unwrap(), &limits).unwrap();
        let said = image_io::parameters_of(&file).unwrap().unwrap();
        for part in [
            "a cat sitting on a chair \n",
            "Steps: 3, Sampler: Euler a, Schedule type: Karras, CFG scale: 6.5, Seed: 5",
            r#"Loras: "ink: 0.5""#,
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    let mut body = example();
    body["init_image"] = json!(image_io::to_base64(&png(64, 64)));
    body["hires"] = Value::Null;
    body["output_format"] = json!("jpeg");
    body["embed_image_metadata"] = json!(false);
    let job = ended(&server, &submit(&server, "img_gen", &without_nulls(body)));
    assert_eq!(job["result"]["output_format"], "jpeg");
    let (_, told) = server.get("/sdcpp/v1/capabilities");
    assert_eq!(
        (&told["current_mode"], &told["model"]["name"]),
        (&json!("img_gen"), &json!("painter"))
    );
    assert_eq!(
        told["loras"],
        json!([{"name": "ink", "path": "ink.safetensors"}])
    );
    assert!(told["samplers"]
        .as_array()
        .unwrap()
        .contains(&json!("euler")));
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    let (_folder, server) = server();
    for (field, value) in [
        ("cache_mode", json!("easycache")),
        ("scm_mask", json!("1,0")),
        ("increase_ref_index", json!(true)),
        ("ip_adapter_image", json!("x")),
        ("control_image", json!("x")),
        ("control_frames", json!(["x"])),
        ("mask_image", json!("x")),
        ("video_frames", json!(9)),
        ("output_format", json!("tiff")),
        ("sample_params", json!({"flow_shift": 3.0})),
        ("sample_params", json!({"shifted_timestep": 3})),
        ("lora", json!([{"path": "ink", "is_high_noise": true}])),
        ("nonsense", json!(1)),
    ] {
        let mut body = json!({"prompt": "x"});
        body[field] = value;
        let (status, answer) = server.post("/sdcpp/v1/img_gen", &body);
        assert_eq!(status, 400, "{field}");
        assert!(answer.to_string().contains(field), "{field}: {answer}");
    }
    let (status, answer) = server.post("/sdcpp/v1/vid_gen", &json!({"prompt": "x"}));
    assert_eq!(status, 400);
    assert!(answer.to_string().contains("not videos"), "{answer}");
    assert_eq!(server.get("/sdcpp/v1/jobs/job_1_png_90_1").0, 404);
}

#[test]
fn jobs_are_cancelled() {
    let (_folder, server) = server();
    let slow = json!({"prompt": "slow", "sample_params": {"sample_steps": 150}});
    let url = submit(&server, "img_gen", &slow);
    let (status, _) = server.post(&format!("{url}/cancel"), &json!({}));
    assert_eq!(status, 200);
    let job = ended(&server, &url);
    assert_eq!(
        (&job["status"], &job["error"]["code"]),
        (&json!("cancelled"), &json!("cancelled"))
    );
    assert_eq!(server.post(&format!("{url}/cancel"), &json!({})).0, 409);
}

#[test]
fn videos() {
    let video = VideoInfo {
        time_factor: 4,
        frames: 9,
        fps: 16,
        first: Takes::May,
        last: Takes::Never,
        late: true,
        key_frames: false,
        frame_noise: false,
        denoising_decoder: false,
    };
    let server = Server::of(ModelInfo {
        defaults: Defaults {
            video: Some(video),
            ..info().defaults
        },
        ..info()
    });
    let body = json!({"prompt": "x", "video_frames": 5, "sample_params": {"guidance": {"txt_cfg": 3}},
        "high_noise_sample_params": {"sample_steps": -1, "guidance": {"txt_cfg": 4}}, "output_format": "webp"});
    let job = ended(&server, &submit(&server, "vid_gen", &body));
    assert_eq!(
        (&job["kind"], &job["result"]["mime_type"]),
        (&json!("vid_gen"), &json!("image/webp")),
        "{job}"
    );
    for (field, value) in [
        ("control_frames", json!(["x"])),
        ("mask_image", json!("x")),
        ("output_format", json!("webm")),
        ("high_noise_sample_params", json!({"sample_steps": 4})),
    ] {
        let mut body = json!({"prompt": "x"});
        body[field] = value;
        let (status, answer) = server.post("/sdcpp/v1/vid_gen", &body);
        assert_eq!((status, &answer["param"]), (400, &json!(field)), "{answer}");
    }
}
