//! The instances that the feature `ck` built in.
#![cfg(feature = "ck")]

use candle_rocm_kernels::{embedded_ck, embedded_ck_archs, CkInstance};

/// ELF's number for AMD's GPUs.
const EM_AMDGPU: u8 = 224;

#[test]
fn every_instance_is_a_code_object_with_its_kernel() {
    assert!(!embedded_ck_archs().is_empty());
    for arch in embedded_ck_archs() {
        for instance in CkInstance::all() {
            let name = instance.kernel_name();
            let object = embedded_ck(instance, arch).unwrap_or_else(|| panic!("{name} for {arch}"));
            assert_eq!(
                (&object[..4], object[18]),
                (&b"\x7fELF"[..], EM_AMDGPU),
                "{name}"
            );
            // Names in a string table stand between zeros: the function, and the descriptor that it is launched by.
            for symbol in [format!("\0{name}\0"), format!("\0{name}.kd\0")] {
                let found = object
                    .windows(symbol.len())
                    .any(|window| window == symbol.as_bytes());
                assert!(found, "{symbol:?} is not in the object for {arch}");
            }
            // Feature settings of an arch run what was built for the plain one.
            let settings = format!("{arch}:sramecc+:xnack-");
            assert_eq!(
                embedded_ck(instance, &settings).map(<[u8]>::len),
                Some(object.len())
            );
        }
    }
}
