//! Lines from the user: edited at a terminal, read plainly elsewhere.

use reedline::{
    default_emacs_keybindings, DefaultPrompt, DefaultPromptSegment, EditCommand, Emacs,
    FileBackedHistory, KeyCode, KeyModifiers, Reedline, ReedlineEvent, Signal, ValidationResult,
    Validator,
};
use std::io::{BufRead, IsTerminal, Stdin};
use std::path::PathBuf;
use worker::{Error, Result};

/// Messages that the history keeps.
const HISTORY_LENGTH: usize = 1000;
/// Begins and ends a message of several lines.
const FENCE: &str = "\"\"\"";

/// Where messages come from.
pub(super) enum Input {
    /// A terminal.
    Editor(Box<Reedline>, DefaultPrompt),
    /// A file or a pipe.
    Plain(Stdin),
}

/// What came.
pub(super) enum Line {
    /// A message or a command, its lines joined.
    Text(String),
    /// Ctrl-C: the line is given up.
    Cleared,
    /// There is no more.
    End,
}

impl Input {
    pub(super) fn new() -> Result<Self> {
        if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
            return Ok(Self::Plain(std::io::stdin()));
        }
        let mut keys = default_emacs_keybindings();
        keys.add_binding(
            KeyModifiers::ALT,
            KeyCode::Enter,
            ReedlineEvent::Edit(vec![EditCommand::InsertNewline]),
        );
        let mut editor = Reedline::create()
            .with_edit_mode(Box::new(Emacs::new(keys)))
            .with_validator(Box::new(Unfinished));
        if let Some(path) = history_file() {
            match FileBackedHistory::with_file(HISTORY_LENGTH, path) {
                Ok(history) => editor = editor.with_history(Box::new(history)),
                Err(e) => tracing::warn!("the history is not kept: {e}"),
            }
        }
        let prompt = DefaultPrompt::new(
            DefaultPromptSegment::Basic(String::new()),
            DefaultPromptSegment::Empty,
        );
        Ok(Self::Editor(Box::new(editor), prompt))
    }

    pub(super) fn is_interactive(&self) -> bool {
        matches!(self, Self::Editor(..))
    }

    /// The next message.
    pub(super) fn read(&mut self) -> Result<Line> {
        match self {
            Self::Editor(editor, prompt) => match editor.read_line(prompt) {
                Ok(Signal::Success(text)) => Ok(Line::Text(joined(&text))),
                Ok(Signal::CtrlC) => Ok(Line::Cleared),
                Ok(Signal::CtrlD) => Ok(Line::End),
                Ok(_) => Ok(Line::Cleared),
                Err(e) => Err(Error::Runtime(format!("the terminal: {e}"))),
            },
            Self::Plain(stdin) => {
                let mut text = String::new();
                loop {
                    let read = stdin
                        .lock()
                        .read_line(&mut text)
                        .map_err(|e| Error::Usage(format!("standard input: {e}")))?;
                    if read == 0 && text.is_empty() {
                        return Ok(Line::End);
                    }
                    if read == 0 || !is_unfinished(text.trim_end_matches(['\n', '\r'])) {
                        let text = text.trim_end_matches(['\n', '\r']);
                        return Ok(Line::Text(joined(text)));
                    }
                }
            }
        }
    }
}

/// Beside other programs' state; nowhere if there is no home.
fn history_file() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("candle-rocm").join("chat-history"))
}

struct Unfinished;

impl Validator for Unfinished {
    fn validate(&self, line: &str) -> ValidationResult {
        match is_unfinished(line) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Complete,
        }
    }
}

/// Whether more lines belong to the message.
fn is_unfinished(text: &str) -> bool {
    let text = text.trim_end_matches(' ');
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => !rest.contains(FENCE),
        None => text.ends_with('\\'),
    }
}

/// The message without what only joins its lines.
fn joined(text: &str) -> String {
    let trimmed = text.trim();
    match trimmed
        .strip_prefix(FENCE)
        .and_then(|rest| rest.strip_suffix(FENCE))
    {
        Some(inner) => inner.trim_matches('\n').to_string(),
        None => text.replace("\\\n", "\n").replace("\\\r\n", "\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_several_lines() {
        assert!(is_unfinished("one \\"));
        assert!(is_unfinished("\"\"\"\none"));
        assert!(!is_unfinished("one"));
        assert!(!is_unfinished("\"\"\"\none\n\"\"\""));
        assert_eq!(joined("one \\\ntwo"), "one \ntwo");
        assert_eq!(joined("\"\"\"\none\n\ntwo\n\"\"\"\n"), "one\n\ntwo");
        assert_eq!(joined("plain"), "plain");
    }
}
