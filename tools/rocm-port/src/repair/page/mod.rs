//! The log as a page: one HTML file without anything from elsewhere.
//!
//! Everything that comes from outside (file, model, compiler) is escaped. The page's policy allows its own style and
//! script by their digests and nothing else.

mod serve;

pub use serve::Live;

use super::checker::{Finding, Outcome};
use super::state::{End, State, Step, StepKind, Verdict};
use base64::prelude::{Engine, BASE64_STANDARD};
use sha2::{Digest, Sha256};
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page of a state; `live` for one that is served while the repair runs.
pub fn page(state: &State, live: bool) -> String {
    let steps: String = state.steps.iter().map(step).collect();
    let source = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; connect-src 'self'; \
         style-src 'sha256-{style_digest}'; script-src 'sha256-{script_digest}'; base-uri 'none'; form-action 'none'\">\n\
         <title>Repair of {file}</title>\n<style>{STYLE}</style></head>\n<body{live}>\n\
         <header><h1>Repair of {file}</h1>{status}</header>\n{summary}\n\
         <p class=\"dim keys\"><kbd>j</kbd> <kbd>k</kbd> next and previous step, <kbd>o</kbd> opens and closes its \
         details, <kbd>g</kbd> <kbd>G</kbd> first and last</p>\n<main id=\"steps\">\n{steps}</main>\n\
         <script>{SCRIPT}</script>\n</body></html>\n",
        style_digest = source(STYLE),
        script_digest = source(SCRIPT),
        file = escape(&state.file),
        live = if live { " data-live=\"1\"" } else { "" },
        status = if live { "<p class=\"dim\" id=\"live\" role=\"status\">connecting</p>" } else { "" },
        summary = summary(state),
    )
}

/// What the whole came to so far.
fn summary(state: &State) -> String {
    let (sent, received) = state.tokens();
    let estimated = state
        .steps
        .iter()
        .filter_map(|s| s.reply.as_ref())
        .any(|r| r.estimated);
    let mut rows = String::new();
    let mut row = |name: &str, value: String| {
        let _ = write!(rows, "<dt>{name}</dt><dd>{value}</dd>");
    };
    row(
        "state",
        match &state.end {
            None => "running".into(),
            Some(end @ (End::Nothing | End::Repaired)) => format!(
                "<strong class=\"good\">{}</strong>",
                escape(&end.to_string())
            ),
            Some(end) => format!(
                "<strong class=\"bad\">{}</strong>",
                escape(&end.to_string())
            ),
        },
    );
    row("best so far", escape(&state.rank().to_string()));
    if let Some(model) = &state.model {
        let about = if estimated { "about " } else { "" };
        row("model", escape(model));
        row("rounds", state.rounds().to_string());
        row("tokens", format!("{about}{sent} sent, {received} received"));
        if state.prices != (0.0, 0.0) {
            row("cost", format!("{about}{:.4}", state.cost()));
        }
    }
    row("time", seconds(state.seconds()));
    format!("<dl id=\"summary\">{rows}</dl>")
}

fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.1} s"),
        s => format!("{} min {:.0} s", (s / 60.0).floor(), s % 60.0),
    }
}

/// A step as an element of its own, which is drawn again when it changes.
fn step(step: &Step) -> String {
    let title = match &step.kind {
        StepKind::First => "The checks before any change".to_string(),
        StepKind::Rewrite(title) => format!("Rewrite: {title}"),
        StepKind::Round(number) => format!("Round {number}"),
        StepKind::Last => "The checks on unseen inputs".to_string(),
    };
    let (class, verdict) = match &step.verdict {
        Verdict::Running => ("dim", "running …".to_string()),
        Verdict::Checked => ("dim", "checked".into()),
        Verdict::Better => ("good", "better".into()),
        Verdict::Kept => ("dim", "kept, but not better".into()),
        Verdict::Worse(why) => ("bad", format!("taken back: {why}")),
        Verdict::Refused(why) => ("bad", format!("refused: {why}")),
        Verdict::NoAnswer(why) => ("bad", format!("no answer: {why}")),
        Verdict::Passed => ("good", "passed".into()),
        Verdict::Failed => ("bad", "failed".into()),
    };
    let mut text = format!(
        "<article id=\"step-{number}\" tabindex=\"0\"><h2>{number}. {title} <span class=\"dim\">{time}</span></h2>\
         <p class=\"{class}\">{verdict}</p>",
        number = step.number,
        title = escape(&title),
        time = seconds(step.seconds),
        verdict = escape(&verdict),
    );
    if let Some(outcome) = &step.outcome {
        text.push_str(&findings(outcome));
    }
    if let Some(diff) = &step.diff {
        let _ = write!(
            text,
            "<details open><summary>change</summary>{}</details>",
            coloured(diff)
        );
    }
    if let Some(reply) = &step.reply {
        let about = if reply.estimated { "about " } else { "" };
        let _ = write!(
            text,
            "<details><summary>answer ({about}{} tokens)</summary><pre>{}</pre></details>",
            reply.answer_tokens,
            escape(&reply.text)
        );
    }
    if !step.sent.is_empty() {
        let _ = write!(text, "<details><summary>what was sent</summary>");
        for message in &step.sent {
            let _ = write!(
                text,
                "<p class=\"dim\">{}</p><pre>{}</pre>",
                escape(&message.role),
                escape(&message.content)
            );
        }
        text.push_str("</details>");
    }
    text.push_str("</article>\n");
    text
}

fn findings(outcome: &Outcome) -> String {
    let mut text = format!(
        "<p>{}, {} checked</p>",
        escape(&outcome.rank().to_string()),
        outcome.checked.len()
    );
    if !outcome.findings.is_empty() {
        text.push_str("<ul>");
        outcome.findings.iter().for_each(|f| text.push_str(&one(f)));
        text.push_str("</ul>");
    }
    text
}

fn one(finding: &Finding) -> String {
    let place = match (&finding.kernel, finding.line) {
        (Some(kernel), Some(line)) => format!(" {kernel}, line {line}"),
        (Some(kernel), None) => format!(" {kernel}"),
        (None, Some(line)) => format!(" line {line}"),
        (None, None) => String::new(),
    };
    let mut text = format!(
        "<li><strong>{}</strong>{}: {}",
        escape(&finding.id),
        escape(&place),
        escape(&finding.message)
    );
    if !finding.detail.is_empty() {
        let _ = write!(
            text,
            "<details><summary>more</summary><pre>{}</pre></details>",
            escape(&finding.detail)
        );
    }
    text.push_str("</li>");
    text
}

/// A diff with a class for each line; signs stay, so that colours say nothing alone.
fn coloured(diff: &str) -> String {
    let mut text = String::from("<pre class=\"diff\">");
    for line in diff.lines() {
        let class = match line.as_bytes().first() {
            Some(b'+') => "added",
            Some(b'-') => "removed",
            Some(b'@') => "place",
            _ => "same",
        };
        let _ = write!(text, "<span class=\"{class}\">{}</span>", escape(line));
    }
    text.push_str("</pre>");
    text
}

/// Text as HTML shows it. Control characters have no place in it.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(c),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}
