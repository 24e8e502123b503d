//! How far a run is.

use super::outcome::{Entry, Tokens, Written};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of a run, for whoever shows them.
#[derive(Debug, Default)]
pub struct Figures {
    answered: AtomicU64,
    failed: AtomicU64,
    earlier_answered: AtomicU64,
    earlier_failed: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    earlier_completion_tokens: AtomicU64,
    earlier_prompt_tokens: AtomicU64,
    read: AtomicU64,
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

fn get(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

impl Figures {
    /// A line was written.
    pub fn wrote(&self, written: &Written) {
        add(
            if written.is_success {
                &self.answered
            } else {
                &self.failed
            },
            1,
        );
        add(&self.prompt_tokens, written.tokens.prompt);
        add(&self.cached_tokens, written.tokens.cached);
        add(&self.completion_tokens, written.tokens.completion);
    }

    /// A line of an earlier run was found.
    pub fn found(&self, entry: &Entry) {
        let count = match entry.is_success {
            true => &self.earlier_answered,
            false => &self.earlier_failed,
        };
        add(count, 1);
        add(&self.earlier_prompt_tokens, entry.tokens.prompt);
        add(&self.earlier_completion_tokens, entry.tokens.completion);
    }

    /// A line of the input was read.
    pub fn read_line(&self) {
        add(&self.read, 1);
    }

    /// Lines of the input that were read.
    pub fn read(&self) -> u64 {
        get(&self.read)
    }

    /// Requests that succeeded in this run.
    pub fn answered(&self) -> u64 {
        get(&self.answered)
    }

    /// Lines that failed in this run.
    pub fn failed(&self) -> u64 {
        get(&self.failed)
    }

    /// Lines whose results were there before.
    pub fn skipped(&self) -> u64 {
        get(&self.earlier_answered) + get(&self.earlier_failed)
    }

    /// Of these, the ones that had succeeded.
    pub fn earlier_answered(&self) -> u64 {
        get(&self.earlier_answered)
    }

    /// Of these, the ones that had failed.
    pub fn earlier_failed(&self) -> u64 {
        get(&self.earlier_failed)
    }

    /// Lines that have a result.
    pub fn done(&self) -> u64 {
        self.answered() + self.failed() + self.skipped()
    }

    /// What the answers of this run took.
    pub fn tokens(&self) -> Tokens {
        Tokens {
            prompt: get(&self.prompt_tokens),
            cached: get(&self.cached_tokens),
            completion: get(&self.completion_tokens),
        }
    }

    /// Tokens of prompts and of answers, those of earlier runs included.
    pub fn all_tokens(&self) -> (u64, u64) {
        let tokens = self.tokens();
        (
            tokens.prompt + get(&self.earlier_prompt_tokens),
            tokens.completion + get(&self.earlier_completion_tokens),
        )
    }
}
