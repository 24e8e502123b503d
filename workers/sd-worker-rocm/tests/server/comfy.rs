//! ComfyUI's API: graphs as its clients send them, what they are told, and what is refused.

use crate::small;
use crate::support::{form, info, parse, Server, JSON};
use sd_worker_rocm::image_io;
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::pipeline::{Family, ModelInfo, PipelineOptions};
use sd_worker_rocm::server::{ControlFolders, LoraFolders, ServerOptions};
use serde_json::{json, Value};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// ComfyUI's usual graph.
fn graph() -> Value {
    json!({
        "3": {"class_type": "KSampler", "inputs": {
            "seed": 99, "steps": 3, "cfg": 6.5, "sampler_name": "dpmpp_2m", "scheduler": "karras", "denoise": 1,
            "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]}},
        "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "painter.safetensors"}},
        "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 96, "batch_size": 2}},
        "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a red door", "clip": ["4", 1]}},
        "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "blue", "clip": ["4", 1]}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "doors/red"}},
    })
}

fn with(more: &[(&str, Value)]) -> Value {
    let mut graph = graph();
    for (path, value) in more {
        *graph.pointer_mut(path).unwrap_or(&mut Value::Null) = value.clone();
        let node = path.trim_start_matches('/');
        if !node.contains('/') {
            graph[node] = value.clone();
        }
    }
    graph
}

/// Sends a graph and waits for its history.
fn made(server: &Server, graph: &Value) -> Value {
    let (status, answer) = server.post("/prompt", &json!({"prompt": graph, "client_id": "me"}));
    assert_eq!(status, 200, "{answer}");
    history(server, answer["prompt_id"].as_str().unwrap())
}

fn history(server: &Server, id: &str) -> Value {
    let begun = Instant::now();
    loop {
        let (_, answer) = server.get(&format!("/history/{id}"));
        if let Some(done) = answer.get(id) {
            return done.clone();
        }
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{id} does not end"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A picture's file.
fn view(server: &Server, image: &Value) -> Vec<u8> {
    let part = |name: &str| image[name].as_str().unwrap().replace(' ', "%20");
    let (name, folder, kind) = (part("filename"), part("subfolder"), part("type"));
    let path = format!("/view?filename={name}&subfolder={folder}&type={kind}");
    let (status, head, body) = server.send("GET", &path, "", b"");
    assert_eq!(status, 200, "{head}");
    body
}

fn upload(server: &Server, name: &str, picture: &image::RgbaImage) -> Value {
    let mut png = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut png, image::ImageFormat::Png).unwrap();
    let (head, body) = form(&[
        ("image", Some(name), png.get_ref()),
        ("type", None, b"input"),
    ]);
    let (status, _, answer) = server.send("POST", "/upload/image", &head, &body);
    assert_eq!(status, 200);
    parse(&answer)
}

#[test]
fn the_usual_graph() {
    let server = Server::start();
    let done = made(&server, &graph());
    assert_eq!(done["status"]["status_str"], "success");
    let images = done["outputs"]["9"]["images"].as_array().unwrap();
    assert_eq!(images.len(), 2);
    assert_eq!(
        (&images[0]["subfolder"], &images[0]["type"]),
        (&json!("doors"), &json!("output"))
    );
    let file = view(&server, &images[0]);
    let picture = image_io::decode(&file, &image_io::DecodeLimits::default()).unwrap();
    assert_eq!((picture.width(), picture.height()), (64, 96));
    let said = image_io::parameters_of(&file).unwrap().unwrap();
    for part in [
        "a red door\nNegative prompt: blue",
        "Steps: 3, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 6.5, Seed: 99, Size: 64x96",
        "RNG: CPU",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Another format; what is not there.
    let name = images[1]["filename"].as_str().unwrap();
    let (_, head, webp) = server.send(
        "GET",
        &format!("/api/view?filename={name}&subfolder=doors&preview=webp;80"),
        "",
        b"",
    );
    assert!(head.to_lowercase().contains("image/webp") && webp.starts_with(b"RIFF"));
    assert_eq!(server.get("/view?filename=../x.png").0, 404);
    // The row that clients rebuild graphs from, then nothing of it.
    assert_eq!(done["prompt"][2], graph());
    let id = done["prompt"][1].as_str().unwrap();
    assert_eq!(server.get("/history").1.as_object().unwrap().len(), 1);
    assert_eq!(server.post("/history", &json!({"delete": [id]})).0, 200);
    assert_eq!(server.get("/history").1, json!({}));
    assert_eq!(server.get("/prompt").1["exec_info"]["queue_remaining"], 0);
}

#[test]
fn loras_pictures_and_second_passes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ink.safetensors"), "").unwrap();
    let options = ServerOptions {
        loras: LoraFolders::new(vec![folder.path().to_path_buf()]),
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    let said = |graph: &Value| {
        let done = made(&server, graph);
        let file = view(&server, &done["outputs"]["9"]["images"][0]);
        image_io::parameters_of(&file).unwrap().unwrap()
    };
    let lora = json!({"class_type": "LoraLoader", "inputs": {
        "lora_name": "ink.safetensors", "strength_model": 0.5, "strength_clip": 0.25, "model": ["4", 0], "clip": ["4", 1]}});
    let text = said(&with(&[
        ("/10", lora),
        ("/3/inputs/model", json!(["10", 0])),
        ("/6/inputs/clip", json!(["10", 1])),
        ("/7/inputs/clip", json!(["10", 1])),
    ]));
    assert!(text.contains(r#"Loras: "ink: 0.25:0.5""#), "{text}");
    // From a picture of which the transparent half is painted: the picture's size counts.
    let mut picture = image::RgbaImage::from_pixel(70, 64, image::Rgba([200, 10, 10, 255]));
    for x in 0..35 {
        picture.put_pixel(x, 5, image::Rgba([0, 0, 0, 0]));
    }
    assert_eq!(upload(&server, "start.png", &picture)["name"], "start.png");
    let from = with(&[
        (
            "/11",
            json!({"class_type": "LoadImage", "inputs": {"image": "start.png", "upload": "image"}}),
        ),
        (
            "/12",
            json!({"class_type": "VAEEncode", "inputs": {"pixels": ["11", 0], "vae": ["4", 2]}}),
        ),
        (
            "/13",
            json!({"class_type": "SetLatentNoiseMask", "inputs": {"samples": ["12", 0], "mask": ["11", 1]}}),
        ),
        ("/3/inputs/latent_image", json!(["13", 0])),
        ("/3/inputs/denoise", json!(0.5)),
    ]);
    let text = said(&from);
    // Three steps are the last of six.
    for part in [
        "Steps: 6,",
        "Size: 64x64",
        "Denoising strength: 0.5",
        "Mask blur: 0",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let twice = with(&[
        (
            "/14",
            json!({"class_type": "LatentUpscaleBy", "inputs": {"samples": ["3", 0], "upscale_method": "nearest-exact", "scale_by": 1.5}}),
        ),
        (
            "/15",
            json!({"class_type": "KSampler", "inputs": {
            "seed": 7, "steps": 4, "cfg": 6.5, "sampler_name": "euler", "scheduler": "normal", "denoise": 0.5,
            "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["14", 0]}}),
        ),
        ("/8/inputs/samples", json!(["15", 0])),
    ]);
    let text = said(&twice);
    for part in [
        "Seed: 99",
        "Hires upscale: 1.5",
        "Hires steps: 8",
        "Hires seed: 7",
        "Hires upscaler: Latent (nearest-exact)",
        "Hires sampler: Euler",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn guidance_as_a_condition() {
    let flux = Server::of(ModelInfo {
        family: Family::Flux,
        ..info()
    });
    let said = |graph: &Value| {
        let done = made(&flux, graph);
        let file = view(&flux, &done["outputs"]["9"]["images"][0]);
        image_io::parameters_of(&file).unwrap().unwrap()
    };
    let guided = |cfg: f64| {
        with(&[
            (
                "/16",
                json!({"class_type": "FluxGuidance", "inputs": {"guidance": 2.5, "conditioning": ["6", 0]}}),
            ),
            ("/3/inputs/positive", json!(["16", 0])),
            ("/3/inputs/cfg", json!(cfg)),
            (
                "/7/inputs/text",
                json!(if cfg == 1.0 { "" } else { "blue" }),
            ),
        ])
    };
    let text = said(&guided(1.0));
    assert!(
        text.contains("CFG scale: 2.5,") && !text.contains("True CFG"),
        "{text}"
    );
    let text = said(&guided(4.0));
    assert!(
        text.contains("CFG scale: 2.5,") && text.contains("True CFG scale: 4"),
        "{text}"
    );
    // Without the node the condition is the model's own, 5 here.
    let text = said(&graph());
    assert!(
        text.contains("CFG scale: 5,") && text.contains("True CFG scale: 6.5"),
        "{text}"
    );
}

/// A small model with its ControlNet, asked by a graph, against diffusers' pictures.
#[test]
fn graphs_make_diffusers_pictures() {
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
    let name = server.get("/models/checkpoints").1[0].clone();
    let mut graph = with(&[
        ("/4/inputs/ckpt_name", name),
        ("/5/inputs/width", json!(48)),
        ("/5/inputs/height", json!(32)),
        ("/5/inputs/batch_size", json!(1)),
        ("/7/inputs/text", json!("")),
    ]);
    for (input, value) in [
        ("seed", json!(7)),
        ("cfg", json!(4)),
        ("sampler_name", json!("ddim")),
        ("scheduler", json!("discrete")),
    ] {
        graph["3"]["inputs"][input] = value;
    }
    let drawn = |graph: &Value| {
        let done = made(&server, graph);
        let file = view(&server, &done["outputs"]["9"]["images"][0]);
        image::load_from_memory(&file).unwrap().to_rgb8()
    };
    assert!(small::apart(&drawn(&graph), &p.picture("sd")) <= 1);
    let hint = image::DynamicImage::from(p.picture("hint")).to_rgba8();
    assert_eq!(upload(&server, "hint.png", &hint)["name"], "hint.png");
    graph["17"] = json!({"class_type": "LoadImage", "inputs": {"image": "hint.png"}});
    graph["18"] =
        json!({"class_type": "ControlNetLoader", "inputs": {"control_net_name": "controlnet"}});
    graph["19"] = json!({"class_type": "ControlNetApplyAdvanced", "inputs": {
        "positive": ["6", 0], "negative": ["7", 0], "control_net": ["18", 0], "image": ["17", 0], "strength": 0.8,
        "start_percent": 0, "end_percent": 1}});
    graph["3"]["inputs"]["positive"] = json!(["19", 0]);
    graph["3"]["inputs"]["negative"] = json!(["19", 1]);
    assert!(small::apart(&drawn(&graph), &p.picture("control")) <= 1);
    // For one of the prompts alone it is not followed.
    graph["3"]["inputs"]["negative"] = json!(["7", 0]);
    let (status, answer) = server.post("/prompt", &json!({"prompt": graph}));
    assert_eq!(status, 400);
    assert!(
        answer["node_errors"]["19"]
            .to_string()
            .contains("one of the prompts"),
        "{answer}"
    );
}

#[test]
fn what_is_wrong_is_told_at_the_node() {
    let server = Server::start();
    let refused = |graph: &Value| {
        let (status, answer) = server.post("/prompt", &json!({"prompt": graph}));
        assert_eq!(status, 400, "{answer}");
        answer
    };
    for (change, node, kind) in [
        (("/3/inputs/steps", json!(0)), "3", "value_smaller_than_min"),
        (
            ("/3/inputs/steps", json!("many")),
            "3",
            "invalid_input_type",
        ),
        (
            ("/3/inputs/steps", Value::Null),
            "3",
            "required_input_missing",
        ),
        (
            ("/3/inputs/sampler_name", json!("plaid")),
            "3",
            "value_not_in_list",
        ),
        (
            ("/3/inputs/model", json!(["4", 1])),
            "3",
            "return_type_mismatch",
        ),
        (("/3/inputs/model", json!(["4"])), "3", "bad_linked_input"),
        (
            ("/3/inputs/model", json!(["nowhere", 0])),
            "3",
            "bad_linked_input",
        ),
        (
            ("/4/inputs/ckpt_name", json!("other.safetensors")),
            "4",
            "value_not_in_list",
        ),
        (("/5/inputs/width", json!(65)), "3", "not_implemented"),
        (("/3/inputs/denoise", json!(0.5)), "3", "not_implemented"),
    ] {
        let (path, value) = change;
        let answer = refused(&with(&[(path, value)]));
        assert_eq!(
            answer["error"]["type"], "prompt_outputs_failed_validation",
            "{answer}"
        );
        assert_eq!(
            answer["node_errors"][node]["errors"][0]["type"], kind,
            "{path}: {answer}"
        );
        assert!(!answer["error"]["details"].as_str().unwrap().is_empty());
    }
    let mender = json!({"class_type": "FaceMender", "inputs": {}});
    let answer = refused(&with(&[("/20", mender)]));
    assert_eq!(answer["error"]["type"], "missing_node_type");
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("FaceMender"),
        "{answer}"
    );
    // A node that is known, in a place where it is not followed.
    let scale = json!({"class_type": "ImageScale", "inputs": {
        "image": ["8", 0], "upscale_method": "area", "width": 32, "height": 32, "crop": "disabled"}});
    let answer = refused(&with(&[
        ("/20", scale),
        ("/9/inputs/images", json!(["20", 0])),
    ]));
    assert!(answer.to_string().contains("ImageScale"), "{answer}");
    for (graph, kind) in [
        (json!({}), "prompt_no_outputs"),
        (json!([]), "invalid_prompt"),
        (json!({"1": 5}), "invalid_prompt"),
        (
            json!({"1": {"class_type": "KSampler"}}),
            "missing_node_type",
        ),
        (
            with(&[("/3/inputs/latent_image", json!(["3", 0]))]),
            "dependency_cycle",
        ),
        (
            with(&[
                (
                    "/12",
                    json!({"class_type": "LatentUpscaleBy", "inputs": {"samples": ["3", 0], "upscale_method": "bilinear", "scale_by": 2}}),
                ),
                ("/3/inputs/latent_image", json!(["12", 0])),
            ]),
            "dependency_cycle",
        ),
    ] {
        assert_eq!(refused(&graph)["error"]["type"], kind, "{graph}");
    }
    let mut large = graph();
    for i in 100..2200 {
        large[i.to_string()] =
            json!({"class_type": "PreviewImage", "inputs": {"images": ["8", 0]}});
    }
    assert!(refused(&large).to_string().contains("2000 nodes"));
    let (status, answer) = server.post("/prompt", &json!({}));
    assert_eq!(
        (status, &answer["error"]["type"]),
        (400, &json!("no_prompt"))
    );
    let (status, answer) = server.post("/prompt", &json!({"prompt": graph(), "front": true}));
    assert_eq!(
        (status, &answer["error"]["type"]),
        (400, &json!("not_implemented"))
    );
    // As ComfyUI's own example sends it, and cut off.
    let text = json!({"prompt": graph()}).to_string();
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!(server.send("POST", "/prompt", form, text.as_bytes()).0, 200);
    assert_eq!(
        server.send("POST", "/prompt", "", &text.as_bytes()[..50]).0,
        400
    );
    let foreign = "Origin: http://elsewhere.example\r\n";
    assert_eq!(
        server.send("POST", "/prompt", foreign, text.as_bytes()).0,
        403
    );
    while server.get("/prompt").1["exec_info"]["queue_remaining"] != 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    // Nothing of all that is in line.
    assert_eq!(
        server.get("/queue").1,
        json!({"queue_running": [], "queue_pending": []})
    );
}

#[test]
fn queues_and_interruption() {
    let server = Server::start();
    let slow = with(&[
        ("/6/inputs/text", json!("slow")),
        ("/3/inputs/steps", json!(150)),
    ]);
    let submit = |id: &str| {
        let (status, answer) =
            server.post("/api/prompt", &json!({"prompt": slow, "prompt_id": id}));
        assert_eq!(
            (status, &answer["prompt_id"]),
            (200, &json!(id)),
            "{answer}"
        );
    };
    submit("first");
    submit("second");
    let (status, answer) = server.post("/prompt", &json!({"prompt": slow, "prompt_id": "second"}));
    assert_eq!(status, 400, "{answer}");
    let begun = Instant::now();
    while server.get("/queue").1["queue_running"][0][1] != "first"
        || server.get("/queue").1["queue_pending"][0][1] != "second"
    {
        assert!(begun.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(server.get("/prompt").1["exec_info"]["queue_remaining"], 2);
    assert_eq!(server.post("/queue", &json!({"delete": ["second"]})).0, 200);
    let done = history(&server, "second");
    assert_eq!(done["status"]["messages"][0][0], "execution_interrupted");
    assert_eq!(server.post("/queue", &json!({"delete": 5})).0, 400);
    let (status, ..) = server.send("POST", "/interrupt", "", b"");
    assert_eq!(status, 200);
    let done = history(&server, "first");
    assert_eq!(
        done["status"],
        json!({
            "status_str": "error", "completed": false, "messages": done["status"]["messages"],
        })
    );
    // What fails says why.
    let done = made(&server, &with(&[("/6/inputs/text", json!("oom"))]));
    let told = done["status"]["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap();
    assert_eq!(
        (&told[0], &told[1]["exception_type"]),
        (&json!("execution_error"), &json!("VRAM_OOM"))
    );
}

#[test]
fn what_clients_look_at() {
    let server = Server::start();
    let (_, info) = server.get("/object_info");
    assert_eq!(
        info["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0],
        json!(["painter"])
    );
    let samplers = info["KSampler"]["input"]["required"]["sampler_name"][0]
        .as_array()
        .unwrap();
    assert!(samplers.contains(&json!("euler_ancestral")) && samplers.len() > 20);
    assert_eq!(info["SaveImage"]["output_node"], true);
    assert_eq!(
        server.get("/object_info/KSampler").1["KSampler"],
        info["KSampler"]
    );
    assert_eq!(server.get("/object_info/Nothing").1, json!({}));
    let (_, stats) = server.get("/system_stats");
    assert!(stats["system"]["ram_total"].as_u64().unwrap() > 0 && stats["devices"].is_array());
    assert_eq!(server.get("/models/checkpoints").1, json!(["painter"]));
    assert_eq!(server.get("/models/nothing").0, 404);
    for path in ["/embeddings", "/extensions"] {
        assert_eq!(server.get(path), (200, json!([])), "{path}");
    }
    let (head, body) = form(&[("image", Some("a.png"), b"no picture")]);
    assert_eq!(server.send("POST", "/upload/image", &head, &body).0, 400);
    let (head, body) = form(&[("image", Some("../a.png"), &crate::support::png(8, 8))]);
    assert_eq!(server.send("POST", "/upload/image", &head, &body).0, 400);
}

/// A WebSocket client, as little of one as is needed.
pub struct Socket(TcpStream);

impl Socket {
    pub fn open(server: &Server, path: &str) -> Self {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let address = &server.address;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        // RFC 6455's own example.
        assert!(
            head.starts_with("HTTP/1.1 101") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
            "{head}"
        );
        Self(stream)
    }

    /// Sends JSON, masked with zeros.
    pub fn write(&mut self, message: &Value) {
        let text = message.to_string();
        let length = text.len();
        let mut frame = vec![0x81];
        match length {
            0..=125 => frame.push(0x80 | length as u8),
            _ => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend(text.bytes());
        self.0.write_all(&frame).unwrap();
    }

    /// The next text as JSON; nothing once it is closed.
    pub fn message(&mut self) -> Option<Value> {
        loop {
            match self.read() {
                (1, body) => return Some(parse(&body)),
                (8, _) => return None,
                _ => {}
            }
        }
    }

    /// The next message: what it is, and its bytes.
    fn read(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).unwrap();
        let length = match head[1] & 127 {
            126 => {
                let mut long = [0; 2];
                self.0.read_exact(&mut long).unwrap();
                u64::from(u16::from_be_bytes(long))
            }
            127 => {
                let mut long = [0; 8];
                self.0.read_exact(&mut long).unwrap();
                u64::from_be_bytes(long)
            }
            short => u64::from(short),
        };
        let mut body = vec![0; length as usize];
        self.0.read_exact(&mut body).unwrap();
        (head[0] & 15, body)
    }
}

#[test]
fn sockets_tell_what_goes_on() {
    let options = ServerOptions {
        preview_every: 1,
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    // Slow enough that steps are seen one by one.
    let slow = with(&[
        ("/6/inputs/text", json!("slow")),
        ("/3/inputs/steps", json!(6)),
    ]);
    let mut mine = Socket::open(&server, "/ws?clientId=me");
    let hello = parse(&mine.read().1);
    assert_eq!(
        (&hello["type"], &hello["data"]["sid"]),
        (&json!("status"), &json!("me"))
    );
    let mut other = Socket::open(&server, "/api/ws");
    assert_eq!(parse(&other.read().1)["type"], "status");
    let (_, answer) = server.post("/prompt", &json!({"prompt": slow, "client_id": "me"}));
    let id = answer["prompt_id"].clone();
    let (mut kinds, mut previews, mut files) = (Vec::new(), 0, 0);
    loop {
        let (kind, body) = mine.read();
        if kind == 2 {
            assert_eq!(body[..8], [0, 0, 0, 1, 0, 0, 0, 2]);
            image::load_from_memory(&body[8..]).unwrap();
            previews += 1;
            continue;
        }
        let message = parse(&body);
        let kind = message["type"].as_str().unwrap().to_string();
        if kind != "status" {
            assert_eq!(message["data"]["prompt_id"], id);
        }
        if kind == "executed" {
            files = message["data"]["output"]["images"]
                .as_array()
                .unwrap()
                .len();
        }
        let ends = kind == "executing" && message["data"]["node"].is_null();
        if kinds.last() != Some(&kind) {
            kinds.push(kind);
        }
        if ends {
            break;
        }
    }
    assert_eq!(files, 2);
    assert!(previews > 0);
    kinds.retain(|kind| kind != "status");
    kinds.dedup();
    assert_eq!(
        kinds[..3],
        ["execution_start", "execution_cached", "executing"]
    );
    assert!(kinds.contains(&"progress".to_string()), "{kinds:?}");
    assert_eq!(
        kinds[kinds.len() - 3..],
        ["executed", "execution_success", "executing"]
    );
    // The other one hears of the queue alone.
    let (kind, body) = other.read();
    assert_eq!((kind, &parse(&body)["type"]), (1, &json!("status")));
    // Without an upgrade it is an error that says so.
    let (status, _, answer) = server.send("GET", "/ws", JSON, b"");
    assert_eq!(status, 400);
    assert!(parse(&answer)["error"]["message"]
        .as_str()
        .unwrap()
        .contains("WebSocket"));
}

#[test]
fn foreign_pages_open_no_sockets() {
    let server = Server::start();
    let headers = "Origin: http://elsewhere.example\r\nUpgrade: websocket\r\n";
    let (status, ..) = server.send("GET", "/ws", headers, b"");
    assert_eq!(status, 403);
}
