//! Sections that end their process, hang, or fail: each is a finding, and the report is whole.
//!
//! This program is its own child: the test `child` is what the doctor starts again.

use clap::Parser;
use doctor::report::{Outcome, Report, Severity};
use doctor::{Check, DoctorArgs, Failure, Options, Scope, Section};
use std::time::Duration;

/// A section that ends in its own way.
struct Odd {
    name: &'static str,
    end: fn(&Check) -> Result<(), Failure>,
}

impl Section for Odd {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        "ends in its own way"
    }

    fn scope(&self) -> Scope {
        Scope::Machine
    }

    fn limit(&self, _: &Options) -> Duration {
        Duration::from_secs(2)
    }

    fn run(&self, check: &Check) -> Result<(), Failure> {
        check.note("it was begun");
        check.progress("the third step");
        (self.end)(check)
    }
}

const ABORT: Odd = Odd {
    name: "abort",
    end: |_| {
        eprintln!("Memory access fault by GPU node-1");
        std::process::abort()
    },
};
const EXIT: Odd = Odd {
    name: "exit",
    end: |_| std::process::exit(7),
};
const HANG: Odd = Odd {
    name: "hang",
    end: |_| loop {
        std::thread::sleep(Duration::from_secs(1));
    },
};
const FAIL: Odd = Odd {
    name: "fail",
    end: |_| Err("no such thing".into()),
};
const PANIC: Odd = Odd {
    name: "panic",
    end: |_| panic!("what nobody thought of"),
};
const GOOD: Odd = Odd {
    name: "good",
    end: |check| {
        print!("a library's line without an end ");
        check.info("told", "all is well", "");
        Ok(())
    },
};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    doctor: DoctorArgs,
}

fn run(args: &[&str]) -> worker::Result<()> {
    let sections: [&dyn Section; 6] = [&ABORT, &EXIT, &HANG, &FAIL, &PANIC, &GOOD];
    let cli = Cli::parse_from([&["doctor"], args].concat());
    // How this test program is told to run one of its tests.
    let again = ["child", "--exact", "--nocapture", "--"];
    cli.doctor.run(&again, &sections)
}

/// What the doctor starts again; nothing to do where it did not.
#[test]
fn child() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == "--child") {
        run(&["--child", &args[at + 1]]).unwrap();
    }
}

#[test]
fn every_end_of_a_process_is_a_finding_and_the_report_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let all = "abort,exit,hang,fail,panic,good";
    let result = run(&["--only", all, "--report", file.to_str().unwrap()]);
    assert_eq!(result.unwrap_err().exit_code(), 1);
    let report: Report = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let section = |name: &str| {
        report
            .sections
            .iter()
            .find(|section| section.name == name)
            .unwrap()
    };
    for (name, outcome, code, said) in [
        (
            "abort",
            Outcome::Died,
            "abort.died",
            "ended by SIGABRT, while at this: the third step",
        ),
        ("exit", Outcome::Died, "exit.died", "exit code 7"),
        (
            "hang",
            Outcome::TimedOut,
            "hang.hang",
            "within 2 s, while at this: the third step",
        ),
        ("fail", Outcome::Finished, "fail.failed", "no such thing"),
        (
            "panic",
            Outcome::Finished,
            "panic.failed",
            "what nobody thought of",
        ),
    ] {
        let section = section(name);
        assert_eq!(section.outcome, outcome, "{section:#?}");
        assert_eq!(section.notes, ["it was begun"]);
        let finding = section.findings.last().unwrap();
        assert_eq!(
            (finding.severity, finding.code.as_str()),
            (Severity::Error, code)
        );
        assert!(finding.text.contains(said), "{}", finding.text);
    }
    let last_words = &section("abort").findings[0].text;
    assert!(
        last_words.contains("Memory access fault by GPU node-1"),
        "{last_words}"
    );
    let good = section("good");
    assert_eq!(
        (good.outcome, good.worst()),
        (Outcome::Finished, Some(Severity::Info))
    );
    assert!(
        report.verdict.text.contains("5 errors"),
        "{}",
        report.verdict.text
    );
}
