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

/// What is wrong, where it must be found, and as what.
const WRONG: &[(&str, &str, &str)] = &[
    ("copy:h2d", "copies", "copies.h2d"),
    ("copy:d2h", "copies", "copies.d2h"),
    ("copy:d2d", "copies", "copies.d2d"),
    ("copy:h2d", "overlap", "overlap.copy"),
    ("vram:3M", "memory", "memory.pattern"),
    ("kernel:pattern_work", "overlap", "overlap.compute"),
    ("abort:5", "memory", "memory.died"),
    ("blas-abort", "speed", "speed.died"),
];

#[test]
fn each_wrong_result_is_found_by_the_section_whose_matter_it_is() {
    let rocm = Rocm::install();
    for (i, (wrong, section, code)) in WRONG.iter().enumerate() {
        let arch = ["gfx942", "gfx1100", "gfx1201", "gfx1151"][i % 4];
        let found = errors(&rocm, arch, ("HIP_SIM_WRONG", wrong), section);
        assert!(
            found.iter().any(|found| found == code),
            "{wrong} on {arch}: {found:?}"
        );
    }
}

#[test]
fn a_wrong_word_between_two_gpus_is_found() {
    let rocm = Rocm::install();
    let fault = ("HIP_SIM_WRONG", "copy:peer");
    let found = errors(&rocm, "gfx942,gfx942", fault, "copies");
    assert_eq!(found, ["copies.peer"]);
}

#[test]
fn a_stuck_bit_is_named_with_its_place() {
    let rocm = Rocm::install();
    let fault = [("HIP_SIM_WRONG", "vram:3M")];
    let (_, report) = rocm.examine("gfx1100", &fault, &["--only", "memory"]);
    let finding = findings(&report)
        .find(|finding| finding.code == "memory.pattern")
        .unwrap();
    // One word of each pattern that has the bit cleared there; never a bit that is wrongly cleared.
    assert!(
        finding.text.contains("wrongly not set 0x00000000"),
        "{}",
        finding.text
    );
    let byte = finding.text.split("at byte ").nth(1).unwrap();
    let byte: usize = byte.split(' ').next().unwrap().parse().unwrap();
    assert!((1 << 19..3 << 20).contains(&byte), "{}", finding.text);
}

#[test]
fn a_fault_that_ends_the_process_is_told_with_what_was_done_then() {
    let rocm = Rocm::install();
    let (run, report) = rocm.examine(
        "gfx942",
        &[("HIP_SIM_WRONG", "abort:5")],
        &["--only", "memory,speed"],
    );
    assert_eq!(run.code, Some(1));
    let died: Vec<_> = findings(&report)
        .filter(|finding| finding.code.ends_with(".died"))
        .collect();
    assert_eq!(died.len(), 2, "{report:#?}");
    assert!(
        died[0].text.contains("SIGABRT, while at this: "),
        "{}",
        died[0].text
    );
    assert!(died[0].advice.as_ref().unwrap().contains("dmesg"));
}

#[test]
fn a_gpu_that_goes_away_leaves_the_other_sections_their_own_processes() {
    let rocm = Rocm::install();
    let fault = [("HIP_SIM_FAIL", "lost:200")];
    let (_, report) = rocm.examine("gfx1100", &fault, &["--only", "copies,memory,speed"]);
    assert_eq!(report.sections.len(), 3);
    assert!(findings(&report).any(|finding| finding.code == "copies.failed"));
}

/// What makes an operation wrong, which group compares it, and what of the findings names it.
const WRONG_OPERATIONS: &[(&str, &str, &str, &str)] = &[
    ("gfx942", "kernel:neg_f32", "unary", "neg f32"),
    ("gfx1100", "blas:f16", "matmul", "matmul f16"),
    ("gfx942", "miopen:f32", "conv", "conv"),
];

#[test]
fn an_operation_that_is_wrong_is_named() {
    let rocm = Rocm::install();
    for (arch, wrong, group, named) in WRONG_OPERATIONS {
        // Without the product's own verification, which would take another way.
        let fault = [
            ("HIP_SIM_WRONG", *wrong),
            ("CANDLE_ROCM_VERIFY", "off"),
            ("CANDLE_ROCM_MIOPEN", "fast"),
        ];
        let (run, report) = rocm.examine(
            arch,
            &fault,
            &["--only", "operations", "--operations", group],
        );
        assert_eq!(run.code, Some(1), "{wrong}: {}", run.err);
        let found = findings(&report).find(|finding| finding.code == "operations.wrong");
        let found = found.unwrap_or_else(|| panic!("{wrong}: {report:#?}"));
        assert!(found.text.contains(named), "{wrong}: {}", found.text);
    }
}

#[test]
fn what_the_product_has_switched_off_is_told_and_results_are_right() {
    let rocm = Rocm::install();
    // What was found is remembered beside the kernels: not beside those of other tests.
    let own = rocm.path().join("kernels-of-this-test");
    let fault = [
        ("HIP_SIM_WRONG", "flipped-lane"),
        ("CANDLE_ROCM_CACHE_DIR", own.to_str().unwrap()),
    ];
    let args = [
        "--only",
        "operations,verification",
        "--operations",
        "reductions-of-nothing,argmin-and-argmax",
    ];
    let (run, report) = rocm.examine("gfx942", &fault, &args);
    let switched_off: Vec<_> = findings(&report)
        .filter(|finding| finding.code == "verification.switched_off")
        .collect();
    let lanes = |finding: &&doctor::report::Finding| finding.text.starts_with("instructions/lanes");
    assert!(switched_off.iter().any(lanes), "{}", run.out);
    // Another way was taken, and is right.
    assert!(
        !findings(&report).any(|finding| finding.code == "operations.wrong"),
        "{}",
        run.out
    );
}
