//! Ranks of several nodes whose tensors go over TCP: against ranks that meet in memory, and when nodes fail.

mod common;

use candle::{DType, Device, Result, Tensor};
use candle_rocm_collective::{host, tcp, Communicator, Error, Reduce};
use common::{free_port, nodes, place, ranks};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs ranks that are spread over nodes so; what they give, in the order of ranks.
fn spread<T: Send>(
    devices: &[usize],
    timeout: Duration,
    run: impl Fn(Communicator) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let of_nodes = nodes(devices.len(), |mut meeting| {
        let here = vec![Device::Cpu; devices[meeting.node()]];
        let group = tcp::connect_within(&mut meeting, &here, timeout)?;
        candle::Result::Ok(ranks(group, &run))
    });
    of_nodes.into_iter().flat_map(Result::unwrap).collect()
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers whose sums depend on the order of adding.
fn numbers(rank: usize, count: usize, dtype: DType) -> Result<Tensor> {
    let value = |at: usize| {
        ((at * 37 + rank * 101) % 997) as f64 * 10f64.powi((at + 3 * rank) as i32 % 7 - 3)
    };
    let values: Vec<f64> = (0..count).map(value).collect();
    Tensor::new(values, &Device::Cpu)?.to_dtype(dtype)
}

fn bits(x: &Tensor) -> Result<Vec<u64>> {
    let values = x.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    Ok(values.into_iter().map(f64::to_bits).collect())
}

/// One of each collective, small and large.
fn everything(rank: &Communicator) -> Result<Vec<Vec<u64>>> {
    let mut found = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I64] {
        // The larger ones are reduced in parts, which do not divide evenly.
        for count in [1, 12, 40_001] {
            let x = numbers(rank.rank(), count, dtype)?;
            found.push(bits(&rank.all_reduce(&x, Reduce::Sum)?)?);
            found.push(bits(&rank.all_reduce(&x, Reduce::Max)?)?);
        }
        let x = numbers(rank.rank(), 24, dtype)?.reshape((6, 4))?;
        let across = x.t()?;
        found.push(bits(&rank.all_reduce(&across, Reduce::Min)?)?);
        found.push(bits(&rank.all_gather(&across)?)?);
        found.push(bits(&rank.reduce_scatter(&across, Reduce::Sum)?)?);
        found.push(bits(&rank.broadcast(&x, 2)?)?);
    }
    Ok(found)
}

#[test]
fn ranks_of_nodes_get_what_ranks_in_memory_get() {
    let expected = ranks(host::group(&vec![Device::Cpu; 4]).unwrap(), |rank| {
        everything(&rank)
    });
    for devices in [&[2, 2][..], &[1, 2, 1]] {
        let found = spread(devices, PATIENCE, |rank| everything(&rank));
        assert_eq!(found.len(), 4);
        for (found, expected) in found.into_iter().zip(&expected) {
            assert!(found.unwrap() == *expected.as_ref().unwrap(), "{devices:?}");
        }
    }
}

#[test]
fn large_tensors_cross_each_other() {
    for result in spread(&[1, 1], PATIENCE, |rank| {
        let (own, other) = (rank.rank(), 1 - rank.rank());
        let x = Tensor::full(own as f32, 4 << 20, rank.device())?;
        // More than the system holds for a connection: both send before they receive.
        rank.send(&x, other)?;
        rank.send(&x.narrow(0, 0, 3)?, other)?;
        rank.barrier()?;
        let large = rank.recv(4 << 20, DType::F32, other)?;
        let small = rank.recv(3, DType::F32, other)?;
        let sum = large.sum_all()?.to_scalar::<f32>()?;
        Ok((own, sum, small.to_vec1::<f32>()?))
    }) {
        let (own, sum, small) = result.unwrap();
        let other = 1.0 - own as f32;
        assert_eq!((sum, small), (other * (4 << 20) as f32, vec![other; 3]));
    }
}

#[test]
fn other_shapes_are_named() {
    let results = spread(&[1, 1], PATIENCE, |rank| {
        let x = Tensor::zeros((2, rank.rank() + 1), DType::F32, rank.device())?;
        rank.all_reduce(&x, Reduce::Sum).map(|_| ())
    });
    let errors: Vec<_> = results.into_iter().map(Result::unwrap_err).collect();
    let mismatch =
        |error: &&candle::Error| matches!(Error::of(error), Some(Error::Mismatch { .. }));
    let named = errors
        .iter()
        .find(mismatch)
        .expect("one of them notices")
        .to_string();
    assert!(
        named.contains("[2, 1]") && named.contains("[2, 2]"),
        "{named}"
    );
    assert!(errors.iter().all(|error| Error::of(error).is_some()));
}

#[test]
fn a_rank_that_gives_up_is_named_on_every_node() {
    // A rank that has left is news as well: nobody leaves before all know.
    let all_know = std::sync::Barrier::new(3);
    let results = spread(&[1, 1, 1], PATIENCE, |rank| {
        if rank.rank() == 1 {
            rank.abort("its GPU is lost");
        }
        let told = rank.barrier();
        all_know.wait();
        told
    });
    let failed = Error::RankFailed {
        rank: 1,
        size: 3,
        reason: "its GPU is lost".to_string(),
    };
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(Error::of(&error), Some(&failed), "{error}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let (tell, heard) = std::sync::mpsc::channel();
    let heard = std::sync::Mutex::new(heard);
    let results = spread(&[1, 1], Duration::from_millis(100), |rank| {
        match rank.rank() {
            0 => {
                let waited = rank.barrier();
                tell.send(()).unwrap();
                waited
            }
            _ => {
                heard.lock().unwrap().recv().unwrap();
                // The news is on its way; it ends a wait for what nobody sends.
                rank.recv(1, DType::F32, 0).unwrap_err();
                rank.barrier()
            }
        }
    });
    let errors: Vec<_> = results.into_iter().map(Result::unwrap_err).collect();
    let expected = Some(Error::TimedOut {
        rank: 1,
        size: 2,
        op: "barrier",
        waited: Duration::from_millis(100),
    });
    assert_eq!(Error::of(&errors[0]).cloned(), expected);
    // The one that comes too late finds that the group has ended.
    let told = Error::of(&errors[1]);
    assert!(
        matches!(
            told,
            Some(Error::RankFailed { .. } | Error::TimedOut { .. })
        ),
        "{told:?}"
    );
}

#[test]
fn a_rank_that_has_left_is_named() {
    let results = spread(&[1, 1], PATIENCE, |rank| match rank.rank() {
        0 => rank.all_reduce(&Tensor::zeros(4, DType::F32, rank.device())?, Reduce::Sum),
        _ => Tensor::zeros(1, DType::F32, rank.device()),
    });
    let error = results[0].as_ref().unwrap_err();
    assert!(
        matches!(Error::of(error), Some(Error::RankFailed { rank: 1, .. })),
        "{error}"
    );
}

const CHILD: &str = "CANDLE_ROCM_TEST_NODE_PORT";

#[test]
fn a_process_that_is_killed_is_named() {
    let name = "a_process_that_is_killed_is_named";
    if let Ok(port) = std::env::var(CHILD) {
        let mut meeting = place(port.parse().unwrap(), 1, 2)
            .meet_telling(&[], |_| ())
            .unwrap();
        let group = tcp::connect(&mut meeting, &[Device::Cpu]).unwrap();
        group[0].barrier().unwrap();
        // Until it is killed.
        loop {
            std::thread::park();
        }
    }
    let port = free_port();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, port.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut meeting = place(port, 0, 2).meet_telling(&[], |_| ()).unwrap();
    let group = tcp::connect(&mut meeting, &[Device::Cpu]).unwrap();
    let rank = &group[0];
    rank.barrier().unwrap();
    let waiting = std::thread::spawn({
        let rank = rank.clone();
        move || rank.barrier()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(
        matches!(
            Error::of(&error),
            Some(Error::RankFailed {
                rank: 1,
                size: 2,
                ..
            })
        ),
        "{error}"
    );
    // And so is everything after.
    assert!(rank.barrier().is_err());
}
