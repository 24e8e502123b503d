//! Queues, kernels and scratch on the mock: what runs, in which order, and what is said when something does not.

mod common;

use candle_kfd::mock::{object, GpuSetup, Mock, MockKernel, Setup, MAP};
use candle_kfd::uapi::{CreateQueue, DestroyQueue, Request};
use candle_kfd::{ComputeQueue, Error, Kind, Launch, Memory, Program, Signal};
use common::{launch, open, open_all, SOON};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ARCHS: [&str; 6] = [
    "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201",
];
/// Long enough to see that nothing happens.
const SHORT: Duration = Duration::from_millis(30);

fn arguments(address: u64, value: u32) -> Vec<u8> {
    [&address.to_le_bytes()[..], &value.to_le_bytes()].concat()
}

/// The kernel that appends its value to a list: how many there are, then the values.
fn lister(mock: &Mock) -> MockKernel {
    mock.kernel("append", |launch| {
        let (list, memory) = (launch.u64(0), &launch.memory);
        let count = memory.load32(list)?;
        memory.store32(list + 4 + u64::from(count) * 4, launch.u32(8))?;
        memory.store32(list, count + 1)
    });
    MockKernel::new("append").buffer().value(4).hidden()
}

fn words(memory: &Memory) -> Vec<u32> {
    let mut bytes = vec![0; memory.len()];
    memory.host().unwrap().read(0, &mut bytes).unwrap();
    let words = bytes.chunks_exact(4);
    words
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

/// Everything was given back, and nothing was done that hardware would not like.
fn end(mock: &Mock) {
    assert_eq!(mock.complaints(), Vec::<String>::new());
    assert!(mock.left().is_nothing(), "{:?}", mock.left());
}

#[test]
fn kernels_run_in_order_around_the_ring() {
    for arch in ARCHS {
        let mock = Mock::new(&[arch]);
        let appender = lister(&mock);
        {
            let gpu = open(&mock);
            let program = Program::load(&gpu, &object(arch, &[appender])).unwrap();
            let kernel = program.kernel("append").unwrap();
            let queue = ComputeQueue::new(&gpu, 64).unwrap();
            let list = gpu.allocate(4 + 500 * 4, Kind::Gtt).unwrap();
            list.host().unwrap().write(0, &[0; 4]).unwrap();
            for value in 0..500 {
                launch(&queue, &kernel, &arguments(list.address(), value)).unwrap();
            }
            queue.idle(SOON).unwrap();
            let words = words(&list);
            assert_eq!(words[0], 500, "{arch}");
            assert!(words[1..].iter().copied().eq(0..500), "{arch}");
            // Kernels, commands for the code, barriers for arguments, and the last barrier.
            let written = queue.written().unwrap();
            assert!(
                written > 501 && queue.taken().unwrap() == written,
                "{written}"
            );
        }
        end(&mock);
    }
}

#[test]
fn several_threads_share_a_queue() {
    const THREADS: u32 = 4;
    const EACH: u32 = 1000;
    let mock = Mock::new(&["gfx1100"]);
    let sum = Arc::new(AtomicU64::new(0));
    let total = sum.clone();
    mock.kernel("add", move |launch| {
        total.fetch_add(launch.u32(0).into(), Ordering::Relaxed);
        Ok(())
    });
    {
        let gpu = open(&mock);
        let adder = MockKernel::new("add").value(4).hidden();
        let program = Program::load(&gpu, &object("gfx1100", &[adder])).unwrap();
        let kernel = program.kernel("add").unwrap();
        let queue = ComputeQueue::new(&gpu, 128).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (queue, kernel) = (&queue, &kernel);
                scope.spawn(move || {
                    for at in 0..EACH {
                        launch(queue, kernel, &(thread * EACH + at).to_le_bytes()).unwrap();
                    }
                    queue.idle(SOON).unwrap();
                });
            }
        });
        let count = u64::from(THREADS * EACH);
        assert_eq!(sum.load(Ordering::Relaxed), count * (count - 1) / 2);
    }
    end(&mock);
}

#[test]
fn hidden_arguments_are_filled_in() {
    let mock = Mock::new(&["gfx1201"]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let there = seen.clone();
    mock.kernel("look", move |launch| {
        let mut seen = there.lock().unwrap();
        seen.push((
            launch.blocks(),
            launch.block,
            launch.lds_bytes,
            launch.arguments.clone(),
        ));
        Ok(())
    });
    let gpu = open(&mock);
    let kernel = MockKernel::new("look").value(4).hidden().lds(256);
    let program = Program::load(&gpu, &object("gfx1201", &[kernel])).unwrap();
    let kernel = program.kernel("look").unwrap();
    let queue = ComputeQueue::new(&gpu, 64).unwrap();
    let launch = Launch {
        kernel: &kernel,
        blocks: [7, 5, 3],
        block: [32, 2, 4],
        dynamic_lds: 1000,
        arguments: &0xabcd_u32.to_le_bytes(),
        completion: None,
        barrier: false,
    };
    // SAFETY: the mock's kernel touches nothing.
    unsafe { queue.launch(&launch) }.unwrap();
    queue.idle(SOON).unwrap();
    let seen = seen.lock().unwrap();
    let (blocks, block, lds, arguments) = &seen[0];
    assert_eq!((*blocks, *block, *lds), ([7, 5, 3], [32, 2, 4], 1256));
    let word = |at: usize| u32::from_le_bytes(arguments[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(4)), (0xabcd, 0));
    // Hidden ones begin at a multiple of 8: counts, sizes of 16 bits, no remainders, and the number of dimensions.
    assert_eq!([8, 12, 16].map(word), [7, 5, 3]);
    assert_eq!((word(20), word(24)), (2 << 16 | 32, 4));
    assert!(arguments[26..72].iter().all(|&byte| byte == 0));
    assert_eq!(arguments[72], 3);
}

#[test]
fn barriers_wait_for_any_number_of_signals() {
    let mock = Mock::new(&["gfx942"]);
    {
        let gpu = open(&mock);
        let queue = ComputeQueue::new(&gpu, 64).unwrap();
        for count in [0, 1, 5, 6, 12] {
            let signals = Signal::several(&gpu, count, 1).unwrap();
            let waits: Vec<&Signal> = signals.iter().collect();
            let done = Signal::with_event(&gpu, 1).unwrap();
            queue.barrier(&waits, Some(&done)).unwrap();
            for signal in &signals {
                assert!(matches!(
                    done.wait(Duration::from_millis(3)),
                    Err(Error::Timeout { .. })
                ));
                signal.store(0);
            }
            done.wait(SOON).unwrap();
            let (began, ended) = done.times();
            assert!(0 < began && began < ended);
        }
    }
    end(&mock);
}

#[test]
fn a_queue_waits_for_another_gpu() {
    let mock = Mock::new(&["gfx1100", "gfx1100"]);
    {
        let gpus = open_all(&mock);
        let queues = gpus
            .each_ref()
            .map(|gpu| ComputeQueue::new(gpu, 64).unwrap());
        let [first, second] = &queues;
        let (go, between, done) = (
            Signal::new(&gpus[0], 1).unwrap(),
            Signal::new(&gpus[0], 1).unwrap(),
            Signal::with_event(&gpus[1], 1).unwrap(),
        );
        between.share(&gpus).unwrap();
        second.barrier(&[&between], Some(&done)).unwrap();
        first.barrier(&[&go], Some(&between)).unwrap();
        assert!(matches!(
            second.wait(&done, SHORT),
            Err(Error::Stalled { .. })
        ));
        go.store(0);
        second.wait(&done, SOON).unwrap();
    }
    end(&mock);
}

#[test]
fn scratch_grows_as_kernels_need_it() {
    for arch in ARCHS {
        let mut setup = Setup::of(&[arch]);
        // Too little for the slots of all waves with 4000 bytes a lane.
        setup.gpus[0] = GpuSetup {
            vram: Some(512 << 20),
            ..GpuSetup::of(arch)
        };
        let mock = Mock::with(setup);
        let kernels = [16, 100, 4000].map(|bytes| {
            let name = format!("scratch{bytes}");
            mock.kernel(&name, move |launch| {
                assert!(launch.scratch_bytes >= bytes);
                Ok(())
            });
            MockKernel::new(&name).scratch(bytes)
        });
        {
            let gpu = open(&mock);
            let program = Program::load(&gpu, &object(arch, &kernels)).unwrap();
            let queue = ComputeQueue::new(&gpu, 64).unwrap();
            for name in ["scratch100", "scratch16", "scratch4000", "scratch100"] {
                launch(&queue, &program.kernel(name).unwrap(), &[]).unwrap();
            }
            queue.idle(SOON).unwrap();
            // More than a register can say.
            let large = MockKernel::new("large").scratch(200 << 20);
            let program = Program::load(&gpu, &object(arch, &[large])).unwrap();
            let error = launch(&queue, &program.kernel("large").unwrap(), &[]).unwrap_err();
            assert!(matches!(error, Error::Scratch { .. }), "{error}");
            queue.idle(SOON).unwrap();
        }
        end(&mock);
    }
}

#[test]
fn launches_are_checked_before_a_packet_is_made() {
    let mock = Mock::new(&["gfx1100", "gfx1100"]);
    let [gpu, other] = open_all(&mock);
    let kernel = MockKernel::new("small").value(8).threads(256).lds(1024);
    let file = object("gfx1100", &[kernel]);
    let program = Program::load(&gpu, &file).unwrap();
    let kernel = program.kernel("small").unwrap();
    let queue = ComputeQueue::new(&gpu, 64).unwrap();
    let sound = Launch {
        kernel: &kernel,
        blocks: [1, 1, 1],
        block: [256, 1, 1],
        dynamic_lds: 63 << 10,
        arguments: &[0; 8],
        completion: None,
        barrier: false,
    };
    let elsewhere = Program::load(&other, &file)
        .unwrap()
        .kernel("small")
        .unwrap();
    for (wrong, text) in [
        (
            Launch {
                block: [257, 1, 1],
                ..sound
            },
            "1 to 256 threads",
        ),
        (
            Launch {
                block: [16, 16, 2],
                ..sound
            },
            "1 to 256 threads",
        ),
        (
            Launch {
                block: [0, 1, 1],
                ..sound
            },
            "1 to 256 threads",
        ),
        (
            Launch {
                block: [1 << 16; 3],
                ..sound
            },
            "1 to 256 threads",
        ),
        (
            Launch {
                blocks: [1, 0, 1],
                ..sound
            },
            "0 blocks",
        ),
        (
            Launch {
                blocks: [1 << 24, 1, 1],
                ..sound
            },
            "16777216 blocks",
        ),
        (
            Launch {
                dynamic_lds: (63 << 10) + 1,
                ..sound
            },
            "65536 at most",
        ),
        (
            Launch {
                dynamic_lds: u32::MAX,
                ..sound
            },
            "65536 at most",
        ),
        (
            Launch {
                arguments: &[0; 7],
                ..sound
            },
            "it takes 8",
        ),
        (
            Launch {
                arguments: &[0; 9],
                ..sound
            },
            "it takes 8",
        ),
        (
            Launch {
                kernel: &elsewhere,
                ..sound
            },
            "another GPU",
        ),
    ] {
        // SAFETY: nothing is launched.
        let error = unsafe { queue.launch(&wrong) }.unwrap_err();
        assert!(matches!(error, Error::Launch { .. }), "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(queue.written(), Ok(0));
}

#[test]
fn programs_are_checked_before_they_are_loaded() {
    let mock = Mock::new(&["gfx1100"]);
    {
        let gpu = open(&mock);
        let file = object("gfx1100", &[MockKernel::new("one"), MockKernel::new("two")]);
        let load = |file: &[u8]| Program::load(&gpu, file).map(drop).unwrap_err();
        let error = load(&object("gfx1101", &[MockKernel::new("one")]));
        assert_eq!(
            error,
            Error::Target {
                object: "gfx1101".to_string(),
                gpu: "gfx1100".to_string()
            }
        );
        for wrong in [&b""[..], b"not at all", &file[..file.len() / 2]] {
            assert!(matches!(load(wrong), Error::CodeObject { .. }));
        }
        let program = Program::load(&gpu, &file).unwrap();
        assert_eq!(
            program.kernel("three").unwrap_err().to_string(),
            "there is no kernel three; there are: one, two"
        );
        let (address, bytes) = program.symbol("two.kd").unwrap();
        assert_eq!(
            (address, bytes),
            (program.kernel("two").unwrap().descriptor(), 64)
        );
        assert!(program.symbol("absent").is_none());
        for packets in [0, 1, 32, 100, 1 << 18] {
            assert!(matches!(
                ComputeQueue::new(&gpu, packets),
                Err(Error::QueueSize { .. })
            ));
        }
    }
    end(&mock);
}

#[test]
fn code_lies_in_host_memory_where_the_window_is_small() {
    let mock = Mock::with(Setup::of(&["gfx1100"]).each(|gpu| gpu.large_bar = false));
    mock.kernel("nothing", |_| Ok(()));
    {
        let gpu = open(&mock);
        let program =
            Program::load(&gpu, &object("gfx1100", &[MockKernel::new("nothing")])).unwrap();
        let queue = ComputeQueue::new(&gpu, 64).unwrap();
        launch(&queue, &program.kernel("nothing").unwrap(), &[]).unwrap();
        queue.idle(SOON).unwrap();
    }
    end(&mock);
}

#[test]
fn a_refused_queue_leaves_nothing_behind() {
    let mock = Mock::new(&["gfx90a"]);
    {
        let gpu = open(&mock);
        // What a GPU has for itself, such as the page of events, is there from now on.
        drop(ComputeQueue::new(&gpu, 64).unwrap());
        let before = mock.left();
        for (request, errno) in [(CreateQueue::NAME, libc::ENOMEM), (MAP, libc::ENOMEM)] {
            mock.fail(request, 0, errno);
            let error = ComputeQueue::new(&gpu, 64).unwrap_err();
            assert!(
                matches!(error, Error::Ioctl { .. } | Error::Map { .. }),
                "{error:?}"
            );
            assert_eq!(mock.left(), before);
        }
        // What the driver does not take back stays, and is counted.
        mock.fail(DestroyQueue::NAME, 0, libc::EIO);
        drop(ComputeQueue::new(&gpu, 64).unwrap());
        assert_eq!(gpu.kfd().failed_releases(), 1);
        assert_eq!(mock.left().queues, before.queues + 1);
        assert!(mock.left().allocations > before.allocations);
    }
}
