//! PORTING.md: what was done, what is left, and how the result is used.

use super::Report;
use std::fmt::Write;

/// The text of PORTING.md.
pub(super) fn notes(report: &Report) -> String {
    let mut text = format!(
        "# {} on AMD GPUs\n\nWritten by `rocm-port port`. Without the feature `rocm` the crate is what it was;\n\
         `rocm-port port {} --verify .` checks that.\n\n    cargo test --no-default-features --features rocm\n\n",
        report.package, report.source,
    );
    section(&mut text, "What is to be done by hand", &report.open);
    if report.open.is_empty() {
        text.push_str("Nothing is left to be done by hand that the tool knows of.\n\n");
    }
    if !report.mapped.is_empty() {
        text.push_str("## Kernels whose place candle-rocm's own take\n\n| Kernel | Call | Example |\n|---|---|---|\n");
        for mapped in &report.mapped {
            let _ = writeln!(
                text,
                "| `{}` | `{}` | `{}` |",
                mapped.kernel, mapped.to, mapped.example
            );
        }
        text.push('\n');
    }
    if !report.units.is_empty() {
        text.push_str("## Units\n\n| Unit | From | Kernels | Launchers | Host functions without one |\n|---|---|---|---|---|\n");
        for unit in &report.units {
            let _ = writeln!(
                text,
                "| src/rocm/{}.hip | {} | {} | {} | {} |",
                unit.name,
                unit.file,
                unit.kernels,
                unit.launchers.len(),
                unit.refused.len(),
            );
        }
        text.push_str(
            "\nLaunchers are in the `.rs` file of the same name: `ffi` declarations became uses of them. Each kernel has a\n\
             function besides, to which the caller says grid and block. `rocm-port check src/rocm/*.json` compiles the units\n\
             for every arch and runs them on the simulator.\n\n",
        );
    }
    section(&mut text, "Changes beside the code", &report.notes);
    text
}

fn section(text: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = write!(text, "## {title}\n\n");
    for line in lines {
        let _ = writeln!(
            text,
            "* {}",
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        );
    }
    text.push('\n');
}
