//! The report for people.

use crate::report::{Finding, Measurement, Outcome, Report, SectionReport, Severity};
use std::fmt::Write;

/// Width of the names of measurements.
const NAME_COLUMNS: usize = 46;

/// What a section is called with its GPU.
pub(crate) fn title(name: &str, device: Option<&str>) -> String {
    match device {
        Some(device) => format!("{name} on {device}"),
        None => name.to_string(),
    }
}

/// A section, a line for each thing.
pub(crate) fn section(section: &SectionReport) -> String {
    let state = match (section.outcome, section.worst()) {
        (Outcome::Skipped, _) => "skipped",
        (_, Some(Severity::Error)) => "NOT GOOD",
        (_, Some(Severity::Warning)) => "warnings",
        _ => "good",
    };
    let title = title(&section.name, section.device.as_deref());
    let mut text = format!("== {title}: {state}, {:.1} s\n", section.seconds);
    for note in &section.notes {
        let _ = writeln!(text, "   {}", note.replace('\n', "\n   "));
    }
    for measurement in section.measurements.iter().filter(|m| !m.detail) {
        let _ = writeln!(text, "   {}", self::measurement(measurement));
    }
    for finding in &section.findings {
        text += &self::finding(finding);
    }
    text
}

fn measurement(measurement: &Measurement) -> String {
    let Measurement {
        name, value, unit, ..
    } = measurement;
    let mut text = format!("{name:NAME_COLUMNS$} {:>9} {unit}", figure(*value));
    if let (Some(reference), Some(from)) = (measurement.reference, &measurement.reference_name) {
        let share = value / reference * 100.0;
        let _ = write!(text, "  ({share:.0} % of {} by {from})", figure(reference));
    }
    text
}

/// Three digits that count.
fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn finding(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Info => "note",
        Severity::Warning => "warning",
        Severity::Error => "ERROR",
    };
    let said = finding.text.replace('\n', "\n      ");
    let mut text = format!("   {severity} {}: {said}\n", finding.code);
    if let Some(advice) = &finding.advice {
        let _ = writeln!(text, "      to do: {advice}");
    }
    text
}

/// The verdict, and what to do.
pub(crate) fn verdict(report: &Report) -> String {
    let mut text = format!("{}\n", report.verdict.text);
    for (i, action) in report.verdict.actions.iter().enumerate() {
        let _ = writeln!(text, "  {}. {action}", i + 1);
    }
    text
}
