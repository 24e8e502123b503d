//! The side of the process that serves: its port, and what it knows of the process that supervises it.

use crate::{process, Error, Result};
use serde::{Deserialize, Serialize};
use std::net::TcpListener;
use std::os::fd::AsFd;

/// The variable by which the supervising process hands over a [`Supervisor`], as JSON.
pub(in crate::serve) const VARIABLE: &str = "WORKER_SUPERVISOR";

/// What a process that serves knows of the one that supervises it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supervisor {
    /// Its process id.
    pub(super) process: u32,
    /// The worker's name, which all processes that serve in turn have.
    pub(in crate::serve) worker_id: String,
    /// How often a process that served has crashed.
    pub restarts: u64,
    /// How the last of them ended.
    pub reason: Option<String>,
    /// Whether crashes may leave core files.
    pub(super) core_files: bool,
    /// What the process asks of its parent in place of the keys of its arguments, if it is one of several models':
    /// nobody else is to be served by it.
    #[serde(default)]
    pub(in crate::serve) keys: Option<Vec<String>>,
}

impl Supervisor {
    /// This process as the parent of one of several models.
    pub(in crate::serve) fn of_model(
        worker_id: String,
        restarts: u64,
        reason: Option<String>,
        core_files: bool,
        keys: Vec<String>,
    ) -> Self {
        Self {
            process: std::process::id(),
            worker_id,
            restarts,
            reason,
            core_files,
            keys: Some(keys),
        }
    }

    /// The supervisor of this process, if it has one.
    ///
    /// # Errors
    /// [`Error::Usage`] if somebody else set the variable; [`Error::Runtime`] if the supervisor has gone.
    pub(in crate::serve) fn of_environment() -> Result<Option<Self>> {
        let Some(text) = std::env::var_os(VARIABLE) else {
            return Ok(None);
        };
        let supervisor: Self = serde_json::from_str(&text.to_string_lossy()).map_err(|e| {
            Error::Usage(format!(
                "the variable {VARIABLE} is between two processes of this program ({e}); do not set it"
            ))
        })?;
        match std::os::unix::process::parent_id() == supervisor.process {
            true => Ok(Some(supervisor)),
            false => Err(Error::Runtime(format!(
                "the process that supervised this one has ended, or {VARIABLE} is set by somebody else"
            ))),
        }
    }

    /// What comes before anything else: this process ends with its supervisor, and leaves no core file of a GPU.
    ///
    /// # Errors
    /// [`Error::Runtime`] if the system refuses, or the supervisor has gone.
    pub(in crate::serve) fn begin(&self) -> Result<()> {
        let failed = |what: &str, e: std::io::Error| Error::Runtime(format!("{what}: {e}"));
        process::die_with_parent().map_err(|e| failed("tying this process to its parent", e))?;
        // Had it ended before, nobody would tell.
        if std::os::unix::process::parent_id() != self.process {
            return Err(Error::Runtime("the supervisor has ended".to_string()));
        }
        if !self.core_files {
            let done = process::leave_no_core_files();
            done.map_err(|e| failed("ruling out core files", e))?;
        }
        Ok(())
    }

    /// The open port, which is this process's standard input.
    ///
    /// # Errors
    /// [`Error::Runtime`] if it is none.
    pub(in crate::serve) fn listener(&self) -> Result<TcpListener> {
        let taken = std::io::stdin().as_fd().try_clone_to_owned();
        let listener = taken.map(TcpListener::from).and_then(|listener| {
            listener.set_nonblocking(true)?;
            listener.local_addr().map(|_| listener)
        });
        listener.map_err(|e| Error::Runtime(format!("standard input is no open port: {e}")))
    }
}
