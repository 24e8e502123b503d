//! SwarmUI's basic calls, as its own pages send them.

use crate::comfy::Socket;
use crate::support::{png, Server};
use sd_worker_rocm::image_io;
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::server::{LoraFolders, ServerOptions};
use serde_json::{json, Value};
use std::time::Duration;

fn server() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ink.safetensors"), "").unwrap();
    let options = ServerOptions {
        loras: LoraFolders::new(vec![folder.path().to_path_buf()]),
        preview_every: 1,
        ..ServerOptions::default()
    };
    (folder, Server::with(QueueOptions::default(), options))
}

fn session(server: &Server) -> String {
    let (status, answer) = server.post("/API/GetNewSession", &json!({}));
    assert_eq!(status, 200, "{answer}");
    answer["session_id"].as_str().unwrap().to_string()
}

/// The text of a picture by its address.
fn text(server: &Server, address: &Value) -> String {
    let (status, _, file) = server.send("GET", &format!("/{}", address.as_str().unwrap()), "", b"");
    assert_eq!(status, 200);
    image_io::parameters_of(&file).unwrap().unwrap()
}

#[test]
fn the_example_of_its_page() {
    let (_folder, server) = server();
    let session = session(&server);
    let body = json!({
        "session_id": session, "images": 2, "prompt": "a cat", "model": "painter", "width": 64, "height": "96",
        "negativeprompt": "dog", "steps": "3", "cfgscale": 6.5, "seed": 5, "sampler": "euler_ancestral", "scheduler": "karras",
        "loras": "ink", "loraweights": "0.5", "clipstopatlayer": -2, "donotsave": true, "aspectratio": "1:1", "vae": "Automatic",
    });
    let (status, answer) = server.post("/API/GenerateText2Image", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["images"].as_array().unwrap().len(), 2);
    let said = text(&server, &answer["images"][1]);
    for part in [
        "a cat\nNegative prompt: dog",
        "Steps: 3, Sampler: Euler a, Schedule type: Karras, CFG scale: 6.5, Seed: 6, Size: 64x96",
        "Clip skip: 2",
        r#"Loras: "ink: 0.5""#,
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let picture = format!(
        "data:image/png;base64,{}",
        image_io::to_base64(&png(64, 64))
    );
    let body = json!({"session_id": session, "images": 1, "prompt": "x", "initimage": picture, "maskimage": picture, "initimagecreativity": 0.5});
    let (_, answer) = server.post("/API/GenerateText2Image", &body);
    let said = text(&server, &answer["images"][0]);
    assert!(
        said.contains("Denoising strength: 0.5, Mask blur: 4"),
        "{said}"
    );
    for (field, value) in [
        ("model", json!("other")),
        ("refinermethod", json!("PostApply")),
        ("seamlesstileable", json!("true")),
        ("steps", json!("many")),
        ("width", json!(-64)),
        ("loraweights", json!("1,2")),
        ("maskimage", json!(picture)),
        ("prompt", json!(5)),
    ] {
        let mut body = json!({"session_id": session, "prompt": "x", "loras": "ink"});
        body[field] = value;
        let (status, answer) = server.post("/API/GenerateText2Image", &body);
        assert_eq!((status, &answer["param"]), (400, &json!(field)), "{answer}");
        assert!(
            answer["error"].as_str().unwrap().contains(field),
            "{answer}"
        );
    }
    let (status, answer) = server.post(
        "/API/GenerateText2Image",
        &json!({"session_id": "?", "prompt": "x"}),
    );
    assert_eq!(
        (status, &answer["error_id"]),
        (401, &json!("invalid_session_id"))
    );
}

#[test]
fn lists_and_status() {
    let (_folder, server) = server();
    let session = session(&server);
    let ask = |call: &str, more: Value| {
        let mut body = json!({"session_id": session});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (status, answer) = server.post(&format!("/API/{call}"), &body);
        assert_eq!(status, 200, "{call}: {answer}");
        answer
    };
    let params = ask("ListT2IParams", json!({}));
    let ids: Vec<&str> = params["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|param| param["id"].as_str().unwrap())
        .collect();
    assert!(ids.contains(&"cfgscale") && ids.contains(&"initimage"));
    assert_eq!(
        params["models"],
        json!({"Stable-Diffusion": ["painter"], "LoRA": ["ink"]})
    );
    let models = ask("ListModels", json!({"path": "", "depth": 2}));
    assert_eq!(models["files"][0]["name"], "painter");
    let loras = ask(
        "ListModels",
        json!({"path": "", "depth": 2, "subtype": "LoRA"}),
    );
    assert_eq!(loras["files"][0]["name"], "ink");
    assert_eq!(
        ask("GetCurrentStatus", json!({}))["status"]["waiting_gens"],
        0
    );
    assert_eq!(ask("InterruptAll", json!({})), json!({"success": true}));
    assert_eq!(server.post("/API/ListModels", &json!({})).0, 401);
}

#[test]
fn progress_by_a_socket_and_interruption() {
    let (_folder, server) = server();
    let session = session(&server);
    let mut socket = Socket::open(&server, "/API/GenerateText2ImageWS");
    socket.write(
        &json!({"session_id": session, "images": 2, "prompt": "slow", "seed": 9, "steps": 6}),
    );
    let (mut images, mut previews, mut last) = (Vec::new(), 0, 0.0);
    while let Some(message) = socket.message() {
        if let Some(progress) = message.get("gen_progress") {
            let percent = progress["overall_percent"].as_f64().unwrap();
            assert!(percent >= last);
            last = percent;
            previews += u32::from(
                progress["preview"]
                    .as_str()
                    .is_some_and(|text| text.starts_with("data:image/png")),
            );
        }
        if let Some(image) = message.get("image") {
            images.push(image.clone());
        }
    }
    assert_eq!(images.len(), 2);
    assert_eq!(images[1]["batch_index"], "1");
    assert!(previews > 0 && last > 0.9, "{previews} {last}");
    assert!(text(&server, &images[1]["image"]).contains("Seed: 10"));
    let mut socket = Socket::open(&server, "/API/GenerateText2ImageWS");
    socket.write(&json!({"session_id": session, "prompt": "slow", "steps": 150}));
    while server.queue.all_running().is_empty() {
        std::thread::sleep(Duration::from_millis(2));
    }
    let (status, _) = server.post("/API/InterruptAll", &json!({"session_id": session}));
    assert_eq!(status, 200);
    let mut errors = 0;
    while let Some(message) = socket.message() {
        errors += u32::from(
            message["error"]
                .as_str()
                .is_some_and(|error| error.contains("cancelled")),
        );
    }
    assert_eq!(errors, 1);
    let mut socket = Socket::open(&server, "/API/GenerateText2ImageWS");
    socket.write(&json!({"session_id": "nobody", "prompt": "x"}));
    assert_eq!(socket.message().unwrap()["error_id"], "invalid_session_id");
}
