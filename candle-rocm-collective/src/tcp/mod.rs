//! Ranks of several processes whose tensors go over TCP, through the hosts' memory.
//!
//! For machines whose GPUs RCCL does not support, and for ranks on the CPU: tests of what spans hosts need no GPU. Sums
//! are made in the order of ranks, as those of [`host`]: the same bits on every rank, whatever the number
//! of processes over which the ranks are spread.

mod backend;
mod links;

use crate::lifeline::Lifeline;
use crate::rendezvous::Meeting;
use crate::{host, Communicator, Error};
use backend::Tcp;
use candle::{Device, Result};
use links::Links;
use std::sync::Arc;
use std::time::Duration;

/// The ranks of this node, one for each of its devices; ranks are numbered by node, then by device. All nodes of the
/// meeting call it.
///
/// # Errors
/// [`Error::Rendezvous`] if nodes do not reach each other.
pub fn connect(meeting: &mut Meeting, devices: &[Device]) -> Result<Vec<Communicator>> {
    connect_within(meeting, devices, host::TIMEOUT)
}

/// The same with ranks that wait so long for each other.
///
/// # Errors
/// Those of [`connect`].
pub fn connect_within(
    meeting: &mut Meeting,
    devices: &[Device],
    timeout: Duration,
) -> Result<Vec<Communicator>> {
    let ranks = ranks_of_nodes(meeting, devices.len())?;
    let first: usize = ranks[..meeting.node()].iter().sum();
    let size = ranks.iter().sum();
    let streams = meeting.mesh(&ranks)?;
    let lifeline = Arc::new(Lifeline::new(meeting, &ranks)?);
    let local = streams.into_iter().zip(devices).enumerate();
    let local = local.map(|(at, (streams, device))| {
        let links = Links::new(first + at, streams, timeout, lifeline.clone())?;
        let backend = Arc::new(Tcp::new(links, device.clone()));
        Ok(Communicator::new(first + at, size, device.clone(), backend))
    });
    local.collect()
}

/// How many ranks each node has.
pub(crate) fn ranks_of_nodes(
    meeting: &mut Meeting,
    here: usize,
) -> std::result::Result<Vec<usize>, Error> {
    let all = meeting.all_gather(&(here as u64).to_le_bytes())?;
    let ranks: Option<Vec<usize>> = all
        .iter()
        .map(|bytes| Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?) as usize))
        .collect();
    let ranks = ranks.ok_or_else(|| Error::NodeFailed {
        node: 0,
        reason: "nodes make different calls after they met".to_string(),
    })?;
    match ranks.iter().position(|ranks| *ranks == 0) {
        None => Ok(ranks),
        Some(node) => Err(Error::InvalidArgument {
            op: "connect",
            reason: format!("node {node} has no device: each node brings one at least"),
        }),
    }
}
