//! What is known of a batch, on disk and in OpenAI's form.

use crate::server::files::new_id;
use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};
use std::time::Duration;
use worker::http::Caller;
use worker::time::unix;

/// Most requests of a batch, as with OpenAI.
pub(super) const MAX_REQUESTS: u64 = 50_000;
/// Most errors of an input that are told.
pub(super) const MAX_ERRORS: usize = 100;

/// Whose API made a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::server) enum Kind {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Kind {
    /// What ids begin with.
    fn id_prefix(self) -> &'static str {
        match self {
            Self::OpenAi => "batch_",
            Self::Anthropic => "msgbatch_",
        }
    }

    /// Most requests.
    pub fn max_requests(self) -> u64 {
        match self {
            Self::OpenAi => MAX_REQUESTS,
            Self::Anthropic => 100_000,
        }
    }
}

/// How far a batch is, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::server) enum Status {
    /// Its file is looked through.
    Validating,
    /// Its file was refused.
    Failed,
    /// Its requests are answered.
    InProgress,
    /// Its results are put down.
    Finalizing,
    /// It is done.
    Completed,
    /// Its time was over before it was done.
    Expired,
    /// What has begun is finished.
    Cancelling,
    /// It was cancelled.
    Cancelled,
}

impl Status {
    /// Whether nothing changes any more.
    pub fn is_end(self) -> bool {
        matches!(
            self,
            Self::Failed | Self::Completed | Self::Expired | Self::Cancelled
        )
    }
}

/// What is wrong with an input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct InputError {
    pub code: String,
    pub line: Option<u64>,
    pub message: String,
    pub param: Option<String>,
}

/// When a batch came to a status, in seconds since 1970.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Times {
    pub in_progress_at: Option<i64>,
    pub finalizing_at: Option<i64>,
    pub completed_at: Option<i64>,
    pub failed_at: Option<i64>,
    pub expired_at: Option<i64>,
    pub cancelling_at: Option<i64>,
    pub cancelled_at: Option<i64>,
}

/// A batch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::server) struct Record {
    pub id: String,
    pub kind: Kind,
    pub owner: u64,
    pub endpoint: String,
    pub input_file_id: String,
    pub completion_window: String,
    pub created_at: i64,
    pub expires_at: i64,
    pub status: Status,
    pub(super) times: Times,
    pub(super) errors: Vec<InputError>,
    /// The files of results: contents from the beginning, files once the batch has ended.
    pub output_id: String,
    pub error_id: String,
    pub has_output: bool,
    pub has_errors: bool,
    pub total: u64,
    pub completed: u64,
    pub failed: u64,
    /// Of these, the ones that were not asked, because the batch ended before.
    pub unasked: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub metadata: Option<Map<String, Value>>,
}

impl Record {
    /// A batch that begins now.
    pub fn new(kind: Kind, caller: Caller, endpoint: &str, input: String, time: Duration) -> Self {
        let created_at = unix();
        Self {
            id: new_id(kind.id_prefix()),
            kind,
            owner: caller.0,
            endpoint: endpoint.to_string(),
            input_file_id: input,
            completion_window: String::new(),
            created_at,
            expires_at: created_at.saturating_add(time.as_secs() as i64),
            status: Status::Validating,
            times: Times::default(),
            errors: Vec::new(),
            output_id: new_id("file-"),
            error_id: new_id("file-"),
            has_output: false,
            has_errors: false,
            total: 0,
            completed: 0,
            failed: 0,
            unasked: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            metadata: None,
        }
    }

    /// Has another status from now on.
    pub fn set(&mut self, status: Status) {
        self.status = status;
        let times = &mut self.times;
        let time = match status {
            Status::Validating => return,
            Status::Failed => &mut times.failed_at,
            Status::InProgress => &mut times.in_progress_at,
            Status::Finalizing => &mut times.finalizing_at,
            Status::Completed => &mut times.completed_at,
            Status::Expired => &mut times.expired_at,
            Status::Cancelling => &mut times.cancelling_at,
            Status::Cancelled => &mut times.cancelled_at,
        };
        time.get_or_insert(unix());
    }

    /// In OpenAI's form.
    pub fn to_json(&self) -> Value {
        let errors =
            (!self.errors.is_empty()).then(|| json!({"object": "list", "data": self.errors}));
        let times = &self.times;
        json!({
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.has_output.then_some(&self.output_id),
            "error_file_id": self.has_errors.then_some(&self.error_id),
            "created_at": self.created_at,
            "in_progress_at": times.in_progress_at,
            "expires_at": self.expires_at,
            "finalizing_at": times.finalizing_at,
            "completed_at": times.completed_at,
            "failed_at": times.failed_at,
            "expired_at": times.expired_at,
            "cancelling_at": times.cancelling_at,
            "cancelled_at": times.cancelled_at,
            "request_counts": {
                "total": self.total,
                "completed": self.completed,
                "failed": self.failed,
            },
            "usage": {
                "input_tokens": self.prompt_tokens,
                "output_tokens": self.completion_tokens,
                "total_tokens": self.prompt_tokens + self.completion_tokens,
            },
            "metadata": self.metadata,
        })
    }

    /// When it was cancelled, if it was.
    pub fn cancelling_at(&self) -> Option<i64> {
        self.times.cancelling_at
    }

    /// When it ended, if it has.
    pub fn ended_at(&self) -> Option<i64> {
        let times = &self.times;
        let ends = [
            times.completed_at,
            times.failed_at,
            times.expired_at,
            times.cancelled_at,
        ];
        ends.into_iter().flatten().next()
    }
}
