//! The program: exit status, outputs, files.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const UNIT: &str = r#"
extern "C" __global__ void twice(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = FACTOR * x[i];
}
"#;

const CASES: &str = r#"
[[case]]
kernel = "twice"
sizes = { n = [1, 100] }
grid = "ceil(n / 64)"
block = 64

[[case.argument]]
name = "x"
input = "f32"
length = "n"
fill = { uniform = [-1.0, 1.0] }

[[case.argument]]
name = "y"
output = "f32"
length = "n"

[[case.argument]]
name = "n"
scalar = "i32"
value = "n"
"#;

/// A folder with a unit and its cases.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.write("unit.hip", UNIT);
        folder.write("cases.toml", CASES);
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    /// `check UNIT …` in the folder, on the simulator only: status, stdout and stderr.
    fn check_unit(&self, unit: &str, more: &[&str]) -> (Option<i32>, String, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new(env!("CARGO_BIN_EXE_rocm-port"))
            .args(["check", unit, "--compile", "none", "--seeds", "1"])
            .args(more)
            .current_dir(self.path())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (status.code(), text(stdout), text(stderr))
    }

    fn check(&self, more: &[&str]) -> (Option<i32>, String, String) {
        self.check_unit("unit.hip", more)
    }
}

#[test]
fn the_status_tells_how_it_went() {
    let folder = Folder::new();
    let (status, out, _) = folder.check(&["--cases", "cases.toml", "--options", "-DFACTOR=2.0f"]);
    assert_eq!(status, Some(0), "{out}");
    assert!(
        out.contains("4 launches on gfx1100, gfx942") && out.contains("nothing is wrong"),
        "{out}"
    );
    // Without its option it does not compile.
    let (status, out, _) = folder.check(&["--cases", "cases.toml", "--json"]);
    assert_eq!(status, Some(1), "{out}");
    let reports: serde_json::Value = serde_json::from_str(&out).unwrap();
    let finding = &reports[0]["findings"][0];
    assert_eq!(
        (&finding["kind"], &finding["line"]),
        (&"compile".into(), &4.into()),
        "{out}"
    );
    let options = [
        "--cases",
        "cases.toml",
        "--options",
        "-DFACTOR=2.0f",
        "--markdown",
    ];
    let (status, out, _) = folder.check(&options);
    assert!(status == Some(0) && out.contains("| `twice` |"), "{out}");
}

#[test]
fn what_cannot_be_done_is_told() {
    let folder = Folder::new();
    folder.write("broken.toml", "[[case]]\nkernel = ");
    folder.write("other.toml", &CASES.replace("twice", "thrice"));
    folder.write("unit.json", "{\"name\": 3}");
    for (unit, more, why) in [
        (
            "unit.hip",
            &["--cases", "broken.toml"][..],
            "broken.toml: TOML parse error at line 2",
        ),
        (
            "unit.hip",
            &["--cases", "none.toml"],
            "none.toml: No such file",
        ),
        (
            "unit.hip",
            &["--cases", "cases.toml", "--arch", "gfx1"],
            "there is no arch \"gfx1\"",
        ),
        (
            "unit.hip",
            &["--cases", "cases.toml", "--limit=-1"],
            "--limit -1",
        ),
        ("unit.json", &[], "it is no ported unit"),
        ("nothing.hip", &["--new-cases"], "nothing.hip: no such file"),
    ] {
        let (status, _, error) = folder.check_unit(unit, more);
        assert_eq!(status, Some(2), "{more:?}: {error}");
        assert!(error.contains(why), "{more:?}: {error}");
    }
    // A kernel that the unit does not have is a finding of the case.
    let (status, out, _) = folder.check(&["--cases", "other.toml", "--options", "-DFACTOR=2.0f"]);
    assert!(status == Some(1) && out.contains("kernel thrice"), "{out}");
    let output = "output = \"f32\"\nlength = \"n\"";
    folder.write(
        "npy.toml",
        &CASES.replace(
            output,
            &format!("{output}\nexpected = {{ npy = \"y.npy\" }}"),
        ),
    );
    folder.write("y.npy", "this is no file of numpy");
    let (status, out, _) = folder.check(&["--cases", "npy.toml", "--options", "-DFACTOR=2.0f"]);
    assert!(status == Some(1) && out.contains("y.npy"), "{out}");
    let files = rocm_port::check::case_files(&folder.path().join("npy.toml")).unwrap();
    assert_eq!(files, [folder.path().join("y.npy")]);
}

#[test]
fn outputs_are_recorded_and_compared() {
    let folder = Folder::new();
    let common = ["--cases", "cases.toml", "--options", "-DFACTOR=2.0f"];
    let (status, out, _) = folder.check(&[&common[..], &["--record", "golden"]].concat());
    assert_eq!(status, Some(0), "{out}");
    assert!(folder.path().join("golden/twice/n=100/y.npy").is_file());
    let (status, out, _) = folder.check(&[&common[..], &["--golden", "golden"]].concat());
    assert_eq!(status, Some(0), "{out}");
    let other = [
        "--cases",
        "cases.toml",
        "--options",
        "-DFACTOR=2.5f",
        "--golden",
        "golden",
    ];
    let (status, out, _) = folder.check(&other);
    assert!(
        status == Some(1) && out.contains("golden") && out.contains("recorded is"),
        "{out}"
    );
    let (status, out, _) = folder.check(&[&common[..], &["--golden", "nowhere"]].concat());
    assert!(status == Some(1) && out.contains("No such file"), "{out}");
    // Files that cannot be written.
    folder.write("file", "");
    let (status, _, error) = folder.check(&[&common[..], &["--record", "file"]].concat());
    assert!(
        status == Some(2) && error.contains("cannot record"),
        "{error}"
    );
}

/// `--on rocm` with the simulator as ROCm: what a real one is asked is the same.
#[test]
fn kernels_run_on_the_rocm_of_rocm_path() {
    let folder = Folder::new();
    let library = hip_sim::install::find_library(&std::env::current_exe().unwrap()).unwrap();
    hip_sim::install::install(&library, &folder.path().join("rocm")).unwrap();
    let run = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_rocm-port"))
            .args([
                "check",
                "unit.hip",
                "--cases",
                "cases.toml",
                "--compile",
                "none",
                "--on",
                "rocm",
            ])
            .args(more)
            .current_dir(folder.path())
            .env("ROCM_PATH", folder.path().join("rocm"))
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (status, out) = run(&["--options", "-DFACTOR=2.0f", "--record", "golden"]);
    assert!(
        status == Some(0) && out.contains("4 launches on GPU"),
        "{out}"
    );
    // What was recorded there is what the simulator gives in both widths.
    let golden = [
        "--cases",
        "cases.toml",
        "--options",
        "-DFACTOR=2.0f",
        "--golden",
        "golden",
    ];
    assert_eq!(folder.check(&golden).0, Some(0));
    // Guards around buffers tell of stores beside them.
    folder.write(
        "unit.hip",
        &UNIT
            .replace("if (i < n)", "if (i <= n)")
            .replace("x[i]", "x[0]"),
    );
    let (status, out) = run(&["--options", "-DFACTOR=2.0f"]);
    assert!(status == Some(1) && out.contains("out_of_bounds"), "{out}");
}

#[test]
fn without_compilers_for_gpus_that_is_said() {
    let folder = Folder::new();
    let empty = folder.path().join("empty");
    let output = Command::new(env!("CARGO_BIN_EXE_rocm-port"))
        .args([
            "check",
            "unit.hip",
            "--cases",
            "cases.toml",
            "--compile",
            "gfx942",
            "--seeds",
            "1",
        ])
        .args(["--options", "-DFACTOR=2.0f"])
        .current_dir(folder.path())
        .env("CANDLE_ROCM_CLANG", empty.join("clang"))
        .env("ROCM_PATH", &empty)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}");
    assert!(
        out.contains("note: not compiled for AMD GPUs, only by the simulator's C++ compiler"),
        "{out}"
    );
}

/// A `.cu` file is ported, and its warps have 32 lanes in waves of 64.
#[test]
fn a_cuda_file_is_ported_and_checked() {
    let folder = Folder::new();
    folder.write(
        "sum.cu",
        r#"
#include <cuda_fp16.h>
template <typename T> __device__ T warp_sum(T v) {
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
}
template <typename T> __global__ void row_sum(const T *x, T *y, int columns) {
    T sum = 0;
    for (int i = threadIdx.x; i < columns; i += 32) sum += x[blockIdx.x * columns + i];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
void launch(const float *x, float *y, int rows, int columns) { row_sum<float><<<rows, 32>>>(x, y, columns); }
"#,
    );
    let (status, out, error) = folder.check_unit("sum.cu", &["--new-cases"]);
    assert_eq!(status, Some(0), "{error}");
    assert!(
        out.contains("input = \"f32\"") && out.contains("name = \"columns\""),
        "{out}"
    );
    // What the template guesses is put right.
    let entry = out
        .lines()
        .find_map(|line| line.strip_prefix("kernel = "))
        .unwrap()
        .trim_matches('"');
    let cases = out
        .replace(
            "sizes = { n = [1, 31, 64, 1000] }",
            "sizes = { n = [1, 5], columns = [1, 70] }",
        )
        .replace("grid = \"ceil(n / 256)\"", "grid = \"n\"")
        .replace("block = 256", "block = 32")
        .replace(
            "inout = \"f32\"\nlength = \"n\"",
            "output = \"f32\"\nlength = \"n\"",
        )
        .replace(
            "input = \"f32\"\nlength = \"n\"",
            "input = \"f32\"\nlength = \"n * columns\"",
        )
        .replace(
            "scalar = \"i32\"\nvalue = 1",
            "scalar = \"i32\"\nvalue = \"columns\"",
        );
    let (before, after) = cases.split_once("output = \"f32\"").unwrap();
    let after = after.replacen("fill = { uniform = [-2.0, 2.0] }\n", "", 1);
    folder.write("sum.toml", &format!("{before}output = \"f32\"{after}"));
    let (status, out, error) = folder.check_unit("sum.cu", &["--cases", "sum.toml"]);
    assert_eq!(status, Some(0), "{out}{error}");
    assert!(entry.starts_with("rocm_row_sum"), "{entry}");
    assert!(out.contains("8 launches on gfx1100, gfx942"), "{out}");
}
