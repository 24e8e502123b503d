//! Ctrl-C ends a test after its current step; a second one at once.

use crate::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Shells' convention for a process that SIGINT has ended.
const INTERRUPTED: i32 = 130;

/// Whether the user has had enough.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over SIGINT and SIGTERM.
    ///
    /// # Errors
    /// [`Error::Other`] if the kernel refuses.
    pub fn install() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // First the one that looks at what an earlier signal has set.
            register_conditional_shutdown(signal, INTERRUPTED, flag.clone())
                .and_then(|_| register(signal, flag.clone()))
                .map_err(|error| Error::Other(format!("Ctrl-C cannot be handled: {error}")))?;
        }
        Ok(Interrupt(flag))
    }

    /// Whether a signal has come.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
