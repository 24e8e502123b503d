//! Ranks on the CPU that meet in memory.

mod common;

use candle::{DType, Device, Result, Tensor};
use candle_rocm_collective::{host, Communicator, Error, Reduce};
use common::ranks;
use std::time::Duration;

fn cpu(size: usize) -> Vec<Communicator> {
    host::group(&vec![Device::Cpu; size]).unwrap()
}

#[test]
fn sums_are_made_in_the_order_of_ranks() {
    // In f32, (1e8 + 1) - 1e8 is 0 and (1e8 - 1e8) + 1 is 1.
    let values = [1e8f32, 1.0, -1e8];
    for result in ranks(cpu(3), |rank| {
        let own = Tensor::new(&[values[rank.rank()]], rank.device())?;
        let sums = (0..50).map(|_| rank.all_reduce(&own, Reduce::Sum)?.to_vec1::<f32>());
        sums.collect::<Result<Vec<_>>>()
    }) {
        assert_eq!(result.unwrap(), vec![vec![0.0]; 50]);
    }
}

#[test]
fn halves_are_added_up_in_f32() {
    for result in ranks(cpu(4), |rank| {
        let own = if rank.rank() == 0 { 2048f32 } else { 0.75 };
        let own = Tensor::new(&[own], rank.device())?.to_dtype(DType::F16)?;
        let sum = rank.all_reduce(&own, Reduce::Sum)?;
        sum.to_dtype(DType::F32)?.to_vec1::<f32>()
    }) {
        // In f16 each step would be lost: the next number is 2050.
        assert_eq!(result.unwrap(), [2050.0]);
    }
}

#[test]
fn every_rank_gets_its_part() {
    for result in ranks(cpu(2), |rank| {
        let r = rank.rank() as f32;
        let own = Tensor::new(&[[r, 1.0], [2.0, r], [3.0, 3.0], [r, r]], rank.device())?;
        let part = rank.reduce_scatter(&own.t()?.contiguous()?.t()?, Reduce::Sum)?;
        let most = rank.all_reduce(&own, Reduce::Max)?;
        let least = rank.all_reduce(&own, Reduce::Min)?;
        let wide = Tensor::full(r, (2, 1 + rank.rank()), rank.device())?;
        let gathered = rank.all_gather_uneven(&wide, 1, &[1, 2])?;
        let root = rank.broadcast(&own.narrow(0, 0, 1)?, 1)?;
        Ok((
            rank.rank(),
            part.to_vec2::<f32>()?,
            (
                most.get(0)?.to_vec1::<f32>()?,
                least.get(0)?.to_vec1::<f32>()?,
            ),
            gathered.to_vec2::<f32>()?,
            root.to_vec2::<f32>()?,
            rank.all_gather(&wide.narrow(1, 0, 1)?)?.dims().to_vec(),
        ))
    }) {
        let (rank, part, (most, least), gathered, root, dims) = result.unwrap();
        let parts = [[[1.0, 2.0], [4.0, 1.0]], [[6.0, 6.0], [1.0, 1.0]]];
        assert_eq!(part, parts[rank]);
        assert_eq!((most, least), (vec![1.0, 1.0], vec![0.0, 1.0]));
        assert_eq!(gathered, [[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]);
        assert_eq!(root, [[1.0, 1.0]]);
        assert_eq!(dims, [2, 2, 1]);
    }
}

#[test]
fn tensors_are_received_in_the_order_of_sending() {
    for result in ranks(cpu(3), |rank| {
        let (own, size) = (rank.rank(), rank.size());
        for i in 0..3u32 {
            let x = Tensor::new(&[i + 10 * own as u32], rank.device())?;
            rank.send(&x, (own + 1) % size)?;
        }
        let from = (own + size - 1) % size;
        let received = (0..3).map(|_| rank.recv(1, DType::U32, from)?.to_vec1::<u32>());
        let received = received.collect::<Result<Vec<_>>>()?.concat();
        rank.barrier()?;
        Ok((from as u32, received))
    }) {
        let (from, received) = result.unwrap();
        assert_eq!(received, [10 * from, 10 * from + 1, 10 * from + 2]);
    }
}

#[test]
fn other_shapes_are_told_by_both_sides() {
    for result in ranks(cpu(2), |rank| {
        let x = Tensor::zeros(rank.rank() + 1, DType::F32, rank.device())?;
        rank.all_reduce(&x, Reduce::Sum)
    }) {
        let error = result.unwrap_err();
        assert!(
            matches!(Error::of(&error), Some(Error::Mismatch { .. })),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_fails_ends_the_group() {
    let results = ranks(cpu(3), |rank| {
        if rank.rank() == 1 {
            rank.abort("its GPU is lost");
            return Ok(());
        }
        let x = Tensor::zeros(4, DType::F32, rank.device())?;
        rank.all_reduce(&x, Reduce::Sum).map(|_| ())
    });
    for (rank, result) in results.into_iter().enumerate() {
        match (rank, result) {
            (1, result) => result.unwrap(),
            (_, result) => {
                let error = result.unwrap_err();
                let failed = Error::RankFailed {
                    rank: 1,
                    size: 3,
                    reason: "its GPU is lost".to_string(),
                };
                assert_eq!(Error::of(&error), Some(&failed), "{error}");
            }
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let group = host::group_within(&[Device::Cpu, Device::Cpu], Duration::from_millis(50));
    let results = ranks(group.unwrap(), |rank| match rank.rank() {
        0 => rank.barrier(),
        _ => Ok(()),
    });
    let error = results[0].as_ref().unwrap_err();
    assert!(
        matches!(Error::of(error), Some(Error::TimedOut { rank: 1, .. })),
        "{error}"
    );
}

#[test]
fn what_no_group_could_use_is_refused() {
    assert!(host::group(&[]).is_err());
    let [alone] = &cpu(1)[..] else { panic!() };
    let x = Tensor::zeros((3, 2), DType::F32, alone.device()).unwrap();
    assert_eq!(alone.all_reduce(&x, Reduce::Sum).unwrap().dims(), [3, 2]);
    assert_eq!(alone.all_gather(&x).unwrap().dims(), [1, 3, 2]);
    let pair = &cpu(2)[0];
    for result in [
        pair.reduce_scatter(&x, Reduce::Sum).map(|_| ()),
        pair.send(&x, 0),
        pair.send(&x, 2),
        pair.broadcast(&x, 7).map(|_| ()),
        pair.all_gather_uneven(&x, 1, &[1, 1]).map(|_| ()),
        pair.all_gather_uneven(&x, 0, &[3]).map(|_| ()),
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(Error::of(&error), Some(Error::InvalidArgument { .. })),
            "{error}"
        );
    }
}
