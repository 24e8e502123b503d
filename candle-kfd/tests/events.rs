//! Events on the mock: they wake, time out, and end.

use candle_kfd::driver::Errno;
use candle_kfd::mock::Mock;
use candle_kfd::{Displays, Error, Event, Gpu, Kfd, Wake, Woken};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn gpu() -> (Arc<Mock>, Arc<Gpu>) {
    let mock = Mock::new(&["gfx1100"]);
    let gpu = Kfd::with(mock.clone()).unwrap().gpu(0, Displays::Refuse);
    (mock, gpu.unwrap())
}

const SHORT: Duration = Duration::from_millis(3);
const LONG: Duration = Duration::from_secs(20);

#[test]
fn an_event_wakes_who_waits_and_is_then_over() {
    let (mock, gpu) = gpu();
    let (kfd, before) = (gpu.kfd(), mock.left());
    let (one, two) = (Event::new(&gpu).unwrap(), Event::new(&gpu).unwrap());
    assert_ne!((one.id(), one.mailbox()), (two.id(), two.mailbox()));
    assert_eq!(one.mailbox() % 8, 0);
    let wait = |events: &[&Event], wake, timeout| kfd.wait(events, wake, timeout).unwrap();
    assert_eq!(wait(&[&one, &two], Wake::Any, SHORT), Woken::TimedOut);
    one.set().unwrap();
    assert_eq!(wait(&[&one, &two], Wake::Any, LONG), Woken::Signalled);
    assert_eq!(wait(&[&one], Wake::Any, Duration::ZERO), Woken::TimedOut);
    one.set().unwrap();
    one.reset().unwrap();
    assert_eq!(wait(&[&one], Wake::All, Duration::ZERO), Woken::TimedOut);
    one.set().unwrap();
    assert_eq!(wait(&[&one, &two], Wake::All, SHORT), Woken::TimedOut);
    one.set().unwrap();
    two.set().unwrap();
    assert_eq!(wait(&[&one, &two], Wake::All, LONG), Woken::Signalled);
    assert_eq!(wait(&[], Wake::Any, SHORT), Woken::TimedOut);
    drop((one, two));
    assert_eq!(mock.left(), before);
}

#[test]
fn a_sleeper_is_woken_by_another_thread() {
    let (_mock, gpu) = gpu();
    let event = Event::new(&gpu).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(SHORT);
            event.set().unwrap();
        });
        let woken = gpu.kfd().wait(&[&event], Wake::Any, LONG).unwrap();
        assert_eq!(woken, Woken::Signalled);
    });
    assert!(start.elapsed() < LONG);
}

#[test]
fn refusals_are_named() {
    let (mock, gpu) = gpu();
    let refused = |ioctl| Error::Ioctl {
        ioctl,
        errno: Errno(libc::ENOSPC),
    };
    let fail = |request| mock.fail(request, 0, libc::ENOSPC);
    fail("AMDKFD_IOC_CREATE_EVENT");
    assert_eq!(
        Event::new(&gpu).unwrap_err(),
        refused("AMDKFD_IOC_CREATE_EVENT")
    );
    let event = Event::new(&gpu).unwrap();
    fail("AMDKFD_IOC_SET_EVENT");
    assert_eq!(event.set().unwrap_err(), refused("AMDKFD_IOC_SET_EVENT"));
    fail("AMDKFD_IOC_RESET_EVENT");
    assert_eq!(
        event.reset().unwrap_err(),
        refused("AMDKFD_IOC_RESET_EVENT")
    );
    fail("AMDKFD_IOC_WAIT_EVENTS");
    let wait = || gpu.kfd().wait(&[&event], Wake::Any, SHORT);
    assert_eq!(wait().unwrap_err(), refused("AMDKFD_IOC_WAIT_EVENTS"));
    fail("AMDKFD_IOC_WAIT_EVENTS");
    assert_eq!(
        gpu.check_faults().unwrap_err(),
        refused("AMDKFD_IOC_WAIT_EVENTS")
    );
    let (_other, foreign) = self::gpu();
    assert_eq!(
        foreign.kfd().wait(&[&event], Wake::Any, SHORT).unwrap_err(),
        Error::Foreign
    );
    fail("AMDKFD_IOC_DESTROY_EVENT");
    drop(event);
    assert_eq!(gpu.kfd().failed_releases(), 1);
}
