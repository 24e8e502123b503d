//! Stream captures and graphs.

use super::forward;
use std::ffi::{c_char, c_int, c_void};

forward! {
    fn hipStreamBeginCapture(stream: *mut c_void, mode: c_int) = cuStreamBeginCapture(stream, mode);
    fn hipStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) = cuStreamEndCapture(stream, graph);
    fn hipGraphInstantiate(
        exec: *mut *mut c_void,
        graph: *mut c_void,
        _error_node: *mut *mut c_void,
        _log: *mut c_char,
        _log_bytes: usize,
    ) = cuGraphInstantiate(exec, graph, 0);
    fn hipGraphLaunch(exec: *mut c_void, stream: *mut c_void) = cuGraphLaunch(exec, stream);
    fn hipGraphDestroy(graph: *mut c_void) = cuGraphDestroy(graph);
    fn hipGraphExecDestroy(exec: *mut c_void) = cuGraphExecDestroy(exec);
}
