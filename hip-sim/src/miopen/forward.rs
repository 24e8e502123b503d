//! Convolutions: solutions, compiling and running them, measuring them. The transposed direction is a mode of the descriptor.

use super::convolve::Convolve;
use super::descriptor::{
    convolution, miopenConvolutionDescriptor_t, miopenTensorDescriptor_t, tensor,
};
use super::problem::{output, Problem};
use super::solver::{self, miopenConvAlgoPerf_t, miopenConvSolution_t};
use super::{
    api, handles, lock, miopenHandle_t, miopenStatus_t, misused, put, Failure, Handle, Outcome,
};
use crate::hip::graph::NodeKind;
use crate::hip::stream::{hipStream_t, stream, Stream};
use crate::sim::sim;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The descriptors of a call, in the order `x w options y`.
type Descriptors = (
    miopenTensorDescriptor_t,
    miopenTensorDescriptor_t,
    miopenConvolutionDescriptor_t,
    miopenTensorDescriptor_t,
);

/// What every call looks up: the handle, its stream, and the problem.
struct Call {
    name: &'static str,
    handle: Arc<Handle>,
    stream: Arc<Stream>,
    problem: Problem,
}

impl Call {
    fn new(
        name: &'static str,
        handle: miopenHandle_t,
        (x, w, options, y): Descriptors,
    ) -> Outcome<Call> {
        let sim = sim();
        sim.gate().map_err(|_| Failure::UnknownError)?;
        let handle = handles()
            .get(handle)
            .ok_or_else(|| misused(name, "unknown handle"))?;
        let stream = stream(sim, handle.stream as hipStream_t)
            .map_err(|_| misused(name, "the handle's stream is gone"))?;
        let described = |descriptor| Ok(lock(&*tensor(name, descriptor)?).clone());
        let options = lock(&*convolution(name, options)?).clone();
        let problem = Problem::new(name, described(x)?, described(w)?, described(y)?, options)?;
        Ok(Call {
            name,
            handle,
            stream,
            problem,
        })
    }

    fn solutions(&self) -> Vec<miopenConvSolution_t> {
        solver::solutions(&self.problem, self.stream.device, false)
    }

    /// All that could be measured.
    fn measurable(&self) -> Vec<miopenConvSolution_t> {
        solver::solutions(&self.problem, self.stream.device, true)
    }

    /// The solution of a number. The real library runs those that are not applicable, too, and gives wrong results.
    fn solution(&self, id: u64) -> Outcome<miopenConvSolution_t> {
        if !solver::exists(id) {
            return Err(Failure::BadParameter);
        }
        (self.measurable().into_iter())
            .find(|s| s.solution_id == id)
            .ok_or_else(|| {
                let packed = self.problem.is_packed();
                misused(
                    self.name,
                    format!("solver {id} is not applicable (all tensors packed: {packed})"),
                )
            })
    }

    fn forbid_while_capturing(&self, what: &str) -> Outcome {
        match self.stream.capture().as_ref() {
            None => Ok(()),
            Some(capture) => {
                capture.invalidate();
                misused(self.name, format!("{what} while the stream is captured"));
                Err(Failure::UnknownError)
            }
        }
    }

    fn run(
        &self,
        solution: &miopenConvSolution_t,
        [x, w, y]: [usize; 3],
        workspace: *mut c_void,
    ) -> Outcome {
        let element = self.problem.element().ok_or(Failure::BadParameter)?;
        let convolve = Convolve {
            problem: self.problem.clone(),
            element,
            x,
            w,
            y,
            workspace: workspace as usize,
            workspace_bytes: solution.workspace_size,
        };
        (self.stream)
            .submit(sim(), NodeKind::Kernel, move |sim| convolve.run(sim))
            .map_err(|_| Failure::UnknownError)
    }

    /// The addresses of the tensors, none of them null.
    fn buffers(&self, buffers: [*const c_void; 3]) -> Outcome<[usize; 3]> {
        match buffers.iter().any(|b| b.is_null()) {
            true => Err(Failure::BadParameter),
            false => Ok(buffers.map(|b| b as usize)),
        }
    }

    fn check_workspace(&self, address: *mut c_void, bytes: usize) -> Outcome {
        match address.is_null() == (bytes == 0) {
            true => Ok(()),
            false => Err(misused(
                self.name,
                format!("a workspace of {bytes} bytes at {address:?}"),
            )),
        }
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
        unsafe { put(count, call.solutions().len()) }
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
        let found = call.solutions();
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
        let largest = call.measurable().iter().map(|s| s.workspace_size).max();
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
        call.forbid_while_capturing("kernels are loaded")?;
        lock(&call.handle.compiled).insert((call.problem, id));
        Ok(())
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
        let buffers = call.buffers([x, w, y])?;
        call.check_workspace(workspace, workspace_bytes)?;
        let solution = call.solution(id)?;
        if workspace_bytes < solution.workspace_size {
            let what = format!(
                "solver {id} needs a workspace of {} bytes and gets {workspace_bytes}",
                solution.workspace_size
            );
            misused(NAME, what);
            return Err(Failure::UnknownError);
        }
        // What was not compiled before is now.
        if lock(&call.handle.compiled).insert((call.problem.clone(), id)) {
            call.forbid_while_capturing("kernels are loaded")?;
        }
        call.run(&solution, buffers, workspace)
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
        let buffers = call.buffers([x, w, y])?;
        if results.is_null() || room < 1 {
            return Err(Failure::BadParameter);
        }
        call.check_workspace(workspace, workspace_bytes)?;
        call.forbid_while_capturing("solutions are measured")?;
        let solutions = call.measurable();
        let runnable = (solutions.iter()).filter(|s| s.workspace_size <= workspace_bytes);
        let mut found = 0;
        for solution in runnable {
            call.run(solution, buffers, workspace)?;
            if found < room {
                let result = miopenConvAlgoPerf_t {
                    algorithm: solution.algorithm,
                    time: solution.time,
                    memory: solution.workspace_size,
                };
                // SAFETY: not null; the caller has room for `room` of them.
                unsafe { results.add(found as usize).write(result) };
                found += 1;
            }
        }
        solver::remember(&call.problem, call.stream.device);
        match found {
            0 => Err(Failure::UnknownError),
            // SAFETY: the caller's pointer.
            _ => unsafe { put(count, found) },
        }
    })
}
