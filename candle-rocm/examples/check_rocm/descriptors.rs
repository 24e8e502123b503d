//! MIOpen's descriptors, which need no GPU: what was set is what is read, each option belongs to its axis, and what
//! hip-sim's MIOpen refuses is what the real one refuses.

use candle_rocm::sys::miopen::{self, MiOpen};
use std::ffi::c_int;
use std::ptr;

const BAD_PARAMETER: c_int = 3;

/// Counts checks, and keeps those that failed.
#[derive(Default)]
struct Checks {
    done: usize,
    failed: Vec<String>,
}

impl Checks {
    fn equal<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, got: T, expected: T) {
        self.done += 1;
        if got != expected {
            self.failed
                .push(format!("{what}: {got:?} instead of {expected:?}"));
        }
    }
}

fn strides([_, c, h, w]: [c_int; 4]) -> [c_int; 4] {
    [c * h * w, h * w, w, 1]
}

/// A convolution's mode, options (height and width of padding, stride and dilation), output padding, and the sizes that
/// go with it.
struct Case {
    mode: c_int,
    options: [c_int; 6],
    output_padding: [c_int; 2],
    x: [c_int; 4],
    kernel: [c_int; 4],
    y: [c_int; 4],
}

const CASES: [Case; 3] = [
    // A sequence: its padding belongs to the width.
    Case {
        mode: miopen::CONVOLUTION,
        options: [0, 2, 1, 3, 1, 1],
        output_padding: [0; 2],
        x: [2, 3, 1, 20],
        kernel: [7, 3, 1, 5],
        y: [2, 7, 1, 7],
    },
    Case {
        mode: miopen::CONVOLUTION,
        options: [1, 2, 1, 2, 2, 3],
        output_padding: [0; 2],
        x: [2, 3, 9, 8],
        kernel: [7, 3, 3, 2],
        y: [2, 7, 7, 5],
    },
    Case {
        mode: miopen::TRANSPOSE,
        options: [1, 0, 2, 3, 1, 2],
        output_padding: [1, 0],
        x: [2, 3, 4, 5],
        kernel: [3, 7, 2, 3],
        y: [2, 7, 7, 17],
    },
];

pub fn run() -> Result<(), String> {
    let library = MiOpen::get().map_err(|error| error.to_string())?;
    let mut checks = Checks::default();
    // SAFETY: descriptors are used between their creation and their destruction, and every array is as long as the rank
    // says.
    unsafe {
        tensors(&library.functions, &mut checks);
        convolutions(&library.functions, &mut checks);
    }
    for failure in &checks.failed {
        println!("{failure}");
    }
    println!(
        "counts: {} descriptor checks, {} failed",
        checks.done,
        checks.failed.len()
    );
    match checks.failed.is_empty() {
        true => Ok(()),
        false => Err("MIOpen's descriptors are not what the product takes them for".to_string()),
    }
}

/// # Safety
/// `library` is MIOpen.
unsafe fn tensors(library: &MiOpen, checks: &mut Checks) {
    let get = library.miopenGetTensorDescriptor;
    checks.equal("miopenGetTensorDescriptor is there", get.is_some(), true);
    let Some(get) = get else { return };
    let mut tensor = ptr::null_mut();
    // SAFETY: as the caller promises, here and below.
    let created = unsafe { (library.miopenCreateTensorDescriptor)(&mut tensor) };
    checks.equal("creating a tensor descriptor", created, 0);
    let set = |data_type, dims: [c_int; 4], strides: [c_int; 4]| unsafe {
        (library.miopenSetTensorDescriptor)(tensor, data_type, 4, dims.as_ptr(), strides.as_ptr())
    };
    let dims = [2, 3, 4, 5];
    for data_type in [miopen::HALF, miopen::BFLOAT16, miopen::FLOAT] {
        for strides in [strides(dims), [120, 40, 10, 2]] {
            checks.equal("setting a tensor", set(data_type, dims, strides), 0);
            let (mut kind, mut got_dims, mut got_strides) = (-1, [0; 4], [0; 4]);
            let status = unsafe {
                get(
                    tensor,
                    &mut kind,
                    got_dims.as_mut_ptr(),
                    got_strides.as_mut_ptr(),
                )
            };
            let got = (status, kind, got_dims, got_strides);
            checks.equal("a tensor read back", got, (0, data_type, dims, strides));
        }
    }
    for (what, data_type, dims, strides) in [
        (
            "an empty dimension",
            miopen::FLOAT,
            [2, 0, 4, 5],
            [60, 20, 5, 1],
        ),
        (
            "a negative dimension",
            miopen::FLOAT,
            [2, -3, 4, 5],
            [60, 20, 5, 1],
        ),
        ("a broadcast dimension", miopen::FLOAT, dims, [60, 0, 5, 1]),
        ("an unknown type", 99, dims, [60, 20, 5, 1]),
        ("the type -1", -1, dims, [60, 20, 5, 1]),
    ] {
        checks.equal(what, set(data_type, dims, strides), BAD_PARAMETER);
    }
    let destroyed = unsafe { (library.miopenDestroyTensorDescriptor)(tensor) };
    checks.equal("destroying a tensor descriptor", destroyed, 0);
}

/// # Safety
/// `library` is MIOpen.
unsafe fn convolutions(library: &MiOpen, checks: &mut Checks) {
    let get = library.miopenGetConvolutionDescriptor;
    checks.equal(
        "miopenGetConvolutionDescriptor is there",
        get.is_some(),
        true,
    );
    let Some(get) = get else { return };
    let (mut x, mut kernel, mut convolution) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: as the caller promises, here and below.
    let created = unsafe {
        [
            (library.miopenCreateTensorDescriptor)(&mut x),
            (library.miopenCreateTensorDescriptor)(&mut kernel),
            (library.miopenCreateConvolutionDescriptor)(&mut convolution),
        ]
    };
    checks.equal("creating descriptors", created, [0; 3]);
    let init = |mode, [ph, pw, sh, sw, dh, dw]: [c_int; 6]| unsafe {
        (library.miopenInitConvolutionDescriptor)(convolution, mode, ph, pw, sh, sw, dh, dw)
    };
    let set = |tensor, dims: [c_int; 4]| unsafe {
        let strides = strides(dims);
        let (dims, strides) = (dims.as_ptr(), strides.as_ptr());
        (library.miopenSetTensorDescriptor)(tensor, miopen::BFLOAT16, 4, dims, strides)
    };
    let output = || {
        let [mut n, mut c, mut h, mut w] = [0; 4];
        let status = unsafe {
            (library.miopenGetConvolutionForwardOutputDim)(
                convolution,
                x,
                kernel,
                &mut n,
                &mut c,
                &mut h,
                &mut w,
            )
        };
        (status, [n, c, h, w])
    };
    for case in &CASES {
        checks.equal("setting a convolution", init(case.mode, case.options), 0);
        let mut mode = -1;
        let [mut ph, mut pw, mut sh, mut sw, mut dh, mut dw] = [-1; 6];
        let status = unsafe {
            get(
                convolution,
                &mut mode,
                &mut ph,
                &mut pw,
                &mut sh,
                &mut sw,
                &mut dh,
                &mut dw,
            )
        };
        let got = (status, mode, [ph, pw, sh, sw, dh, dw]);
        checks.equal("a convolution read back", got, (0, case.mode, case.options));
        let [oh, ow] = case.output_padding;
        let padded = unsafe { (library.miopenSetTransposeConvOutputPadding)(convolution, oh, ow) };
        checks.equal("setting the output padding", padded, 0);
        let tensors = [set(x, case.x), set(kernel, case.kernel)];
        checks.equal("setting tensors", tensors, [0; 2]);
        checks.equal("the size of the output", output(), (0, case.y));
    }
    checks.equal("channels that do not fit", set(kernel, [4, 7, 2, 3]), 0);
    checks.equal("channels that do not fit", output().0, BAD_PARAMETER);
    for (what, mode, options) in [
        ("negative padding", miopen::CONVOLUTION, [-1, 0, 1, 1, 1, 1]),
        ("a stride of 0", miopen::CONVOLUTION, [0, 0, 0, 1, 1, 1]),
        ("a dilation of 0", miopen::CONVOLUTION, [0, 0, 1, 1, 0, 1]),
        ("an unknown mode", 7, [0, 0, 1, 1, 1, 1]),
    ] {
        checks.equal(what, init(mode, options), BAD_PARAMETER);
    }
    let attribute = |attribute, value| unsafe {
        (library.miopenSetConvolutionAttribute)(convolution, attribute, value)
    };
    let find_mode = |mode| unsafe { (library.miopenSetConvolutionFindMode)(convolution, mode) };
    for (what, status, expected) in [
        (
            "deterministic",
            attribute(miopen::ATTRIBUTE_DETERMINISTIC, 1),
            0,
        ),
        (
            "f16 through f16",
            attribute(miopen::ATTRIBUTE_FP16_ALTERNATIVE, 0),
            0,
        ),
        ("an unknown attribute", attribute(9, 0), BAD_PARAMETER),
        ("find mode", find_mode(miopen::FIND_MODE_NORMAL), 0),
        ("an unknown find mode", find_mode(4), BAD_PARAMETER),
    ] {
        checks.equal(what, status, expected);
    }
    let destroyed = unsafe {
        [
            (library.miopenDestroyTensorDescriptor)(x),
            (library.miopenDestroyTensorDescriptor)(kernel),
            (library.miopenDestroyConvolutionDescriptor)(convolution),
        ]
    };
    checks.equal("destroying descriptors", destroyed, [0; 3]);
}
