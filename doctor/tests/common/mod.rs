//! The program on a ROCm made of the simulator.

#![allow(dead_code)] // each test program uses its own part

use doctor::report::{Finding, Report, SectionReport, Severity};
use std::path::Path;
use std::process::{Command, Output};

/// A ROCm installation made of the simulator.
pub struct Rocm {
    folder: tempfile::TempDir,
}

/// What a run of the program gave.
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Rocm {
    pub fn install() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = hip_sim::install::find_library(&std::env::current_exe().unwrap()).unwrap();
        hip_sim::install::install(&library, folder.path()).unwrap();
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn command(&self, arch: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rocm-doctor"));
        command
            .env("ROCM_PATH", self.path())
            .env_remove("HIP_PATH")
            .env("HIP_SIM_ARCH", arch)
            .args(args);
        if std::env::var_os("CANDLE_ROCM_CACHE_DIR").is_none() {
            command.env("CANDLE_ROCM_CACHE_DIR", self.path().join("kernels"));
        }
        command
    }

    /// Runs the program in tiny sizes with `--json`, as some arch with something wrong.
    pub fn examine(&self, arch: &str, variables: &[(&str, &str)], args: &[&str]) -> (Run, Report) {
        let args = [&["--small", "--json"], args].concat();
        let run = run(self.command(arch, &args).envs(variables.iter().copied()));
        let report = serde_json::from_str(&run.out)
            .unwrap_or_else(|error| panic!("{error}\n{}\n{}", run.out, run.err));
        (run, report)
    }
}

pub fn run(command: &mut Command) -> Run {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Run {
        code: status.code(),
        out: text(stdout),
        err: text(stderr),
    }
}

/// The findings of a severity, by code.
pub fn codes(report: &Report, severity: Severity) -> Vec<String> {
    findings(report)
        .filter(|finding| finding.severity == severity)
        .map(|finding| finding.code.clone())
        .collect()
}

pub fn findings(report: &Report) -> impl Iterator<Item = &Finding> {
    report.sections.iter().flat_map(|section| &section.findings)
}

pub fn section<'a>(report: &'a Report, name: &str) -> &'a SectionReport {
    let found = report.sections.iter().find(|section| section.name == name);
    found.unwrap_or_else(|| panic!("no section {name} in {report:#?}"))
}
