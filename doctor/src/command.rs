//! The command line.

use crate::child::{serve, Job, Starter};
use crate::privacy::Mask;
use crate::report::{Report, SectionReport, Severity};
use crate::run::{Audience, Plan};
use crate::section::Section;
use crate::tools::Tool;
use crate::{sections, text, Options};
use clap::Args;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;
use worker::cli::output::{print, print_line};
use worker::device::DeviceRequest;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// For the end of a program's help.
pub const EXIT_CODES: &str = "Exit codes: 0 nothing is wrong (warnings included), 1 something is wrong or the report could not be written, 2 bad arguments.\nThe report has no names of people and machines, no serial numbers and no addresses of network cards, unless --keep-names is given; docs/doctor.md tells what is in it and where to send it.";

/// Arguments of the doctor.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DoctorArgs {
    /// The GPU to look at, rocm:N; all of them without it.
    #[arg(
        long,
        default_value = "auto",
        value_name = "DEVICE",
        hide_default_value = true
    )]
    device: DeviceRequest,

    /// Only these sections, separated by commas; --list has their names.
    #[arg(long, value_delimiter = ',', value_name = "SECTION,…")]
    only: Vec<String>,

    /// Print the sections and what they do.
    #[arg(long)]
    list: bool,

    /// About a minute instead of five: less memory, smaller copies, fewer kernels.
    #[arg(long)]
    quick: bool,

    /// Tiny sizes, for trying the doctor itself on hip-sim. They prove nothing about a GPU.
    #[arg(long)]
    small: bool,

    /// Compute and copy at once for so long, with temperature and clocks watched: 90s, 30m, 1h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    soak: Option<Duration>,

    /// Of the section operations only these groups, separated by commas, for example matmul,conv.
    #[arg(long, value_delimiter = ',', value_name = "GROUP,…")]
    operations: Vec<String>,

    /// How much of the free device memory to test, in percent [default: 80, with --quick 10].
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=95))]
    memory: Option<u64>,

    /// Write the report to this file as JSON, to be sent.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Print the report as JSON instead of text.
    #[arg(long)]
    json: bool,

    /// Leave names of people and machines in the report.
    #[arg(long)]
    keep_names: bool,

    /// What a process of its own is to do.
    #[arg(long, hide = true, value_name = "JOB")]
    child: Option<String>,

    #[command(subcommand)]
    tool: Option<Tool>,
}

/// A time with a unit; seconds without one.
fn duration(text: &str) -> std::result::Result<Duration, String> {
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let seconds = match unit {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        _ => None,
    };
    // A week: longer ones are mistakes.
    const MOST: u64 = 7 * 24 * 3600;
    number
        .parse::<u64>()
        .ok()
        .zip(seconds)
        .and_then(|(number, seconds)| number.checked_mul(seconds))
        .filter(|seconds| (1..=MOST).contains(seconds))
        .map(Duration::from_secs)
        .ok_or_else(|| "it must be like 90s, 30m or 1h, at most a week".to_string())
}

impl DoctorArgs {
    /// Examines, prints and writes. `command` is what the program calls this command, if it has others, and `more` are
    /// the program's own sections.
    ///
    /// # Errors
    /// [`Error::Usage`] for arguments, [`Error::Runtime`] if something is wrong with the GPU, [`Error::Io`] if the
    /// report cannot be written.
    pub fn run(self, command: &[&str], more: &[&dyn Section]) -> Result<()> {
        if let Some(tool) = self.tool {
            return tool.run();
        }
        let sections = [sections::ALL, more].concat();
        if let Some(job) = &self.child {
            let job: Job =
                serde_json::from_str(job).map_err(|e| Error::Usage(format!("--child: {e}")))?;
            return serve(&job, &sections);
        }
        if self.list {
            let lines: Vec<String> = (sections.iter())
                .map(|section| format!("{:14} {}", section.name(), section.about()))
                .collect();
            return print_line(&lines.join("\n"));
        }
        let plan = self.plan(sections)?;
        let interrupt = Interrupt::install()?;
        let mut screen = Screen::new(self.json);
        let report = plan.run(&Starter { command }, &interrupt, &mut screen);
        screen.clear();
        self.finish(&report)
    }

    fn plan<'a>(&self, sections: Vec<&'a dyn Section>) -> Result<Plan<'a>> {
        let known = |name: &String| sections.iter().any(|section| section.name() == *name);
        if let Some(unknown) = self.only.iter().find(|name| !known(name)) {
            let names: Vec<&str> = sections.iter().map(|section| section.name()).collect();
            return Err(Error::Usage(format!(
                "there is no section {unknown}; the sections are {}",
                names.join(", ")
            )));
        }
        let ordinal = match self.device {
            DeviceRequest::Auto => None,
            DeviceRequest::Rocm(ordinal) => Some(ordinal),
            DeviceRequest::Cpu => {
                let text = "--device: the doctor looks at GPUs, rocm:N";
                return Err(Error::Usage(text.to_string()));
            }
        };
        let memory = if self.quick { 10 } else { 80 };
        Ok(Plan {
            sections,
            only: self.only.clone(),
            ordinal,
            options: Options {
                quick: self.quick,
                small: self.small,
                soak_seconds: self.soak.map(|soak| soak.as_secs()),
                operations: self.operations.clone(),
                memory_percent: self.memory.unwrap_or(memory),
            },
            mask: (!self.keep_names).then(Mask::of_this_machine),
        })
    }

    /// Prints the verdict, writes the report, and fails if something is wrong.
    fn finish(&self, report: &Report) -> Result<()> {
        let json = serde_json::to_string_pretty(report)
            .map_err(|e| Error::Runtime(format!("cannot write JSON: {e}")))?;
        if let Some(path) = &self.report {
            std::fs::write(path, format!("{json}\n")).map_err(|source| Error::Io {
                path: path.clone(),
                source,
            })?;
        }
        if self.json {
            print_line(&json)?;
        } else {
            print(&format!("\n{}", text::verdict(report)))?;
            print_line(&match &self.report {
                Some(path) => format!(
                    "The report is in {}. Please send it: docs/support.md tells where; it helps with a good card, too.",
                    path.display()
                ),
                None => "With --report FILE this becomes a file that can be sent; docs/support.md tells where.".to_string(),
            })?;
        }
        match report.verdict.severity {
            Severity::Error => Err(Error::Runtime(report.verdict.text.clone())),
            _ => Ok(()),
        }
    }
}

/// Shows how it goes: sections on standard output, what is done now on standard error.
struct Screen {
    /// Whether standard output takes the sections as text.
    shows_sections: bool,
    /// Whether the line of what is done now can be written over.
    is_terminal: bool,
    /// The section whose name was shown last, where lines cannot be written over.
    shown: String,
}

impl Screen {
    fn new(json: bool) -> Self {
        Screen {
            shows_sections: !json,
            is_terminal: std::io::stderr().is_terminal(),
            shown: String::new(),
        }
    }

    fn clear(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// Characters of a line of progress at most: longer ones would wrap and stay.
const PROGRESS_COLUMNS: usize = 76;

impl Audience for Screen {
    fn progress(&mut self, section: &str, device: Option<&str>, text: &str) {
        let title = text::title(section, device);
        if self.is_terminal {
            let line = format!("{title}: {text}");
            let line: String = line.chars().take(PROGRESS_COLUMNS).collect();
            eprint!("\r\x1b[K{line}");
        } else if self.shown != title {
            eprintln!("{title}: {text}");
            self.shown = title;
        }
    }

    fn section(&mut self, report: &SectionReport) {
        self.clear();
        if self.shows_sections {
            // A reader that has seen enough does not end the examination: there may be a report to write.
            let _ = print(&text::section(report));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let seconds = |text| duration(text).map(|d| d.as_secs());
        assert_eq!(seconds("90"), Ok(90));
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("30m"), Ok(1800));
        assert_eq!(seconds("1h"), Ok(3600));
        for bad in [
            "",
            "h",
            "0",
            "1d",
            "-1",
            "1.5h",
            "1000h",
            "99999999999999999999s",
        ] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
