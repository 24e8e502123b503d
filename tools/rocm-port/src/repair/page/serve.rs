//! The page while the repair runs: HTTP/1.1 with server-sent events, for a few viewers.

use super::{page, step, summary};
use crate::repair::state::State;
use serde_json::json;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Viewers at once; one more is asked to come later.
const MAX_VIEWERS: usize = 32;
/// Bytes of a request's head.
const MAX_HEAD: u64 = 16 << 10;
/// How long a viewer may take to ask, and to take what it is sent.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a line is sent when nothing happens, so that viewers that left are noticed.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What viewers see, in the parts that are sent one by one.
#[derive(Default)]
struct Shown {
    page: String,
    summary: String,
    steps: Vec<String>,
    revision: u64,
    over: bool,
}

#[derive(Default)]
struct Board {
    shown: Mutex<Shown>,
    changed: Condvar,
    viewers: AtomicUsize,
    /// Names by which viewers may ask for the page: a page from elsewhere that resolves its own name to this address
    /// does not get it.
    hosts: Vec<String>,
}

impl Board {
    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server of the page.
pub struct Live {
    board: Arc<Board>,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Live {
    /// Listens at an address, such as `127.0.0.1:8099`; port 0 takes a free one.
    ///
    /// # Errors
    /// If the address is none, or taken.
    pub fn start(address: &str) -> io::Result<Live> {
        let address = match address.contains(':') {
            true => address.to_string(),
            false => format!("127.0.0.1:{address}"),
        };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
        let listener = TcpListener::bind(addresses.as_slice())?;
        let at = listener.local_addr()?;
        let port = at.port();
        let hosts = match at.ip().is_loopback() {
            true => ["localhost", "127.0.0.1", "[::1]"]
                .map(|h| format!("{h}:{port}"))
                .to_vec(),
            false => Vec::new(),
        };
        let board = Arc::new(Board {
            hosts,
            ..Board::default()
        });
        let shared = board.clone();
        std::thread::Builder::new()
            .name("repair-page".into())
            .spawn(move || accept(&listener, &shared))?;
        Ok(Live { board, address: at })
    }

    /// Shows a state to all viewers.
    pub fn show(&self, state: &State) {
        let (page, summary) = (page(state, true), summary(state));
        let steps = state.steps.iter().map(step).collect();
        let mut shown = self.board.shown();
        *shown = Shown {
            page,
            summary,
            steps,
            revision: shown.revision + 1,
            over: state.end.is_some(),
        };
        self.board.changed.notify_all();
    }

    /// Waits until the viewers have the last state, a second at most.
    pub fn finish(&self) {
        for _ in 0..100 {
            if self.board.viewers.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn accept(listener: &TcpListener, board: &Arc<Board>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Too many open files, most likely: others end meanwhile.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if board.viewers.fetch_add(1, Ordering::Relaxed) >= MAX_VIEWERS {
            let _ = answer(
                &stream,
                "503 Service Unavailable",
                "text/plain",
                "too many viewers\n",
            );
            board.viewers.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let shared = board.clone();
        let spawned = std::thread::Builder::new().spawn(move || {
            // A viewer that left is no error.
            let _ = view(&stream, &shared);
            shared.viewers.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            board.viewers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn view(stream: &TcpStream, board: &Board) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.take(MAX_HEAD));
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut host = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case("host") {
                host = value.trim().to_ascii_lowercase();
            }
        }
    }
    if !board.hosts.is_empty() && !board.hosts.contains(&host) {
        return answer(stream, "403 Forbidden", "text/plain", "ask for localhost\n");
    }
    let mut words = first.split(' ');
    match (words.next(), words.next()) {
        (Some("GET"), Some("/")) => {
            let page = board.shown().page.clone();
            answer(stream, "200 OK", "text/html; charset=utf-8", &page)
        }
        (Some("GET"), Some("/events")) => events(stream, board),
        (Some("GET"), _) => answer(
            stream,
            "404 Not Found",
            "text/plain",
            "there is / and /events\n",
        ),
        _ => answer(stream, "405 Method Not Allowed", "text/plain", "only GET\n"),
    }
}

fn answer(mut stream: &TcpStream, status: &str, kind: &str, body: &str) -> io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\ncache-control: no-store\r\n\
         x-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Sends the parts that are other than what this viewer has, until the repair is over.
fn events(mut stream: &TcpStream, board: &Board) -> io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\nconnection: close\r\n\r\n\
         retry: 1000\n\n"
    )?;
    let mut sent = Shown::default();
    loop {
        let mut batch = String::new();
        let over;
        {
            let mut shown = board.shown();
            if shown.revision == sent.revision {
                let waited = board.changed.wait_timeout(shown, HEARTBEAT);
                shown = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            if shown.revision == sent.revision {
                batch.push_str(": nothing new\n\n");
            }
            let mut part = |id: &str, html: &str| {
                batch.push_str(&format!(
                    "event: part\ndata: {}\n\n",
                    json!({"id": id, "html": html})
                ));
            };
            if shown.summary != sent.summary {
                part("summary", &shown.summary);
            }
            for (at, html) in shown.steps.iter().enumerate() {
                if sent.steps.get(at) != Some(html) {
                    part(&format!("step-{}", at + 1), html);
                }
            }
            batch.push_str(&format!("event: steps\ndata: {}\n\n", shown.steps.len()));
            over = shown.over;
            if over {
                batch.push_str("event: end\ndata: {}\n\n");
            }
            sent.summary = shown.summary.clone();
            sent.steps = shown.steps.clone();
            sent.revision = shown.revision;
        }
        stream.write_all(batch.as_bytes())?;
        if over {
            return Ok(());
        }
    }
}
