//! The program on the mock, as a user calls it.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// An object of code-object's tests, for gfx1100.
const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../code-object/tests/fixtures/gfx1100.elf"
);

fn kfd() -> Command {
    let mut kfd = Command::new(env!("CARGO_BIN_EXE_kfd"));
    // Kernels are compiled once for all tests.
    kfd.env(
        "CANDLE_ROCM_CACHE_DIR",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/kfd-kernels"),
    );
    kfd
}

struct Run {
    status: i32,
    said: Vec<Value>,
    errors: String,
}

/// Runs it with `--json`.
fn run(arguments: &str) -> Run {
    let output = kfd()
        .arg("--json")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    Run {
        status: output.status.code().unwrap(),
        said: (said.lines())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Run {
    fn events(&self, name: &str) -> Vec<&Value> {
        (self.said.iter())
            .filter(|event| event["event"] == name)
            .collect()
    }

    /// That everything was right.
    fn is_right(&self) -> &Self {
        assert_eq!(self.status, 0, "{:?}\n{}", self.said, self.errors);
        assert_eq!(self.errors, "");
        let end = self.events("end");
        assert_eq!(end.len(), 1);
        assert_eq!(end[0]["wrong"], 0);
        self
    }
}

#[test]
fn info_shows_all_gpus_and_why_one_is_refused() {
    let run = run("info --mock gfx1100,gfx942,gfx900");
    assert_eq!((run.status, &*run.errors), (0, ""));
    assert_eq!(run.events("driver")[0]["gpus"], 3);
    let gpus = run.events("gpu");
    assert_eq!(gpus[0]["arch"], "gfx1100");
    assert!(gpus[0]["refused"].is_null() && gpus[0]["free_bytes"].as_u64().unwrap() > 0);
    assert_eq!(gpus[1]["dies"], 8);
    assert_eq!(gpus[1]["sdma"]["packets"], "V4_4_2");
    assert!(gpus[1]["sdma"]["xgmi_engines"].as_u64().unwrap() > 0);
    assert!(gpus[2]["refused"].as_str().unwrap().contains("gfx900"));
    let text = kfd().args(["info", "--mock", "gfx1201"]).output().unwrap();
    assert!(String::from_utf8(text.stdout)
        .unwrap()
        .contains("GPU 0: gfx1201 at"));
}

#[test]
fn memory_is_tested_with_kernels_and_without() {
    let run = run("memory-test --mock gfx1100 --size 1M --passes 2");
    let tests = run.is_right().events("memory");
    assert_eq!(tests.len(), 2 * (5 * 2 + 2));
    for by in ["kernels", "SDMA"] {
        assert!(tests.iter().any(|test| test["by"] == by));
    }
    assert!(tests
        .iter()
        .all(|test| test["bytes"] == 1 << 20 && test["wrong"].is_null()));
}

#[test]
fn a_wrong_word_of_memory_is_named_with_address_and_bits() {
    let run = run("memory-test --mock gfx942 --size 1M --by sdma --mock-wrong 1");
    assert_eq!(run.status, 1);
    assert!(run.errors.contains("1 wrong"), "{}", run.errors);
    let tests = run.events("memory");
    let wrong = &tests[0]["wrong"];
    assert_eq!(
        (&wrong["words"], &wrong["offset"]),
        (&1.into(), &1232.into())
    );
    let bits = wrong["bits_set"].as_u64().unwrap() | wrong["bits_cleared"].as_u64().unwrap();
    assert_eq!(bits, 0x10 << 16);
    assert_eq!(
        wrong["address"].as_u64().unwrap(),
        tests[0]["address"].as_u64().unwrap() + 1232
    );
    assert!(tests[1..].iter().all(|test| test["wrong"].is_null()));
}

#[test]
fn all_pairs_are_copied_between() {
    let run = run("copy-test --mock gfx1100,gfx1100 --max 4K");
    let copies = run.is_right().events("copy");
    // Eight routes; kernels copy whole words only.
    assert_eq!(copies.len(), 8 * (3 + 2));
    for (from, to) in [(0, 1), (1, 0), (0, 0)] {
        let route = |copy: &&&Value| copy["from"] == from && copy["to"] == to;
        assert_eq!(copies.iter().filter(route).count(), 5);
    }
    assert!(copies
        .iter()
        .all(|copy| copy["gb_per_second"].as_f64().unwrap() > 0.0));
}

#[test]
fn a_wrong_byte_of_a_copy_is_named() {
    // The first copy fills the source.
    let run = run("copy-test --mock gfx1201 --max 4K --by sdma --no-speed --mock-wrong 1");
    assert_eq!(run.status, 1);
    let wrong: Vec<_> = (run.events("copy").into_iter())
        .filter(|copy| !copy["wrong"].is_null())
        .collect();
    assert_eq!(wrong.len(), 1);
    assert_eq!(wrong[0]["bytes"], 13);
    let found = &wrong[0]["wrong"];
    assert_eq!(
        (&found["offset"], &found["bytes"]),
        (&(1234 % 13).into(), &1.into())
    );
    assert_eq!(found["in_copy"], true);
    let [is, should_be] = ["is", "should_be"].map(|key| found[key].as_u64().unwrap());
    assert_eq!(is ^ should_be, 0x10);
}

#[test]
fn computing_and_copying_overlap() {
    let run = run("overlap-test --mock gfx1100 --size 64K --rounds 2");
    let overlap = run.is_right().events("overlap")[0];
    assert_eq!(overlap["first"], "computing");
    assert_eq!(overlap["bytes"], 128 << 10);
    for time in ["first_ms", "second_ms", "both_ms", "ratio"] {
        assert!(overlap[time].as_f64().unwrap() > 0.0, "{time}");
    }
}

#[test]
fn every_scenario_soaks() {
    let run = run("soak --mock gfx1100,gfx90a --seconds 1 --seed 7");
    let rounds = run.is_right().events("rounds");
    assert_eq!(rounds.len(), 2 * 3 + 1);
    for name in [
        "SDMA stress",
        "compute/copy overlap",
        "timeline semaphores",
        "multi-GPU",
    ] {
        let scenario = rounds
            .iter()
            .find(|round| round["scenario"] == name)
            .unwrap();
        assert!(scenario["rounds"].as_u64().unwrap() > 0, "{name}");
    }
}

#[test]
fn what_goes_wrong_in_a_soak_is_told_with_its_seed() {
    let run = run("soak --mock gfx1100 --only sdma --seconds 1 --seed 5 --mock-wrong 3");
    assert_eq!(run.status, 1);
    let wrong = run.events("wrong")[0];
    assert_eq!(
        (&wrong["seed"], &wrong["scenario"]),
        (&5.into(), &"SDMA stress".into())
    );
    assert!(wrong["what"].as_str().unwrap().contains("address 0x"));
}

#[test]
fn an_interrupt_ends_a_soak_cleanly() {
    let mut soak = kfd()
        .args(["soak", "--json", "--mock", "gfx1100", "--seconds", "600"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(soak.stdout.take().unwrap()).lines();
    let begin = lines.next().unwrap().unwrap();
    assert!(begin.contains("\"begin\""), "{begin}");
    let signal = Command::new("kill")
        .args(["-INT", &soak.id().to_string()])
        .status();
    assert!(signal.unwrap().success());
    let last = lines.last().unwrap().unwrap();
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(
        (&last["event"], &last["interrupted"]),
        (&"end".into(), &true.into())
    );
    assert_eq!(soak.wait().unwrap().code(), Some(0));
}

#[test]
fn a_kernel_of_a_file_is_launched() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pattern.co").display().to_string();
    let written = run(&format!("kernels gfx1100 {file}"));
    assert_eq!((written.status, &*written.errors), (0, ""));
    let fill = "--arg out:64:0xffffffff --arg u64:8 --arg u64:5 --arg u32:1 --arg u32:0";
    let launched = run(&format!(
        "launch {file} pattern_fill --mock gfx1100 --block 256 {fill}"
    ));
    assert_eq!((launched.status, &*launched.errors), (0, ""));
    assert_eq!(launched.events("launch")[0]["kernel"], "pattern_fill");
    let output = launched.events("output")[0];
    assert_eq!(output["bytes"], 64);
    let words: Vec<u64> = (output["words"].as_array().unwrap().iter())
        .map(|word| word.as_u64().unwrap())
        .collect();
    assert_eq!(words, [5, 6, 7, 8, 9, 10, 11, 12]);

    let listed = run(&format!("launch {file}"));
    assert_eq!((listed.status, listed.events("kernel").len()), (0, 5));
    for (wrong, status, says) in [
        ("nothing", 2, "has no kernel nothing"),
        ("pattern_fill", 2, "takes 5 arguments"),
        (
            "pattern_fill --arg f32:1 --arg u64:8 --arg u64:5 --arg u32:1 --arg u32:0",
            2,
            "has 8 bytes",
        ),
        ("pattern_copy --arg f16:1", 2, "f16 is none of"),
    ] {
        let run = run(&format!("launch --mock gfx1100 {file} {wrong}"));
        assert_eq!(run.status, status, "{wrong}");
        assert!(run.errors.contains(says), "{wrong}: {}", run.errors);
    }
    // Blocks of more threads than the kernel takes, and a GPU that it is not for.
    let run_with = |more: &str| run(&format!("launch {file} pattern_fill {fill} {more}"));
    let large = run_with("--mock gfx1100 --block 512");
    assert!(
        large.status == 1 && large.errors.contains("512x1x1"),
        "{}",
        large.errors
    );
    let other = run_with("--mock gfx1201 --block 64");
    assert!(
        other.status == 1 && other.errors.contains("gfx1201"),
        "{}",
        other.errors
    );
}

#[test]
fn kernels_are_taken_from_a_file_where_there_is_no_compiler() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernels.co").display().to_string();
    assert_eq!(run(&format!("kernels gfx1030 {file}")).status, 0);
    let without = |arguments: &str| {
        let mut kfd = kfd();
        kfd.env("CANDLE_ROCM_CLANG", "/nowhere/clang++");
        kfd.env("CANDLE_ROCM_CACHE_DIR", folder.path().join("cache"));
        kfd.args(["--json", "--mock", "gfx1030"]);
        let output = kfd.args(arguments.split_whitespace()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        (
            output.status.code().unwrap(),
            said.contains("\"kernels\""),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(
        without(&format!("memory-test --size 64K --kernels {file}")),
        (0, true, String::new())
    );
    let (status, has_kernels, warning) = without("memory-test --size 64K");
    assert!(status == 0 && !has_kernels, "{warning}");
    for part in ["SDMA only", "kfd kernels"] {
        assert!(warning.contains(part), "{warning}");
    }
    // Nothing else stands in for what was asked for.
    for test in ["memory-test --size 64K", "copy-test --max 4K"] {
        let (status, _, error) = without(&format!("{test} --by kernels"));
        assert!(status == 1 && error.contains("no kernels"), "{error}");
    }
}

#[test]
fn a_kernel_that_fails_is_told_by_name() {
    // The mock has no such kernel: to it, that is an illegal instruction.
    let run = run(&format!("launch {FIXTURE} nothing --mock gfx1100"));
    assert_eq!(run.status, 1);
    assert!(run.errors.contains("nothing"), "{}", run.errors);
}

#[test]
fn mistakes_in_arguments_are_told_from_failures() {
    for (arguments, says) in [
        ("", "Usage"),
        ("memory-test --mock gfx1100 --gpu 1", "there are 1 GPUs"),
        ("memory-test --mock tahiti", "tahiti"),
        ("memory-test --mock gfx1100 --size 0", "number of bytes"),
        ("copy-test --mock gfx1100 --by magic", "magic"),
        ("soak --mock gfx1100 --only peers --seconds 1", "two GPUs"),
        ("copy-test --mock-wrong 1", "--mock"),
        ("launch /dev/null", "no code object"),
        ("kernels gfx900 /dev/null", "gfx900"),
    ] {
        let run = run(arguments);
        assert_eq!(run.status, 2, "{arguments}");
        assert!(run.errors.contains(says), "{arguments}: {}", run.errors);
    }
    let missing = run("launch /nowhere/kernel.co");
    assert!(missing.status == 1 && missing.errors.contains("/nowhere/kernel.co"));
    // All GPUs are refused.
    let refused = run("memory-test --mock gfx900");
    assert!(refused.status == 1 && refused.errors.contains("gfx900"));
}

#[test]
fn help_names_the_scenarios_and_warns() {
    let help = kfd().arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for says in [
        "SDMA stress",
        "compute/copy overlap",
        "timeline semaphores",
        "multi-GPU",
        "Warning",
    ] {
        assert!(help.contains(says), "{says}");
    }
}

#[test]
fn a_gpu_with_a_display_is_used_only_when_that_is_allowed() {
    let mock = "--mock gfx1100 --mock-display";
    let info = run(&format!("info {mock}"));
    assert_eq!(info.status, 0);
    let why = info.events("gpu")[0]["refused"].as_str().unwrap();
    assert!(why.contains("DP-1"), "{why}");
    let allowed = run(&format!("info {mock} --allow-display"));
    assert!(allowed.events("gpu")[0]["refused"].is_null());
    for command in [
        "memory-test --size 64K --by sdma",
        "copy-test --max 64 --by sdma --no-speed",
    ] {
        // Whether it was named or not.
        for gpu in ["", "--gpu 0"] {
            let refused = run(&format!("{command} {mock} {gpu}"));
            assert_eq!(refused.status, 1, "{command}");
            assert!(
                refused.errors.contains("DP-1") && refused.errors.contains("allow"),
                "{}",
                refused.errors
            );
            assert!(refused.events("begin").is_empty());
        }
        run(&format!("{command} {mock} --allow-display")).is_right();
    }
    // It is a trait of the mock's alone.
    assert_eq!(run("info --mock-display").status, 2);
}

/// All commands, with what they need at least.
const COMMANDS: [(&str, &str); 7] = [
    ("info", ""),
    ("memory-test", ""),
    ("copy-test", ""),
    ("overlap-test", ""),
    ("launch", FIXTURE),
    ("kernels", "gfx1100"),
    ("soak", ""),
];

#[test]
fn every_command_has_help_and_refuses_what_it_does_not_know() {
    let all = kfd().arg("--help").output().unwrap();
    let all = String::from_utf8(all.stdout).unwrap();
    for (command, needs) in COMMANDS {
        assert!(all.contains(&format!("\n  {command} ")), "{command}");
        for help in ["--help", "-h"] {
            let output = kfd().args([command, help]).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{command} {help}");
            assert!(output.stderr.is_empty());
            let text = String::from_utf8(output.stdout).unwrap();
            for says in [
                &format!("kfd {command}"),
                "--gpu",
                "--json",
                "--allow-display",
            ] {
                assert!(text.contains(says), "{command} {help}: {says}");
            }
            assert!(!text.contains("--mock-"), "{command} {help}");
        }
        let unknown = run(&format!("{command} {needs} --sideways"));
        assert_eq!(unknown.status, 2, "{command}");
        assert!(unknown.errors.contains("--sideways"), "{}", unknown.errors);
    }
}

#[test]
fn a_failure_is_an_object_too() {
    for (arguments, status, says) in [
        ("info --mock tahiti", 2, "tahiti"),
        ("memory-test --mock gfx900", 1, "gfx900"),
        ("copy-test --mock gfx1100 --gpu 3", 2, "there are 1 GPUs"),
        ("overlap-test --mock gfx803", 1, "gfx803"),
        ("launch /nowhere/kernel.co", 1, "/nowhere/kernel.co"),
        ("kernels gfx900 /dev/null", 2, "gfx900"),
        ("soak --mock gfx1100 --only peers", 2, "two GPUs"),
        (
            "memory-test --mock gfx1100 --size 64K --by sdma --mock-wrong 1",
            1,
            "1 wrong",
        ),
    ] {
        let run = run(arguments);
        assert_eq!(run.status, status, "{arguments}");
        let last = run.said.last().unwrap();
        assert_eq!(last["event"], "error", "{arguments}: {last}");
        assert_eq!(last["status"], status, "{arguments}");
        let error = last["error"].as_str().unwrap();
        assert!(error.contains(says), "{arguments}: {error}");
        // For people it is on standard error, in the same words.
        assert!(run.errors.contains(error), "{arguments}: {}", run.errors);
    }
}
