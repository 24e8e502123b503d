//! From a stage on one node to the next one on another.

use crate::engine::group::failure::Failed;
use crate::engine::group::link::{At, Inlet, Outlet};
use crate::engine::group::watch::{State, Watch};
use candle_core::{bail, DType, Device, Error, Result, Tensor};
use candle_rocm_collective::Communicator;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Bytes of what goes before the tensors of a piece, whatever it says.
const HEADER_BYTES: usize = 1024;
/// The longest reason in it.
const REASON_CHARS: usize = 128;

/// What goes before the tensors of a piece: which one it is, and their shapes and dtypes, or why there are none.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    at: At,
    tensors: std::result::Result<Vec<(Vec<usize>, String)>, String>,
}

/// A rank's connections to those of other nodes: of headers, in the host's memory, and of tensors, on its device.
#[derive(Debug, Clone)]
pub(super) struct Far {
    pub headers: Communicator,
    pub tensors: Communicator,
}

/// Waits until it is known who has ended a group whose connections are broken.
pub(super) type Settle = Arc<dyn Fn() + Send + Sync>;

/// Hands on to a rank of another node, which is the rank `to` of the connections.
pub(super) struct FarOutlet {
    pub far: Far,
    pub to: usize,
    /// The rank that hands.
    pub rank: usize,
    pub watch: Arc<Watch>,
    pub settle: Settle,
}

/// Takes from a rank of another node, which is the rank `from` of the connections.
pub(super) struct FarInlet {
    pub far: Far,
    pub from: usize,
    /// The rank that takes.
    pub rank: usize,
    pub watch: Arc<Watch>,
    pub settle: Settle,
}

/// Ends the group for an error of a connection, unless who is at fault is found out.
fn settled<T>(done: Result<T>, rank: usize, watch: &Watch, settle: &Settle) -> Result<T> {
    if let Err(error) = &done {
        if candle_rocm_collective::Error::of(error).is_some() {
            settle();
            watch.fail(rank, &error.to_string());
        }
        // Who has ended it, if it has ended.
        watch.check()?;
    }
    done
}

impl Header {
    fn to_tensor(&self) -> Result<Tensor> {
        let mut bytes = rmp_serde::to_vec(self).map_err(Error::wrap)?;
        if bytes.len() > HEADER_BYTES {
            bail!(
                "{} tensors are too many for a header",
                self.tensors.as_ref().map_or(0, Vec::len)
            )
        }
        bytes.resize(HEADER_BYTES, 0);
        Tensor::from_vec(bytes, HEADER_BYTES, &Device::Cpu)
    }

    fn of_tensor(tensor: &Tensor) -> Result<Self> {
        let bytes = tensor.to_vec1::<u8>()?;
        // Zeros follow.
        let mut reader = bytes.as_slice();
        rmp_serde::from_read(&mut reader).map_err(Error::wrap)
    }
}

impl FarOutlet {
    fn send(&self, header: &Header) -> Result<()> {
        self.far.headers.send(&header.to_tensor()?, self.to)
    }
}

impl Outlet for FarOutlet {
    fn hand(&mut self, at: At, tensors: &[Tensor]) -> Result<()> {
        let about = |tensor: &Tensor| {
            let dtype = tensor.dtype().as_str().to_string();
            (tensor.dims().to_vec(), dtype)
        };
        let header = Header {
            at,
            tensors: Ok(tensors.iter().map(about).collect()),
        };
        let _sends = self.watch.mark(self.rank).enter(State::Elsewhere);
        let mut tensors = tensors.iter();
        let sent = self
            .send(&header)
            .and_then(|()| tensors.try_for_each(|tensor| self.far.tensors.send(tensor, self.to)));
        settled(sent, self.rank, &self.watch, &self.settle)
    }

    fn fail(&mut self, at: At, reason: &str) {
        let header = Header {
            at,
            tensors: Err(reason.chars().take(REASON_CHARS).collect()),
        };
        // A connection that is broken has ended the group already.
        let _ = self.send(&header);
    }
}

impl Inlet for FarInlet {
    fn take(&mut self, at: At, expected: &[(Vec<usize>, DType)]) -> Result<Vec<Tensor>> {
        let _waits = self.watch.mark(self.rank).enter(State::Elsewhere);
        let taken = self.take_from_far(at, expected);
        settled(taken, self.rank, &self.watch, &self.settle)
    }
}

impl FarInlet {
    fn take_from_far(&self, at: At, expected: &[(Vec<usize>, DType)]) -> Result<Vec<Tensor>> {
        loop {
            self.watch.check()?;
            let header = self.far.headers.recv(HEADER_BYTES, DType::U8, self.from)?;
            let header = Header::of_tensor(&header)?;
            let about = match header.tensors {
                Ok(about) => about,
                Err(reason) if header.at.0 == at.0 => return Err(Failed::Before(reason).into()),
                // Of a command that this stage has failed in itself.
                Err(_) if header.at.0 < at.0 => continue,
                Err(reason) => bail!("the stage before has failed ahead of this one: {reason}"),
            };
            let shapes = about.iter().map(|(shape, dtype)| {
                let dtype = dtype.parse::<DType>().map_err(Error::wrap)?;
                Ok((shape.clone(), dtype))
            });
            let shapes: Vec<(Vec<usize>, DType)> = shapes.collect::<Result<_>>()?;
            let tensors = shapes
                .iter()
                .map(|(shape, dtype)| self.far.tensors.recv(shape.as_slice(), *dtype, self.from));
            let tensors: Vec<Tensor> = tensors.collect::<Result<_>>()?;
            match header.at {
                now if now == at && shapes == expected => return Ok(tensors),
                now if now == at => {
                    bail!("{shapes:?} came from the stage before, in place of {expected:?}")
                }
                // Of a command that this stage has failed in.
                past if past.0 < at.0 => {}
                other => bail!("piece {other:?} came from the stage before, not {at:?}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::group::watch::LIMIT;
    use candle_rocm_collective::host;

    /// Both ends of a link between two nodes.
    fn link() -> (FarOutlet, FarInlet) {
        let far = || {
            let devices = [Device::Cpu, Device::Cpu];
            let (headers, tensors) = (
                host::group(&devices).unwrap(),
                host::group(&devices).unwrap(),
            );
            let both = headers.into_iter().zip(tensors);
            both.map(|(headers, tensors)| Far { headers, tensors })
        };
        let mut ends = far();
        let names = ["rank 0", "rank 1"].map(|name| (name.to_string(), true));
        let watch = Watch::new(names, LIMIT);
        let outlet = FarOutlet {
            far: ends.next().unwrap(),
            to: 1,
            rank: 0,
            watch: watch.clone(),
            settle: Arc::new(|| {}),
        };
        let inlet = FarInlet {
            far: ends.next().unwrap(),
            from: 0,
            rank: 1,
            watch,
            settle: Arc::new(|| {}),
        };
        (outlet, inlet)
    }

    fn tensors(first: f32) -> Vec<Tensor> {
        let stream = Tensor::new(&[[first, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap();
        let other = Tensor::new(&[first], &Device::Cpu).unwrap();
        vec![stream.to_dtype(DType::F16).unwrap(), other]
    }

    fn expected() -> Vec<(Vec<usize>, DType)> {
        vec![(vec![2, 2], DType::F16), (vec![1], DType::F32)]
    }

    #[test]
    fn pieces_arrive_in_their_order_and_those_of_failed_commands_are_left_out() {
        let (mut outlet, mut inlet) = link();
        outlet.hand((1, 0), &tensors(1.0)).unwrap();
        outlet.hand((1, 1), &tensors(2.0)).unwrap();
        outlet.fail((2, 0), "no room");
        outlet.hand((3, 0), &tensors(5.0)).unwrap();
        let first = |tensors: Vec<Tensor>| tensors[1].to_vec1::<f32>().unwrap()[0];
        assert_eq!(first(inlet.take((1, 0), &expected()).unwrap()), 1.0);
        // The rest of command 1 is of no use any more.
        let error = inlet.take((2, 0), &expected()).unwrap_err();
        assert_eq!(
            Failed::of(&error),
            Some(&Failed::Before("no room".to_string()))
        );
        assert_eq!(first(inlet.take((3, 0), &expected()).unwrap()), 5.0);
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let (mut outlet, mut inlet) = link();
        outlet.hand((1, 0), &tensors(1.0)).unwrap();
        let other = [(vec![2, 2], DType::F32), (vec![1], DType::F32)];
        assert!(inlet.take((1, 0), &other).is_err());
        outlet.hand((2, 1), &tensors(1.0)).unwrap();
        assert!(inlet.take((2, 0), &expected()).is_err());
        inlet.watch.fail(0, "another reason");
        let error = inlet.take((3, 0), &expected()).unwrap_err();
        assert!(
            matches!(Failed::of(&error), Some(Failed::Group { .. })),
            "{error}"
        );
    }

    #[test]
    fn reasons_of_any_length_fit() {
        let (mut outlet, mut inlet) = link();
        outlet.fail((1, usize::MAX), &"ß".repeat(5000));
        let error = inlet.take((1, 0), &expected()).unwrap_err();
        assert!(
            matches!(Failed::of(&error), Some(Failed::Before(reason)) if reason.starts_with("ßß"))
        );
    }
}
