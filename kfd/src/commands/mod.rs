//! The commands, one file each.

pub mod copy_test;
pub mod info;
pub mod kernels;
pub mod launch;
pub mod memory_test;
pub mod overlap_test;
pub mod soak;

use crate::kernels::Kernels;
use crate::output::Output;
use crate::session::Card;
use crate::{Error, Result};
use clap::ValueEnum;
use serde_json::json;
use std::time::Instant;

/// Who moves and looks at words, in the tests that leave the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    Kernels,
    Sdma,
    Both,
}

impl By {
    /// The kernels for a GPU, where they are to do something.
    ///
    /// # Errors
    /// Those of [`Card::kernels`]; of [`Card::needed_kernels`] where they alone were asked for.
    fn kernels<'a>(self, card: &'a Card, output: &Output) -> Result<Option<&'a Kernels>> {
        match self {
            By::Sdma => Ok(None),
            By::Kernels => card.needed_kernels().map(Some),
            By::Both => card.kernels(output),
        }
    }
}

/// What a test has found so far.
#[derive(Debug)]
pub struct Verdict {
    command: &'static str,
    start: Instant,
    wrong: u64,
}

impl Verdict {
    /// Nothing yet.
    pub fn new(command: &'static str) -> Self {
        Verdict {
            command,
            start: Instant::now(),
            wrong: 0,
        }
    }

    /// Something is wrong.
    pub fn wrong(&mut self) {
        self.wrong += 1;
    }

    /// Says how it went.
    ///
    /// # Errors
    /// [`Error::Wrong`] if something was.
    pub fn end(self, output: &mut Output, interrupted: bool) -> Result<()> {
        output.end();
        let seconds = self.start.elapsed().as_secs_f64();
        let how = match (self.wrong, interrupted) {
            (0, false) => "nothing wrong",
            (0, true) => "interrupted; nothing wrong so far",
            _ => "wrong",
        };
        output.say(
            "end",
            &format!("{}: {how}, {seconds:.1} s", self.command),
            json!({
                "command": self.command,
                "wrong": self.wrong,
                "interrupted": interrupted,
                "seconds": seconds,
            }),
        );
        match self.wrong {
            0 => Ok(()),
            wrong => Err(Error::Wrong(wrong)),
        }
    }
}
