//! Convolutions in MIOpen: what is asked of it, what it computes, and what happens when it cannot. hip-sim's MIOpen counts the calls and
//! reports wrong use.

mod common;

use candle_rocm::miopen::{decisions, mode, Decision, Mode};
use candle_rocm::ops::conv::{
    conv1d, conv2d, conv_transpose1d, conv_transpose2d, Conv, ConvTranspose, Method,
};
use candle_rocm::{Buffer, Capture, DType, Device, Error, Result, View};
use common::{assert_close, download, Element, HostTensor, Layout, Rng};
use half::{bf16, f16};
use hip_sim::client::Client;
use std::ffi::CStr;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

const VARIABLE: &str = "CANDLE_ROCM_MIOPEN";
const COUNT: &CStr = c"miopenConvolutionForwardGetSolutionCount";
const COMPILE: &CStr = c"miopenConvolutionForwardCompileSolution";
const RUN: &CStr = c"miopenConvolutionForwardImmediate";
const FIND: &CStr = c"miopenFindConvolutionForwardAlgorithm";
const CREATE: &CStr = c"miopenCreateWithStream";

/// A device of its own, alone with the simulator's counters, which must have nothing to report in the end.
struct Bench {
    device: Device,
    sim: Client,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    fn new(mode: Option<&str>) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        match mode {
            Some(mode) => std::env::set_var(VARIABLE, mode),
            None => std::env::remove_var(VARIABLE),
        }
        let device = common::device();
        let sim = Client::find().expect("these tests need hip-sim's MIOpen");
        sim.take_reports();
        sim.reset_counters();
        Bench {
            device,
            sim,
            _turn: turn,
        }
    }

    fn calls(&self, function: &CStr) -> u64 {
        self.sim.miopen_calls(function)
    }

    fn is_cdna(&self) -> bool {
        self.device.properties().wave_size == 64
    }

    /// Has a problem measured, which puts it into MIOpen's database: on RDNA, this MIOpen offers nothing worth taking before.
    fn learn<T: Element>(&self, problem: &Problem) {
        if !self.is_cdna() {
            std::env::set_var(VARIABLE, "tune");
            problem.check::<T>(&common::device(), CONTIGUOUS);
            std::env::remove_var(VARIABLE);
            self.sim.reset_counters();
        }
    }

    /// The one decision that was made.
    fn decision(&self) -> Decision {
        let mut decisions = decisions(&self.device);
        assert_eq!(decisions.len(), 1, "{decisions:?}");
        decisions.remove(0)
    }

    /// Runs a problem with the default method and compares it with the direct one. Returns whether MIOpen computed it.
    fn check<T: Element>(&self, problem: &Problem, layouts: [Layout; 2]) -> bool {
        let before = self.calls(RUN);
        problem.check::<T>(&self.device, layouts);
        self.calls(RUN) > before
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let reports = self.sim.take_reports();
        if !std::thread::panicking() {
            assert_eq!(reports, Vec::<String>::new());
            assert!(self.sim.guards_intact());
        }
    }
}

#[derive(Clone, Debug)]
struct Problem {
    x: Vec<usize>,
    c_out: usize,
    taps: Vec<usize>,
    transposed: bool,
    padding: usize,
    output_padding: usize,
    stride: usize,
    dilation: usize,
}

/// Large enough for columns: more than 4 outputs, more than 16 products.
fn image() -> Problem {
    Problem {
        x: vec![2, 17, 9, 7],
        c_out: 6,
        taps: vec![3, 3],
        transposed: false,
        padding: 1,
        output_padding: 0,
        stride: 1,
        dilation: 1,
    }
}

fn sequence() -> Problem {
    Problem {
        x: vec![2, 18, 23],
        taps: vec![3],
        padding: 2,
        ..image()
    }
}

impl Problem {
    fn transposed(self) -> Self {
        Problem {
            transposed: true,
            ..self
        }
    }

    fn kernel_dims(&self) -> Vec<usize> {
        let c_in = self.x[1];
        let channels = if self.transposed {
            [c_in, self.c_out]
        } else {
            [self.c_out, c_in]
        };
        channels.iter().chain(&self.taps).copied().collect()
    }

    fn run(&self, x: &View, kernel: &View, method: Option<Method>) -> Result<Buffer> {
        let device = x.buffer.device();
        let &Problem {
            padding,
            output_padding,
            stride,
            dilation,
            ..
        } = self;
        let plain = Conv {
            padding,
            stride,
            dilation,
            method,
        };
        let transposed = ConvTranspose {
            padding,
            output_padding,
            stride,
            dilation,
            method,
        };
        match (self.x.len(), self.transposed) {
            (3, false) => conv1d(device, x, kernel, plain),
            (3, true) => conv_transpose1d(device, x, kernel, transposed),
            (_, false) => conv2d(device, x, kernel, plain),
            (_, true) => conv_transpose2d(device, x, kernel, transposed),
        }
    }

    fn data<T: Element>(&self, layouts: [Layout; 2]) -> [HostTensor<T>; 2] {
        let random = |seed: u64, dims: &[usize], layout| {
            HostTensor::with_layout(dims, layout, |n| Rng::new(seed).vec(n, -1.0, 1.0))
        };
        [
            random(1, &self.x, layouts[0]),
            random(2, &self.kernel_dims(), layouts[1]),
        ]
    }

    fn check<T: Element>(&self, device: &Device, layouts: [Layout; 2]) {
        let [x, kernel] = self.data::<T>(layouts);
        let (x_buffer, kernel_buffer) = (x.upload(device), kernel.upload(device));
        let run = |method| {
            let y = self.run(&x.view(&x_buffer), &kernel.view(&kernel_buffer), method);
            download::<T>(
                device,
                &y.unwrap_or_else(|error| panic!("{self:?}: {error}")),
            )
        };
        let got = run(None);
        let want: Vec<f64> = run(Some(Method::Direct))
            .iter()
            .map(|v| v.to_f64())
            .collect();
        let limit = if T::DTYPE == DType::F32 { 1e-11 } else { 1e-5 };
        assert_close(&got, &want, limit, &format!("{} {self:?}", T::DTYPE));
    }
}

const CONTIGUOUS: [Layout; 2] = [Layout::Contiguous; 2];

/// All four operations in each dtype, with padding, stride, dilation and output padding. On RDNA, this MIOpen has nothing but products
/// over columns and reference kernels for bf16 and dilation.
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
fn a_decision_is_made_once() {
    let bench = Bench::new(None);
    let other = Problem {
        stride: 2,
        ..image()
    };
    bench.learn::<f32>(&image());
    bench.learn::<f32>(&other);
    for _ in 0..5 {
        assert!(bench.check::<f32>(&image(), CONTIGUOUS));
    }
    let counts = [CREATE, COUNT, COMPILE, RUN].map(|f| bench.calls(f));
    assert_eq!(counts, [1, 1, 1, 5]);
    assert!(bench.check::<f32>(&other, CONTIGUOUS));
    let counts = [CREATE, COUNT, COMPILE, RUN].map(|f| bench.calls(f));
    assert_eq!(counts, [1, 2, 2, 6]);
    assert_eq!(bench.calls(c"miopenCreateTensorDescriptor"), 6);
    // Another device on the same GPU has a stream, and so a handle, of its own.
    let second = common::device();
    image().check::<f32>(&second, CONTIGUOUS);
    assert_eq!((bench.calls(CREATE), bench.calls(COUNT)), (2, 3));
    drop(second);
    assert_eq!(bench.calls(c"miopenDestroy"), 1);
    assert_eq!(bench.calls(c"miopenDestroyTensorDescriptor"), 3);
    assert_eq!(bench.calls(c"miopenDestroyConvolutionDescriptor"), 1);
}

/// Products, thin convolutions, f64 and outputs that could not be led back are never asked for.
#[test]
fn what_is_not_worth_asking_is_not_asked() {
    let bench = Bench::new(None);
    let product = Problem {
        taps: vec![1, 1],
        padding: 0,
        ..image()
    };
    let thin = Problem {
        c_out: 3,
        ..image()
    };
    let beyond = Problem {
        stride: 2,
        output_padding: 2,
        ..image().transposed()
    };
    for problem in [product, thin, beyond] {
        assert!(!bench.check::<f32>(&problem, CONTIGUOUS));
    }
    assert!(!bench.check::<f64>(&image(), CONTIGUOUS));
    assert_eq!(bench.calls(CREATE), 0);
}

/// With a stride, a kernel of one element is no product any more; MIOpen's favourite is columns then.
#[test]
fn products_over_columns_stay_with_the_own_kernels() {
    let bench = Bench::new(None);
    let strided = Problem {
        taps: vec![1, 1],
        padding: 0,
        stride: 2,
        ..image()
    };
    for _ in 0..3 {
        assert!(!bench.check::<f32>(&strided, CONTIGUOUS));
    }
    assert_eq!([COUNT, COMPILE, RUN].map(|f| bench.calls(f)), [1, 0, 0]);
    let reason = bench.decision().solver.unwrap_err();
    assert!(reason.contains("more than columns"), "{reason}");
}

/// Where MIOpen has neither measurements nor an estimate, as on most of RDNA, nothing is taken until something was measured; that is kept
/// in its database, and `fast` finds it.
#[test]
fn what_tune_finds_is_found_by_fast() {
    let bench = Bench::new(None);
    let problem = Problem {
        x: vec![1, 19, 8, 8],
        ..image()
    };
    assert_eq!(bench.check::<f32>(&problem, CONTIGUOUS), bench.is_cdna());
    bench.learn::<f32>(&problem);
    let later = common::device();
    problem.check::<f32>(&later, CONTIGUOUS);
    assert_eq!(decisions(&later)[0].solver, Ok(84));
}

#[test]
fn off_asks_for_nothing() {
    let bench = Bench::new(Some("off"));
    assert_eq!(mode(&bench.device), Mode::Off);
    assert!(!bench.check::<f32>(&image(), CONTIGUOUS));
    assert_eq!(bench.calls(CREATE), 0);
    assert!(decisions(&bench.device).is_empty());
}

#[test]
fn tune_measures_once() {
    let bench = Bench::new(Some("tune"));
    assert_eq!(mode(&bench.device), Mode::Tune);
    for problem in [image(), image().transposed(), sequence()] {
        for _ in 0..3 {
            bench.check::<f32>(&problem, CONTIGUOUS);
        }
    }
    assert_eq!([CREATE, FIND, COUNT].map(|f| bench.calls(f)), [1, 3, 3]);
    for decision in decisions(&bench.device) {
        match decision.solver {
            Ok(solver) => assert!([84, 85, 86, 91, 97, 107, 108].contains(&solver)),
            Err(reason) => assert!(reason.starts_with("measured"), "{reason}"),
        }
    }
}

#[test]
fn other_values_are_an_error() {
    let bench = Bench::new(None);
    for value in ["", "exhaustive", "Fast"] {
        std::env::set_var(VARIABLE, value);
        let error = Device::new(0).unwrap_err();
        assert!(
            matches!(error, Error::InvalidArgument { op: VARIABLE, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("off, fast or tune"), "{error}");
    }
    std::env::remove_var(VARIABLE);
    drop(bench);
}

#[test]
fn failures_while_deciding_leave_it_to_the_own_kernels() {
    for function in [
        CREATE,
        c"miopenCreateTensorDescriptor",
        c"miopenSetTensorDescriptor",
        c"miopenCreateConvolutionDescriptor",
        c"miopenInitConvolutionDescriptor",
        c"miopenSetConvolutionAttribute",
        c"miopenSetConvolutionFindMode",
        c"miopenGetConvolutionForwardOutputDim",
        COUNT,
        c"miopenConvolutionForwardGetSolution",
    ] {
        let bench = Bench::new(None);
        bench.sim.fail_miopen(function, 1, 7);
        for _ in 0..3 {
            assert!(!bench.check::<f32>(&image(), CONTIGUOUS), "{function:?}");
        }
        let reason = bench.decision().solver.unwrap_err();
        assert!(
            reason.contains(function.to_str().unwrap())
                && reason.contains("miopenStatusUnknownError"),
            "{reason}"
        );
        assert_eq!(bench.calls(function), 1, "remembered");
    }
}

/// Without MIOpen's own measurements, what it offers by estimate is measured.
#[test]
fn tune_does_without_find() {
    for (nth, function) in [c"miopenConvolutionForwardGetWorkSpaceSize", FIND]
        .into_iter()
        .enumerate()
    {
        let bench = Bench::new(Some("tune"));
        bench.sim.fail_miopen(function, 1, 6);
        let problem = Problem {
            x: vec![1, 21, 6, 5 + nth],
            ..image()
        };
        assert!(
            bench.check::<f32>(&problem, CONTIGUOUS),
            "measured at least"
        );
        let solvers: &[u64] = match bench.is_cdna() {
            true => &[84, 107, 91, 85],
            false => &[91, 85],
        };
        match bench.decision().solver {
            Ok(solver) => assert!(solvers.contains(&solver), "{solver}"),
            Err(reason) => assert!(reason.starts_with("measured"), "{reason}"),
        }
        // Each was run once to warm up and three times, and the chosen one once more.
        let runs = bench.calls(RUN) as usize;
        let measured = 4 * solvers.len();
        assert!((measured..=measured + 1).contains(&runs), "{runs}");
    }
    let bench = Bench::new(Some("tune"));
    bench.sim.fail_miopen(COUNT, 1, 6);
    assert!(!bench.check::<f32>(&image(), CONTIGUOUS));
    let reason = bench.decision().solver.unwrap_err();
    assert!(reason.contains("miopenStatusNotImplemented"), "{reason}");
}

/// Builds of MIOpen may lack sources of kernels: the next solution is tried, if there is one.
#[test]
fn a_solution_that_does_not_compile_is_passed_over() {
    let bench = Bench::new(None);
    bench.learn::<f32>(&image());
    bench.sim.fail_miopen(COMPILE, 1, 7);
    for _ in 0..3 {
        assert_eq!(bench.check::<f32>(&image(), CONTIGUOUS), bench.is_cdna());
    }
    match bench.decision().solver {
        Ok(solver) => assert_eq!((solver, bench.calls(COMPILE)), (107, 2)),
        Err(reason) => {
            assert!(reason.contains(COMPILE.to_str().unwrap()), "{reason}");
            assert_eq!(bench.calls(COMPILE), 1);
        }
    }
}

/// A solution that fails while it is measured is out of the race.
#[test]
fn a_failure_while_measuring_is_no_error() {
    let bench = Bench::new(Some("tune"));
    for nth in [1, 2] {
        bench.sim.fail_miopen(RUN, nth, 7);
        let problem = Problem {
            dilation: nth as usize,
            ..image()
        };
        bench.check::<f32>(&problem, CONTIGUOUS);
    }
    assert_eq!(decisions(&bench.device).len(), 2);
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
        test: "child_with_a_small_device",
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
    graph.launch().unwrap();
    assert_eq!(download::<f32>(device, &y), want);
    for other in &others {
        let mut bytes = [0; 4096];
        device.download(other, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&b| b == 7));
    }
}

/// Deciding compiles and loads kernels, which a capture forbids: unknown shapes use the own kernels then, and are asked for later.
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
    graph.launch().unwrap();
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
        test: "child_without_miopen",
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
