//! Everything that the driver may refuse, refused once: an error that says what, nothing kept, and the process lives.

use candle_kfd::mock::{object, Mock, MockKernel, MAP, OPEN_RENDER, REQUESTS};
use candle_kfd::sdma::{Engine, SdmaQueue};
use candle_kfd::uapi::{
    DestroyEvent, DestroyQueue, FreeMemoryOfGpu, Request, ResetEvent, UnmapMemoryFromGpu,
    WaitEvents,
};
use candle_kfd::{
    ComputeQueue, Displays, Error, Event, Kfd, Kind, Launch, Program, Result, Signal, Wake,
};
use std::sync::Arc;
use std::time::Duration;

/// How long a part of the scenario may take. Nothing here waits for it but what was refused an event.
const TIMEOUT: Duration = Duration::from_secs(20);
const WORDS: u32 = 256;

fn mock() -> Arc<Mock> {
    let mock = Mock::new(&["gfx1100", "gfx1100"]);
    mock.kernel("double", |launch| {
        for at in 0..u64::from(launch.threads[0]) {
            let value = launch.memory.load32(launch.u64(0) + 4 * at)?;
            launch.memory.store32(launch.u64(0) + 4 * at, 2 * value)?;
        }
        Ok(())
    });
    mock
}

/// Opens two GPUs, takes memory of every kind, runs a kernel and copies, waits, and gives all of it back.
fn scenario(kfd: &Arc<Kfd>) -> Result<()> {
    let gpu = kfd.gpu(0, Displays::Refuse)?;
    let other = kfd.gpu(1, Displays::Refuse)?;
    gpu.free_bytes()?;
    gpu.clocks()?;
    let words = gpu.allocate(4 * WORDS as usize, Kind::Gtt)?;
    words.map_to(std::slice::from_ref(&other))?;
    let host = words.host().expect("the host sees its own memory");
    for at in 0..WORDS {
        host.write(4 * at as usize, &at.to_le_bytes())?;
    }
    let device = gpu.allocate(1 << 20, Kind::Vram)?;
    let mut own = vec![0u8; 3 * 4096];
    // SAFETY: the vector lives longer than what registers it, and nobody else uses it meanwhile.
    let registered = unsafe { gpu.register(own.as_mut_ptr(), own.len()) }?;

    let event = Event::new(&gpu)?;
    event.set()?;
    kfd.wait(&[&event], Wake::Any, TIMEOUT)?;

    let program = Program::load(
        &gpu,
        &object("gfx1100", &[MockKernel::new("double").buffer()]),
    )?;
    let kernel = program.kernel("double")?;
    let queue = ComputeQueue::new(&gpu, 64)?;
    let done = Signal::with_event(&gpu, 1)?;
    let launch = Launch {
        kernel: &kernel,
        blocks: [WORDS / 64, 1, 1],
        block: [64, 1, 1],
        dynamic_lds: 0,
        arguments: &words.address().to_le_bytes(),
        completion: Some(&done),
        barrier: true,
    };
    // SAFETY: the kernel reads and writes the words; everything lives until the queue is idle.
    unsafe { queue.launch(&launch) }?;
    queue.wait(&done, TIMEOUT)?;
    queue.idle(TIMEOUT)?;

    let copies = SdmaQueue::new(&gpu, Engine::Any)?;
    let bytes = u64::from(4 * WORDS);
    copies.copy((&device, 4096), (&words, 0), bytes, TIMEOUT)?;
    copies.copy((&registered, 0), (&device, 4096), bytes, TIMEOUT)?;
    drop((copies, registered));
    for (at, word) in own.chunks(4).take(WORDS as usize).enumerate() {
        assert_eq!(word, (2 * at as u32).to_le_bytes());
    }
    Ok(())
}

/// Requests that give something back: nobody can be told if they are refused, and the kernel has it until the process
/// ends.
fn gives_back(request: &str) -> bool {
    [
        FreeMemoryOfGpu::NAME,
        UnmapMemoryFromGpu::NAME,
        DestroyEvent::NAME,
        DestroyQueue::NAME,
    ]
    .contains(&request)
}

/// Runs the scenario on a driver that refuses a call; the outcome, and how often something could not be given back.
fn with_refusal(
    mock: &Arc<Mock>,
    request: &'static str,
    nth: usize,
    errno: i32,
) -> (Result<()>, u64) {
    mock.fail(request, nth, errno);
    let kfd = match Kfd::with(mock.clone()) {
        Ok(kfd) => kfd,
        Err(error) => return (Err(error), 0),
    };
    let outcome = scenario(&kfd);
    (outcome, kfd.failed_releases())
}

#[test]
fn nothing_is_left_when_nothing_is_refused() {
    let mock = mock();
    scenario(&Kfd::with(mock.clone()).unwrap()).unwrap();
    assert!(mock.left().is_nothing(), "{:?}", mock.left());
    assert_eq!(mock.complaints(), [""; 0]);
}

#[test]
fn each_call_may_be_refused() {
    let counted = mock();
    scenario(&Kfd::with(counted.clone()).unwrap()).unwrap();
    let mut refused = 0;
    for &request in REQUESTS {
        // The first calls, and every fourth of the others: all of them take too long for each run of the tests.
        for nth in (0..counted.calls(request)).filter(|nth| *nth < 2 || nth % 4 == 3) {
            let mock = mock();
            // Memory may run out anywhere; the others are at the driver's whim.
            let errno = if nth.is_multiple_of(2) {
                libc::ENOMEM
            } else {
                libc::EIO
            };
            let (outcome, failed) = with_refusal(&mock, request, nth, errno);
            let case = format!("{request} {nth}: {outcome:?}, {failed} not given back");
            // How often something is waited for depends on time.
            if mock.calls(request) <= nth {
                assert_eq!(request, WaitEvents::NAME, "{case}");
                continue;
            }
            match &outcome {
                Err(error) => {
                    refused += 1;
                    assert_told(error, request, &case);
                }
                // Somebody else has another way.
                Ok(()) => assert!(may_be_done_without(request), "{case}"),
            }
            let left = mock.left();
            if gives_back(request) {
                assert!(!left.is_nothing(), "{case}");
            } else {
                assert!(failed == 0 && left.is_nothing(), "{case}: {left:?}");
            }
        }
    }
    assert!(refused > 15, "{refused}");
}

/// Whether the scenario comes to its end all the same.
fn may_be_done_without(request: &str) -> bool {
    gives_back(request) || [WaitEvents::NAME, ResetEvent::NAME].contains(&request)
}

/// Whether an error names what was refused, for people.
fn assert_told(error: &Error, request: &str, case: &str) {
    let text = error.to_string();
    let named = match request {
        OPEN_RENDER => text.contains("/dev/dri/renderD"),
        MAP => matches!(error, Error::Map { .. } | Error::Doorbell { .. }),
        _ => {
            text.contains(request)
                || matches!(error, Error::OutOfMemory { .. } | Error::Peers { .. })
        }
    };
    assert!(named, "{case}: {text}");
}
