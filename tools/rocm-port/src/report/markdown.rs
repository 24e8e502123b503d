//! The report as a page.

use super::{by_file, rules, title, words, Sums};
use crate::model::{Scan, Verdict};
use crate::rules::Rule;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The page of the rules, from a folder beside it.
const PAGE: &str = "rules.md";

pub(super) fn write(scan: &Scan) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = body(scan, &mut out);
    out
}

fn body(scan: &Scan, out: &mut String) -> std::fmt::Result {
    let sums = Sums::of(&scan.kernels);
    writeln!(out, "# {}\n", plain(&title(scan)))?;
    writeln!(
        out,
        "{:.1} % of the kernels that are used go over by themselves.\n",
        sums.percent()
    )?;
    writeln!(
        out,
        "| File | Kernels | Portable | With edits | Mapped | By hand | Not used |"
    )?;
    writeln!(out, "|---|---:|---:|---:|---:|---:|---:|")?;
    let mut row = |name: String, sums: Sums| {
        writeln!(
            out,
            "| {name} | {} | {} | {} | {} | {} | {} |",
            sums.kernels, sums.portable, sums.with_edits, sums.mapped, sums.by_hand, sums.unused
        )
    };
    for (file, kernels) in by_file(scan) {
        row(format!("`{}`", plain(file)), Sums::of(kernels))?;
    }
    row("all".into(), sums)?;
    let listed: Vec<_> = scan
        .kernels
        .iter()
        .filter(|kernel| kernel.used && kernel.verdict != Verdict::Portable)
        .collect();
    if !listed.is_empty() {
        writeln!(out, "\n| Kernel | Verdict | Rules |\n|---|---|---|")?;
        for kernel in listed {
            let rules: Vec<String> = rules(scan, kernel).iter().map(|rule| link(rule)).collect();
            writeln!(
                out,
                "| `{}` | {} | {} |",
                plain(&kernel.kernel),
                plain(&words(kernel)),
                rules.join(" ")
            )?;
        }
    }
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in &scan.findings {
        *times.entry(&finding.rule).or_default() += 1;
    }
    if !times.is_empty() {
        writeln!(out, "\n| Rule | What | Times |\n|---|---|---:|")?;
        for (rule, times) in times {
            let what = Rule::find(rule).map_or("", |rule| rule.title);
            writeln!(out, "| {} | {what} | {times} |", link(rule))?;
        }
    }
    Ok(())
}

fn link(rule: &str) -> String {
    format!("[{rule}]({PAGE}#{})", rule.to_ascii_lowercase())
}

/// Text that cannot end a cell.
fn plain(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r', '`'], " ")
}
