//! Processes that compile: each is this program with a hidden argument, and gets one job a line on standard input.

use crate::{process, Error, Result};
use candle_rocm::precompile::CompileJob;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The command of this program that compiles.
pub(super) const COMMAND: &str = "compile-kernels";
/// Its option to get jobs on standard input.
pub(super) const FROM_STDIN: &str = "jobs-from-stdin";

/// A job as it is written on a line.
#[derive(Serialize, Deserialize)]
struct JobLine {
    object: String,
    arch: String,
    options: Vec<String>,
}

/// The answer to a job.
#[derive(Serialize, Deserialize)]
struct AnswerLine {
    seconds: f64,
    error: Option<String>,
}

/// What became of a job: how long it took, or why it failed.
pub type Outcome = std::result::Result<Duration, String>;

/// Does all jobs with so many processes, the first ones first; `done` is told of each as it ends.
///
/// # Errors
/// [`Error::Runtime`] if threads cannot be started.
pub fn compile(
    jobs: Vec<CompileJob>,
    processes: usize,
    done: &mut dyn FnMut(&CompileJob, &Outcome),
) -> Result<()> {
    let queue = Mutex::new(VecDeque::from(jobs));
    let (sender, outcomes) = channel();
    std::thread::scope(|scope| {
        for _ in 0..processes {
            let (queue, sender) = (&queue, sender.clone());
            let thread = std::thread::Builder::new().name("compile".to_string());
            thread
                .spawn_scoped(scope, move || work_off(queue, &sender))
                .map_err(|e| Error::Runtime(format!("cannot start a thread: {e}")))?;
        }
        drop(sender);
        for (job, outcome) in outcomes {
            done(&job, &outcome);
        }
        Ok(())
    })
}

/// Has a process of its own do jobs until there are none. One that ends has failed its job; the next gets another.
fn work_off(queue: &Mutex<VecDeque<CompileJob>>, outcomes: &Sender<(CompileJob, Outcome)>) {
    let next = || {
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pop_front()
    };
    let mut compiler = None;
    while let Some(job) = next() {
        let outcome = match compiler.take().map_or_else(Compiler::start, Ok) {
            Ok(mut started) => match started.compile(&job) {
                Ok(outcome) => {
                    compiler = Some(started);
                    outcome
                }
                Err(error) => Err(started.end(&error)),
            },
            Err(error) => Err(format!("the process that compiles does not start: {error}")),
        };
        if outcomes.send((job, outcome)).is_err() {
            return;
        }
    }
}

/// A process that compiles. It ends when its standard input does, or with the thread that started it.
struct Compiler {
    child: Child,
    jobs: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Compiler {
    fn start() -> std::io::Result<Self> {
        let mut child = process::this_program()
            .arg(COMMAND)
            .arg(format!("--{FROM_STDIN}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(jobs), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(std::io::Error::other("it has no pipes"));
        };
        Ok(Self {
            child,
            jobs,
            answers: BufReader::new(output).lines(),
        })
    }

    fn compile(&mut self, job: &CompileJob) -> std::io::Result<Outcome> {
        let line = serde_json::to_string(&JobLine {
            object: job.object.to_string(),
            arch: job.arch.clone(),
            options: job.options.clone(),
        })?;
        writeln!(self.jobs, "{line}")?;
        let ended = || std::io::Error::other("it gave no answer");
        let line = self.answers.next().ok_or_else(ended)??;
        let answer: AnswerLine = serde_json::from_str(&line)?;
        let time = Duration::try_from_secs_f64(answer.seconds).unwrap_or_default();
        Ok(answer.error.map_or(Ok(time), Err))
    }

    /// Ends it after a failure; says how it ended.
    fn end(mut self, error: &std::io::Error) -> String {
        // It may have ended by itself, which is then what wait tells.
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => format!("the process that compiles failed ({status}): {error}"),
            Err(_) => format!("the process that compiles failed: {error}"),
        }
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        // Nothing is lost by its death: entries of the cache are whole or absent.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads jobs from standard input and answers each on standard output, until the input ends.
///
/// # Errors
/// [`Error::Runtime`] if the pipes break.
pub(super) fn serve_jobs() -> Result<()> {
    let broken = |e: std::io::Error| Error::Runtime(format!("jobs to compile: {e}"));
    process::die_with_parent().map_err(broken)?;
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(broken)?;
        let begun = Instant::now();
        let outcome = run(&line);
        let answer = AnswerLine {
            seconds: begun.elapsed().as_secs_f64(),
            error: outcome.err(),
        };
        let answer = serde_json::to_string(&answer).map_err(|e| broken(e.into()))?;
        writeln!(output, "{answer}")
            .and_then(|()| output.flush())
            .map_err(broken)?;
    }
    Ok(())
}

fn run(line: &str) -> std::result::Result<(), String> {
    let job: JobLine = serde_json::from_str(line).map_err(|e| format!("{line:?}: {e}"))?;
    let job = CompileJob {
        object: job.object.parse()?,
        arch: job.arch,
        options: job.options,
    };
    job.run().map_err(|e| e.to_string())
}
