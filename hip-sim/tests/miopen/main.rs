//! MIOpen's convolutions: the descriptors that it takes and refuses, the solutions that it offers, and what it
//! computes, against the definition in f64.

#[path = "../common/mod.rs"]
mod common;
mod setup;

/// The library under test.
mod api {
    pub use hip_sim::{hip::*, miopen::*};
}

use api::*;
use common::{ok, turn};
use hip_sim::control::hip_sim_wrong;
use setup::*;
use std::ffi::{c_int, c_void, CStr};
use std::ptr::null_mut;

const F64: c_int = 6;
const BAD_PARAMETER: c_int = 3;
const UNKNOWN_ERROR: c_int = 7;

const WINOGRAD: u64 = 84;
const NAIVE: u64 = 85;
const GEMM: u64 = 91;
const IMPLICIT_GEMM: u64 = 107;

/// The simulator's findings as one text.
fn take_reports() -> String {
    common::take_reports().join("\n")
}

#[test]
fn every_solution_computes_the_definition() {
    let _turn = turn();
    for kind in [F16, F32, BF16] {
        let [plain, others @ ..] = problems();
        let expected: &[u64] = match kind {
            BF16 => &[IMPLICIT_GEMM, GEMM, NAIVE],
            _ => &[WINOGRAD, IMPLICIT_GEMM, GEMM, NAIVE],
        };
        assert_eq!(check(kind, plain, 0.0), expected);
        for problem in others {
            assert!(!check(kind, problem, 0.0).is_empty());
        }
    }
    let product = ([[1, 4, 3, 3], [5, 4, 1, 1], [1, 5, 3, 3]], PLAIN);
    assert_eq!(check(F32, product, 0.0), [GEMM, NAIVE]);
    assert!(
        Setup::new(F64, [[1, 1, 3, 3], [1, 1, 1, 1], [1, 1, 3, 3]], PLAIN)
            .solutions()
            .is_empty()
    );
    assert_eq!(take_reports(), "");
}

#[test]
fn an_injected_fault_spoils_convolutions_of_its_type() {
    let _turn = turn();
    let [plain, ..] = problems();
    let wrong = |faults: &CStr| ok(unsafe { hip_sim_wrong(faults.as_ptr()) });
    wrong(c"miopen:f16");
    assert!(!check(F32, plain, 0.0).is_empty());
    let spoiled = std::panic::catch_unwind(|| check(F16, plain, 0.1));
    wrong(c"");
    assert!(spoiled.is_err());
    assert!(!check(F16, plain, 0.0).is_empty());
}

#[test]
fn strides_are_for_the_reference_kernel() {
    let _turn = turn();
    let dims = [[1, 2, 3, 3], [2, 2, 2, 2], [1, 2, 2, 2]];
    let gaps = [[18, 9, 3, 1], [8, 4, 2, 1], [8, 4, 2, 1]].map(|s: [c_int; 4]| s);
    let gaps = [[36, 18, 6, 2], gaps[1], gaps[2]];
    let setup = Setup::strided(F32, dims, gaps, PLAIN);
    assert_eq!(setup.ids(), [NAIVE]);
    let x = integers(36, 3);
    let dense: Vec<f64> = x.iter().step_by(2).copied().collect();
    let w = integers(16, 4);
    let (xm, wm) = (
        Memory::from(&encode(&x, F32)),
        Memory::from(&encode(&w, F32)),
    );
    let y = Memory::new(32);
    let memory = [xm.0, wm.0, y.0];
    ok(setup.run(memory, (null_mut(), 0), NAIVE));
    assert_eq!(
        decode(&y.read(32), F32),
        definition(&dense, &w, dims, PLAIN)
    );
    assert_eq!(setup.run(memory, (null_mut(), 0), WINOGRAD), BAD_PARAMETER);
    assert!(take_reports().contains("packed: false"));
    // A dimension of one element may have any stride.
    let strides = [[1000, 9, 3, 1], [8, 4, 2, 1], [8, 4, 2, 1]];
    let one = Setup::strided(F32, dims, strides, PLAIN);
    assert!(one.ids().contains(&WINOGRAD));
}

#[test]
fn memory_of_another_device_needs_access() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "convolves_memory_of_another_device",
            "--include-ignored",
        ])
        .env("HIP_SIM_DEVICES", "2")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{log}");
}

#[test]
#[ignore = "helper process of the test above"]
fn convolves_memory_of_another_device() {
    if std::env::var_os("HIP_SIM_DEVICES").is_none() {
        return;
    }
    let setup = Setup::new(F32, [[1, 1, 3, 3], [1, 1, 1, 1], [1, 1, 3, 3]], PLAIN);
    let (w, y) = (Memory::from(&encode(&[2.0], F32)), Memory::new(36));
    ok(hipSetDevice(1));
    let x = Memory::from(&encode(&[1.0; 9], F32));
    ok(hipSetDevice(0));
    let run = || setup.run([x.0, w.0, y.0], (null_mut(), 0), NAIVE);
    assert_eq!(run(), UNKNOWN_ERROR);
    assert!(take_reports().contains("x lies on device 1, to which device 0 has no access"));
    assert_eq!(hipDeviceSynchronize(), 700);
    ok(hipDeviceEnablePeerAccess(1, 0));
    ok(run());
    assert_eq!(decode(&y.read(36), F32), [2.0; 9]);
}

#[test]
fn descriptors_are_refused_as_the_real_ones_are() {
    let _turn = turn();
    let mut tensor = null_mut();
    ok(unsafe { miopenCreateTensorDescriptor(&mut tensor) });
    let set = |kind, rank, dims: &[c_int], strides: Option<&[c_int]>| unsafe {
        let strides = strides.map_or(std::ptr::null(), <[c_int]>::as_ptr);
        miopenSetTensorDescriptor(tensor, kind, rank, dims.as_ptr(), strides)
    };
    let dims = [2, 3, 4, 5];
    ok(set(F16, 4, &dims, None));
    let (mut kind, mut got, mut strides) = (9, [0; 4], [0; 4]);
    ok(unsafe {
        miopenGetTensorDescriptor(tensor, &mut kind, got.as_mut_ptr(), strides.as_mut_ptr())
    });
    assert_eq!((kind, got, strides), (F16, dims, [60, 20, 5, 1]));
    for wrong in [[2, 0, 4, 5], [2, -3, 4, 5]] {
        assert_eq!(set(F32, 4, &wrong, None), BAD_PARAMETER);
    }
    // Broadcast dimensions are.
    assert_eq!(set(F32, 4, &dims, Some(&[60, 0, 5, 1])), BAD_PARAMETER);
    for kind in [-1, 4, 99] {
        assert_eq!(set(kind, 4, &dims, None), BAD_PARAMETER);
    }
    assert_eq!(set(F32, 0, &dims, None), 2);
    ok(miopenDestroyTensorDescriptor(tensor));

    let mut options = null_mut();
    ok(unsafe { miopenCreateConvolutionDescriptor(&mut options) });
    let init = |mode, padding, stride, dilation| {
        miopenInitConvolutionDescriptor(options, mode, padding, 0, stride, 1, dilation, 1)
    };
    ok(init(0, 0, 1, 1));
    for (mode, padding, stride, dilation) in
        [(0, -1, 1, 1), (0, 0, 0, 1), (0, 0, 1, 0), (7, 0, 1, 1)]
    {
        assert_eq!(init(mode, padding, stride, dilation), BAD_PARAMETER);
    }
    ok(miopenInitConvolutionDescriptor(
        options, 1, 0, 1, 1, 2, 1, 3,
    ));
    let mut got = [0; 7];
    let [mode, ph, pw, sh, sw, dh, dw] = &mut got;
    ok(unsafe { miopenGetConvolutionDescriptor(options, mode, ph, pw, sh, sw, dh, dw) });
    assert_eq!(got, [1, 0, 1, 1, 2, 1, 3]);
    ok(miopenSetConvolutionAttribute(options, 1, 1));
    for (attribute, value) in [(1, 2), (0, 5), (9, 0)] {
        let status = miopenSetConvolutionAttribute(options, attribute, value);
        assert_eq!(status, BAD_PARAMETER);
    }
    for mode in [0, 4, 99] {
        assert_eq!(miopenSetConvolutionFindMode(options, mode), BAD_PARAMETER);
    }
    assert_eq!(take_reports(), "");
    assert_eq!(miopenSetConvolutionGroupCount(options, 0), BAD_PARAMETER);
    assert!(take_reports().contains("0 groups"));
    ok(miopenDestroyConvolutionDescriptor(options));
    assert_eq!(miopenDestroyConvolutionDescriptor(options), BAD_PARAMETER);
    assert!(take_reports().contains("unknown convolution descriptor"));
}

#[test]
fn the_output_size_is_computed_per_axis_and_compared() {
    let _turn = turn();
    let sequence = Options {
        padding: [0, 1],
        ..PLAIN
    };
    let dims = [[1, 3, 1, 8], [2, 3, 1, 3], [1, 2, 1, 8]];
    let size = |setup: &Setup| {
        let mut out = [0; 4];
        let [n, c, h, w] = &mut out;
        ok(unsafe {
            miopenGetConvolutionForwardOutputDim(setup.options, setup.x, setup.w, n, c, h, w)
        });
        out
    };
    let setup = Setup::new(F32, dims, sequence);
    assert_eq!(size(&setup), dims[2]);
    assert!(setup.count().unwrap() > 0);
    // A sequence's padding on the height: the real library would answer with success and zeros.
    let wrong = Setup::new(
        F32,
        dims,
        Options {
            padding: [1, 0],
            ..PLAIN
        },
    );
    assert_eq!(size(&wrong), [1, 2, 3, 6]);
    assert_eq!(wrong.count(), Err(BAD_PARAMETER));
    assert!(take_reports().contains("is the padding on the right axis?"));
    // Channels that do not fit the groups.
    let grouped = Options {
        groups: 2,
        ..sequence
    };
    let setup = Setup::new(F32, dims, grouped);
    assert_eq!(setup.count(), Err(BAD_PARAMETER));
    assert_eq!(take_reports(), "");
}

#[test]
fn wrong_calls_are_reported() {
    let _turn = turn();
    let dims = [[1, 2, 4, 4], [2, 2, 3, 3], [1, 2, 2, 2]];
    let setup = Setup::new(F32, dims, PLAIN);
    let (x, w) = (
        Memory::from(&encode(&integers(32, 1), F32)),
        Memory::from(&encode(&integers(36, 2), F32)),
    );
    let (y, workspace) = (Memory::new(32), Memory::new(32));
    let memory = [x.0, w.0, y.0];
    let none = (null_mut(), 0);
    assert_eq!(
        setup.run([x.0, null_mut(), y.0], none, NAIVE),
        BAD_PARAMETER
    );
    assert_eq!(setup.run(memory, none, 12345), BAD_PARAMETER);
    assert_eq!(take_reports(), "");
    for (workspace, status, finding) in [
        (
            none,
            UNKNOWN_ERROR,
            "needs a workspace of 32 bytes and gets 0",
        ),
        ((workspace.0, 16), UNKNOWN_ERROR, "gets 16"),
        ((workspace.0, 0), BAD_PARAMETER, "a workspace of 0 bytes"),
        ((null_mut(), 32), BAD_PARAMETER, "a workspace of 32 bytes"),
    ] {
        assert_eq!(setup.run(memory, workspace, IMPLICIT_GEMM), status);
        let reports = take_reports();
        assert!(reports.contains(finding), "{reports}");
    }
    ok(setup.run(memory, (workspace.0, 32), IMPLICIT_GEMM));
    assert_eq!(take_reports(), "");
    // A workspace that was given back, and an output that covers the input.
    let freed = Memory::new(32);
    let address = freed.0;
    drop(freed);
    assert_eq!(
        setup.run(memory, (address, 32), IMPLICIT_GEMM),
        UNKNOWN_ERROR
    );
    assert!(take_reports().contains("the workspace (32 bytes"));
    assert_ne!(hipDeviceSynchronize(), 0, "a fault surfaces");
    ok(setup.run([x.0, w.0, x.0], none, NAIVE));
    assert!(take_reports().contains("y overlaps x"));
}

#[test]
fn a_capture_keeps_convolutions_and_refuses_to_compile() {
    let _turn = turn();
    let dims = [[1, 2, 4, 4], [2, 2, 3, 3], [1, 2, 2, 2]];
    let mut setup = Setup::new(F32, dims, PLAIN);
    let mut stream = null_mut();
    ok(unsafe { hipStreamCreate(&mut stream) });
    ok(miopenDestroy(setup.handle));
    ok(unsafe { miopenCreateWithStream(&mut setup.handle, stream) });
    let (x, w) = (integers(32, 1), integers(36, 2));
    let (xm, wm) = (
        Memory::from(&encode(&x, F32)),
        Memory::from(&encode(&w, F32)),
    );
    let (y, workspace) = (Memory::new(32), Memory::new(32));
    let memory = [xm.0, wm.0, y.0];
    let run = |setup: &Setup| setup.run(memory, (workspace.0, 32), IMPLICIT_GEMM);
    let (mut graph, mut exec) = (null_mut(), null_mut());

    ok(hipStreamBeginCapture(stream, 2));
    assert_eq!(run(&setup), UNKNOWN_ERROR);
    assert!(take_reports().contains("kernels are loaded while the stream is captured"));
    assert_ne!(unsafe { hipStreamEndCapture(stream, &mut graph) }, 0);

    ok(setup.compile(IMPLICIT_GEMM));
    ok(hipStreamBeginCapture(stream, 2));
    ok(run(&setup));
    ok(unsafe { hipStreamEndCapture(stream, &mut graph) });
    ok(unsafe { hipGraphInstantiate(&mut exec, graph, null_mut(), null_mut(), 0) });
    ok(hipGraphLaunch(exec, stream));
    ok(hipStreamSynchronize(stream));
    assert_eq!(decode(&y.read(32), F32), definition(&x, &w, dims, PLAIN));
    // What a graph uses must live as long as it.
    drop(workspace);
    assert_ne!(hipGraphLaunch(exec, stream), 0);
    assert!(take_reports().contains("the workspace (32 bytes"));
    hipDeviceSynchronize();
    ok(hipGraphExecDestroy(exec));
    ok(hipGraphDestroy(graph));
    ok(hipStreamDestroy(stream));
}

#[test]
fn find_measures_what_fits_the_workspace() {
    let _turn = turn();
    let dims = [[1, 2, 4, 4], [2, 2, 3, 3], [1, 2, 2, 2]];
    let setup = Setup::new(F32, dims, PLAIN);
    let (x, w) = (integers(32, 1), integers(36, 2));
    let (xm, wm) = (
        Memory::from(&encode(&x, F32)),
        Memory::from(&encode(&w, F32)),
    );
    let mut bytes = 0;
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
    // The columns: 2 channels, 9 taps, 4 positions.
    assert_eq!(bytes, 2 * 9 * 4 * 4);
    let (y, workspace) = (Memory::new(32), Memory::new(bytes));
    let find = |workspace: *mut c_void, bytes| {
        let (mut count, mut results) = (0, [miopenConvAlgoPerf_t::default(); 8]);
        ok(unsafe {
            miopenFindConvolutionForwardAlgorithm(
                setup.handle,
                setup.x,
                xm.0,
                setup.w,
                wm.0,
                setup.options,
                setup.y,
                y.0,
                8,
                &mut count,
                results.as_mut_ptr(),
                workspace,
                bytes,
                false,
            )
        });
        results[..count as usize]
            .iter()
            .map(|r| r.algorithm)
            .collect::<Vec<_>>()
    };
    assert_eq!(find(workspace.0, bytes), [3, 5, 0, 1]);
    assert_eq!(find(null_mut(), 0), [3, 1]);
    assert_eq!(decode(&y.read(32), F32), definition(&x, &w, dims, PLAIN));
}

#[test]
fn calls_are_counted_and_fail_on_demand() {
    let _turn = turn();
    let name = c"miopenConvolutionForwardGetSolutionCount";
    let setup = Setup::new(F32, [[1, 2, 4, 4], [2, 2, 3, 3], [1, 2, 2, 2]], PLAIN);
    let calls = || unsafe { hip_sim_miopen_calls(name.as_ptr()) };
    let before = calls();
    unsafe { hip_sim_miopen_fail(name.as_ptr(), 2, 6) };
    assert!(setup.count().is_ok());
    assert_eq!(setup.count(), Err(6));
    assert!(setup.count().is_ok());
    assert_eq!(calls() - before, 3);
    unsafe { hip_sim_miopen_fail(name.as_ptr(), 1, 6) };
    unsafe { hip_sim_miopen_fail(name.as_ptr(), 0, 6) };
    assert!(setup.count().is_ok());
}
