//! The report for a terminal.

use super::{by_file, rules, title, words, Detail, Sums};
use crate::model::{Finding, Scan, Severity, Verdict};
use crate::rules::Rule;
use std::collections::BTreeMap;
use std::fmt::Write;

pub(super) fn write(scan: &Scan, detail: Detail) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = body(scan, detail, &mut out);
    out
}

fn body(scan: &Scan, detail: Detail, out: &mut String) -> std::fmt::Result {
    let sums = Sums::of(&scan.kernels);
    writeln!(
        out,
        "{}: {} kernels in {} files",
        title(scan),
        sums.kernels,
        scan.project.files.len()
    )?;
    let mut rows = vec![[
        "file", "kernels", "portable", "edits", "mapped", "by hand", "unused",
    ]
    .map(String::from)];
    let row = |name: &str, sums: Sums| {
        let numbers = [
            sums.kernels,
            sums.portable,
            sums.with_edits,
            sums.mapped,
            sums.by_hand,
            sums.unused,
        ];
        let [a, b, c, d, e, f] = numbers.map(|number| number.to_string());
        [name.to_string(), a, b, c, d, e, f]
    };
    for (file, kernels) in by_file(scan) {
        rows.push(row(file, Sums::of(kernels)));
    }
    rows.push(row("all", sums));
    table(&rows, out)?;
    writeln!(
        out,
        "{:.1} % of the kernels that are used go over by themselves",
        sums.percent()
    )?;

    let listed: Vec<_> = scan
        .kernels
        .iter()
        .filter(|kernel| detail.kernels || (kernel.used && kernel.verdict != Verdict::Portable))
        .collect();
    if !listed.is_empty() {
        writeln!(out)?;
        let mut rows = vec![["kernel", "verdict", "rules", "place"].map(String::from)];
        for kernel in listed {
            rows.push([
                kernel.kernel.clone(),
                words(kernel),
                rules(scan, kernel).join(" "),
                format!("{}:{}", kernel.place.file, kernel.place.line),
            ]);
        }
        table(&rows, out)?;
    }
    findings(scan, detail, out)?;
    for build in &scan.project.builds {
        let defines = build
            .conditional
            .iter()
            .filter(|(_, option)| option.starts_with("-D") || option.starts_with("-I"));
        for (condition, option) in defines {
            writeln!(out, "{} passes {option} if {condition}", build.place.file)?;
        }
    }
    Ok(())
}

/// Findings by rule, the worst first.
fn findings(scan: &Scan, detail: Detail, out: &mut String) -> std::fmt::Result {
    let mut by_rule: BTreeMap<(std::cmp::Reverse<Severity>, &str), Vec<&Finding>> = BTreeMap::new();
    for finding in &scan.findings {
        by_rule
            .entry((std::cmp::Reverse(finding.severity), &finding.rule))
            .or_default()
            .push(finding);
    }
    if by_rule.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let place = |finding: &Finding| format!("{}:{}", finding.place.file, finding.place.line);
    let mut rows = vec![["rule", "severity", "times", "what", "first place"].map(String::from)];
    for ((std::cmp::Reverse(severity), rule), found) in &by_rule {
        rows.push([
            rule.to_string(),
            word(*severity).to_string(),
            found.len().to_string(),
            Rule::find(rule).map_or("", |rule| rule.title).to_string(),
            place(found[0]),
        ]);
    }
    table(&rows, out)?;
    for finding in &scan.findings {
        // What somebody has to write is said in full.
        if detail.findings || finding.severity == Severity::Error {
            writeln!(
                out,
                "{}:{}: {} {}: {}{}",
                place(finding),
                finding.place.column,
                word(finding.severity),
                finding.rule,
                finding.message,
                match finding.function.is_empty() {
                    true => String::new(),
                    false => format!(" (in {})", finding.function),
                }
            )?;
        }
    }
    writeln!(
        out,
        "`rocm-port scan --explain RULE` says what a rule means"
    )
}

/// A severity in a word.
pub(super) fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Edit => "edit",
        Severity::Error => "error",
    }
}

/// Columns of the width of their widest cell; numbers to the right.
fn table<const N: usize>(rows: &[[String; N]], out: &mut String) -> std::fmt::Result {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let number = !cell.is_empty() && cell.chars().all(|c| c.is_ascii_digit());
            match number {
                true => write!(line, "{cell:>width$}  ")?,
                false => write!(line, "{cell:<width$}  ")?,
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
