//! Where a repair stands: what the log shows and a later run takes up.

use super::checker::{Finding, Outcome, Rank};
use super::endpoint::{Message, Reply};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Raised when the file's form changes.
const VERSION: u32 = 1;
/// The largest state that is read.
const MAX_BYTES: u64 = 256 << 20;

/// A repair, from its first check to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// The kernel file's name.
    pub file: String,
    /// Its text before anything was changed.
    pub original: String,
    /// Digest of the tests that the repair began with.
    pub tests: String,
    /// The text that the next answer changes.
    pub current: String,
    /// What the checks said of it last.
    pub outcome: Outcome,
    /// The best text so far.
    pub best: String,
    /// What the checks said of that.
    pub best_outcome: Outcome,
    /// All that was done.
    pub steps: Vec<Step>,
    /// The model, if there is one.
    pub model: Option<String>,
    /// Prices for a million tokens, sent and received.
    pub prices: (f64, f64),
    /// How it ended, unless it is running.
    pub end: Option<End>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// From 1.
    pub number: usize,
    /// What was done.
    pub kind: StepKind,
    /// Seconds since 1970.
    pub begun: u64,
    /// How long it took.
    pub seconds: f64,
    /// What was sent to the model.
    pub sent: Vec<Message>,
    /// What it answered.
    pub reply: Option<Reply>,
    /// The change, as a unified diff.
    pub diff: Option<String>,
    /// What became of it.
    pub verdict: Verdict,
    /// What the checks said.
    pub outcome: Option<Outcome>,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// The checks before anything is changed.
    First,
    /// A deterministic rewrite, by its title.
    Rewrite(String),
    /// An answer of the model.
    Round(usize),
    /// The checks on inputs that nobody has seen.
    Last,
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is running.
    Running,
    /// The checks were carried out; nothing was changed.
    Checked,
    /// Fewer findings: this is the best text now.
    Better,
    /// As many findings, but others: the text is kept, and changed further.
    Kept,
    /// More findings, or fewer tests: the text is as before.
    Worse(String),
    /// It was not applied: what the model was told.
    Refused(String),
    /// There was no answer.
    NoAnswer(String),
    /// The last checks found nothing.
    Passed,
    /// They did.
    Failed,
}

/// How a repair ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Nothing was wrong from the beginning.
    Nothing,
    /// Nothing is wrong any more.
    Repaired,
    /// No rewrite helps further, and there is no model.
    Rewrites,
    /// The rounds are used up.
    Rounds,
    /// The time is used up.
    Time,
    /// The tokens are used up.
    Tokens,
    /// The endpoint cannot be used.
    Endpoint(String),
    /// Ctrl+C.
    Interrupted,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Nothing => f.write_str("nothing to repair"),
            End::Repaired => f.write_str("repaired"),
            End::Rewrites => f.write_str("the rewrites of rules do not repair the rest"),
            End::Rounds => f.write_str("all rounds are used up"),
            End::Time => f.write_str("the time is used up"),
            End::Tokens => f.write_str("the tokens are used up"),
            End::Endpoint(why) => write!(f, "the endpoint cannot be used: {why}"),
            End::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// Why a state cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file.
    #[error("{0}: {1}")]
    File(String, std::io::Error),
    /// Its content.
    #[error("{0} is no state of a repair: {1}")]
    Content(String, String),
}

impl State {
    /// Before the first step.
    pub fn new(file: &str, text: &str, model: Option<String>, prices: (f64, f64)) -> Self {
        Self {
            version: VERSION,
            file: file.into(),
            original: text.into(),
            tests: String::new(),
            current: text.into(),
            outcome: Outcome::default(),
            best: text.into(),
            best_outcome: Outcome::default(),
            steps: Vec::new(),
            model,
            prices,
            end: None,
        }
    }

    /// Reads `state.json`.
    ///
    /// # Errors
    /// If it is not there, too large, or something else.
    pub fn load(path: &Path) -> Result<Self, StateError> {
        let name = path.display().to_string();
        let size = std::fs::metadata(path)
            .map_err(|e| StateError::File(name.clone(), e))?
            .len();
        if size > MAX_BYTES {
            return Err(StateError::Content(name, format!("it has {size} bytes")));
        }
        let bytes = std::fs::read(path).map_err(|e| StateError::File(name.clone(), e))?;
        let state: State = serde_json::from_slice(&bytes)
            .map_err(|e| StateError::Content(name.clone(), e.to_string()))?;
        match state.version {
            VERSION => Ok(state),
            other => Err(StateError::Content(
                name,
                format!("it has version {other}, not {VERSION}"),
            )),
        }
    }

    /// Writes `state.json`, whole or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), StateError> {
        let text = serde_json::to_vec_pretty(self)
            .map_err(|e| StateError::Content(path.display().to_string(), e.to_string()))?;
        write(path, &text).map_err(|e| StateError::File(path.display().to_string(), e))
    }

    /// Tokens that were sent and received, in all steps.
    pub fn tokens(&self) -> (u64, u64) {
        let replies = self.steps.iter().filter_map(|s| s.reply.as_ref());
        replies.fold((0, 0), |sum, r| {
            (sum.0 + r.prompt_tokens, sum.1 + r.answer_tokens)
        })
    }

    /// What they cost, in the currency of the prices.
    pub fn cost(&self) -> f64 {
        let (sent, received) = self.tokens();
        (sent as f64 * self.prices.0 + received as f64 * self.prices.1) / 1e6
    }

    /// Seconds of all steps.
    pub fn seconds(&self) -> f64 {
        self.steps.iter().map(|s| s.seconds).sum()
    }

    /// How many answers were asked for.
    pub fn rounds(&self) -> usize {
        let rounds = self
            .steps
            .iter()
            .filter(|s| matches!(s.kind, StepKind::Round(_)));
        rounds.count()
    }

    /// The best text's findings in numbers.
    pub fn rank(&self) -> Rank {
        self.best_outcome.rank()
    }

    /// What is left to do.
    pub fn left(&self) -> &[Finding] {
        &self.best_outcome.findings
    }

    /// From the original to the best text; nothing if they are equal.
    pub fn patch(&self) -> Option<String> {
        diff(&self.file, &self.original, &self.best)
    }
}

impl Step {
    pub(crate) fn begin(number: usize, kind: StepKind) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            number,
            kind,
            begun: now.as_secs(),
            seconds: 0.0,
            sent: Vec::new(),
            reply: None,
            diff: None,
            verdict: Verdict::Running,
            outcome: None,
        }
    }
}

/// A unified diff of a file's two texts.
pub(crate) fn diff(file: &str, old: &str, new: &str) -> Option<String> {
    if old == new {
        return None;
    }
    let mut options = diffy::DiffOptions::new();
    options
        .set_original_filename(format!("a/{file}"))
        .set_modified_filename(format!("b/{file}"));
    Some(options.create_patch(old, new).to_string())
}

/// The SHA-256 of bytes, in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// Writes a file whole or not at all.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}
