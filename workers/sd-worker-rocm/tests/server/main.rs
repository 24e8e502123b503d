//! The HTTP server over a stand-in for the model: contracts, limits, the queue, hostile clients, and the page in a browser.

#[allow(dead_code)]
#[path = "../model/common.rs"]
mod common;
#[allow(dead_code)]
#[path = "../model/hashed.rs"]
mod hashed;
mod page;
#[allow(dead_code)]
#[path = "../model/small.rs"]
mod small;
mod support;

use sd_worker_rocm::image_io::{self, DecodeLimits};
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::parameters::Parameters;
use sd_worker_rocm::pipeline::PipelineOptions;
use sd_worker_rocm::server::{ControlFolders, LoraFolders, ServerOptions};
use serde_json::{json, Value};
use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::{form, generation, parse, picture, png, Server, JSON};
use worker::http::ApiKeys;

#[test]
fn the_orchestrators_contract() {
    let server = Server::start();
    let mut body = generation("a slow cat");
    body["seed"] = json!(7);
    body["steps"] = json!(6);
    body["preview_every"] = json!(2);
    let id = server.submit(&body);
    let events = server.events(&format!("/v1/jobs/{id}/stream"), "GET", b"");
    let of = |name: &str| {
        events
            .iter()
            .filter(|(n, _)| n == name)
            .map(|(_, d)| d)
            .collect::<Vec<_>>()
    };
    let progress = of("progress");
    assert!(progress.len() >= 3, "{progress:?}");
    for pair in progress.windows(2) {
        assert!(pair[0]["step"].as_u64() < pair[1]["step"].as_u64());
    }
    let last = progress.last().unwrap();
    assert_eq!(
        (
            last["step"].as_u64(),
            last["total"].as_u64(),
            last["percent"].as_f64()
        ),
        (Some(6), Some(6), Some(100.0))
    );
    assert!(!of("preview").is_empty());
    assert_eq!(picture(&of("preview")[0]["image"]).dimensions(), (64, 64));
    let (name, complete) = events.last().unwrap();
    assert_eq!(
        (name.as_str(), &complete["format"]),
        ("complete", &json!("png"))
    );
    assert_eq!(picture(&complete["image"]).get_pixel(0, 0).0, [7, 0, 0]);

    // The stream of a finished job tells the end again, and the picture can be fetched in every format.
    let again = server.events(&format!("/v1/jobs/{id}/stream"), "GET", b"");
    assert_eq!(again.last().unwrap().1["image"], complete["image"]);
    for (format, media) in [
        ("png", "image/png"),
        ("jpeg", "image/jpeg"),
        ("webp", "image/webp"),
    ] {
        let (status, head, bytes) = server.send(
            "GET",
            &format!("/v1/jobs/{id}/images/0?format={format}"),
            "",
            b"",
        );
        assert_eq!(status, 200);
        assert!(head.contains(media), "{head}");
        let text = image_io::parameters_of(&bytes).unwrap().unwrap();
        let read = Parameters::parse(&text);
        assert_eq!(
            (read.prompt.as_str(), read.get("Seed"), read.get("Sampler")),
            ("a slow cat", Some("7"), Some("DDIM"))
        );
    }
    assert_eq!(server.get(&format!("/v1/jobs/{id}/images/1")).0, 404);

    let mut transform = generation("x");
    transform["operation"] = json!("image_transform");
    assert_eq!(
        server.post("/v1/jobs", &transform).1["error"]["param"],
        "input_image"
    );
    transform["input_image"] = json!(image_io::to_base64(&png(32, 32)));
    let id = server.submit(&transform);
    let events = server.events(&format!("/v1/jobs/{id}/stream"), "GET", b"");
    assert_eq!(
        picture(&events.last().unwrap().1["image"])
            .get_pixel(5, 5)
            .0,
        [9, 8, 7]
    );
    let mut inpaint = generation("x");
    inpaint["operation"] = json!("image_inpaint");
    inpaint["init_image"] = json!(image_io::to_base64(&png(32, 32)));
    assert_eq!(
        server.post("/v1/jobs", &inpaint).1["error"]["param"],
        "mask_image"
    );
    inpaint["mask_image"] = json!(image_io::to_base64(&png(8, 8)));
    server.submit(&inpaint);
}

#[test]
fn requests_that_ask_too_much_are_refused_by_field() {
    let server = Server::start();
    for (field, value, blamed) in [
        ("operation", json!("infer"), "operation"),
        ("prompt", json!(5), "prompt"),
        ("width", json!(100), "width"),
        ("height", json!(4096), "height"),
        ("width", json!(8), "width"),
        ("steps", json!(0), "steps"),
        ("steps", json!(151), "steps"),
        ("steps", json!(-1), "steps"),
        ("guidance_scale", json!(21), "guidance_scale"),
        ("batch", json!(9), "batch"),
        ("sampler", json!("PLMS"), "sampler"),
        ("schedule", json!("fast"), "schedule"),
        ("rng", json!("dice"), "rng"),
        ("eta", json!(1.5), "eta"),
        ("loras", json!([{"path": "/etc/passwd"}]), "loras"),
        ("prompt", json!("x".repeat(70_000)), "prompt"),
    ] {
        let mut body = generation("x");
        body[field] = value;
        let (status, answer) = server.post("/v1/jobs", &body);
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(blamed)),
            "{answer}"
        );
    }
    let (status, _, body) = server.send("POST", "/v1/jobs", JSON, b"{\"operation\":");
    assert_eq!(status, 400, "{}", String::from_utf8_lossy(&body));
    let (status, ..) = server.send("POST", "/v1/jobs", "Content-Type: text/plain\r\n", b"{}");
    assert_eq!(status, 415);
    for path in ["/v1/jobs/x", "/v1/jobs/x/stream", "/v1/jobs/x/images/0"] {
        assert_eq!(server.get(path).0, 404);
    }
}

#[test]
fn hostile_uploads_are_refused() {
    let server = Server::start();
    let mut huge = png(16, 16);
    huge[16..20].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF]);
    let truncated = png(64, 64)[..40].to_vec();
    let bad: [(&str, Vec<u8>); 4] = [
        ("huge", huge),
        ("truncated", truncated),
        (
            "wrong type",
            b"<svg xmlns='http://www.w3.org/2000/svg'/>".to_vec(),
        ),
        ("empty", Vec::new()),
    ];
    for (what, bytes) in &bad {
        let text = image_io::to_base64(bytes);
        let body = json!({"operation": "image_transform", "prompt": "x", "input_image": text});
        assert_eq!(server.post("/v1/jobs", &body).0, 400, "{what}");
        let body = json!({"prompt": "x", "init_images": [text]});
        assert_eq!(server.post("/sdapi/v1/img2img", &body).0, 400, "{what}");
        assert_eq!(
            server.post("/sdapi/v1/png-info", &json!({"image": text})).0,
            400,
            "{what}"
        );
        let (headers, form) = form(&[("prompt", None, b"x"), ("image", Some("a.png"), bytes)]);
        assert_eq!(
            server.send("POST", "/v1/images/edits", &headers, &form).0,
            400,
            "{what}"
        );
    }
    let body =
        json!({"operation": "image_transform", "prompt": "x", "input_image": "no base64 at all"});
    assert_eq!(server.post("/v1/jobs", &body).0, 400);
    // More than the server takes at all.
    let large = vec![b' '; (1 << 20) + 1];
    assert_eq!(server.send("POST", "/v1/jobs", JSON, &large).0, 413);
    let (headers, _) = form(&[]);
    assert_eq!(
        server
            .send(
                "POST",
                "/v1/images/edits",
                &headers,
                b"--frontier\r\nbroken"
            )
            .0,
        400
    );
    let (headers, form) = form(&[
        ("prompt", None, b"x"),
        ("image", Some("a.png"), &png(64, 64)),
    ]);
    let foreign = format!("{headers}Origin: https://elsewhere.example\r\n");
    assert_eq!(
        server.send("POST", "/v1/images/edits", &foreign, &form).0,
        403
    );
    assert_eq!(server.queue.running().map(|job| job.id), None);
}

#[test]
fn openai_clients() {
    let server = Server::start();
    let body = json!({"model": "gpt-image-1", "prompt": "x", "n": 2, "size": "128x64", "seed": 3});
    let (status, answer) = server.post("/v1/images/generations", &body);
    assert_eq!(status, 200, "{answer}");
    assert!(answer["created"].as_u64().unwrap() > 1_600_000_000);
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), 2);
    assert_eq!(picture(&data[1]["b64_json"]).dimensions(), (128, 64));
    assert_eq!(picture(&data[1]["b64_json"]).get_pixel(0, 0).0, [4, 0, 0]);

    let body = json!({"prompt": "x", "response_format": "url", "output_format": "webp"});
    let (_, answer) = server.post("/v1/images/generations", &body);
    let url = answer["data"][0]["url"].as_str().unwrap();
    let path = url
        .strip_prefix(&format!("http://{}", server.address))
        .unwrap();
    let (status, head, bytes) = server.send("GET", path, "", b"");
    assert_eq!(status, 200);
    assert!(head.contains("image/webp"));
    image_io::decode(&bytes, &DecodeLimits::default()).unwrap();

    let body = json!({"prompt": "slow", "stream": true, "partial_images": 1, "steps": 4});
    let events = server.events(
        "/v1/images/generations",
        "POST",
        body.to_string().as_bytes(),
    );
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.last(), Some(&"image_generation.completed"));
    assert_eq!(names[0], "image_generation.partial_image");
    picture(&events.last().unwrap().1["b64_json"]);

    // What is transparent in the mask is painted.
    let mut mask = image::RgbaImage::from_pixel(64, 64, image::Rgba([0, 0, 0, 255]));
    mask.put_pixel(1, 1, image::Rgba([0, 0, 0, 0]));
    let mut file = std::io::Cursor::new(Vec::new());
    mask.write_to(&mut file, image::ImageFormat::Png).unwrap();
    let picture_file = png(64, 32);
    let (headers, body) = form(&[
        ("prompt", None, b"x"),
        ("image", Some("a.png"), &picture_file),
        ("mask", Some("m.png"), file.get_ref()),
        ("seed", None, b"5"),
    ]);
    let (status, _, answer) = server.send("POST", "/v1/images/edits", &headers, &body);
    let answer = parse(&answer);
    assert_eq!(status, 200, "{answer}");
    let edited = picture(&answer["data"][0]["b64_json"]);
    assert_eq!(edited.dimensions(), (88, 48));
    assert_eq!(edited.get_pixel(0, 0).0, [9, 8, 7]);
    for (parts, blamed) in [
        (vec![("image", Some("a.png"), &picture_file[..])], "prompt"),
        (vec![("prompt", None, &b"x"[..])], "image"),
        (
            vec![("prompt", None, &b"x"[..]), ("n", None, &b"two"[..])],
            "n",
        ),
        (
            vec![
                ("prompt", None, &b"x"[..]),
                ("image", Some("a.png"), &picture_file[..]),
                ("mask", Some("m.png"), &picture_file[..]),
            ],
            "mask",
        ),
    ] {
        let (headers, body) = form(&parts);
        let (status, _, answer) = server.send("POST", "/v1/images/edits", &headers, &body);
        assert_eq!(
            (status, &parse(&answer)["error"]["param"]),
            (400, &json!(blamed))
        );
    }
    for body in [
        json!({}),
        json!({"prompt": "x", "size": "big"}),
        json!({"prompt": "x", "n": 0}),
        json!({"prompt": "x", "response_format": "file"}),
    ] {
        assert_eq!(
            server.post("/v1/images/generations", &body).0,
            400,
            "{body}"
        );
    }
    assert_eq!(server.get("/v1/models").1["data"][0]["id"], "painter");
}

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
        ("enable_hr", json!(true)),
        ("restore_faces", json!(true)),
        ("tiling", json!(true)),
        ("script_name", json!("x/y/z plot")),
        ("subseed_strength", json!(0.5)),
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
    assert_eq!(samplers.as_array().unwrap().len(), 10);
    assert!(samplers[1]["aliases"]
        .as_array()
        .unwrap()
        .contains(&json!("k_euler_a")));
    assert_eq!(server.get("/sdapi/v1/schedulers").1[2]["label"], "Karras");
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
}

#[test]
fn the_queue_is_bounded_and_told() {
    let options = QueueOptions {
        capacity: 2,
        ..QueueOptions::default()
    };
    let server = Server::with(options, ServerOptions::default());
    let mut slow = generation("slow");
    slow["steps"] = json!(150);
    let running = server.submit(&slow);
    server.wait_for(&running, "running");
    let first = server.submit(&generation("b"));
    let second = server.submit(&generation("c"));
    let body = generation("d").to_string();
    let (status, head, answer) = server.send("POST", "/v1/jobs", JSON, body.as_bytes());
    assert_eq!(
        (status, &parse(&answer)["error"]["code"]),
        (429, &json!("QUEUE_FULL"))
    );
    assert!(head.to_lowercase().contains("retry-after: 5"), "{head}");
    let position = |id: &str| server.get(&format!("/v1/jobs/{id}")).1["position"].clone();
    assert_eq!((position(&first), position(&second)), (json!(1), json!(2)));

    // A waiting job is called off at once, a running one within a step.
    let (status, ..) = server.send("DELETE", &format!("/v1/jobs/{first}"), "", b"");
    assert_eq!((status, server.state(&first).as_str()), (200, "cancelled"));
    assert_eq!(position(&second), json!(1));
    let before = server.steps.load(Ordering::SeqCst);
    server.post(&format!("/v1/jobs/{running}/cancel"), &json!({}));
    server.wait_for(&running, "cancelled");
    let at = server.get(&format!("/v1/jobs/{running}")).1["step"]
        .as_u64()
        .unwrap() as usize;
    assert!(at <= before + 2, "asked at {before}, stopped at {at}");
    server.wait_for(&second, "completed");
    let events = server.events(&format!("/v1/jobs/{running}/stream"), "GET", b"");
    assert_eq!(events.last().unwrap().1["code"], "CANCELLED");
    assert_eq!(
        server.get("/v1/jobs").1["jobs"].as_array().unwrap().len(),
        3
    );
}

#[test]
fn finished_jobs_are_forgotten() {
    let options = QueueOptions {
        keep: Duration::from_millis(300),
        keep_count: 2,
        ..QueueOptions::default()
    };
    let server = Server::with(options, ServerOptions::default());
    let ids: Vec<_> = (0..3).map(|_| server.submit(&generation("x"))).collect();
    let start = Instant::now();
    while server.get("/v1/jobs").1["jobs"].as_array().unwrap().len() > 2 {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(server.get(&format!("/v1/jobs/{}", ids[0])).0, 404);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(server.get(&format!("/v1/jobs/{}", ids[2])).0, 404);
}

#[test]
fn failures_are_told_and_survived() {
    let server = Server::start();
    for (prompt, status, code) in [
        ("oom", 507, "VRAM_OOM"),
        ("panic", 500, "GENERATION_FAILED"),
    ] {
        let body = json!({"prompt": prompt});
        let (found, answer) = server.post("/v1/images/generations", &body);
        assert_eq!((found, &answer["error"]["code"]), (status, &json!(code)));
        let id = server.submit(&generation(prompt));
        let events = server.events(&format!("/v1/jobs/{id}/stream"), "GET", b"");
        let (name, data) = events.last().unwrap();
        assert_eq!((name.as_str(), &data["code"]), ("error", &json!(code)));
    }
    assert_eq!(
        server
            .post("/v1/images/generations", &json!({"prompt": "x"}))
            .0,
        200
    );
    let (_, _, metrics) = server.send("GET", "/metrics", "", b"");
    let metrics = String::from_utf8(metrics).unwrap();
    for line in [
        "sd_worker_jobs_submitted_total 5",
        "sd_worker_jobs_failed_total 4",
        "sd_worker_jobs_completed_total 1",
        "sd_worker_pictures_total 1",
        "sd_worker_queue_length 0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in\n{metrics}");
    }
}

#[test]
fn two_clients_at_once() {
    let server = Server::start();
    let ask = |seed: u64| {
        let body = json!({"prompt": "slow", "seed": seed, "steps": 5});
        let (status, answer) = server.post("/sdapi/v1/txt2img", &body);
        assert_eq!(status, 200);
        picture(&answer["images"][0]).get_pixel(0, 0).0[0]
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (1..=4)
            .map(|seed| scope.spawn(move || (seed, ask(seed))))
            .collect();
        for client in clients {
            let (seed, red) = client.join().unwrap();
            assert_eq!(u64::from(red), seed);
        }
    });
}

#[test]
fn a_client_that_goes_away_frees_the_model() {
    let server = Server::start();
    let body = json!({"prompt": "slow", "steps": 150}).to_string();
    let connection = server.open("POST", "/sdapi/v1/txt2img", JSON, body.as_bytes());
    let start = Instant::now();
    while server.queue.running().is_none() {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    drop(connection);
    while server.queue.running().is_some() {
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "the job goes on for nobody"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // A job of the asynchronous interface stays.
    let id = server.submit(&generation("slow"));
    drop(server.open("GET", &format!("/v1/jobs/{id}/stream"), "", b""));
    server.wait_for(&id, "completed");
}

#[test]
fn keys_health_and_the_end() {
    let options = ServerOptions {
        keys: ApiKeys::new(["secret".to_string()]),
        device: "a device".to_string(),
        device_fallback: Some("no GPU".to_string()),
        worker_id: Some("w1".to_string()),
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    for (method, path) in [
        ("POST", "/v1/jobs"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/jobs/x/stream"),
        ("POST", "/v1/images/generations"),
        ("POST", "/v1/images/edits"),
        ("POST", "/sdapi/v1/txt2img"),
        ("GET", "/sdapi/v1/progress"),
        ("POST", "/sdapi/v1/interrupt"),
        ("GET", "/info"),
        ("GET", "/v1/models"),
    ] {
        let (status, _, body) = server.send(method, path, JSON, b"{}");
        assert_eq!(
            (status, &parse(&body)["error"]["code"]),
            (401, &json!("MISSING_API_KEY")),
            "{path}"
        );
        let (status, ..) = server.send(method, path, "Authorization: Bearer wrong\r\n", b"");
        assert_eq!(status, 401, "{path}");
    }
    let (status, _, info) = server.send("GET", "/info", "Authorization: Bearer secret\r\n", b"");
    let info = parse(&info);
    assert_eq!(status, 200);
    assert_eq!(
        (&info["id"], &info["status"], &info["model_id"]),
        (&json!("w1"), &json!("ready"), &json!("painter"))
    );
    let (status, health) = server.get("/health");
    assert_eq!(
        (status, &health["status"], &health["device_fallback"]),
        (200, &json!("healthy"), &json!("no GPU"))
    );
    assert!(health["timestamp"].as_u64().unwrap() > 1_600_000_000);
    assert_eq!(server.get("/ready").1["ready"], true);
    let (status, head, page) = server.send("GET", "/", "", b"");
    assert_eq!(status, 200);
    assert!(head
        .to_lowercase()
        .contains("content-security-policy: default-src 'none'"));
    // Nothing from elsewhere.
    let page = String::from_utf8(page).unwrap();
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src=\"//"));

    server.queue.close();
    let (status, ready) = server.get("/ready");
    assert_eq!((status, &ready["ready"]), (503, &json!(false)));
    let body = generation("x").to_string();
    let headers = format!("{JSON}Authorization: Bearer secret\r\n");
    assert_eq!(
        server.send("POST", "/v1/jobs", &headers, body.as_bytes()).0,
        503
    );
}

/// A small model with its ControlNet, as tools for the web UI and as rbee's clients ask for it, against diffusers' picture.
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
    // The start picture stands in for a unit's own.
    let mut bare = unit.clone();
    bare["image"] = Value::Null;
    let mut start = body(json!([bare]));
    start["init_images"] = json!([hint]);
    assert_eq!(server.post("/sdapi/v1/img2img", &start).0, 200);
    for (field, value) in [
        ("model", json!("sd")),
        ("module", json!("canny")),
        ("control_mode", json!("My prompt is more important")),
        ("resize_mode", json!(2)),
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
