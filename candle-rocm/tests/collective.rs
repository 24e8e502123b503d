//! Collectives over peers' memory, on several simulated devices.

mod common;
mod isolated;

use candle_rocm::ops::affine::affine;
use candle_rocm::ops::collective::{self, Failure, Rank, Reduction, Shots, DTYPES};
use candle_rocm::{contiguous_strides, Buffer, Capture, DType, Device, Error, PeerAccess, View};
use common::{download, upload, Element, Rng};
use half::{bf16, f16};
use isolated::in_child;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything takes that goes on.
const LONG: Duration = Duration::from_secs(120);
const EIGHT: &[(&str, &str)] = &[("HIP_SIM_ARCH", "gfx942,gfx1100"), ("HIP_SIM_DEVICES", "8")];

fn devices(count: usize) -> Vec<Device> {
    (0..count).map(|i| Device::new(i).unwrap()).collect()
}

/// Runs the ranks of a group, a thread each; what they give, in their order.
fn on_ranks<T: Send>(ranks: Vec<Rank>, run: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let run = &run;
        let threads = ranks.into_iter().map(|rank| scope.spawn(move || run(rank)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// The elements of a rank, small enough that sums of integers do not wrap.
fn values<T: Element>(rank: usize, n: usize, seed: u64) -> Vec<T> {
    Rng::new(seed * 1000 + rank as u64).vec(n, 0.0, 100.0)
}

/// Calls with a view of `values` that begins `offset` elements behind its buffer's start.
fn with_view<T: Element, R>(
    device: &Device,
    values: &[T],
    offset: usize,
    call: impl FnOnce(&View) -> R,
) -> R {
    let padded: Vec<T> = vec![T::from_f64(1.0); offset]
        .into_iter()
        .chain(values.iter().copied())
        .collect();
    let buffer = upload(device, &padded);
    let (dims, strides) = ([values.len()], [1]);
    call(&View {
        buffer: &buffer,
        dtype: T::DTYPE,
        offset,
        dims: &dims,
        strides: &strides,
    })
}

/// What a reduction gives: of halves in f32 with one rounding, of others as their own type adds up.
fn reduced<T: Element>(parts: &[Vec<T>], by: Reduction) -> Vec<T> {
    let wide = |v: T| v.to_f64() as f32;
    let is_half = matches!(T::DTYPE, DType::F16 | DType::BF16);
    (0..parts[0].len())
        .map(|i| {
            let column = parts.iter().map(|part| part[i]);
            match by {
                Reduction::Sum if is_half => {
                    T::from_f32(column.map(wide).reduce(|a, b| a + b).unwrap())
                }
                Reduction::Sum if T::DTYPE == DType::F32 => {
                    T::from_f64(column.map(wide).reduce(|a, b| a + b).unwrap().into())
                }
                Reduction::Sum => T::from_f64(column.map(T::to_f64).sum()),
                Reduction::Max => column.reduce(|a, b| if a < b { b } else { a }).unwrap(),
                Reduction::Min => column.reduce(|a, b| if a > b { b } else { a }).unwrap(),
            }
        })
        .collect()
}

fn assert_same<T: Element>(found: &[T], expected: &[T], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let bits = |v: &[T]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let (found, expected) = (bits(found), bits(expected));
    let at = found.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(at, None, "{what}: the first element that differs");
}

/// Every call, on a group of any size, with tensors of one dtype.
fn every_call<T: Element>(rank: &Rank, n: usize, offset: usize, seed: u64) {
    let (device, own, size) = (rank.device(), rank.rank(), rank.size());
    let what = format!("{:?}, {n} elements, rank {own} of {size}", T::DTYPE);
    let all: Vec<Vec<T>> = (0..size).map(|r| values(r, n, seed)).collect();
    if DTYPES.contains(&T::DTYPE) {
        for by in Reduction::ALL {
            let expected = reduced(&all, by);
            for shots in [Shots::One, Shots::Two] {
                let sum = with_view(device, &all[own], offset, |x| rank.all_reduce(x, by, shots));
                let found = download::<T>(device, &sum.unwrap());
                assert_same(&found, &expected, &format!("{by:?} by {shots:?} of {what}"));
            }
            let shares: Vec<Vec<T>> = (0..size).map(|r| values(r, n * size, seed + 1)).collect();
            let expected = &reduced(&shares, by)[own * n..][..n];
            let share = with_view(device, &shares[own], offset, |x| rank.reduce_scatter(x, by));
            let found = download::<T>(device, &share.unwrap());
            assert_same(&found, expected, &format!("share of {by:?} of {what}"));
        }
    }
    let found = with_view(device, &all[own], offset, |x| rank.all_gather(x)).unwrap();
    assert_same(&download::<T>(device, &found), &all.concat(), &what);
    for (root, expected) in all.iter().enumerate() {
        let found = with_view(device, &all[own], offset, |x| rank.broadcast(x, root)).unwrap();
        assert_same(
            &download::<T>(device, &found),
            expected,
            &format!("root {root}, {what}"),
        );
    }
    let (next, before) = ((own + 1) % size, (own + size - 1) % size);
    for (to, from) in [(next, before), (before, next)] {
        with_view(device, &all[own], offset, |x| rank.send(x, to)).unwrap();
        let found = rank.receive(n * size_of::<T>(), from).unwrap();
        assert_same(
            &download::<T>(device, &found),
            &all[from],
            &format!("{what}, from {from}"),
        );
    }
    rank.barrier().unwrap();
}

#[test]
fn tensors_of_every_dtype_and_size_meet() {
    let name = "tensors_of_every_dtype_and_size_meet";
    in_child(name, EIGHT, || {
        for size in [2, 3, 8] {
            let ranks = collective::group(&devices(size), LONG).unwrap();
            on_ranks(ranks, |rank| {
                every_call::<f32>(&rank, 1, 0, 1);
                every_call::<f32>(&rank, 5003, 1, 2);
                every_call::<f16>(&rank, 4096, 0, 3);
                every_call::<f16>(&rank, 777, 3, 4);
                every_call::<bf16>(&rank, 2051, 0, 5);
                every_call::<u8>(&rank, 1001, 5, 6);
                every_call::<i16>(&rank, 33, 0, 7);
                if size < 8 {
                    every_call::<f64>(&rank, 1030, 0, 8);
                    every_call::<u32>(&rank, 17, 0, 9);
                    every_call::<i32>(&rank, 2048, 1, 10);
                    every_call::<i64>(&rank, 600, 0, 11);
                }
                assert_eq!(rank.failure(), None);
            });
        }
    });
}

#[test]
fn what_is_larger_than_the_memory_goes_in_pieces() {
    let name = "what_is_larger_than_the_memory_goes_in_pieces";
    in_child(name, EIGHT, || {
        // Beyond 4 MiB at once, and 1 MiB of a message.
        let n = (4 << 20) / 4 + 12_345;
        let ranks = collective::group(&devices(2), LONG).unwrap();
        on_ranks(ranks, |rank| {
            let (device, own) = (rank.device(), rank.rank());
            let all: Vec<Vec<f32>> = (0..2).map(|r| values(r, n, 1)).collect();
            let expected = reduced(&all, Reduction::Sum);
            for shots in [Shots::One, Shots::Two] {
                let sum = with_view(device, &all[own], 0, |x| {
                    rank.all_reduce(x, Reduction::Sum, shots)
                });
                assert_same(&download::<f32>(device, &sum.unwrap()), &expected, "sum");
            }
            let found = with_view(device, &all[own], 0, |x| rank.all_gather(x)).unwrap();
            assert_same(&download::<f32>(device, &found), &all.concat(), "all");
            let both = all.concat();
            let twice = with_view(device, &both, 0, |x| rank.reduce_scatter(x, Reduction::Sum));
            let expected: Vec<f32> = all[own].iter().map(|v| v + v).collect();
            assert_same(
                &download::<f32>(device, &twice.unwrap()),
                &expected,
                "share",
            );
            match own {
                0 => with_view(device, &all[0], 0, |x| rank.send(x, 1)).unwrap(),
                _ => {
                    let found = rank.receive(n * 4, 0).unwrap();
                    assert_same(&download::<f32>(device, &found), &all[0], "message");
                }
            }
        });
    });
}

#[test]
fn ranks_that_come_at_random_times_get_the_same_bits() {
    let name = "ranks_that_come_at_random_times_get_the_same_bits";
    in_child(name, EIGHT, || {
        let ranks = collective::group(&devices(4), LONG).unwrap();
        on_ranks(ranks, |rank| {
            let mut rng = Rng::new(rank.rank() as u64);
            for round in 0..100 {
                thread::sleep(Duration::from_micros(
                    rng.below(3) as u64 * rng.below(500) as u64,
                ));
                // All ranks draw this from the round alone: sizes of one block and of many, one after another.
                let mut shared = Rng::new(1000 + round);
                let n = 1 + shared.below(9000);
                let shots = [Shots::One, Shots::Two][shared.below(2)];
                let all: Vec<Vec<f32>> = (0..4).map(|r| values(r, n, round)).collect();
                let own = &all[rank.rank()];
                let sum = with_view(rank.device(), own, 0, |x| {
                    rank.all_reduce(x, Reduction::Sum, shots)
                });
                let expected = reduced(&all, Reduction::Sum);
                let found = download::<f32>(rank.device(), &sum.unwrap());
                assert_same(&found, &expected, &format!("round {round}"));
            }
        });
    });
}

fn doubled(device: &Device, buffer: &Buffer) -> Buffer {
    let dims = [buffer.len() / 4];
    let strides = contiguous_strides(&dims);
    let view = View::contiguous(buffer, DType::F32, &dims, &strides);
    affine(device, &view, 2.0, 0.0).unwrap()
}

#[test]
fn graphs_meet_as_often_as_they_are_launched() {
    let name = "graphs_meet_as_often_as_they_are_launched";
    in_child(name, EIGHT, || {
        let ranks = collective::group(&devices(4), LONG).unwrap();
        on_ranks(ranks, |rank| {
            let (device, own) = (rank.device(), rank.rank());
            let input = upload(device, &vec![0f32; 3000]);
            let output = upload(device, &vec![0f32; 3000]);
            let (dims, strides) = ([3000], [1]);
            let enqueue = || {
                let twice = doubled(device, &input);
                let view = View::contiguous(&twice, DType::F32, &dims, &strides);
                let sum = rank.all_reduce(&view, Reduction::Sum, Shots::One).unwrap();
                let view = View::contiguous(&sum, DType::F32, &dims, &strides);
                let most = rank.all_reduce(&view, Reduction::Max, Shots::Two).unwrap();
                device.copy(&most, 0, &output, 0, most.len()).unwrap();
            };
            // Loads the kernels.
            enqueue();
            let capture = Capture::begin(device).unwrap();
            enqueue();
            let graph = capture.end().unwrap();
            for round in 1..20 {
                let value = (round * (own + 1)) as f32;
                let bytes: Vec<u8> = vec![value; 3000]
                    .iter()
                    .flat_map(|v| v.to_le_bytes())
                    .collect();
                device.upload_into(&bytes, &input, 0).unwrap();
                // SAFETY: input, output and rank are alive.
                unsafe { graph.launch() }.unwrap();
                if round % 3 == 0 {
                    // A call beside the graph counts as well.
                    rank.barrier().unwrap();
                }
                let found = download::<f32>(device, &output);
                assert_eq!(found, vec![(round * 20) as f32; 3000], "round {round}");
            }
        });
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_and_later_calls_do_not_wait() {
    let name = "a_rank_that_does_not_come_is_named_and_later_calls_do_not_wait";
    in_child(name, EIGHT, || {
        let ranks = collective::group(&devices(3), LONG).unwrap();
        let done = Barrier::new(3);
        let begin = Instant::now();
        on_ranks(ranks, |rank| {
            with_view(rank.device(), &[1f32; 5000], 0, |x| {
                rank.all_reduce(x, Reduction::Sum, Shots::Two).unwrap();
                rank.device().synchronize().unwrap();
                assert_eq!(rank.failure(), None);
                // Nobody waits any more.
                done.wait();
                rank.set_limit(Duration::from_secs(2));
                if rank.rank() != 1 {
                    rank.all_reduce(x, Reduction::Sum, Shots::Two).unwrap();
                    rank.device().synchronize().unwrap();
                }
                done.wait();
                let failure = rank.failure().unwrap();
                assert!(
                    matches!(
                        failure,
                        Failure::Late {
                            waiting: 0 | 2,
                            missing: 1
                        }
                    ),
                    "{failure:?}"
                );
                // Longer than the test may take, if anyone still waited.
                rank.set_limit(LONG);
                rank.barrier().unwrap();
                rank.all_reduce(x, Reduction::Sum, Shots::One).unwrap();
                rank.device().synchronize().unwrap();
            });
        });
        assert!(begin.elapsed() < LONG);
    });
}

#[test]
fn an_abort_ends_kernels_that_wait() {
    let name = "an_abort_ends_kernels_that_wait";
    in_child(name, EIGHT, || {
        let ranks = collective::group(&devices(2), LONG).unwrap();
        let begin = Instant::now();
        on_ranks(ranks, |rank| match rank.rank() {
            0 => {
                rank.barrier().unwrap();
                rank.receive(100, 1).unwrap();
                rank.device().synchronize().unwrap();
                assert_eq!(rank.failure(), Some(Failure::Aborted));
            }
            _ => {
                thread::sleep(Duration::from_millis(5));
                rank.abort();
            }
        });
        assert!(begin.elapsed() < LONG);
    });
}

#[test]
fn devices_of_one_gpu_are_a_group_as_well() {
    let name = "devices_of_one_gpu_are_a_group_as_well";
    in_child(name, &[("HIP_SIM_DEVICES", "1")], || {
        let devices = [Device::new(0).unwrap(), Device::new(0).unwrap()];
        let ranks = collective::group(&devices, LONG).unwrap();
        on_ranks(ranks, |rank| every_call::<f32>(&rank, 300, 0, 1));
    });
}

#[test]
fn what_no_group_can_do_is_refused() {
    let name = "what_no_group_can_do_is_refused";
    in_child(name, EIGHT, || {
        let nine: Vec<Device> = (0..9).map(|i| Device::new(i % 8).unwrap()).collect();
        for devices in [&nine[..1], &nine] {
            let refused = collective::group(devices, LONG).map(|_| ());
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
        }
        assert!(collective::unreachable_pairs(&nine).unwrap().is_empty());
        assert_eq!(
            nine[0].can_access_peer(&nine[1]).unwrap(),
            PeerAccess::Possible
        );
        // Once more is no error, nor is a device by itself.
        for other in [&nine[1], &nine[1], &nine[0], &nine[8]] {
            nine[0].enable_peer_access(other).unwrap();
        }
        let [rank, other] = &collective::group(&nine[..2], LONG).unwrap()[..] else {
            panic!("two ranks");
        };
        assert_eq!((other.rank(), other.size()), (1, 2));
        let refused = |result: candle_rocm::Result<()>, what: &str| {
            assert!(
                matches!(result, Err(Error::InvalidArgument { .. })),
                "{what}"
            );
        };
        with_view(&nine[0], &[1f32; 4], 0, |x| {
            let crooked = View {
                strides: &[2],
                dims: &[2],
                ..*x
            };
            refused(rank.all_gather(&crooked).map(|_| ()), "a view with gaps");
            refused(rank.broadcast(x, 2).map(|_| ()), "a root that is none");
            refused(rank.send(x, 0), "to itself");
            refused(rank.receive(4, 5).map(|_| ()), "from nobody");
            let odd = View { dims: &[3], ..*x };
            refused(
                rank.reduce_scatter(&odd, Reduction::Sum).map(|_| ()),
                "3 for 2",
            );
            let foreign = other.all_gather(x).map(|_| ());
            assert!(
                matches!(foreign, Err(Error::DeviceMismatch { .. })),
                "{foreign:?}"
            );
        });
        with_view(&nine[0], &[1u8; 4], 0, |x| {
            let bytes = rank.all_reduce(x, Reduction::Sum, Shots::One).map(|_| ());
            assert!(matches!(bytes, Err(Error::UnsupportedDType { .. })));
        });
        assert!(nine[0].alloc_for_peers(0).is_err() && nine[0].alloc_host_words(0).is_err());
    });
}
