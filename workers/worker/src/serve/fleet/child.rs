//! The process of one model.

use crate::cli::output::print_line;
use crate::process;
use crate::serve::supervise::parent::{crash, exit_code};
use crate::serve::supervise::supervisor::{Supervisor, VARIABLE};
use crate::serve::{Failed, FAILED, LISTENING};
use crate::text::indented;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{mpsc, Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::{oneshot, watch};

/// Longest line of a log that is passed on in one piece.
const LONGEST_LINE: u64 = 64 << 10;
/// Lines of a log that are remembered for the reason of its end.
const LAST_LINES: usize = 5;
/// How often a process is looked after though no signal came.
const LOOK: Duration = Duration::from_secs(1);

/// Starts processes, all by one thread: the system ends what a thread has started when that thread ends.
#[derive(Debug, Clone)]
pub(super) struct Spawner(mpsc::Sender<Order>);

/// A process to be started, and who waits for it.
type Order = (Command, oneshot::Sender<Result<std::process::Child>>);

impl Spawner {
    /// With a thread that lasts as long as somebody may start something.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start() -> Result<Self> {
        let (sender, orders) = mpsc::channel::<Order>();
        let thread = std::thread::Builder::new().name("children".to_string());
        thread.spawn(move || {
            for (mut command, reply) in orders {
                // Who does not wait any more does not get it, and it has nobody who serves it.
                if let Err(Ok(mut child)) = reply.send(command.spawn()) {
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        })?;
        Ok(Self(sender))
    }

    async fn spawn(&self, command: Command) -> Result<std::process::Child> {
        let gone = || Error::other("processes are started no more");
        let (reply, child) = oneshot::channel();
        self.0.send((command, reply)).map_err(|_| gone())?;
        child.await.map_err(|_| gone())?
    }
}

/// How to start a model's process.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
    /// Variables that are about the server.
    pub(super) hidden: Arc<[OsString]>,
    /// For each caller of the server the key by which the process knows it.
    pub(super) keys: Arc<[(u64, String)]>,
    pub(super) worker_id: String,
    pub(super) restarts: u64,
    /// How it ended the last time, if it crashed.
    pub(super) reason: Option<String>,
    pub(super) core_files: bool,
}

/// How a model's process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) message: String,
    /// Whether memory did not suffice.
    pub(super) memory: bool,
    /// As shells tell it.
    pub(super) code: u8,
    /// Whether the system ended it, or its device was lost.
    pub(super) crashed: bool,
}

/// What a process said.
#[derive(Debug, Default)]
struct Said {
    last: VecDeque<String>,
    failed: Option<Failed>,
}

/// A model's process.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) name: String,
    /// Where it listens, for us only.
    pub(super) address: SocketAddr,
    /// What it asks of us, by the server's callers.
    keys: Vec<(u64, String)>,
    pub(super) id: u32,
    process: Mutex<std::process::Child>,
    said: Arc<Mutex<Said>>,
    ended: watch::Receiver<Option<ExitStatus>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is in it stays right whatever panics elsewhere.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Child {
    /// Starts one. It answers as soon as it can; until then connections wait.
    ///
    /// # Errors
    /// The system's.
    pub(super) async fn start(spawner: &Spawner, launch: Launch) -> Result<Arc<Self>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let keys = launch.keys.to_vec();
        let supervisor = Supervisor::of_model(
            launch.worker_id,
            launch.restarts,
            launch.reason,
            launch.core_files,
            keys.iter().map(|(_, key)| key.clone()).collect(),
        );
        let supervisor = serde_json::to_string(&supervisor).map_err(Error::other)?;
        let mut command = process::this_program();
        command
            .args(&launch.arguments)
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the server, which tells it once.
            .process_group(0);
        for variable in launch.hidden.iter() {
            command.env_remove(variable);
        }
        // The service manager is told of the server, whose models come and go.
        command.env_remove("NOTIFY_SOCKET");
        command.env(VARIABLE, supervisor);
        let mut process = spawner.spawn(command).await?;
        let said = Arc::new(Mutex::new(Said::default()));
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        let thread = |what: &str| std::thread::Builder::new().name(what.to_string());
        if let Some(output) = stdout {
            let said = said.clone();
            thread("output").spawn(move || {
                let lines = BufReader::new(output.take(u64::MAX)).lines();
                lines
                    .map_while(Result::ok)
                    .for_each(|line| hear(&said, &line));
            })?;
        }
        if let Some(log) = stderr {
            let (said, name) = (said.clone(), launch.name.clone());
            thread("log").spawn(move || pass_on(&name, log, &said))?;
        }
        let (sender, ended) = watch::channel(None);
        let child = Arc::new(Self {
            name: launch.name,
            address,
            keys,
            id: process.id(),
            process: Mutex::new(process),
            said,
            ended,
        });
        tokio::spawn(look_after(child.clone(), sender));
        Ok(child)
    }

    /// What it asks of us for a caller of the server's.
    pub(super) fn key(&self, caller: u64) -> &str {
        let found = self.keys.iter().find(|(number, _)| *number == caller);
        // What needs no key of the server's comes from nobody in particular.
        found.or(self.keys.first()).map_or("", |(_, key)| key)
    }

    /// Asks it to end: running answers have its grace.
    pub(super) fn terminate(&self) {
        let mut process = lock(&self.process);
        if matches!(process.try_wait(), Ok(None)) {
            // It may have ended this moment.
            let _ = process::terminate(&process);
        }
    }

    /// Ends it.
    pub(super) fn kill(&self) {
        // One that has ended needs no more.
        let _ = lock(&self.process).kill();
    }

    /// Resolves when it has ended.
    pub(super) async fn end(&self) -> End {
        let mut ended = self.ended.clone();
        let status = match ended.wait_for(Option::is_some).await {
            Ok(status) => *status,
            Err(_) => None,
        };
        let Some(status) = status else {
            return End {
                message: "nobody looks after its process any more".to_string(),
                memory: false,
                code: 1,
                crashed: true,
            };
        };
        // Its last words may still be on their way.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let said = lock(&self.said);
        let crash = crash(status);
        let last = said
            .last
            .back()
            .map(|line| format!(": {line}"))
            .unwrap_or_default();
        let killed = crate::serve::supervise::parent::is_killed(status);
        let (message, memory) = match (&said.failed, &crash) {
            (Some(failed), _) => (failed.message.clone(), failed.memory),
            (None, Some(crash)) => (crash.clone(), killed),
            (None, None) => (format!("exit code {}{last}", exit_code(status)), false),
        };
        End {
            message,
            memory,
            code: exit_code(status),
            crashed: crash.is_some(),
        }
    }

    /// Bytes of the host's memory that it has, what it shares with others included; 0 if the system does not tell.
    pub(super) fn host_bytes(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.id)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let process = self
            .process
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // Whoever let go of it without its end has no use for it.
        if matches!(process.try_wait(), Ok(None)) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

async fn look_after(child: Arc<Child>, sender: watch::Sender<Option<ExitStatus>>) {
    let mut signals = signal(SignalKind::child()).ok();
    loop {
        let ended = lock(&child.process).try_wait();
        match ended {
            Ok(None) => {}
            Ok(Some(status)) => {
                // Without receivers nobody wants to know.
                let _ = sender.send(Some(status));
                return;
            }
            Err(error) => {
                tracing::error!("model {}: waiting for its process: {error}", child.name);
                return;
            }
        }
        let signal = async {
            match &mut signals {
                Some(signals) => drop(signals.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = signal => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// A line of standard output.
fn hear(said: &Mutex<Said>, line: &str) {
    if let Some(failed) = line.strip_prefix(FAILED) {
        lock(said).failed = serde_json::from_str(failed).ok();
    } else if !line.starts_with(LISTENING) {
        // Nobody reads it where the server's own output is closed.
        let _ = print_line(line);
    }
}

/// Passes a process's log on, each line with the model's name.
fn pass_on(name: &str, log: ChildStderr, said: &Mutex<Said>) {
    let mut reader = BufReader::new(log);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            return;
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.is_empty() {
            continue;
        }
        // A standard error that is closed loses the line.
        let _ = writeln!(std::io::stderr(), "{}", indented(&labelled(name, text)));
        let mut said = lock(said);
        if said.last.len() == LAST_LINES {
            said.last.pop_front();
        }
        said.last
            .push_back(text.trim_start_matches("error: ").to_string());
    }
}

/// A line of a log with a model's name: a field of an object, or in front.
fn labelled(name: &str, line: &str) -> String {
    match line.strip_prefix("{\"") {
        Some(rest) if line.ends_with('}') => {
            let name = serde_json::Value::from(name);
            format!("{{\"served_model\":{name},\"{rest}")
        }
        _ => format!("[{name}] {line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_carry_the_models_name() {
        assert_eq!(labelled("a b", "INFO ready"), "[a b] INFO ready");
        let json = labelled("a\"b", "{\"level\":\"INFO\"}");
        assert_eq!(json, "{\"served_model\":\"a\\\"b\",\"level\":\"INFO\"}");
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    }

    #[test]
    fn what_a_process_says_of_its_failure_is_heard() {
        let said = Mutex::new(Said::default());
        hear(&said, "listening on http://127.0.0.1:1");
        hear(
            &said,
            "failed: {\"message\": \"no such file\", \"memory\": false}",
        );
        let failed = said.into_inner().unwrap().failed.unwrap();
        assert_eq!(
            (failed.message.as_str(), failed.memory),
            ("no such file", false)
        );
    }
}
