//! Grammars are tried out in a process of their own before the server compiles them.
//!
//! What a grammar costs cannot be told by its size: fifty patterns of which a text has to match all take years, as each
//! doubles the work. A thread that does such work cannot be ended, a process can. So there are seconds and memory for
//! it, and if it ends by a signal, whatever the reason, the grammar is refused. What the process says of a grammar does
//! not count: it has another vocabulary, of bytes.

use super::{Grammars, Notation};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{toktrie::InferenceCapabilities, ParserFactory};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker::process;

/// The variable by which a process is told to try a grammar out: its notation, and the size of the vocabulary.
const VARIABLE: &str = "LLM_WORKER_TRY_GRAMMAR";
/// Seconds of computing that a grammar may take.
const SECONDS: u64 = 5;
/// How long to wait for them on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Address space that it may take, the program's own and the stack included.
const MEMORY: u64 = 4 << 30;

/// Whether this program does the work of such processes.
static IS_ENABLED: AtomicBool = AtomicBool::new(false);

impl Notation {
    const ALL: [(Self, &'static str); 4] = [
        (Self::JsonSchema, "json_schema"),
        (Self::Lark, "lark"),
        (Self::Regex, "regex"),
        (Self::Gbnf, "gbnf"),
    ];
}

/// For the beginning of `main`: tries a grammar out if this process was started for it, and otherwise makes it known
/// that such processes can be started.
pub fn begin() -> Option<ExitCode> {
    let Ok(task) = std::env::var(VARIABLE) else {
        IS_ENABLED.store(true, Ordering::Relaxed);
        return None;
    };
    // Nobody reads a reason: how the process ends is all.
    Some(match try_here(&task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// What the process does: compiles the grammar on its standard input.
fn try_here(task: &str) -> Result<(), String> {
    let (notation, vocabulary) = task.split_once(' ').ok_or("no task")?;
    let (notation, _) = Notation::ALL
        .into_iter()
        .find(|(_, name)| *name == notation)
        .ok_or("an unknown notation")?;
    let vocabulary = vocabulary.parse().map_err(|_| "no size")?;
    process::leave_no_core_files().map_err(|e| e.to_string())?;
    process::limit_time_and_memory(SECONDS, MEMORY).map_err(|e| e.to_string())?;
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| e.to_string())?;
    let compiled = of_bytes(vocabulary, &text)?.compile(notation, &text);
    compiled.map(drop).map_err(|e| e.to_string())
}

/// Grammars over a vocabulary of bytes, the control tokens that the text names, and empty tokens.
fn of_bytes(vocabulary: usize, text: &str) -> Result<Grammars, String> {
    let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    let named: BTreeSet<&str> = text
        .split('<')
        .skip(1)
        .filter_map(|rest| rest.split_once('>'))
        .map(|(name, _)| name)
        .filter(|name| !name.is_empty() && !name.contains(char::is_whitespace))
        .collect();
    words.extend(named.into_iter().map(|name| {
        let name = format!("<{name}>");
        [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
    }));
    words.push(Vec::new());
    let end = words.len() as u32 - 1;
    words.resize(words.len().max(vocabulary), Vec::new());
    let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words);
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &[]);
    Ok(Grammars::over(factory.map_err(|e| e.to_string())?))
}

/// Tries a grammar out for a vocabulary of that size, if this program can.
///
/// # Errors
/// Why the grammar is not to be compiled.
pub(super) fn try_out(notation: Notation, text: &str, vocabulary: usize) -> Result<(), String> {
    match IS_ENABLED.load(Ordering::Relaxed) {
        true => try_with(process::this_program(), notation, text, vocabulary),
        false => Ok(()),
    }
}

/// As [`begin`]'s other side: tries a grammar out by a program that calls it.
///
/// # Errors
/// Why the grammar is not to be compiled.
pub fn try_with(
    mut program: Command,
    notation: Notation,
    text: &str,
    vocabulary: usize,
) -> Result<(), String> {
    let name = Notation::ALL
        .into_iter()
        .find(|(known, _)| *known == notation);
    let task = format!("{} {vocabulary}", name.map_or("", |(_, name)| name));
    program
        .env(VARIABLE, task)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // A system that has no process for it has the limits of size, still.
    let Ok(mut child) = program.spawn() else {
        return Ok(());
    };
    if let Some(mut input) = child.stdin.take() {
        // One that has ended reads no more; then its end is what counts.
        let _ = input.write_all(text.as_bytes());
    }
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return judge(status),
            Err(_) => return Ok(()),
            Ok(None) if start.elapsed() > PATIENCE => {
                // It may end by itself meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Err(too_complex());
            }
            Ok(None) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// A process that ended by itself has understood the grammar, or found a mistake that the compiler will tell.
fn judge(status: ExitStatus) -> Result<(), String> {
    match status.code() {
        Some(_) => Ok(()),
        None => Err(too_complex()),
    }
}

fn too_complex() -> String {
    format!(
        "it is too complex: compiling it takes more than {SECONDS} seconds or {} MiB",
        MEMORY >> 20
    )
}
