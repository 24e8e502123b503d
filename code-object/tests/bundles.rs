//! Bundles of code objects, plain and compressed.

use code_object::{compressed_bytes, read, select, Error, TargetId, MAX_UNPACKED};
use std::io::Write;

const GFX1100: &[u8] = include_bytes!("fixtures/gfx1100.elf");

/// A bundle of these entries, each with its id.
fn bundle(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let head: usize = 32 + entries.iter().map(|(id, _)| 24 + id.len()).sum::<usize>();
    let mut file = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
    file.extend((entries.len() as u64).to_le_bytes());
    let mut offset = head;
    for (id, object) in entries {
        for number in [offset, object.len(), id.len()] {
            file.extend((number as u64).to_le_bytes());
        }
        file.extend(id.as_bytes());
        offset += object.len();
    }
    for (_, object) in entries {
        file.extend_from_slice(object);
    }
    file
}

fn usual() -> Vec<u8> {
    bundle(&[
        ("host-x86_64-unknown-linux-gnu-", b""),
        ("hipv4-amdgcn-amd-amdhsa--gfx1100", GFX1100),
        ("hipv4-amdgcn-amd-amdhsa--gfx1100", GFX1100),
    ])
}

/// What stands before compressed bytes, in its three versions.
fn compressed(version: u16, method: u16, unpacked: u64, packed: &[u8]) -> Vec<u8> {
    let mut file = b"CCOB".to_vec();
    file.extend(version.to_le_bytes());
    file.extend(method.to_le_bytes());
    let hash = 0u64.to_le_bytes();
    match version {
        1 => file.extend((unpacked as u32).to_le_bytes()),
        2 => {
            file.extend((24 + packed.len() as u32).to_le_bytes());
            file.extend((unpacked as u32).to_le_bytes());
        }
        _ => {
            file.extend((32 + packed.len() as u64).to_le_bytes());
            file.extend(unpacked.to_le_bytes());
        }
    }
    file.extend(hash);
    file.extend(packed);
    file
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

fn error(file: &[u8]) -> String {
    match read(file).unwrap_err() {
        error @ Error::Bundle(_) => error.to_string(),
        other => panic!("{other}"),
    }
}

#[test]
fn every_object_for_amd_gpus_is_found() {
    let entries = read(&usual()).unwrap();
    assert_eq!(entries.len(), 2);
    for entry in &entries {
        assert_eq!(
            entry.id.as_deref(),
            Some("hipv4-amdgcn-amd-amdhsa--gfx1100")
        );
        assert_eq!(entry.object.kernels.len(), 3);
    }
    assert_eq!(read(GFX1100).unwrap()[0].object, entries[0].object);
    assert!(read(&bundle(&[("host-x86_64-unknown-linux-gnu-", b"")]))
        .unwrap()
        .is_empty());
}

#[test]
fn compressed_bundles_are_unpacked() {
    let plain = usual();
    let want = read(&plain).unwrap();
    for version in [1, 2, 3] {
        for (method, packed) in [(0, zlib(&plain)), (1, zstd(&plain))] {
            let file = compressed(version, method, plain.len() as u64, &packed);
            assert_eq!(
                read(&file).unwrap(),
                want,
                "version {version}, method {method}"
            );
        }
    }
}

#[test]
fn the_object_for_a_gpu_is_taken_out_of_many() {
    let many = bundle(&[
        ("host-x86_64-unknown-linux-gnu-", b"host"),
        ("hipv4-amdgcn-amd-amdhsa--gfx11-generic", b"generic"),
        ("hipv4-amdgcn-amd-amdhsa--gfx1100", b"gfx1100"),
        ("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-", b"no xnack"),
        ("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+", b"xnack"),
    ]);
    let packed = compressed(3, 1, many.len() as u64, &zstd(&many));
    for file in [&many, &packed] {
        for (gpu, want) in [
            ("gfx1100", Some("gfx1100")),
            ("gfx1101", Some("generic")),
            ("gfx90a:sramecc+:xnack-", Some("no xnack")),
            ("gfx90a:sramecc+:xnack+", Some("xnack")),
            ("gfx942", None),
        ] {
            let found = select(file, &TargetId::parse(gpu).unwrap()).unwrap();
            let found = found.map(|object| String::from_utf8(object.into_owned()).unwrap());
            assert_eq!(found.as_deref(), want, "{gpu}");
        }
    }
    // What is no bundle is for whoever takes it to say.
    let gfx942 = TargetId::parse("gfx942").unwrap();
    assert_eq!(select(GFX1100, &gfx942).unwrap().unwrap()[..], *GFX1100);
    assert!(select(&many[..60], &gfx942).is_err());
}

#[test]
fn compressed_bundles_tell_how_long_they_are() {
    let packed = zlib(&usual());
    for (version, header) in [(1, None), (2, Some(24)), (3, Some(32))] {
        let file = compressed(version, 0, 7, &packed);
        let told = compressed_bytes(&file[..32]).unwrap();
        assert_eq!(told, header.map(|header| header + packed.len() as u64));
    }
    for begin in [
        &b"CCOB"[..],
        b"__CLANG_OFFLOAD_BUNDLE__",
        b"",
        b"CCOB\x09\0\0\0",
    ] {
        assert!(compressed_bytes(begin).is_err(), "{begin:?}");
    }
}

#[test]
fn corrupt_bundles_are_errors() {
    let plain = usual();
    for end in 24..plain.len() {
        assert!(read(&plain[..end]).is_err(), "{end} bytes");
    }
    let mut many = plain.clone();
    many[24..32].fill(0xff);
    error(&many);
    let mut outside = plain.clone();
    outside[32..40].fill(0xff);
    assert!(error(&outside).contains("outside"));
    // Two entries with the same bytes, of which the file has one copy.
    let mut overlapping = bundle(&[
        ("hip-amdgcn-amd-amdhsa--gfx1100", GFX1100),
        ("hip-amdgcn-amd-amdhsa--gfx1100", &[]),
    ]);
    let second = 32 + 24 + 30;
    overlapping.copy_within(32..48, second);
    assert!(error(&overlapping).contains("overlap"));

    let packed = zlib(&plain);
    let bytes = plain.len() as u64;
    assert!(error(&compressed(2, 0, bytes + 1, &packed)).contains("unpacks"));
    assert!(error(&compressed(2, 0, bytes - 1, &packed)).contains("outside"));
    assert!(error(&compressed(3, 0, MAX_UNPACKED + 1, &packed)).contains("more than"));
    assert!(error(&compressed(4, 0, bytes, &packed)).contains("version 4"));
    assert!(error(&compressed(2, 7, bytes, &packed)).contains("method 7"));
    assert!(error(&compressed(2, 1, bytes, &packed)).len() > 10);
    assert!(error(&compressed(2, 0, bytes, &packed[..packed.len() / 2])).len() > 10);
    assert!(error(&compressed(2, 0, 5, &zlib(b"CCOB!"))).contains("no bundle"));
}
