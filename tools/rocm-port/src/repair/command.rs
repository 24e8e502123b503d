//! The checks as a confined program: `rocm-port check` on the kernel file.

use super::checker::{CheckError, Checker, Class, Finding, Outcome};
use super::confine::Bounds;
use super::state::digest;
use super::Stop;
use crate::model::{PortedUnit, Severity};
use crate::{parse, rules, source};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The largest report that is read.
const MAX_REPORT: u64 = 64 << 20;

/// Runs `check` as a process of its own.
pub struct CommandChecker {
    program: PathBuf,
    file: String,
    /// The ported unit whose text the kernel file is, if it is one.
    unit: Option<PortedUnit>,
    cases: Option<PathBuf>,
    /// Files that the cases read.
    files: Vec<PathBuf>,
    options: Vec<String>,
    work: TempDir,
    time: Duration,
    stop: Stop,
    /// What the user should know of the checks: what this system cannot bound, which kernels have no reference.
    pub notes: BTreeSet<String>,
}

impl CommandChecker {
    /// Checks a kernel file of this name with `program` (this one), by the cases of a file.
    ///
    /// # Errors
    /// If no folder can be made for its work.
    pub fn new(
        program: PathBuf,
        file: &str,
        cases: Option<PathBuf>,
        files: Vec<PathBuf>,
        options: Vec<String>,
        stop: Stop,
    ) -> Result<Self, CheckError> {
        let work = tempfile::Builder::new()
            .prefix("rocm-port-repair-")
            .tempdir();
        Ok(Self {
            program,
            file: file.into(),
            unit: None,
            cases,
            files,
            options,
            work: work.map_err(|e| CheckError::Failed(format!("cannot create a folder: {e}")))?,
            time: Duration::from_secs(20 * 60),
            stop,
            notes: BTreeSet::new(),
        })
    }

    /// The kernel file is the text of this unit, with its entries and their arguments.
    pub fn of_unit(mut self, unit: PortedUnit) -> Self {
        self.unit = Some(unit);
        self
    }

    /// Writes the text as `check` takes it.
    fn write(&self, text: &str) -> std::io::Result<PathBuf> {
        let Some(unit) = &self.unit else {
            let file = self.work.path().join(&self.file);
            return std::fs::write(&file, text).map(|()| file);
        };
        let file = self.work.path().join("unit.json");
        let unit = PortedUnit {
            source: text.into(),
            ..unit.clone()
        };
        std::fs::write(&file, serde_json::to_vec(&unit)?).map(|()| file)
    }

    /// What rules say of the text, with their pages; nothing if it cannot be read as CUDA.
    fn rules(&self, text: &str) -> Vec<Finding> {
        let folder = self.work.path().join("rules");
        let name = format!("{}.cu", self.file);
        let file = folder.join(&name);
        let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, text));
        let sources = written
            .ok()
            .and_then(|()| source::open(&file.display().to_string()).ok());
        let scan =
            sources.and_then(|sources| rules::scan(&sources, &parse::Options::default()).ok());
        let found = scan.map(|scan| scan.findings).unwrap_or_default();
        found
            .into_iter()
            .filter(|f| {
                matches!(f.severity, Severity::Warning | Severity::Error) && !f.function.is_empty()
            })
            .map(|f| Finding {
                class: Class::Rule,
                kernel: Some(f.function),
                line: Some(f.place.line).filter(|_| f.place.file == name),
                message: f.message,
                detail: rules::Rule::find(&f.rule)
                    .map_or(String::new(), |r| format!("{} {}", r.meaning, r.action)),
                id: f.rule,
            })
            .collect()
    }

    fn command(&self, file: &Path, seed: u64) -> Command {
        let bounds = Bounds {
            cpu_seconds: 900,
            memory: 64 << 30,
            file_size: 1 << 30,
            write: vec![self.work.path().to_path_buf()],
        };
        let mut command = bounds.command(&self.program, &self.program);
        command
            .arg("check")
            .arg(file)
            .args(["--json", "--input-seed", &seed.to_string()]);
        if let Some(cases) = &self.cases {
            command.arg("--cases").arg(cases);
        }
        command.args(&self.options);
        // Nothing of the environment that compilers and the simulator do not need: keys of endpoints are in it.
        let needed = |name: &str| {
            let prefixes = [
                "CANDLE_ROCM_",
                "HIP_SIM_",
                "ROCM_",
                "LC_",
                "LD_LIBRARY_PATH",
            ];
            ["PATH", "LANG"].contains(&name) || prefixes.iter().any(|p| name.starts_with(p))
        };
        command.env_clear();
        command.envs(std::env::vars().filter(|(name, _)| needed(name)));
        // Compilers and the simulator write there, and nowhere else.
        for name in ["TMPDIR", "XDG_CACHE_HOME", "HOME"] {
            command.env(name, self.work.path());
        }
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

impl Checker for CommandChecker {
    fn check(&mut self, text: &str, seed: u64) -> Result<Outcome, CheckError> {
        let failed = |text: String| CheckError::Failed(text);
        let file = self
            .write(text)
            .map_err(|e| failed(format!("cannot write {}: {e}", self.file)))?;
        let child = self.command(&file, seed).spawn();
        let mut child =
            child.map_err(|e| failed(format!("cannot start {}: {e}", self.program.display())))?;
        let output = drain(child.stdout.take());
        let errors = drain(child.stderr.take());
        let status = wait(&mut child, &self.stop, self.time);
        let (output, errors) = (output.join(), errors.join());
        let output = output.unwrap_or_default();
        let errors = String::from_utf8_lossy(&errors.unwrap_or_default()).into_owned();
        let confined = errors
            .lines()
            .filter_map(|line| line.strip_prefix("rocm-port confined: "));
        self.notes.extend(confined.map(str::to_string));
        match status? {
            Some(0 | 1) => {}
            Some(_) => {
                return Err(failed(format!(
                    "the checks could not be carried out:\n{}",
                    tail(&errors)
                )))
            }
            None => {
                return Err(failed(format!(
                    "the checks ended by a signal:\n{}",
                    tail(&errors)
                )))
            }
        }
        let report: Value = serde_json::from_slice(&output)
            .map_err(|e| failed(format!("the report of the checks is no JSON: {e}")))?;
        let Said {
            mut findings,
            checked,
            without,
        } = read(&report)?;
        self.notes.extend(without);
        if !findings.is_empty() {
            // Rules say what to look at; without anything wrong they are no reason to change a file.
            findings.extend(self.rules(text));
        }
        Ok(Outcome::new(findings, checked))
    }

    fn tests(&mut self) -> Result<String, CheckError> {
        let mut all = self.options.join("\n");
        for file in self.cases.iter().chain(&self.files) {
            let bytes = std::fs::read(file)
                .map_err(|e| CheckError::Failed(format!("cannot read {}: {e}", file.display())))?;
            all.push_str(&format!("\n{} {}", file.display(), digest(&bytes)));
        }
        Ok(digest(all.as_bytes()))
    }
}

/// Reads a pipe on a thread of its own, so that none fills up.
fn drain(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What breaks off is told by what is missing.
            let _ = pipe.by_ref().take(MAX_REPORT).read_to_end(&mut bytes);
            let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        }
        bytes
    })
}

/// Waits for a process; ends it, and all that it started, after a time or by Ctrl+C.
fn wait(child: &mut Child, stop: &Stop, time: Duration) -> Result<Option<i32>, CheckError> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.code()),
            Ok(None) => {}
            Err(error) => return Err(CheckError::Failed(error.to_string())),
        }
        let late = begun.elapsed() > time;
        if late || stop.is_raised() {
            end(child);
            return Err(match late {
                true => {
                    CheckError::Failed(format!("the checks took longer than {} s", time.as_secs()))
                }
                false => CheckError::Interrupted,
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn end(child: &mut Child) {
    #[cfg(unix)]
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// What the reports of `check --json` say.
struct Said {
    findings: Vec<Finding>,
    checked: BTreeSet<String>,
    /// Of each kernel that is compared with nothing, a sentence.
    without: Vec<String>,
}

/// Reads the reports of `check --json`.
fn read(reports: &Value) -> Result<Said, CheckError> {
    let list = |value: &Value, key: &str| -> Vec<Value> {
        let list = value.get(key).and_then(Value::as_array);
        list.cloned().unwrap_or_default()
    };
    let text = |value: &Value, key| {
        value
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_string()
    };
    let mut findings = Vec::new();
    let mut checked = BTreeSet::new();
    let mut without = Vec::new();
    for report in reports.as_array().into_iter().flatten() {
        for arch in list(report, "compiled_for") {
            checked.insert(format!("compiled for {}", arch.as_str().unwrap_or("")));
        }
        for kernel in list(report, "kernels") {
            if kernel.get("has_reference") == Some(&Value::Bool(false)) {
                without.push(format!(
                    "no case says what {} computes: its results only have to be the same everywhere",
                    text(&kernel, "entry")
                ));
            }
            for arch in list(&kernel, "ran_on") {
                checked.insert(format!(
                    "{} on {}",
                    text(&kernel, "entry"),
                    arch.as_str().unwrap_or("")
                ));
            }
        }
        for finding in list(report, "findings") {
            let kind = text(&finding, "kind");
            if kind == "case" {
                return Err(CheckError::Failed(format!(
                    "a case is wrong: {}",
                    text(&finding, "message")
                )));
            }
            // Notes say how well, not whether; what a case says is known is no surprise.
            if kind == "spill" || finding.get("known").is_some_and(|known| !known.is_null()) {
                continue;
            }
            let line = finding.get("line").and_then(Value::as_u64);
            findings.push(Finding {
                class: class(&kind),
                kernel: Some(text(&finding, "kernel")).filter(|k| !k.is_empty()),
                line: line.and_then(|l| usize::try_from(l).ok()),
                message: text(&finding, "message"),
                detail: text(&finding, "input"),
                id: kind,
            });
        }
    }
    Ok(Said {
        findings,
        checked,
        without,
    })
}

/// The class of a kind of `check`; one that is not known is taken for a wrong result.
fn class(kind: &str) -> Class {
    match kind {
        "compile" => Class::Compile,
        "crash" | "hang" | "divergence" | "out_of_bounds" | "uninitialised" | "changed"
        | "launch" => Class::Unsafe,
        "lds" | "launch_bounds" => Class::Resource,
        _ => Class::Wrong,
    }
}
