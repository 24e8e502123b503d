//! A worker seen from the check: started, asked, and replaced when a kernel took it down.

use super::prepare::Ready;
use super::wire::{self, Answer, Request};
use super::worker::VARIABLE;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What is kept of what a worker writes to stderr.
const KEPT: usize = 1 << 14;
/// A compiler may take so long.
const COMPILE_LIMIT: Duration = Duration::from_secs(900);

/// Where and how kernels run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Setup {
    /// The simulated arch; none is the machine's GPU.
    pub arch: Option<String>,
    /// Seed of the order of threads; none is ascending.
    pub order: Option<u64>,
}

impl Setup {
    /// The order in words.
    pub fn order(&self) -> String {
        match self.order {
            Some(seed) => seed.to_string(),
            None => "ascending".to_string(),
        }
    }
}

/// How a launch went.
pub(super) enum Ran {
    /// It ended.
    Done {
        error: Option<String>,
        reports: Vec<String>,
        outputs: Vec<Vec<u8>>,
    },
    /// It took the worker with it, or did not end; with what the worker said.
    Died { hangs: bool, words: String },
}

/// A source to load.
pub(super) struct Source<'a> {
    pub name: &'a str,
    pub text: &'a str,
    pub options: &'a [String],
}

/// Why a worker cannot be used.
pub(super) enum Refusal {
    /// The source does not compile.
    Rejected(String),
    /// The worker itself does not work.
    Broken(String),
}

/// A worker with a loaded unit.
pub(super) struct Session {
    child: Child,
    socket: UnixStream,
    from: BufReader<UnixStream>,
    stderr: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    limit: Duration,
    /// What the worker's device is.
    pub arch: String,
}

/// The program that has the hidden option `check --worker`: `ROCM_PORT_PROGRAM`, this program, one beside it or in the
/// folder above (as tests and examples of a build have it), or `rocm-port` on `PATH`.
pub(super) fn program() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("ROCM_PORT_PROGRAM") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    if own.file_stem().is_some_and(|stem| stem == "rocm-port") {
        return Ok(own);
    }
    let folders = own.ancestors().skip(1).take(2).map(Path::to_path_buf);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = folders.chain(std::env::split_paths(&path));
    let mut found = found
        .map(|folder| folder.join("rocm-port"))
        .filter(|file| file.is_file());
    found.next().ok_or_else(|| {
        "kernels run in processes of the program rocm-port, which is neither near this one nor on PATH; install it \
         (cargo install rocm-port), or set ROCM_PORT_PROGRAM to it"
            .to_string()
    })
}

impl Session {
    /// Starts a worker and loads a unit.
    pub fn start(
        program: &Path,
        setup: &Setup,
        source: &Source,
        limit: Duration,
    ) -> Result<Session, Refusal> {
        let broken = |error: io::Error| Refusal::Broken(format!("cannot start a worker: {error}"));
        let (socket, theirs) = UnixStream::pair().map_err(broken)?;
        let mut command = Command::new(program);
        command
            .args(["check", "--worker"])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        for name in [
            "ARCH", "DEVICES", "SEED", "FAIL", "WRONG", "PEERS", "VERSION",
        ] {
            command.env_remove(format!("HIP_SIM_{name}"));
        }
        match &setup.arch {
            None => command.env(VARIABLE, "rocm"),
            Some(arch) => command
                .env(VARIABLE, "sim")
                .env("HIP_SIM_ARCH", arch)
                .env("HIP_SIM_CHECK", "1")
                .env("HIP_SIM_MEMORY", "8G")
                .env("HIP_SIM_SPIN_LIMIT", limit.as_secs_f64().to_string()),
        };
        if let (Some(_), Some(seed)) = (&setup.arch, setup.order) {
            command.env("HIP_SIM_SEED", seed.to_string());
        }
        let mut child = command.spawn().map_err(broken)?;
        // The command holds the worker's end of the socket, which must close when the worker ends.
        drop(command);
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let reader = child.stderr.take().map(|pipe| {
            let kept = stderr.clone();
            std::thread::spawn(move || keep(pipe, &kept))
        });
        let from = BufReader::new(socket.try_clone().map_err(broken)?);
        let mut session = Session {
            child,
            socket,
            from,
            stderr,
            reader,
            limit,
            arch: String::new(),
        };
        let request = Request::Load {
            name: source.name.to_string(),
            source: source.text.to_string(),
            options: source.options.to_vec(),
        };
        match session.ask(&request, &[], COMPILE_LIMIT) {
            Ok(Answer::Loaded { arch }) => {
                session.arch = arch;
                Ok(session)
            }
            Ok(Answer::Rejected { log }) => Err(Refusal::Rejected(log)),
            Ok(Answer::Impossible { why }) => Err(Refusal::Broken(why)),
            Ok(Answer::Done { .. }) => Err(Refusal::Broken("a worker answers nonsense".into())),
            Err(error) => {
                let (_, words) = session.end(&error);
                Err(Refusal::Broken(format!(
                    "a worker ended before it ran anything: {words}"
                )))
            }
        }
    }

    fn ask(&mut self, request: &Request, blobs: &[&[u8]], limit: Duration) -> io::Result<Answer> {
        self.socket.set_write_timeout(Some(limit))?;
        self.socket.set_read_timeout(Some(limit))?;
        wire::write(BufWriter::new(&self.socket), request, blobs)?;
        wire::read(&mut self.from)
    }

    /// Runs a launch; a session that died cannot be used again.
    pub fn run(&mut self, ready: &Ready) -> Ran {
        // The simulator ends what hangs by itself after this limit, and says what it was.
        let limit = self.limit * 2 + Duration::from_secs(5);
        let request = Request::Run(ready.launch.clone());
        let answer = self.ask(&request, &ready.inputs(), limit);
        let outputs = answer.and_then(|answer| {
            let outputs = match &answer {
                Answer::Done { error: None, .. } => {
                    let rooms = ready.launch.rooms.iter();
                    let read = rooms.map(|room| wire::read_bytes(&mut self.from, room.bytes));
                    read.collect::<io::Result<Vec<_>>>()?
                }
                _ => Vec::new(),
            };
            Ok((answer, outputs))
        });
        match outputs {
            Ok((Answer::Done { error, reports }, outputs)) => Ran::Done {
                error,
                reports,
                outputs,
            },
            Ok((Answer::Impossible { why }, _)) => Ran::Done {
                error: Some(why),
                reports: Vec::new(),
                outputs: Vec::new(),
            },
            Ok(_) => {
                let (_, words) = self.end(&ErrorKind::InvalidData.into());
                Ran::Died {
                    hangs: false,
                    words,
                }
            }
            Err(error) => {
                let (hangs, words) = self.end(&error);
                Ran::Died { hangs, words }
            }
        }
    }

    /// Ends the worker after an error, and says whether it hung, and what it said.
    fn end(&mut self, error: &io::Error) -> (bool, String) {
        let is_late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        if is_late {
            let _ = self.child.kill();
        }
        let _ = self.socket.shutdown(Shutdown::Both);
        let status = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        let kept = self
            .stderr
            .lock()
            .unwrap_or_else(|error| error.into_inner());
        let words = String::from_utf8_lossy(&kept);
        let lines: Vec<&str> = words
            .lines()
            .filter(|line| line.contains("hip-sim"))
            .collect();
        let said = match lines.is_empty() {
            true => words.trim().to_string(),
            false => lines.join("\n"),
        };
        let hangs = is_late || said.contains(HANG);
        let how = match status {
            _ if is_late => "it did not end in time".to_string(),
            Ok(status) => ended(status),
            Err(error) => error.to_string(),
        };
        (hangs, format!("{said}\n{how}").trim().to_string())
    }
}

/// What the simulator says before it ends a process whose kernel does not end.
const HANG: &str = "HIP_SIM_SPIN_LIMIT";

fn ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("the process ended by signal {signal}"),
        (None, Some(code)) => format!("the process ended with status {code}"),
        (None, None) => "the process ended".to_string(),
    }
}

/// Keeps the end of what a worker says.
fn keep(mut pipe: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = pipe.read(&mut buffer) {
        let mut kept = kept.lock().unwrap_or_else(|error| error.into_inner());
        kept.extend(&buffer[..length]);
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        // It may be in an endless kernel.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
