//! Starts processes that try inputs, watches them, and writes down what was found.

use crate::child::{self, Work, DONE};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often a process is looked at.
const GLANCE: Duration = Duration::from_millis(50);

/// An input that did what none may do.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The input's number.
    pub number: u64,
    /// `panic`, `abort`, `hang`, `memory` or `fault`.
    pub kind: String,
    /// Where, or what else is known.
    pub what: String,
}

/// What trying inputs of a target came to.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Inputs tried.
    pub tried: u64,
    /// Of them taken.
    pub accepted: u64,
    /// Of them refused.
    pub refused: u64,
    /// The most memory that one took in its process.
    pub most: u64,
    /// What was found.
    pub findings: Vec<Finding>,
}

impl Outcome {
    /// Findings by kind.
    pub fn kinds(&self) -> BTreeMap<&str, usize> {
        let mut kinds = BTreeMap::new();
        for finding in &self.findings {
            *kinds.entry(finding.kind.as_str()).or_default() += 1;
        }
        kinds
    }
}

/// Tries inputs; one that has not ended after `patience` is a hang.
///
/// # Errors
/// A text if no process can be started, or the target cannot be made.
pub fn run(program: &Path, work: &Work, patience: Duration) -> Result<Outcome, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut outcome = Outcome::default();
    let begun = Instant::now();
    let mut next = work.first;
    let end = work.first.saturating_add(work.count);
    while next < end && work.time.is_none_or(|time| begun.elapsed() < time) {
        let rest = Work {
            first: next,
            count: end - next,
            time: work.time.map(|time| time.saturating_sub(begun.elapsed())),
            ..work.clone()
        };
        let (ended, lines) = one_process(program, &rest, folder.path(), patience, &mut outcome)?;
        take(&lines, &mut outcome);
        match ended {
            None => break,
            Some(finding) => {
                outcome.tried += finding.number + 1 - next;
                next = finding.number + 1;
                outcome.findings.push(finding);
            }
        }
    }
    Ok(outcome)
}

/// What one process found before it was done, or before an input ended it.
fn one_process(
    program: &Path,
    work: &Work,
    folder: &Path,
    patience: Duration,
    outcome: &mut Outcome,
) -> Result<(Option<Finding>, String), String> {
    let progress = folder.join("progress");
    let (output, errors) = (folder.join("output"), folder.join("errors"));
    let file = |path: &PathBuf| std::fs::File::create(path).map_err(|e| e.to_string());
    let mut command = Command::new(program);
    command
        .arg("child")
        .arg(&work.target)
        .args(["--seed", &work.seed.to_string()])
        .args(["--first", &work.first.to_string()])
        .args(["--count", &work.count.to_string()])
        .arg("--progress")
        .arg(&progress)
        // Temporary files of an input that ends the process go with the folder.
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::from(file(&output)?))
        .stderr(Stdio::from(file(&errors)?));
    if let Some(time) = work.time {
        command.args(["--seconds", &time.as_secs().max(1).to_string()]);
    }
    std::fs::write(&progress, [work.first, 0, 0].map(u64::to_le_bytes).concat())
        .map_err(|e| e.to_string())?;
    let mut process = command.spawn().map_err(|e| e.to_string())?;
    let (mut number, mut since) = (work.first, Instant::now());
    let status = loop {
        if let Some(status) = process.try_wait().map_err(|e| e.to_string())? {
            break Some(status);
        }
        let [now, ..] = read_progress(&progress).unwrap_or([number, 0, 0]);
        if now != number {
            (number, since) = (now, Instant::now());
        } else if since.elapsed() > patience {
            process.kill().map_err(|e| e.to_string())?;
            process.wait().map_err(|e| e.to_string())?;
            break None;
        }
        std::thread::sleep(GLANCE);
    };
    let [last_number, accepted, refused] = read_progress(&progress).unwrap_or([number, 0, 0]);
    number = last_number;
    outcome.accepted += accepted;
    outcome.refused += refused;
    let text = |path: &PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let lines = text(&output);
    if number == DONE {
        return Ok((None, lines));
    }
    let finding = |kind: &str, what: String| Finding {
        number,
        kind: kind.to_string(),
        what,
    };
    let last = text(&errors).trim().chars().take(500).collect::<String>();
    match status {
        None => Ok((
            Some(finding(
                "hang",
                format!("more than {} s", patience.as_secs()),
            )),
            lines,
        )),
        Some(status) => match status.signal() {
            Some(signal) => Ok((
                Some(finding("abort", format!("signal {signal}: {last}"))),
                lines,
            )),
            None => Err(format!("{status}: {last}")),
        },
    }
}

/// A number, and how many inputs before it were accepted and refused.
fn read_progress(path: &Path) -> Option<[u64; 3]> {
    let bytes = std::fs::read(path).ok()?;
    let mut numbers = bytes.chunks_exact(8).filter_map(|bytes| {
        let bytes = bytes.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    });
    Some([numbers.next()?, numbers.next()?, numbers.next()?])
}

fn take(lines: &str, outcome: &mut Outcome) {
    for line in lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Json>(line).ok())
    {
        let number = |name: &str| line[name].as_u64().unwrap_or(0);
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_string();
        match line.get("kind") {
            Some(_) => outcome.findings.push(Finding {
                number: number("number"),
                kind: text("kind"),
                what: text("what"),
            }),
            None => {
                outcome.tried += number("tried");
                outcome.most = outcome.most.max(number("most"));
            }
        }
    }
}

/// Writes the inputs of findings into a folder, `TARGET-SEED-NUMBER.input` and what they did beside them.
///
/// # Errors
/// A text if one cannot be written.
pub fn save(work: &Work, outcome: &Outcome, folder: &Path) -> Result<(), String> {
    if outcome.findings.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(folder).map_err(|e| e.to_string())?;
    let target = child::target(&work.target)?;
    for finding in &outcome.findings {
        let name = format!("{}-{}-{}", work.target, work.seed, finding.number);
        let input = child::input(&*target, work.seed, finding.number);
        let write = |extension: &str, bytes: &[u8]| {
            let path = folder.join(format!("{name}.{extension}"));
            std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))
        };
        write("input", &input)?;
        write(
            "txt",
            format!("{}: {}\n", finding.kind, finding.what).as_bytes(),
        )?;
    }
    Ok(())
}
