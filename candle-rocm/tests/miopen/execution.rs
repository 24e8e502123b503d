//! What MIOpen computes, with which memory, on which stream; and machines without it.

use crate::bench::*;
use crate::common::{download, HostTensor, Layout};
use candle_rocm::miopen::{decisions, mode, Mode};
use candle_rocm::ops::conv::Method;
use candle_rocm::{Buffer, Capture, DType, Error};
use half::{bf16, f16};
use std::process::Command;

/// All four operations in each dtype, with padding, stride, dilation and output padding. On RDNA, this MIOpen has
/// nothing but products over columns and reference kernels for bf16 and dilation.
#[test]
fn miopen_computes_what_the_own_kernels_compute() {
    let bench = Bench::new(None);
    assert_eq!(mode(&bench.device), Mode::Fast);
    let cdna = bench.is_cdna();
    for problem in [image(), sequence()] {
        for (stride, dilation) in [(1, 1), (2, 1), (2, 3), (1, 2)] {
            for transposed in [false, true] {
                let problem = Problem {
                    stride,
                    dilation,
                    transposed,
                    output_padding: if transposed { stride - 1 } else { 0 },
                    ..problem.clone()
                };
                let dilated = dilation > 1;
                bench.learn::<f32>(&problem);
                bench.learn::<f16>(&problem);
                bench.learn::<bf16>(&problem);
                assert_eq!(bench.check::<f32>(&problem, CONTIGUOUS), cdna || !dilated);
                assert_eq!(bench.check::<f16>(&problem, CONTIGUOUS), cdna || !dilated);
                assert_eq!(bench.check::<bf16>(&problem, CONTIGUOUS), cdna);
                assert!(!bench.check::<f64>(&problem, CONTIGUOUS));
            }
        }
    }
}

/// A sequence is an image of height 1: its padding belongs to the width.
#[test]
fn padding_of_a_sequence_is_horizontal() {
    let bench = Bench::new(None);
    bench.learn::<f32>(&sequence());
    assert!(bench.check::<f32>(&sequence(), CONTIGUOUS));
    let convolution = bench.decision().convolution;
    assert_eq!((convolution.padding, convolution.stride), ([0, 2], [1, 1]));
    assert_eq!(
        (convolution.x, convolution.kernel, convolution.y),
        ([2, 18, 1, 23], [6, 18, 1, 3], [2, 6, 1, 25])
    );
}

/// As f16, the bits of a bf16 one are 1.875.
#[test]
fn bf16_is_never_taken_for_f16() {
    let bench = Bench::new(None);
    let problem = Problem {
        padding: 0,
        ..image()
    };
    let ones =
        |dims: &[usize]| HostTensor::contiguous(vec![bf16::ONE; dims.iter().product()], dims);
    let (x, kernel) = (ones(&problem.x), ones(&problem.kernel_dims()));
    let (x_buffer, kernel_buffer) = (x.upload(&bench.device), kernel.upload(&bench.device));
    let y = problem
        .run(&x.view(&x_buffer), &kernel.view(&kernel_buffer), None)
        .unwrap();
    let y = download::<bf16>(&bench.device, &y);
    // 17 * 9 ones, which bf16 represents exactly.
    assert!(y.iter().all(|&v| v == bf16::from_f32(153.0)), "{:?}", y[0]);
    assert_eq!(bench.decision().convolution.dtype, DType::BF16);
    assert_eq!(bench.calls(RUN) == 1, bench.is_cdna());
}

/// Views, transposed, broadcast and narrowed, reach MIOpen as packed copies.
#[test]
fn operands_that_are_not_packed_are_copied() {
    let bench = Bench::new(None);
    for problem in [image(), image().transposed(), sequence()] {
        bench.learn::<f32>(&problem);
        bench.learn::<f16>(&problem);
    }
    for x in Layout::ALL {
        for kernel in [Layout::Contiguous, Layout::Transposed, Layout::Narrowed, x] {
            for problem in [image(), image().transposed(), sequence()] {
                assert!(
                    bench.check::<f32>(&problem, [x, kernel]),
                    "{x:?} {kernel:?}"
                );
                assert!(
                    bench.check::<f16>(&problem, [x, kernel]),
                    "{x:?} {kernel:?}"
                );
            }
        }
    }
    // Layouts share the decision.
    assert_eq!(decisions(&bench.device).len(), 6);
}

#[test]
fn a_failure_of_a_chosen_solution_is_an_error() {
    let bench = Bench::new(None);
    let problem = image();
    bench.learn::<f32>(&problem);
    assert!(bench.check::<f32>(&problem, CONTIGUOUS));
    bench.sim.fail_miopen(RUN, 1, 5);
    let [x, kernel] = problem.data::<f32>(CONTIGUOUS);
    let (x_buffer, kernel_buffer) = (x.upload(&bench.device), kernel.upload(&bench.device));
    let error = problem
        .run(&x.view(&x_buffer), &kernel.view(&kernel_buffer), None)
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::MiOpen {
                call: "miopenConvolutionForwardImmediate",
                code: 5,
                status: "miopenStatusInternalError",
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains(VARIABLE), "{error}");
    assert!(bench.check::<f32>(&problem, CONTIGUOUS), "works afterwards");
}

/// Solutions with more workspace than the cap, a 16th of a small device's memory, are passed over.
#[test]
fn workspaces_are_capped() {
    // On CDNA dilation leaves one solution worth choosing, with 4 bytes an output.
    let problem = Problem {
        x: vec![1, 2, 64, 64],
        c_out: 64,
        padding: 2,
        dilation: 2,
        ..image()
    };
    let bench = Bench::new(None);
    assert_eq!(bench.check::<f32>(&problem, CONTIGUOUS), bench.is_cdna());
    drop(bench);
    let small = ChildProcess {
        test: "execution::child_with_a_small_device",
        variables: &[("HIP_SIM_MEMORY", "15M")],
    };
    small.run();
}

#[test]
#[ignore = "helper process of workspaces_are_capped"]
fn child_with_a_small_device() {
    let bench = Bench::new(None);
    let problem = Problem {
        x: vec![1, 2, 64, 64],
        c_out: 64,
        padding: 2,
        dilation: 2,
        ..image()
    };
    assert!(!bench.check::<f32>(&problem, CONTIGUOUS));
    let reason = bench.decision().solver.unwrap_err();
    assert!(
        reason.contains("workspace") || reason.contains("columns"),
        "{reason}"
    );
}

/// One workspace serves all, and grows to the largest.
#[test]
fn the_workspace_is_made_once_and_returned() {
    let bench = Bench::new(None);
    if !bench.is_cdna() {
        return;
    }
    let dilated = Problem {
        dilation: 2,
        padding: 2,
        ..image()
    };
    let larger = Problem {
        x: vec![2, 17, 90, 70],
        ..dilated.clone()
    };
    assert_eq!(bench.device.memory_stats().live_buffers, 0);
    assert!(bench.check::<f32>(&dilated, CONTIGUOUS));
    let one = bench.device.memory_stats();
    assert_eq!(one.live_buffers, 1);
    assert!(bench.check::<f32>(&larger, CONTIGUOUS));
    assert!(bench.check::<f32>(&dilated, CONTIGUOUS));
    let other = bench.device.memory_stats();
    assert_eq!(other.live_buffers, 1);
    // 2 x 6 x 90 x 70 sums.
    assert!(other.live_bytes >= 2 * 6 * 90 * 70 * 4 && one.live_bytes < other.live_bytes);
    bench.device.trim().unwrap();
    assert!(bench.check::<f32>(&larger, CONTIGUOUS), "still there");
}

/// A graph keeps the workspace that it was captured with: outgrown, it goes to nobody else.
#[test]
fn a_graph_keeps_its_workspace() {
    let bench = Bench::new(None);
    let device = &bench.device;
    let problem = Problem {
        dilation: if bench.is_cdna() { 2 } else { 1 },
        ..image()
    };
    let larger = Problem {
        x: vec![2, 17, 40, 40],
        ..problem.clone()
    };
    bench.learn::<f32>(&problem);
    bench.learn::<f32>(&larger);
    let [x, kernel] = problem.data::<f32>(CONTIGUOUS);
    let (x_buffer, kernel_buffer) = (x.upload(device), kernel.upload(device));
    let run = |method| {
        problem
            .run(&x.view(&x_buffer), &kernel.view(&kernel_buffer), method)
            .unwrap()
    };
    let want = download::<f32>(device, &run(None));
    let calls = bench.calls(COUNT);
    let capture = Capture::begin(device).unwrap();
    let y = run(None);
    let graph = capture.end().unwrap();
    assert_eq!(
        bench.calls(COUNT),
        calls,
        "nothing is decided while capturing"
    );
    let larger = Problem {
        x: vec![2, 17, 40, 40],
        ..problem.clone()
    };
    assert!(bench.check::<f32>(&larger, CONTIGUOUS));
    // Everything that is free now belongs to others.
    let others: Vec<Buffer> = (0..64)
        .map(|_| device.upload(&[7; 4096]).unwrap())
        .collect();
    // SAFETY: the operands are alive.
    unsafe { graph.launch() }.unwrap();
    assert_eq!(download::<f32>(device, &y), want);
    for other in &others {
        let mut bytes = [0; 4096];
        device.download(other, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&b| b == 7));
    }
}

/// Deciding compiles and loads kernels, which a capture forbids: unknown shapes use the own kernels then, and are asked
/// for later.
#[test]
fn nothing_is_decided_during_a_capture() {
    let bench = Bench::new(None);
    let device = &bench.device;
    let problem = image();
    bench.learn::<f32>(&problem);
    let [x, kernel] = problem.data::<f32>(CONTIGUOUS);
    let (x_buffer, kernel_buffer) = (x.upload(device), kernel.upload(device));
    let run = |method| {
        problem
            .run(&x.view(&x_buffer), &kernel.view(&kernel_buffer), method)
            .unwrap()
    };
    // Loads the own kernels and prepares rocBLAS.
    let columns = Method::Columns {
        workspace_bytes: 1 << 20,
    };
    let want = download::<f32>(device, &run(Some(columns)));
    let capture = Capture::begin(device).unwrap();
    let y = run(None);
    let graph = capture.end().unwrap();
    // SAFETY: the operands are alive.
    unsafe { graph.launch() }.unwrap();
    assert_eq!(download::<f32>(device, &y), want);
    assert_eq!((bench.calls(CREATE), bench.calls(COUNT)), (0, 0));
    assert!(decisions(device).is_empty());
    assert!(bench.check::<f32>(&problem, CONTIGUOUS));
}

/// Two threads share a device, its handle and its workspace.
#[test]
fn threads_share_a_device() {
    let bench = Bench::new(None);
    std::thread::scope(|scope| {
        for dilation in [1, 2] {
            let device = &bench.device;
            scope.spawn(move || {
                for _ in 0..4 {
                    let problem = Problem {
                        dilation,
                        ..image()
                    };
                    problem.check::<f32>(device, CONTIGUOUS);
                }
            });
        }
    });
    assert_eq!((bench.calls(CREATE), bench.calls(COUNT)), (1, 2));
}

/// This test binary once more, for one ignored test with other variables.
struct ChildProcess<'a> {
    test: &'a str,
    variables: &'a [(&'a str, &'a str)],
}

impl ChildProcess<'_> {
    fn run(&self) {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", self.test, "--include-ignored", "--nocapture"])
            .envs(self.variables.iter().copied())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}\n{errors}"
        );
    }
}

/// A ROCm without MIOpen convolves without a word.
#[test]
fn without_miopen_the_own_kernels_compute() {
    let rocm = std::env::var_os("ROCM_PATH").expect("hip-sim is found by ROCM_PATH");
    let lib = std::path::Path::new(&rocm).join("lib");
    let root = std::env::temp_dir().join(format!("candle-rocm-no-miopen-{}", std::process::id()));
    std::fs::create_dir_all(root.join("lib")).unwrap();
    for entry in std::fs::read_dir(&lib).unwrap() {
        let entry = entry.unwrap();
        if !entry.file_name().to_string_lossy().contains("MIOpen") {
            let target = entry.path().canonicalize().unwrap();
            std::os::unix::fs::symlink(target, root.join("lib").join(entry.file_name())).unwrap();
        }
    }
    let child = ChildProcess {
        test: "execution::child_without_miopen",
        variables: &[("ROCM_PATH", root.to_str().unwrap())],
    };
    let outcome = std::panic::catch_unwind(|| child.run());
    std::fs::remove_dir_all(&root).unwrap();
    outcome.unwrap();
}

#[test]
#[ignore = "helper process of without_miopen_the_own_kernels_compute"]
fn child_without_miopen() {
    let bench = Bench::new(None);
    for problem in [image(), image().transposed(), sequence()] {
        assert!(!bench.check::<f32>(&problem, CONTIGUOUS));
        assert!(!bench.check::<bf16>(&problem, CONTIGUOUS));
    }
    for decision in decisions(&bench.device) {
        let reason = decision.solver.unwrap_err();
        assert!(reason.contains("libMIOpen was not found"), "{reason}");
    }
    assert_eq!(bench.calls(CREATE), 0);
}
