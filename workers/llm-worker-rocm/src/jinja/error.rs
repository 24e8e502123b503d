//! Why a template cannot be compiled or rendered.

/// A fault of a template, or its refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", .line.map(|line| format!(" (line {line})")).unwrap_or_default())]
pub struct Error {
    /// What kind of fault it is.
    pub kind: ErrorKind,
    /// What is wrong.
    pub message: String,
    /// The template's line, from 1.
    pub line: Option<usize>,
}

/// Kinds of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The template is no Jinja.
    Syntax,
    /// An operation failed, as it would in Python.
    Runtime,
    /// The template called `raise_exception`.
    Raised,
    /// The template takes more steps, memory or depth than any real one does.
    Limit,
}

impl Error {
    pub(super) fn runtime(message: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Runtime,
            message: message.into(),
            line: None,
        }
    }

    pub(super) fn limit(message: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Limit,
            ..Self::runtime(message)
        }
    }

    pub(super) fn syntax(message: impl Into<String>, line: usize) -> Self {
        Self {
            kind: ErrorKind::Syntax,
            line: Some(line),
            ..Self::runtime(message)
        }
    }

    /// The same with a line where it has none yet.
    pub(super) fn at(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

pub(super) type Result<T> = std::result::Result<T, Error>;
