//! What is switched off in this process, and warnings of it for the program to log: this crate has no log of its own.

use super::store::{Form, Outcome};
use crate::sync::lock;
use crate::Device;
use std::sync::Mutex;

/// Something that gave wrong results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchedOff {
    /// Its name.
    pub name: String,
    /// What was wrong.
    pub reason: String,
    /// What takes its place; none if nothing does, and using it is an error.
    pub instead: Option<String>,
}

impl std::fmt::Display for SwitchedOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} gives wrong results ({}); ", self.name, self.reason)?;
        match &self.instead {
            Some(instead) => write!(f, "{instead} takes its place"),
            None => write!(f, "nothing takes its place"),
        }
    }
}

impl SwitchedOff {
    pub(super) fn new(name: &str, outcome: &Outcome) -> Self {
        SwitchedOff {
            name: name.to_string(),
            reason: outcome.reason.clone(),
            instead: Some(outcome.instead.clone()).filter(|instead| !instead.is_empty()),
        }
    }
}

struct Notices {
    sink: Option<fn(&str)>,
    /// What was told before there was a sink.
    waiting: Vec<String>,
    /// By the number of the GPU.
    switched_off: Vec<(usize, SwitchedOff)>,
}

static NOTICES: Mutex<Notices> = Mutex::new(Notices {
    sink: None,
    waiting: Vec::new(),
    switched_off: Vec::new(),
});

/// Has warnings told to `sink`, those of before at once. It must not call this function.
pub fn on_warning(sink: fn(&str)) {
    let mut notices = lock(&NOTICES);
    notices.sink = Some(sink);
    let waiting = std::mem::take(&mut notices.waiting);
    drop(notices);
    waiting.iter().for_each(|text| sink(text));
}

/// What is not used as it is on the GPUs that this process has opened, in words.
pub fn switched_off() -> Vec<String> {
    let notices = lock(&NOTICES);
    let all = notices.switched_off.iter();
    all.map(|(ordinal, what)| format!("rocm:{ordinal}: {what}"))
        .collect()
}

/// Takes note of what was found now or before, and warns of what is not used as it is; of each once.
pub(super) fn tell(device: &Device, name: &str, outcome: &Outcome) {
    if outcome.form == Form::Full {
        return;
    }
    let (ordinal, what) = (device.ordinal(), SwitchedOff::new(name, outcome));
    let mut notices = lock(&NOTICES);
    let known = notices.switched_off.iter();
    if known
        .into_iter()
        .any(|(on, known)| (*on, known) == (ordinal, &what))
    {
        return;
    }
    let properties = device.properties();
    let text = format!(
        "verification on rocm:{ordinal} ({}, {}): {what}",
        properties.name, properties.full_arch
    );
    notices.switched_off.push((ordinal, what));
    drop(notices);
    warn(text);
}

/// Warns: of what was found, or of what the user will wait for.
pub(crate) fn warn(text: String) {
    let mut notices = lock(&NOTICES);
    match notices.sink {
        Some(sink) => {
            drop(notices);
            sink(&text);
        }
        None => notices.waiting.push(text),
    }
}
