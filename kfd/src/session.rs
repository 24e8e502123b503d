//! The driver, the GPUs that were asked for, and what the user wants to know.

use crate::cli::{Common, WARNING};
use crate::interrupt::Interrupt;
use crate::kernels::Kernels;
use crate::lane::Lane;
use crate::output::Output;
use crate::{Error, Result};
use candle_kfd::{Displays, Gpu, Kfd};
use serde_json::json;
use std::cell::OnceCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What the command line says for all commands.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The options.
    pub common: Common,
    /// How long a GPU may be silent.
    pub timeout: Duration,
}

/// A GPU under test.
#[derive(Debug)]
pub struct Card {
    /// Its number among all of the driver's.
    pub index: usize,
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// How long it may be silent.
    pub timeout: Duration,
    /// Data to it and back; one queue for all that a test does.
    pub lane: Lane,
    kernels_file: Option<PathBuf>,
    /// Or why there are none.
    kernels: OnceCell<std::result::Result<Kernels, String>>,
}

/// A command at work.
#[derive(Debug)]
pub struct Session {
    /// The GPUs that were asked for and may be used.
    pub cards: Vec<Card>,
    /// Where results go.
    pub output: Output,
    /// Whether the user has had enough.
    pub interrupt: Interrupt,
    /// How long a GPU may be silent.
    pub timeout: Duration,
}

impl Choice {
    /// Opens the driver, or the mock.
    ///
    /// # Errors
    /// [`Error::Kfd`] if there is none that this user may open, [`Error::Usage`] for an unknown GPU of the mock.
    pub fn open(&self) -> Result<Arc<Kfd>> {
        if self.common.mock.is_empty() {
            return Ok(Kfd::open()?);
        }
        mock(&self.common)
    }

    /// Whether GPUs that drive a display are used, too.
    pub fn displays(&self) -> Displays {
        match self.common.allow_display {
            true => Displays::Allow,
            false => Displays::Refuse,
        }
    }

    /// Begins a test on the GPUs that were asked for; on all that are not refused if none was.
    ///
    /// # Errors
    /// [`Error::Usage`] for a number that no GPU has, [`Error::Kfd`] if a GPU that was asked for is refused or none is left.
    pub fn begin(&self, command: &'static str) -> Result<Session> {
        let output = Output::new(self.common.json);
        let interrupt = Interrupt::install()?;
        let kfd = self.open()?;
        let count = kfd.nodes().len();
        let wanted = &self.common.gpu;
        if let Some(&index) = wanted.iter().find(|&&index| index >= count) {
            return Err(Error::Usage(format!(
                "--gpu {index}: there are {count} GPUs; `kfd info` shows them"
            )));
        }
        if !self.common.yes && self.common.mock.is_empty() {
            output.warn(WARNING);
        }
        let mut cards: Vec<Card> = Vec::new();
        let mut refused = None;
        for index in 0..count {
            let is_wanted = wanted.is_empty() || wanted.contains(&index);
            if !is_wanted {
                continue;
            }
            match kfd.gpu(index, self.displays()) {
                Ok(gpu) => cards.push(Card {
                    index,
                    lane: Lane::new(&gpu, self.timeout)?,
                    gpu,
                    timeout: self.timeout,
                    kernels_file: self.common.kernels.clone(),
                    kernels: OnceCell::new(),
                }),
                Err(error) if wanted.is_empty() => {
                    output.warn(&format!("GPU {index} is left out: {error}"));
                    refused = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if cards.is_empty() {
            return Err(refused.map_or_else(
                || Error::Other("the driver offers no GPU to this process; look at /dev/dri, groups and the container's devices".to_string()),
                Error::Kfd,
            ));
        }
        let gpus: Vec<usize> = cards.iter().map(|card| card.index).collect();
        output.event("begin", json!({ "command": command, "gpus": gpus }));
        Ok(Session {
            cards,
            output,
            interrupt,
            timeout: self.timeout,
        })
    }
}

impl Card {
    /// For people.
    pub fn name(&self) -> String {
        let node = self.gpu.node();
        format!("GPU {} ({}, {})", self.index, node.arch, node.pci_id)
    }

    /// The kernels of this program on it; none, which is said once, if there is neither an object for it nor a compiler.
    ///
    /// # Errors
    /// [`Error::Kfd`] if they cannot be loaded.
    pub fn kernels(&self, output: &Output) -> Result<Option<&Kernels>> {
        let is_new = self.kernels.get().is_none();
        let kernels = self.loaded()?;
        if let (true, Err(why)) = (is_new, kernels) {
            output.warn(&format!("{}: no kernels, SDMA only: {why}", self.name()));
        }
        Ok(kernels.as_ref().ok())
    }

    /// The kernels of this program on it, for a test that was to be by kernels.
    ///
    /// # Errors
    /// [`Error::Other`] if there is neither an object for it nor a compiler, and those of [`Card::kernels`].
    pub fn needed_kernels(&self) -> Result<&Kernels> {
        let none = |why: &String| Error::Other(format!("{}: no kernels: {why}", self.name()));
        self.loaded()?.as_ref().map_err(none)
    }

    fn loaded(&self) -> Result<&std::result::Result<Kernels, String>> {
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let kernels = Kernels::new(&self.gpu, self.kernels_file.as_deref(), self.timeout)?;
        Ok(self.kernels.get_or_init(|| kernels))
    }
}

/// GPUs in this process.
#[cfg(target_os = "linux")]
fn mock(common: &Common) -> Result<Arc<Kfd>> {
    use candle_kfd::mock::{Mock, Setup};
    /// Which byte of a copy --mock-wrong spoils.
    const WRONG_AT: u64 = 1234;
    let archs: Vec<&str> = common.mock.iter().map(String::as_str).collect();
    let setup = Setup::of(&archs).each(|gpu| gpu.display = common.mock_display);
    let mock = Mock::try_with(setup)
        .map_err(|error| Error::Usage(format!("--mock {}: {error}", common.mock.join(","))))?;
    crate::stand_in::register(&mock);
    if let Some(nth) = common.mock_wrong {
        mock.spoil_copy(nth, WRONG_AT);
    }
    Ok(Kfd::with(mock)?)
}

/// The mock is made of Linux' files in memory.
#[cfg(not(target_os = "linux"))]
fn mock(_: &Common) -> Result<Arc<Kfd>> {
    Err(Error::Usage(format!(
        "--mock works on Linux only, and this is {}",
        std::env::consts::OS
    )))
}
