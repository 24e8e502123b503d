//! MIOpen's convolutions over cuDNN, against the definition in f64, on an NVIDIA GPU: `cargo test -p hip-on-cuda --
//! --ignored`.

#[path = "../../hip-sim/tests/miopen/setup.rs"]
mod setup;

/// The library under test, with what [`setup`] calls for its own memory.
#[allow(non_snake_case)]
mod api {
    use std::ffi::{c_int, c_void};

    pub use hip_on_cuda::{hip::*, miopen::*};

    pub fn hipFree(pointer: *mut c_void) -> c_int {
        // SAFETY: of `Memory`, which does not use it any more.
        unsafe { hip_on_cuda::hip::hipFree(pointer) }
    }

    pub fn hipDeviceSynchronize() -> c_int {
        // SAFETY: takes nothing.
        unsafe { hip_on_cuda::hip::hipDeviceSynchronize() }
    }
}

mod common {
    use std::ffi::c_int;

    /// Panics unless a status is success.
    #[track_caller]
    pub fn ok(status: c_int) {
        assert_eq!(status, 0, "status {status}");
    }
}

use api::*;
use common::ok;
use setup::*;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

/// Values are small integers, which Winograd's transforms divide.
const TOLERANCE: [(c_int, f64); 3] = [(F16, 1e-2), (F32, 1e-5), (BF16, 2e-2)];

/// One test at a time: they are timed.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

/// Everything that a problem's tensors and a workspace need.
struct Operands {
    setup: Setup,
    x: Vec<f64>,
    w: Vec<f64>,
    want: Vec<f64>,
    dims: [[c_int; 4]; 3],
}

impl Operands {
    /// 16 to 24 channels, with padding, in f32.
    fn new() -> Self {
        let dims = [[2, 16, 10, 12], [24, 16, 3, 3], [2, 24, 10, 12]];
        let options = Options {
            padding: [1, 1],
            ..PLAIN
        };
        let (x, w) = (
            integers(elements(dims[0]), 1),
            integers(elements(dims[1]), 2),
        );
        Operands {
            setup: Setup::new(F32, dims, options),
            want: definition(&x, &w, dims, options),
            x,
            w,
            dims,
        }
    }

    fn bytes(&self) -> usize {
        elements(self.dims[2]) * 4
    }

    #[track_caller]
    fn compare(&self, y: &[u8]) {
        let got = decode(y, F32);
        assert!(
            are_close(&got, &self.want, 1e-4),
            "{got:?} is not {:?}",
            self.want
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU with cuDNN"]
fn every_solution_of_cudnn_computes_the_definition() {
    let _turn = turn();
    for (kind, tolerance) in TOLERANCE {
        for problem in problems() {
            let solutions = check(kind, problem, tolerance);
            println!("{kind} {problem:?}: {solutions:?}");
            assert!(!solutions.is_empty(), "{kind} {problem:?}");
        }
    }
    let double = Setup::new(6, [[1, 1, 3, 3], [1, 1, 1, 1], [1, 1, 3, 3]], PLAIN);
    assert!(double.solutions().is_empty());
}

/// Vector loads are for aligned addresses only.
#[test]
#[ignore = "needs an NVIDIA GPU with cuDNN"]
fn cudnn_convolves_unaligned_tensors() {
    let _turn = turn();
    let operands = Operands::new();
    let shifted = |values: &[f64]| {
        let mut bytes = vec![0; 4];
        bytes.extend(encode(values, F32));
        Memory::from(&bytes)
    };
    let (x, w) = (shifted(&operands.x), shifted(&operands.w));
    let y = Memory::new(operands.bytes() + 4);
    for solution in operands.setup.solutions() {
        let room = Memory::new(1 << 20);
        let beyond = |memory: &Memory| memory.0.wrapping_byte_add(4);
        ok(operands.setup.run(
            [&x, &w, &y].map(beyond),
            (room.0, 1 << 20),
            solution.solution_id,
        ));
        operands.compare(&y.read(operands.bytes() + 4)[4..]);
    }
}

/// What find measures is in the order of its times afterwards.
#[test]
#[ignore = "needs an NVIDIA GPU with cuDNN"]
fn cudnn_finds_the_fastest() {
    let _turn = turn();
    let operands = Operands::new();
    let setup = &operands.setup;
    let (x, w) = (
        Memory::from(&encode(&operands.x, F32)),
        Memory::from(&encode(&operands.w, F32)),
    );
    let mut bytes = 0;
    let (mut count, mut results) = (0, [miopenConvAlgoPerf_t::default(); 8]);
    ok(unsafe {
        miopenConvolutionForwardGetWorkSpaceSize(
            setup.handle,
            setup.w,
            setup.x,
            setup.options,
            setup.y,
            &mut bytes,
        )
    });
    let (y, workspace) = (Memory::new(operands.bytes()), Memory::new(bytes.max(1)));
    let address = if bytes == 0 { null_mut() } else { workspace.0 };
    ok(unsafe {
        miopenFindConvolutionForwardAlgorithm(
            setup.handle,
            setup.x,
            x.0,
            setup.w,
            w.0,
            setup.options,
            setup.y,
            y.0,
            8,
            &mut count,
            results.as_mut_ptr(),
            address,
            bytes,
            false,
        )
    });
    ok(hipDeviceSynchronize());
    operands.compare(&y.read(operands.bytes()));
    let times: Vec<f32> = results[..count as usize].iter().map(|r| r.time).collect();
    assert!(times.is_sorted() && times[0] > 0.0, "{times:?}");
    let offered: Vec<f32> = setup.solutions().iter().map(|s| s.time).collect();
    assert_eq!(offered[..times.len()], times);
}

#[test]
#[ignore = "needs an NVIDIA GPU with cuDNN"]
fn a_graph_repeats_a_convolution_of_cudnn() {
    let _turn = turn();
    let mut operands = Operands::new();
    let mut stream = null_mut();
    ok(unsafe { hipStreamCreateWithFlags(&mut stream, 1) });
    ok(miopenDestroy(operands.setup.handle));
    ok(unsafe { miopenCreateWithStream(&mut operands.setup.handle, stream) });
    let (x, w) = (
        Memory::from(&encode(&operands.x, F32)),
        Memory::from(&encode(&operands.w, F32)),
    );
    let bytes = operands.bytes();
    let y = Memory::new(bytes);
    let solution = operands.setup.solutions()[0];
    let workspace = Memory::new(solution.workspace_size.max(1));
    let address = match solution.workspace_size {
        0 => null_mut(),
        _ => workspace.0,
    };
    let run = || {
        ok(operands.setup.run(
            [x.0, w.0, y.0],
            (address, solution.workspace_size),
            solution.solution_id,
        ))
    };
    // The first run loads kernels.
    run();
    ok(unsafe { hipStreamSynchronize(stream) });
    ok(unsafe { hipMemsetAsync(y.0, 0, bytes, stream) });
    let (mut graph, mut exec) = (null_mut(), null_mut());
    ok(unsafe { hipStreamBeginCapture(stream, 2) });
    run();
    ok(unsafe { hipStreamEndCapture(stream, &mut graph) });
    ok(unsafe { hipStreamSynchronize(stream) });
    assert!(y.read(bytes).iter().all(|&byte| byte == 0), "only recorded");
    ok(unsafe { hipGraphInstantiate(&mut exec, graph, null_mut(), null_mut(), 0) });
    ok(unsafe { hipGraphLaunch(exec, stream) });
    ok(unsafe { hipStreamSynchronize(stream) });
    operands.compare(&y.read(bytes));
    ok(unsafe { hipGraphExecDestroy(exec) });
    ok(unsafe { hipGraphDestroy(graph) });
}
