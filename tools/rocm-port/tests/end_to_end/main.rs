//! docs/rocm-port/guide.md as it stands: a published crate is ported by its commands, and its own tests and more run on
//! `Device::Rocm`, simulated with waves of 64 and of 32.
//!
//! Nothing of the crate is in this repository: it comes from the registry. The crate is built against the fork, which
//! takes minutes, so the test is ignored unless asked for: `scripts/test downstream` does.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const CRATE: &str = "candle-rotary@0.0.1";
const ARCHS: [&str; 2] = ["gfx942", "gfx1100"];
/// What the crate's own test leaves out: every dtype, both styles, tensors that begin inside of their memory.
const MORE: &str = include_str!("rotary.rs.in");

fn repository() -> PathBuf {
    let folder =
        std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&folder)
        .join("../..")
        .canonicalize()
        .expect("the repository")
}

/// The build folder: the program is in `debug` there.
fn target() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_rocm-port"));
    program
        .ancestors()
        .nth(2)
        .expect("a build folder")
        .to_path_buf()
}

fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn port(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rocm-port"));
    command.arg("port").arg(CRATE).args(arguments);
    command
}

/// hip-sim in place of ROCm.
fn rocm() -> PathBuf {
    if let Some(path) = std::env::var_os("ROCM_PATH") {
        return path.into();
    }
    let folder = target().join("hip-sim");
    let program = target().join("debug/hip-sim");
    assert!(
        program.is_file(),
        "build the simulator first: cargo build -p hip-sim"
    );
    run(Command::new(program).arg("install").arg(&folder));
    folder
}

#[test]
#[ignore = "fetches a crate and builds it against the fork: minutes; scripts/test downstream runs it"]
fn a_published_crate_runs_on_both_widths() {
    let repository = repository();
    let folder = target().join("rocm-port-end-to-end");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("an old copy to go");
    }
    let (out, origin) = (folder.to_string_lossy(), repository.to_string_lossy());
    run(Command::new(env!("CARGO_BIN_EXE_rocm-port")).args(["scan", CRATE]));
    run(Command::new(env!("CARGO_BIN_EXE_rocm-port")).args(["scan", "--explain", "W3"]));
    run(&mut port(&["--out", &out, "--candle-rocm", &origin]));
    run(&mut port(&["--verify", &out]));
    let notes = std::fs::read_to_string(folder.join("PORTING.md")).expect("notes");
    assert!(
        notes.contains("Nothing is left to be done by hand"),
        "{notes}"
    );

    // The guide's line compiles for all archs; one is enough to see that it works.
    let mut check = Command::new(env!("CARGO_BIN_EXE_rocm-port"));
    check.args(["check", "--compile", "gfx942", "src/rocm/rotary.json"]);
    run(check.current_dir(&folder));

    std::fs::write(folder.join("tests/more.rs"), MORE).expect("a test");
    let manifest = folder.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).expect("a manifest");
    let added = "\n[[test]]\nname = \"more\"\npath = \"tests/more.rs\"\n";
    std::fs::write(&manifest, text + added).expect("a manifest");
    // The versions that everything else here is built with.
    std::fs::copy(repository.join("Cargo.lock"), folder.join("Cargo.lock")).expect("a lock file");
    let rocm = rocm();
    for arch in ARCHS {
        let mut command = Command::new("cargo");
        command
            .args([
                "test",
                "--no-default-features",
                "--features",
                "rocm",
                "--target-dir",
            ])
            .arg(target())
            // What is compiled for this test alone is compiled fast, as in tests/downstream.
            .args([
                "--config",
                "profile.dev.opt-level=2",
                "--config",
                "profile.dev.build-override.opt-level=0",
            ])
            .args(["--config", "profile.dev.package.\"*\".debug=false"]);
        for package in ["candle-core", "candle-nn", "candle-rocm"] {
            command
                .arg("--config")
                .arg(format!("profile.dev.package.{package}.opt-level=0"));
        }
        command
            .current_dir(&folder)
            .env("ROCM_PATH", &rocm)
            .env("HIP_SIM_ARCH", arch);
        let output = run(&mut command);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(!log.contains("warning: `candle-rotary`"), "{log}");
        let text = String::from_utf8_lossy(&output.stdout);
        for test in [
            "rotary",
            "every_dtype_and_style",
            "another_dtype_is_an_error",
        ] {
            assert!(
                text.contains(&format!("test {test} ... ok")),
                "{arch}: {text}"
            );
        }
    }
}
