//! Programs of others, whose output and time are limited.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How much a program may do.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of standard output.
    pub bytes: u64,
    /// Time until it is stopped.
    pub time: Duration,
}

/// What a program that ended said.
pub(crate) struct Output {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    /// The first 64 KiB.
    pub stderr: String,
}

/// Runs a program without input.
///
/// # Errors
/// If it does not start, writes more than the limit, or takes longer; it is stopped then.
pub(crate) fn run_limited(command: &mut Command, limits: Limits) -> Result<Output, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{name}: {error}"))?;
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    // One byte more than the limit tells "too much" from "just as much".
    let stdout = std::thread::spawn(move || read_some(stdout, limits.bytes + 1, false));
    let stderr = std::thread::spawn(move || read_some(stderr, 64 << 10, true));
    let end = Instant::now() + limits.time;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if Instant::now() >= end => {
                break Err(format!("{name} took longer than {:?}", limits.time))
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(4)),
            Err(error) => break Err(format!("{name}: {error}")),
        }
        if stdout.is_finished() {
            // It closed its output or was cut off; in the second case it may hang in its next write.
            let patience = Instant::now() + Duration::from_secs(5);
            while Instant::now() < patience.min(end) && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(2));
            }
            break match child.try_wait() {
                Ok(Some(status)) => Ok(status),
                _ => Err(format!("{name} did not end")),
            };
        }
    };
    if let Err(error) = status {
        let _ = child.kill();
        let _ = child.wait();
        // Readers that still wait are left alone: a grandchild may hold the pipe for long.
        let cut_off = stdout.is_finished()
            && stdout
                .join()
                .is_ok_and(|bytes| bytes.len() as u64 > limits.bytes);
        return Err(match cut_off {
            true => too_much(&name, limits),
            false => error,
        });
    }
    let stdout = stdout.join().unwrap_or_default();
    if stdout.len() as u64 > limits.bytes {
        return Err(too_much(&name, limits));
    }
    let stderr = stderr.join().unwrap_or_default();
    Ok(Output {
        status: status?,
        stdout,
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    })
}

fn too_much(name: &str, limits: Limits) -> String {
    format!("{name} wrote more than {} MiB", limits.bytes >> 20)
}

/// Reads up to `limit` bytes; with `drain` the rest is read and dropped, so that the writer does not wait.
fn read_some(stream: Option<impl Read>, limit: u64, drain: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        let _ = stream.by_ref().take(limit).read_to_end(&mut bytes);
        if drain {
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    }
    bytes
}
