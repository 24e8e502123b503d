//! A good machine: the simulator as each generation.

mod common;

use common::{codes, run, section, Rocm};
use doctor::report::{Outcome, Report, Severity};

/// All sections but those that compile everything.
const QUICK: &str = "system,copies,memory,overlap,speed";

#[test]
fn nothing_is_wrong_with_a_good_gpu() {
    let rocm = Rocm::install();
    for arch in ["gfx942", "gfx1100", "gfx1201", "gfx1151"] {
        let (run, report) = rocm.examine(arch, &[], &["--only", QUICK]);
        assert_eq!(run.code, Some(0), "{arch}: {}\n{}", run.out, run.err);
        assert_eq!(codes(&report, Severity::Error), [""; 0], "{arch}");
        assert_eq!(report.sections.len(), 5);
        for section in &report.sections {
            assert_eq!(section.outcome, Outcome::Finished, "{section:#?}");
        }
        for name in ["copies", "memory", "overlap", "speed"] {
            let section = section(&report, name);
            assert_eq!(section.device.as_deref(), Some("rocm:0"));
            assert!(!section.measurements.is_empty(), "{name}");
        }
        let facts = section(&report, "system").facts.as_ref().unwrap();
        assert_eq!(facts["devices"]["gpus"][0]["arch"], arch);
    }
}

#[test]
fn two_gpus_are_looked_at_and_the_way_between_them() {
    let rocm = Rocm::install();
    let (run, report) = rocm.examine("gfx942,gfx1100", &[], &["--only", "copies"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let devices: Vec<_> = report
        .sections
        .iter()
        .map(|s| s.device.as_deref().unwrap())
        .collect();
    assert_eq!(devices, ["rocm:0", "rocm:1"]);
    let measured = |name: &str| {
        let measurements = &report.sections[0].measurements;
        measurements
            .iter()
            .any(|m| m.name.starts_with(name) && m.value > 0.0)
    };
    assert!(
        measured("rocm:0 to rocm:1") && measured("rocm:1 to rocm:0"),
        "{report:#?}"
    );
    let (_, one) = rocm.examine(
        "gfx942,gfx1100",
        &[],
        &["--only", "memory", "--device", "rocm:1"],
    );
    assert_eq!(one.sections.len(), 1);
    assert_eq!(one.sections[0].device.as_deref(), Some("rocm:1"));
}

#[test]
fn text_report_and_file_tell_the_same() {
    let rocm = Rocm::install();
    let file = rocm.path().join("report.json");
    let args = [
        "--small",
        "--only",
        "memory",
        "--report",
        file.to_str().unwrap(),
    ];
    let run = run(&mut rocm.command("gfx1100", &args));
    assert_eq!(run.code, Some(0), "{}", run.err);
    for said in [
        "== memory on rocm:0: good",
        "Good: nothing wrong",
        "report.json",
    ] {
        assert!(run.out.contains(said), "{}", run.out);
    }
    let report: Report = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(report.verdict.severity, Severity::Info);
    assert!(run.out.contains(&report.verdict.text));
    assert!(report.options.small && !report.options.quick);
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let rocm = Rocm::install();
    for (args, said) in [
        (
            &["--only", "copies,brain"][..],
            "there is no section brain; the sections are system",
        ),
        (&["--device", "cpu"][..], "the doctor looks at GPUs"),
        (&["--soak", "1fortnight"][..], "90s, 30m or 1h"),
        (&["--memory", "100"][..], "100"),
    ] {
        let run = run(&mut rocm.command("gfx942", args));
        assert_eq!(run.code, Some(2), "{said}: {}", run.err);
        assert!(run.err.contains(said), "{}", run.err);
    }
    let absent = run(&mut rocm.command(
        "gfx942",
        &["--small", "--only", "memory", "--device", "rocm:7"],
    ));
    assert_eq!(absent.code, Some(1));
    assert!(
        absent.out.contains("there is no GPU rocm:7; HIP shows 1"),
        "{}",
        absent.out
    );
}

#[test]
fn kernels_compile_and_load_as_far_as_there_is_time() {
    let rocm = Rocm::install();
    let (run, report) = rocm.examine("gfx1100", &[], &["--only", "kernels"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let kernels = section(&report, "kernels");
    let note = kernels.notes[0].as_str();
    let (loaded, rest) = note.split_once(" of ").unwrap();
    let (count, _) = rest.split_once(" kernels in ").unwrap();
    assert_eq!(loaded, count, "{kernels:#?}");
}

#[test]
fn a_machine_without_a_gpu_or_without_rocm_is_told_what_to_do() {
    let rocm = Rocm::install();
    let (run, report) = rocm.examine("gfx942", &[("HIP_SIM_DEVICES", "0")], &[]);
    assert_eq!(run.code, Some(1));
    assert!(codes(&report, Severity::Error).contains(&"system.no_gpu".to_string()));
    assert_eq!(section(&report, "copies").outcome, Outcome::Skipped);
    // A library that is none decides, whatever else the machine has.
    for library in ["libamdhip64.so.7", "libhiprtc.so.7"] {
        let path = rocm.path().join("lib").join(library);
        std::fs::remove_file(&path).unwrap();
        let built = std::process::Command::new("cc")
            .args(["-shared", "-x", "c", "/dev/null", "-o"])
            .arg(&path)
            .status()
            .unwrap();
        assert!(built.success());
    }
    let (run, report) = rocm.examine("gfx942", &[], &["--only", "memory"]);
    assert_eq!(run.code, Some(1));
    let errors = codes(&report, Severity::Error);
    assert!(errors.contains(&"system.no_rocm".to_string()), "{errors:?}");
    assert!(report
        .verdict
        .actions
        .iter()
        .any(|action| action.contains("ROCM_PATH")));
}
