//! Warnings, for the program to log: this crate has no log of its own.

use crate::sync::lock;
use std::sync::Mutex;

struct Notices {
    sink: Option<fn(&str)>,
    /// What was told before there was a sink.
    waiting: Vec<String>,
}

static NOTICES: Mutex<Notices> = Mutex::new(Notices {
    sink: None,
    waiting: Vec::new(),
});

/// Has warnings told to `sink`, those of before at once. It must not call this function.
pub fn on_warning(sink: fn(&str)) {
    let mut notices = lock(&NOTICES);
    notices.sink = Some(sink);
    let waiting = std::mem::take(&mut notices.waiting);
    drop(notices);
    waiting.iter().for_each(|text| sink(text));
}

/// Warns.
pub(super) fn warn(text: String) {
    let mut notices = lock(&NOTICES);
    match notices.sink {
        Some(sink) => {
            drop(notices);
            sink(&text);
        }
        None => notices.waiting.push(text),
    }
}
