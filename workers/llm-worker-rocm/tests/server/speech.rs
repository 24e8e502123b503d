//! Speech to text by a tiny Whisper behind the server.

use crate::client::{app, Answer, Server};
use crate::tiny_whisper::{case, segments, sound, wav, write, END};
use axum::body::Body;
use axum::http::Request;
use candle_core::Device;
use llm_worker_rocm::server::{Loaded, Transcriber};
use llm_worker_rocm::whisper::Whisper;
use serde_json::json;
use std::sync::Arc;

const BORDER: &str = "frontier";

fn server() -> Server {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), |_| {});
    let model = Whisper::open(folder.path(), &Device::Cpu, &|_| {}).unwrap();
    let app = app();
    app.frame.serve(Loaded {
        transcriber: Some(Arc::new(Transcriber::new(model))),
        ..Loaded::default()
    });
    Server::around(app, Arc::default(), &[])
}

/// A form with a file and fields.
fn form(path: &str, file: Option<&[u8]>, fields: &[(&str, &str)]) -> Request<Body> {
    let mut body = Vec::new();
    if let Some(file) = file {
        let head = "Content-Disposition: form-data; name=\"file\"; filename=\"sound.wav\"";
        body.extend(format!("--{BORDER}\r\n{head}\r\n\r\n").bytes());
        body.extend(file);
        body.extend(b"\r\n");
    }
    for (name, value) in fields {
        let head = format!("Content-Disposition: form-data; name=\"{name}\"");
        body.extend(format!("--{BORDER}\r\n{head}\r\n\r\n{value}\r\n").bytes());
    }
    body.extend(format!("--{BORDER}--\r\n").bytes());
    Request::post(path)
        .header(
            "Content-Type",
            format!("multipart/form-data; boundary={BORDER}"),
        )
        .body(Body::from(body))
        .unwrap()
}

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";

async fn transcribe(server: &Server, file: &[u8], fields: &[(&str, &str)]) -> Answer {
    Answer::of(server.send(form(TRANSCRIPTIONS, Some(file), fields)).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recordings_are_written_down_in_every_form() {
    let server = server();
    let case = case();
    let file = wav(&sound(&case)[..32_000]);
    let verbose = [("response_format", "verbose_json"), ("model", "default")];
    let whole = transcribe(&server, &file, &verbose).await.json();
    assert_eq!(whole["task"], "transcribe");
    assert_eq!(whole["duration"], 2.0);
    let found = whole["segments"].as_array().unwrap();
    // The same sound is louder elsewhere in the case; the first window begins alike all the same.
    assert!(!found.is_empty() && !segments(&case).is_empty());
    for segment in found {
        let tokens: Vec<u32> = serde_json::from_value(segment["tokens"].clone()).unwrap();
        let letters = tokens.iter().filter(|token| **token < END).count();
        let text = segment["text"].as_str().unwrap();
        assert_eq!(text.chars().count(), letters, "{segment}");
        assert!(segment["start"].as_f64() < segment["end"].as_f64());
    }
    let text = whole["text"].as_str().unwrap().to_string();
    assert!(!text.is_empty());

    let json = transcribe(&server, &file, &[]).await.json();
    assert_eq!(
        json,
        json!({"text": text, "usage": {"type": "duration", "seconds": 2}})
    );
    let plain = transcribe(&server, &file, &[("response_format", "text")]).await;
    assert_eq!(plain.text, format!("{text}\n"));
    let srt = transcribe(&server, &file, &[("response_format", "srt")]).await;
    assert!(srt.text.starts_with("1\n00:00:0"), "{}", srt.text);
    let vtt = transcribe(&server, &file, &[("response_format", "vtt")]).await;
    assert!(vtt.text.starts_with("WEBVTT\n\n00:00:0"), "{}", vtt.text);
    assert_eq!(vtt.headers["content-type"], "text/vtt; charset=utf-8");

    let frames = transcribe(&server, &file, &[("stream", "true")])
        .await
        .frames();
    let (last, deltas) = frames.split_last().unwrap();
    let kinds = |kind: &str| deltas.iter().all(|frame| frame["type"] == kind);
    assert!(kinds("transcript.text.delta"), "{frames:?}");
    let pieces = deltas.iter().map(|frame| frame["delta"].as_str().unwrap());
    assert_eq!(pieces.collect::<String>().trim_end(), text);
    assert_eq!(
        (&last["type"], &last["text"]),
        (&json!("transcript.text.done"), &json!(text))
    );

    let words = [
        ("response_format", "verbose_json"),
        ("timestamp_granularities[]", "word"),
    ];
    let timed = transcribe(&server, &file, &words).await.json();
    assert!(
        timed["words"]
            .as_array()
            .is_some_and(|words| !words.is_empty()),
        "{timed}"
    );
    assert!(timed.get("segments").is_none());

    let translated = form("/v1/audio/translations", Some(&file), &verbose[..1]);
    let translated = Answer::of(server.send(translated).await).await.json();
    assert_eq!(translated["task"], "translate");

    let models = server.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["transcription"]["multilingual"], true);
    let metrics = server.get("/metrics").await.text;
    assert!(
        metrics.contains("llm_transcriptions_finished_total 8"),
        "{metrics}"
    );
    assert!(
        metrics.contains("llm_transcribed_seconds_total 16"),
        "{metrics}"
    );
    assert!(
        metrics.contains("llm_transcriptions_running 0"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_form_is_told() {
    let server = server();
    let good = wav(&[0.25; 1_600]);
    let refused = async |file: Option<&[u8]>, fields: &[(&str, &str)], what: &str| {
        let answer = Answer::of(server.send(form(TRANSCRIPTIONS, file, fields)).await).await;
        let (status, _, message) = answer.error();
        assert_eq!(status, 400, "{message}");
        assert!(message.contains(what), "{message} does not say {what}");
    };
    refused(None, &[("prompt", "x")], "no file").await;
    refused(Some(b""), &[], "no format that is known").await;
    refused(
        Some(b"not a sound at all"),
        &[("stream", "true")],
        "no format",
    )
    .await;
    refused(Some(&wav(&[])), &[], "no sound").await;
    refused(Some(&good), &[("language", "klingon")], "klingon").await;
    refused(Some(&good), &[("response_format", "xml")], "xml").await;
    refused(Some(&good), &[("temperature", "7")], "from 0 to 1").await;
    refused(
        Some(&good),
        &[("timestamp_granularities[]", "word")],
        "verbose_json",
    )
    .await;
    refused(
        Some(&good),
        &[("timestamp_granularities[]", "letter")],
        "letter",
    )
    .await;
    refused(Some(&good), &[("include[]", "logprobs")], "logprobs").await;
    refused(
        Some(&good),
        &[("stream", "true"), ("response_format", "srt")],
        "srt",
    )
    .await;
    refused(Some(&good), &[("prompt", &"x".repeat(70_000))], "prompt").await;
    let other = form(TRANSCRIPTIONS, Some(&good), &[("model", "other")]);
    assert_eq!(Answer::of(server.send(other).await).await.error().0, 404);
    let json = server.post(TRANSCRIPTIONS, &json!({"file": "x"})).await;
    assert!((400..500).contains(&json.status.as_u16()), "{}", json.text);
    // What this model does not do names what it does.
    let chat = json!({"messages": [{"role": "user", "content": "x"}]});
    let (status, _, message) = server.post("/v1/chat/completions", &chat).await.error();
    assert_eq!(status, 400);
    assert!(message.contains("/v1/audio/transcriptions"), "{message}");
    let large = form(TRANSCRIPTIONS, Some(&vec![0; 17 << 20]), &[]);
    assert_eq!(Answer::of(server.send(large).await).await.error().0, 413);
    // It lives.
    let alive = transcribe(&server, &good, &[]).await;
    assert_eq!(alive.status.as_u16(), 200, "{}", alive.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_whose_client_goes_away_ends() {
    let server = server();
    // Minutes of sound, which take their time.
    let long = wav(&sound(&case()).repeat(30));
    let figure = async |name: &str| {
        let text = server.get("/metrics").await.text;
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split(' ').nth(1).unwrap().parse::<f64>().unwrap()
    };
    let until = async |name: &str, value: f64| {
        let started = std::time::Instant::now();
        while figure(name).await != value {
            assert!(
                started.elapsed().as_secs() < 60,
                "{name} does not become {value}"
            );
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let running = form(TRANSCRIPTIONS, Some(&long), &[("stream", "true")]);
    let running = server.send(running).await;
    until("llm_transcriptions_running", 1.0).await;
    // Another one waits, and leaves before its turn.
    let waiting = server.send(form(TRANSCRIPTIONS, Some(&long), &[]));
    let mut waiting = Box::pin(waiting);
    tokio::select! {
        _ = &mut waiting => panic!("nobody waits for minutes of sound"),
        () = until("llm_transcriptions_waiting", 1.0) => {}
    }
    drop(waiting);
    until("llm_transcriptions_waiting", 0.0).await;
    drop(running);
    until("llm_transcriptions_cancelled_total", 1.0).await;
    assert_eq!(figure("llm_transcriptions_finished_total").await, 0.0);
}
