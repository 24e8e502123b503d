//! Solutions and their measurements, as C has them.

use std::ffi::c_int;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct miopenConvSolution_t {
    pub time: f32,
    pub workspace_size: usize,
    pub solution_id: u64,
    pub algorithm: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct miopenConvAlgoPerf_t {
    pub algorithm: c_int,
    pub time: f32,
    pub memory: usize,
}
