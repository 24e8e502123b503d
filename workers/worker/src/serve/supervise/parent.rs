//! The side of the process that supervises: it starts the one that serves, watches it, and starts it anew.

use super::crashes::Crashes;
use super::options::SuperviseArgs;
use super::stand_in::{Absence, Reason, StandIn};
use super::supervisor::{Supervisor, VARIABLE};
use crate::cli::output::print_line;
use crate::error::EXIT_DEVICE_LOST;
use crate::http::ListenOptions;
use crate::serve::LISTENING;
use crate::signal::EXIT_INTERRUPTED;
use crate::{process, Error, Result};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::signal::unix::{signal, Signal, SignalKind};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};

/// What a process that was told to stop gets beyond the grace of its requests.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// Opens the port and has processes of this program serve on it, one after the other, until one ends by itself, a
/// signal comes, or too many crash.
///
/// # Errors
/// [`Error::Usage`] if the port cannot be opened; [`Error::Ended`] with the exit code of the process that served;
/// [`Error::Crashed`] if too many crashed.
pub(in crate::serve) fn supervise(
    listen: &ListenOptions,
    worker_id: String,
    options: &SuperviseArgs,
) -> Result<()> {
    // One thread for all: the system ends what was started by a thread when that thread ends.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Runtime(format!("cannot start a clock: {e}")))?;
    runtime.block_on(async {
        let listener = listen.bind().await?.into_std();
        let listener = listener.map_err(|e| Error::Runtime(format!("the port: {e}")))?;
        let parent = Parent {
            listener,
            listen,
            worker_id,
            options,
            stop: Stop {
                interrupt: listen_for(SignalKind::interrupt())?,
                terminate: listen_for(SignalKind::terminate())?,
            },
            child_ended: listen_for(SignalKind::child())?,
            crashes: Crashes::new(options.max_restarts, options.window()),
            reason: Reason::new(Absence::Starting),
            is_announced: false,
        };
        parent.run().await
    })
}

struct Parent<'a> {
    listener: TcpListener,
    listen: &'a ListenOptions,
    worker_id: String,
    options: &'a SuperviseArgs,
    stop: Stop,
    /// SIGCHLD.
    child_ended: Signal,
    crashes: Crashes,
    /// Why nobody serves, if so.
    reason: Reason,
    /// Whether the port was told on standard output.
    is_announced: bool,
}

/// The signals that ask the program to end.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// The next one.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn listen_for(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|e| Error::Runtime(format!("signals: {e}")))
}

/// A process that serves.
struct Serving {
    child: Child,
    /// What it writes to standard output.
    lines: UnboundedReceiver<String>,
}

/// How a process that served ended.
struct End {
    status: ExitStatus,
    /// Signals that asked the program to end meanwhile.
    stops: usize,
}

impl Parent<'_> {
    async fn run(mut self) -> Result<()> {
        let mut last = None;
        loop {
            let stand_in = StandIn::open(&self.listener, self.listen, &self.reason)?;
            let serving = self.start(last.take())?;
            let End { status, stops } = self.attend(serving, stand_in).await?;
            if stops > 1 {
                return Err(Error::Ended(EXIT_INTERRUPTED));
            }
            let Some(crash) = crash(status).filter(|_| stops == 0) else {
                return ended(status);
            };
            let Some(wait) = self.crashes.add(Instant::now()) else {
                return Err(self.given_up(status, &crash));
            };
            let total = self.crashes.total();
            tracing::error!(
                "the server crashed: {crash}; it is started anew in {:.1} s, for the {total}. time",
                wait.as_secs_f64()
            );
            self.reason.set(Absence::Restarting {
                reason: crash.clone(),
                restarts: total,
                due: Instant::now() + wait,
            });
            let stand_in = StandIn::open(&self.listener, self.listen, &self.reason)?;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stop.next() => return Ok(()),
            }
            drop(stand_in);
            last = Some(crash);
        }
    }

    /// Starts a process that serves.
    fn start(&self, crash: Option<String>) -> Result<Serving> {
        let failed = |e: std::io::Error| Error::Runtime(format!("starting the server: {e}"));
        let supervisor = Supervisor {
            process: std::process::id(),
            worker_id: self.worker_id.clone(),
            restarts: self.crashes.total(),
            reason: crash,
            core_files: self.options.core_files,
            keys: None,
        };
        let supervisor = serde_json::to_string(&supervisor)
            .map_err(|e| Error::Runtime(format!("starting the server: {e}")))?;
        let port = OwnedFd::from(self.listener.try_clone().map_err(failed)?);
        let mut child = process::this_program()
            .args(std::env::args_os().skip(1))
            .env(VARIABLE, supervisor)
            .stdin(Stdio::from(port))
            .stdout(Stdio::piped())
            // Ctrl-C is for the parent, which tells it once.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        tracing::debug!("process {} is to serve", child.id());
        let (sender, lines) = unbounded_channel();
        if let Some(output) = child.stdout.take() {
            let reader = std::thread::Builder::new().name("output".to_string());
            let read = move || {
                let lines = BufReader::new(output).lines();
                // Ends with the process, or when nobody wants to know.
                for line in lines.map_while(std::io::Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            };
            reader.spawn(read).map_err(failed)?;
        }
        Ok(Serving { child, lines })
    }

    /// Waits for the end of a process that serves; `stand_in` answers until it listens.
    async fn attend(&mut self, mut serving: Serving, stand_in: StandIn) -> Result<End> {
        let mut stand_in = Some(stand_in);
        let mut stops = 0;
        let mut kill_at: Option<tokio::time::Instant> = None;
        loop {
            // One that has ended is told by SIGCHLD; it may have come before it was listened for.
            let ended = serving.child.try_wait();
            if let Some(status) = ended.map_err(|e| Error::Runtime(format!("waiting: {e}")))? {
                return Ok(End { status, stops });
            }
            tokio::select! {
                Some(line) = serving.lines.recv() => match line.starts_with(LISTENING) {
                    // While it is told to stop, it listens no more.
                    true if stops > 0 => {}
                    true => {
                        stand_in = None;
                        if !std::mem::replace(&mut self.is_announced, true) {
                            announce(&line);
                        }
                    }
                    false => announce(&line),
                },
                _ = self.child_ended.recv() => {}
                () = self.stop.next() => {
                    stops += 1;
                    self.reason.set(Absence::Stopping);
                    if stops == 1 {
                        let grace = self.listen.grace() + STOP_MARGIN;
                        kill_at = Some(tokio::time::Instant::now() + grace);
                        // It may have ended this moment: then the next round sees it.
                        let _ = process::terminate(&serving.child);
                        if stand_in.is_none() {
                            stand_in = Some(StandIn::open(&self.listener, self.listen, &self.reason)?);
                        }
                    } else {
                        let _ = serving.child.kill();
                    }
                }
                () = at(kill_at) => {
                    kill_at = None;
                    tracing::warn!("the server does not stop; it is killed");
                    let _ = serving.child.kill();
                }
            }
        }
    }

    /// The error after one crash too many.
    fn given_up(&self, status: ExitStatus, crash: &str) -> Error {
        Error::Crashed {
            code: exit_code(status),
            reason: format!(
                "the server crashed {} times in {} s, the last time: {crash}. Look for lines of amdgpu in the kernel's log (`dmesg`), see what the command `devices` says, try --device of another GPU or cpu; --max-restarts allows more",
                self.crashes.recent(),
                self.options.window().as_secs()
            ),
        }
    }
}

/// Resolves at a moment, or never.
async fn at(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// The shell's form of how a process ended.
pub(in crate::serve) fn exit_code(status: ExitStatus) -> u8 {
    let signal = || status.signal().map(|signal| 128 + signal);
    let code = status.code().or_else(signal);
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// What to say of a process that has ended if it crashed: by a signal, or because its device is gone. Any other end is
/// its own decision.
pub(in crate::serve) fn crash(status: ExitStatus) -> Option<String> {
    if status.code() == Some(EXIT_DEVICE_LOST.into()) {
        return Some("its device was lost (exit code 3)".to_string());
    }
    let signal = status.signal()?;
    let name = signal_hook::low_level::signal_name(signal).unwrap_or("unknown");
    let cause = match signal {
        libc::SIGABRT => ", by which ROCm's runtime ends a process after a fault of the GPU",
        libc::SIGKILL => ", which the system sends when memory runs out",
        _ => "",
    };
    Some(format!("signal {signal} ({name}){cause}"))
}

/// Whether a process was ended as the system does when memory runs out.
pub(in crate::serve) fn is_killed(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGKILL)
}

/// How the program ends with the process that served.
fn ended(status: ExitStatus) -> Result<()> {
    match (exit_code(status), status.signal()) {
        (0, _) => Ok(()),
        (code, None) => Err(Error::Ended(code)),
        (code, Some(signal)) => Err(Error::Crashed {
            code,
            reason: format!("the server was ended by signal {signal} while it stopped"),
        }),
    }
}

/// Passes a line of the server on. A standard output that nobody reads is no reason to end.
fn announce(line: &str) {
    let _ = print_line(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        let killed = ExitStatus::from_raw;
        assert_eq!(crash(exited(0)), None);
        assert_eq!(crash(exited(1)), None);
        assert!(crash(exited(3)).unwrap().contains("device was lost"));
        let fault = crash(killed(6)).unwrap();
        assert!(fault.starts_with("signal 6 (SIGABRT), by which"), "{fault}");
        assert_eq!(exit_code(killed(6)), 134);
        assert_eq!(exit_code(exited(2)), 2);
        assert!(ended(exited(0)).is_ok());
        assert_eq!(ended(exited(2)).unwrap_err().exit_code(), 2);
        assert_eq!(ended(killed(11)).unwrap_err().exit_code(), 139);
    }
}
