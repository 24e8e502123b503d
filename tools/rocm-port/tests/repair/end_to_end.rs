//! Real kernels with planted faults, checked on the simulator.

use super::command::rocm_port;
use super::server::{Script, Server};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

const KERNEL: &str = r#"
extern "C" __global__ void total(const float *x, float *y, int n) {
    __shared__ float part[64];
    int t = threadIdx.x;
    float v = 0;
    for (int i = t; i < n; i += 64) v += x[i];
    part[t] = v;
    __syncthreads();
    for (int o = 32; o > 0; o >>= 1) {
        if (t < o) part[t] += part[t + o];
        __syncthreads();
    }
    if (t == 0) y[0] = part[0];
}
"#;

/// The sum of as many ones is their number.
const CASES: &str = r#"
[[case]]
kernel = "total"
sizes = { n = [1, 100] }
grid = 1
block = 64

[[case.argument]]
name = "x"
input = "f32"
length = "n"
fill = { constant = 1.0 }

[[case.argument]]
name = "y"
output = "f32"
length = 1
expected = ["n"]

[[case.argument]]
name = "n"
scalar = "i32"
value = "n"
"#;

fn folder(kernel: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("total.hip"), kernel).unwrap();
    std::fs::write(folder.path().join("cases.toml"), CASES).unwrap();
    folder
}

fn repair(folder: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let mut arguments = vec![
        "repair",
        "total.hip",
        "--cases",
        "cases.toml",
        "--compile",
        "none",
        "--seeds",
        "2",
    ];
    arguments.extend(more);
    let Output {
        status,
        stdout,
        stderr,
    } = rocm_port(folder, &arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn diff(removed: &str, added: &str) -> Script {
    Script::Stream(format!(
        "```diff\n--- a/total.hip\n+++ b/total.hip\n@@ -6 +6 @@\n-{removed}\n+{added}\n```"
    ))
}

#[test]
fn an_access_out_of_bounds_is_repaired_by_the_right_answer_after_a_wrong_one() {
    let right = "    for (int i = t; i < n; i += 64) v += x[i];";
    let fault = right.replace("i < n", "i <= n");
    let wrong = right.replace("i < n", "i < n - 1");
    let folder = folder(&KERNEL.replace(right, &fault));
    let at = folder.path();
    let server = Server::start(vec![
        diff(&fault, &wrong),
        diff(&fault, right),
        diff(&wrong, right),
    ]);
    let url = server.url();
    let out = [
        "--endpoint",
        &url,
        "--model",
        "scripted",
        "--json",
        "--price-out",
        "3",
    ];
    let (status, stdout, stderr) = repair(at, &out);
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["repaired"], Value::Bool(true), "{report}");
    assert!(
        server.asked(0).contains("out_of_bounds"),
        "{}",
        server.asked(0)
    );
    let patch = std::fs::read_to_string(at.join("rocm-port-repair/repaired.patch")).unwrap();
    assert!(
        patch.contains("-    for (int i = t; i <= n;")
            && patch.contains("+    for (int i = t; i < n;"),
        "{patch}"
    );
    let log = std::fs::read_to_string(at.join("rocm-port-repair/log.html")).unwrap();
    assert!(log.contains("out_of_bounds") && log.contains("Round 2"));
    // The file itself stays as it is without --write, and a state is not overwritten.
    assert!(std::fs::read_to_string(at.join("total.hip"))
        .unwrap()
        .contains("i <= n"));
    let (status, _, stderr) = repair(at, &["--rules-only"]);
    assert!(status == Some(2) && stderr.contains("--resume"), "{stderr}");
    let (status, stdout, stderr) = repair(at, &["--rules-only", "--resume", "--write"]);
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    assert!(std::fs::read_to_string(at.join("total.hip"))
        .unwrap()
        .contains("i < n"));
}

#[test]
fn rules_find_the_missing_barrier_without_a_model() {
    let broken = KERNEL.replacen("    __syncthreads();\n    for", "    for", 1);
    assert_ne!(broken, KERNEL);
    let folder = folder(&broken);
    let (status, stdout, stderr) = repair(folder.path(), &["--rules-only", "--write"]);
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    assert!(
        stderr.contains("a barrier between writing and reading shared memory: better"),
        "{stderr}"
    );
    assert_eq!(
        std::fs::read_to_string(folder.path().join("total.hip")).unwrap(),
        KERNEL
    );
}

#[test]
fn what_is_left_and_what_cannot_be_done_have_their_own_status() {
    let folder = folder(&KERNEL.replace("i < n", "i <= n"));
    let at = folder.path();
    let (status, stdout, stderr) = repair(at, &["--rules-only"]);
    assert_eq!(status, Some(1), "{stdout}{stderr}");
    assert!(stdout.contains("out_of_bounds"), "{stdout}");
    for (arguments, said) in [
        (
            &["--rules-only", "--out", "b", "--resume"][..],
            "state.json",
        ),
        (
            &["--endpoint", "ftp://x", "--model", "m", "--out", "c"],
            "no http",
        ),
        (
            &[
                "--endpoint",
                "http://127.0.0.1:1",
                "--model",
                "m",
                "--out",
                "d",
                "--api-key-env",
                "NOT_SET_ANYWHERE",
            ],
            "NOT_SET",
        ),
        (
            &[
                "--endpoint",
                "http://127.0.0.1:1",
                "--model",
                "m",
                "--out",
                "e",
                "--max-rounds",
                "1",
            ],
            "--resume",
        ),
        (&["--out", "f"], "--endpoint"),
    ] {
        let (status, _, stderr) = repair(at, arguments);
        assert!(
            status == Some(2) && stderr.contains(said),
            "{arguments:?}: {status:?} {stderr}"
        );
    }
    let missing = rocm_port(
        at,
        &[
            "repair",
            "none.hip",
            "--cases",
            "cases.toml",
            "--rules-only",
        ],
    );
    assert_eq!(missing.status.code(), Some(2));
    let cases = rocm_port(at, &["repair", "total.hip", "--rules-only"]);
    assert_eq!(cases.status.code(), Some(2));
}
