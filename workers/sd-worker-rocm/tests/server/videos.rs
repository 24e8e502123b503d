//! Videos over HTTP: OpenAI's routes, and jobs.

use crate::support::{form, info, parse, png, Server};
use sd_worker_rocm::image_io;
use sd_worker_rocm::pipeline::{Defaults, ModelInfo};
use serde_json::{json, Value};

/// A server with a model of videos.
fn server() -> Server {
    let usual = info();
    Server::of(ModelInfo {
        defaults: Defaults {
            video: Some(sd_worker_rocm::info::VideoInfo {
                time_factor: 4,
                frames: 9,
                fps: 16,
                first: sd_worker_rocm::info::Takes::May,
                last: sd_worker_rocm::info::Takes::Never,
                late: false,
                key_frames: false,
                frame_noise: false,
                denoising_decoder: false,
            }),
            ..usual.defaults
        },
        ..usual
    })
}

/// A picture in base64.
fn picture() -> String {
    let picture = image::RgbImage::from_pixel(64, 64, image::Rgb([9, 8, 7]));
    let png = image_io::encode(&picture, image_io::Format::Png, 0, None).unwrap();
    image_io::to_base64(&png)
}

fn finished(server: &Server, path: &str) -> Value {
    for _ in 0..200 {
        let (status, video) = server.get(path);
        assert_eq!(status, 200, "{video}");
        if video["status"] != "queued" && video["status"] != "in_progress" {
            return video;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{path} does not end")
}

#[test]
fn created_asked_about_and_fetched() {
    let server = server();
    let body = json!({"model": "any", "prompt": "a red door", "size": "512x512", "seconds": "1", "seed": 5, "input_reference": picture()});
    let (status, video) = server.post("/v1/videos", &body);
    assert_eq!(status, 200, "{video}");
    assert_eq!(video["object"], "video");
    assert_eq!(video["size"], "512x512");
    // A second of 16 frames is 17, one more than a multiple of 4.
    assert_eq!(video["seconds"], "1.1");
    let path = format!("/v1/videos/{}", video["id"].as_str().unwrap());
    let video = finished(&server, &path);
    assert_eq!(video["status"], "completed", "{video}");
    assert_eq!(video["progress"], 100.0);
    let (status, headers, bytes) = server.send("GET", &format!("{path}/content"), "", b"");
    assert_eq!(status, 200);
    assert!(
        headers.to_lowercase().contains("content-type: video/mp4"),
        "{headers}"
    );
    assert_eq!(bytes, b"17 frames of 5");
    let (_, list) = server.get("/v1/videos");
    assert_eq!(list["data"][0]["id"], video["id"]);
    assert_eq!(server.get("/v1/videos/video_unknown").0, 404);
}

#[test]
fn what_is_not_possible_is_named() {
    let server = server();
    let with = |more: Value| {
        let mut body = json!({"prompt": "a red door", "size": "512x512"});
        let fields = body.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        body
    };
    for (more, named) in [
        (json!({"frames": 8}), "5 or 9"),
        (json!({"frames": 9, "seconds": 1}), "both the length"),
        (json!({"seconds": "soon"}), "not a number"),
        (json!({"seconds": 1e9}), "3600"),
        (json!({"frames": 1025}), "257"),
        (json!({"size": "large"}), "large"),
        (json!({"fps": 0}), "fps"),
        (json!({"last_frame": picture()}), "last_frame"),
        (json!({"video_format": "avi"}), "mp4, webp or gif"),
        (json!({"first_frame": "AAAA"}), "first_frame"),
        (json!({"quality": "hd"}), "quality"),
    ] {
        let (status, answer) = server.post("/v1/videos", &with(more.clone()));
        assert!(status == 400 || status == 422, "{more}: {status} {answer}");
        assert!(answer.to_string().contains(named), "{more}: {answer}");
    }
    // A model of pictures makes none.
    let pictures = Server::of(info());
    let (status, answer) = pictures.post("/v1/videos", &with(json!({})));
    assert_eq!(status, 400, "{answer}");
}

#[test]
fn jobs_have_videos_where_the_model_makes_them() {
    let server = server();
    let body = json!({
        "operation": "image_generation", "prompt": "a red door", "width": 512, "height": 512, "seed": 7, "frames": 5, "fps": 8, "video_format": "webp",
        "first_frame": picture(),
    });
    let id = server.submit(&body);
    server.wait_for(&id, "completed");
    let (_, job) = server.get(&format!("/v1/jobs/{id}"));
    let image = &job["images"][0];
    let url = image["video_url"].as_str().unwrap();
    let (status, headers, bytes) = server.send("GET", url, "", b"");
    assert_eq!(status, 200, "{headers}");
    assert!(
        headers.to_lowercase().contains("content-type: image/webp"),
        "{headers}"
    );
    assert_eq!(bytes, b"5 frames of 7");
    let parameters = image["parameters"].as_str().unwrap();
    assert!(parameters.contains("Frames: 5, FPS: 8"), "{parameters}");
    // Interfaces of pictures get one.
    let (status, answer) = server.post(
        "/v1/images/generations",
        &json!({"prompt": "a red door", "size": "512x512"}),
    );
    assert_eq!(status, 200, "{answer}");
    let (_, jobs) = server.get("/v1/jobs");
    let jobs = jobs["jobs"].as_array().unwrap();
    let drawn = jobs.iter().find(|job| job["id"] != id).unwrap();
    assert!(drawn["images"][0]["video_url"].is_null(), "{drawn}");
}

#[test]
fn forms_are_read_as_json_is() {
    let server = server();
    let fields: [(&str, Option<&str>, &[u8]); 6] = [
        ("prompt", None, b"a red door"),
        ("model", None, b"sora-2"),
        ("size", None, b"512x512"),
        ("seconds", None, b"1"),
        ("seed", None, b"5"),
        ("input_reference", Some("a.png"), &png(64, 64)),
    ];
    let (head, body) = form(&fields);
    let (status, _, answer) = server.send("POST", "/v1/videos", &head, &body);
    let video = parse(&answer);
    assert_eq!(status, 200, "{video}");
    let path = format!("/v1/videos/{}", video["id"].as_str().unwrap());
    assert_eq!(finished(&server, &path)["status"], "completed");
    let (_, _, bytes) = server.send("GET", &format!("{path}/content"), "", b"");
    assert_eq!(bytes, b"17 frames of 5");
    // A video to start from (video to video, VACE) is no field, and no picture.
    for (name, file, content, named) in [
        ("video", Some("a.mp4"), &b"...."[..], "video"),
        ("control_video", None, b"x", "control_video"),
        (
            "input_reference",
            Some("a.mp4"),
            b"no picture",
            "input_reference",
        ),
        ("frames", None, b"many", "frames"),
    ] {
        let (head, body) = form(&[fields[0], (name, file, content)]);
        let (status, _, answer) = server.send("POST", "/v1/videos", &head, &body);
        assert_eq!(status, 400, "{name}");
        assert!(parse(&answer).to_string().contains(named), "{name}");
    }
}
