//! Clients of the OpenAI API.

use crate::support::{form, parse, picture, png, Server, JSON};
use sd_worker_rocm::image_io::{self, DecodeLimits};
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::server::ServerOptions;
use serde_json::json;

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
fn options_of_openai_are_followed_or_refused() {
    let server = Server::start();
    let ask = |more: serde_json::Value| {
        let mut body = json!({"prompt": "x", "seed": 1});
        let fields = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        server.post("/v1/images/generations", &body)
    };
    // The model's own steps are 4, and few: a quality leaves them; its name is checked.
    for good in [
        json!({"background": "opaque", "quality": "high", "moderation": "low", "style": "natural", "user": "me"}),
        json!({"output_format": "jpeg", "output_compression": 40}),
        json!({"output_format": "png", "output_compression": 100}),
        json!({"size": "auto", "quality": "auto", "background": "auto"}),
    ] {
        let (status, answer) = ask(good.clone());
        assert_eq!(status, 200, "{good}: {answer}");
    }
    for (field, value) in [
        ("background", json!("transparent")),
        ("quality", json!("best")),
        ("style", json!("vivid")),
        ("moderation", json!("strict")),
        ("output_compression", json!(50)),
        ("output_format", json!("gif")),
    ] {
        let (status, answer) = ask(json!({field: value}));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)));
    }
    let size = |compression: u8| {
        let (_, answer) = ask(json!({"output_format": "jpeg", "output_compression": compression}));
        answer["data"][0]["b64_json"].as_str().unwrap().len()
    };
    assert!(size(1) < size(100));
}

#[test]
fn a_quality_is_a_number_of_steps() {
    let steps = |quality: &str, usual: usize| {
        let mut model = crate::support::info();
        model.defaults.steps = usual;
        let server = Server::of(model);
        let body = json!({"prompt": "x", "quality": quality});
        let (status, answer) = server.post("/v1/images/generations", &body);
        assert_eq!(status, 200, "{answer}");
        let png = image_io::from_base64(
            answer["data"][0]["b64_json"].as_str().unwrap(),
            &DecodeLimits::default(),
        );
        let text = image_io::parameters_of(&png.unwrap()).unwrap().unwrap();
        let read = sd_worker_rocm::parameters::Parameters::parse(&text);
        read.get("Steps").unwrap().parse::<usize>().unwrap()
    };
    assert_eq!(steps("low", 20), 10);
    assert_eq!(steps("medium", 20), 20);
    assert_eq!(steps("hd", 20), 30);
    assert_eq!(steps("low", 4), 4);
}

#[test]
fn variations_of_a_picture() {
    let server = Server::start();
    let made = json!({"prompt": "a hat", "seed": 77});
    let (_, answer) = server.post("/v1/images/generations", &made);
    let limits = DecodeLimits::default();
    let own = image_io::from_base64(answer["data"][0]["b64_json"].as_str().unwrap(), &limits);
    let own = own.unwrap();
    let vary = |parts: &[(&str, Option<&str>, &[u8])]| {
        let (headers, body) = form(parts);
        let (status, _, answer) = server.send("POST", "/v1/images/variations", &headers, &body);
        (status, parse(&answer))
    };
    let (status, answer) = vary(&[
        ("image", Some("a.png"), &own),
        ("n", None, b"2"),
        ("size", None, b"64x96"),
    ]);
    assert_eq!(status, 200, "{answer}");
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), 2);
    let varied = image_io::from_base64(data[0]["b64_json"].as_str().unwrap(), &limits).unwrap();
    let text = image_io::parameters_of(&varied).unwrap().unwrap();
    assert!(text.starts_with("a hat\n"), "{text}");
    assert!(text.contains("Denoising strength: 0.6, "), "{text}");
    let bare = png(64, 64);
    assert_eq!(vary(&[("image", Some("a.png"), &bare)]).0, 200);
    for (parts, blamed) in [
        (vec![], "image"),
        (
            vec![
                ("image", Some("a.png"), &bare[..]),
                ("image", Some("b.png"), &bare[..]),
            ],
            "image",
        ),
        (
            vec![
                ("image", Some("a.png"), &bare[..]),
                ("mask", Some("b.png"), &bare[..]),
            ],
            "mask",
        ),
        (vec![("image", Some("a.png"), &b"x"[..])], "image"),
        (
            vec![
                ("image", Some("a.png"), &bare[..]),
                ("stream", None, &b"true"[..]),
            ],
            "stream",
        ),
    ] {
        let (status, answer) = vary(&parts);
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(blamed)),
            "{answer}"
        );
    }
}

#[test]
fn a_model_that_looks_at_pictures_is_shown_all() {
    let file = png(64, 32);
    let edit = |references: std::ops::RangeInclusive<usize>, count: usize| {
        let mut model = crate::support::info();
        model.references = references;
        let server = Server::of(model);
        let mut parts = vec![("prompt", None, &b"x"[..]), ("seed", None, &b"5"[..])];
        parts.extend((0..count).map(|_| ("image[]", Some("a.png"), &file[..])));
        let (headers, body) = form(&parts);
        let (status, _, answer) = server.send("POST", "/v1/images/edits", &headers, &body);
        (status, parse(&answer))
    };
    // The stand-in paints the start picture where there is one, else the seed and the number of references.
    let (status, answer) = edit(1..=3, 2);
    assert_eq!(status, 200, "{answer}");
    let drawn = picture(&answer["data"][0]["b64_json"]);
    assert_eq!(
        (drawn.dimensions(), drawn.get_pixel(0, 0).0),
        ((88, 48), [5, 0, 2])
    );
    let (status, answer) = edit(1..=1, 2);
    assert_eq!(status, 400);
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("1 to 1"),
        "{answer}"
    );
    let (status, answer) = edit(0..=0, 2);
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("image")));
    assert_eq!(edit(0..=3, 0).0, 400);
    // The same through the web UI's routes, for models that need a picture.
    let mut model = crate::support::info();
    model.references = 1..=1;
    let server = Server::of(model);
    let body = json!({"prompt": "x", "seed": 5, "init_images": [image_io::to_base64(&file)]});
    let (status, answer) = server.post("/sdapi/v1/img2img", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(picture(&answer["images"][0]).get_pixel(0, 0).0, [5, 0, 1]);
}

#[test]
fn a_faithful_edit_changes_less() {
    let server = Server::start();
    let file = png(64, 64);
    let strength = |more: &[(&str, Option<&str>, &[u8])]| {
        let mut parts = vec![
            ("prompt", None, &b"x"[..]),
            ("image[]", Some("a.png"), &file[..]),
        ];
        parts.extend(more);
        let (headers, body) = form(&parts);
        let (status, _, answer) = server.send("POST", "/v1/images/edits", &headers, &body);
        let answer = parse(&answer);
        assert_eq!(status, 200, "{answer}");
        let limits = DecodeLimits::default();
        let png = image_io::from_base64(answer["data"][0]["b64_json"].as_str().unwrap(), &limits);
        let text = image_io::parameters_of(&png.unwrap()).unwrap().unwrap();
        let read = sd_worker_rocm::parameters::Parameters::parse(&text);
        read.get("Denoising strength").unwrap().to_string()
    };
    assert_eq!(strength(&[]), "0.8");
    assert_eq!(strength(&[("input_fidelity", None, b"high")]), "0.5");
    assert_eq!(
        strength(&[("input_fidelity", None, b"low"), ("size", None, b"auto")]),
        "0.8"
    );
}

#[test]
fn the_model_has_further_names() {
    let options = ServerOptions {
        aliases: vec!["artist".to_string()],
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    let model = &server.get("/v1/models").1["data"][0];
    assert_eq!(
        (&model["id"], &model["aliases"]),
        (&json!("painter"), &json!(["artist"]))
    );
    for (name, expected) in [("artist", 200), ("painter", 200), ("other", 400)] {
        let body = json!({"sd_model_checkpoint": name});
        let (status, answer) = server.post("/sdapi/v1/options", &body);
        assert_eq!(status, expected, "{name}: {answer}");
    }
}

#[test]
fn a_browser_can_follow_the_address_of_a_picture() {
    let server = Server::with_key();
    let ask = |headers: &str, n: usize| {
        let body = json!({"prompt": "x", "n": n, "seed": 3, "response_format": "url"}).to_string();
        let headers = format!("{JSON}Authorization: Bearer secret\r\n{headers}");
        let (status, _, answer) =
            server.send("POST", "/v1/images/generations", &headers, body.as_bytes());
        assert_eq!(status, 200);
        let answer = parse(&answer);
        let data = answer["data"].as_array().unwrap().clone();
        let urls = data
            .iter()
            .map(|data| data["url"].as_str().unwrap().to_string());
        urls.collect::<Vec<_>>()
    };
    // It sends no key; each address opens one picture.
    let origin = format!("http://{}", server.address);
    let urls = ask("", 2);
    for (i, url) in urls.iter().enumerate() {
        let path = url.strip_prefix(&origin).unwrap();
        let (status, head, bytes) = server.send("GET", path, "", b"");
        assert_eq!(status, 200, "{path}");
        assert!(head.contains("image/png"));
        let picture = image_io::decode(&bytes, &DecodeLimits::default()).unwrap();
        assert_eq!(
            image_io::to_rgb(&picture).get_pixel(0, 0).0,
            [3 + i as u8, 0, 0]
        );
    }
    assert_ne!(urls[0], urls[1]);
    // The same for pictures of jobs.
    let (_, _, jobs) = server.send("GET", "/v1/jobs", "Authorization: Bearer secret\r\n", b"");
    let jobs = parse(&jobs);
    let path = jobs["jobs"][0]["images"][0]["url"].as_str().unwrap();
    assert_eq!(server.send("GET", path, "", b"").0, 200);
    // Nothing else is open: not the job, and no other name.
    assert_eq!(server.send("GET", "/v1/jobs", "", b"").0, 401);
    for name in ["x.png", "x", ".png", "%2e%2e.png"] {
        let (status, ..) = server.send("GET", &format!("/v1/pictures/{name}"), "", b"");
        assert_eq!(status, 404, "{name}");
    }
    // Behind a proxy that speaks TLS the address begins as the client's does.
    let proxy = "X-Forwarded-Proto: https\r\nX-Forwarded-Host: pictures.example\r\n";
    let url = &ask(proxy, 1)[0];
    assert!(
        url.starts_with("https://pictures.example/v1/pictures/"),
        "{url}"
    );
    let url = &ask("Forwarded: for=192.0.2.1;proto=https\r\n", 1)[0];
    assert!(
        url.starts_with(&format!("https://{}/v1", server.address)),
        "{url}"
    );
}
