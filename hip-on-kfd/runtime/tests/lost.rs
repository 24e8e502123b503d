//! A device that is lost: the failure is told once, every later call fails, and others serve.

mod common;

use common::*;
use hip_on_kfd_runtime::hip::*;
use std::ptr::null_mut;

#[test]
fn a_fault_of_memory_takes_its_device_and_no_other() {
    mock();
    let stream = stream();
    let add_to = function(module(), "scramble");
    let numbers = malloc(256);
    add(add_to, 0x1000 as *mut _, 64, 1, stream);
    fails(hipStreamSynchronize(stream), "hipErrorLaunchFailure");
    fails(hipStreamSynchronize(stream), "hipErrorLaunchFailure");
    fails(hipStreamQuery(stream), "hipErrorLaunchFailure");
    // SAFETY: the result is written.
    fails(
        unsafe { hipMalloc(&mut null_mut(), 16) },
        "hipErrorLaunchFailure",
    );
    // SAFETY: as above.
    fails(
        unsafe { hipMemsetAsync(numbers, 0, 16, stream) },
        "hipErrorLaunchFailure",
    );
    fails(hipFree(numbers), "hipErrorLaunchFailure");
    ok(hipStreamDestroy(stream));

    ok(hipSetDevice(1));
    let add_to = function(module(), "scramble");
    let numbers = malloc(256);
    // SAFETY: within the memory.
    ok(unsafe { hipMemsetAsync(numbers, 0, 256, null_mut()) });
    add(add_to, numbers, 64, 4, null_mut());
    assert_eq!(words(&download(numbers, 256, null_mut())), [4; 64]);
}
