//! The routes of the web UI beside those that make pictures, its settings, and errors as its clients read them.

use crate::support::{parse, picture, png, Server, JSON};
use sd_worker_rocm::image_io::{self, Format};
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::prompt::styles::Styles;
use sd_worker_rocm::request::Library;
use sd_worker_rocm::server::ServerOptions;
use sd_worker_rocm::upscale::UpscalerFolders;
use serde_json::{json, Value};

fn base64(width: u32, height: u32) -> String {
    image_io::to_base64(&png(width, height))
}

#[test]
fn every_list_is_there() {
    let server = Server::start();
    for (path, field) in [
        ("/sdapi/v1/cmd-flags", "api"),
        ("/sdapi/v1/embeddings", "loaded"),
        ("/sdapi/v1/scripts", "txt2img"),
        ("/sdapi/v1/memory", "ram"),
        ("/app_id", "app_id"),
        ("/internal/sysinfo", "Version"),
        ("/internal/pending-tasks", "tasks"),
        ("/controlnet/control_types", "control_types"),
        ("/controlnet/settings", "control_net_unit_count"),
    ] {
        let (status, answer) = server.get(path);
        assert_eq!(status, 200, "{path}");
        assert!(!answer[field].is_null(), "{path}: {answer}");
    }
    for (path, least) in [
        ("upscalers", 3),
        ("script-info", 2),
        ("extensions", 1),
        ("sd-models", 1),
        ("sd-vae", 0),
        ("sd-modules", 0),
        ("latent-upscale-modes", 6),
        ("realesrgan-models", 0),
        ("face-restorers", 0),
        ("prompt-styles", 0),
        ("hypernetworks", 0),
        ("artists", 0),
        ("artist-categories", 0),
    ] {
        let (status, answer) = server.get(&format!("/sdapi/v1/{path}"));
        assert_eq!(status, 200, "{path}");
        assert!(
            answer.as_array().unwrap().len() >= least,
            "{path}: {answer}"
        );
    }
    for path in [
        "refresh-checkpoints",
        "refresh-vae",
        "refresh-loras",
        "refresh-embeddings",
        "reload-checkpoint",
    ] {
        let (status, _, body) = server.send("POST", &format!("/sdapi/v1/{path}"), "", b"");
        assert_eq!(status, 200, "{path}");
        serde_json::from_slice::<Value>(&body).unwrap();
    }
    for path in [
        "unload-checkpoint",
        "interrogate",
        "create/embedding",
        "create/hypernetwork",
        "train/embedding",
        "train/hypernetwork",
        "server-kill",
        "server-restart",
        "server-stop",
    ] {
        let (status, answer) = server.post(&format!("/sdapi/v1/{path}"), &json!({}));
        assert_eq!(status, 501, "{path}");
        assert!(answer["detail"].as_str().unwrap().len() > 20, "{answer}");
    }
    assert_eq!(server.get("/internal/ping"), (200, json!({})));
    let (status, head, page) = server.send("GET", "/docs", "", b"");
    assert_eq!(status, 200);
    assert!(head.contains("text/html") && head.contains("default-src 'none'"));
    assert!(String::from_utf8(page).unwrap().contains("openapi.json"));
}

#[test]
fn embeddings_are_listed_with_their_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let vectors =
        candle_core::Tensor::zeros((3, 8), candle_core::DType::F32, &candle_core::Device::Cpu);
    let file = folder.path().join("mood.safetensors");
    vectors
        .unwrap()
        .save_safetensors("emb_params", &file)
        .unwrap();
    let options = ServerOptions {
        embeddings: vec![folder.path().to_path_buf()],
        vae: Some(folder.path().join("soft.safetensors")),
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    let (_, answer) = server.get("/sdapi/v1/embeddings");
    let mood = &answer["loaded"]["mood"];
    assert_eq!((&mood["vectors"], &mood["shape"]), (&json!(3), &json!(8)));
    assert_eq!(
        server.get("/sdapi/v1/sd-vae").1[0]["model_name"],
        "soft.safetensors"
    );
}

#[test]
fn settings_stay_and_can_be_overridden() {
    let server = Server::start();
    let ask = |more: Value| {
        let mut body = json!({"prompt": "x", "width": 64, "height": 64, "seed": 1});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (status, answer) = server.post("/sdapi/v1/txt2img", &body);
        assert_eq!(status, 200, "{answer}");
        let limits = image_io::DecodeLimits::default();
        let bytes = image_io::from_base64(answer["images"][0].as_str().unwrap(), &limits).unwrap();
        let info: Value = serde_json::from_str(answer["info"].as_str().unwrap()).unwrap();
        (bytes, info)
    };
    let is = |bytes: &[u8], format: Format| {
        let found = image::guess_format(bytes).unwrap();
        assert_eq!(found.to_mime_type(), format.media_type());
    };
    let (bytes, info) = ask(json!({}));
    is(&bytes, Format::Png);
    assert_eq!(info["clip_skip"], 0);
    // For one request, …
    let once =
        json!({"override_settings": {"samples_format": "webp", "CLIP_stop_at_last_layers": "2"}});
    let (bytes, info) = ask(once);
    is(&bytes, Format::WebP);
    assert_eq!(info["clip_skip"], 2);
    is(&ask(json!({})).0, Format::Png);
    // … from one on, …
    let on = json!({"override_settings": {"samples_format": "jpg"}, "override_settings_restore_afterwards": false});
    is(&ask(on).0, Format::Jpeg);
    is(&ask(json!({})).0, Format::Jpeg);
    // … and for good.
    let set =
        json!({"samples_format": "png", "enable_pnginfo": false, "CLIP_stop_at_last_layers": 3});
    assert_eq!(server.post("/sdapi/v1/options", &set), (200, json!({})));
    let (bytes, info) = ask(json!({}));
    is(&bytes, Format::Png);
    assert_eq!(info["clip_skip"], 3);
    assert_eq!(image_io::parameters_of(&bytes).unwrap(), None);
    let (_, options) = server.get("/sdapi/v1/options");
    assert_eq!(
        (
            &options["enable_pnginfo"],
            &options["CLIP_stop_at_last_layers"]
        ),
        (&json!(false), &json!(3))
    );
    assert_eq!(server.post("/sdapi/v1/options", &options).0, 200);
    // All or nothing.
    let half = json!({"samples_format": "webp", "tiling": true});
    let (status, refused) = server.post("/sdapi/v1/options", &half);
    assert_eq!(
        (status, &refused["error"]["param"]),
        (400, &json!("tiling"))
    );
    assert_eq!(server.get("/sdapi/v1/options").1["samples_format"], "png");
}

#[test]
fn errors_have_a_detail() {
    let server = Server::with_key();
    let key = format!("{JSON}Authorization: Bearer secret\r\n");
    let post = |path: &str, body: &str| {
        let (status, _, answer) = server.send("POST", path, &key, body.as_bytes());
        (status, parse(&answer))
    };
    for (path, body, status) in [
        ("/sdapi/v1/txt2img", "{", 400),
        (
            "/sdapi/v1/txt2img",
            r#"{"prompt": "x", "steps": "many"}"#,
            400,
        ),
        (
            "/sdapi/v1/txt2img",
            r#"{"prompt": "x", "script_name": "x"}"#,
            400,
        ),
        ("/sdapi/v1/img2img", r#"{"prompt": "x"}"#, 400),
        ("/sdapi/v1/options", r#"{"tiling": true}"#, 400),
        ("/sdapi/v1/png-info", r#"{"image": "?"}"#, 400),
        (
            "/sdapi/v1/extra-single-image",
            r#"{"upscaler_1": "LDSR"}"#,
            400,
        ),
        ("/sdapi/v1/interrogate", "{}", 501),
    ] {
        let (found, answer) = post(path, body);
        assert_eq!(found, status, "{path} {body}");
        let detail = answer["detail"].as_str().unwrap();
        assert_eq!(answer["error"]["message"], detail, "{path}");
    }
    // Without a key, with one as a password, and where nothing is.
    assert_eq!(server.send("GET", "/sdapi/v1/options", "", b"").0, 401);
    let password = format!(
        "Authorization: Basic {}\r\n",
        image_io::to_base64(b"any:secret")
    );
    assert_eq!(
        server.send("GET", "/sdapi/v1/options", &password, b"").0,
        200
    );
    let foreign = format!("{password}Origin: https://evil.example\r\n");
    assert_eq!(
        server.send("GET", "/sdapi/v1/options", &foreign, b"").0,
        403
    );
    let (status, _, body) = server.send("GET", "/sdapi/v1/nowhere", &key, b"");
    assert_eq!(status, 404);
    assert!(parse(&body)["error"]["message"]
        .as_str()
        .unwrap()
        .contains("nowhere"));
}

#[test]
fn batches_follow_each_other() {
    let server = Server::start();
    let body = json!({"prompt": "x", "width": 64, "height": 64, "seed": 5, "batch_size": "2", "n_iter": 10.0,
        "force_task_id": "task(abc)", "steps": 1});
    let (status, answer) = server.post("/sdapi/v1/txt2img", &body);
    assert_eq!(status, 200, "{answer}");
    let info: Value = serde_json::from_str(answer["info"].as_str().unwrap()).unwrap();
    let seeds: Vec<u64> = (5..25).collect();
    assert_eq!(info["all_seeds"], json!(seeds));
    let images = answer["images"].as_array().unwrap();
    assert_eq!(images.len(), 20);
    assert_eq!(picture(&images[19]).get_pixel(0, 0).0[0], 24);
    assert_eq!(answer["parameters"]["n_iter"], 10);
    let ask = json!({"id_task": "task(abc)"});
    let (_, progress) = server.post("/internal/progress", &ask);
    assert_eq!(
        (&progress["completed"], &progress["active"]),
        (&json!(true), &json!(false))
    );
    let none = server
        .post("/internal/progress", &json!({"id_task": "other"}))
        .1;
    assert_eq!(none["completed"], false);
    for (size, count) in [(8, 9), (1, 65), (1, 0)] {
        let many = json!({"prompt": "x", "batch_size": size, "n_iter": count});
        let (status, refused) = server.post("/sdapi/v1/txt2img", &many);
        assert_eq!(
            (status, &refused["error"]["param"]),
            (400, &json!("n_iter"))
        );
    }
    let unsent = json!({"prompt": "x", "width": 64, "height": 64, "send_images": false});
    let (_, answer) = server.post("/sdapi/v1/txt2img", &unsent);
    assert_eq!(answer["images"], json!([]));
}

#[test]
fn pictures_come_back_if_they_are_asked_for() {
    let server = Server::start();
    let image = base64(64, 64);
    for (include, expected) in [(false, Value::Null), (true, json!([image]))] {
        let body = json!({"prompt": "x", "init_images": [image], "width": 64, "height": 64, "include_init_images": include});
        let (status, answer) = server.post("/sdapi/v1/img2img", &body);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["parameters"]["init_images"], expected);
        assert_eq!(answer["parameters"]["prompt"], "x");
    }
}

#[test]
fn networks_make_pictures_larger() {
    let folder = tempfile::tempdir().unwrap();
    let about = std::fs::read("tests/fixtures/networks/upscalers.json").unwrap();
    let about: Value = serde_json::from_slice(&about).unwrap();
    let shapes = about["compact_2x"]["shapes"].as_object().unwrap().iter();
    let tensors = shapes.map(|(name, shape)| {
        let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
        (
            name.clone(),
            crate::hashed::weight("compact_2x", name, &shape),
        )
    });
    let tensors: std::collections::HashMap<_, _> = tensors.collect();
    candle_core::safetensors::save(&tensors, folder.path().join("sharp.safetensors")).unwrap();
    std::fs::write(folder.path().join("broken.safetensors"), "x").unwrap();
    let options = ServerOptions {
        upscalers: UpscalerFolders::new(vec![folder.path().to_path_buf()]),
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    let names = server.get("/sdapi/v1/upscalers").1;
    assert!(
        names
            .as_array()
            .unwrap()
            .iter()
            .any(|row| row["name"] == "sharp"),
        "{names}"
    );
    assert_eq!(
        server.get("/sdapi/v1/realesrgan-models").1[1]["path"],
        "sharp.safetensors"
    );
    // What the picture says of itself stays, with what was done.
    let made = json!({"prompt": "a cat", "width": 64, "height": 64, "steps": 1});
    let (_, made) = server.post("/sdapi/v1/txt2img", &made);
    let larger = |upscaler: &str| {
        let body =
            json!({"image": made["images"][0], "upscaler_1": upscaler, "upscaling_resize": 2});
        server.post("/sdapi/v1/extra-single-image", &body)
    };
    let (status, sharp) = larger("sharp");
    assert_eq!(status, 200, "{sharp}");
    assert_eq!(picture(&sharp["image"]).dimensions(), (128, 128));
    assert_ne!(
        picture(&sharp["image"]),
        picture(&larger("Lanczos").1["image"])
    );
    let (_, info) = server.post("/sdapi/v1/png-info", &json!({"image": sharp["image"]}));
    assert_eq!(
        (
            &info["parameters"]["Prompt"],
            &info["parameters"]["Postprocess upscaler"]
        ),
        (&json!("a cat"), &json!("sharp"))
    );
    let (status, broken) = larger("broken");
    assert_eq!(
        (status, &broken["error"]["param"]),
        (400, &json!("upscaler_1")),
        "{broken}"
    );
    assert!(
        !broken["detail"]
            .as_str()
            .unwrap()
            .contains(folder.path().to_str().unwrap()),
        "{broken}"
    );
}

#[test]
fn styles_are_listed_and_applied() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("styles.csv");
    std::fs::write(
        &file,
        "name,prompt,negative_prompt\nink,\"{prompt}, in ink\",colour\n",
    )
    .unwrap();
    let options = ServerOptions {
        library: Library {
            styles: Styles::open(&file).unwrap(),
            ..Library::default()
        },
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    let expected =
        json!([{"name": "ink", "prompt": "{prompt}, in ink", "negative_prompt": "colour"}]);
    assert_eq!(server.get("/sdapi/v1/prompt-styles").1, expected);
    for (styles, prompt) in [
        (json!(["", "ink"]), "a cat, in ink"),
        (json!("ink"), "a cat, in ink"),
        (json!([""]), "a cat"),
    ] {
        let body = json!({"prompt": "a cat", "width": 64, "height": 64, "styles": styles});
        let (status, answer) = server.post("/sdapi/v1/txt2img", &body);
        assert_eq!(status, 200, "{answer}");
        let image = json!({"image": answer["images"][0]});
        let (_, info) = server.post("/sdapi/v1/png-info", &image);
        assert_eq!(info["parameters"]["Prompt"], prompt);
    }
}

#[test]
fn extras_make_pictures_larger() {
    let server = Server::start();
    let body = json!({"image": base64(24, 16), "upscaler_1": "Lanczos", "upscaling_resize": 2});
    let (status, answer) = server.post("/sdapi/v1/extra-single-image", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(picture(&answer["image"]).dimensions(), (48, 32));
    let body = json!({"imageList": [{"name": "a", "data": base64(8, 8)}, {"name": "b", "data": base64(16, 8)}],
        "upscaler_1": "Nearest", "resize_mode": 1, "upscaling_resize_w": 32, "upscaling_resize_h": 32});
    let (status, answer) = server.post("/sdapi/v1/extra-batch-images", &body);
    assert_eq!(status, 200, "{answer}");
    for image in answer["images"].as_array().unwrap() {
        assert_eq!(picture(image).dimensions(), (32, 32));
    }
    let body = json!({"controlnet_module": "none", "controlnet_images": [base64(8, 8)]});
    let (status, answer) = server.post("/controlnet/detect", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(picture(&answer["images"][0]).dimensions(), (8, 8));
    let body = json!({"controlnet_module": "invert", "controlnet_images": [base64(8, 8)]});
    let inverted = picture(&server.post("/controlnet/detect", &body).1["images"][0]);
    let modules = server.get("/controlnet/module_list").1;
    assert!(modules["module_list"]
        .as_array()
        .unwrap()
        .contains(&json!("canny")));
    let plain = picture(&json!(base64(8, 8)));
    let mut bytes = plain.iter().zip(inverted.iter());
    assert!(bytes.all(|(a, b)| *a == 255 - *b));
    let (status, refused) = server.post(
        "/controlnet/detect",
        &json!({"controlnet_module": "hed", "controlnet_images": []}),
    );
    assert_eq!(status, 400);
    assert!(refused["detail"].as_str().unwrap().contains("hed"));
    let many = json!({"controlnet_module": "none", "controlnet_images": vec![base64(8, 8); 65]});
    let (status, refused) = server.post("/controlnet/detect", &many);
    assert_eq!(
        (status, &refused["error"]["param"]),
        (400, &json!("controlnet_images"))
    );
}
