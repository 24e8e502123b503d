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

/// The file of each repository that breaks off in the middle the first time.
const FRAGILE: &str = "fragile-Q8_0.gguf";

/// A repository with a safetensors model, one with a split GGUF file, and one whose file breaks off.
const OTHERS: [(&str, &[(&str, &str)]); 4] = [
    (
        "owner/folder",
        &[
            ("README.md", "text"),
            ("config.json", "{}"),
            ("tokenizer.json", "{}"),
            ("1_Pooling/config.json", "{}"),
            (
                "model.safetensors.index.json",
                "{\"weight_map\": {\"a\": \"model-1.safetensors\", \"b\": \"model-2.safetensors\"}}",
            ),
            ("model-1.safetensors", "one"),
            ("model-2.safetensors", "two"),
            ("other.safetensors", "not named by the index"),
        ],
    ),
    (
        "owner/split",
        &[
            ("m-Q8_0-00001-of-00002.gguf", "first"),
            ("m-Q8_0-00002-of-00002.gguf", "second"),
        ],
    ),
    ("owner/fragile", &[(FRAGILE, "comes in two pieces")]),
    (
        "owner/images",
        &[
            (
                "model_index.json",
                "{\"_class_name\": \"P\", \"safety_checker\": [\"d\", \"S\"], \"scheduler\": [\"d\", \"E\"], \"text_encoder_3\": [null, null], \"tokenizer_2\": [\"t\", \"T\"], \"transformer\": [\"d\", \"T\"], \"vae\": [\"d\", \"V\"]}",
            ),
            ("scheduler/scheduler_config.json", "{}"),
            ("tokenizer_2/tokenizer.json", "{}"),
            ("transformer/config.json", "{}"),
            (
                "transformer/diffusion_pytorch_model.safetensors.index.json",
                "{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"two.safetensors\"}}",
            ),
            ("transformer/one.safetensors", "one"),
            ("transformer/two.safetensors", "two"),
            ("vae/config.json", "{}"),
            ("vae/diffusion_pytorch_model.safetensors", "32 bits"),
            ("vae/diffusion_pytorch_model.fp16.safetensors", "16 bits"),
            ("safety_checker/model.safetensors", "unused"),
            ("all.safetensors", "in one file"),
        ],
    ),
];

/// Serves `owner/name` and the others at revision `main`; counts requests.
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

fn files_of(repo: &str) -> Option<&'static [(&'static str, &'static str)]> {
    if repo == "owner/name" {
        return Some(&FILES);
    }
    OTHERS
        .iter()
        .find(|(name, _)| *name == repo)
        .map(|(_, files)| *files)
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
    let info = path
        .strip_prefix("/api/models/")
        .and_then(|rest| rest.strip_suffix("/revision/main"))
        .and_then(files_of);
    let file = path[1..]
        .split_once("/resolve/main/")
        .and_then(|(repo, name)| files_of(repo)?.iter().find(|(n, _)| *n == name));
    let mut cut = false;
    let (status, headers, body) = match (info, file) {
        (Some(files), _) => {
            let names: Vec<_> = files
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
        (None, Some((name, content))) => {
            let end = last.map_or(content.len(), |last| last + 1);
            let headers = format!(
                "x-repo-commit: {COMMIT}\r\netag: \"etag-{}\"\r\ncontent-range: bytes {from}-{}/{}\r\n",
                name.replace('/', "-"),
                end - 1,
                content.len()
            );
            // The download itself, not the question for its size.
            cut = *name == FRAGILE && from == 0 && end > 1;
            (
                "206 Partial Content",
                headers,
                content[from..end].to_string(),
            )
        }
        (None, None) => ("404 Not Found", String::new(), String::new()),
    };
    let sent = if cut { &body[..8] } else { &body };
    write!(
        stream,
        "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{sent}",
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

#[test]
fn a_safetensors_model_comes_as_a_folder() {
    let hub = Hub::start();
    let cache = tempfile::tempdir().unwrap();
    let mut options = options(&hub.endpoint, cache.path());
    let source = ModelSource::parse("owner/folder").unwrap();
    let folder = options.resolve(&source).unwrap();
    for file in [
        "config.json",
        "tokenizer.json",
        "1_Pooling/config.json",
        "model-1.safetensors",
        "model-2.safetensors",
    ] {
        assert!(folder.join(file).exists(), "{file}");
    }
    assert!(!folder.join("README.md").exists());
    assert!(!folder.join("other.safetensors").exists());
    let after_download = hub.requests();
    assert_eq!(options.resolve(&source).unwrap(), folder);
    assert_eq!(
        hub.requests(),
        after_download + 1,
        "only the list of files is asked for"
    );
    options.offline = true;
    assert_eq!(options.resolve(&source).unwrap(), folder);
    std::fs::remove_file(folder.join("model-2.safetensors")).unwrap();
    let error = options.resolve(&source).unwrap_err().to_string();
    assert!(error.contains("of it only model-1.safetensors"), "{error}");
    // What is missing is fetched, nothing else.
    options.offline = false;
    let before = hub.requests();
    assert_eq!(options.resolve(&source).unwrap(), folder);
    assert!(folder.join("model-2.safetensors").exists());
    assert!(hub.requests() - before <= 4, "{}", hub.requests() - before);
}

#[test]
fn all_parts_of_a_split_file_are_fetched() {
    let hub = Hub::start();
    let cache = tempfile::tempdir().unwrap();
    let options = options(&hub.endpoint, cache.path());
    let path = options
        .resolve(&ModelSource::parse("owner/split:Q8_0").unwrap())
        .unwrap();
    assert!(path.ends_with("m-Q8_0-00001-of-00002.gguf"));
    let second = path.with_file_name("m-Q8_0-00002-of-00002.gguf");
    assert_eq!(std::fs::read_to_string(second).unwrap(), "second");
}

#[test]
fn a_download_that_breaks_off_goes_on_where_it_was() {
    let hub = Hub::start();
    let cache = tempfile::tempdir().unwrap();
    let options = options(&hub.endpoint, cache.path());
    assert_eq!(
        resolve(&options, "owner/fragile").unwrap(),
        "comes in two pieces"
    );
}

#[test]
fn an_image_model_comes_part_by_part() {
    let hub = Hub::start();
    let cache = tempfile::tempdir().unwrap();
    let mut options = options(&hub.endpoint, cache.path());
    let resolve = |options: &HubOptions, model: &str| {
        options.resolve_pipeline(&ModelSource::parse(model).unwrap())
    };
    let folder = resolve(&options, "owner/images:fp16").unwrap();
    for file in [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "tokenizer_2/tokenizer.json",
        "transformer/config.json",
        "transformer/one.safetensors",
        "transformer/two.safetensors",
        "vae/diffusion_pytorch_model.fp16.safetensors",
    ] {
        assert!(folder.join(file).exists(), "{file}");
    }
    for file in [
        "safety_checker/model.safetensors",
        "all.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
    ] {
        assert!(!folder.join(file).exists(), "{file}");
    }
    // From the cache, without a request.
    let before = hub.requests();
    assert_eq!(resolve(&options, "owner/images:fp16").unwrap(), folder);
    options.offline = true;
    assert_eq!(resolve(&options, "owner/images").unwrap(), folder);
    assert_eq!(hub.requests(), before);
    std::fs::remove_file(folder.join("transformer/two.safetensors")).unwrap();
    let error = resolve(&options, "owner/images").unwrap_err().to_string();
    assert!(error.contains("not in the cache"), "{error}");
    let error = resolve(&options, "owner/images:all.safetensors").unwrap_err();
    assert!(error.to_string().contains("not in the cache"), "{error}");
    options.offline = false;
    resolve(&options, "owner/images").unwrap();
    assert!(folder.join("transformer/two.safetensors").exists());
    let file = resolve(&options, "owner/images:all.safetensors").unwrap();
    assert_eq!(std::fs::read_to_string(file).unwrap(), "in one file");
    for (model, reason) in [
        ("owner/images:fp8", "fp16 and bf16"),
        (
            "owner/images:../x.safetensors",
            "not a file of a repository",
        ),
        ("owner/folder", "no model_index.json; name one of its files"),
    ] {
        let error = resolve(&options, model).unwrap_err().to_string();
        assert!(error.contains(reason), "{model}: {error}");
    }
}
