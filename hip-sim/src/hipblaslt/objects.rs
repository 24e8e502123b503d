//! Handles, and descriptions of matrices, products and preferences.

use super::{Status, INVALID_VALUE, NOT_INITIALIZED, SUCCESS};
use crate::sim::sim;
use hip_abi::Registry;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock};

/// Attributes by number.
type Attributes = Mutex<HashMap<c_int, u64>>;

/// `hipblasLtMatmulDescAttributes_t`, with the bytes of a value; what is not there is refused.
const DESC_ATTRIBUTES: [(c_int, usize); 9] = [
    (TRANSPOSE_A, 4),
    (TRANSPOSE_B, 4),
    (EPILOGUE, 4),
    (BIAS, 8),
    (BIAS_TYPE, 4),
    (SCALE_A, 8),
    (SCALE_B, 8),
    (SCALE_MODE_A, 4),
    (SCALE_MODE_B, 4),
];
pub(super) const TRANSPOSE_A: c_int = 0;
pub(super) const TRANSPOSE_B: c_int = 1;
pub(super) const EPILOGUE: c_int = 2;
pub(super) const BIAS: c_int = 3;
pub(super) const BIAS_TYPE: c_int = 4;
pub(super) const SCALE_A: c_int = 5;
pub(super) const SCALE_B: c_int = 6;
pub(super) const SCALE_MODE_A: c_int = 31;
pub(super) const SCALE_MODE_B: c_int = 32;

/// `HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`.
const PREFERENCE_ATTRIBUTES: [(c_int, usize); 1] = [(1, 8)];

/// A column-major matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub kind: c_int,
    pub rows: usize,
    pub columns: usize,
    pub ld: usize,
}

/// Anything that a pointer of the library stands for.
enum Object {
    Handle,
    Desc(Attributes),
    Layout(Layout),
    Preference(Attributes),
}

fn objects() -> &'static Registry<Object> {
    static OBJECTS: OnceLock<Registry<Object>> = OnceLock::new();
    OBJECTS.get_or_init(Registry::default)
}

/// # Safety
/// `out` is null or writable.
unsafe fn create(out: *mut *mut c_void, object: Object) -> Status {
    if out.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null; the caller's promise.
    unsafe { out.write(objects().insert(Arc::new(object))) };
    SUCCESS
}

fn destroy(raw: *mut c_void) -> Status {
    match objects().remove(raw) {
        Some(_) => SUCCESS,
        None => INVALID_VALUE,
    }
}

/// Sets an attribute of those that there are.
///
/// # Safety
/// `value` is null or has so many bytes.
unsafe fn set(
    attributes: &Attributes,
    known: &[(c_int, usize)],
    (attribute, value, bytes): (c_int, *const c_void, usize),
) -> Status {
    if value.is_null() || !known.contains(&(attribute, bytes)) {
        return INVALID_VALUE;
    }
    let mut word = [0u8; 8];
    // SAFETY: not null; the caller's promise, and no more than a word.
    unsafe { std::ptr::copy_nonoverlapping(value.cast::<u8>(), word.as_mut_ptr(), bytes) };
    let mut attributes = attributes.lock().unwrap_or_else(|e| e.into_inner());
    attributes.insert(attribute, u64::from_ne_bytes(word));
    SUCCESS
}

pub(super) fn is_handle(raw: *mut c_void) -> bool {
    matches!(objects().get(raw).as_deref(), Some(Object::Handle))
}

/// The attributes that were set of a product.
pub(super) fn description(raw: *mut c_void) -> Option<HashMap<c_int, u64>> {
    match objects().get(raw).as_deref() {
        Some(Object::Desc(attributes)) => {
            Some((attributes.lock().unwrap_or_else(|e| e.into_inner())).clone())
        }
        _ => None,
    }
}

pub(super) fn layout(raw: *mut c_void) -> Option<Layout> {
    match objects().get(raw).as_deref() {
        Some(Object::Layout(layout)) => Some(*layout),
        _ => None,
    }
}

/// Bytes of workspace that a preference allows; none if it is no preference.
pub(super) fn workspace_limit(raw: *mut c_void) -> Option<u64> {
    match objects().get(raw).as_deref() {
        Some(Object::Preference(attributes)) => {
            let attributes = attributes.lock().unwrap_or_else(|e| e.into_inner());
            Some(attributes.get(&1).copied().unwrap_or(0))
        }
        _ => None,
    }
}

#[no_mangle]
pub unsafe extern "C" fn hipblasLtCreate(out: *mut *mut c_void) -> Status {
    if sim().gate().is_err() {
        return NOT_INITIALIZED;
    }
    // SAFETY: the caller's pointer.
    unsafe { create(out, Object::Handle) }
}

#[no_mangle]
pub extern "C" fn hipblasLtDestroy(handle: *mut c_void) -> Status {
    destroy(handle)
}

/// 1.2.0, as the real library counts.
#[no_mangle]
pub unsafe extern "C" fn hipblasLtGetVersion(handle: *mut c_void, out: *mut c_int) -> Status {
    if !is_handle(handle) || out.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null; the caller's pointer.
    unsafe { out.write(100_200) };
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn hipblasLtMatmulDescCreate(
    out: *mut *mut c_void,
    compute: c_int,
    scale: c_int,
) -> Status {
    // HIPBLAS_COMPUTE_32F, HIP_R_32F
    if (compute, scale) != (2, 0) {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's pointer.
    unsafe { create(out, Object::Desc(Attributes::default())) }
}

#[no_mangle]
pub extern "C" fn hipblasLtMatmulDescDestroy(desc: *mut c_void) -> Status {
    destroy(desc)
}

#[no_mangle]
pub unsafe extern "C" fn hipblasLtMatmulDescSetAttribute(
    desc: *mut c_void,
    attribute: c_int,
    value: *const c_void,
    bytes: usize,
) -> Status {
    match objects().get(desc).as_deref() {
        // SAFETY: the caller's pointer.
        Some(Object::Desc(attributes)) => unsafe {
            set(attributes, &DESC_ATTRIBUTES, (attribute, value, bytes))
        },
        _ => INVALID_VALUE,
    }
}

#[no_mangle]
pub unsafe extern "C" fn hipblasLtMatrixLayoutCreate(
    out: *mut *mut c_void,
    kind: c_int,
    rows: u64,
    columns: u64,
    ld: i64,
) -> Status {
    let ld = usize::try_from(ld).unwrap_or(0);
    let (rows, columns) = (rows as usize, columns as usize);
    if ld < rows {
        return INVALID_VALUE;
    }
    let layout = Layout {
        kind,
        rows,
        columns,
        ld,
    };
    // SAFETY: the caller's pointer.
    unsafe { create(out, Object::Layout(layout)) }
}

#[no_mangle]
pub extern "C" fn hipblasLtMatrixLayoutDestroy(layout: *mut c_void) -> Status {
    destroy(layout)
}

#[no_mangle]
pub unsafe extern "C" fn hipblasLtMatmulPreferenceCreate(out: *mut *mut c_void) -> Status {
    // SAFETY: the caller's pointer.
    unsafe { create(out, Object::Preference(Attributes::default())) }
}

#[no_mangle]
pub extern "C" fn hipblasLtMatmulPreferenceDestroy(preference: *mut c_void) -> Status {
    destroy(preference)
}

#[no_mangle]
pub unsafe extern "C" fn hipblasLtMatmulPreferenceSetAttribute(
    preference: *mut c_void,
    attribute: c_int,
    value: *const c_void,
    bytes: usize,
) -> Status {
    match objects().get(preference).as_deref() {
        // SAFETY: the caller's pointer.
        Some(Object::Preference(attributes)) => unsafe {
            set(
                attributes,
                &PREFERENCE_ATTRIBUTES,
                (attribute, value, bytes),
            )
        },
        _ => INVALID_VALUE,
    }
}
