//! The mock's driver by its requests alone: what the kernel refuses, it refuses.

mod raw;

use candle_kfd::driver::{Driver, Errno, MappedFile};
use candle_kfd::mock::{GpuSetup, Mock, Setup, REQUESTS};
use candle_kfd::uapi::*;
use raw::{ask, Opened, Reserved, KEEP};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

#[test]
fn memory_is_checked_as_the_kernel_checks_it() {
    let setup = Setup::of(&["gfx1100"]).each(|gpu| gpu.vram = Some(64 << 20));
    let mock = Mock::with(setup);
    let early = AllocMemoryOfGpu {
        va_addr: 1 << 32,
        size: 4096,
        gpu_id: 0x1b6b,
        flags: flags::GTT | KEEP,
        ..Default::default()
    };
    assert_eq!(ask(&mock, early), Err(libc::ENODEV), "no render node yet");
    let gpu = Opened::new(&mock, 0);
    assert_eq!(gpu.alloc(1 << 32, 0, flags::VRAM), Err(libc::EINVAL));
    assert_eq!(
        gpu.alloc(1 << 32, 4096, KEEP),
        Err(libc::EINVAL),
        "neither kind"
    );
    assert_eq!(
        gpu.alloc(1 << 32, 65 << 20, flags::VRAM | KEEP),
        Err(libc::ENOMEM)
    );
    assert_eq!(
        gpu.alloc(1 << 32, 4096, flags::DOORBELL | KEEP),
        Err(libc::EINVAL),
        "8192 bytes"
    );
    assert_eq!(
        gpu.alloc(1 << 32, 4096, flags::USERPTR | KEEP),
        Err(libc::EINVAL),
        "no address"
    );
    assert_eq!(gpu.available(), 64 << 20);

    let memory = gpu.alloc(1 << 32, 3 << 20, flags::VRAM | KEEP).unwrap();
    assert_eq!(gpu.available(), 60 << 20, "in steps of 2 MiB");
    assert_eq!(gpu.map(memory.handle, &[]), Err(libc::EINVAL));
    assert_eq!(gpu.map(memory.handle, &[7]), Err(libc::EINVAL));
    assert_eq!(gpu.map(memory.handle + 1, &[gpu.id]), Err(libc::ENOMEM));
    assert_eq!(gpu.map(memory.handle, &[gpu.id]).unwrap().n_success, 1);
    let over = gpu
        .alloc((1 << 32) + (1 << 20), 4096, flags::GTT | KEEP)
        .unwrap();
    assert_eq!(
        gpu.map(over.handle, &[gpu.id]),
        Err(libc::EINVAL),
        "something is there"
    );
    let odd = gpu.alloc((2 << 32) + 1, 4096, flags::GTT | KEEP).unwrap();
    assert_eq!(
        gpu.map(odd.handle, &[gpu.id]),
        Err(libc::EINVAL),
        "no whole page"
    );
    let far = gpu
        .alloc((1 << 47) - 4096, 8192, flags::GTT | KEEP)
        .unwrap();
    assert_eq!(
        gpu.map(far.handle, &[gpu.id]),
        Err(libc::EINVAL),
        "beyond the last address"
    );
    assert_eq!(gpu.free(memory.handle), Err(libc::EBUSY), "still mapped");
    assert_eq!(
        gpu.unmap(over.handle, &[gpu.id]),
        Err(libc::EINVAL),
        "not mapped"
    );
    gpu.unmap(memory.handle, &[gpu.id]).unwrap();
    for handle in [memory.handle, over.handle, odd.handle, far.handle] {
        gpu.free(handle).unwrap();
    }
    assert_eq!(gpu.free(memory.handle), Err(libc::EINVAL), "twice");
    assert_eq!(gpu.available(), 64 << 20);
    assert!(mock.left().is_nothing(), "{:?}", mock.left());
}

#[test]
fn the_host_sees_what_it_maps_and_nothing_else() {
    let mock = Mock::new(&["gfx942"]);
    let gpu = Opened::new(&mock, 0);
    let reserved = Reserved::new(1 << 20);
    let map = |memory: &AllocMemoryOfGpu, bytes| {
        // SAFETY: within the test's own reservation.
        unsafe {
            mock.map(
                MappedFile::Render(&gpu.render),
                memory.mmap_offset,
                reserved.0,
                bytes,
            )
        }
    };
    let hidden = gpu.alloc(1 << 32, 8192, flags::VRAM | KEEP).unwrap();
    assert_eq!(map(&hidden, 8192), Err(Errno(libc::EPERM)));
    let public = gpu
        .alloc(2 << 32, 8192, flags::VRAM | flags::PUBLIC | KEEP)
        .unwrap();
    assert_eq!(map(&public, 16384), Err(Errno(libc::EINVAL)));
    map(&public, 8192).unwrap();
    // SAFETY: 8192 bytes were mapped there.
    unsafe { std::ptr::write_bytes(reserved.0 as *mut u8, 7, 8192) };
    let missing = AllocMemoryOfGpu {
        mmap_offset: 1 << 50,
        ..public
    };
    assert_eq!(map(&missing, 4096), Err(Errno(libc::EINVAL)));
    for handle in [hidden.handle, public.handle] {
        gpu.free(handle).unwrap();
    }
    // What was mapped stays the process' until it unmaps it.
    // SAFETY: as above.
    assert_eq!(
        unsafe { std::ptr::read_volatile((reserved.0 + 8191) as *const u8) },
        7
    );
}

#[test]
fn a_small_bar_hides_memory_and_a_missing_link_other_gpus() {
    let mut setup = Setup::of(&["gfx1030", "gfx1030"]).each(|gpu| gpu.large_bar = false);
    setup.linked = false;
    let mock = Mock::with(setup);
    let [one, two] = [0, 1].map(|index| Opened::new(&mock, index));
    assert_eq!(
        one.alloc(1 << 32, 4096, flags::VRAM | flags::PUBLIC | KEEP),
        Err(libc::EINVAL)
    );
    let memory = one.alloc(1 << 32, 4096, flags::VRAM | KEEP).unwrap();
    let host = one.alloc(2 << 32, 4096, flags::GTT | KEEP).unwrap();
    assert_eq!(one.map(memory.handle, &[one.id, two.id]), Err(libc::EINVAL));
    assert_eq!(
        one.map(host.handle, &[one.id, two.id]).unwrap().n_success,
        2
    );
    // The first of both GPUs has it all the same.
    one.unmap(memory.handle, &[one.id]).unwrap();
    one.unmap(host.handle, &[one.id, two.id]).unwrap();
}

#[test]
fn memory_may_be_mapped_to_some_gpus_only() {
    let mock = Mock::new(&["gfx942", "gfx942"]);
    let [one, two] = [0, 1].map(|index| Opened::new(&mock, index));
    let memory = one.alloc(1 << 32, 4096, flags::VRAM | KEEP).unwrap();
    mock.map_partially(1);
    let both = [one.id, two.id];
    assert_eq!(one.map(memory.handle, &both), Err(libc::ENOMEM));
    assert_eq!(mock.left().mappings, 1);
    assert_eq!(one.map(memory.handle, &both).unwrap().n_success, 2);
    assert_eq!(mock.left().mappings, 2);
}

#[test]
fn render_nodes_are_one_of_each_gpu() {
    let mock = Mock::new(&["gfx1100", "gfx1201"]);
    let [one, two] = [0, 1].map(|index| Opened::new(&mock, index));
    assert_eq!(mock.open_render(130).unwrap_err(), Errno(libc::ENOENT));
    let acquire = |file: &File, gpu_id| {
        ask(
            &mock,
            AcquireVm {
                drm_fd: file.as_raw_fd() as u32,
                gpu_id,
            },
        )
    };
    acquire(&one.render, one.id).unwrap();
    acquire(&one.render.try_clone().unwrap(), one.id).unwrap();
    assert_eq!(acquire(&two.render, one.id), Err(libc::EINVAL));
    assert_eq!(
        acquire(&mock.open_render(128).unwrap(), one.id),
        Err(libc::EBUSY)
    );
    assert_eq!(acquire(&one.render, 1), Err(libc::EINVAL));
}

fn event(kind: u32, auto_reset: bool) -> CreateEvent {
    CreateEvent {
        event_type: kind,
        auto_reset: auto_reset.into(),
        ..Default::default()
    }
}

fn wait(
    mock: &Arc<Mock>,
    ids: &[u32],
    all: bool,
    timeout: u32,
) -> Result<(u32, Vec<EventData>), i32> {
    let mut data: Vec<EventData> = (ids.iter())
        .map(|&event_id| EventData {
            event_id,
            ..Default::default()
        })
        .collect();
    let request = WaitEvents {
        events_ptr: data.as_mut_ptr() as u64,
        num_events: ids.len() as u32,
        wait_for_all: all.into(),
        timeout,
        wait_result: 0,
    };
    let answer = ask(mock, request)?;
    Ok((answer.wait_result, data))
}

#[test]
fn events_wake_those_who_wait() {
    let mock = Mock::new(&["gfx1100"]);
    let one = ask(&mock, event(event_type::SIGNAL, true)).unwrap();
    let two = ask(&mock, event(event_type::SIGNAL, false)).unwrap();
    assert_eq!((one.event_id, two.event_id), (1, 2), "0 stands for none");
    let ids = [one.event_id, two.event_id];
    assert_eq!(wait(&mock, &ids, false, 0).unwrap().0, wait_result::TIMEOUT);
    ask(
        &mock,
        SetEvent {
            event_id: 1,
            pad: 0,
        },
    )
    .unwrap();
    assert_eq!(wait(&mock, &ids, true, 1).unwrap().0, wait_result::TIMEOUT);
    assert_eq!(
        wait(&mock, &ids, false, 0).unwrap().0,
        wait_result::TIMEOUT,
        "reset by the wait before"
    );
    ask(
        &mock,
        SetEvent {
            event_id: 2,
            pad: 0,
        },
    )
    .unwrap();
    for _ in 0..2 {
        assert_eq!(
            wait(&mock, &ids, false, 0).unwrap().0,
            wait_result::COMPLETE,
            "until it is reset"
        );
    }
    ask(
        &mock,
        ResetEvent {
            event_id: 2,
            pad: 0,
        },
    )
    .unwrap();
    let setter = std::thread::spawn({
        let mock = Arc::clone(&mock);
        move || ids.map(|event_id| ask(&mock, SetEvent { event_id, pad: 0 }).unwrap())
    });
    assert_eq!(
        wait(&mock, &ids, true, 60_000).unwrap().0,
        wait_result::COMPLETE
    );
    setter.join().unwrap();
    assert_eq!(wait(&mock, &[3], false, 0), Err(libc::EINVAL));
    let memory = ask(&mock, event(event_type::MEMORY, false)).unwrap();
    assert_eq!(
        ask(
            &mock,
            SetEvent {
                event_id: memory.event_id,
                pad: 0
            }
        ),
        Err(libc::EINVAL),
        "hardware's"
    );
    let destroyer = std::thread::spawn({
        let mock = Arc::clone(&mock);
        move || {
            while wait(&mock, &[memory.event_id], false, 0).is_ok() {
                // Ends it once the other thread waits, or before.
                ask(
                    &mock,
                    DestroyEvent {
                        event_id: memory.event_id,
                        pad: 0,
                    },
                )
                .unwrap();
            }
        }
    });
    let outcome = wait(&mock, &[memory.event_id], false, 60_000);
    assert!(
        matches!(outcome, Err(libc::EIO | libc::EINVAL)),
        "{outcome:?}"
    );
    destroyer.join().unwrap();
    for event_id in ids {
        ask(&mock, DestroyEvent { event_id, pad: 0 }).unwrap();
    }
    assert!(mock.left().is_nothing());
}

#[test]
fn the_page_of_events_is_given_once() {
    let mock = Mock::new(&["gfx1100"]);
    let gpu = Opened::new(&mock, 0);
    let small = gpu.alloc(1 << 32, 4096, flags::GTT | KEEP).unwrap();
    let page = gpu.alloc(2 << 32, 32768, flags::GTT | KEEP).unwrap();
    let with = |handle| CreateEvent {
        event_page_offset: handle,
        ..event(event_type::SIGNAL, false)
    };
    assert_eq!(ask(&mock, with(small.handle)), Err(libc::EINVAL));
    assert_eq!(ask(&mock, with(page.handle)).unwrap().event_id, 1);
    assert_eq!(ask(&mock, with(page.handle)), Err(libc::EINVAL));
    assert_eq!(gpu.free(page.handle), Err(libc::EPERM));
    for id in 2..SIGNAL_EVENT_LIMIT {
        assert_eq!(
            ask(&mock, event(event_type::SIGNAL, false))
                .unwrap()
                .event_id,
            id
        );
    }
    assert_eq!(
        ask(&mock, event(event_type::SIGNAL, false)),
        Err(libc::ENOSPC)
    );
    ask(
        &mock,
        DestroyEvent {
            event_id: 77,
            pad: 0,
        },
    )
    .unwrap();
    assert_eq!(
        ask(&mock, event(event_type::SIGNAL, false))
            .unwrap()
            .event_id,
        77
    );
}

#[test]
fn an_old_driver_knows_fewer_requests() {
    let mut setup = Setup::of(&["gfx1100"]);
    setup.version = (1, 6);
    let mock = Mock::with(setup);
    let version = ask(&mock, GetVersion::default()).unwrap();
    assert_eq!((version.major_version, version.minor_version), (1, 6));
    assert_eq!(ask(&mock, RuntimeEnable::default()), Err(libc::EINVAL));
    let available = GetAvailableMemory {
        gpu_id: 0x1b6b,
        ..Default::default()
    };
    assert_eq!(ask(&mock, available), Err(libc::EINVAL));
}

#[test]
fn a_call_is_refused_when_it_is_told_to() {
    let mock = Mock::new(&["gfx1100"]);
    assert!(REQUESTS.contains(&GetVersion::NAME));
    mock.fail(GetVersion::NAME, 1, libc::EIO);
    let outcomes = [(); 3].map(|()| ask(&mock, GetVersion::default()).map(drop));
    assert_eq!(outcomes, [Ok(()), Err(libc::EIO), Ok(())]);
    assert_eq!(mock.calls(GetVersion::NAME), 3);
}

#[test]
fn wrong_pointers_are_errors() {
    let mock = Mock::new(&["gfx1100"]);
    let gpu = Opened::new(&mock, 0);
    let memory = gpu.alloc(1 << 32, 4096, flags::GTT | KEEP).unwrap();
    let map = MapMemoryToGpu {
        handle: memory.handle,
        device_ids_array_ptr: 8,
        n_devices: 1,
        n_success: 0,
    };
    assert_eq!(ask(&mock, map), Err(libc::EFAULT));
    let wait = WaitEvents {
        events_ptr: 8,
        num_events: 1,
        ..Default::default()
    };
    assert_eq!(ask(&mock, wait), Err(libc::EFAULT));
    let apertures = GetProcessAperturesNew {
        kfd_process_device_apertures_ptr: 8,
        num_of_nodes: 1,
        pad: 0,
    };
    assert_eq!(ask(&mock, apertures), Err(libc::EFAULT));
}

#[test]
fn names_that_are_none_are_refused() {
    let setup = Setup {
        gpus: vec![GpuSetup::of("gtx1080")],
        ..Setup::of(&[])
    };
    assert!(Mock::try_with(setup).is_err());
}
