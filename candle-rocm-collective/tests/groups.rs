//! Exchanges, parts of groups, and what is refused: the same for ranks in memory and ranks over TCP.

mod common;

use candle::{DType, Device, Result, Tensor};
use candle_rocm_collective::{host, tcp, Communicator, Error, Reduce};
use common::{nodes, ranks};

/// Runs ranks in memory, then over TCP; what they give, in the order of ranks.
fn both<T: Send>(
    size: usize,
    run: impl Fn(Communicator) -> Result<T> + Sync,
) -> [Vec<Result<T>>; 2] {
    let in_memory = ranks(host::group(&vec![Device::Cpu; size]).unwrap(), &run);
    let over_tcp = nodes(size, |mut meeting| {
        let mut group = tcp::connect(&mut meeting, &[Device::Cpu])?;
        run(group.remove(0))
    });
    [in_memory, over_tcp]
}

#[test]
fn everybody_sends_to_everybody() {
    for found in both(4, |rank| {
        let (own, size) = (rank.rank(), rank.size());
        let others = || (0..size).filter(|other| *other != own);
        let parts: Vec<Tensor> = (0..size)
            .map(|to| Tensor::full((10 * own + to) as f32, (2, to + 1), rank.device())?.t())
            .collect::<Result<_>>()?;
        let sends: Vec<_> = others().map(|to| (&parts[to], to)).collect();
        // In another order than they are sent.
        let receives: Vec<_> = others()
            .rev()
            .map(|from| ((own + 1, 2).into(), DType::F32, from))
            .collect();
        let received = rank.exchange(&sends, &receives)?;
        let values = received.iter().map(|x| x.flatten_all()?.to_vec1::<f32>());
        Ok((own, values.collect::<Result<Vec<_>>>()?))
    }) {
        for result in found {
            let (own, values) = result.unwrap();
            let others = (0..4).rev().filter(|other| *other != own);
            let expected: Vec<Vec<f32>> = others
                .map(|from| vec![(10 * from + own) as f32; 2 * (own + 1)])
                .collect();
            assert_eq!(values, expected);
        }
    }
}

#[test]
fn messages_of_a_pair_keep_their_order_and_may_be_empty() {
    for found in both(2, |rank| {
        let other = 1 - rank.rank();
        let (first, empty) = (
            Tensor::new(&[1f32, 2.0], rank.device())?,
            Tensor::zeros((0, 3), DType::F32, rank.device())?,
        );
        let second = (&first + 10.0)?;
        let two = (2.into(), DType::F32, other);
        let received = rank.exchange(
            &[(&first, other), (&empty, other), (&second, other)],
            &[two.clone(), ((0, 3).into(), DType::F32, other), two],
        )?;
        assert_eq!(received[1].dims(), [0, 3]);
        Ok([received[0].to_vec1::<f32>()?, received[2].to_vec1::<f32>()?])
    }) {
        for result in found {
            assert_eq!(result.unwrap(), [[1.0, 2.0], [11.0, 12.0]]);
        }
    }
}

#[test]
fn parts_of_a_group_are_groups() {
    for found in both(5, |rank| {
        let own = rank.rank();
        // 0, 2 and 3 are one part, 1 and 4 another; then the first one without rank 2.
        let color = [Some(7), Some(1), Some(7), Some(7), Some(1)][own];
        let part = rank.split(color)?.expect("it has a color");
        let x = Tensor::new(&[own as f32, 1.0, 2.0, 5.0, 0.5, -1.0], rank.device())?;
        let sum = part.all_reduce(&x, Reduce::Sum)?.to_vec1::<f32>()?[0];
        let all = part
            .all_gather(&x.narrow(0, 0, 1)?)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        let of_root = part.broadcast(&x, 1)?.to_vec1::<f32>()?[0];
        let scattered = part.reduce_scatter(&x, Reduce::Max)?.dims().to_vec();
        part.barrier()?;
        let smaller = part.split((own != 2).then_some(0))?;
        let smaller = match &smaller {
            Some(part) => Some(part.all_reduce(&x, Reduce::Sum)?.to_vec1::<f32>()?[0]),
            None => None,
        };
        // The whole is still there.
        let whole = rank.all_reduce(&x, Reduce::Sum)?.to_vec1::<f32>()?[0];
        Ok((
            (part.rank(), part.size()),
            sum,
            all,
            of_root,
            scattered,
            smaller,
            whole,
        ))
    }) {
        for (own, result) in found.into_iter().enumerate() {
            let (place, sum, all, of_root, scattered, smaller, whole) = result.unwrap();
            let members: &[f32] = if color_is_first(own) {
                &[0.0, 2.0, 3.0]
            } else {
                &[1.0, 4.0]
            };
            let rank = members.iter().position(|member| *member == own as f32);
            assert_eq!(Some(place.0), rank);
            assert_eq!(place.1, members.len());
            assert_eq!(sum, members.iter().sum::<f32>());
            assert_eq!(all, members);
            assert_eq!(of_root, members[1]);
            assert_eq!(scattered, [6 / members.len()]);
            assert_eq!(
                smaller,
                [Some(3.0), Some(5.0), None, Some(3.0), Some(5.0)][own]
            );
            assert_eq!(whole, 10.0);
        }
    }
}

fn color_is_first(rank: usize) -> bool {
    [0, 2, 3].contains(&rank)
}

#[test]
fn small_floats_move_and_are_not_added_up() {
    for found in both(2, |rank| {
        let x = Tensor::new(&[0.5f32, rank.rank() as f32], rank.device())?;
        let x = x.to_dtype(DType::F8E4M3)?;
        let all = rank
            .all_gather(&x)?
            .to_dtype(DType::F32)?
            .to_vec2::<f32>()?;
        let errors = [
            rank.all_reduce(&x, Reduce::Sum).unwrap_err(),
            rank.reduce_scatter(&x, Reduce::Sum).unwrap_err(),
            rank.start_all_reduce(&x, Reduce::Max).unwrap_err(),
        ];
        Ok((all, errors))
    }) {
        for result in found {
            let (all, errors) = result.unwrap();
            assert_eq!(all, [[0.5, 0.0], [0.5, 1.0]]);
            for error in errors {
                let is_named = matches!(
                    Error::of(&error),
                    Some(Error::UnsupportedDType {
                        dtype: DType::F8E4M3,
                        ..
                    })
                );
                assert!(is_named, "{error}");
            }
        }
    }
}

#[test]
fn what_begins_is_there_when_it_is_waited_for() {
    for found in both(3, |rank| {
        let x = Tensor::new(&[rank.rank() as u32, 4], rank.device())?;
        let begun = rank.start_all_reduce(&x, Reduce::Sum)?;
        drop(rank.start_all_reduce(&x, Reduce::Max)?);
        let least = rank.all_reduce(&x, Reduce::Min)?.to_vec1::<u32>()?;
        Ok((begun.wait()?.to_vec1::<u32>()?, least))
    }) {
        for result in found {
            assert_eq!(result.unwrap(), (vec![3, 12], vec![0, 4]));
        }
    }
}

#[test]
fn ranks_that_are_not_there_are_named() {
    let pair = host::group(&[Device::Cpu, Device::Cpu]).unwrap();
    let x = Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap();
    for result in [
        pair[0].exchange(&[(&x, 0)], &[]),
        pair[0].exchange(&[(&x, 2)], &[]),
        pair[0].exchange(&[], &[(2.into(), DType::F32, 9)]),
    ] {
        let error = result.unwrap_err();
        let is_named = matches!(
            Error::of(&error),
            Some(Error::InvalidArgument { op: "exchange", .. })
        );
        assert!(is_named, "{error}");
    }
}
