//! Descriptors of tensors and convolutions.

use super::{api, lock, misused, put, Failure, Outcome};
use crate::miopen::miopenStatus_t;
use crate::Registry;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock};

pub type miopenTensorDescriptor_t = *mut c_void;
pub type miopenConvolutionDescriptor_t = *mut c_void;
pub type miopenDataType_t = c_int;

/// Values of `miopenDataType_t`, those without a meaning left out.
const DATA_TYPES: [c_int; 9] = [0, 1, 2, 3, 5, 6, 7, 8, 9];
/// Values of `miopenConvolutionFindMode_t`.
const FIND_MODES: [c_int; 6] = [1, 2, 3, 5, 6, 7];

/// A tensor: nothing is set when it is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tensor {
    pub data_type: c_int,
    pub dims: Vec<usize>,
    pub strides: Vec<usize>,
}

/// Strides of a tensor without gaps.
fn packed(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i];
    }
    strides
}

impl Tensor {
    /// Whether its elements lie row-major without gaps; the stride of a dimension of one element does not matter.
    pub fn is_packed(&self) -> bool {
        let expected = packed(&self.dims);
        (self.dims.iter())
            .zip(self.strides.iter().zip(&expected))
            .all(|(&dim, (stride, expected))| dim == 1 || stride == expected)
    }

    /// Elements from the first to the last.
    pub fn span(&self) -> usize {
        let last = (self.dims.iter().zip(&self.strides)).map(|(dim, stride)| (dim - 1) * stride);
        last.sum::<usize>() + 1
    }
}

/// A convolution's options, vertical and horizontal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    pub transposed: bool,
    pub padding: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    pub output_padding: [usize; 2],
    pub groups: usize,
    pub deterministic: bool,
}

impl Default for Convolution {
    fn default() -> Self {
        Convolution {
            transposed: false,
            padding: [0; 2],
            stride: [1; 2],
            dilation: [1; 2],
            output_padding: [0; 2],
            groups: 1,
            deterministic: false,
        }
    }
}

fn tensors() -> &'static Registry<Mutex<Tensor>> {
    static TENSORS: OnceLock<Registry<Mutex<Tensor>>> = OnceLock::new();
    TENSORS.get_or_init(Registry::default)
}

fn convolutions() -> &'static Registry<Mutex<Convolution>> {
    static CONVOLUTIONS: OnceLock<Registry<Mutex<Convolution>>> = OnceLock::new();
    CONVOLUTIONS.get_or_init(Registry::default)
}

/// The tensor behind a descriptor. The real library reads freed memory instead of refusing.
pub(super) fn tensor(
    function: &str,
    descriptor: miopenTensorDescriptor_t,
) -> Outcome<Arc<Mutex<Tensor>>> {
    (tensors().get(descriptor)).ok_or_else(|| misused(function, "unknown tensor descriptor"))
}

/// The options behind a descriptor.
pub(super) fn convolution(
    function: &str,
    descriptor: miopenConvolutionDescriptor_t,
) -> Outcome<Arc<Mutex<Convolution>>> {
    (convolutions().get(descriptor))
        .ok_or_else(|| misused(function, "unknown convolution descriptor"))
}

#[no_mangle]
pub unsafe extern "C" fn miopenCreateTensorDescriptor(
    out: *mut miopenTensorDescriptor_t,
) -> miopenStatus_t {
    api("miopenCreateTensorDescriptor", || {
        // SAFETY: the caller's pointer.
        unsafe { put(out, tensors().insert(Arc::default())) }
    })
}

#[no_mangle]
pub extern "C" fn miopenDestroyTensorDescriptor(
    descriptor: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    const NAME: &str = "miopenDestroyTensorDescriptor";
    api(NAME, || {
        let removed = tensors().remove(descriptor).map(|_| ());
        removed.ok_or_else(|| misused(NAME, "unknown tensor descriptor"))
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenSetTensorDescriptor(
    descriptor: miopenTensorDescriptor_t,
    data_type: miopenDataType_t,
    rank: c_int,
    dims: *const c_int,
    strides: *const c_int,
) -> miopenStatus_t {
    const NAME: &str = "miopenSetTensorDescriptor";
    api(NAME, || {
        if rank < 1 {
            return Err(Failure::InvalidValue);
        }
        if dims.is_null() || !DATA_TYPES.contains(&data_type) {
            return Err(Failure::BadParameter);
        }
        let positive = |values: *const c_int| -> Outcome<Vec<usize>> {
            // SAFETY: not null; the caller passes `rank` values.
            let values = unsafe { std::slice::from_raw_parts(values, rank as usize) };
            let positive = |&v: &c_int| usize::try_from(v).ok().filter(|&v| v > 0);
            (values.iter().map(positive).collect::<Option<Vec<_>>>()).ok_or(Failure::BadParameter)
        };
        let dims = positive(dims)?;
        let strides = match strides.is_null() {
            true => packed(&dims),
            false => positive(strides)?,
        };
        *lock(&*tensor(NAME, descriptor)?) = Tensor {
            data_type,
            dims,
            strides,
        };
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenGetTensorDescriptor(
    descriptor: miopenTensorDescriptor_t,
    data_type: *mut miopenDataType_t,
    dims: *mut c_int,
    strides: *mut c_int,
) -> miopenStatus_t {
    const NAME: &str = "miopenGetTensorDescriptor";
    api(NAME, || {
        let tensor = tensor(NAME, descriptor)?;
        let tensor = lock(&tensor);
        if !data_type.is_null() {
            // SAFETY: not null; the caller's pointer.
            unsafe { *data_type = tensor.data_type };
        }
        for (out, values) in [(dims, &tensor.dims), (strides, &tensor.strides)] {
            for (i, &value) in values.iter().enumerate().filter(|_| !out.is_null()) {
                // SAFETY: not null; the caller has room for every dimension.
                unsafe { *out.add(i) = value as c_int };
            }
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenCreateConvolutionDescriptor(
    out: *mut miopenConvolutionDescriptor_t,
) -> miopenStatus_t {
    api("miopenCreateConvolutionDescriptor", || {
        // SAFETY: the caller's pointer.
        unsafe { put(out, convolutions().insert(Arc::default())) }
    })
}

#[no_mangle]
pub extern "C" fn miopenDestroyConvolutionDescriptor(
    descriptor: miopenConvolutionDescriptor_t,
) -> miopenStatus_t {
    const NAME: &str = "miopenDestroyConvolutionDescriptor";
    api(NAME, || {
        let removed = convolutions().remove(descriptor).map(|_| ());
        removed.ok_or_else(|| misused(NAME, "unknown convolution descriptor"))
    })
}

#[no_mangle]
pub extern "C" fn miopenInitConvolutionDescriptor(
    descriptor: miopenConvolutionDescriptor_t,
    mode: c_int,
    pad_h: c_int,
    pad_w: c_int,
    stride_h: c_int,
    stride_w: c_int,
    dilation_h: c_int,
    dilation_w: c_int,
) -> miopenStatus_t {
    const NAME: &str = "miopenInitConvolutionDescriptor";
    api(NAME, || {
        let pair = |least: c_int, pair: [c_int; 2]| match pair.iter().all(|&v| v >= least) {
            true => Ok(pair.map(|v| v as usize)),
            false => Err(Failure::BadParameter),
        };
        let options = Convolution {
            transposed: match mode {
                // 2 and 3 are deprecated names of a convolution with groups.
                0 | 2 | 3 => false,
                1 => true,
                _ => return Err(Failure::BadParameter),
            },
            padding: pair(0, [pad_h, pad_w])?,
            stride: pair(1, [stride_h, stride_w])?,
            dilation: pair(1, [dilation_h, dilation_w])?,
            ..Convolution::default()
        };
        *lock(&*convolution(NAME, descriptor)?) = options;
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenGetConvolutionDescriptor(
    descriptor: miopenConvolutionDescriptor_t,
    mode: *mut c_int,
    pad_h: *mut c_int,
    pad_w: *mut c_int,
    stride_h: *mut c_int,
    stride_w: *mut c_int,
    dilation_h: *mut c_int,
    dilation_w: *mut c_int,
) -> miopenStatus_t {
    const NAME: &str = "miopenGetConvolutionDescriptor";
    api(NAME, || {
        let options = lock(&*convolution(NAME, descriptor)?).clone();
        let pairs = [
            ([pad_h, pad_w], options.padding),
            ([stride_h, stride_w], options.stride),
            ([dilation_h, dilation_w], options.dilation),
        ];
        // SAFETY: the caller's pointers.
        unsafe { put(mode, options.transposed as c_int)? };
        for (out, values) in pairs {
            for (out, value) in out.into_iter().zip(values) {
                // SAFETY: as above.
                unsafe { put(out, value as c_int)? };
            }
        }
        Ok(())
    })
}

/// Changes one option of a convolution.
fn set(
    name: &'static str,
    descriptor: miopenConvolutionDescriptor_t,
    change: impl FnOnce(&mut Convolution) -> Outcome,
) -> miopenStatus_t {
    api(name, || change(&mut lock(&*convolution(name, descriptor)?)))
}

#[no_mangle]
pub extern "C" fn miopenSetConvolutionGroupCount(
    descriptor: miopenConvolutionDescriptor_t,
    groups: c_int,
) -> miopenStatus_t {
    const NAME: &str = "miopenSetConvolutionGroupCount";
    set(NAME, descriptor, |options| {
        if groups < 1 {
            return Err(misused(NAME, format!("{groups} groups")));
        }
        options.groups = groups as usize;
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn miopenSetTransposeConvOutputPadding(
    descriptor: miopenConvolutionDescriptor_t,
    height: c_int,
    width: c_int,
) -> miopenStatus_t {
    const NAME: &str = "miopenSetTransposeConvOutputPadding";
    set(NAME, descriptor, |options| {
        if height < 0 || width < 0 {
            return Err(misused(
                NAME,
                format!("output padding {height} and {width}"),
            ));
        }
        options.output_padding = [height as usize, width as usize];
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn miopenSetConvolutionAttribute(
    descriptor: miopenConvolutionDescriptor_t,
    attribute: c_int,
    value: c_int,
) -> miopenStatus_t {
    set("miopenSetConvolutionAttribute", descriptor, |options| {
        match (attribute, value) {
            (0, -1..=1) => {}
            (1, 0 | 1) => options.deterministic = value == 1,
            _ => return Err(Failure::BadParameter),
        }
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn miopenSetConvolutionFindMode(
    descriptor: miopenConvolutionDescriptor_t,
    mode: c_int,
) -> miopenStatus_t {
    set(
        "miopenSetConvolutionFindMode",
        descriptor,
        |_| match FIND_MODES.contains(&mode) {
            true => Ok(()),
            false => Err(Failure::BadParameter),
        },
    )
}
