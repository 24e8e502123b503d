//! Clients of the web UI that most programs speak.

use crate::support::{picture, png, Server, JSON};
use sd_worker_rocm::image_io;
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::sampling::Sampler;
use sd_worker_rocm::server::{LoraFolders, ServerOptions};
use serde_json::{json, Value};
use std::io::Read;
use std::time::{Duration, Instant};

#[test]
fn web_ui_clients() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ink.safetensors"), "").unwrap();
    let options = ServerOptions {
        loras: LoraFolders::new(vec![folder.path().to_path_buf()]),
        preview_every: 1,
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    let body = json!({
        "prompt": "a cat <lora:ink:0.5>", "negative_prompt": "dog", "seed": 11, "sampler_name": "DPM++ 2M Karras",
        "steps": 3, "cfg_scale": 6.5, "width": 64, "height": 96, "batch_size": 2, "n_iter": 1, "restore_faces": false,
        "override_settings": {"CLIP_stop_at_last_layers": 2, "randn_source": "CPU"}, "alwayson_scripts": {}, "do_not_save_samples": true,
    });
    let (status, answer) = server.post("/sdapi/v1/txt2img", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["images"].as_array().unwrap().len(), 2);
    assert_eq!(picture(&answer["images"][0]).dimensions(), (64, 96));
    let info: Value = serde_json::from_str(answer["info"].as_str().unwrap()).unwrap();
    assert_eq!(info["all_seeds"], json!([11, 12]));
    let (status, read) = server.post("/sdapi/v1/png-info", &json!({"image": answer["images"][1]}));
    assert_eq!(status, 200);
    for (name, value) in [
        ("Prompt", "a cat"),
        ("Negative prompt", "dog"),
        ("Sampler", "DPM++ 2M"),
        ("Schedule type", "Karras"),
        ("Seed", "12"),
        ("Steps", "3"),
        ("CFG scale", "6.5"),
        ("Size", "64x96"),
        ("Clip skip", "2"),
        ("RNG", "CPU"),
        ("Loras", "ink: 0.5"),
    ] {
        assert_eq!(read["parameters"][name], value, "{read}");
    }
    assert_eq!(info["infotexts"][1], read["info"]);

    let body = json!({"prompt": "x", "init_images": [format!("data:image/png;base64,{}", image_io::to_base64(&png(64, 64)))],
        "mask": image_io::to_base64(&png(64, 64)), "inpainting_mask_invert": 1, "denoising_strength": 0.4});
    let (status, answer) = server.post("/sdapi/v1/img2img", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(picture(&answer["images"][0]).get_pixel(0, 0).0, [9, 8, 7]);

    for (field, value) in [
        ("refiner_checkpoint", json!("refiner")),
        ("restore_faces", json!(true)),
        ("latent_mask", json!("x")),
        ("script_name", json!("x/y/z plot")),
        ("alwayson_scripts", json!({"adetailer": {"args": [true]}})),
        (
            "alwayson_scripts",
            json!({"controlnet": {"args": [{"model": "nowhere"}]}}),
        ),
        (
            "alwayson_scripts",
            json!({"controlnet": {"args": [{"module": "canny"}]}}),
        ),
        ("styles", json!(["a"])),
    ] {
        let mut body = json!({"prompt": "x"});
        body[field] = value;
        let (status, answer) = server.post("/sdapi/v1/txt2img", &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)));
    }
    let nulls =
        json!({"prompt": "x", "styles": null, "subseed_strength": null, "sampler_name": null});
    assert_eq!(server.post("/sdapi/v1/txt2img", &nulls).0, 200);
    let wrong = json!({"prompt": "x", "steps": "many"});
    assert_eq!(
        server.post("/sdapi/v1/txt2img", &wrong).1["error"]["param"],
        "steps"
    );

    // Progress and interruption while it runs.
    let slow = json!({"prompt": "slow", "steps": 150});
    let mut connection = server.open(
        "POST",
        "/sdapi/v1/txt2img",
        JSON,
        slow.to_string().as_bytes(),
    );
    let start = Instant::now();
    let progress = loop {
        let (_, progress) = server.get("/sdapi/v1/progress");
        if progress["state"]["sampling_step"].as_u64() > Some(2) {
            break progress;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{progress}");
    };
    assert!((0.0..1.0).contains(&progress["progress"].as_f64().unwrap()));
    assert!(progress["eta_relative"].as_f64().unwrap() > 0.0);
    picture(&progress["current_image"]);
    assert_eq!(
        server.get("/sdapi/v1/progress?skip_current_image=true").1["current_image"],
        Value::Null
    );
    assert_eq!(server.post("/sdapi/v1/interrupt", &json!({})).0, 200);
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 409") && answer.contains("CANCELLED"),
        "{answer}"
    );

    let (_, samplers) = server.get("/sdapi/v1/samplers");
    assert_eq!(samplers.as_array().unwrap().len(), Sampler::ALL.len());
    assert!(samplers[1]["aliases"]
        .as_array()
        .unwrap()
        .contains(&json!("k_euler_a")));
    let (_, schedulers) = server.get("/sdapi/v1/schedulers");
    let labels: Vec<_> = schedulers
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["label"])
        .collect();
    assert!(labels.contains(&&json!("Karras")), "{schedulers}");
    assert_eq!(
        server.get("/sdapi/v1/sd-models").1[0]["model_name"],
        "painter"
    );
    assert_eq!(server.get("/sdapi/v1/loras").1[0]["name"], "ink");
    assert_eq!(
        server.get("/sdapi/v1/options").1["sd_model_checkpoint"],
        "painter"
    );
    assert_eq!(
        server
            .post(
                "/sdapi/v1/options",
                &json!({"sd_model_checkpoint": "painter"})
            )
            .0,
        200
    );
    assert_eq!(
        server
            .post(
                "/sdapi/v1/options",
                &json!({"sd_model_checkpoint": "other"})
            )
            .0,
        400
    );
    assert_eq!(server.post("/sdapi/v1/options", &json!({"eta": 1})).0, 400);
    let (_, options) = server.get("/sdapi/v1/options");
    assert_eq!(server.post("/sdapi/v1/options", &options).0, 200);
    assert_eq!(
        server.get("/sdapi/v1/progress?skip_current_image=True").0,
        200
    );
}

#[test]
fn options_that_would_change_the_picture_are_followed_or_refused() {
    let server = Server::start();
    let picture = image_io::to_base64(&png(64, 64));
    let body = |field: &str, value: &Value| {
        let mut body = json!({"prompt": "x", "init_images": [picture], "mask": picture});
        body[field] = value.clone();
        body
    };
    for (field, value) in [
        ("inpainting_fill", json!(4)),
        ("s_churn", json!(-0.5)),
        ("s_noise", json!(20)),
        ("styles", json!(["nowhere"])),
        ("styles", json!("nowhere")),
        ("mask_blur_x", json!(7)),
        ("latent_mask", json!("plaid")),
        (
            "alwayson_scripts",
            json!({"Soft Inpainting": {"args": [true, 9]}}),
        ),
        ("inpaint_full_res", json!("perhaps")),
        ("resize_mode", json!(4)),
        ("alwayson_scripts", json!({"ADetailer": {"args": [true]}})),
        ("loras", json!([{"path": "nowhere", "multiplier": 0.5}])),
    ] {
        let sent = if field == "loras" { "lora" } else { field };
        let (status, answer) = server.post("/sdapi/v1/img2img", &body(sent, &value));
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(field)),
            "{value} {answer}"
        );
    }
    // The values that clients send when nothing is asked for, and what changes nothing on its own.
    for (field, value) in [
        ("inpainting_fill", json!(1)),
        ("latent_mask", json!(picture)),
        ("s_churn", json!("0.5")),
        ("s_noise", json!(1.0)),
        ("s_noise", json!(1.003)),
        ("s_tmin", json!(0)),
        ("s_tmax", json!(10.0)),
        ("seed_resize_from_w", json!(-1)),
        ("seed_resize_from_h", json!(0)),
        ("initial_noise_multiplier", json!(1.0)),
        ("subseed", json!(-1)),
        ("subseed_strength", json!("0.5")),
        ("seed_resize_from_w", json!(512)),
        ("mask_blur_x", json!(4)),
        ("hr_scale", json!(2)),
        ("inpaint_full_res", json!(false)),
        ("inpaint_full_res", json!("True")),
        ("inpainting_fill", json!(0)),
        ("inpainting_fill", json!("2")),
        ("resize_mode", json!(2)),
        ("inpaint_full_res_padding", json!(32)),
        ("a_later_version's", json!(1)),
        ("steps", json!("3")),
        ("steps", json!(3.0)),
        ("inpainting_mask_invert", json!(true)),
        ("styles", json!([""])),
        ("styles", json!("")),
        ("clip_skip", json!(2)),
        (
            "alwayson_scripts",
            json!({"ADetailer": {"args": [false]}, "Seed": {"args": [1, false, -1, 0, 0, 0]}}),
        ),
    ] {
        let (status, answer) = server.post("/sdapi/v1/img2img", &body(field, &value));
        assert_eq!(status, 200, "{field} {value} {answer}");
    }
    // Without a mask there is nothing to fill.
    let plain = json!({"prompt": "x", "init_images": [picture], "inpainting_fill": 0});
    assert_eq!(server.post("/sdapi/v1/img2img", &plain).0, 200);
}

#[test]
fn highres_fix_and_churn_are_mapped() {
    let server = Server::start();
    let text = |more: Value| {
        let mut body =
            json!({"prompt": "x", "width": 64, "height": 64, "steps": 3, "sampler_name": "Euler"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (status, answer) = server.post("/sdapi/v1/txt2img", &body);
        if status != 200 {
            return Err(answer["error"]["param"].clone());
        }
        let image = json!({"image": answer["images"][0]});
        Ok(server.post("/sdapi/v1/png-info", &image).1["parameters"].clone())
    };
    let plain = text(json!({"hr_scale": 3, "s_tmax": 0})).unwrap();
    assert_eq!(plain["Hires upscaler"], Value::Null);
    let hr = json!({"enable_hr": "true", "hr_resize_x": "96", "hr_resize_y": 128.0, "hr_upscaler": "Lanczos",
        "hr_second_pass_steps": 2, "denoising_strength": 0.5, "hr_checkpoint_name": "Use same checkpoint"});
    let made = text(hr.clone()).unwrap();
    assert_eq!(
        (&made["Hires upscaler"], &made["Hires steps"]),
        (&json!("Lanczos"), &json!("2"))
    );
    assert_eq!(made["Denoising strength"], "0.5");
    for (field, value) in [
        ("hr_upscaler", json!("nowhere")),
        ("hr_checkpoint_name", json!("other")),
        ("firstphase_width", json!(32)),
        ("hr_sampler_name", json!("nowhere")),
    ] {
        let mut body = hr.clone();
        body[field] = value;
        assert_eq!(text(body).unwrap_err(), field);
    }
    // LoRAs of the second pass are the server's own, too.
    let mut other = hr.clone();
    other["hr_prompt"] = json!("x <lora:/etc/passwd:1>");
    assert_eq!(text(other).unwrap_err(), "loras");
    let churned = text(json!({"s_churn": 2, "override_settings": {"rho": 5}})).unwrap();
    assert_eq!(
        (&churned["Sigma churn"], &churned["Schedule rho"]),
        (&json!("2"), &json!("5"))
    );
    for varied in [
        json!({"seed": 1, "subseed": 9, "subseed_strength": 0.25, "seed_resize_from_w": 32, "seed_resize_from_h": 48}),
        json!({"alwayson_scripts": {"Seed": {"args": [1, true, 9, 0.25, 32, 48]}}}),
    ] {
        let varied = text(varied).unwrap();
        assert_eq!(
            (&varied["Seed"], &varied["Variation seed"]),
            (&json!("1"), &json!("9"))
        );
        assert_eq!(varied["Variation seed strength"], "0.25");
        assert_eq!(varied["Seed resize from"], "32x48");
    }
    let delta = text(json!({"override_settings": {"eta_noise_seed_delta": 31337}})).unwrap();
    assert_eq!(delta["ENSD"], "31337");
    let fast = text(json!({"sampler_name": "DPM fast"})).unwrap();
    assert_eq!(fast["Eta"], "1");
}

#[test]
fn the_web_uis_own_defaults_hold() {
    let server = Server::start();
    let picture = image_io::to_base64(&png(64, 64));
    let text = |more: Value| {
        let mut body = json!({"prompt": "x", "init_images": [picture], "mask": picture});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (status, answer) = server.post("/sdapi/v1/img2img", &body);
        assert_eq!(status, 200, "{answer}");
        let image = json!({"image": answer["images"][0]});
        server.post("/sdapi/v1/png-info", &image).1["parameters"].clone()
    };
    let usual = text(json!({}));
    assert_eq!(usual["Denoising strength"], "0.75");
    assert_eq!(usual["Mask blur"], "4");
    assert_eq!(usual["Masked content"], "fill");
    assert_eq!(usual["Inpaint area"], "Only masked");
    assert_eq!(usual["Masked area padding"], "0");
    let whole = text(json!({"inpaint_full_res": 0, "inpainting_fill": 1}));
    assert_eq!(
        (&whole["Masked content"], &whole["Inpaint area"]),
        (&Value::Null, &Value::Null)
    );
    let both = text(json!({"mask_blur_x": 2, "mask_blur_y": 2, "denoising_strength": 0.5}));
    assert_eq!(both["Denoising strength"], "0.5");
    assert_eq!(both["Mask blur"], "2");
}
