//! The contract with the orchestrator.

use crate::support::{generation, picture, png, Server};
use sd_worker_rocm::image_io;
use sd_worker_rocm::parameters::Parameters;
use serde_json::json;

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
