//! What a section is, and what it reports to.

use crate::report::{Finding, Measurement, Severity};
use crate::Options;
use candle_rocm::Device;
use serde::{Deserialize, Serialize};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Why a section could not go on. Its text becomes a finding.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a section looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The machine: runs once.
    Machine,
    /// A GPU: runs for each.
    Gpu,
}

/// One part of the examination. It runs in a process of its own.
pub trait Section: Sync {
    /// What `--only` calls it; findings' codes begin with it.
    fn name(&self) -> &'static str;

    /// What it does, in a few words.
    fn about(&self) -> &'static str;

    /// What it looks at.
    fn scope(&self) -> Scope {
        Scope::Gpu
    }

    /// After how long its process is ended. Far more than a working machine needs.
    fn limit(&self, options: &Options) -> Duration;

    /// Looks, and tells what it finds.
    ///
    /// # Errors
    /// What keeps it from going on; that is an error of the GPU, too.
    fn run(&self, check: &Check) -> Result<(), Failure>;
}

/// What a section tells while it runs: a line of what goes from its process to the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// What it begins to do now.
    Progress(String),
    /// A line for people.
    Note(String),
    /// A figure.
    Measured(Measurement),
    /// Something to know.
    Found(Finding),
    /// Facts for programs.
    Facts(serde_json::Value),
    /// It has come to its end.
    Done,
}

/// What a section looks at and reports to. May be shared by its threads.
pub struct Check {
    section: &'static str,
    ordinal: Option<usize>,
    options: Options,
    start: Instant,
    sink: Mutex<Box<dyn FnMut(Event) + Send>>,
}

impl Check {
    pub(crate) fn new(
        section: &'static str,
        ordinal: Option<usize>,
        options: &Options,
        sink: impl FnMut(Event) + Send + 'static,
    ) -> Self {
        Check {
            section,
            ordinal,
            options: options.clone(),
            start: Instant::now(),
            sink: Mutex::new(Box::new(sink)),
        }
    }

    /// How thoroughly to look.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Number of the GPU to look at; 0 for a section that looks at the machine.
    pub fn ordinal(&self) -> usize {
        self.ordinal.unwrap_or_default()
    }

    /// The GPU to look at, with a stream and an allocator of its own.
    ///
    /// # Errors
    /// Those of [`Device::new`].
    pub fn device(&self) -> Result<Device, Failure> {
        Ok(Device::new(self.ordinal())?)
    }

    /// Since when the section runs.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn tell(&self, event: Event) {
        let mut sink = self.sink.lock().unwrap_or_else(|e| e.into_inner());
        sink(event);
    }

    /// What is begun now: shown while it lasts, and named if the process ends in it.
    pub fn progress(&self, text: impl Into<String>) {
        self.tell(Event::Progress(text.into()));
    }

    /// A line for people.
    pub fn note(&self, text: impl Into<String>) {
        self.tell(Event::Note(text.into()));
    }

    /// A figure.
    pub fn measure(&self, measurement: Measurement) {
        self.tell(Event::Measured(measurement));
    }

    /// What was found out, for programs.
    pub fn facts(&self, facts: serde_json::Value) {
        self.tell(Event::Facts(facts));
    }

    /// Something that is wrong: `code` names it within the section.
    pub fn error(&self, code: &str, text: impl Into<String>, advice: impl Into<String>) {
        self.find(Severity::Error, code, text.into(), advice.into());
    }

    /// Something that may go wrong or costs speed.
    pub fn warning(&self, code: &str, text: impl Into<String>, advice: impl Into<String>) {
        self.find(Severity::Warning, code, text.into(), advice.into());
    }

    /// Something to know.
    pub fn info(&self, code: &str, text: impl Into<String>, advice: impl Into<String>) {
        self.find(Severity::Info, code, text.into(), advice.into());
    }

    fn find(&self, severity: Severity, code: &str, text: String, advice: String) {
        self.tell(Event::Found(Finding {
            severity,
            code: format!("{}.{code}", self.section),
            text,
            advice: Some(advice).filter(|advice| !advice.is_empty()),
        }));
    }

    pub(crate) fn done(&self) {
        self.tell(Event::Done);
    }
}
