//! Sections run in processes of their own: both ends.
//!
//! The child writes what it finds to its standard output, an event a line. A line of ours begins with the record
//! separator, as in RFC 7464, so that what libraries print between is told apart.

use crate::report::{Outcome, SectionReport, Severity};
use crate::section::{Check, Event, Failure, Scope, Section};
use crate::Options;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use worker::signal::Interrupt;
use worker::{process, Error, Result};

/// What a line of ours begins with.
const MARK: char = '\u{1e}';
/// How many lines of a child's other output are kept, and how much of each.
const LAST_LINES: usize = 12;
const LINE_CHARS: usize = 300;
/// How often the time and the user are looked at.
const POLL: Duration = Duration::from_millis(100);
/// How long a process may take to end after its last word. One that hangs in the driver may never.
const END: Duration = Duration::from_secs(10);

/// What a child is to do: the value of the hidden argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub section: String,
    pub ordinal: Option<usize>,
    pub options: Options,
}

/// The child's side: runs the section in this process and tells the parent.
pub(crate) fn serve(job: &Job, sections: &[&dyn Section]) -> Result<()> {
    let section = (sections.iter())
        .find(|section| section.name() == job.section)
        .ok_or_else(|| Error::Usage(format!("there is no section {}", job.section)))?;
    // Neither is worth failing for: a process that hangs is ended by the parent anyway.
    let _ = process::die_with_parent();
    let _ = process::leave_no_core_files();
    let tell = |event: Event| {
        let line = serde_json::to_string(&event).expect("events have string keys only");
        let mut out = std::io::stdout().lock();
        let told = writeln!(out, "{MARK}{line}").and_then(|()| out.flush());
        if told.is_err() {
            // Whoever wanted to know is gone.
            std::process::exit(1);
        }
    };
    let check = Check::new(section.name(), job.ordinal, &job.options, tell);
    // A panic is a failure like others: what was found before stays.
    let run = catch_unwind(AssertUnwindSafe(|| section.run(&check)));
    if let Err(failure) = run.unwrap_or_else(|panic| Err(words_of(&*panic))) {
        let advice = match section.scope() {
            Scope::Machine => "",
            Scope::Gpu => "see what the kernel says: dmesg | grep -e amdgpu -e kfd",
        };
        check.error("failed", format!("it could not go on: {failure}"), advice);
    }
    check.done();
    Ok(())
}

/// What a panic says.
fn words_of(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!(
        "a mistake in this program: {}",
        text.unwrap_or("it panicked")
    )
    .into()
}

/// How to start this program again.
pub(crate) struct Starter<'a> {
    /// The command that has the doctor's arguments, if it is not the whole program.
    pub command: &'a [&'a str],
}

/// A line of a child's output.
enum Line {
    Event(Event),
    Other(String),
}

/// What a child printed beside events, the last of it.
#[derive(Clone, Default)]
struct LastWords(Arc<Mutex<VecDeque<String>>>);

impl LastWords {
    fn add(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(line.trim_end().chars().take(LINE_CHARS).collect());
    }

    fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        lines.join("\n")
    }
}

impl Starter<'_> {
    /// Runs a section in a child and returns what it found, also if it does not end well.
    pub fn run(
        &self,
        section: &dyn Section,
        job: &Job,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(&str),
    ) -> SectionReport {
        let device = job.ordinal.map(|ordinal| format!("rocm:{ordinal}"));
        let mut report = SectionReport::new(section.name(), device);
        let start = Instant::now();
        match self.start(job) {
            Ok(child) => watch(child, section, job, interrupt, progress, &mut report),
            Err(error) => {
                let text = format!("its process could not be started: {error}");
                report.find(Severity::Error, "start", text, "");
            }
        }
        report.seconds = start.elapsed().as_secs_f64();
        report
    }

    fn start(&self, job: &Job) -> std::io::Result<Child> {
        let job = serde_json::to_string(job).map_err(std::io::Error::other)?;
        process::this_program()
            .args(self.command)
            .arg("--child")
            .arg(job)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }
}

fn watch(
    mut child: Child,
    section: &dyn Section,
    job: &Job,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(&str),
    report: &mut SectionReport,
) {
    let words = LastWords::default();
    let (sender, lines) = channel();
    let readers = [
        child.stdout.take().map(|out| read(out, sender.clone())),
        child.stderr.take().map(|err| read(err, sender)),
    ];
    let limit = section.limit(&job.options);
    let ended = follow(&lines, limit, interrupt, &words, progress, report);
    if ended.stopped.is_some() {
        // What cannot be ended (it hangs in the driver) is left alone.
        let _ = child.kill();
    }
    let status = wait(&mut child);
    if status.is_some() {
        for reader in readers.into_iter().flatten() {
            let _ = reader.join();
        }
        for line in lines.try_iter() {
            if let Line::Other(line) = line {
                words.add(&line);
            }
        }
    }
    let doing = match &ended.doing {
        Some(doing) => format!("while at this: {doing}"),
        None => "before it did anything".to_string(),
    };
    let said = match words.text() {
        words if words.is_empty() => String::new(),
        words => format!("; its last words: {words}"),
    };
    match (ended.stopped, ended.done, status) {
        (Some(Stopped::Interrupted), ..) => {
            report.notes.push("interrupted".to_string());
        }
        (Some(Stopped::TimedOut), ..) => {
            report.outcome = Outcome::TimedOut;
            let text = format!("it did not end within {} s, {doing}{said}", limit.as_secs());
            report.find(
                Severity::Error,
                "hang",
                text,
                "the GPU may hang: see dmesg | grep -e amdgpu -e kfd; restart the machine if it stays so, and send the report",
            );
        }
        (None, true, Some(status)) if status.success() => report.outcome = Outcome::Finished,
        (None, true, _) => {
            report.outcome = Outcome::Finished;
            let how = status.map_or("does not end".to_string(), describe);
            let text = format!("it found what it should, but then its process {how}{said}");
            report.find(
                Severity::Warning,
                "exit",
                text,
                "ROCm's libraries fail when a program ends: results are right, exit codes are not",
            );
        }
        (None, false, status) => {
            report.outcome = Outcome::Died;
            let how = status.map_or("gave up, but does not end".to_string(), describe);
            let advice = status.and_then(|status| status.signal()).map_or("", advice);
            report.find(
                Severity::Error,
                "died",
                format!("its process {how}, {doing}{said}"),
                advice,
            );
        }
    }
}

/// Why the parent ends a child.
enum Stopped {
    TimedOut,
    Interrupted,
}

/// How a child's output ended.
struct Ended {
    done: bool,
    stopped: Option<Stopped>,
    /// The last progress.
    doing: Option<String>,
}

fn follow(
    lines: &Receiver<Line>,
    limit: Duration,
    interrupt: &Interrupt,
    words: &LastWords,
    progress: &mut dyn FnMut(&str),
    report: &mut SectionReport,
) -> Ended {
    let start = Instant::now();
    let mut ended = Ended {
        done: false,
        stopped: None,
        doing: None,
    };
    loop {
        match lines.recv_timeout(POLL) {
            Ok(Line::Other(line)) => words.add(&line),
            Ok(Line::Event(event)) => match event {
                Event::Progress(text) => {
                    progress(&text);
                    ended.doing = Some(text);
                }
                Event::Note(text) => report.notes.push(text),
                Event::Measured(measurement) => report.measurements.push(measurement),
                Event::Found(finding) => report.findings.push(finding),
                Event::Facts(facts) => report.facts = Some(facts),
                Event::Done => {
                    ended.done = true;
                    return ended;
                }
            },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return ended,
        }
        if interrupt.is_raised() {
            ended.stopped = Some(Stopped::Interrupted);
            return ended;
        }
        if start.elapsed() > limit {
            ended.stopped = Some(Stopped::TimedOut);
            return ended;
        }
    }
}

fn read(from: impl Read + Send + 'static, to: Sender<Line>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut bytes = Vec::new();
        while from.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let line = String::from_utf8_lossy(&bytes);
            // What a library prints may lack the end of its line.
            let (other, event) = line.split_once(MARK).unwrap_or((&line, ""));
            let event = serde_json::from_str(event).ok().map(Line::Event);
            let other = Some(other).filter(|other| !other.trim().is_empty());
            let other = other.map(|other| Line::Other(other.to_string()));
            for line in [other, event].into_iter().flatten() {
                if to.send(line).is_err() {
                    return;
                }
            }
            bytes.clear();
        }
    })
}

/// Waits for the end of a process, not forever.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if start.elapsed() < END => std::thread::sleep(POLL / 10),
            _ => return None,
        }
    }
}

/// Names of the signals that end programs at fault.
const SIGNALS: &[(i32, &str)] = &[
    (libc::SIGABRT, "SIGABRT"),
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGKILL, "SIGKILL"),
    (libc::SIGTERM, "SIGTERM"),
];

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => {
            let name = SIGNALS.iter().find(|(number, _)| *number == signal);
            match name {
                Some((_, name)) => format!("was ended by {name}"),
                None => format!("was ended by signal {signal}"),
            }
        }
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".to_string(),
    }
}

fn advice(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => "ROCm ends a process so when the GPU meets a page fault, hangs or is handed a broken kernel, and rocBLAS when it lacks files for the GPU: see its last words and dmesg | grep -e amdgpu -e kfd, and send the report",
        libc::SIGKILL => "the system ended it, as it does when memory runs out: see dmesg | grep -i -e oom -e killed",
        _ => "a library crashed: see that all ROCm libraries are of one release, and send the report",
    }
}
