//! A convolution to ask MIOpen for, memory, and the definition in f64.

use crate::api::*;
use crate::common::ok;
use half::{bf16, f16};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

pub const F16: c_int = 0;
pub const F32: c_int = 1;
pub const BF16: c_int = 5;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub transposed: bool,
    pub padding: [c_int; 2],
    pub stride: [c_int; 2],
    pub dilation: [c_int; 2],
    pub output_padding: [c_int; 2],
    pub groups: c_int,
}

pub const PLAIN: Options = Options {
    transposed: false,
    padding: [0; 2],
    stride: [1; 2],
    dilation: [1; 2],
    output_padding: [0; 2],
    groups: 1,
};

pub fn packed(dims: [c_int; 4]) -> [c_int; 4] {
    let [_, c, h, w] = dims;
    [c * h * w, h * w, w, 1]
}

/// A handle and the four descriptors of one convolution.
pub struct Setup {
    pub handle: miopenHandle_t,
    pub x: miopenTensorDescriptor_t,
    pub w: miopenTensorDescriptor_t,
    pub y: miopenTensorDescriptor_t,
    pub options: miopenConvolutionDescriptor_t,
}

impl Setup {
    pub fn new(kind: c_int, dims: [[c_int; 4]; 3], options: Options) -> Setup {
        Setup::strided(kind, dims, dims.map(packed), options)
    }

    pub fn strided(
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

    pub fn count(&self) -> Result<usize, c_int> {
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

    pub fn solutions(&self) -> Vec<miopenConvSolution_t> {
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

    pub fn ids(&self) -> Vec<u64> {
        self.solutions().iter().map(|s| s.solution_id).collect()
    }

    pub fn compile(&self, id: u64) -> c_int {
        miopenConvolutionForwardCompileSolution(
            self.handle,
            self.w,
            self.x,
            self.options,
            self.y,
            id,
        )
    }

    pub fn run(&self, memory: [*mut c_void; 3], workspace: (*mut c_void, usize), id: u64) -> c_int {
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

pub struct Memory(pub *mut c_void);

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        let mut pointer = null_mut();
        ok(unsafe { hipMalloc(&mut pointer, bytes) });
        Memory(pointer)
    }

    pub fn from(bytes: &[u8]) -> Memory {
        let memory = Memory::new(bytes.len());
        let (to, from) = (memory.0, bytes.as_ptr().cast());
        ok(unsafe { hipMemcpyAsync(to, from, bytes.len(), 1, null_mut()) });
        ok(hipDeviceSynchronize());
        memory
    }

    pub fn read(&self, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        let to = out.as_mut_ptr().cast();
        ok(unsafe { hipMemcpyAsync(to, self.0, bytes, 2, null_mut()) });
        ok(hipDeviceSynchronize());
        out
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        ok(hipFree(self.0));
    }
}

pub fn encode(values: &[f64], kind: c_int) -> Vec<u8> {
    let one = |v: &f64| match kind {
        F16 => f16::from_f64(*v).to_ne_bytes().to_vec(),
        BF16 => bf16::from_f64(*v).to_ne_bytes().to_vec(),
        _ => (*v as f32).to_ne_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}

pub fn decode(bytes: &[u8], kind: c_int) -> Vec<f64> {
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
pub fn integers(count: usize, seed: u64) -> Vec<f64> {
    (0..count as u64)
        .map(|i| ((i * 7 + seed * 13 + i * i / 3) % 5) as f64 - 2.0)
        .collect()
}

/// The definition, output by output.
pub fn definition(
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

pub fn elements(dims: [c_int; 4]) -> usize {
    dims.iter().product::<c_int>() as usize
}

/// Sizes of `x`, `w` and `y`, and the options that lead from one to the other.
pub type Problem = ([[c_int; 4]; 3], Options);

/// Plain, with every option, grouped, transposed, and transposed with groups.
pub fn problems() -> [Problem; 5] {
    let strided = Options {
        padding: [2, 1],
        stride: [2, 3],
        dilation: [1, 2],
        ..PLAIN
    };
    let grouped = Options {
        groups: 2,
        padding: [0, 1],
        ..PLAIN
    };
    let transposed = Options {
        transposed: true,
        padding: [1, 0],
        stride: [2, 1],
        output_padding: [1, 0],
        ..PLAIN
    };
    let both = Options {
        groups: 2,
        dilation: [2, 2],
        ..transposed
    };
    [
        ([[2, 4, 5, 6], [3, 4, 3, 2], [2, 3, 3, 5]], PLAIN),
        ([[1, 4, 5, 6], [3, 4, 3, 2], [1, 3, 4, 2]], strided),
        ([[2, 4, 3, 6], [6, 2, 1, 3], [2, 6, 3, 6]], grouped),
        ([[2, 4, 3, 5], [4, 3, 3, 2], [2, 3, 6, 6]], transposed),
        ([[2, 4, 3, 5], [4, 3, 3, 2], [2, 6, 8, 7]], both),
    ]
}

/// Runs every solution and compares it; the solutions' numbers. Values may be off by so much of the larger of 1 and
/// what they should be.
pub fn check(kind: c_int, (dims, options): Problem, tolerance: f64) -> Vec<u64> {
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
        let got = decode(&y.read(bytes), kind);
        assert!(
            are_close(&got, &want, tolerance),
            "{kind} {dims:?} {options:?} {solution:?}: {got:?} is not {want:?}"
        );
    }
    setup.ids()
}

/// Whether values are off by at most so much of the larger of 1 and what they should be.
pub fn are_close(got: &[f64], want: &[f64], tolerance: f64) -> bool {
    (got.iter().zip(want)).all(|(got, want)| (got - want).abs() <= tolerance * want.abs().max(1.0))
}
