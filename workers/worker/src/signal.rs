//! Ctrl-C and termination as a flag, and a word on files that were cut short.

use crate::{Error, Result};
use signal_hook::consts::{SIGBUS, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

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

/// Has this process stop as if it was told to by SIGTERM.
pub fn stop_this_process() {
    // Only signals that are not there cannot be raised.
    let _ = signal_hook::low_level::raise(SIGTERM);
}

/// Ends this process at once, without waiting for its threads.
pub fn end_this_process(code: u8) -> ! {
    // Exit handlers would take the GPU's runtime down under the threads that use it.
    signal_hook::low_level::exit(code.into())
}

/// What is said when a page of a mapped file cannot be had.
const BUS_ERROR: &[u8] = b"a file that is in use was cut short or cannot be read any more (SIGBUS); a model must not be changed while it is used: write the new file beside it and rename that\n";

/// Has the process say so before SIGBUS ends it.
pub(crate) fn explain_bus_errors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let explain = || {
            // SAFETY: the bytes are there, and writing them is allowed in handlers.
            unsafe {
                libc::write(
                    libc::STDERR_FILENO,
                    BUS_ERROR.as_ptr().cast(),
                    BUS_ERROR.len(),
                )
            };
            // Ends the process.
            let _ = signal_hook::low_level::emulate_default_handler(SIGBUS);
        };
        // SAFETY: the action does only what handlers may: it writes to a file and takes the signal's usual course.
        let _ = unsafe { signal_hook::low_level::register(SIGBUS, explain) };
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const CHILD: &str = "WORKER_TEST_OF_BUS_ERRORS";

    #[test]
    fn a_file_that_is_cut_short_ends_the_process_with_a_word() {
        if let Some(path) = std::env::var_os(CHILD) {
            let map = crate::file::map(path.as_ref()).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(0).unwrap();
            // No longer there.
            let byte = map[map.len() - 1];
            unreachable!("{byte}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, [1; 10_000]).unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "signal::tests::a_file_that_is_cut_short_ends_the_process_with_a_word",
            ])
            .env(CHILD, &path)
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("cut short"), "{said}");
    }
}
