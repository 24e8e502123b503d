//! Ranks that fail, hang, leave or ask for something else: nobody hangs, and nobody gets half an answer.

use crate::common::*;
use crate::setup::*;
use hip_sim::control::hip_sim_inject;
use hip_sim::hip::*;
use hip_sim::rccl::*;
use std::ffi::CStr;
use std::process::Command;
use std::ptr::null_mut;

const NOT_READY: i32 = 600;
const SYSTEM_ERROR: ncclResult_t = 2;
const INTERNAL_ERROR: ncclResult_t = 3;
const INVALID_USAGE: ncclResult_t = 5;
const REMOTE_ERROR: ncclResult_t = 6;

fn inject(kind: &CStr, nth: u64) {
    assert_eq!(unsafe { hip_sim_inject(kind.as_ptr(), nth) }, 0);
}

fn last_error() -> String {
    let text = unsafe { CStr::from_ptr(ncclGetLastError(null_mut())) };
    text.to_string_lossy().into_owned()
}

/// Every rank does `work`; what they answer and the only finding.
fn finding(
    size: usize,
    work: impl Fn(&Rank) -> ncclResult_t + Sync,
) -> (Vec<ncclResult_t>, String) {
    let statuses = on_threads(init_all(size), |rank| {
        let status = work(rank);
        assert_eq!(rank.async_error(), status, "it stays failed");
        assert_ne!(rank.sum(1.0), Ok(size as f32));
        status
    });
    let reports = take_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    (statuses, reports[0].clone())
}

#[test]
fn calls_that_do_not_fit_are_a_finding() {
    let _turn = setup();
    let data = || Buffer::from_slice(&numbers(0, 16));
    let (statuses, report) = finding(3, |rank| {
        let (x, count) = (data(), if rank.rank == 2 { 8 } else { 16 });
        rank.all_reduce(&x, &x, count, FLOAT32, SUM)
    });
    assert_eq!(statuses, [INVALID_USAGE; 3]);
    assert!(
        report.contains("collective 0")
            && report.contains("ncclAllReduce of 8 Float32, Sum on rank 2"),
        "{report}"
    );
    let (statuses, report) = finding(2, |rank| {
        let x = data();
        match rank.rank {
            0 => rank.all_reduce(&x, &x, 16, FLOAT32, SUM),
            _ => unsafe { ncclBroadcast(x.ptr, x.ptr, 16, FLOAT32, 0, rank.comm, rank.stream) },
        }
    });
    assert_eq!(statuses, [INVALID_USAGE; 2]);
    assert!(
        report.contains("ncclAllReduce") && report.contains("ncclBroadcast"),
        "{report}"
    );
    let (statuses, report) = finding(2, |rank| {
        let x = data();
        match rank.rank {
            0 => rank.send(&x, 16, 1),
            _ => unsafe { ncclRecv(x.ptr, 16, INT32, 0, rank.comm, rank.stream) },
        }
    });
    assert_eq!(statuses, [INVALID_USAGE; 2]);
    assert!(
        report.contains("ncclSend of 16 Float32") && report.contains("ncclRecv of 16 Int32"),
        "{report}"
    );
}

#[test]
fn a_rank_that_leaves_fails_what_needs_it() {
    let _turn = setup();
    let mut ranks = init_all(3);
    let last = ranks.pop().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| on_threads(ranks, |rank| (rank.sum(1.0), rank.async_error())));
        last.destroy();
        let expected = (Err(REMOTE_ERROR), REMOTE_ERROR);
        assert_eq!(waiting.join().unwrap(), [expected; 2]);
    });
    assert!(
        last_error().contains("rank 2 has destroyed its communicator"),
        "{}",
        last_error()
    );
    assert_eq!(take_reports(), Vec::<String>::new());
}

#[test]
fn what_all_have_come_to_is_answered_although_a_rank_leaves() {
    let _turn = setup();
    for _ in 0..20 {
        assert_eq!(on_threads(init_all(4), |rank| rank.sum(1.0)), [Ok(4.0); 4]);
    }
}

#[test]
fn abort_wakes_all_ranks_and_the_own_call() {
    let _turn = setup();
    inject(c"rccl-hang", 1);
    let ranks = init_all(3);
    let (comm, stream) = (ranks[0].comm as usize, ranks[0].stream as usize);
    let is_inside = |stream: usize| hipStreamQuery(stream as _) == NOT_READY;
    let streams: Vec<usize> = ranks.iter().map(|rank| rank.stream as usize).collect();
    let statuses: Vec<ncclResult_t> = std::thread::scope(|scope| {
        let call = |rank: Rank| {
            scope.spawn(move || {
                ok(hipSetDevice(rank.rank as i32));
                let x = Buffer::from_slice(&[1f32]);
                while rank.rank > 0 && !is_inside(stream) {
                    std::thread::yield_now();
                }
                rank.all_reduce(&x, &x, 1, FLOAT32, SUM)
            })
        };
        let calls: Vec<_> = ranks.into_iter().map(call).collect();
        while !streams.iter().all(|stream| is_inside(*stream)) {
            std::thread::yield_now();
        }
        assert_eq!(ncclCommAbort(comm as _), 0);
        calls.into_iter().map(|c| c.join().unwrap()).collect()
    });
    assert_eq!(statuses, [INTERNAL_ERROR, REMOTE_ERROR, REMOTE_ERROR]);
    assert!(
        last_error().contains("rank 0 has aborted its communicator"),
        "{}",
        last_error()
    );
}

#[test]
fn calls_and_initialisation_fail_when_injected() {
    let _turn = setup();
    inject(c"rccl-init", 2);
    let id = unique_id();
    assert!(Rank::init(id, 0, 1).is_ok());
    assert_eq!(Rank::init(unique_id(), 0, 1).err(), Some(SYSTEM_ERROR));
    inject(c"rccl", 2);
    let rank = Rank::init(unique_id(), 0, 1).unwrap();
    let sums: Vec<_> = (0..3).map(|_| rank.sum(1.0)).collect();
    assert_eq!(sums, [Ok(1.0), Err(INTERNAL_ERROR), Ok(1.0)]);
    rank.destroy();
}

#[test]
fn ranks_that_do_not_fit_together_are_refused() {
    let _turn = setup();
    let id = unique_id();
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let threads = [2, 3].map(|size| scope.spawn(move || Rank::init(id, size - 2, size).err()));
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(statuses, [Some(INVALID_USAGE); 2]);
    let mut comms = [null_mut(); 2];
    let status = unsafe { ncclCommInitAll(comms.as_mut_ptr(), 2, [1, 1].as_ptr()) };
    assert_eq!(status, INVALID_USAGE);
    assert!(
        last_error().contains("uses the GPU of another rank"),
        "{}",
        last_error()
    );
    let foreign = ncclUniqueId { internal: [7; 128] };
    assert_eq!(Rank::init(foreign, 0, 1).err(), Some(4));
    assert!(take_reports().len() >= 2);
}

#[test]
fn a_rank_that_never_comes_is_a_finding_after_the_limit() {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args([
            "--exact",
            "failures::waits_for_nobody",
            "--include-ignored",
            "--nocapture",
        ])
        .env("HIP_SIM_SPIN_LIMIT", "0.3")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
#[ignore = "helper process of the test above"]
fn waits_for_nobody() {
    if std::env::var("HIP_SIM_SPIN_LIMIT").as_deref() != Ok("0.3") {
        return;
    }
    let _turn = setup();
    let mut ranks = init_all(3);
    let first = ranks.remove(0);
    assert_eq!(first.sum(1.0), Err(REMOTE_ERROR));
    let reports = take_reports();
    assert!(
        reports[0].contains(
            "it calls ncclAllReduce of 1 Float32, Sum, to which rank [1, 2] does not come"
        ),
        "{reports:?}"
    );
    ok(hipSetDevice(1));
    assert_eq!(ranks[0].sum(1.0), Err(REMOTE_ERROR));
    assert_eq!(Rank::init(unique_id(), 0, 2).err(), Some(REMOTE_ERROR));
    assert!(take_reports()[0].contains("rank 1 does not come to ncclCommInitRank"));
}
