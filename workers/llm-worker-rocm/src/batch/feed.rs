//! The lines that are still to be answered, in an order in which equal beginnings meet.
//!
//! Some lines are read ahead, as many as fit a window. Those of a window are put in the order of their prompts: what
//! the engine knows of one request's beginning is still there when the next one comes.

use super::figures::Figures;
use super::input::{Line, Lines};
use super::journal::Known;
use super::line::{hash_of, Fault, Item};
use std::io::{self, Read};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tokio::sync::mpsc::Sender;
use worker::{Error, Result};

/// Most requests of a window.
const WINDOW_ITEMS: usize = 2048;
/// Most bytes of a window, but for a longer line alone.
const WINDOW_BYTES: usize = 16 << 20;

/// Reads an input.
pub struct Feed<R> {
    /// The input.
    pub lines: Lines<R>,
    /// What needs no answer any more.
    pub known: Known,
    /// The one route that is allowed, if not all are.
    pub only: Option<String>,
    /// Whether lines come while somebody writes them, and are not waited for in order to fill a window.
    pub is_live: bool,
}

/// Some lines.
#[derive(Debug, Default)]
pub struct Window {
    /// Requests, in the order in which they are best asked.
    pub items: Vec<Item>,
    /// What is wrong with other lines.
    pub faults: Vec<Fault>,
}

impl<R: Read> Feed<R> {
    /// Sends the lines by windows. Blocks; ends early where nobody hears it any more.
    ///
    /// # Errors
    /// The operating system's.
    pub fn run(mut self, windows: &Sender<Window>, figures: &Figures) -> io::Result<()> {
        let (mut window, mut bytes) = (Window::default(), 0);
        loop {
            let count = window.items.len() + window.faults.len();
            let waits = self.is_live && self.lines.may_wait() && count > 0;
            if waits || count >= WINDOW_ITEMS || bytes >= WINDOW_BYTES {
                if !send(&mut window, windows) {
                    return Ok(());
                }
                bytes = 0;
            }
            let Some(line) = self.lines.next_line()? else {
                break;
            };
            figures.read_line();
            match self.item(line) {
                Ok(None) => {}
                Ok(Some(item)) => {
                    bytes += item.bytes();
                    window.items.push(item);
                }
                Err(fault) => window.faults.push(fault),
            }
        }
        send(&mut window, windows);
        Ok(())
    }

    /// A line as a request; nothing if it has its result already.
    fn item(&mut self, line: Line) -> std::result::Result<Option<Item>, Fault> {
        let number = line.number;
        if self.known.lines.contains(&number) {
            return Ok(None);
        }
        let bytes = line.bytes.map_err(|length| {
            Fault::new(
                number,
                "line_too_long",
                format!("{length} bytes are too many"),
            )
        })?;
        let item = Item::read(number, bytes, self.only.as_deref())?;
        match self.known.requests.insert(hash_of(&item.custom_id), true) {
            None => Ok(Some(item)),
            Some(false) => Ok(None),
            Some(true) => Err(Fault {
                custom_id: Some(item.custom_id),
                param: Some("custom_id"),
                ..Fault::new(
                    number,
                    "duplicate_custom_id",
                    "an earlier line has this custom_id",
                )
            }),
        }
    }
}

/// Reads an input on a thread of its own.
///
/// # Errors
/// [`Error::Runtime`] if there is no thread.
pub fn spawn<R: Read + Send + 'static>(
    feed: Feed<R>,
    windows: Sender<Window>,
    figures: Arc<Figures>,
) -> Result<JoinHandle<io::Result<()>>> {
    let thread = thread::Builder::new().name("batch input".to_string());
    thread
        .spawn(move || feed.run(&windows, &figures))
        .map_err(|e| Error::Runtime(format!("cannot start a thread: {e}")))
}

/// Sends a window in order; gives whether anybody hears it.
fn send(window: &mut Window, windows: &Sender<Window>) -> bool {
    let mut window = std::mem::take(window);
    window.items.sort_by(Item::compare);
    windows.blocking_send(window).is_ok()
}
