//! A hipBLASLt handle of a device, and the solutions that it has told.
//!
//! hipBLASLt counts matrices column by column. A row-major `a` of `m x k` is a column-major `k x m`, so the product is
//! computed as `Cᵀ = (bᵀ)ᵀ aᵀ`: the first operand is `b`, transposed, the second is `a`. This is the arrangement for which
//! it has the most solutions.

use super::problem::{Floats, Problem};
use crate::shared::Shared;
use crate::sys::hipblaslt::{self as lt, Algorithm, Handle, HeuristicResult, HipBlasLt};
use crate::{Buffer, DType, Device, Error, Result};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Workspace of a solution at most: with more, none was seen to be faster by much.
const WORKSPACE_LIMIT_BYTES: u64 = 32 << 20;

/// What decides which solutions there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    sizes: [usize; 3],
    to: DType,
    by_rows: bool,
    has_bias: bool,
}

impl Key {
    fn of(problem: &Problem) -> Self {
        Key {
            sizes: [problem.m, problem.n, problem.k],
            to: problem.to,
            by_rows: problem.by_rows,
            has_bias: problem.bias().is_some(),
        }
    }
}

/// A way to compute a product, and its workspace.
#[derive(Clone, Copy)]
struct Solution {
    algorithm: Algorithm,
    workspace_bytes: usize,
}

/// Why hipBLASLt does not compute a product.
pub(super) type Refusal = String;

pub(super) struct Session {
    shared: &'static Shared,
    library: &'static HipBlasLt,
    handle: Handle,
    version: c_int,
    known: HashMap<Key, std::result::Result<Solution, Refusal>>,
}

// SAFETY: a handle may be used from any thread, one at a time; a mutex holds it.
unsafe impl Send for Session {}

/// A call of the library, and what it answered if that is no success.
fn answer(call: &str, status: c_int) -> std::result::Result<(), Refusal> {
    match status {
        lt::SUCCESS => Ok(()),
        _ => Err(format!("{call} answered {}", lt::status_name(status))),
    }
}

/// Something that the library made for one call.
struct Made {
    raw: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
}

impl Made {
    fn new(
        call: &str,
        destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
        create: impl FnOnce(*mut *mut c_void) -> c_int,
    ) -> std::result::Result<Self, Refusal> {
        let mut raw = ptr::null_mut();
        answer(call, create(&mut raw))?;
        Ok(Made { raw, destroy })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: the library made it, and nobody else has it.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// The descriptions of a product.
struct Descriptors {
    product: Made,
    a: Made,
    b: Made,
    out: Made,
}

impl Session {
    pub fn new(device: &Device) -> Result<Self> {
        let library = &HipBlasLt::get()?.functions;
        let shared = device.shared();
        device.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the device is bound and `handle` receives the handle.
        let create = || unsafe { (library.hipblasLtCreate)(&mut handle) };
        let status = shared.captures.exclude(create);
        answer("hipblasLtCreate", status).map_err(|reason| Error::InvalidArgument {
            op: "hipBLASLt",
            reason,
        })?;
        let mut version = 0;
        if let Some(get_version) = library.hipblasLtGetVersion {
            // SAFETY: the handle is alive and `version` receives the number.
            unsafe { get_version(handle, &mut version) };
        }
        Ok(Session {
            shared,
            library,
            handle,
            version,
            known: HashMap::new(),
        })
    }

    /// The library's number; 0 if it does not tell.
    pub fn version(&self) -> c_int {
        self.version
    }

    /// Whether hipBLASLt has a solution for a product, or why it has none. It is asked once, and not during a capture.
    pub fn prepare(
        &mut self,
        device: &Device,
        problem: &Problem,
    ) -> Result<std::result::Result<(), Refusal>> {
        let key = Key::of(problem);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone().map(|_| ()));
        }
        if device.pool().is_capturing() {
            return Ok(Err("nothing is asked during a capture".to_string()));
        }
        device.enter()?;
        let found = self.describe(problem).and_then(|d| self.solution(&d));
        let outcome = found.clone().map(|_| ());
        self.known.insert(key, found);
        Ok(outcome)
    }

    /// Enqueues a product, or says why it does not.
    pub fn multiply(
        &mut self,
        device: &Device,
        problem: &Problem,
    ) -> Result<std::result::Result<Buffer, Refusal>> {
        let key = Key::of(problem);
        if let Err(reason) = self.prepare(device, problem)? {
            return Ok(Err(reason));
        }
        let Some(Ok(solution)) = self.known.get(&key).cloned() else {
            return Ok(Err("nothing is known of it".to_string()));
        };
        device.enter()?;
        let out = device.alloc(problem.m * problem.n * problem.to.size_in_bytes())?;
        let enqueued = match self.describe(problem) {
            Ok(descriptors) => self.enqueue(device, problem, &descriptors, solution, &out)?,
            Err(reason) => Err(reason),
        };
        Ok(match enqueued {
            Ok(()) => Ok(out),
            Err(reason) => {
                self.known.insert(key, Err(reason.clone()));
                Err(reason)
            }
        })
    }

    fn describe(&self, problem: &Problem) -> std::result::Result<Descriptors, Refusal> {
        let library = self.library;
        let layout = |data_type, rows: usize, columns: usize| {
            let create = "hipblasLtMatrixLayoutCreate";
            Made::new(create, library.hipblasLtMatrixLayoutDestroy, |to| {
                let (rows, columns, ld) = (rows as u64, columns as u64, rows as i64);
                // SAFETY: `to` receives the layout.
                unsafe { (library.hipblasLtMatrixLayoutCreate)(to, data_type, rows, columns, ld) }
            })
        };
        let product = Made::new(
            "hipblasLtMatmulDescCreate",
            library.hipblasLtMatmulDescDestroy,
            // SAFETY: `to` receives the description.
            |to| unsafe {
                (library.hipblasLtMatmulDescCreate)(to, lt::COMPUTE_F32, lt::DATATYPE_F32)
            },
        )?;
        let set = |attribute: c_int, value: Attribute| {
            let (address, bytes) = value.bytes();
            // SAFETY: the description is alive, and the value as long as the call.
            let status = unsafe {
                (library.hipblasLtMatmulDescSetAttribute)(product.raw, attribute, address, bytes)
            };
            answer(
                &format!("hipblasLtMatmulDescSetAttribute of {attribute}"),
                status,
            )
        };
        set(
            lt::DESC_TRANSPOSE_A,
            Attribute::Int(&lt::OPERATION_TRANSPOSE),
        )?;
        set(lt::DESC_TRANSPOSE_B, Attribute::Int(&lt::OPERATION_NONE))?;
        set(lt::DESC_SCALE_A, Attribute::Address(&problem.scale_b()))?;
        set(lt::DESC_SCALE_B, Attribute::Address(&problem.scale_a()))?;
        if problem.by_rows {
            for mode in [lt::DESC_SCALE_MODE_A, lt::DESC_SCALE_MODE_B] {
                set(mode, Attribute::Word(&lt::SCALE_OUTER_VECTOR))?;
            }
        }
        if let Some(bias) = problem.bias() {
            set(lt::DESC_EPILOGUE, Attribute::Word(&lt::EPILOGUE_BIAS))?;
            set(lt::DESC_BIAS, Attribute::Address(&bias))?;
            set(lt::DESC_BIAS_TYPE, Attribute::Int(&problem.output_type()))?;
        }
        let (m, n, k) = (problem.m, problem.n, problem.k);
        Ok(Descriptors {
            product,
            a: layout(problem.encoding, k, n)?,
            b: layout(problem.encoding, k, m)?,
            out: layout(problem.output_type(), n, m)?,
        })
    }

    /// The solution that hipBLASLt's heuristics prefer, within the limit.
    fn solution(&self, d: &Descriptors) -> std::result::Result<Solution, Refusal> {
        let library = self.library;
        let preference = Made::new(
            "hipblasLtMatmulPreferenceCreate",
            library.hipblasLtMatmulPreferenceDestroy,
            // SAFETY: `to` receives the preference.
            |to| unsafe { (library.hipblasLtMatmulPreferenceCreate)(to) },
        )?;
        let (mut result, mut found) = (HeuristicResult::NONE, 0);
        // SAFETY: handle, descriptions and preference are alive; the result has room for the one that is wanted.
        let (limited, asked) = unsafe {
            let limited = (library.hipblasLtMatmulPreferenceSetAttribute)(
                preference.raw,
                lt::PREFERENCE_WORKSPACE,
                ptr::from_ref(&WORKSPACE_LIMIT_BYTES).cast(),
                size_of::<u64>(),
            );
            let asked = (library.hipblasLtMatmulAlgoGetHeuristic)(
                self.handle,
                d.product.raw,
                d.a.raw,
                d.b.raw,
                d.out.raw,
                d.out.raw,
                preference.raw,
                1,
                &mut result,
                &mut found,
            );
            (limited, asked)
        };
        answer("hipblasLtMatmulPreferenceSetAttribute", limited)?;
        answer("hipblasLtMatmulAlgoGetHeuristic", asked)?;
        if found < 1 {
            return Err("hipBLASLt has no solution".to_string());
        }
        answer("the solution", result.state)?;
        if result.workspace_bytes as u64 > WORKSPACE_LIMIT_BYTES {
            return Err(format!(
                "the solution takes {} bytes of workspace",
                result.workspace_bytes
            ));
        }
        Ok(Solution {
            algorithm: result.algorithm,
            workspace_bytes: result.workspace_bytes,
        })
    }

    fn enqueue(
        &self,
        device: &Device,
        problem: &Problem,
        d: &Descriptors,
        solution: Solution,
        out: &Buffer,
    ) -> Result<std::result::Result<(), Refusal>> {
        // Copies and workspace are given back when the stream has come past the product.
        let floats = |view| Floats::new(device, view, problem.encoding);
        let (a, b) = (floats(&problem.a)?, floats(&problem.b)?);
        let workspace = device.alloc(solution.workspace_bytes)?;
        let (alpha, beta) = (problem.alpha(), 0f32);
        device.count_launch();
        // SAFETY: operands were checked to lie in their buffers, `out` has room for the result, and all belong to this
        // device, which is bound.
        let status = unsafe {
            (self.library.hipblasLtMatmul)(
                self.handle,
                d.product.raw,
                ptr::from_ref(&alpha).cast(),
                b.address(),
                d.a.raw,
                a.address(),
                d.b.raw,
                ptr::from_ref(&beta).cast(),
                out.as_ptr(),
                d.out.raw,
                out.as_ptr(),
                d.out.raw,
                &solution.algorithm,
                workspace.as_ptr(),
                solution.workspace_bytes,
                device.stream().as_raw(),
            )
        };
        Ok(answer("hipblasLtMatmul", status))
    }
}

/// A value of an attribute.
enum Attribute<'a> {
    Int(&'a c_int),
    Word(&'a u32),
    Address(&'a *const c_void),
}

impl Attribute<'_> {
    fn bytes(&self) -> (*const c_void, usize) {
        match *self {
            Attribute::Int(value) => (ptr::from_ref(value).cast(), size_of::<c_int>()),
            Attribute::Word(value) => (ptr::from_ref(value).cast(), size_of::<u32>()),
            Attribute::Address(value) => (ptr::from_ref(value).cast(), size_of::<usize>()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let gpu = &self.shared.gpu;
        let freed = gpu.bind().map(|()| {
            // SAFETY: the handle is ours; the device's stream is idle when it is dropped.
            let destroy = || unsafe { (self.library.hipblasLtDestroy)(self.handle) };
            self.shared.captures.exclude(destroy);
        });
        gpu.defer(freed);
    }
}
