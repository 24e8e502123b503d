//! What a check finds.

use super::prepare::Point;
use super::tolerance::Difference;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of an input that people are shown.
const MOST_SHOWN: usize = 8192;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The unit does not compile.
    Compile,
    /// It takes more LDS (shared memory) than a block can have.
    Lds,
    /// A case's block is larger than the kernel's launch bounds allow.
    LaunchBounds,
    /// Registers are spilled, or scratch memory is used: slow, but right.
    Spill,
    /// The case itself is wrong.
    Case,
    /// HIP refuses the launch.
    Launch,
    /// The kernel ends the process.
    Crash,
    /// The kernel does not end.
    Hang,
    /// Threads wait for each other in ways that cannot end: barriers that not all reach.
    Divergence,
    /// It reads or writes outside of buffers.
    OutOfBounds,
    /// It reads what was never written, or leaves a part of an output unwritten.
    Uninitialised,
    /// It changes what must stay.
    Changed,
    /// Outputs differ from the reference.
    Reference,
    /// Outputs differ between waves of 32 and of 64.
    Width,
    /// Outputs differ between orders of threads, or between runs.
    Order,
    /// Outputs differ from those that were recorded.
    Golden,
    /// The simulator reports something else.
    Simulator,
    /// What a case says is known was not found.
    NotFound,
}

impl Kind {
    /// Its name in JSON and in case files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Compile => "compile",
            Kind::Lds => "lds",
            Kind::LaunchBounds => "launch_bounds",
            Kind::Spill => "spill",
            Kind::Case => "case",
            Kind::Launch => "launch",
            Kind::Crash => "crash",
            Kind::Hang => "hang",
            Kind::Divergence => "divergence",
            Kind::OutOfBounds => "out_of_bounds",
            Kind::Uninitialised => "uninitialised",
            Kind::Changed => "changed",
            Kind::Reference => "reference",
            Kind::Width => "width",
            Kind::Order => "order",
            Kind::Golden => "golden",
            Kind::Simulator => "simulator",
            Kind::NotFound => "not_found",
        }
    }

    /// Whether it is only told, and fails no check.
    pub fn is_note(self) -> bool {
        self == Kind::Spill
    }

    /// Of a line that the simulator, or HIP, says.
    pub(super) fn of_report(line: &str) -> Self {
        let has = |text| line.contains(text);
        if has("out of bounds") || has("guard zone") {
            Kind::OutOfBounds
        } else if has("never written") {
            Kind::Uninitialised
        } else if has("nothing but sleep") {
            Kind::Hang
        } else if has("can never end") {
            Kind::Divergence
        } else {
            Kind::Simulator
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that is wrong, at its first and smallest occurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What is wrong.
    pub kind: Kind,
    /// The entry; empty if it concerns the whole unit.
    pub kernel: String,
    /// The case, if it is of one.
    pub case: Option<String>,
    /// Archs on which it is.
    pub archs: Vec<String>,
    /// Orders of threads in which it is: `ascending`, or a seed.
    pub orders: Vec<String>,
    /// Sizes of the first launch that shows it.
    pub sizes: Point,
    /// In words.
    pub message: String,
    /// The first element that differs.
    pub difference: Option<Difference>,
    /// The file of the unit's text that a compiler complains of: its own, or a CUDA file that it was made of.
    pub file: Option<String>,
    /// The line there, from 1.
    pub line: Option<usize>,
    /// Launches that show it, of all sizes, archs and orders.
    pub count: usize,
    /// The smallest input that still shows it, as a case file; none if no input belongs to it.
    pub input: Option<String>,
    /// Why it is no surprise, if the case says so.
    pub known: Option<String>,
}

impl Finding {
    /// A finding that is of no case.
    pub(super) fn of_unit(kind: Kind, kernel: &str, arch: Option<&str>, message: String) -> Self {
        Finding {
            kind,
            kernel: kernel.to_string(),
            case: None,
            archs: arch.map(str::to_string).into_iter().collect(),
            orders: Vec::new(),
            sizes: Point::new(),
            message,
            difference: None,
            file: None,
            line: None,
            count: 1,
            input: None,
            known: None,
        }
    }

    /// Whether it fails the check.
    pub fn fails(&self) -> bool {
        self.known.is_none() && !self.kind.is_note()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.as_ref().map(|why| format!(" (known: {why})"));
        write!(f, "{}{}", self.kind, known.unwrap_or_default())?;
        if !self.kernel.is_empty() {
            write!(f, ": {}", self.kernel)?;
        }
        if let Some(case) = self.case.as_ref().filter(|case| **case != self.kernel) {
            write!(f, ", case {case}")?;
        }
        let sizes: Vec<String> = self
            .sizes
            .iter()
            .map(|(name, n)| format!("{name} = {n}"))
            .collect();
        if !sizes.is_empty() {
            write!(f, ", {}", sizes.join(", "))?;
        }
        if !self.archs.is_empty() {
            write!(f, " on {}", self.archs.join(", "))?;
        }
        if !self.orders.is_empty() {
            write!(f, ", order {}", self.orders.join(", "))?;
        }
        if self.count > 1 {
            write!(f, " ({} launches)", self.count)?;
        }
        write!(
            f,
            "\n    {}",
            self.message.trim_end().replace('\n', "\n    ")
        )?;
        match &self.input {
            Some(input) if input.len() > MOST_SHOWN => {
                write!(
                    f,
                    "\n    the smallest input has {} bytes: the report in JSON has it",
                    input.len()
                )?;
            }
            Some(input) => {
                let input = input.trim_end().replace('\n', "\n        ");
                write!(f, "\n    the smallest input:\n        {input}")?;
            }
            None => {}
        }
        Ok(())
    }
}

/// The first place in a compiler's log that is in the unit's own text, and in no header of the shim: the unit's file, or
/// one that its `#line` directives name.
pub(super) fn place_of(log: &str, unit: &str, source: &str) -> Option<(String, usize)> {
    let is_own = |file: &str| {
        let mut directives = source.lines().filter(|line| line.starts_with("#line"));
        file == unit || directives.any(|line| line.trim_end().ends_with(&format!("\"{file}\"")))
    };
    log.lines()
        .filter(|line| line.contains("error"))
        .find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (file, number) = (parts.next()?.trim(), parts.next()?.parse().ok()?);
            is_own(file).then(|| (file.to_string(), number))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilers_complain_of_places() {
        let source = "#include \"port/cuda.h\"\n#line 1 \"src/a.cu\"\nint x\n";
        let log = "In file included from x:1:\nport/cuda.h:3:1: error: no\nsrc/a.cu:7:2: warning: w\nsrc/a.cu:8:2: error: e\n";
        assert_eq!(
            place_of(log, "a.hip", source),
            Some(("src/a.cu".to_string(), 8))
        );
        assert_eq!(
            place_of("a.hip:9:1: fatal error: e", "a.hip", source),
            Some(("a.hip".to_string(), 9))
        );
        assert_eq!(
            place_of("port/cuda.h:3:1: error: no", "a.hip", source),
            None
        );
        assert_eq!(place_of("error: nothing\n::", "a.hip", source), None);
    }

    #[test]
    fn reports_have_kinds() {
        for (report, kind) in [
            ("kernel k, block (0,0,0), thread (1,0,0): reads 4 bytes out of bounds at 0x1", Kind::OutOfBounds),
            ("copy of 4 bytes reads memory that was never written: byte 0", Kind::Uninitialised),
            ("kernel k: block (0,0,0) can never end: threads wait", Kind::Divergence),
            ("kernel k: block (0,0,0) can never end: its threads have done nothing but sleep for 1s", Kind::Hang),
            ("anything else", Kind::Simulator),
        ] {
            assert_eq!(Kind::of_report(report), kind, "{report}");
        }
    }
}
