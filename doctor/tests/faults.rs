//! Each fault of a GPU that the simulator can have is found, by the section whose matter it is.

mod common;

use common::{codes, findings, Rocm};
use doctor::report::Severity;

/// Runs a section with a fault and returns the errors, by code.
fn errors(rocm: &Rocm, arch: &str, fault: (&str, &str), only: &str) -> Vec<String> {
    let (run, report) = rocm.examine(arch, &[fault], &["--only", only]);
    let errors = codes(&report, Severity::Error);
    let code = if errors.is_empty() { 0 } else { 1 };
    assert_eq!(run.code, Some(code), "{fault:?}: {}", run.err);
    errors
}

#[test]
fn calls_that_fail_are_told_with_hips_own_words() {
    let rocm = Rocm::install();
    for (fault, section) in [
        ("launch:3", "memory"),
        ("lost:40", "copies"),
        ("copy:9", "overlap"),
    ] {
        let found = errors(&rocm, "gfx942", ("HIP_SIM_FAIL", fault), section);
        assert_eq!(found, [format!("{section}.failed")], "{fault}");
    }
}

#[test]
fn a_gpu_that_goes_away_leaves_the_other_sections_their_own_processes() {
    let rocm = Rocm::install();
    let fault = [("HIP_SIM_FAIL", "lost:200")];
    let (_, report) = rocm.examine("gfx1100", &fault, &["--only", "copies,memory,speed"]);
    assert_eq!(report.sections.len(), 3);
    assert!(findings(&report).any(|finding| finding.code == "copies.failed"));
}
