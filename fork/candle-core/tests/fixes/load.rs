//! Threads that share a machine with others.

use candle_core::utils::{barrier_pool, get_num_threads};
use std::time::Duration;

/// How long this thread has run or has waited for a core, in nanoseconds: what it has not slept.
#[cfg(target_os = "linux")]
fn awake() -> u64 {
    let all = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let mut numbers = all.split(' ').map(|number| number.parse::<u64>().unwrap());
    numbers.next().unwrap() + numbers.next().unwrap()
}

/// The published crate spins until the slowest thread is done.
#[cfg(target_os = "linux")]
#[test]
fn a_thread_that_waits_for_others_sleeps() {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
    let main = std::thread::current().id();
    let (others, before) = (AtomicUsize::new(0), AtomicU64::new(0));
    barrier_pool().execute_chunked(64, |_| {
        if std::thread::current().id() == main {
            // Others get the time to join.
            std::thread::sleep(Duration::from_millis(3));
            before.store(awake(), Relaxed);
        } else if others.fetch_add(1, Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(600));
        }
    });
    // On a machine of one core there are no others.
    let waiting = Duration::from_nanos(awake() - before.load(Relaxed));
    assert!(waiting < Duration::from_millis(300), "{waiting:?} awake");
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_that_may_use_one_core_has_one_thread() {
    if std::env::var_os("RAYON_NUM_THREADS").is_some() {
        return;
    }
    // The number is kept from the first call, so that it is asked in a process that has not asked before.
    const ALONE: &str = "CANDLE_TEST_ONE_CORE";
    if std::env::var_os(ALONE).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "load::a_process_that_may_use_one_core_has_one_thread",
            ])
            .env(ALONE, "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    // The affinity is this thread's own.
    let threads = std::thread::spawn(|| {
        // SAFETY: the sets are plain bits of the size that is given, and live as long as the calls.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let size = std::mem::size_of_val(&set);
            assert_eq!(libc::sched_getaffinity(0, size, &mut set), 0);
            let first = (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &set));
            libc::CPU_ZERO(&mut set);
            libc::CPU_SET(first.unwrap(), &mut set);
            assert_eq!(libc::sched_setaffinity(0, size, &set), 0);
        }
        get_num_threads()
    });
    assert_eq!(threads.join().unwrap(), 1);
}

/// Every number is used once, whoever runs; and work goes on after a panic.
#[test]
fn all_work_is_done_once() {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    for round in 0..2000usize {
        let counts: Vec<AtomicU32> = (0..1 + round % 97).map(|_| AtomicU32::new(0)).collect();
        barrier_pool().execute_chunked(counts.len(), |range| {
            for count in &counts[range] {
                count.fetch_add(1, Relaxed);
            }
        });
        assert!(
            counts.iter().all(|count| count.load(Relaxed) == 1),
            "{round}"
        );
        if round % 500 == 250 {
            let failed = std::panic::catch_unwind(|| {
                barrier_pool().execute_chunked(100, |range| assert!(!range.contains(&50)));
            });
            assert!(failed.is_err());
        }
    }
    let threads = AtomicU32::new(0);
    barrier_pool().execute(|_| {
        threads.fetch_add(1, Relaxed);
    });
    assert_eq!(
        threads.load(Relaxed) as usize,
        barrier_pool().n_workers() + 1
    );
}
