//! MIOpen's convolutions: the descriptors that it takes and refuses, the solutions that it offers, and what it computes, against the
//! definition in f64.

mod common;

use common::{ok, turn};
use half::{bf16, f16};
use hip_sim::hip::*;
use hip_sim::miopen::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

const F16: c_int = 0;
const F32: c_int = 1;
const BF16: c_int = 5;
const F64: c_int = 6;
const BAD_PARAMETER: c_int = 3;
const UNKNOWN_ERROR: c_int = 7;

const WINOGRAD: u64 = 84;
const NAIVE: u64 = 85;
const GEMM: u64 = 91;
const IMPLICIT_GEMM: u64 = 107;

#[derive(Clone, Copy, Debug)]
struct Options {
    transposed: bool,
    padding: [c_int; 2],
    stride: [c_int; 2],
    dilation: [c_int; 2],
    output_padding: [c_int; 2],
    groups: c_int,
}

const PLAIN: Options = Options {
    transposed: false,
    padding: [0; 2],
    stride: [1; 2],
    dilation: [1; 2],
    output_padding: [0; 2],
    groups: 1,
};

fn packed(dims: [c_int; 4]) -> [c_int; 4] {
    let [_, c, h, w] = dims;
    [c * h * w, h * w, w, 1]
}

/// A handle and the four descriptors of one convolution.
struct Setup {
    handle: miopenHandle_t,
    x: miopenTensorDescriptor_t,
    w: miopenTensorDescriptor_t,
    y: miopenTensorDescriptor_t,
    options: miopenConvolutionDescriptor_t,
}

impl Setup {
    fn new(kind: c_int, dims: [[c_int; 4]; 3], options: Options) -> Setup {
        Setup::strided(kind, dims, dims.map(packed), options)
    }

    fn strided(
        kind: c_int,
        dims: [[c_int; 4]; 3],
        strides: [[c_int; 4]; 3],
        options: Options,
    ) -> Setup {
        let mut setup = Setup {
            handle: null_mut(),
            x: null_mut(),
            w: null_mut(),
            y: null_mut(),
            options: null_mut(),
        };
        let Options {
            transposed,
            padding: [ph, pw],
            stride: [sh, sw],
            dilation: [dh, dw],
            output_padding: [oh, ow],
            groups,
        } = options;
        unsafe {
            ok(miopenCreateWithStream(&mut setup.handle, null_mut()));
            let tensors = [&mut setup.x, &mut setup.w, &mut setup.y];
            for ((tensor, dims), strides) in tensors.into_iter().zip(dims).zip(strides) {
                ok(miopenCreateTensorDescriptor(tensor));
                ok(miopenSetTensorDescriptor(
                    *tensor,
                    kind,
                    4,
                    dims.as_ptr(),
                    strides.as_ptr(),
                ));
            }
            ok(miopenCreateConvolutionDescriptor(&mut setup.options));
        }
        let mode = transposed as c_int;
        ok(miopenInitConvolutionDescriptor(
            setup.options,
            mode,
            ph,
            pw,
            sh,
            sw,
            dh,
            dw,
        ));
        ok(miopenSetTransposeConvOutputPadding(setup.options, oh, ow));
        ok(miopenSetConvolutionGroupCount(setup.options, groups));
        setup
    }

    fn count(&self) -> Result<usize, c_int> {
        let mut count = 0;
        let Setup { x, w, y, .. } = *self;
        let status = unsafe {
            miopenConvolutionForwardGetSolutionCount(self.handle, w, x, self.options, y, &mut count)
        };
        if status == 0 {
            Ok(count)
        } else {
            Err(status)
        }
    }

    fn solutions(&self) -> Vec<miopenConvSolution_t> {
        let mut count = self.count().unwrap();
        let mut solutions = vec![miopenConvSolution_t::default(); count];
        ok(unsafe {
            miopenConvolutionForwardGetSolution(
                self.handle,
                self.w,
                self.x,
                self.options,
                self.y,
                count,
                &mut count,
                solutions.as_mut_ptr(),
            )
        });
        assert_eq!(count, solutions.len());
        solutions
    }

    fn ids(&self) -> Vec<u64> {
        self.solutions().iter().map(|s| s.solution_id).collect()
    }

    fn compile(&self, id: u64) -> c_int {
        miopenConvolutionForwardCompileSolution(
            self.handle,
            self.w,
            self.x,
            self.options,
            self.y,
            id,
        )
    }

    fn run(&self, memory: [*mut c_void; 3], workspace: (*mut c_void, usize), id: u64) -> c_int {
        let [x, w, y] = memory;
        unsafe {
            miopenConvolutionForwardImmediate(
                self.handle,
                self.w,
                w,
                self.x,
                x,
                self.options,
                self.y,
                y,
                workspace.0,
                workspace.1,
                id,
            )
        }
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        for tensor in [self.x, self.w, self.y] {
            ok(miopenDestroyTensorDescriptor(tensor));
        }
        ok(miopenDestroyConvolutionDescriptor(self.options));
        ok(miopenDestroy(self.handle));
    }
}

/// The simulator's findings as one text.
fn take_reports() -> String {
    common::take_reports().join("\n")
}

struct Memory(*mut c_void);

impl Memory {
    fn new(bytes: usize) -> Memory {
        let mut pointer = null_mut();
        ok(unsafe { hipMalloc(&mut pointer, bytes) });
        Memory(pointer)
    }

    fn from(bytes: &[u8]) -> Memory {
        let memory = Memory::new(bytes.len());
        let (to, from) = (memory.0, bytes.as_ptr().cast());
        ok(unsafe { hipMemcpy(to, from, bytes.len(), 1) });
        memory
    }

    fn read(&self, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        ok(unsafe { hipMemcpy(out.as_mut_ptr().cast(), self.0, bytes, 2) });
        out
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        ok(hipFree(self.0));
    }
}

fn encode(values: &[f64], kind: c_int) -> Vec<u8> {
    let one = |v: &f64| match kind {
        F16 => f16::from_f64(*v).to_ne_bytes().to_vec(),
        BF16 => bf16::from_f64(*v).to_ne_bytes().to_vec(),
        _ => (*v as f32).to_ne_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}

fn decode(bytes: &[u8], kind: c_int) -> Vec<f64> {
    let half = |b: &[u8]| [b[0], b[1]];
    match kind {
        F16 => (bytes
            .chunks(2)
            .map(|b| f16::from_ne_bytes(half(b)).to_f64()))
        .collect(),
        BF16 => (bytes
            .chunks(2)
            .map(|b| bf16::from_ne_bytes(half(b)).to_f64()))
        .collect(),
        _ => (bytes.chunks(4))
            .map(|b| f32::from_ne_bytes(b.try_into().unwrap()) as f64)
            .collect(),
    }
}

/// Small integers, which every type sums exactly.
fn integers(count: usize, seed: u64) -> Vec<f64> {
    (0..count as u64)
        .map(|i| ((i * 7 + seed * 13 + i * i / 3) % 5) as f64 - 2.0)
        .collect()
}

/// The definition, output by output.
fn definition(
    x: &[f64],
    w: &[f64],
    [x_dims, w_dims, y_dims]: [[c_int; 4]; 3],
    o: Options,
) -> Vec<f64> {
    let [n, c_out, out_h, out_w] = y_dims;
    let [_, c_in, in_h, in_w] = x_dims;
    let (in_group, out_group) = (c_in / o.groups, c_out / o.groups);
    // The input that a tap of an output sees.
    let source = |axis: usize, out: c_int, tap: c_int, size: c_int| {
        let position = match o.transposed {
            false => out * o.stride[axis] + tap * o.dilation[axis] - o.padding[axis],
            true => {
                let distance = out + o.padding[axis] - tap * o.dilation[axis];
                if distance % o.stride[axis] != 0 {
                    return None;
                }
                distance / o.stride[axis]
            }
        };
        (0..size).contains(&position).then_some(position)
    };
    let mut y = Vec::new();
    for i in 0..n * c_out * out_h * out_w {
        let (image, co) = (i / (c_out * out_h * out_w), i / (out_h * out_w) % c_out);
        let (oy, ox) = (i / out_w % out_h, i % out_w);
        let mut sum = 0.0;
        for ci in 0..in_group {
            let input = co / out_group * in_group + ci;
            for ky in 0..w_dims[2] {
                for kx in 0..w_dims[3] {
                    let (Some(iy), Some(ix)) = (source(0, oy, ky, in_h), source(1, ox, kx, in_w))
                    else {
                        continue;
                    };
                    let filter = match o.transposed {
                        false => co * in_group + ci,
                        true => input * out_group + co % out_group,
                    };
                    let weight = w[((filter * w_dims[2] + ky) * w_dims[3] + kx) as usize];
                    sum += weight * x[(((image * c_in + input) * in_h + iy) * in_w + ix) as usize];
                }
            }
        }
        y.push(sum);
    }
    y
}

fn elements(dims: [c_int; 4]) -> usize {
    dims.iter().product::<c_int>() as usize
}

/// Runs every solution and compares it.
fn check(kind: c_int, dims: [[c_int; 4]; 3], options: Options) -> Vec<u64> {
    let setup = Setup::new(kind, dims, options);
    let (x, w) = (
        integers(elements(dims[0]), 1),
        integers(elements(dims[1]), 2),
    );
    let want = definition(&x, &w, dims, options);
    let solutions = setup.solutions();
    for solution in &solutions {
        let (xm, wm) = (
            Memory::from(&encode(&x, kind)),
            Memory::from(&encode(&w, kind)),
        );
        let bytes = encode(&want, kind).len();
        let y = Memory::new(bytes);
        let workspace = Memory::new(solution.workspace_size.max(1));
        let address = match solution.workspace_size {
            0 => null_mut(),
            _ => workspace.0,
        };
        ok(setup.compile(solution.solution_id));
        ok(setup.run(
            [xm.0, wm.0, y.0],
            (address, solution.workspace_size),
            solution.solution_id,
        ));
        assert_eq!(
            decode(&y.read(bytes), kind),
            want,
            "{kind} {dims:?} {options:?} {solution:?}"
        );
    }
    setup.ids()
}

#[test]
fn every_solution_computes_the_definition() {
    let _turn = turn();
    for kind in [F16, F32, BF16] {
        let plain = check(kind, [[2, 4, 5, 6], [3, 4, 3, 2], [2, 3, 3, 5]], PLAIN);
        let expected: &[u64] = match kind {
            BF16 => &[IMPLICIT_GEMM, GEMM, NAIVE],
            _ => &[WINOGRAD, IMPLICIT_GEMM, GEMM, NAIVE],
        };
        assert_eq!(plain, expected);
        let options = Options {
            padding: [2, 1],
            stride: [2, 3],
            dilation: [1, 2],
            ..PLAIN
        };
        check(kind, [[1, 4, 5, 6], [3, 4, 3, 2], [1, 3, 4, 2]], options);
        let grouped = Options {
            groups: 2,
            padding: [0, 1],
            ..PLAIN
        };
        check(kind, [[2, 4, 3, 6], [6, 2, 1, 3], [2, 6, 3, 6]], grouped);
        let transposed = Options {
            transposed: true,
            padding: [1, 0],
            stride: [2, 1],
            output_padding: [1, 0],
            ..PLAIN
        };
        check(kind, [[2, 4, 3, 5], [4, 3, 3, 2], [2, 3, 6, 6]], transposed);
        let transposed = Options {
            groups: 2,
            dilation: [2, 2],
            ..transposed
        };
        check(kind, [[2, 4, 3, 5], [4, 3, 3, 2], [2, 6, 8, 7]], transposed);
    }
    let product = check(F32, [[1, 4, 3, 3], [5, 4, 1, 1], [1, 5, 3, 3]], PLAIN);
    assert_eq!(product, [GEMM, NAIVE]);
    assert!(
        Setup::new(F64, [[1, 1, 3, 3], [1, 1, 1, 1], [1, 1, 3, 3]], PLAIN)
            .solutions()
            .is_empty()
    );
    assert_eq!(take_reports(), "");
}

/// Only the reference kernel takes tensors with gaps; the real library runs others on them if told to, and gives wrong results.
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
