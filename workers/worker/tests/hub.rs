//! Resolving Hugging Face ids against a small hub on this machine.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use worker::hub::{HubOptions, ModelSource};
use worker::Error;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const FILES: [(&str, &str); 3] = [
    ("README.md", "text"),
    ("model-Q4_K_M.gguf", "four bits"),
    ("model-Q8_0.gguf", "eight bits"),
];

/// Serves one repository, `owner/name`, at revision `main`; counts requests.
struct Hub {
    endpoint: String,
    requests: Arc<AtomicUsize>,
}

impl Hub {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counter.fetch_add(1, Ordering::Relaxed);
                answer(stream.unwrap());
            }
        });
        Self { endpoint, requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

fn answer(mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let request = lines.next().unwrap().unwrap();
    let mut from = 0;
    let mut last = None;
    let mut authorized = false;
    for line in lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
    {
        let line = line.to_lowercase();
        if let Some(range) = line.strip_prefix("range: bytes=") {
            let (start, end) = range.split_once('-').unwrap();
            from = start.parse().unwrap();
            last = end.parse::<usize>().ok();
        }
        authorized |= line == "authorization: bearer secret";
    }
    let path = request.split(' ').nth(1).unwrap();
    let (status, headers, body) = match path {
        "/api/models/owner/name/revision/main" => {
            let names: Vec<_> = FILES
                .iter()
                .map(|(n, _)| format!("{{\"rfilename\":\"{n}\"}}"))
                .collect();
            let json = format!(
                "{{\"sha\":\"{COMMIT}\",\"siblings\":[{}]}}",
                names.join(",")
            );
            ("200 OK", String::new(), json)
        }
        _ if path.starts_with("/api/models/owner/gated/") && !authorized => {
            ("401 Unauthorized", String::new(), String::new())
        }
        _ => match path.strip_prefix("/owner/name/resolve/main/") {
            Some(name) => {
                let (_, content) = FILES.iter().find(|(n, _)| *n == name).unwrap();
                let end = last.map_or(content.len(), |last| last + 1);
                let headers = format!(
                    "x-repo-commit: {COMMIT}\r\netag: \"etag-{name}\"\r\ncontent-range: bytes {from}-{}/{}\r\n",
                    end - 1,
                    content.len()
                );
                (
                    "206 Partial Content",
                    headers,
                    content[from..end].to_string(),
                )
            }
            None => ("404 Not Found", String::new(), String::new()),
        },
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
}

fn options(endpoint: &str, cache: &Path) -> HubOptions {
    HubOptions {
        revision: "main".to_string(),
        offline: false,
        cache: cache.to_path_buf(),
        endpoint: endpoint.to_string(),
        token: None,
    }
}

fn resolve(options: &HubOptions, model: &str) -> Result<String, Error> {
    let path = options.resolve(&ModelSource::parse(model).unwrap())?;
    Ok(std::fs::read_to_string(path).unwrap())
}

#[test]
fn a_quantisation_is_found_fetched_once_and_then_taken_from_the_cache() {
    let hub = Hub::start();
    let cache = tempfile::tempdir().unwrap();
    let mut options = options(&hub.endpoint, cache.path());
    assert_eq!(resolve(&options, "owner/name:q8_0").unwrap(), "eight bits");
    let after_download = hub.requests();
    assert_eq!(resolve(&options, "owner/name:Q8_0").unwrap(), "eight bits");
    assert_eq!(
        resolve(&options, "owner/name:model-Q8_0.gguf").unwrap(),
        "eight bits"
    );
    assert_eq!(hub.requests(), after_download, "the cache was not used");
    options.offline = true;
    assert_eq!(resolve(&options, "owner/name:Q8_0").unwrap(), "eight bits");
    assert_eq!(resolve(&options, "owner/name").unwrap(), "eight bits");
    options.revision = COMMIT.to_string();
    assert_eq!(resolve(&options, "owner/name").unwrap(), "eight bits");
}

#[test]
fn without_a_selector_the_usual_quantisation_is_taken() {
    let hub = Hub::start();
    let cache = tempfile::tempdir().unwrap();
    let options = options(&hub.endpoint, cache.path());
    assert_eq!(resolve(&options, "owner/name").unwrap(), "four bits");
}

#[test]
fn offline_without_the_file_says_so() {
    let cache = tempfile::tempdir().unwrap();
    let mut options = options("http://127.0.0.1:9", cache.path());
    options.offline = true;
    let error = resolve(&options, "owner/name:Q4_K_M")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("owner/name:Q4_K_M is not in the cache"),
        "{error}"
    );
    assert!(error.contains("--offline"), "{error}");
}

#[test]
fn an_unreachable_hub_says_so() {
    let cache = tempfile::tempdir().unwrap();
    // A port that was free a moment ago refuses connections.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let options = options(&format!("http://127.0.0.1:{port}"), cache.path());
    let error = resolve(&options, "owner/name").unwrap_err().to_string();
    assert!(error.contains("cannot reach"), "{error}");
}

#[test]
fn missing_and_gated_repositories_are_told_apart() {
    let hub = Hub::start();
    let cache = tempfile::tempdir().unwrap();
    let options = options(&hub.endpoint, cache.path());
    let missing = resolve(&options, "owner/absent").unwrap_err().to_string();
    assert!(missing.contains("no repository owner/absent"), "{missing}");
    let gated = resolve(&options, "owner/gated").unwrap_err().to_string();
    assert!(gated.contains("HF_TOKEN"), "{gated}");
    let with_token = HubOptions {
        token: Some("secret".to_string()),
        ..options.clone()
    };
    let passed = resolve(&with_token, "owner/gated").unwrap_err().to_string();
    assert!(passed.contains("no repository owner/gated"), "{passed}");
    let quant = resolve(&options, "owner/name:Q2_K")
        .unwrap_err()
        .to_string();
    assert!(
        quant.contains("model-Q4_K_M.gguf, model-Q8_0.gguf"),
        "{quant}"
    );
}

#[test]
fn a_revision_cannot_leave_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let mut options = options("http://127.0.0.1:9", cache.path());
    for revision in ["../../etc", "/etc", ""] {
        options.revision = revision.to_string();
        assert!(
            matches!(resolve(&options, "owner/name"), Err(Error::Usage(_))),
            "{revision}"
        );
    }
}
