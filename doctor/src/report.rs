//! The report: what was asked for, what each section found, and the verdict.

use crate::Options;
use serde::{Deserialize, Serialize};

/// Number of the form that the report has: it changes with every change that a reader has to know of.
pub const FORMAT: u32 = 1;

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// To know.
    Info,
    /// Works, but slower or with a risk.
    Warning,
    /// Wrong results, a crash, or nothing works.
    Error,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, always the same word for the same thing: the section, a dot, and a name.
    pub code: String,
    /// In a sentence, with what was measured.
    pub text: String,
    /// What to do.
    pub advice: Option<String>,
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Of what.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Of which unit.
    pub unit: String,
    /// What a data sheet or a standard says, in the same unit.
    pub reference: Option<f64>,
    /// Where the reference is from.
    pub reference_name: Option<String>,
    /// Whether it is one of many, which only programs read.
    pub detail: bool,
}

impl Measurement {
    /// A figure without a reference.
    pub fn new(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Measurement {
            name: name.into(),
            value,
            unit: unit.to_string(),
            reference: None,
            reference_name: None,
            detail: false,
        }
    }

    /// The same beside what it should be, if that is known.
    pub fn beside(mut self, reference: Option<(f64, String)>) -> Self {
        (self.reference, self.reference_name) = reference.unzip();
        self
    }

    /// The same as one of many.
    pub fn detail(mut self) -> Self {
        self.detail = true;
        self
    }
}

/// How a section ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It came to its end.
    Finished,
    /// Its process ended before, by a signal or an exit.
    Died,
    /// Its process was ended because it took too long.
    TimedOut,
    /// It was not begun: there is no GPU, or the user had enough.
    Skipped,
}

/// What a section found, of one GPU or of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SectionReport {
    /// The section.
    pub name: String,
    /// `rocm:N`, or none for the machine.
    pub device: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took.
    pub seconds: f64,
    /// Lines for people.
    pub notes: Vec<String>,
    /// Figures.
    pub measurements: Vec<Measurement>,
    /// What was found, in the order in which it was.
    pub findings: Vec<Finding>,
    /// What the section tells programs; its form is the section's.
    pub facts: Option<serde_json::Value>,
}

impl SectionReport {
    pub(crate) fn new(name: &str, device: Option<String>) -> Self {
        SectionReport {
            name: name.to_string(),
            device,
            outcome: Outcome::Skipped,
            seconds: 0.0,
            notes: Vec::new(),
            measurements: Vec::new(),
            findings: Vec::new(),
            facts: None,
        }
    }

    /// The worst that was found; none if nothing was.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// Adds something that the program found about the section.
    pub(crate) fn find(&mut self, severity: Severity, code: &str, text: String, advice: &str) {
        self.findings.push(Finding {
            severity,
            code: format!("{}.{code}", self.name),
            text,
            advice: Some(advice.to_string()).filter(|advice| !advice.is_empty()),
        });
    }
}

/// The whole in one sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The worst that was found, info if nothing was.
    pub severity: Severity,
    /// In one sentence.
    pub text: String,
    /// What to do, most urgent first.
    pub actions: Vec<String>,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Program and version.
    pub program: String,
    /// When it was begun, RFC 3339 in UTC.
    pub time: String,
    /// What was asked for.
    pub options: Options,
    /// Sections that ran, in order.
    pub sections: Vec<SectionReport>,
    /// The whole in one sentence.
    pub verdict: Verdict,
}

impl Verdict {
    /// The verdict on what was found.
    pub fn of(sections: &[SectionReport]) -> Self {
        let findings = || sections.iter().flat_map(|section| &section.findings);
        let of = |severity| findings().filter(move |finding| finding.severity == severity);
        let (errors, warnings) = (of(Severity::Error).count(), of(Severity::Warning).count());
        let mut actions: Vec<String> = Vec::new();
        for finding in of(Severity::Error).chain(of(Severity::Warning)) {
            let action = match &finding.advice {
                Some(advice) => format!("{}: {advice}", finding.code),
                None => format!("{}: {}", finding.code, finding.text),
            };
            if !actions.contains(&action) {
                actions.push(action);
            }
        }
        let gpus = {
            let mut devices: Vec<&str> = (sections.iter())
                .filter_map(|section| section.device.as_deref())
                .collect();
            devices.sort_unstable();
            devices.dedup();
            devices.len()
        };
        let what = match gpus {
            0 => "the machine".to_string(),
            1 => "the machine and its GPU".to_string(),
            n => format!("the machine and {n} GPUs"),
        };
        let names = |severity| {
            let mut names: Vec<&str> = (sections.iter())
                .filter(|section| section.worst() == Some(severity))
                .map(|section| section.name.as_str())
                .collect();
            names.dedup();
            names.join(", ")
        };
        let (severity, text) = match (errors, warnings) {
            (0, 0) => (
                Severity::Info,
                format!("Good: nothing wrong was found with {what}."),
            ),
            (0, n) => (
                Severity::Warning,
                format!(
                    "Usable, with {}: {what} will work, but see {}.",
                    count(n, "warning"),
                    names(Severity::Warning)
                ),
            ),
            (n, _) => (
                Severity::Error,
                format!(
                    "Not good: {} with {what}, in {}.",
                    count(n, "error"),
                    names(Severity::Error)
                ),
            ),
        };
        Verdict {
            severity,
            text,
            actions,
        }
    }
}

fn count(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(name: &str, findings: &[(Severity, &str)]) -> SectionReport {
        let mut section = SectionReport::new(name, Some("rocm:0".to_string()));
        for (severity, code) in findings {
            section.find(*severity, code, "text".to_string(), "do this");
        }
        section
    }

    #[test]
    fn the_worst_decides_and_errors_come_first() {
        let verdict = |sections: &[SectionReport]| Verdict::of(sections);
        assert_eq!(verdict(&[]).severity, Severity::Info);
        let info = section("a", &[(Severity::Info, "x")]);
        assert_eq!(
            verdict(std::slice::from_ref(&info)).severity,
            Severity::Info
        );
        assert!(verdict(std::slice::from_ref(&info)).actions.is_empty());
        let warned = section("b", &[(Severity::Warning, "y"), (Severity::Warning, "y")]);
        let both = verdict(&[info, warned.clone()]);
        assert_eq!(both.severity, Severity::Warning);
        assert_eq!(both.actions, ["b.y: do this"]);
        let failed = section("c", &[(Severity::Error, "z")]);
        let all = verdict(&[warned, failed]);
        assert_eq!(all.severity, Severity::Error);
        assert_eq!(all.actions, ["c.z: do this", "b.y: do this"]);
        assert!(
            all.text.contains("1 error") && all.text.ends_with("in c."),
            "{}",
            all.text
        );
    }
}
