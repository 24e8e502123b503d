//! Repairs a kernel file in a bounded loop: checks, deterministic rewrites, and answers of a language model.
//!
//! | Part | Module |
//! |---|---|
//! | what the checks say, and which of two outcomes is better | [`checker`] |
//! | the checks as a confined program | [`command`], [`confine`] |
//! | rewrites that need no model | `rewrite` |
//! | what is asked, and of whom | `prompt`, [`endpoint`] |
//! | an answer as a new text, and what it may not do | `answer`, `patch`, [`guard`] |
//! | the loop, and where it stands | [`run`], [`state`] |
//! | the log as a page, live or as a file | [`page`] |

mod answer;
pub mod checker;
pub mod command;
pub mod confine;
pub mod endpoint;
pub mod guard;
mod lexer;
pub mod page;
mod patch;
mod prompt;
mod rewrite;
pub mod run;
pub mod state;
mod syntax;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// A flag that Ctrl+C raises, and that everything that waits looks at.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Takes over Ctrl+C and termination. A second signal ends the process at once.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn at_signals() -> std::io::Result<Self> {
        let stop = Stop::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // The one that ends the process must see what an earlier signal left.
            signal_hook::flag::register_conditional_shutdown(signal, 130, stop.0.clone())?;
            signal_hook::flag::register(signal, stop.0.clone())?;
        }
        Ok(stop)
    }

    /// Raises it.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
