//! What a hub may answer, and what of it is believed.

use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use worker::hub::{HubOptions, ModelSource};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const CONTENT: &str = "the content of a model";
const FILE: &str = "m.gguf";

/// A request as a server sees it.
#[derive(Debug, Clone)]
struct Asked {
    path: String,
    token: Option<String>,
    start: Option<usize>,
}

#[derive(Debug, Clone)]
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// What `Content-Length` says; none is said where this is `None`.
    length: Option<usize>,
}

impl Reply {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status,
            headers: Vec::new(),
            length: Some(body.len()),
            body,
        }
    }

    fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_string(), value.to_string()));
        self
    }

    /// A file of a repository.
    fn file(etag: &str) -> Self {
        Self::new(200, CONTENT)
            .with("etag", format!("\"{etag}\""))
            .with("x-repo-commit", COMMIT)
    }
}

/// A web server whose answers a closure gives.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    fn start(answer: impl Fn(&Asked, usize) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let request = read_request(&stream);
                let count = seen.lock().unwrap().len();
                seen.lock().unwrap().push(request.clone());
                write_reply(stream, &answer(&request, count));
            }
        });
        Self { address, asked }
    }

    /// A hub with one repository that has one file; the closure answers for the file.
    fn hub(answer: impl Fn(&Asked, usize) -> Reply + Send + 'static) -> Self {
        Self::start(
            move |asked, count| match asked.path.starts_with("/api/models/") {
                true => {
                    let list =
                        serde_json::json!({"sha": COMMIT, "siblings": [{"rfilename": FILE}]});
                    Reply::new(200, list.to_string())
                }
                false => answer(asked, count),
            },
        )
    }

    fn files_asked(&self) -> Vec<Asked> {
        let asked = self.asked.lock().unwrap().clone();
        let is_file = |asked: &Asked| !asked.path.starts_with("/api/");
        asked.into_iter().filter(is_file).collect()
    }
}

fn read_request(stream: &TcpStream) -> Asked {
    let mut lines = BufReader::new(stream.try_clone().unwrap())
        .lines()
        .map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let mut asked = Asked {
        path: first.split(' ').nth(1).unwrap_or_default().to_string(),
        token: None,
        start: None,
    };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap();
        match name.to_lowercase().as_str() {
            "authorization" => asked.token = Some(value.to_string()),
            "range" => {
                let start = value
                    .strip_prefix("bytes=")
                    .and_then(|range| range.split('-').next());
                asked.start = start.and_then(|start| start.parse().ok());
            }
            _ => {}
        }
    }
    asked
}

fn write_reply(mut stream: TcpStream, reply: &Reply) {
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if let Some(length) = reply.length {
        head += &format!("content-length: {length}\r\n");
    }
    // A client that has seen enough goes away.
    let _ = stream.write_all((head + "\r\n").as_bytes());
    let _ = stream.write_all(&reply.body);
}

fn sha256(content: &str) -> String {
    let sum = Sha256::digest(content);
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fetches the file with a token; the cache lies in a folder of its own in `folder`.
fn fetch(hub: &Server, folder: &Path) -> Result<String, String> {
    let options = HubOptions {
        revision: "main".to_string(),
        offline: false,
        cache: folder.join("cache/hub"),
        endpoint: hub.address.clone(),
        token: Some("hf_SECRET".to_string()),
    };
    let source = ModelSource::parse(&format!("owner/name:{FILE}")).unwrap();
    let path = options.resolve(&source).map_err(|e| e.to_string())?;
    Ok(std::fs::read_to_string(path).unwrap())
}

/// All files and links below a folder, but for locks.
fn all_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(all_files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found.retain(|path| path.extension().is_none_or(|e| e != "lock"));
    found
}

/// That a file is refused for a reason, and that nothing of it is left to be taken for the file.
fn refuse(reason: &str, answer: impl Fn(&Asked, usize) -> Reply + Send + 'static) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let hub = Server::hub(answer);
    let error = fetch(&hub, folder.path()).unwrap_err();
    assert!(error.contains(reason), "{reason}: {error}");
    let left = all_files(folder.path());
    let is_part = |path: &PathBuf| path.extension().is_some_and(|e| e == "incomplete");
    assert!(left.iter().all(is_part), "{reason}: {left:?}");
    hub
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let absolute = folder.path().join("elsewhere").display().to_string();
    for name in [
        "../../../../escaped",
        absolute.as_str(),
        "..",
        ".",
        ".hidden",
        "a/b",
        "a\\b",
        "a b",
        "",
    ] {
        let name = name.to_string();
        for header in ["etag", "x-linked-etag", "x-repo-commit"] {
            let name = name.clone();
            refuse("could name a file elsewhere", move |_, _| {
                let mut reply = Reply::file("etag");
                reply.headers.retain(|(known, _)| known != header);
                reply.with(header, &name)
            });
        }
    }
    assert!(all_files(folder.path()).is_empty());
    for header in ["etag", "x-repo-commit"] {
        refuse("answers without", move |_, _| {
            let mut reply = Reply::file("etag");
            reply.headers.retain(|(known, _)| known != header);
            reply
        });
    }
}

#[test]
fn a_list_with_a_commit_that_leads_elsewhere_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Server::start(|_, _| {
        Reply::new(
            200,
            r#"{"sha": "../../x", "siblings": [{"rfilename": "m.gguf"}]}"#,
        )
    });
    let error = fetch(&hub, folder.path()).unwrap_err();
    assert!(error.contains("could name a file elsewhere"), "{error}");
    let hub = Server::start(|_, _| Reply::new(200, "<html>"));
    let error = fetch(&hub, folder.path()).unwrap_err();
    assert!(error.contains("something else than a list"), "{error}");
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Server::start(|_, _| Reply::new(200, CONTENT));
    let elsewhere = format!("{}/blob", storage.address);
    let hub = Server::hub(move |asked, _| match asked.path.as_str() {
        // To itself first, without saying its name.
        "/owner/name/resolve/main/m.gguf" => Reply::new(307, "").with("location", "/moved"),
        _ => Reply::new(302, "")
            .with("location", &elsewhere)
            .with("x-linked-etag", format!("\"{}\"", sha256(CONTENT)))
            .with("x-linked-size", CONTENT.len())
            .with("x-repo-commit", COMMIT),
    });
    assert_eq!(fetch(&hub, folder.path()).unwrap(), CONTENT);
    let token = Some("Bearer hf_SECRET".to_string());
    assert!(hub
        .asked
        .lock()
        .unwrap()
        .iter()
        .all(|asked| asked.token == token));
    let asked = storage.asked.lock().unwrap();
    assert!(!asked.is_empty() && asked.iter().all(|asked| asked.token.is_none()));
}

#[test]
fn the_token_does_not_come_back_from_elsewhere() {
    let home = Arc::new(Mutex::new(String::new()));
    let back = home.clone();
    let storage = Server::start(move |_, _| {
        Reply::new(302, "").with("location", format!("{}/back", back.lock().unwrap()))
    });
    let elsewhere = storage.address.clone();
    let hub = Server::hub(move |asked, _| match asked.path.as_str() {
        "/back" => Reply::file("etag"),
        _ => Reply::file("etag").with("location", &elsewhere).status(302),
    });
    *home.lock().unwrap() = hub.address.clone();
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(fetch(&hub, folder.path()).unwrap(), CONTENT);
    let asked = hub.files_asked();
    assert!(asked[0].token.is_some() && asked[1].path == "/back" && asked[1].token.is_none());
}

impl Reply {
    fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }
}

#[test]
fn redirects_end() {
    let hub = refuse("redirects more than 10 times", |asked, _| {
        Reply::file("etag")
            .with("location", &asked.path)
            .status(302)
    });
    assert_eq!(hub.files_asked().len(), 11);
    for (location, reason) in [
        ("file:///etc/passwd", "redirects from http to file"),
        ("ftp://host/file", "redirects from http to ftp"),
        ("http://", "no address"),
    ] {
        refuse(reason, move |_, _| {
            Reply::file("etag").with("location", location).status(302)
        });
    }
    refuse("without saying where", |_, _| {
        Reply::file("etag").status(302)
    });
}

#[test]
fn content_has_the_checksum_that_was_announced() {
    // That of a git blob of other content, and a SHA-256 of other content.
    for etag in [
        "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0".to_string(),
        sha256("other"),
    ] {
        refuse("does not have the checksum", move |_, _| Reply::file(&etag));
    }
    let folder = tempfile::tempdir().unwrap();
    let hub = Server::hub(|_, _| Reply::file(&sha256(CONTENT)));
    assert_eq!(fetch(&hub, folder.path()).unwrap(), CONTENT);
}

#[test]
fn content_has_the_length_that_was_announced() {
    let total = CONTENT.len();
    // A part that is half of what the range says; a length that is not kept; a size that differs from the length.
    refuse("of the 22 bytes", move |_, _| {
        Reply::file("etag")
            .with("content-range", format!("bytes 0-{}/{total}", total - 1))
            .status(206)
            .cut(total / 2)
    });
    refuse("breaks off", |asked, _| {
        let mut reply = Reply::file("etag");
        reply.body.truncate(4);
        reply.length = Some(CONTENT.len() - asked.start.unwrap_or(0));
        match asked.start {
            Some(start) => reply
                .with(
                    "content-range",
                    format!("bytes {start}-{}/{}", CONTENT.len() - 1, CONTENT.len()),
                )
                .status(206)
                .nothing(),
            None => reply,
        }
    });
    refuse("says that the file has 23 bytes, and then 22", |_, _| {
        Reply::file("etag").with("x-linked-size", 23)
    });
    refuse("more than the 21 bytes", |_, _| {
        let mut reply = Reply::file("etag").with("x-linked-size", 21);
        reply.length = None;
        reply
    });
    refuse("compresses a file", |_, _| {
        Reply::file("etag").with("content-encoding", "gzip")
    });
}

impl Reply {
    /// Less content, and a length that says so.
    fn cut(mut self, length: usize) -> Self {
        self.body.truncate(length);
        self.length = Some(length);
        self
    }

    fn nothing(mut self) -> Self {
        self.body.clear();
        self
    }
}

/// Answers with the rest from where it is asked.
fn rest(asked: &Asked, etag: &str) -> Reply {
    let Some(start) = asked.start else {
        return Reply::file(etag);
    };
    let range = format!("bytes {start}-{}/{}", CONTENT.len() - 1, CONTENT.len());
    let mut reply = Reply::file(etag).with("content-range", range).status(206);
    reply.body.drain(..start);
    reply.length = Some(reply.body.len());
    reply
}

#[test]
fn a_download_goes_on_only_where_it_fits() {
    let etag = sha256(CONTENT);
    let blobs = "cache/hub/models--owner--name/blobs";
    for (part, answers) in [
        // The beginning of the content; of other content; more than there is; all of it; all of other content.
        (&CONTENT[..9], 2),
        ("something", 3),
        ("something that is longer than the content", 1),
        (CONTENT, 1),
        ("xxxxxxxxxxxxxxxxxxxxxx", 2),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(blobs).join(format!("{etag}.incomplete"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, part).unwrap();
        let own = etag.clone();
        let hub = Server::hub(move |asked, _| rest(asked, &own));
        assert_eq!(fetch(&hub, folder.path()).unwrap(), CONTENT, "{part}");
        assert_eq!(hub.files_asked().len(), answers, "{part}");
        assert!(!path.exists());
    }
    // A server that answers with another part than was asked for, and one that always sends all.
    for status in [206, 200] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(blobs).join(format!("{etag}.incomplete"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &CONTENT[..9]).unwrap();
        let own = etag.clone();
        let hub = Server::hub(move |asked, _| match (asked.start, status) {
            (Some(_), 206) => {
                let range = format!("bytes 0-{}/{}", CONTENT.len() - 1, CONTENT.len());
                Reply::file(&own).with("content-range", range).status(206)
            }
            _ => Reply::file(&own),
        });
        assert_eq!(fetch(&hub, folder.path()).unwrap(), CONTENT, "{status}");
    }
}

#[test]
fn a_link_in_the_place_of_a_part_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = folder.path().join("cache/hub/models--owner--name/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, blobs.join("etag.incomplete")).unwrap();
    let hub = Server::hub(|_, _| Reply::file("etag"));
    assert!(fetch(&hub, folder.path()).is_err());
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn what_may_pass_is_tried_again() {
    for status in [429, 500, 503] {
        let folder = tempfile::tempdir().unwrap();
        let hub = Server::hub(move |_, count| match count {
            ..=1 => Reply::new(status, "").with("retry-after", "0"),
            _ => Reply::file("etag"),
        });
        assert_eq!(fetch(&hub, folder.path()).unwrap(), CONTENT);
    }
    let hub = refuse("has no file m.gguf", |_, _| {
        Reply::new(404, "").with("x-error-code", "EntryNotFound")
    });
    assert_eq!(hub.files_asked().len(), 1);
}

#[test]
fn a_commit_that_changes_meanwhile_is_noticed() {
    refuse("another commit now", |_, _| {
        let mut reply = Reply::file("etag");
        reply.headers[1].1 = "f".repeat(40);
        reply
    });
}

#[test]
fn the_cache_has_the_layout_of_hugging_faces_tools() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Server::hub(|_, _| Reply::file("W/\"etag\"").weak());
    assert_eq!(fetch(&hub, folder.path()).unwrap(), CONTENT);
    let cache = folder.path().join("cache/hub");
    let repo = cache.join("models--owner--name");
    let link = std::fs::read_link(repo.join("snapshots").join(COMMIT).join(FILE)).unwrap();
    assert_eq!(link, Path::new("../../blobs/etag"));
    assert_eq!(
        std::fs::read_to_string(repo.join("refs/main")).unwrap(),
        COMMIT
    );
    assert!(cache.join(".locks/models--owner--name/etag.lock").exists());
    // A blob that was cut short by something else is fetched anew.
    std::fs::remove_file(repo.join("snapshots").join(COMMIT).join(FILE)).unwrap();
    std::fs::write(repo.join("blobs/etag"), "cut").unwrap();
    assert_eq!(fetch(&hub, folder.path()).unwrap(), CONTENT);
}

impl Reply {
    fn weak(mut self) -> Self {
        self.headers[0].1 = "W/\"etag\"".to_string();
        self
    }
}

#[test]
fn another_process_that_downloads_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache/hub");
    let locks = cache.join(".locks/models--owner--name");
    let blobs = cache.join("models--owner--name/blobs");
    std::fs::create_dir_all(&locks).unwrap();
    std::fs::create_dir_all(&blobs).unwrap();
    let lock = std::fs::File::create(locks.join("etag.lock")).unwrap();
    lock.lock().unwrap();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(400));
        std::fs::write(
            blobs.join("etag"),
            "by another process...".to_string() + "!",
        )
        .unwrap();
        drop(lock);
    });
    let hub = Server::hub(|_, _| Reply::file("etag"));
    assert_eq!(
        fetch(&hub, folder.path()).unwrap(),
        "by another process...!"
    );
    assert_eq!(hub.files_asked().len(), 1);
    other.join().unwrap();
}

#[test]
fn names_are_escaped_in_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Server::hub(|_, _| Reply::file("etag"));
    let options = HubOptions {
        revision: "refs/pr/1".to_string(),
        offline: false,
        cache: folder.path().to_path_buf(),
        endpoint: hub.address.clone(),
        token: None,
    };
    let source = ModelSource::parse("owner/name:a folder/b#c?d%.safetensors").unwrap();
    options.resolve_pipeline(&source).unwrap();
    assert_eq!(
        hub.files_asked()[0].path,
        "/owner/name/resolve/refs%2Fpr%2F1/a%20folder/b%23c%3Fd%25.safetensors"
    );
}
