//! GPUs without a link between them.

mod common;

use common::*;
use hip_on_kfd_runtime::hip::*;
use std::ptr::null_mut;

#[test]
fn copies_go_by_way_of_the_host() {
    mock_with(|mut setup| {
        setup.linked = false;
        setup
    });
    let bytes = (9 << 20) + 3;
    let data: Vec<u8> = (0..bytes).map(|i| (i * 7 / 3) as u8).collect();
    let first = malloc(bytes);
    upload(first, &data, null_mut());
    ok(hipStreamSynchronize(null_mut()));
    let mut can = -1;
    // SAFETY: the answer is written.
    ok(unsafe { hipDeviceCanAccessPeer(&mut can, 0, 1) });
    assert_eq!(can, 0);
    fails(hipDeviceEnablePeerAccess(1, 0), "hipErrorInvalidDevice");
    ok(hipSetDevice(1));
    let second = malloc(bytes);
    // SAFETY: both have as many bytes.
    ok(unsafe { hipMemcpyPeerAsync(second, 1, first, 0, bytes, null_mut()) });
    assert!(download(second, bytes, null_mut()) == data);
}
