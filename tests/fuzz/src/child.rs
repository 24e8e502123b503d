//! Inputs tried one after the other in a process of its own, which may die of them.
//!
//! Before each input its number goes into a file, with how many were taken and refused before it, so that whoever watches
//! knows which one it was. What is found goes to
//! standard output, a JSON object a line.

use crate::memory;
use crate::target::{Verdict, TARGETS};
use crate::{Random, Target};
use serde_json::json;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Address space of the process: what allocates without looking meets its end here.
const MAX_ADDRESS_SPACE: u64 = 8 << 30;
/// Number in the file once all inputs were tried.
pub const DONE: u64 = u64::MAX;

/// Where the last panic was.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Which inputs.
#[derive(Debug, Clone)]
pub struct Work {
    /// A name of [`TARGETS`].
    pub target: String,
    /// The seed.
    pub seed: u64,
    /// The first input's number.
    pub first: u64,
    /// How many at most.
    pub count: u64,
    /// When to stop.
    pub time: Option<Duration>,
}

/// A target by its name.
///
/// # Errors
/// A text with all names if there is none of this one.
pub fn target(name: &str) -> Result<Box<dyn Target>, String> {
    match TARGETS.iter().find(|(known, ..)| *known == name) {
        Some((_, _, make, _)) => Ok(make()),
        None => {
            let names: Vec<&str> = TARGETS.iter().map(|(name, ..)| *name).collect();
            Err(format!(
                "there is no target {name}; there are {}",
                names.join(", ")
            ))
        }
    }
}

/// The input of a number.
pub fn input(target: &dyn Target, seed: u64, number: u64) -> Vec<u8> {
    target.input(&mut Random::new(seed, number))
}

/// Tries inputs.
///
/// # Errors
/// A text if the target or the file is not there.
pub fn run(work: &Work, progress: &Path) -> Result<(), String> {
    limit_address_space()?;
    std::panic::set_hook(Box::new(|info| {
        if let Ok(mut last) = LAST_PANIC.lock() {
            *last = info.to_string();
        }
    }));
    let file = std::fs::File::create(progress).map_err(|e| e.to_string())?;
    let mark = |numbers: [u64; 3]| file.write_all_at(&numbers.map(u64::to_le_bytes).concat(), 0);
    let mut target = target(&work.target)?;
    let (mut accepted, mut refused, mut most) = (0u64, 0u64, 0usize);
    let begun = Instant::now();
    let mut number = work.first;
    while number < work.first + work.count && work.time.is_none_or(|time| begun.elapsed() < time) {
        mark([number, accepted, refused]).map_err(|e| e.to_string())?;
        let bytes = input(&*target, work.seed, number);
        let (verdict, taken) = read(&mut *target, &bytes);
        most = most.max(taken);
        match verdict {
            Ok(Verdict::Accepted) => accepted += 1,
            Ok(Verdict::Refused) => refused += 1,
            Ok(Verdict::Fault(what)) => {
                tell(&json!({"number": number, "kind": "fault", "what": what}))
            }
            Err(panic) => {
                tell(&json!({"number": number, "kind": "panic", "what": panic}));
                // What it was doing is left half done.
                target = self::target(&work.target)?;
            }
        }
        let bound = target.memory(bytes.len());
        if taken > bound {
            let what = format!(
                "{taken} bytes for an input of {}; {bound} are the bound",
                bytes.len()
            );
            tell(&json!({"number": number, "kind": "memory", "what": what}));
        }
        number += 1;
    }
    tell(&json!({"tried": number - work.first, "most": most}));
    mark([DONE, accepted, refused]).map_err(|e| e.to_string())
}

/// Reads one input: the verdict, or where it panicked, and the most memory that it took.
pub fn read(target: &mut dyn Target, bytes: &[u8]) -> (Result<Verdict, String>, usize) {
    let before = memory::start();
    let verdict = catch_unwind(AssertUnwindSafe(|| target.read(bytes)));
    let taken = memory::most().saturating_sub(before);
    let panic = |_| {
        LAST_PANIC
            .lock()
            .map(|last| last.clone())
            .unwrap_or_default()
    };
    (verdict.map_err(panic), taken)
}

fn tell(line: &serde_json::Value) {
    // Without anybody who listens there is nothing left to do.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn limit_address_space() -> Result<(), String> {
    let limit = libc::rlimit {
        rlim_cur: MAX_ADDRESS_SPACE,
        rlim_max: MAX_ADDRESS_SPACE,
    };
    // SAFETY: reads the structure that it is handed.
    match unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().to_string()),
    }
}

/// A program of this workspace, built in the same folder.
///
/// # Errors
/// A text with what to do if it is not there.
pub fn program(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let folders = own.ancestors().skip(1).take(2);
    let found = folders
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    found.ok_or_else(|| format!("{name} is not built: cargo build --workspace"))
}
