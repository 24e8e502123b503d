//! Choosing and showing devices, with hip-sim in place of ROCm.

#[path = "../../../worker/tests/common/mod.rs"]
mod common;
mod several;

use common::tiny_llama;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// A ROCm installation made of the simulator, and a place for models.
struct Rocm {
    folder: tempfile::TempDir,
}

impl Rocm {
    fn install() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = hip_sim::install::find_library(&std::env::current_exe().unwrap()).unwrap();
        hip_sim::install::install(&library, folder.path()).unwrap();
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self, devices: &str, args: &[&str]) -> Output {
        self.command(&[("HIP_SIM_DEVICES", devices)], args)
            .output()
            .unwrap()
    }

    /// The program on a simulator that is set like that.
    fn command(&self, simulator: &[(&str, &str)], args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"));
        command
            .env("ROCM_PATH", self.path())
            .env_remove("HIP_PATH")
            .envs(simulator.iter().copied())
            .args(args);
        command
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

#[test]
fn rocm_without_a_gpu_is_told_and_no_failure() {
    let rocm = Rocm::install();
    let output = rocm.run("0", &["devices"]);
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    assert!(
        shown
            .lines()
            .any(|line| line.contains("ROCm found, no GPU")),
        "{shown}"
    );
    let output = rocm.run("0", &["devices", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["status"], "no_gpu");
}

#[test]
fn several_gpus_are_listed_by_ordinal() {
    let rocm = Rocm::install();
    let output = rocm.run("3", &["devices", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["status"], "ready");
    let gpus = json["gpus"].as_array().unwrap();
    let names: Vec<_> = gpus
        .iter()
        .map(|gpu| gpu["device"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["rocm:0", "rocm:1", "rocm:2"]);
    assert_eq!(gpus[0]["verified"]["switched_off"], serde_json::json!([]));
    let shown = text(&rocm.run("3", &["devices"]).stdout);
    assert!(
        shown.contains("rocm:2") && shown.contains("3 AMD GPUs ready"),
        "{shown}"
    );
}

#[test]
fn a_library_that_lacks_a_symbol_is_named_and_the_others_are_used() {
    let rocm = Rocm::install();
    let runtime = rocm.path().join("lib/libamdhip64.so.7");
    std::fs::remove_file(&runtime).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-x", "c", "/dev/null", "-o"])
        .arg(&runtime)
        .status()
        .unwrap();
    assert!(built.success());
    let output = rocm.run("1", &["devices", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let library = |name: &str| {
        let libraries = json["libraries"].as_array().unwrap();
        libraries
            .iter()
            .find(|l| l["name"] == name)
            .unwrap()
            .clone()
    };
    let problem = library("libamdhip64")["problem"]
        .as_str()
        .unwrap()
        .to_string();
    assert!(problem.contains("lacks the function hip"), "{problem}");
    assert!(library("libhiprtc")["path"].is_string());
}

#[test]
fn a_gpu_answers_as_the_cpu_does_and_an_absent_one_is_an_error() {
    let rocm = Rocm::install();
    let path = rocm.path().join("tiny.gguf");
    tiny_llama().write(&path);
    let generate = |device: &str| {
        let model = path.to_str().unwrap();
        let args = [
            "generate", "the cat", "--greedy", "-n", "16", "--json", "--device", device, "--model",
            model,
        ];
        rocm.run("1", &args)
    };
    let answer = |device: &str| -> Value {
        let output = generate(device);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{device}: {}",
            text(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (cpu, auto) = (answer("cpu"), answer("auto"));
    assert_eq!(cpu["device"]["name"], "cpu");
    assert_eq!(auto["device"]["name"], "rocm:0");
    assert_eq!(auto["device"]["fallback"], Value::Null);
    assert_eq!(auto["tokens"], cpu["tokens"]);
    let absent = generate("rocm:5");
    assert_eq!(absent.status.code(), Some(1));
    let error = text(&absent.stderr);
    assert!(
        error.contains("rocm:5") && error.contains("no device 5"),
        "{error}"
    );
}

#[test]
fn a_model_needs_no_rocblas_and_its_user_is_told() {
    let rocm = Rocm::install();
    let path = rocm.path().join("tiny.gguf");
    tiny_llama().write(&path);
    let model = path.to_str().unwrap();
    let generate = |device: &str| {
        let args = [
            "generate", "the cat", "--greedy", "-n", "16", "--json", "--device", device, "--model",
            model,
        ];
        let output = rocm.run("1", &args);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        (answer["tokens"].clone(), text(&output.stderr))
    };
    let told = "this program's own kernels";
    let (tokens, log) = generate("rocm:0");
    assert!(!log.contains(told), "{log}");
    let library = rocm.path().join("lib/rocblas/library");
    // Without its files for the GPU, and without it.
    std::fs::remove_dir_all(&library).unwrap();
    for missing in ["TensileLibrary", "librocblas was not found"] {
        let (answer, log) = generate("rocm:0");
        assert_eq!(answer, tokens);
        assert_eq!(log.matches(told).count(), 1, "{log}");
        assert!(log.contains(missing), "{log}");
        let shown = text(&rocm.run("1", &["devices"]).stdout);
        assert!(
            shown.contains(told) && shown.contains(missing) && shown.contains("1 AMD GPU ready"),
            "{shown}"
        );
        for name in ["librocblas.so.5", "librocblas.so.4", "librocblas.so"] {
            std::fs::remove_file(rocm.path().join("lib").join(name)).unwrap_or_default();
        }
    }
}

#[test]
fn tune_compares_products_of_floats_as_well() {
    let rocm = Rocm::install();
    let args = ["tune", "--formats", "q8_0", "--shape", "64x256", "--json"];
    let output = rocm.run("1", &args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let floats = json["floats"].as_array().unwrap();
    assert_eq!(floats.len(), 18);
    for line in floats {
        let taken = line["taken"].as_str().unwrap();
        let micros = |who| line[format!("{who}_microseconds")].as_f64().unwrap();
        let faster = match micros("own") < micros("rocblas") {
            true => "own",
            false => "rocblas",
        };
        assert_eq!(taken, faster, "{line}");
    }
}

#[test]
fn tune_says_what_it_cannot_measure() {
    let rocm = Rocm::install();
    for (args, code, said) in [
        (vec!["--device", "cpu"], 2, "GPU; give --device rocm:N"),
        (vec!["--formats", "q4_k,q7_z"], 2, "q7_z is not a format"),
        (vec!["--shape", "64x100"], 2, "a multiple of 256"),
        (vec!["--device", "rocm:7"], 1, "rocm:7 cannot be used"),
    ] {
        let output = rocm.run("1", &[vec!["tune"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{said}");
        let error = text(&output.stderr);
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn known_issues_of_the_release_are_told_with_what_to_do() {
    let rocm = Rocm::install();
    let info = rocm.path().join(".info");
    std::fs::create_dir(&info).unwrap();
    for (release, is_faulty) in [("7.2.2-70", true), ("7.2.4-93", false)] {
        std::fs::write(info.join("version"), release).unwrap();
        let devices = |args: &[&str]| {
            let output = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"))
                .env("ROCM_PATH", rocm.path())
                .env_remove("HIP_PATH")
                .env("HIP_SIM_ARCH", "gfx942")
                .args(args)
                .output()
                .unwrap();
            text(&output.stdout)
        };
        let json: Value = serde_json::from_str(&devices(&["devices", "--json"])).unwrap();
        assert_eq!(json["installed"]["rocm"], release[..5]);
        let warnings = json["gpus"][0]["warnings"].as_array().unwrap();
        let graphs = warnings
            .iter()
            .find(|warning| warning["id"] == "graphs-give-wrong-results");
        assert_eq!(graphs.is_some(), is_faulty, "{warnings:?}");
        let shown = devices(&["devices"]);
        assert_eq!(shown.contains("clr/issues/279"), is_faulty, "{shown}");
        assert!(
            shown.contains(&format!("ROCm {}", &release[..5])),
            "{shown}"
        );
        if let Some(warning) = graphs {
            assert_eq!(warning["graphs_off"], true);
            assert_eq!(warning["installed"], "7.2.2");
        }
    }
}
