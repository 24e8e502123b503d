//! Requests and uploads that ask too much.

use crate::support::{form, generation, png, Server, JSON};
use sd_worker_rocm::image_io;
use serde_json::json;

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
        ("sampler", json!("nowhere"), "sampler"),
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
fn pages_of_others_reach_no_route() {
    let server = Server::start();
    for route in worker::serve::all_routes::<sd_worker_rocm::server::ImageWorker>().iter() {
        let path = route.path().replace("{id}", "x").replace("{n}", "0");
        for lines in [
            "Origin: https://evil.example\r\n",
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n",
        ] {
            let answer = server.send(route.method().as_str(), &path, lines, b"{}");
            assert_eq!(answer.0, 403, "{} {path} {lines}", route.method());
        }
    }
    assert_eq!(server.queue.running().map(|job| job.id), None);
}
