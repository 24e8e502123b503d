//! Collectives over the links of a rank.

use super::links::{Kind, Links};
use crate::bytes::{from_bytes, to_bytes};
use crate::{Backend, Error, Reduce};
use candle::{DType, Device, Result, Shape, Tensor};
use std::time::Duration;

/// From so many bytes on, ranks reduce a part each and gather the parts, instead of handing everything to everybody.
const PARTS_FROM_BYTES: usize = 64 << 10;

/// A rank whose tensors go over TCP.
#[derive(Debug)]
pub struct Tcp {
    links: Links,
    device: Device,
}

impl Tcp {
    pub fn new(links: Links, device: Device) -> Self {
        Self { links, device }
    }

    /// Hands every rank what is for it, and gives what every rank had for this one, in their order.
    fn exchange(
        &self,
        op: &'static str,
        what: &str,
        part: impl Fn(usize) -> std::ops::Range<usize>,
        bytes: &[u8],
    ) -> Result<Vec<Vec<u8>>> {
        let (rank, size) = (self.links.rank(), self.links.size());
        // Each begins with its neighbour, so that not all write to the same one.
        for to in (1..size).map(|step| (rank + step) % size) {
            self.links
                .send(to, Kind::Collective, what, &bytes[part(to)])?;
        }
        let received = (0..size).map(|from| {
            if from == rank {
                return Ok(bytes[part(rank)].to_vec());
            }
            let frame = self.links.receive(op, from, Kind::Collective)?;
            match frame.what == what {
                true => Ok(frame.bytes),
                false => Err(self.mismatch(op, from, frame.what, what.to_string())),
            }
        });
        received.collect()
    }

    fn mismatch(
        &self,
        op: &'static str,
        rank: usize,
        found: String,
        expected: String,
    ) -> candle::Error {
        let error = Error::Mismatch {
            op,
            rank,
            found,
            expected,
        };
        // The other one waits for a call that does not come.
        self.links.fail(self.links.rank(), error.to_string());
        error.into()
    }

    /// One of all ranks' tensors of a dtype that are given as bytes.
    fn fold(&self, parts: &[Vec<u8>], dtype: DType, by: Reduce) -> Result<Tensor> {
        let tensors = parts.iter().map(|bytes| {
            let count = bytes.len() / dtype.size_in_bytes();
            from_bytes(bytes, dtype, count)
        });
        by.fold(&tensors.collect::<Result<Vec<_>>>()?)
    }
}

fn described(op: &str, x: &Tensor) -> String {
    format!("{op} of {:?} {:?}", x.dtype(), x.shape())
}

impl Backend for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn is_capturable(&self) -> bool {
        false
    }

    fn all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        let op = "all_reduce";
        let what = described(&format!("{op} ({by:?})"), x);
        let (size, dtype) = (self.links.size(), x.dtype());
        let bytes = to_bytes(&x.to_device(&Device::Cpu)?)?;
        let sum = if bytes.len() < PARTS_FROM_BYTES {
            let all = self.exchange(op, &what, |_| 0..bytes.len(), &bytes)?;
            to_bytes(&self.fold(&all, dtype, by)?)?
        } else {
            let per_rank = x.elem_count().div_ceil(size) * dtype.size_in_bytes();
            let at = |rank: usize| (rank * per_rank).min(bytes.len());
            let own = self.exchange(op, &what, |to| at(to)..at(to + 1), &bytes)?;
            let own = match own[0].is_empty() {
                true => Vec::new(),
                false => to_bytes(&self.fold(&own, dtype, by)?)?,
            };
            self.exchange(op, &what, |_| 0..own.len(), &own)?.concat()
        };
        from_bytes(&sum, dtype, x.shape())?.to_device(&self.device)
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        let op = "all_gather";
        let bytes = to_bytes(&x.to_device(&Device::Cpu)?)?;
        let all = self.exchange(op, &described(op, x), |_| 0..bytes.len(), &bytes)?;
        let dims = [&[self.links.size()], x.dims()].concat();
        from_bytes(&all.concat(), x.dtype(), dims)?.to_device(&self.device)
    }

    fn reduce_scatter(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        let op = "reduce_scatter";
        let what = described(&format!("{op} ({by:?})"), x);
        let bytes = to_bytes(&x.to_device(&Device::Cpu)?)?;
        let each = bytes.len() / self.links.size();
        let own = self.exchange(op, &what, |to| to * each..(to + 1) * each, &bytes)?;
        let sum = self.fold(&own, x.dtype(), by)?;
        sum.reshape(&x.dims()[1..])?.to_device(&self.device)
    }

    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        let op = "broadcast";
        let what = described(&format!("{op} of rank {root}"), x);
        let rank = self.links.rank();
        let bytes = match rank == root {
            true => to_bytes(&x.to_device(&Device::Cpu)?)?,
            false => Vec::new(),
        };
        // Also the others say what they expect, so that each finds out who differs.
        let all = self.exchange(op, &what, |_| 0..bytes.len(), &bytes)?;
        if rank == root {
            return Ok(x.clone());
        }
        from_bytes(&all[root], x.dtype(), x.shape())?.to_device(&self.device)
    }

    fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        let bytes = to_bytes(&x.to_device(&Device::Cpu)?)?;
        let what = format!("{:?} {:?}", x.dtype(), x.shape());
        Ok(self.links.send(to, Kind::Send, &what, &bytes)?)
    }

    fn recv(&self, shape: &Shape, dtype: DType, from: usize) -> Result<Tensor> {
        let op = "recv";
        let frame = self.links.receive(op, from, Kind::Send)?;
        let expected = format!("{dtype:?} {shape:?}");
        if frame.what != expected {
            return Err(self.mismatch(op, from, frame.what, expected));
        }
        from_bytes(&frame.bytes, dtype, shape)?.to_device(&self.device)
    }

    fn barrier(&self) -> Result<()> {
        self.device.synchronize()?;
        self.exchange("barrier", "barrier", |_| 0..0, &[])?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        Ok(self.links.check()?)
    }

    fn set_timeout(&self, timeout: Duration) {
        self.links.set_timeout(timeout);
    }

    fn abort(&self, reason: &str) {
        self.links.fail(self.links.rank(), reason.to_string());
    }
}
