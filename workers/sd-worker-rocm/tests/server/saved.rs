//! Jobs that go on after a restart.

use crate::support::{generation, parse, Server};
use sd_worker_rocm::image_io::{self, DecodeLimits};
use sd_worker_rocm::jobs::QueueOptions;
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Ends a server as a signal does.
fn stop(mut server: Server) {
    server.terminate.take().unwrap().send(()).unwrap();
    server.end().unwrap();
}

fn start(folder: &Path) -> Server {
    Server::keeping(folder, QueueOptions::default())
}

/// Files of the stand-in's jobs that wait.
fn waiting(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join("painter")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    files
}

/// The first picture of a job, and what it says.
fn first_picture(server: &Server, id: &str) -> ([u8; 3], String) {
    let (status, _, png) = server.send("GET", &format!("/v1/jobs/{id}/images/0"), "", b"");
    assert_eq!(status, 200);
    let image = image_io::decode(&png, &DecodeLimits::default()).unwrap();
    let text = image_io::parameters_of(&png).unwrap().unwrap();
    (image_io::to_rgb(&image).get_pixel(0, 0).0, text)
}

#[test]
fn jobs_go_on_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let mut long = generation("slow first");
    long["steps"] = json!(150);
    let mut ids = vec![server.submit(&long)];
    server.wait_for(&ids[0], "running");
    for prompt in ["second", "third"] {
        ids.push(server.submit(&generation(prompt)));
    }
    let gone = server.submit(&generation("gone"));
    assert_eq!(waiting(folder.path()).len(), 4);
    server.send("DELETE", &format!("/v1/jobs/{gone}"), "", b"");
    server.wait_for(&gone, "cancelled");
    let start_waiting = std::time::Instant::now();
    while waiting(folder.path()).len() > 3 {
        assert!(start_waiting.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    // Its seed is chosen by now.
    let file: Value =
        serde_json::from_slice(&std::fs::read(&waiting(folder.path())[1]).unwrap()).unwrap();
    let seed = file["body"]["seed"].as_u64().unwrap();
    // One second is too short for the first.
    stop(server);
    assert_eq!(waiting(folder.path()).len(), 3);

    let server = start(folder.path());
    let (_, jobs) = server.get("/v1/jobs");
    let known: Vec<_> = jobs["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["id"].clone())
        .collect();
    assert_eq!(json!(known), json!(ids));
    assert_eq!(
        server.send("GET", &format!("/v1/jobs/{gone}"), "", b"").0,
        404
    );
    for id in &ids {
        server.wait_for(id, "completed");
    }
    let (pixel, text) = first_picture(&server, &ids[1]);
    assert_eq!(pixel[0], seed.to_le_bytes()[0]);
    stop(server);
    assert!(waiting(folder.path()).is_empty());

    // What is finished is kept.
    let server = start(folder.path());
    for id in &ids {
        assert_eq!(server.state(id), "completed");
    }
    assert_eq!(first_picture(&server, &ids[1]), (pixel, text));
    let events = server.events(&format!("/v1/jobs/{}/stream", ids[0]), "GET", b"");
    assert_eq!(events.last().unwrap().0, "complete");
    stop(server);
    // As long as others are.
    let short = QueueOptions {
        keep_count: 1,
        ..QueueOptions::default()
    };
    let server = Server::keeping(folder.path(), short);
    assert_eq!(
        server.get("/v1/jobs").1["jobs"].as_array().unwrap().len(),
        1
    );
    let done = std::fs::read_dir(folder.path().join("painter/done")).unwrap();
    assert_eq!(done.count(), 1);
}

#[test]
fn a_job_that_may_have_ended_the_server_is_not_begun_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let mut long = generation("slow");
    long["steps"] = json!(150);
    let running = server.submit(&long);
    server.wait_for(&running, "running");
    let id = server.submit(&generation("x"));
    stop(server);
    std::fs::write(folder.path().join(format!("painter/{running}.tries")), "3").unwrap();

    let server = start(folder.path());
    server.wait_for(&id, "completed");
    let (_, job) = server.get(&format!("/v1/jobs/{running}"));
    assert_eq!(job["state"], "failed");
    assert!(
        job["error"]["message"]
            .as_str()
            .unwrap()
            .contains("3 times"),
        "{job}"
    );
    let aside = std::fs::read_dir(folder.path().join("painter/aside")).unwrap();
    assert_eq!(aside.count(), 1);
    stop(server);
}

#[test]
fn damaged_files_harm_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let mut long = generation("slow");
    long["steps"] = json!(150);
    let running = server.submit(&long);
    server.wait_for(&running, "running");
    let ids: Vec<_> = ["a", "b", "c"]
        .map(|prompt| server.submit(&generation(prompt)))
        .into();
    stop(server);
    let files = waiting(folder.path());
    let text = std::fs::read_to_string(&files[1]).unwrap();
    std::fs::write(&files[1], &text[..text.len() / 2]).unwrap();
    let text = std::fs::read_to_string(&files[2]).unwrap();
    std::fs::write(
        &files[2],
        text.replace("\"prompt\":\"b\"", "\"prompt\":\"b\",\"steps\":-4"),
    )
    .unwrap();
    std::fs::write(folder.path().join("painter/notes.json"), "[]").unwrap();

    let server = start(folder.path());
    server.wait_for(&ids[2], "completed");
    server.wait_for(&running, "completed");
    // Nobody knows whose the first is; the second's client hears why.
    assert_eq!(
        server
            .send("GET", &format!("/v1/jobs/{}", ids[0]), "", b"")
            .0,
        404
    );
    let (_, job) = server.get(&format!("/v1/jobs/{}", ids[1]));
    assert_eq!(
        (&job["state"], &job["error"]["code"]),
        (&json!("failed"), &json!("INVALID_REQUEST"))
    );
    assert!(
        job["error"]["message"].as_str().unwrap().contains("steps"),
        "{job}"
    );
    let aside = std::fs::read_dir(folder.path().join("painter/aside")).unwrap();
    assert_eq!(aside.count(), 3);
    // A failure is kept, too.
    let mut failing = generation("words");
    failing["seed"] = json!(1);
    let failed = server.submit(&failing);
    server.wait_for(&failed, "failed");
    stop(server);
    let server = start(folder.path());
    let (_, job) = server.get(&format!("/v1/jobs/{failed}"));
    assert_eq!(job["error"]["code"], "GENERATION_FAILED");
    let (status, _, body) = server.send("GET", &format!("/v1/jobs/{failed}/images/0"), "", b"");
    assert_eq!(
        (status, &parse(&body)["error"]["code"]),
        (500, &json!("GENERATION_FAILED"))
    );
    stop(server);
}

#[test]
fn another_order_outlives_the_server_and_what_is_forgotten_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let done = server.submit(&generation("done"));
    server.wait_for(&done, "completed");
    let mut long = generation("slow");
    long["steps"] = json!(150);
    let running = server.submit(&long);
    server.wait_for(&running, "running");
    let ids = ["a", "b", "c"].map(|prompt| server.submit(&generation(prompt)));
    let moved = format!("/v1/jobs/{}/move", ids[2]);
    assert_eq!(server.post(&moved, &json!({"place": 0})).0, 200);
    let forgotten = format!("/v1/jobs/{done}/forget");
    assert_eq!(server.post(&forgotten, &json!({})).0, 200);
    stop(server);

    let server = start(folder.path());
    let (_, list) = server.get("/v1/jobs");
    assert_eq!(list["kept"]["on_disk"], true);
    let position = |id: &String| server.get(&format!("/v1/jobs/{id}")).1["position"].clone();
    assert!(position(&ids[2]).as_u64() < position(&ids[0]).as_u64());
    assert_eq!(
        server.send("GET", &format!("/v1/jobs/{done}"), "", b"").0,
        404
    );
    server.queue.cancel_all();
    stop(server);
}
