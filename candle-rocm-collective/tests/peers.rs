//! Tensors of several simulated GPUs, and the choice of what carries them.

mod common;
#[path = "../../candle-rocm/tests/isolated/mod.rs"]
mod isolated;

use candle::{DType, Device, Result, Tensor};
use candle_rocm::Capture;
use candle_rocm_collective::choice::{Outcome, Tried};
use candle_rocm_collective::{group, host, peers, Choice, Communicator, Error, Options, Reduce};
use common::ranks;
use isolated::in_child;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(120);
const FOUR: &[(&str, &str)] = &[("HIP_SIM_ARCH", "gfx942,gfx1100"), ("HIP_SIM_DEVICES", "4")];

/// Runs `body` in a process of its own with so many GPUs; nothing where tests are to do without.
fn on_gpus(name: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    match std::env::var("CANDLE_ROCM_TEST_DEVICE").as_deref() {
        Ok("rocm") => in_child(name, environment, body),
        _ => eprintln!("CANDLE_ROCM_TEST_DEVICE is not rocm: no GPU is asked for"),
    }
}

fn gpus(count: usize) -> Vec<Device> {
    (0..count).map(|i| Device::new_rocm(i).unwrap()).collect()
}

/// Values of a rank that are no round numbers, so that sums in another order would have other bits.
fn values(rank: usize, dims: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let count: usize = dims.iter().product();
    let value = |i: usize| ((rank * 7919 + i * 104_729) % 10_007) as f32 / 37.0 - 130.0;
    let values: Vec<f32> = (0..count).map(value).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)?
        .to_dtype(dtype)?
        .to_device(device)
}

/// Every call on tensors of a dtype; the results in the host's memory.
fn every_call(rank: &Communicator, dtype: DType) -> Result<Vec<Tensor>> {
    let (own, size) = (rank.rank(), rank.size());
    let x = values(own, &[3, 347], dtype, rank.device())?;
    let mut results = Vec::new();
    if dtype != DType::U8 {
        for by in [Reduce::Sum, Reduce::Max, Reduce::Min] {
            results.push(rank.all_reduce(&x, by)?);
        }
        let shares = values(own, &[2 * size, 55], dtype, rank.device())?;
        results.push(rank.reduce_scatter(&shares, Reduce::Sum)?);
    }
    results.push(rank.all_gather(&x.narrow(1, 1, 11)?)?);
    results.push(rank.all_gather_uneven(
        &x.narrow(0, 0, 1 + own % 2)?,
        0,
        &[1, 2, 1, 2][..size],
    )?);
    results.push(rank.broadcast(&x.t()?, size - 1)?);
    rank.send(&x.narrow(0, 1, 2)?, (own + 1) % size)?;
    results.push(rank.recv((2, 347), dtype, (own + size - 1) % size)?);
    rank.barrier()?;
    rank.check()?;
    results.iter().map(|x| x.to_device(&Device::Cpu)).collect()
}

#[test]
fn gpus_get_what_ranks_get_that_meet_in_memory() {
    let name = "gpus_get_what_ranks_get_that_meet_in_memory";
    on_gpus(name, FOUR, || {
        for size in [2, 4] {
            for dtype in [DType::F32, DType::F16, DType::BF16, DType::I64, DType::U8] {
                let run = |rank: Communicator| every_call(&rank, dtype);
                let expected = ranks(host::group(&vec![Device::Cpu; size]).unwrap(), run);
                let found = ranks(peers::group(&gpus(size), LONG).unwrap(), run);
                for (rank, (found, expected)) in found.into_iter().zip(expected).enumerate() {
                    let (found, expected) = (found.unwrap(), expected.unwrap());
                    assert_eq!(found.len(), expected.len());
                    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        let what = format!("result {i} of {dtype:?} on rank {rank} of {size}");
                        assert_eq!(found.dims(), expected.dims(), "{what}");
                        assert_eq!(found.dtype(), dtype, "{what}");
                        let values = |x: &Tensor| {
                            let x = x.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
                            x.to_vec1::<f64>().unwrap()
                        };
                        assert!(values(found) == values(expected), "{what}");
                    }
                }
            }
        }
    });
}

#[test]
fn a_graph_repeats_what_candle_computes_around_a_sum() {
    let name = "a_graph_repeats_what_candle_computes_around_a_sum";
    on_gpus(name, FOUR, || {
        let results = ranks(peers::group(&gpus(3), LONG).unwrap(), |rank| {
            assert!(rank.is_capturable());
            let Device::Rocm(gpu) = rank.device() else {
                panic!("no GPU");
            };
            let x = Tensor::full(rank.rank() as f32 + 1.0, 2000, rank.device())?;
            let total = Tensor::zeros(2000, DType::F32, rank.device())?;
            let step = || {
                let sum = rank.all_reduce(&(&x * 2.0)?, Reduce::Sum)?;
                // Adds to what was there before.
                total.slice_set(&(&total + sum)?, 0, 0)
            };
            step()?;
            let capture = Capture::begin(gpu.device())?;
            step()?;
            let graph = capture.end()?;
            for _ in 0..9 {
                // SAFETY: the tensors and the rank are alive.
                unsafe { graph.launch()? };
            }
            let total = total.to_vec1::<f32>()?;
            rank.check()?;
            Ok(total)
        });
        for result in results {
            assert_eq!(result.unwrap(), vec![120.0; 2000]);
        }
    });
}

#[test]
fn a_missing_rank_is_named_and_a_failed_one_tells_why() {
    let name = "a_missing_rank_is_named_and_a_failed_one_tells_why";
    on_gpus(name, FOUR, || {
        let waited = Duration::from_millis(50);
        let results = ranks(peers::group(&gpus(2), waited).unwrap(), |rank| {
            match rank.rank() {
                1 => Ok(()),
                _ => rank.barrier(),
            }
        });
        let error = results[0].as_ref().unwrap_err();
        let late = Error::TimedOut {
            rank: 1,
            size: 2,
            op: "a collective",
            waited,
        };
        assert_eq!(Error::of(error), Some(&late), "{error}");
        let reason = "its GPU is lost";
        let results = ranks(peers::group(&gpus(2), LONG).unwrap(), |rank| {
            if rank.rank() == 1 {
                rank.abort(reason);
                return Ok(());
            }
            let x = Tensor::zeros(9, DType::F32, rank.device())?;
            // Waits in vain, or is told before.
            let sum = rank.all_reduce(&x, Reduce::Sum).and_then(|sum| {
                rank.device().synchronize()?;
                rank.check().map(|()| sum)
            });
            sum.map(|_| ())
        });
        let error = results[0].as_ref().unwrap_err();
        let failed = Error::RankFailed {
            rank: 1,
            size: 2,
            reason: reason.to_string(),
        };
        assert_eq!(Error::of(error), Some(&failed), "{error}");
    });
}

fn options(choice: Choice) -> Options {
    Options {
        choice,
        sizes: vec![4 << 10, 16 << 10],
        ..Options::default()
    }
}

/// Every rank's sum of its number and 1.
fn sums(group: Vec<Communicator>) -> Vec<Vec<f32>> {
    let results = ranks(group, |rank| {
        let x = Tensor::new(&[rank.rank() as f32 + 1.0], rank.device())?;
        rank.all_reduce(&x, Reduce::Sum)?.to_vec1::<f32>()
    });
    results.into_iter().map(Result::unwrap).collect()
}

#[test]
fn what_was_measured_is_remembered() {
    let cache = tempfile::tempdir().unwrap();
    let mut environment = FOUR.to_vec();
    environment.push(("CANDLE_ROCM_CACHE_DIR", cache.path().to_str().unwrap()));
    on_gpus("what_was_measured_is_remembered", &environment, || {
        let devices = gpus(2);
        let first = group(&devices, &options(Choice::Auto)).unwrap();
        let report = first[0].report().unwrap();
        assert!(!report.was_remembered, "{report}");
        // RCCL is where it is installed.
        let measured =
            |t: &&Tried| matches!(&t.outcome, Outcome::Works { times } if times.len() == 2);
        let names = report.tried.iter().filter(measured).map(|t| t.name);
        let names: Vec<&str> = names.filter(|name| *name != "rccl").collect();
        assert_eq!(names, ["peers", "host"], "{report}");
        let fastest = report.fastest.clone();
        let second = group(&devices, &options(Choice::Auto)).unwrap();
        let report = second[1].report().unwrap();
        assert!(
            report.was_remembered && report.fastest == fastest,
            "{report}"
        );
        for tried in &report.tried {
            let is_used = fastest.contains(&tried.name);
            assert_eq!(
                matches!(tried.outcome, Outcome::Works { .. }),
                is_used,
                "{report}"
            );
        }
        assert_eq!(sums(second), vec![vec![3.0]; 2]);
        // Other GPUs, and other sizes, are other measurements.
        for (devices, sizes) in [(gpus(3), vec![4 << 10, 16 << 10]), (devices, vec![1 << 10])] {
            let other = Options {
                sizes,
                ..options(Choice::Auto)
            };
            let group = group(&devices, &other).unwrap();
            assert!(!group[0].report().unwrap().was_remembered);
        }
    });
}

#[test]
fn a_backend_may_be_asked_for_by_name() {
    let name = "a_backend_may_be_asked_for_by_name";
    let mut environment = FOUR.to_vec();
    environment.push(("CANDLE_ROCM_COLLECTIVE", "host"));
    on_gpus(name, &environment, || {
        let by_environment = Options::from_env().unwrap();
        assert_eq!(by_environment.choice, Choice::Host);
        for (options, name) in [(by_environment, "host"), (options(Choice::Peers), "peers")] {
            let group = group(&gpus(2), &options).unwrap();
            assert_eq!(group[0].backend(), name);
            assert_eq!(sums(group), vec![vec![3.0]; 2]);
        }
        std::env::set_var("CANDLE_ROCM_COLLECTIVE", "nvlink");
        let error = Options::from_env().unwrap_err().to_string();
        assert!(
            error.contains("nvlink") && error.contains("rccl"),
            "{error}"
        );
        // Between the host and a GPU only the host's memory carries.
        let mixed = [Device::Cpu, gpus(1).remove(0)];
        let refused = group(&mixed, &options(Choice::Peers)).unwrap_err();
        assert!(refused.to_string().contains("no GPU"), "{refused}");
        let mixed = group(&mixed, &options(Choice::Auto)).unwrap();
        assert_eq!(mixed[0].backend(), "host");
        assert_eq!(sums(mixed), vec![vec![3.0]; 2]);
    });
}

/// The reason for which peers were ruled out; the host carries then.
fn refusal(count: usize) -> String {
    // Whatever was measured where peers work.
    let options = Options {
        remembers: false,
        ..options(Choice::Auto)
    };
    let group = group(&gpus(count), &options).unwrap();
    let report = group[0].report().unwrap();
    let peers = report.tried.iter().find(|t| t.name == "peers").unwrap();
    let Outcome::RuledOut { reason } = peers.outcome.clone() else {
        panic!("{report}");
    };
    let sum = (count * (count + 1) / 2) as f32;
    assert_eq!(sums(group), vec![vec![sum]; count]);
    reason
}

#[test]
fn gpus_that_do_not_reach_each_other_are_named() {
    let name = "gpus_that_do_not_reach_each_other_are_named";
    let mut environment = FOUR.to_vec();
    // Both ways between 0 and 1, one way from 2 to 0, none between 1 and 2.
    environment.push(("HIP_SIM_PEERS", "0-1,2>0"));
    on_gpus(name, &environment, || {
        let reason = refusal(3);
        for part in [
            "GPU 0 (0000:03:00.0) does not reach GPU 2 (0000:05:00.0), though the other way round works",
            "GPU 1 (0000:04:00.0) does not reach GPU 2 (0000:05:00.0);",
            "GPU 2 (0000:05:00.0) does not reach GPU 1 (0000:04:00.0)",
        ] {
            assert!(reason.contains(part), "{reason}");
        }
        let pair = group(&gpus(2), &options(Choice::Peers)).unwrap();
        assert_eq!(sums(pair), vec![vec![3.0]; 2]);
    });
}

#[test]
fn kernels_that_leave_something_out_are_ruled_out() {
    let name = "kernels_that_leave_something_out_are_ruled_out";
    let mut environment = FOUR.to_vec();
    environment.push(("HIP_SIM_WRONG", "kernel:all_reduce_one_shot_sum_f16"));
    on_gpus(name, &environment, || {
        let reason = refusal(2);
        assert!(
            reason.contains("is wrong") && reason.contains("F16"),
            "{reason}"
        );
    });
}
