//! RCCL: ranks that meet, in threads and in processes.

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod processes;
mod setup;

use common::*;
use half::{bf16, f16};
use hip_sim::hip::*;
use hip_sim::rccl::*;
use setup::*;
use std::ffi::{c_void, CStr};
use std::ptr::{null, null_mut};

#[test]
fn versions_ranks_and_texts() {
    let _turn = setup();
    let ranks = init_all(3);
    let (mut version, mut count, mut rank) = (0, 0, 0);
    unsafe {
        assert_eq!(ncclGetVersion(&mut version), 0);
        assert_eq!(ncclCommCount(ranks[2].comm, &mut count), 0);
        assert_eq!(ncclCommUserRank(ranks[2].comm, &mut rank), 0);
        assert_eq!(CStr::from_ptr(ncclGetErrorString(5)), c"invalid usage");
        assert_eq!(
            CStr::from_ptr(ncclGetErrorString(99)),
            c"unknown result code"
        );
    }
    assert!(version > 22_000 && (count, rank) == (3, 2));
    assert_eq!(ranks[0].async_error(), 0);
    ranks.into_iter().for_each(Rank::destroy);
    assert_eq!(take_reports(), Vec::<String>::new());
}

/// Sums, products, largest and smallest over three ranks of numbers 2, 3 and 4 plus the index.
fn reductions<T: Copy + Default + Sync + Send + PartialEq + std::fmt::Debug>(
    dtype: i32,
    from: impl Fn(f64) -> T + Sync,
) {
    let results = on_threads(init_all(3), |rank| {
        let own: Vec<T> = (0..5).map(|i| from((i + rank.rank + 2) as f64)).collect();
        let (send, recv) = (Buffer::from_slice(&own), Buffer::new(5 * size_of::<T>()));
        [0, 1, 2, 3].map(|op| {
            assert_eq!(rank.all_reduce(&send, &recv, 5, dtype, op), 0);
            recv.to_vec::<T>()
        })
    });
    for result in results {
        let expected = |f: fn(f64) -> f64| (0..5).map(|i| from(f(i as f64))).collect::<Vec<T>>();
        assert_eq!(result[0], expected(|i| 3.0 * i + 9.0), "type {dtype}");
        assert_eq!(
            result[1],
            expected(|i| (i + 2.0) * (i + 3.0) * (i + 4.0)),
            "type {dtype}"
        );
        assert_eq!(result[2], expected(|i| i + 4.0), "type {dtype}");
        assert_eq!(result[3], expected(|i| i + 2.0), "type {dtype}");
    }
}

#[test]
fn all_types_are_reduced() {
    let _turn = setup();
    reductions(0, |x| x as i64 as i8);
    reductions(1, |x| x as u64 as u8);
    reductions(2, |x| x as i32);
    reductions(3, |x| x as u32);
    reductions(4, |x| x as i64);
    reductions(5, |x| x as u64);
    reductions(6, f16::from_f64);
    reductions(7, |x| x as f32);
    reductions(8, |x| x);
    reductions(9, bf16::from_f64);
}

#[test]
fn sums_are_made_in_the_order_of_ranks_and_are_the_same_everywhere() {
    let _turn = setup();
    // In another order, or in a wider type, the small ones would count.
    let own = [2048f32, 1.0, 1.0, 1.0];
    let sums = on_threads(init_all(4), |rank| {
        let buffer = Buffer::from_slice(&[f16::from_f32(own[rank.rank])]);
        assert_eq!(rank.all_reduce(&buffer, &buffer, 1, FLOAT16, SUM), 0);
        buffer.to_vec::<f16>()[0]
    });
    assert_eq!(sums, [f16::from_f32(2048.0); 4]);
}

#[test]
fn parts_are_gathered_scattered_and_broadcast_also_in_place() {
    let _turn = setup();
    const N: usize = 6;
    on_threads(init_all(4), |rank| {
        let (comm, stream, r) = (rank.comm, rank.stream, rank.rank);
        let own = numbers(r, N);
        let all: Vec<f32> = (0..4).flat_map(|r| numbers(r, N)).collect();
        let gathered = Buffer::new(4 * 4 * N);
        let send = Buffer::from_slice(&own);
        unsafe {
            assert_eq!(
                ncclAllGather(send.ptr, gathered.ptr, N, FLOAT32, comm, stream),
                0
            );
            assert_eq!(gathered.to_vec::<f32>(), all);
            let place = at(&gathered, r * 4 * N);
            assert_eq!(
                ncclAllGather(place, gathered.ptr, N, FLOAT32, comm, stream),
                0
            );
            assert_eq!(gathered.to_vec::<f32>(), all);
            // Every rank has the same: the sum is four times it.
            assert_eq!(
                ncclReduceScatter(gathered.ptr, place, N, FLOAT32, SUM, comm, stream),
                0
            );
            let scattered = gathered.to_vec::<f32>();
            let four = own.iter().map(|x| 4.0 * x).collect::<Vec<f32>>();
            assert_eq!(scattered[r * N..][..N], four);
            // Only the root's buffer is read.
            let from = if r == 2 { send.ptr } else { null_mut() };
            let received = Buffer::new(4 * N);
            assert_eq!(
                ncclBroadcast(from, received.ptr, N, FLOAT32, 2, comm, stream),
                0
            );
            assert_eq!(received.to_vec::<f32>(), numbers(2, N));
            assert_eq!(
                ncclBroadcast(send.ptr, send.ptr, N, FLOAT32, 1, comm, stream),
                0
            );
            assert_eq!(send.to_vec::<f32>(), numbers(1, N));
            // Bytes of any type are moved.
            assert_eq!(
                ncclBroadcast(send.ptr, send.ptr, 4 * N, 10, 0, comm, stream),
                0
            );
        }
    });
    assert_eq!(take_reports(), Vec::<String>::new());
}

#[test]
fn nothing_is_a_call_too() {
    let _turn = setup();
    on_threads(init_all(2), |rank| unsafe {
        let (n, comm, stream) = (null_mut(), rank.comm, rank.stream);
        assert_eq!(ncclAllReduce(n, n, 0, FLOAT32, SUM, comm, stream), 0);
        assert_eq!(ncclAllGather(n, n, 0, FLOAT32, comm, stream), 0);
        assert_eq!(
            ncclSend(n, 0, FLOAT32, 1 - rank.rank as i32, comm, stream),
            0
        );
        assert_eq!(rank.sum(1.0), Ok(2.0));
    });
}

#[test]
fn messages_arrive_in_their_order_and_cross_in_groups() {
    let _turn = setup();
    on_threads(init_all(3), |rank| {
        let (next, before) = ((rank.rank + 1) % 3, (rank.rank + 2) % 3);
        // A ring: without the group everyone would wait for a receiver.
        let sent: Vec<Buffer> = (0..2)
            .map(|k| Buffer::from_slice(&numbers(rank.rank + 10 * k, 4)))
            .collect();
        let received: Vec<Buffer> = (0..2).map(|_| Buffer::new(16)).collect();
        assert_eq!(ncclGroupStart(), 0);
        for k in 0..2 {
            assert_eq!(rank.send(&sent[k], 4, next), 0);
            assert_eq!(ncclGroupStart(), 0);
            assert_eq!(rank.recv(&received[k], 4, before), 0);
            assert_eq!(ncclGroupEnd(), 0, "an inner group waits for the outer one");
        }
        // A rank is its own peer, too.
        let own = Buffer::new(16);
        assert_eq!(rank.send(&sent[0], 4, rank.rank), 0);
        assert_eq!(rank.recv(&own, 4, rank.rank), 0);
        assert_eq!(ncclGroupEnd(), 0);
        for (k, received) in received.iter().enumerate() {
            assert_eq!(received.to_vec::<f32>(), numbers(before + 10 * k, 4));
        }
        assert_eq!(own.to_vec::<f32>(), numbers(rank.rank, 4));
        // Without a group: one sends, one receives.
        match rank.rank {
            0 => assert_eq!(rank.send(&sent[1], 4, 1), 0),
            1 => {
                assert_eq!(rank.recv(&own, 4, 0), 0);
                assert_eq!(own.to_vec::<f32>(), numbers(10, 4));
            }
            _ => {}
        }
    });
}

#[test]
fn one_thread_makes_the_calls_of_all_ranks_in_a_group() {
    let _turn = setup();
    let ranks = init_all(4);
    let on = |rank: &Rank| ok(hipSetDevice(rank.rank as i32));
    let buffers: Vec<[Buffer; 2]> = ranks
        .iter()
        .map(|rank| {
            on(rank);
            [0, 1].map(|k| Buffer::from_slice(&numbers(rank.rank + k, 8)))
        })
        .collect();
    assert_eq!(ncclGroupStart(), 0);
    for (rank, [a, b]) in ranks.iter().zip(&buffers) {
        on(rank);
        assert_eq!(rank.all_reduce(a, a, 8, FLOAT32, SUM), 0);
        assert_eq!(rank.all_reduce(b, b, 8, FLOAT32, SUM), 0);
    }
    assert_eq!(ncclGroupEnd(), 0);
    for (rank, [a, b]) in ranks.iter().zip(&buffers) {
        on(rank);
        let sum = |k: usize| {
            (0..8)
                .map(|i| (4 * 10 * i + 6 + 4 * k) as f32)
                .collect::<Vec<f32>>()
        };
        assert_eq!((a.to_vec::<f32>(), b.to_vec::<f32>()), (sum(0), sum(1)));
    }
    ranks.into_iter().for_each(Rank::destroy);
    assert_eq!(ncclGroupEnd(), 5, "there is no group");
}

#[test]
fn ranks_are_made_by_an_id_in_threads_and_in_a_group() {
    let _turn = setup();
    let id = unique_id();
    let sums: Vec<_> = std::thread::scope(|scope| {
        let rank = |rank| scope.spawn(move || Rank::init(id, rank, 4).unwrap().sum(rank as f32));
        let threads: Vec<_> = (0..4).map(rank).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(sums, [Ok(6.0); 4]);
    let (id, mut comms) = (unique_id(), [null_mut(); 2]);
    assert_eq!(ncclGroupStart(), 0);
    for (rank, comm) in comms.iter_mut().enumerate() {
        ok(hipSetDevice(rank as i32));
        assert_eq!(unsafe { ncclCommInitRank(comm, 2, id, rank as i32) }, 0);
    }
    assert_eq!(ncclGroupEnd(), 0);
    let ranks = comms
        .iter()
        .enumerate()
        .map(|(rank, comm)| Rank::new(*comm, rank))
        .collect();
    assert_eq!(on_threads(ranks, |rank| rank.sum(1.0)), [Ok(2.0); 2]);
    // An id is for one communicator.
    assert_eq!(Rank::init(id, 0, 2).err(), Some(2));
}

#[test]
fn calls_are_recorded_in_graphs_and_meet_when_these_run() {
    let _turn = setup();
    on_threads(init_all(2), |rank| {
        let (x, y) = (
            Buffer::from_slice(&[1f32; 4]),
            Buffer::from_slice(&[0f32; 4]),
        );
        let (mut graph, mut exec) = (null_mut(), null_mut());
        unsafe {
            ok(hipStreamBeginCapture(rank.stream, 1));
            assert_eq!(rank.all_reduce(&x, &x, 4, FLOAT32, SUM), 0);
            assert_eq!(ncclGroupStart(), 0);
            assert_eq!(rank.send(&x, 4, 1 - rank.rank), 0);
            assert_eq!(rank.recv(&y, 4, 1 - rank.rank), 0);
            assert_eq!(ncclGroupEnd(), 0);
            ok(hipStreamEndCapture(rank.stream, &mut graph));
            let mut nodes = 0;
            ok(hipGraphGetNodes(graph, null_mut(), &mut nodes));
            assert_eq!((nodes, x.to_vec::<f32>()), (2, vec![1.0; 4]));
            ok(hipGraphInstantiate(
                &mut exec,
                graph,
                null_mut(),
                null_mut(),
                0,
            ));
            for turn in 1..4 {
                ok(hipGraphLaunch(exec, rank.stream));
                assert_eq!(y.to_vec::<f32>(), vec![f32::powi(2.0, turn); 4]);
            }
            ok(hipGraphExecDestroy(exec));
            ok(hipGraphDestroy(graph));
        }
    });
}

#[test]
fn wrong_arguments_are_refused_and_told() {
    let _turn = setup();
    let ranks = init_all(2);
    let (rank, one) = (&ranks[0], Buffer::from_slice(&[1f32; 8]));
    let other = {
        ok(hipSetDevice(1));
        let other = Buffer::new(32);
        ok(hipSetDevice(0));
        other
    };
    let (p, comm, stream) = (one.ptr, rank.comm, rank.stream);
    let refused = |status: ncclResult_t, part: &str| {
        let reports = take_reports();
        assert_eq!(status, 4, "{part}");
        assert!(
            reports.len() == 1 && reports[0].contains(part),
            "{part:?} is not in {reports:?}"
        );
        assert!(unsafe { CStr::from_ptr(ncclGetLastError(null_mut())) }
            .to_string_lossy()
            .contains("nccl"));
    };
    unsafe {
        let all_reduce = |p: *mut c_void, n, dtype, op, comm, stream| {
            ncclAllReduce(p, p, n, dtype, op, comm, stream)
        };
        refused(
            all_reduce(p, 8, 12, SUM, comm, stream),
            "there is no data type 12",
        );
        refused(
            all_reduce(p, 8, FLOAT32, 9, comm, stream),
            "no such reduction",
        );
        refused(
            all_reduce(p, 8, 10, SUM, comm, stream),
            "Float8e4m3 differs",
        );
        refused(
            all_reduce(p, 8, FLOAT32, SUM, null_mut(), stream),
            "no such communicator",
        );
        refused(
            all_reduce(p, 8, FLOAT32, SUM, comm, 7 as _),
            "no such stream",
        );
        refused(
            all_reduce(p, 8, FLOAT32, SUM, comm, ranks[1].stream),
            "the stream of device 1",
        );
        refused(
            all_reduce(null_mut(), 8, FLOAT32, SUM, comm, stream),
            "a buffer is null",
        );
        refused(
            all_reduce(p, 9, FLOAT32, SUM, comm, stream),
            "has no 36 bytes",
        );
        refused(
            all_reduce(other.ptr, 8, FLOAT32, SUM, comm, stream),
            "is memory of device 1",
        );
        refused(
            ncclAllReduce(p, at(&one, 4), 4, FLOAT32, SUM, comm, stream),
            "overlap",
        );
        refused(
            ncclBroadcast(p, p, 8, FLOAT32, 2, comm, stream),
            "there is no rank 2 among 2",
        );
        refused(ncclSend(p, 8, FLOAT32, -1, comm, stream), "rank");
        refused(
            ncclCommInitRank(null_mut(), 1, unique_id(), 0),
            "rank 0 of 1",
        );
        let mut made = null_mut();
        refused(
            ncclCommInitRank(&mut made, 2, unique_id(), 2),
            "rank 2 of 2",
        );
        refused(
            ncclCommInitAll(&mut made, 1, [7].as_ptr()),
            "there is no device 7",
        );
        refused(ncclCommInitAll(&mut made, 0, null()), "0 devices");
        // A refused call spoils its group.
        assert_eq!(ncclGroupStart(), 0);
        refused(all_reduce(p, 8, 12, SUM, comm, stream), "data type");
        assert_eq!(ncclGroupEnd(), 4);
    }
    let stale = ranks[1].comm;
    ranks.into_iter().for_each(Rank::destroy);
    refused(ncclCommDestroy(stale), "no such communicator");
}
