//! Faults on the mock: who hears of them, what is said, and what is refused afterwards.

use candle_kfd::mock::{Mock, Setup};
use candle_kfd::uapi::{HwExceptionData, MemoryExceptionData};
use candle_kfd::{Displays, Error, Event, Fault, Gpu, Kfd, Kind, Wake, Woken};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn gpus(count: usize) -> (Arc<Mock>, Vec<Arc<Gpu>>) {
    let mock = Mock::with(Setup::of(&vec!["gfx942"; count]));
    let kfd = Kfd::with(mock.clone()).unwrap();
    let open = |index| kfd.gpu(index, Displays::Refuse).unwrap();
    let gpus = (0..count).map(open).collect();
    (mock, gpus)
}

/// A write to an address at which nothing is.
fn write_to(va: u64) -> MemoryExceptionData {
    MemoryExceptionData {
        va,
        not_present: 1,
        ..MemoryExceptionData::default()
    }
}

fn lost(result: Result<impl std::fmt::Debug, Error>) -> Fault {
    match result.unwrap_err() {
        Error::Lost { fault, .. } => *fault,
        other => panic!("{other}"),
    }
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_fault_names_the_memory_that_was_overrun_and_ends_the_gpu() {
    let (mock, gpus) = gpus(2);
    let gpu = &gpus[0];
    let memory = gpu.allocate(64 << 10, Kind::Vram).unwrap();
    let event = Event::new(gpu).unwrap();
    gpu.check_faults().unwrap();
    mock.memory_fault(0, write_to(memory.address() + (64 << 10)));
    // Nobody has asked yet.
    assert!(gpu.usable().is_ok());
    let said = gpu.check_faults().unwrap_err().to_string();
    for part in [
        gpu.node().pci_id.as_str(),
        "nothing is mapped there",
        "0 bytes past the end of 65536 bytes of device memory",
        "start it again",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let fault = lost(gpu.usable());
    match &fault {
        Fault::Memory {
            address,
            nearest: Some(region),
            ..
        } => {
            assert_eq!(*address, memory.address() + (64 << 10));
            assert_eq!(
                (region.address, region.kind),
                (memory.address(), Kind::Vram)
            );
        }
        other => panic!("{other}"),
    }
    // The first fault is what counts, and nothing more is done there.
    mock.memory_fault(0, write_to(0x1000));
    assert_eq!(lost(gpu.check_faults()), fault);
    assert_eq!(lost(gpu.allocate(4096, Kind::Gtt)), fault);
    assert_eq!(lost(Event::new(gpu)), fault);
    assert_eq!(lost(gpu.doorbell(0)), fault);
    assert_eq!(lost(gpu.kfd().wait(&[&event], Wake::Any, LONG)), fault);
    assert_eq!(lost(gpu.kfd().gpu(0, Displays::Refuse)), fault);
    // SAFETY: it is refused before anything is looked at.
    assert_eq!(
        lost(unsafe { gpu.register(std::ptr::null_mut(), 1) }),
        fault
    );
    // The other one goes on, but does not get into memory of this one.
    gpus[1].check_faults().unwrap();
    gpus[1].allocate(4096, Kind::Vram).unwrap();
    assert_eq!(
        lost(gpus[1].allocate(4096, Kind::Gtt).unwrap().map_to(&gpus)),
        fault
    );
    drop((memory, event));
    assert_eq!(gpu.kfd().failed_releases(), 0);
}

#[test]
fn a_fault_wakes_who_waits() {
    let (mock, gpus) = gpus(2);
    let kfd = gpus[0].kfd();
    let (first, second) = (Event::new(&gpus[0]).unwrap(), Event::new(&gpus[1]).unwrap());
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(3));
            mock.reset(1);
        });
        let fault = lost(kfd.wait(&[&second], Wake::Any, LONG));
        assert_eq!(
            fault,
            Fault::Hardware {
                reset_type: 0,
                reset_cause: 0,
                memory_lost: true
            }
        );
        assert!(fault
            .to_string()
            .contains("reset because it hung; its memory lost its contents"));
    });
    assert!(start.elapsed() < LONG);
    // Who waits for the other GPU only is not kept from it.
    first.set().unwrap();
    assert_eq!(
        kfd.wait(&[&first], Wake::Any, LONG).unwrap(),
        Woken::Signalled
    );
    lost(kfd.wait(&[&first, &second], Wake::All, LONG));
    lost(kfd.wait(&[], Wake::Any, LONG));
}

#[test]
fn a_fault_ends_a_wait_for_all_of_several_events() {
    let (mock, gpus) = gpus(1);
    let events = [Event::new(&gpus[0]).unwrap(), Event::new(&gpus[0]).unwrap()];
    events[0].set().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| mock.memory_fault(0, write_to(0x10_0000)));
        let waited = (gpus[0].kfd()).wait(&[&events[0], &events[1]], Wake::All, LONG);
        assert!(matches!(
            lost(waited),
            Fault::Memory {
                address: 0x10_0000,
                ..
            }
        ));
    });
}

#[test]
fn what_the_kernel_says_is_passed_on() {
    let (mock, gpus) = gpus(1);
    let gpu = &gpus[0];
    let memory = gpu.allocate(8192, Kind::Executable).unwrap();
    let said = MemoryExceptionData {
        va: memory.address() + 4096,
        read_only: 1,
        no_execute: 1,
        imprecise: 1,
        error_type: 2,
        ..MemoryExceptionData::default()
    };
    mock.memory_fault(0, said);
    let text = gpu.check_faults().unwrap_err().to_string();
    for part in [
        "it may not be written, it is no code, the address may be a little off",
        "known to be wrong",
        "4096 bytes into 8192 bytes of memory for code",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let (mock, gpus) = self::gpus(1);
    let queue = HwExceptionData {
        reset_type: 1,
        reset_cause: 1,
        ..HwExceptionData::default()
    };
    mock.hardware_exception(0, queue);
    let text = gpus[0].check_faults().unwrap_err().to_string();
    assert!(
        text.contains("a queue was reset because its memory has an error;"),
        "{text}"
    );
}
