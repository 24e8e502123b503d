//! From an open port to the end.

use crate::client::{app, listen, text_model};
use crate::common::tiny_llama;
use crate::script::{Play, Script};
use llm_worker_rocm::server::{App, Loaded};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use worker::serve::{run, Unready};
use worker::{Error, Result};

/// A server on a port of its own.
struct Running {
    app: Arc<App>,
    script: Arc<Script>,
    address: SocketAddr,
    terminate: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<Result<()>>,
}

async fn start(plays: Vec<Play>) -> Running {
    start_with(plays, &["--shutdown-grace", "1"]).await
}

async fn start_with(plays: Vec<Play>, options: &'static [&'static str]) -> Running {
    // The first request is the server's own forward pass.
    let script = Arc::new(Script::new(std::iter::once(Play::Say("w")).chain(plays)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app();
    let model = text_model(script.clone());
    let load = move |_: &App| {
        Ok(Loaded {
            text: Some(Arc::new(model)),
            ..Loaded::default()
        })
    };
    let (terminate, terminated) = oneshot::channel();
    let served = app.clone();
    let ended = tokio::spawn(async move {
        let termination = async {
            terminated.await.unwrap();
        };
        let listen = listen(options);
        run(served, listener, &listen, load, termination).await
    });
    while app.frame.ready().is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Running {
        app,
        script,
        address,
        terminate,
        ended,
    }
}

/// Sends a request for a stream and gives the connection.
fn ask(address: SocketAddr) -> TcpStream {
    let body = r#"{"prompt": "x", "stream": true}"#;
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(stream, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}").unwrap();
    stream
}

/// Waits for something that another thread does.
async fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..2000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what} did not happen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_fails_running_streams_visibly() {
    let server = start(vec![Play::SayAndHang("so far")]).await;
    let mut stream = ask(server.address);
    until("the request", || server.script.held() == 1).await;
    server.terminate.send(()).unwrap();
    let text = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    let text = text.await.unwrap();
    assert!(text.contains("the server is stopping"), "{text}");
    assert!(text.contains("data: [DONE]\n\n"), "{text}");
    server.ended.await.unwrap().unwrap();
    assert!(matches!(server.app.frame.ready(), Err(Unready::Stopping)));
    TcpStream::connect(server.address).unwrap_err();
}

/// What a server says to a request of its own connection.
async fn say(address: SocketAddr, request: &'static str) -> String {
    let answer = move || {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    tokio::task::spawn_blocking(answer).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_says_so_while_requests_run() {
    let server = start(vec![Play::SayAndHang("so far")]).await;
    let mut running = ask(server.address);
    until("the request", || server.script.held() == 1).await;
    server.terminate.send(()).unwrap();
    until("the stop", || server.app.frame.ready().is_err()).await;
    // Neither asks for the end of the connection: the server ends it.
    for request in [
        "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"prompt\": \"x\"}",
    ] {
        let answer = say(server.address, request).await.to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 503"), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
    assert_eq!(server.script.held(), 1);
    let read = move || {
        let mut text = String::new();
        running.read_to_string(&mut text).map(|_| text)
    };
    let text = tokio::task::spawn_blocking(read).await.unwrap().unwrap();
    assert!(text.contains("data: [DONE]\n\n"), "{text}");
    server.ended.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_says_so_to_those_who_stay_connected() {
    let options = &["--shutdown-grace", "1", "--shutdown-linger", "600"];
    let server = start_with(Vec::new(), options).await;
    let address = server.address;
    let stopping = server.app.clone();
    let talk = move || {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let mut first = [0; 4096];
        let count = stream.read(&mut first)?;
        let first = String::from_utf8_lossy(&first[..count]).into_owned();
        server.terminate.send(()).unwrap();
        while stopping.frame.ready().is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
        stream.write_all(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let mut second = String::new();
        stream.read_to_string(&mut second)?;
        Ok::<_, std::io::Error>((first, second))
    };
    let (first, second) = tokio::task::spawn_blocking(talk).await.unwrap().unwrap();
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    assert!(second.starts_with("HTTP/1.1 503"), "{second}");
    assert!(
        second
            .to_ascii_lowercase()
            .contains("connection: close\r\n"),
        "{second}"
    );
    server.ended.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_frees_its_request() {
    let server = start(vec![Play::SayAndHang("so far")]).await;
    let stream = ask(server.address);
    until("the request", || server.script.held() == 1).await;
    drop(stream);
    until("the end of the request", || server.script.held() == 0).await;
    server.terminate.send(()).unwrap();
    server.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_ends_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let load = |_: &App| Err(Error::Usage("there is no such model".to_string()));
    let never = std::future::pending();
    let error = run(app(), listener, &listen(&[]), load, never)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "there is no such model");
    assert_eq!(error.exit_code(), 2);
}

/// Takes the ten seconds for which `/health` tells of it.
#[tokio::test]
async fn a_lost_device_ends_the_server_with_its_own_exit_code() {
    let server = start(Vec::new()).await;
    server.script.status.lock().unwrap().lost = Some("fell off the bus".to_string());
    let error = server.ended.await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::DeviceLost(reason) if reason == "fell off the bus"));
    assert_eq!(error.exit_code(), 3);
}

/// Calls that the simulator answers before its device is lost: more than loading takes, and fewer than some hundred
/// tokens do.
const CALLS: u32 = 4000;

/// The program on a simulated device that is lost while it answers. Takes the ten seconds for which `/health` tells of
/// it.
#[test]
fn the_program_ends_with_exit_code_3_when_its_device_is_lost() {
    let simulated = std::env::var("CANDLE_ROCM_TEST_DEVICE").is_ok_and(|name| name == "rocm")
        && std::env::var_os("HIP_SIM_ARCH").is_some();
    if !simulated {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    tiny_llama().write(&path);
    let mut program = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"))
        .args(["serve", "--supervise", "off", "--device", "rocm"])
        .args(["--port", "0", "--model"])
        .arg(&path)
        .env("HIP_SIM_FAIL", format!("lost:{CALLS}"))
        // Whether it verifies kernels depends on what ran before.
        .env("CANDLE_ROCM_VERIFY", "off")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap();
    let http = |request: String| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let health =
        || http("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_string());
    while !health().starts_with("HTTP/1.1 200") {
        assert_eq!(program.try_wait().unwrap(), None, "it did not load");
        std::thread::sleep(Duration::from_millis(20));
    }
    let body = r#"{"prompt": "the cat", "stream": true, "max_tokens": 100, "ignore_eos": true}"#;
    let length = body.len();
    let ask = || {
        http(format!("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"))
    };
    let failed = (0..200)
        .map(|_| ask())
        .find(|answer| answer.contains("\"error\""));
    let failed = failed.expect("the device is lost by now");
    assert!(failed.contains("DEVICE_LOST"), "{failed}");
    let told = health();
    assert!(told.starts_with("HTTP/1.1 503"), "{told}");
    assert!(told.contains("the device is lost"), "{told}");
    let refused = ask();
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("DEVICE_LOST"),
        "{refused}"
    );
    assert_eq!(program.wait().unwrap().code(), Some(3));
}
