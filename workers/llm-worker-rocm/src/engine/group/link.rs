//! From a stage to the next one: what crosses, in the order of the pieces that it belongs to.

use super::failure::Failed;
use super::watch::{State, Watch};
use candle_core::{bail, DType, Device, Result, Tensor};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::Duration;

/// How often a wait looks whether the group has ended.
const LOOK: Duration = Duration::from_millis(20);
/// A piece of a command, by the numbers of both.
pub type At = (u64, usize);

/// Takes what the stage before has left.
pub trait Inlet: Send {
    /// The tensors of a piece, which have these shapes and dtypes, on this rank's device.
    ///
    /// # Errors
    /// If the stage before has failed, or the group has ended.
    fn take(&mut self, at: At, expected: &[(Vec<usize>, DType)]) -> Result<Vec<Tensor>>;
}

/// Hands on to the next stage.
pub trait Outlet: Send {
    /// Hands the tensors of a piece on.
    ///
    /// # Errors
    /// If they cannot be copied.
    fn hand(&mut self, at: At, tensors: &[Tensor]) -> Result<()>;

    /// Says that nothing comes of this piece and those behind it.
    fn fail(&mut self, at: At, reason: &str);
}

struct Parcel {
    at: At,
    tensors: std::result::Result<Vec<Tensor>, String>,
}

/// From one rank of this process to another.
pub struct LocalOutlet {
    sender: Sender<Parcel>,
    /// The next rank's GPU by streams of its own, in turn: a copy to it waits for nothing that the rank itself has
    /// still to do, and this rank waits for the copy only.
    couriers: Vec<Device>,
    next: usize,
}

/// The other end.
pub struct LocalInlet {
    receiver: Receiver<Parcel>,
    device: Device,
    /// The rank that takes.
    rank: usize,
    watch: Arc<Watch>,
}

/// Both ends of a link from a rank to the rank `to`, which computes on `device`.
///
/// # Errors
/// If the device has no further streams.
pub fn local(to: usize, device: &Device, watch: &Arc<Watch>) -> Result<(LocalOutlet, LocalInlet)> {
    let courier = || match device {
        Device::Rocm(device) => Device::new_rocm_with_stream(device.device().ordinal()),
        other => Ok(other.clone()),
    };
    let (sender, receiver) = mpsc::channel();
    let outlet = LocalOutlet {
        sender,
        couriers: vec![courier()?, courier()?],
        next: 0,
    };
    let inlet = LocalInlet {
        receiver,
        device: device.clone(),
        rank: to,
        watch: watch.clone(),
    };
    Ok((outlet, inlet))
}

impl LocalOutlet {
    /// Whoever takes may be gone: the group has ended then, and says so itself.
    fn send(&self, at: At, tensors: std::result::Result<Vec<Tensor>, String>) {
        let _ = self.sender.send(Parcel { at, tensors });
    }
}

impl Outlet for LocalOutlet {
    fn hand(&mut self, at: At, tensors: &[Tensor]) -> Result<()> {
        let courier = &self.couriers[self.next];
        self.next = (self.next + 1) % self.couriers.len();
        let moved = tensors.iter().map(|tensor| tensor.to_device(courier));
        self.send(at, Ok(moved.collect::<Result<_>>()?));
        Ok(())
    }

    fn fail(&mut self, at: At, reason: &str) {
        self.send(at, Err(reason.to_string()));
    }
}

impl Inlet for LocalInlet {
    fn take(&mut self, at: At, _: &[(Vec<usize>, DType)]) -> Result<Vec<Tensor>> {
        let _waits = self.watch.mark(self.rank).enter(State::Other);
        loop {
            self.watch.check()?;
            let parcel = match self.receiver.recv_timeout(LOOK) {
                Ok(parcel) => parcel,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => bail!("the stage before has ended"),
            };
            match parcel.tensors {
                // Of a step in which this stage has not come so far.
                _ if parcel.at.0 < at.0 => {}
                Err(reason) if parcel.at.0 == at.0 => return Err(Failed::Before(reason).into()),
                Ok(tensors) if parcel.at == at => {
                    let own = tensors.iter().map(|tensor| tensor.to_device(&self.device));
                    return own.collect();
                }
                _ => bail!(
                    "piece {:?} came from the stage before, not {at:?}",
                    parcel.at
                ),
            }
        }
    }
}
