//! Memory of all kinds on the mock: what GPUs and host see, and what is said when they do not.

use candle_kfd::driver::Errno;
use candle_kfd::mock::{Mock, Setup, MAP};
use candle_kfd::{Displays, Error, Gpu, Kfd, Kind, Memory};
use std::sync::atomic::Ordering;
use std::sync::Arc;

fn gpus(setup: Setup) -> (Arc<Mock>, Vec<Arc<Gpu>>) {
    let mock = Mock::with(setup);
    let kfd = Kfd::with(mock.clone()).unwrap();
    let open = |index| kfd.gpu(index, Displays::Refuse).unwrap();
    let gpus = (0..kfd.nodes().len()).map(open).collect();
    (mock, gpus)
}

fn gpu() -> (Arc<Mock>, Arc<Gpu>) {
    let (mock, mut gpus) = gpus(Setup::of(&["gfx1100"]));
    (mock, gpus.remove(0))
}

const ALL: [Kind; 7] = [
    Kind::Vram,
    Kind::VramCoherent,
    Kind::VramVisible,
    Kind::Executable,
    Kind::Gtt,
    Kind::Uncached,
    Kind::Queue,
];

#[test]
fn every_kind_has_one_address_and_comes_back() {
    let (mock, gpu) = gpu();
    let before = mock.left();
    let (low, high) = gpu.apertures().memory;
    for kind in ALL {
        for bytes in [1, 4096, 100_000, 5 << 20] {
            let memory = gpu.allocate(bytes, kind).unwrap();
            assert_eq!((memory.len(), memory.kind()), (bytes, kind));
            assert!(memory.address() >= low && memory.address() + bytes as u64 - 1 <= high);
            let aligned = if bytes >= 2 << 20 { 2 << 20 } else { 4096 };
            assert_eq!(memory.address() % aligned, 0);
            let is_hidden = matches!(kind, Kind::Vram | Kind::VramCoherent);
            assert_eq!(memory.host().is_none(), is_hidden);
            if let Some(host) = memory.host() {
                assert_eq!(host.as_ptr() as u64, memory.address());
                host.fill(0, bytes, 0xa5).unwrap();
                let mut last = [0];
                host.read(bytes - 1, &mut last).unwrap();
                assert_eq!(last, [0xa5]);
                assert!(host.write(bytes, &[1]).is_err());
            }
        }
    }
    assert_eq!(mock.left(), before);
    assert_eq!(gpu.kfd().failed_releases(), 0);
}

#[test]
fn words_are_shared_between_threads() {
    let (_mock, gpu) = gpu();
    let memory = gpu.allocate(64, Kind::Uncached).unwrap();
    std::thread::scope(|scope| {
        let other = memory.host().unwrap();
        scope.spawn(move || other.long(8).unwrap().store(7, Ordering::Release));
    });
    assert_eq!(
        memory
            .host()
            .unwrap()
            .word(8)
            .unwrap()
            .load(Ordering::Acquire),
        7
    );
}

#[test]
fn ranges_are_checked() {
    let (_mock, gpu) = gpu();
    let memory = gpu.allocate(100, Kind::Vram).unwrap();
    assert_eq!(memory.range(60, 40).unwrap(), memory.address() + 60);
    for (offset, bytes) in [(60, 41), (101, 0), (u64::MAX, 2)] {
        assert_eq!(
            memory.range(offset, bytes).unwrap_err(),
            Error::Range {
                offset,
                bytes,
                memory: 100
            }
        );
    }
}

#[test]
fn too_much_is_refused_with_what_is_free() {
    let (_mock, gpus) = gpus(Setup::of(&["gfx1100"]).each(|gpu| gpu.vram = Some(64 << 20)));
    let gpu = &gpus[0];
    let held = gpu.allocate(40 << 20, Kind::Vram).unwrap();
    let refused = gpu.allocate(30 << 20, Kind::Vram).unwrap_err();
    assert_eq!(
        refused,
        Error::OutOfMemory {
            gpu: gpu.node().pci_id.clone(),
            kind: Kind::Vram,
            bytes: 30 << 20,
            free: Some(24 << 20),
            errno: Errno(libc::ENOMEM),
        }
    );
    assert!(
        refused.to_string().contains("25165824 bytes are free"),
        "{refused}"
    );
    drop(held);
    gpu.allocate(30 << 20, Kind::Vram).unwrap();
    for bytes in [0, usize::MAX, usize::MAX / 2] {
        assert!(
            matches!(gpu.allocate(bytes, Kind::Vram), Err(Error::Reserve { .. })),
            "{bytes}"
        );
    }
    assert!(gpu.allocate(4096, Kind::User).is_err());
}

#[test]
fn a_small_window_shows_nothing_and_code_goes_to_the_host() {
    let (_mock, gpus) = gpus(Setup::of(&["gfx1030"]).each(|gpu| gpu.large_bar = false));
    let gpu = &gpus[0];
    let refused = gpu.allocate(4096, Kind::VramVisible).unwrap_err();
    assert_eq!(
        refused,
        Error::NotVisible {
            gpu: gpu.node().pci_id.clone()
        }
    );
    assert!(refused.to_string().contains("resizable BAR"));
    let free = gpu.free_bytes().unwrap();
    let code = gpu.allocate(4096, Kind::Executable).unwrap();
    code.host().unwrap().write(0, &[1, 2, 3]).unwrap();
    assert_eq!(gpu.free_bytes().unwrap(), free);
    gpu.allocate(4096, Kind::Vram).unwrap();
}

#[test]
fn peers_see_memory_all_or_none() {
    let (mock, gpus) = gpus(Setup::of(&["gfx942"; 3]));
    let memory = gpus[0].allocate(8192, Kind::Vram).unwrap();
    let before = mock.left();
    memory.map_to(&[]).unwrap();
    // One of the two saw it for a moment.
    mock.map_partially(1);
    match memory.map_to(&gpus).unwrap_err() {
        Error::Peers { wanted, mapped, .. } => assert_eq!((wanted, mapped), (2, 1)),
        other => panic!("{other}"),
    }
    assert_eq!(mock.left(), before);
    memory.map_to(&gpus).unwrap();
    memory.map_to(&gpus[1..]).unwrap();
    assert_eq!(mock.left().mappings, before.mappings + 2);
    drop(memory);
    assert_eq!(mock.left().mappings, before.mappings - 1);

    let (mock, gpus) = self::gpus(Setup {
        linked: false,
        ..Setup::of(&["gfx1100"; 3])
    });
    let memory = gpus[0].allocate(8192, Kind::Vram).unwrap();
    let before = mock.left();
    let refused = memory.map_to(&gpus).unwrap_err();
    assert_eq!(
        refused,
        Error::Peers {
            wanted: 2,
            mapped: 0,
            errno: Some(Errno(libc::EINVAL))
        }
    );
    assert!(refused.to_string().contains("rocm-doctor"));
    assert_eq!(mock.left(), before);
    // What the host has, all of them reach.
    gpus[0]
        .allocate(8192, Kind::Gtt)
        .unwrap()
        .map_to(&gpus)
        .unwrap();
    let (_other, foreign) = gpu();
    assert_eq!(memory.map_to(&[foreign]).unwrap_err(), Error::Foreign);
}

/// Registers memory of a vector, which lives longer.
fn registered(gpu: &Arc<Gpu>, memory: &mut [u8]) -> Result<Memory, Error> {
    // SAFETY: the vector outlives what is returned in the tests here, and the mock writes nothing.
    unsafe { gpu.register(memory.as_mut_ptr(), memory.len()) }
}

#[test]
fn memory_of_the_caller_is_seen_from_its_first_byte() {
    let (mock, gpu) = gpu();
    let before = mock.left();
    let mut memory = vec![7u8; 3 * 4096];
    let base = memory.as_ptr() as u64;
    let first = registered(&gpu, &mut memory[100..5000]).unwrap();
    assert_eq!((first.address(), first.len()), (base + 100, 4900));
    assert!(first.host().is_none());
    // Its neighbour lies on pages that are taken: it is seen at other addresses.
    let second = registered(&gpu, &mut memory[5000..9000]).unwrap();
    assert_eq!(second.address() % 4096, (base + 5000) % 4096);
    assert_ne!(second.address(), base + 5000);
    drop((first, second));
    assert_eq!(mock.left(), before);
    for (at, bytes) in [
        (base as usize, 0),
        (usize::MAX - 10, 100),
        (0x1000, usize::MAX),
    ] {
        // SAFETY: nothing is there to be seen; that is refused.
        let refused = unsafe { gpu.register(at as *mut u8, bytes) }.unwrap_err();
        assert!(matches!(refused, Error::Reserve { .. }), "{refused}");
    }
    // SAFETY: likewise.
    let refused = unsafe { gpu.register(0x1000 as *mut u8, 4096) }.unwrap_err();
    assert!(matches!(refused, Error::Ioctl { .. }), "{refused}");
}

#[test]
fn each_refusal_is_named_and_leaves_nothing() {
    let (mock, gpu) = gpu();
    let before = mock.left();
    for (request, errno) in [
        ("AMDKFD_IOC_ALLOC_MEMORY_OF_GPU", libc::EPERM),
        ("AMDKFD_IOC_MAP_MEMORY_TO_GPU", libc::EPERM),
    ] {
        mock.fail(request, 0, errno);
        assert_eq!(
            gpu.allocate(4096, Kind::Gtt).unwrap_err(),
            Error::Ioctl {
                ioctl: request,
                errno: Errno(errno)
            }
        );
        assert_eq!(mock.left(), before);
    }
    mock.fail(MAP, 0, libc::EAGAIN);
    assert_eq!(
        gpu.allocate(4096, Kind::Gtt).unwrap_err(),
        Error::Map {
            what: "memory",
            bytes: 4096,
            errno: Errno(libc::EAGAIN)
        }
    );
    assert_eq!(mock.left(), before);
    assert_eq!(gpu.kfd().failed_releases(), 0);
    // Page tables are memory, too.
    mock.fail("AMDKFD_IOC_MAP_MEMORY_TO_GPU", 0, libc::ENOMEM);
    let refused = gpu.allocate(4096, Kind::Gtt).unwrap_err();
    assert!(
        matches!(refused, Error::OutOfMemory { free: None, .. }),
        "{refused}"
    );
}

#[test]
fn what_cannot_be_given_back_is_counted_and_its_addresses_stay() {
    let (mock, gpu) = gpu();
    for (count, request) in [
        "AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU",
        "AMDKFD_IOC_FREE_MEMORY_OF_GPU",
    ]
    .into_iter()
    .enumerate()
    {
        let memory = gpu.allocate(1 << 20, Kind::Gtt).unwrap();
        let (address, pointer) = (memory.address(), memory.host().unwrap().as_ptr());
        mock.fail(request, 0, libc::EIO);
        drop(memory);
        assert_eq!(gpu.kfd().failed_releases(), count as u64 + 1);
        let next = gpu.allocate(1 << 20, Kind::Gtt).unwrap();
        assert_ne!(next.address(), address);
        // SAFETY: still mapped, as the test says.
        unsafe { pointer.write_volatile(1) };
    }
}
