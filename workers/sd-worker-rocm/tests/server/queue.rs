//! The queue: bounds, order, failures, clients that go away.

use crate::support::{generation, parse, picture, Server, JSON};
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::server::ServerOptions;
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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

    // A waiting job is cancelled at once, a running one within a step.
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
        // Words about memory are no proof.
        ("words", 500, "GENERATION_FAILED"),
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
        "sd_worker_jobs_submitted_total 7",
        "sd_worker_jobs_failed_total 6",
        "sd_worker_jobs_completed_total 1",
        "sd_worker_pictures_total 1",
        "sd_worker_queue_length 0",
        "sd_worker_jobs_running 0",
        "sd_worker_http_answers_total{route=\"/v1/jobs\",status=\"202\"} 3",
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
fn waiting_jobs_are_put_in_another_order_and_ended_ones_forgotten() {
    let server = Server::start();
    let (_, list) = server.get("/v1/jobs");
    assert_eq!(
        list["kept"],
        json!({"seconds": 600, "count": 64, "on_disk": false})
    );
    let mut slow = generation("slow");
    slow["steps"] = json!(150);
    let running = server.submit(&slow);
    server.wait_for(&running, "running");
    let ids = ["a", "b", "c"].map(|prompt| server.submit(&generation(prompt)));
    let positions = || {
        let position = |id: &String| server.get(&format!("/v1/jobs/{id}")).1["position"].clone();
        ids.each_ref().map(position)
    };
    let put = |id: &str, place: usize| {
        server.post(&format!("/v1/jobs/{id}/move"), &json!({"place": place}))
    };
    let (status, job) = put(&ids[2], 0);
    assert_eq!(
        (status, &job["position"], &job["prompt"], &job["model"]),
        (200, &json!(1), &json!("c"), &json!("painter"))
    );
    assert_eq!(positions(), [2, 3, 1].map(|place| json!(place)));
    assert_eq!(put(&ids[2], usize::MAX).0, 200);
    assert_eq!(positions(), [1, 2, 3].map(|place| json!(place)));
    let (status, answer) = put(&running, 0);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(status == 409 && message.ends_with("running"), "{answer}");
    assert_eq!(put("none", 0).0, 404);

    let forget = |id: &str| server.post(&format!("/v1/jobs/{id}/forget"), &json!({}));
    assert_eq!(forget(&running).0, 409);
    server.post(&format!("/v1/jobs/{running}/cancel"), &json!({}));
    server.wait_for(&ids[2], "completed");
    assert_eq!(forget(&ids[2]).0, 200);
    assert_eq!(server.get(&format!("/v1/jobs/{}", ids[2])).0, 404);
    assert_eq!(forget(&ids[2]).0, 404);
}
