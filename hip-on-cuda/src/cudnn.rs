//! cuDNN's graph interface: everything is a descriptor with attributes, finalised before it is used.
#![allow(non_snake_case)]

use crate::table::table;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::marker::PhantomData;
use std::sync::OnceLock;

table! {
    /// Functions of cuDNN.
    Cudnn {
        fn cudnnCreate(handle: *mut *mut c_void);
        fn cudnnDestroy(handle: *mut c_void);
        fn cudnnSetStream(handle: *mut c_void, stream: *mut c_void);
        fn cudnnGetErrorString(status: c_int) -> *const c_char;
        fn cudnnGetLastErrorString(message: *mut c_char, room: usize) -> ();
        fn cudnnBackendCreateDescriptor(kind: c_int, descriptor: *mut *mut c_void);
        fn cudnnBackendDestroyDescriptor(descriptor: *mut c_void);
        fn cudnnBackendSetAttribute(
            descriptor: *mut c_void, name: c_int, value_type: c_int, count: i64, values: *const c_void,
        );
        fn cudnnBackendGetAttribute(
            descriptor: *mut c_void, name: c_int, value_type: c_int, room: i64, count: *mut i64, values: *mut c_void,
        );
        fn cudnnBackendFinalize(descriptor: *mut c_void);
        fn cudnnBackendExecute(handle: *mut c_void, plan: *mut c_void, pack: *mut c_void);
    }
}

/// cuDNN, opened by the first call; `None` where it is not installed.
pub(crate) fn cudnn() -> Option<&'static Cudnn> {
    static CUDNN: OnceLock<Option<Cudnn>> = OnceLock::new();
    CUDNN
        .get_or_init(|| match Cudnn::open(&["libcudnn.so.9"]) {
            Ok(cudnn) => Some(cudnn),
            Err(message) => {
                eprintln!("hip-on-cuda: there is no MIOpen without cuDNN: {message}");
                None
            }
        })
        .as_ref()
}

impl Cudnn {
    /// What a call answered other than success, in cuDNN's words.
    pub fn check(&self, what: impl std::fmt::Display, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let mut message: [c_char; 1024] = [0; 1024];
        // SAFETY: the message has room for as many bytes as is said, its end included; the name of a status is a
        // constant.
        let (name, message) = unsafe {
            (self.cudnnGetLastErrorString)(message.as_mut_ptr(), message.len());
            (
                CStr::from_ptr((self.cudnnGetErrorString)(status)),
                CStr::from_ptr(message.as_ptr()),
            )
        };
        let (name, message) = (name.to_string_lossy(), message.to_string_lossy());
        Err(format!("{what} answers {status}, {name} ({message})"))
    }
}

/// Kinds of descriptors, `cudnnBackendDescriptorType_t`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Kind {
    Convolution = 1,
    Engine = 2,
    EngineConfiguration = 3,
    EngineHeuristics = 4,
    ExecutionPlan = 5,
    ConvolutionForward = 10,
    ConvolutionBackwardData = 12,
    OperationGraph = 15,
    VariantPack = 16,
    Tensor = 17,
}

/// An attribute: its name and the type of its values, as numbers of `cudnnBackendAttributeName_t` and
/// `cudnnBackendAttributeType_t`, and that type in Rust.
pub(crate) struct Attribute<T> {
    name: c_int,
    value_type: c_int,
    values: PhantomData<fn(T)>,
}

const fn attribute<T>(name: c_int, value_type: c_int) -> Attribute<T> {
    Attribute {
        name,
        value_type,
        values: PhantomData,
    }
}

const HANDLE: c_int = 0;
const DATA_TYPE: c_int = 1;
const INT64: c_int = 3;
const FLOAT: c_int = 4;
const VOID_PTR: c_int = 6;
const CONVOLUTION_MODE: c_int = 7;
const HEURISTICS_MODE: c_int = 8;
const NUMERICAL_NOTE: c_int = 11;
const DESCRIPTOR: c_int = 15;

pub(crate) const CONVOLUTION_COMPUTE_TYPE: Attribute<c_int> = attribute(100, DATA_TYPE);
pub(crate) const CONVOLUTION_CONVOLUTION_MODE: Attribute<c_int> = attribute(101, CONVOLUTION_MODE);
pub(crate) const CONVOLUTION_DILATIONS: Attribute<i64> = attribute(102, INT64);
pub(crate) const CONVOLUTION_STRIDES: Attribute<i64> = attribute(103, INT64);
pub(crate) const CONVOLUTION_POST_PADDINGS: Attribute<i64> = attribute(104, INT64);
pub(crate) const CONVOLUTION_PRE_PADDINGS: Attribute<i64> = attribute(105, INT64);
pub(crate) const CONVOLUTION_SPATIAL_DIMS: Attribute<i64> = attribute(106, INT64);
pub(crate) const HEURISTICS_MODE_ASKED: Attribute<c_int> = attribute(200, HEURISTICS_MODE);
pub(crate) const HEURISTICS_GRAPH: Attribute<Descriptor> = attribute(201, DESCRIPTOR);
pub(crate) const HEURISTICS_RESULTS: Attribute<Descriptor> = attribute(202, DESCRIPTOR);
pub(crate) const CONFIGURATION_ENGINE: Attribute<Descriptor> = attribute(300, DESCRIPTOR);
pub(crate) const PLAN_HANDLE: Attribute<*mut c_void> = attribute(400, HANDLE);
pub(crate) const PLAN_CONFIGURATION: Attribute<Descriptor> = attribute(401, DESCRIPTOR);
pub(crate) const PLAN_WORKSPACE_SIZE: Attribute<i64> = attribute(402, INT64);
pub(crate) const GRAPH_HANDLE: Attribute<*mut c_void> = attribute(800, HANDLE);
pub(crate) const GRAPH_OPERATIONS: Attribute<Descriptor> = attribute(801, DESCRIPTOR);
pub(crate) const TENSOR_ALIGNMENT: Attribute<i64> = attribute(900, INT64);
pub(crate) const TENSOR_DATA_TYPE: Attribute<c_int> = attribute(901, DATA_TYPE);
pub(crate) const TENSOR_DIMENSIONS: Attribute<i64> = attribute(902, INT64);
pub(crate) const TENSOR_STRIDES: Attribute<i64> = attribute(903, INT64);
pub(crate) const TENSOR_UNIQUE_ID: Attribute<i64> = attribute(906, INT64);
pub(crate) const PACK_UNIQUE_IDS: Attribute<i64> = attribute(1000, INT64);
pub(crate) const PACK_POINTERS: Attribute<*mut c_void> = attribute(1001, VOID_PTR);
pub(crate) const PACK_WORKSPACE: Attribute<*mut c_void> = attribute(1003, VOID_PTR);
pub(crate) const ENGINE_GLOBAL_INDEX: Attribute<i64> = attribute(1301, INT64);
pub(crate) const ENGINE_NUMERICAL_NOTES: Attribute<c_int> = attribute(1303, NUMERICAL_NOTE);

/// The attributes of an operation: those of a convolution and of its gradient differ in their numbers only.
pub(crate) struct Operation {
    pub kind: Kind,
    pub alpha: Attribute<f32>,
    pub beta: Attribute<f32>,
    pub convolution: Attribute<Descriptor>,
    pub w: Attribute<Descriptor>,
    /// What is convolved: `x`, or the gradient of `y`.
    pub input: Attribute<Descriptor>,
    /// `y`, or the gradient of `x`.
    pub output: Attribute<Descriptor>,
}

pub(crate) const FORWARD: Operation = Operation {
    kind: Kind::ConvolutionForward,
    alpha: attribute(700, FLOAT),
    beta: attribute(701, FLOAT),
    convolution: attribute(702, DESCRIPTOR),
    w: attribute(703, DESCRIPTOR),
    input: attribute(704, DESCRIPTOR),
    output: attribute(705, DESCRIPTOR),
};

pub(crate) const BACKWARD_DATA: Operation = Operation {
    kind: Kind::ConvolutionBackwardData,
    alpha: attribute(706, FLOAT),
    beta: attribute(707, FLOAT),
    convolution: attribute(708, DESCRIPTOR),
    w: attribute(709, DESCRIPTOR),
    output: attribute(710, DESCRIPTOR),
    input: attribute(711, DESCRIPTOR),
};

/// A descriptor.
pub(crate) struct Descriptor {
    cudnn: &'static Cudnn,
    kind: Kind,
    raw: *mut c_void,
}

impl Descriptor {
    pub fn new(cudnn: &'static Cudnn, kind: Kind) -> Result<Self, String> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` receives the descriptor.
        let status = unsafe { (cudnn.cudnnBackendCreateDescriptor)(kind as c_int, &mut raw) };
        cudnn.check(format_args!("making {kind:?}"), status)?;
        Ok(Descriptor { cudnn, kind, raw })
    }

    /// Sets an attribute.
    pub fn with<T>(self, attribute: &Attribute<T>, values: &[T]) -> Result<Self, String> {
        // SAFETY: the attribute's values are of type `T`.
        unsafe { self.set(attribute, values.len(), values.as_ptr().cast()) }
    }

    /// Sets an attribute whose values are other descriptors, which must be finalised.
    pub fn of(
        self,
        attribute: &Attribute<Descriptor>,
        descriptors: &[&Descriptor],
    ) -> Result<Self, String> {
        let raw: Vec<_> = descriptors.iter().map(|d| d.raw).collect();
        // SAFETY: the attribute's values are descriptors, which are passed as their addresses.
        unsafe { self.set(attribute, raw.len(), raw.as_ptr().cast()) }
    }

    /// # Safety
    /// There are `count` values of the attribute's type.
    unsafe fn set<T>(
        self,
        attribute: &Attribute<T>,
        count: usize,
        values: *const c_void,
    ) -> Result<Self, String> {
        let &Attribute {
            name, value_type, ..
        } = attribute;
        let set = self.cudnn.cudnnBackendSetAttribute;
        // SAFETY: the caller's promise; the descriptor is alive.
        let status = unsafe { set(self.raw, name, value_type, count as i64, values) };
        let what = format_args!("setting attribute {name} of {:?}", self.kind);
        self.cudnn.check(what, status)?;
        Ok(self)
    }

    pub fn finalized(self) -> Result<Self, String> {
        // SAFETY: the descriptor is alive.
        let status = unsafe { (self.cudnn.cudnnBackendFinalize)(self.raw) };
        let what = format_args!("finalising {:?}", self.kind);
        self.cudnn.check(what, status)?;
        Ok(self)
    }

    /// The values of an attribute of a finalised descriptor, at most as many as there is room for.
    pub fn get<T: Copy + Default>(
        &self,
        attribute: &Attribute<T>,
        room: usize,
    ) -> Result<Vec<T>, String> {
        let mut values = vec![T::default(); room];
        // SAFETY: the attribute's values are of type `T`, and there is room for as many as is said.
        let count = unsafe { self.read(attribute, room, values.as_mut_ptr().cast()) }?;
        values.truncate(count);
        Ok(values)
    }

    /// The descriptors that an attribute of a finalised descriptor has, which are of this kind.
    pub fn get_descriptors(
        &self,
        attribute: &Attribute<Descriptor>,
        kind: Kind,
        room: usize,
    ) -> Result<Vec<Descriptor>, String> {
        let mut descriptors = (0..room)
            .map(|_| Descriptor::new(self.cudnn, kind))
            .collect::<Result<Vec<_>, _>>()?;
        let mut raw: Vec<_> = descriptors.iter().map(|d| d.raw).collect();
        // SAFETY: cuDNN fills in descriptors that the caller has made, as many as there is room for.
        let count = unsafe { self.read(attribute, room, raw.as_mut_ptr().cast()) }?;
        descriptors.truncate(count);
        Ok(descriptors)
    }

    /// # Safety
    /// `values` has room for `room` values of the attribute's type.
    unsafe fn read<T>(
        &self,
        attribute: &Attribute<T>,
        room: usize,
        values: *mut c_void,
    ) -> Result<usize, String> {
        let &Attribute {
            name, value_type, ..
        } = attribute;
        let (get, mut count) = (self.cudnn.cudnnBackendGetAttribute, 0);
        // SAFETY: the caller's promise; the descriptor is alive, and `count` receives a number.
        let status = unsafe { get(self.raw, name, value_type, room as i64, &mut count, values) };
        let what = format_args!("reading attribute {name} of {:?}", self.kind);
        self.cudnn.check(what, status)?;
        Ok((count.max(0) as usize).min(room))
    }

    /// Enqueues an execution plan on the handle's stream.
    ///
    /// # Safety
    /// The handle is alive, and the pointers of the pack are those of memory that is as large as the plan's tensors and
    /// workspace.
    pub unsafe fn execute(&self, handle: *mut c_void, pack: &Descriptor) -> Result<(), String> {
        // SAFETY: the caller's promise; both descriptors are alive.
        let status = unsafe { (self.cudnn.cudnnBackendExecute)(handle, self.raw, pack.raw) };
        self.cudnn.check("executing a plan", status)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and not used after this.
        unsafe { (self.cudnn.cudnnBackendDestroyDescriptor)(self.raw) };
    }
}
