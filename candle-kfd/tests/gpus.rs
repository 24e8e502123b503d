//! The driver and GPUs, opened: what is refused, and what is said about it.

mod through;

use candle_kfd::driver::{Driver, Errno};
use candle_kfd::mock::{Mock, Setup, OPEN_RENDER};
use candle_kfd::sdma::{Engine, SdmaQueue};
use candle_kfd::uapi::{DeviceApertures, GetProcessAperturesNew, Request};
use candle_kfd::{ComputeQueue, Displays, Error, Event, Kfd, Kind};
use std::sync::Arc;
use std::time::Duration;
use through::Through;

fn kfd(setup: Setup) -> (Arc<Mock>, Arc<Kfd>) {
    let mock = Mock::with(setup);
    let kfd = Kfd::with(mock.clone()).unwrap();
    (mock, kfd)
}

#[test]
fn gpus_are_found_and_opened_once() {
    let (mock, kfd) = kfd(Setup::of(&["gfx1100", "gfx942"]));
    assert_eq!(kfd.version(), (1, 17));
    let archs: Vec<_> = kfd.nodes().iter().map(|node| node.arch.as_str()).collect();
    assert_eq!(archs, ["gfx1100", "gfx942"]);
    let first = kfd.gpu(0, Displays::Refuse).unwrap();
    let again = kfd.gpu(0, Displays::Refuse).unwrap();
    let second = kfd.gpu(1, Displays::Refuse).unwrap();
    assert!(first.is(&again) && !first.is(&second));
    assert_eq!(first.generation().arch, "gfx1100");
    assert_eq!(second.node().render_minor, first.node().render_minor + 1);
    // A second address space of a GPU is refused by the kernel.
    assert_eq!(mock.calls("AMDKFD_IOC_ACQUIRE_VM"), 2);
    assert_eq!(mock.calls("AMDKFD_IOC_RUNTIME_ENABLE"), 1);
    let (low, high) = first.apertures().memory;
    assert!(low < high && first.apertures().lds.0 > 0 && first.apertures().scratch.0 > 0);
    let (before, after) = (first.clocks().unwrap(), first.clocks().unwrap());
    assert!(after.gpu >= before.gpu && after.cpu >= before.cpu && before.system_hz > 0);
    assert!(first.free_bytes().unwrap() > 0);
    assert!(first.check_faults().is_ok());
}

#[test]
fn a_gpu_can_be_opened_again_after_it_was_closed() {
    let (mock, kfd) = kfd(Setup::of(&["gfx1100"]));
    drop(kfd.gpu(0, Displays::Refuse).unwrap());
    kfd.gpu(0, Displays::Refuse).unwrap();
    assert_eq!(mock.calls(OPEN_RENDER), 1);
    drop(kfd);
    assert_eq!(mock.left().events, 0);
}

#[test]
fn what_must_not_be_used_is_refused() {
    let (_mock, kfd) = kfd(Setup::of(&["gfx1100", "gfx803"]));
    assert_eq!(
        kfd.gpu(2, Displays::Allow).unwrap_err(),
        Error::NoGpu { index: 2, count: 2 }
    );
    assert_eq!(
        kfd.gpu(1, Displays::Allow).unwrap_err(),
        Error::UnknownArch {
            arch: "gfx803".into()
        }
    );
    let none = kfd_without_gpus();
    let said = none.gpu(0, Displays::Refuse).unwrap_err().to_string();
    assert!(
        said.contains("offers 0") && said.contains("rocm-doctor"),
        "{said}"
    );
}

fn kfd_without_gpus() -> Arc<Kfd> {
    kfd(Setup::of(&[])).1
}

#[test]
fn a_gpu_with_a_display_is_left_alone_unless_allowed() {
    let (mock, kfd) = kfd(Setup::of(&["gfx1100"]).each(|gpu| gpu.display = true));
    match kfd.gpu(0, Displays::Refuse).unwrap_err() {
        Error::Display { gpu, outputs } => {
            assert_eq!(gpu, kfd.nodes()[0].pci_id);
            assert!(!outputs.is_empty());
        }
        other => panic!("{other}"),
    }
    assert_eq!(mock.calls(OPEN_RENDER), 0);
    kfd.gpu(0, Displays::Allow).unwrap();
}

#[test]
fn versions_are_told_apart() {
    let with = |version| {
        Kfd::with(Mock::with(Setup {
            version,
            ..Setup::of(&["gfx1100"])
        }))
    };
    for version in [(0, 9), (1, 5), (2, 0)] {
        assert_eq!(
            with(version).unwrap_err(),
            Error::Version {
                version,
                oldest: (1, 6)
            }
        );
    }
    let gpu = with((1, 8)).unwrap().gpu(0, Displays::Refuse).unwrap();
    assert_eq!(
        gpu.free_bytes().unwrap_err(),
        Error::TooOld {
            what: "how much memory is free",
            since: (1, 9),
            version: (1, 8)
        }
    );
}

#[test]
fn each_refusal_while_opening_is_named_and_harmless() {
    for request in [
        "AMDKFD_IOC_GET_VERSION",
        "AMDKFD_IOC_GET_PROCESS_APERTURES_NEW",
    ] {
        let mock = Mock::new(&["gfx1100"]);
        mock.fail(request, 0, libc::EPERM);
        assert_eq!(
            Kfd::with(mock.clone()).unwrap_err(),
            Error::Ioctl {
                ioctl: request,
                errno: Errno(libc::EPERM)
            }
        );
        Kfd::with(mock).unwrap();
    }
    for (request, nth) in [
        ("AMDKFD_IOC_ACQUIRE_VM", 0),
        ("AMDKFD_IOC_RUNTIME_ENABLE", 0),
        ("AMDKFD_IOC_ALLOC_MEMORY_OF_GPU", 0),
        ("AMDKFD_IOC_MAP_MEMORY_TO_GPU", 0),
        ("AMDKFD_IOC_CREATE_EVENT", 0),
        ("AMDKFD_IOC_CREATE_EVENT", 1),
    ] {
        let (mock, kfd) = kfd(Setup::of(&["gfx1100"]));
        mock.fail(request, nth, libc::EIO);
        assert_eq!(
            kfd.gpu(0, Displays::Refuse).unwrap_err(),
            Error::Ioctl {
                ioctl: request,
                errno: Errno(libc::EIO)
            }
        );
        // The driver keeps the page that came with the first event.
        if nth == 0 {
            assert!(mock.left().is_nothing(), "{request}: {:?}", mock.left());
        }
        let gpu = kfd.gpu(0, Displays::Refuse).unwrap();
        Event::new(&gpu).unwrap();
    }
    let (mock, kfd) = kfd(Setup::of(&["gfx1100"]));
    mock.fail(OPEN_RENDER, 0, libc::EACCES);
    let said = kfd.gpu(0, Displays::Refuse).unwrap_err().to_string();
    assert!(
        said.contains("renderD") && said.contains("usermod"),
        "{said}"
    );
    mock.fail("AMDKFD_IOC_ACQUIRE_VM", 0, libc::EBUSY);
    let said = kfd.gpu(0, Displays::Refuse).unwrap_err().to_string();
    assert!(said.contains("ROCm's libraries"), "{said}");
    // Another runtime of the process has said so before.
    mock.fail("AMDKFD_IOC_RUNTIME_ENABLE", 0, libc::EBUSY);
    kfd.gpu(0, Displays::Refuse).unwrap();
    mock.fail("AMDKFD_IOC_GET_CLOCK_COUNTERS", 0, libc::EINVAL);
    let gpu = kfd.gpu(0, Displays::Refuse).unwrap();
    assert!(gpu.clocks().is_err() && gpu.clocks().is_ok());
}

#[test]
fn gpus_that_nothing_describes_are_missed() {
    let mock = Mock::new(&["gfx1100", "gfx942"]);
    std::fs::remove_dir_all(mock.root().join("sys/class/kfd")).unwrap();
    let missed = Kfd::with(mock).unwrap_err();
    assert_eq!(missed, Error::Undescribed { gpus: 2 });
    assert!(missed.to_string().contains("/sys"), "{missed}");
}

/// Tells that the mock's last GPU sees little: as those of before gfx9 do.
fn narrow_last(mock: &Mock, number: u32, argument: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: the promise of who calls the driver.
    unsafe { mock.ioctl(number, argument) }?;
    if number == GetProcessAperturesNew::NUMBER {
        let said: &GetProcessAperturesNew = bytemuck::from_bytes(argument);
        let array = said.kfd_process_device_apertures_ptr as *mut DeviceApertures;
        if !array.is_null() {
            // SAFETY: the driver has just written so many of them there.
            let last = unsafe { &mut *array.add(said.num_of_nodes as usize - 1) };
            (last.gpuvm_base, last.gpuvm_limit) = (1 << 24, u32::MAX.into());
        }
    }
    Ok(())
}

#[test]
fn an_old_gpu_beside_others_does_not_take_their_addresses() {
    let with = |archs: &[&str]| {
        let driver = Through {
            mock: Mock::new(archs),
            ioctl: narrow_last,
        };
        let kfd = Kfd::with(Arc::new(driver)).unwrap();
        let opened = kfd.gpu(0, Displays::Refuse);
        opened.and_then(|gpu| gpu.allocate(4096, Kind::Gtt).map(drop))
    };
    assert_eq!(with(&["gfx1100", "gfx942", "gfx803"]), Ok(()));
    // One that may be opened counts: memory has one address for all.
    let narrow = with(&["gfx1100", "gfx942"]);
    assert!(matches!(narrow, Err(Error::Reserve { .. })), "{narrow:?}");
}

/// An Instinct MI300 in a mode of partitions: several nodes, each with numbers and a render node of its own, of one PCI
/// device (Linux' `kfd_topology.c` puts the partition into the upper bits of `location_id`).
#[test]
fn partitions_of_a_gpu_are_gpus_of_their_own() {
    let mock = Mock::new(&["gfx942", "gfx942"]);
    let nodes = mock.root().join("sys/class/kfd/kfd/topology/nodes");
    let properties = |node: u32| nodes.join(format!("{node}/properties"));
    let location = |text: &str| {
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with("location_id")).unwrap();
        line.to_string()
    };
    let [first, second] = [1, 2].map(|node| std::fs::read_to_string(properties(node)).unwrap());
    let of_first: u32 = location(&first)["location_id ".len()..].parse().unwrap();
    let partition = format!("location_id {}", of_first | 1 << 28);
    let second = second.replace(&location(&second), &partition);
    std::fs::write(properties(2), second).unwrap();

    let kfd = Kfd::with(mock.clone()).unwrap();
    let [one, two] = [0, 1].map(|at| kfd.gpu(at, Displays::Refuse).unwrap());
    assert_eq!(one.node().pci_id, two.node().pci_id);
    assert_ne!(one.node().gpu_id, two.node().gpu_id);
    assert_ne!(one.node().render_minor, two.node().render_minor);
    assert!(!one.is(&two));
    let soon = Duration::from_secs(20);
    let copies = SdmaQueue::new(&one, Engine::Any).unwrap();
    let [here, there] = [&one, &two].map(|gpu| gpu.allocate(4096, Kind::Vram).unwrap());
    // Neither sees the other's memory of itself.
    there.map_to(std::slice::from_ref(&one)).unwrap();
    copies.fill((&here, 0), 7, 1024, soon).unwrap();
    copies.copy((&there, 0), (&here, 0), 4096, soon).unwrap();
    ComputeQueue::new(&two, 64).unwrap().idle(soon).unwrap();
    // What goes wrong in one leaves the other as it is.
    mock.memory_fault(1, Default::default());
    assert!(matches!(two.check_faults(), Err(Error::Lost { .. })));
    assert_eq!(one.check_faults(), Ok(()));
    copies.fill((&here, 0), 8, 1024, soon).unwrap();
}
