//! What a model is told: the rules of the answer, the kernel file, what is wrong with it, and what was tried.

use super::checker::{Class, Finding};
use super::endpoint::Message;
use super::guard::{items, Part, ADDED};
use super::lexer::line_of;
use super::state::{State, Step, StepKind, Verdict};
use std::fmt::Write;

/// Bytes of the kernel file that are sent; of a longer one, what the findings are about.
const MAX_FILE: usize = 48 << 10;
/// Findings that are shown, and the bytes of each.
const MAX_FINDINGS: usize = 12;
const MAX_DETAIL: usize = 3000;
/// Steps of the past that are shown.
const MAX_STEPS: usize = 4;
const MAX_DIFF: usize = 3000;

/// The conversation for the next round.
pub(crate) fn messages(state: &State) -> Vec<Message> {
    let message = |role: &str, content: String| Message {
        role: role.into(),
        content,
    };
    let user = format!(
        "{}\n{}{}\nAnswer with one unified diff of {}.",
        file(state),
        findings(state),
        past(state),
        state.file
    );
    vec![message("system", rules(&state.file)), message("user", user)]
}

fn rules(file: &str) -> String {
    format!(
        "You repair a GPU kernel that was ported from CUDA to AMD GPUs. Answer with one unified diff of {file} and \
         nothing else. Keep it small.\n\
         What the file is compiled with:\n\
         - If it includes port/cuda.h, CUDA's dialect is there: a warp has 32 lanes on every GPU (`warpSize` is 32), \
         also where a hardware wave has 64; `*_sync` functions, cooperative groups and half types work as in CUDA.\n\
         - Otherwise it is plain HIP: a wave has `warpSize` lanes, 32 or 64; ballots and masks have 64 bits.\n\
         The same text is checked in waves of 32 and of 64, in several orders of threads, with every access looked at, \
         on new random inputs each time.\n\
         What may change: bodies of kernels and of device functions, values of constants and macros. New \
         `__device__` functions have names that begin with `{ADDED}`.\n\
         What may not: includes, other directives, types, host code, names and parameters of kernels, other files; no \
         `asm`, attributes, strings, `printf`, function pointers, or questions for the target. A diff with any of \
         these is refused as a whole."
    )
}

/// The kernel file, or what the findings are about and all that is no body.
fn file(state: &State) -> String {
    let text = &state.current;
    if text.len() <= MAX_FILE {
        return format!("The file {}:\n```\n{text}\n```\n", state.file);
    }
    let named: Vec<&str> = state
        .outcome
        .findings
        .iter()
        .filter_map(|f| f.kernel.as_deref())
        .collect();
    let lines: Vec<usize> = state
        .outcome
        .findings
        .iter()
        .filter_map(|f| f.line)
        .collect();
    let mut shown = String::new();
    let mut at = 0;
    for piece in items(text).pieces {
        let range = line_of(text, piece.start)..=line_of(text, piece.end);
        let meant = lines.iter().any(|l| range.contains(l))
            || named
                .iter()
                .any(|n| n.contains(&piece.name) && !piece.name.is_empty());
        let body = matches!(piece.part, Part::Body | Part::Function | Part::Macro);
        if meant || !body || piece.end - piece.body < 400 || piece.body < at {
            continue;
        }
        shown.push_str(&text[at..piece.body]);
        let _ = write!(
            shown,
            "/* {} lines that are not shown */",
            range.end() - range.start()
        );
        at = piece.end;
    }
    shown.push_str(&text[at..]);
    let cut = cut(&shown, MAX_FILE);
    format!(
        "The file {}, without what seems to be unconcerned:\n```\n{cut}\n```\n",
        state.file
    )
}

fn findings(state: &State) -> String {
    let all = &state.outcome.findings;
    let mut text = format!("What is wrong ({}):\n", state.outcome.rank());
    for (number, finding) in all.iter().take(MAX_FINDINGS).enumerate() {
        let _ = writeln!(text, "{}. {}", number + 1, one(finding, &state.current));
    }
    if all.len() > MAX_FINDINGS {
        let _ = writeln!(text, "and {} more.", all.len() - MAX_FINDINGS);
    }
    text
}

fn one(finding: &Finding, text: &str) -> String {
    let mut shown = format!("{} {}", finding.class.name(), finding.id);
    if let Some(kernel) = &finding.kernel {
        let _ = write!(shown, " in {kernel}");
    }
    if let Some(line) = finding.line {
        let code = text
            .lines()
            .nth(line.saturating_sub(1))
            .unwrap_or("")
            .trim();
        let _ = write!(shown, " at line {line} (`{}`)", cut(code, 200));
    }
    let _ = write!(shown, ": {}", cut(&finding.message, MAX_DETAIL));
    if !finding.detail.is_empty() {
        let what = match finding.class {
            Class::Rule => "The rule",
            Class::Compile => "Context",
            _ => "Smallest failing input",
        };
        let _ = write!(
            shown,
            "\n   {what}: {}",
            cut(&finding.detail, MAX_DETAIL).replace('\n', "\n   ")
        );
    }
    shown
}

/// The last answers and why they did not do.
fn past(state: &State) -> String {
    let tried: Vec<&Step> = state
        .steps
        .iter()
        .filter(|s| {
            matches!(s.kind, StepKind::Round(_) | StepKind::Last) && s.verdict != Verdict::Running
        })
        .collect();
    let mut text = String::new();
    for step in &tried[tried.len().saturating_sub(MAX_STEPS)..] {
        let said = match &step.verdict {
            Verdict::Refused(why) => format!("was refused and not applied: {why}"),
            Verdict::Worse(why) => format!("was taken back: {why}"),
            Verdict::NoAnswer(why) => format!("did not arrive: {why}"),
            Verdict::Kept => "is in the file now, but as much is wrong as before".into(),
            Verdict::Better => "is in the file now; less is wrong than before".into(),
            Verdict::Failed => {
                text.push_str(
                    "The file passed the checks, but failed on inputs that nobody had seen: it must compute the result, \
                     for all inputs.\n",
                );
                continue;
            }
            Verdict::Running | Verdict::Checked | Verdict::Passed => continue,
        };
        let _ = writeln!(text, "An earlier answer {said}");
        if let Some(diff) = &step.diff {
            let _ = writeln!(text, "```diff\n{}\n```", cut(diff, MAX_DIFF));
        }
    }
    match text.is_empty() {
        true => text,
        false => format!("\nWhat was tried:\n{text}"),
    }
}

/// The beginning of a text, to a border of characters.
fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.into();
    }
    let end = (0..=bytes)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    format!("{} …", &text[..end])
}
