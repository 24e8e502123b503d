//! A program that has its runtime in itself: candle-rocm over these functions, as the workers' feature `kfd` has it.

mod common;

use candle_kfd::mock::Setup;
use candle_rocm::sys::hip::Hip;
use candle_rocm::sys::rocblas::RocBlas;
use candle_rocm::sys::LoadError;
use candle_rocm::{Args, Capture, Device, Error, Event, LaunchConfig};
use common::{mock, mock_with, words};
use std::path::Path;
use std::process::Command;

/// Set in the process that a test starts, to the test's name.
const CHILD: &str = "HIP_ON_KFD_TEST";
const COUNT: usize = 1000;
/// What the mock's kernel of that name does.
const SOURCE: &str = r#"
    #include "device.h"
    extern "C" __global__ void scramble(u32* numbers, u32 by) { numbers[global_index()] += by; }"#;

/// Runs a test's `body` in a process of its own, which does what a worker's `main` does; gives what it wrote to stderr.
/// None in that process.
fn in_child(name: &str, environment: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    if std::env::var_os(CHILD).is_some() {
        // SAFETY: the functions have AMD's names and signatures, and are part of this program.
        unsafe { candle_rocm::sys::provide(hip_on_kfd_runtime::symbol) };
        body();
        return None;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, name)
        .env("CANDLE_ROCM_RUNTIME", "kfd")
        // It would be for a GPU that computes.
        .env("CANDLE_ROCM_VERIFY", "off")
        .env(
            "CANDLE_ROCM_CACHE_DIR",
            concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels-of-candle"),
        )
        // Nothing of another installation.
        .env("ROCM_PATH", "/nowhere")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let told = String::from_utf8_lossy(&child.stderr).into_owned();
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}\n{told}"
    );
    Some(told)
}

#[test]
fn it_computes_copies_records_and_measures_once_it_has_warned() {
    let name = "it_computes_copies_records_and_measures_once_it_has_warned";
    for (yes, warns) in [("0", true), ("1", false)] {
        let Some(told) = in_child(name, &[("CANDLE_KFD_YES", yes)], compute) else {
            return;
        };
        assert_eq!(told.contains("can hang it"), warns, "{told}");
    }
}

fn compute() {
    mock();
    assert_eq!(Hip::get().unwrap().path, Path::new("(in this program)"));
    let refused = RocBlas::get().unwrap_err();
    assert!(
        matches!(refused, LoadError::NotBuiltIn { .. }),
        "{refused:?}"
    );
    assert_eq!(Device::count().unwrap(), 2);
    let device = Device::new(0).unwrap();
    assert_eq!(device.properties().full_arch, "gfx1100");
    let (free, total) = device.memory_info().unwrap();
    assert!(0 < free && free <= total);

    let data: Vec<u8> = (0..COUNT as u32).flat_map(u32::to_ne_bytes).collect();
    let buffer = device.upload(&data).unwrap();
    let download = |buffer| {
        let mut bytes = vec![0; data.len()];
        device.download(buffer, 0, &mut bytes).unwrap();
        words(&bytes)
    };
    let other = device.alloc(data.len()).unwrap();
    device.copy(&buffer, 0, &other, 0, data.len()).unwrap();
    let expected = |by| (by..by + COUNT as u32).collect::<Vec<u32>>();
    assert_eq!(download(&other), expected(0));

    if candle_rocm_kernels::Clang::find().is_err() {
        let error = device.custom_kernel(SOURCE, "scramble").unwrap_err();
        assert!(error.to_string().contains("CANDLE_ROCM_ARCHS"), "{error}");
        return;
    }
    let add = device.custom_kernel(SOURCE, "scramble").unwrap();
    let config = LaunchConfig {
        grid: 10,
        block: COUNT as u32 / 10,
        shared_bytes: 0,
    };
    let args = Args::new().ptr(&buffer, 0).u32(5);
    let events = [(); 2].map(|()| Event::new(&device).unwrap());
    events[0].record(device.stream()).unwrap();
    // SAFETY: these are its arguments, and there are as many numbers as threads.
    unsafe { add.launch(config, &args) }.unwrap();
    events[1].record(device.stream()).unwrap();
    assert_eq!(download(&buffer), expected(5));
    assert!(events[1].elapsed_since(&events[0]).is_ok());

    let capture = Capture::begin(&device).unwrap();
    // SAFETY: as above; the graph does not outlive the numbers.
    unsafe { add.launch(config, &args) }.unwrap();
    let graph = capture.end().unwrap();
    assert_eq!(download(&buffer), expected(5));
    for _ in 0..3 {
        // SAFETY: as above.
        unsafe { graph.launch() }.unwrap();
    }
    assert_eq!(download(&buffer), expected(20));
    assert_eq!(mock().complaints(), [""; 0]);
}

#[test]
fn gpus_are_refused_for_their_arch_and_for_a_display() {
    let name = "gpus_are_refused_for_their_arch_and_for_a_display";
    let told = in_child(name, &[], || {
        mock_with(|_| {
            let mut setup = Setup::of(&["gfx900", "gfx1100"]);
            setup.gpus[1].display = true;
            setup
        });
        let error = Device::count().unwrap_err();
        assert!(matches!(error, Error::NoDevice { .. }), "{error}");
    });
    for part in [
        "GPU 0 is left out: gfx900 is not supported",
        "GPU 1 is left out",
        "CANDLE_KFD_DISPLAY=1",
    ] {
        assert!(told.iter().all(|told| told.contains(part)), "{told:?}");
    }
}

#[test]
fn without_the_driver_it_says_so_and_what_to_do() {
    if Path::new("/dev/kfd").exists() {
        // A test does not open a GPU.
        return;
    }
    let name = "without_the_driver_it_says_so_and_what_to_do";
    let told = in_child(name, &[], || {
        let error = Device::new(0).unwrap_err();
        assert!(matches!(error, Error::NoDevice { .. }), "{error}");
    });
    for part in ["/dev/kfd cannot be opened", "amdgpu"] {
        assert!(told.iter().all(|told| told.contains(part)), "{told:?}");
    }
}
