//! Ctrl-C and termination as a flag.

use crate::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Shell convention for a process ended by SIGINT: 128 + 2.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// Set by the first SIGINT or SIGTERM after [`Interrupt::install`].
///
/// Loops look at it between steps. A second signal ends the process at once, in case a step does not return.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// A flag that no signal sets, for embedding and tests.
    pub fn manual() -> Self {
        Self::default()
    }

    /// Takes over SIGINT and SIGTERM for the rest of the process.
    ///
    /// Until this call the signals keep their default effect, which suits loading: nothing is lost by dying there.
    pub fn install() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // Registered before the flag's own action: it must see the state left by an earlier signal.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                EXIT_INTERRUPTED.into(),
                flag.clone(),
            )
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .map_err(|e| Error::Runtime(format!("cannot handle Ctrl-C: {e}")))?;
        }
        Ok(Self(flag))
    }

    /// Raises the flag as a signal would.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Makes the flag wait for the next signal: what the last one interrupted is over.
    pub fn lower(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether a signal has arrived.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
