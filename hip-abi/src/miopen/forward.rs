//! Convolutions: solutions, compiling and running them, measuring them. The transposed direction is a mode of the
//! descriptor.

use super::backend::Addresses;
use super::descriptor::{
    convolution, miopenConvolutionDescriptor_t, miopenTensorDescriptor_t, tensor,
};
use super::problem::{output, Problem};
use super::solution::{miopenConvAlgoPerf_t, miopenConvSolution_t};
use super::{
    api, handles, lock, miopenHandle_t, miopenStatus_t, misused, put, Failure, Handle, Outcome,
};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The descriptors of a call, in the order `x w options y`.
type Descriptors = (
    miopenTensorDescriptor_t,
    miopenTensorDescriptor_t,
    miopenConvolutionDescriptor_t,
    miopenTensorDescriptor_t,
);

/// What every call looks up: the handle and the problem.
struct Call {
    name: &'static str,
    handle: Arc<Handle>,
    problem: Problem,
}

impl Call {
    fn new(
        name: &'static str,
        handle: miopenHandle_t,
        (x, w, options, y): Descriptors,
    ) -> Outcome<Call> {
        let handle = handles()
            .get(handle)
            .ok_or_else(|| misused(name, "unknown handle"))?;
        handle.ready(name)?;
        let described = |descriptor| Ok(lock(&*tensor(name, descriptor)?).clone());
        let options = lock(&*convolution(name, options)?).clone();
        let problem = Problem::new(name, described(x)?, described(w)?, described(y)?, options)?;
        Ok(Call {
            name,
            handle,
            problem,
        })
    }

    /// What is offered without measuring.
    fn solutions(&self) -> Outcome<Vec<miopenConvSolution_t>> {
        self.handle.solutions(self.name, &self.problem, false)
    }

    fn solution(&self, id: u64) -> Outcome<miopenConvSolution_t> {
        self.handle.solution(self.name, &self.problem, id)
    }

    /// The memory of a call: no tensor is null, and the workspace is if it is empty.
    fn memory(
        &self,
        tensors: [*const c_void; 3],
        workspace: (*mut c_void, usize),
    ) -> Outcome<Addresses> {
        if tensors.iter().any(|tensor| tensor.is_null()) {
            return Err(Failure::BadParameter);
        }
        let (address, bytes) = workspace;
        if address.is_null() != (bytes == 0) {
            let what = format!("a workspace of {bytes} bytes at {address:?}");
            return Err(misused(self.name, what));
        }
        let [x, w, y] = tensors.map(|tensor| tensor as usize);
        Ok(Addresses {
            x,
            w,
            y,
            workspace: address as usize,
            workspace_bytes: bytes,
        })
    }
}

#[no_mangle]
pub unsafe extern "C" fn miopenGetConvolutionForwardOutputDim(
    options: miopenConvolutionDescriptor_t,
    x: miopenTensorDescriptor_t,
    w: miopenTensorDescriptor_t,
    n: *mut c_int,
    c: *mut c_int,
    h: *mut c_int,
    width: *mut c_int,
) -> miopenStatus_t {
    const NAME: &str = "miopenGetConvolutionForwardOutputDim";
    api(NAME, || {
        let options = lock(&*convolution(NAME, options)?).clone();
        let (x, w) = (tensor(NAME, x)?, tensor(NAME, w)?);
        let (x, w) = (lock(&x).clone(), lock(&w).clone());
        for (out, size) in [n, c, h, width].into_iter().zip(output(&x, &w, &options)?) {
            // SAFETY: the caller's pointer.
            unsafe { put(out, size as c_int)? };
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenConvolutionForwardGetSolutionCount(
    handle: miopenHandle_t,
    w: miopenTensorDescriptor_t,
    x: miopenTensorDescriptor_t,
    options: miopenConvolutionDescriptor_t,
    y: miopenTensorDescriptor_t,
    count: *mut usize,
) -> miopenStatus_t {
    const NAME: &str = "miopenConvolutionForwardGetSolutionCount";
    api(NAME, || {
        let call = Call::new(NAME, handle, (x, w, options, y))?;
        // SAFETY: the caller's pointer.
        unsafe { put(count, call.solutions()?.len()) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenConvolutionForwardGetSolution(
    handle: miopenHandle_t,
    w: miopenTensorDescriptor_t,
    x: miopenTensorDescriptor_t,
    options: miopenConvolutionDescriptor_t,
    y: miopenTensorDescriptor_t,
    room: usize,
    count: *mut usize,
    solutions: *mut miopenConvSolution_t,
) -> miopenStatus_t {
    const NAME: &str = "miopenConvolutionForwardGetSolution";
    api(NAME, || {
        let call = Call::new(NAME, handle, (x, w, options, y))?;
        if solutions.is_null() {
            return Err(Failure::BadParameter);
        }
        let found = call.solutions()?;
        for (i, solution) in found.iter().take(room).enumerate() {
            // SAFETY: not null; the caller has room for `room` of them.
            unsafe { solutions.add(i).write(*solution) };
        }
        // SAFETY: the caller's pointer.
        unsafe { put(count, found.len().min(room)) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenConvolutionForwardGetSolutionWorkspaceSize(
    handle: miopenHandle_t,
    w: miopenTensorDescriptor_t,
    x: miopenTensorDescriptor_t,
    options: miopenConvolutionDescriptor_t,
    y: miopenTensorDescriptor_t,
    id: u64,
    bytes: *mut usize,
) -> miopenStatus_t {
    const NAME: &str = "miopenConvolutionForwardGetSolutionWorkspaceSize";
    api(NAME, || {
        let call = Call::new(NAME, handle, (x, w, options, y))?;
        // SAFETY: the caller's pointer.
        unsafe { put(bytes, call.solution(id)?.workspace_size) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenConvolutionForwardGetWorkSpaceSize(
    handle: miopenHandle_t,
    w: miopenTensorDescriptor_t,
    x: miopenTensorDescriptor_t,
    options: miopenConvolutionDescriptor_t,
    y: miopenTensorDescriptor_t,
    bytes: *mut usize,
) -> miopenStatus_t {
    const NAME: &str = "miopenConvolutionForwardGetWorkSpaceSize";
    api(NAME, || {
        let call = Call::new(NAME, handle, (x, w, options, y))?;
        let solutions = call.handle.solutions(NAME, &call.problem, true)?;
        let largest = solutions.iter().map(|s| s.workspace_size).max();
        // SAFETY: the caller's pointer.
        unsafe { put(bytes, largest.unwrap_or(0)) }
    })
}

#[no_mangle]
pub extern "C" fn miopenConvolutionForwardCompileSolution(
    handle: miopenHandle_t,
    w: miopenTensorDescriptor_t,
    x: miopenTensorDescriptor_t,
    options: miopenConvolutionDescriptor_t,
    y: miopenTensorDescriptor_t,
    id: u64,
) -> miopenStatus_t {
    const NAME: &str = "miopenConvolutionForwardCompileSolution";
    api(NAME, || {
        let call = Call::new(NAME, handle, (x, w, options, y))?;
        call.solution(id)?;
        call.handle.compile(NAME, &call.problem, id)
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenConvolutionForwardImmediate(
    handle: miopenHandle_t,
    w_desc: miopenTensorDescriptor_t,
    w: *const c_void,
    x_desc: miopenTensorDescriptor_t,
    x: *const c_void,
    options: miopenConvolutionDescriptor_t,
    y_desc: miopenTensorDescriptor_t,
    y: *mut c_void,
    workspace: *mut c_void,
    workspace_bytes: usize,
    id: u64,
) -> miopenStatus_t {
    const NAME: &str = "miopenConvolutionForwardImmediate";
    api(NAME, || {
        let call = Call::new(NAME, handle, (x_desc, w_desc, options, y_desc))?;
        let memory = call.memory([x, w, y], (workspace, workspace_bytes))?;
        let solution = call.solution(id)?;
        if workspace_bytes < solution.workspace_size {
            let what = format!(
                "solver {id} needs a workspace of {} bytes and gets {workspace_bytes}",
                solution.workspace_size
            );
            misused(NAME, what);
            return Err(Failure::UnknownError);
        }
        call.handle.run(NAME, &call.problem, &solution, memory)
    })
}

#[no_mangle]
pub unsafe extern "C" fn miopenFindConvolutionForwardAlgorithm(
    handle: miopenHandle_t,
    x_desc: miopenTensorDescriptor_t,
    x: *const c_void,
    w_desc: miopenTensorDescriptor_t,
    w: *const c_void,
    options: miopenConvolutionDescriptor_t,
    y_desc: miopenTensorDescriptor_t,
    y: *mut c_void,
    room: c_int,
    count: *mut c_int,
    results: *mut miopenConvAlgoPerf_t,
    workspace: *mut c_void,
    workspace_bytes: usize,
    _exhaustive: bool,
) -> miopenStatus_t {
    const NAME: &str = "miopenFindConvolutionForwardAlgorithm";
    api(NAME, || {
        let call = Call::new(NAME, handle, (x_desc, w_desc, options, y_desc))?;
        if results.is_null() || room < 1 {
            return Err(Failure::BadParameter);
        }
        let memory = call.memory([x, w, y], (workspace, workspace_bytes))?;
        let mut found = call.handle.find(NAME, &call.problem, memory)?;
        found.truncate(room as usize);
        for (i, solution) in found.iter().enumerate() {
            let result = miopenConvAlgoPerf_t {
                algorithm: solution.algorithm,
                time: solution.time,
                memory: solution.workspace_size,
            };
            // SAFETY: not null; the caller has room for `room` of them.
            unsafe { results.add(i).write(result) };
        }
        match found.len() {
            0 => Err(Failure::UnknownError),
            // SAFETY: the caller's pointer.
            found => unsafe { put(count, found as c_int) },
        }
    })
}
