//! A rank's collectives through RCCL.

use super::group::{Group, Member};
use super::ledger::Signature;
use crate::{Backend, Error, Pending, Reduce};
use candle::{DType, Device, Result, Shape, Storage, Tensor};
use candle_rocm::sys::rccl::{self, Rccl, RcclComm, RcclResult};
use candle_rocm::{Event, Stream};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Between two looks at what the host waits for.
const LOOK: Duration = Duration::from_micros(50);

/// A rank whose tensors go through RCCL.
#[derive(Debug)]
pub struct Rank {
    group: Arc<Group>,
    /// Which of this process's ranks it is.
    at: usize,
    device: Device,
    /// A stream for what runs beside the device's own.
    side: OnceLock<candle_rocm::Device>,
    /// The last collective on it.
    on_side: Mutex<Option<Arc<Event>>>,
}

/// RCCL's number for elements that can be reduced, and the dtype that they are reduced as.
fn reduced_as(dtype: DType) -> Option<(c_int, DType)> {
    Some(match dtype {
        DType::U8 => (rccl::UINT8, dtype),
        DType::U32 => (rccl::UINT32, dtype),
        // RCCL has no integers of 16 bits.
        DType::I16 => (rccl::INT32, DType::I32),
        DType::I32 => (rccl::INT32, dtype),
        DType::I64 => (rccl::INT64, dtype),
        DType::F16 => (rccl::FLOAT16, dtype),
        DType::BF16 => (rccl::BFLOAT16, dtype),
        DType::F32 => (rccl::FLOAT32, dtype),
        DType::F64 => (rccl::FLOAT64, dtype),
        _ => return None,
    })
}

fn operation(by: Reduce) -> c_int {
    match by {
        Reduce::Sum => rccl::SUM,
        Reduce::Max => rccl::MAX,
        Reduce::Min => rccl::MIN,
    }
}

/// Where the first element of a contiguous tensor is on the GPU.
fn address(x: &Tensor) -> Result<*mut c_void> {
    let (storage, layout) = x.storage_and_layout();
    let Storage::Rocm(storage) = &*storage else {
        candle::bail!(
            "a tensor of {:?} where one of a GPU is needed",
            x.device().location()
        );
    };
    let offset = layout.start_offset() * x.dtype().size_in_bytes();
    Ok(storage.as_ptr().wrapping_byte_add(offset))
}

fn bytes_of(x: &Tensor) -> usize {
    x.elem_count() * x.dtype().size_in_bytes()
}

impl Rank {
    pub fn new(group: Arc<Group>, at: usize, device: Device) -> Self {
        Self {
            group,
            at,
            device,
            side: OnceLock::new(),
            on_side: Mutex::new(None),
        }
    }

    /// Where its tensors are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn member(&self) -> &Member {
        &self.group.members[self.at]
    }

    /// A tensor whose values RCCL writes.
    fn room(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        // SAFETY: nobody reads it before the collective that is enqueued next has written all of it.
        unsafe { Tensor::empty(shape, dtype, &self.device) }
    }

    fn note(
        &self,
        op: &'static str,
        x: &Tensor,
        by: Option<Reduce>,
        root: Option<usize>,
    ) -> Result<()> {
        let signature = Signature {
            op,
            dtype: x.dtype(),
            shape: x.shape().clone(),
            by,
            root,
        };
        let noted = self
            .group
            .note(|ledger| ledger.collective(self.at, signature));
        Ok(noted?)
    }

    /// Makes calls of RCCL that enqueue on a stream.
    fn call(
        &self,
        op: &'static str,
        run: impl FnOnce(&Rccl, RcclComm) -> RcclResult,
    ) -> Result<()> {
        let member = self.member();
        self.group.check()?;
        member.begin(op);
        match member.comm.call(run) {
            // It may have been aborted meanwhile.
            Some(Ok(())) | None => Ok(self.group.check()?),
            Some(Err((result, words))) => {
                Err(self.group.fail_with(member.rank, op, result, &words).into())
            }
        }
    }

    /// Enqueues on the device's own stream, behind what runs on the other one.
    fn enqueue(
        &self,
        op: &'static str,
        run: impl FnOnce(&Rccl, RcclComm, *mut c_void) -> RcclResult,
    ) -> Result<()> {
        self.group.check()?;
        let stream = self.member().device.stream();
        let is_captured = match stream.is_idle() {
            Ok(_) => false,
            // The one thing that this refuses is to look into a capture.
            Err(candle_rocm::Error::InvalidArgument { .. }) => true,
            Err(error) => return Err(error.into()),
        };
        if !is_captured {
            if let Some(before) = self.lock_side().take() {
                stream.wait(&before)?;
            }
        }
        self.call(op, |library, comm| run(library, comm, stream.as_raw()))?;
        Ok(self.member().mark(op, (!is_captured).then_some(stream))?)
    }

    fn lock_side(&self) -> std::sync::MutexGuard<'_, Option<Arc<Event>>> {
        self.on_side.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream for what runs beside the device's own.
    fn side(&self) -> Result<&Stream> {
        if self.side.get().is_none() {
            let device = candle_rocm::Device::new(self.member().device.ordinal())?;
            // Another thread's, if there is one, is as good.
            let _ = self.side.set(device);
        }
        Ok(self.side.get().expect("it was just set").stream())
    }

    /// A tensor in the dtype that RCCL reduces it in, and RCCL's number of that.
    fn reducible(&self, op: &'static str, x: &Tensor) -> Result<(Tensor, c_int)> {
        let dtype = x.dtype();
        let Some((number, wide)) = reduced_as(dtype) else {
            let reason = "RCCL does not add up such elements; convert them first";
            return Err(Error::UnsupportedDType { op, dtype, reason }.into());
        };
        Ok((x.to_dtype(wide)?, number))
    }

    /// Waits on the host until the last collective is done, or the group has failed.
    pub fn wait(&self) -> Result<()> {
        loop {
            self.group.check()?;
            if self.member().is_done()? {
                // What was aborted counts as done.
                return Ok(self.group.check()?);
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Backend for Rank {
    fn name(&self) -> &'static str {
        "rccl"
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        let op = "all_reduce";
        self.note(op, x, Some(by), None)?;
        let (wide, dtype) = self.reducible(op, x)?;
        let out = self.room(wide.shape(), wide.dtype())?;
        let (from, to, count) = (address(&wide)?, address(&out)?, wide.elem_count());
        self.enqueue(op, |library, comm, stream| {
            // SAFETY: both have `count` elements, and their memory is reused in the order of the stream.
            unsafe { (library.ncclAllReduce)(from, to, count, dtype, operation(by), comm, stream) }
        })?;
        out.to_dtype(x.dtype())
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        let op = "all_gather";
        self.note(op, x, None, None)?;
        let out = self.room([&[self.group.size], x.dims()].concat(), x.dtype())?;
        let (from, to, bytes) = (address(x)?, address(&out)?, bytes_of(x));
        self.enqueue(op, |library, comm, stream| {
            // SAFETY: `x` has that many bytes, the result as many for each rank; else as in `all_reduce`.
            unsafe { (library.ncclAllGather)(from, to, bytes, rccl::UINT8, comm, stream) }
        })?;
        Ok(out)
    }

    fn reduce_scatter(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        let op = "reduce_scatter";
        self.note(op, x, Some(by), None)?;
        let (wide, dtype) = self.reducible(op, x)?;
        let out = self.room(&wide.dims()[1..], wide.dtype())?;
        let (from, to, count) = (address(&wide)?, address(&out)?, out.elem_count());
        self.enqueue(op, |library, comm, stream| {
            // SAFETY: the result has `count` elements, what comes in as many for each rank; else as in `all_reduce`.
            unsafe {
                (library.ncclReduceScatter)(from, to, count, dtype, operation(by), comm, stream)
            }
        })?;
        out.to_dtype(x.dtype())
    }

    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        let op = "broadcast";
        self.note(op, x, None, Some(root))?;
        let out = match self.member().rank == root {
            true => x.clone(),
            false => self.room(x.shape(), x.dtype())?,
        };
        let (to, bytes) = (address(&out)?, bytes_of(x));
        self.enqueue(op, |library, comm, stream| {
            // SAFETY: the root's tensor is read and stays as it is, the others' result is written; both have that many
            // bytes, and else it is as in `all_reduce`.
            unsafe {
                (library.ncclBroadcast)(to, to, bytes, rccl::UINT8, root as c_int, comm, stream)
            }
        })?;
        Ok(out)
    }

    fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        self.exchange(&[(x.clone(), to)], &[]).map(|_| ())
    }

    fn recv(&self, shape: &Shape, dtype: DType, from: usize) -> Result<Tensor> {
        let received = self.exchange(&[], &[(shape.clone(), dtype, from)])?;
        let first = received.into_iter().flatten().next();
        first.ok_or_else(|| candle::Error::Msg("nothing was received".to_string()).bt())
    }

    fn exchange(
        &self,
        sends: &[(Tensor, usize)],
        receives: &[(Shape, DType, usize)],
    ) -> Result<Option<Vec<Tensor>>> {
        let own = self.member().rank;
        let mut calls: Vec<(bool, *mut c_void, usize, usize)> = Vec::new();
        for (x, to) in sends {
            self.group
                .note(|l| l.message((own, *to), true, x.dtype(), x.shape()))?;
            calls.push((true, address(x)?, bytes_of(x), *to));
        }
        let mut received = Vec::with_capacity(receives.len());
        for (shape, dtype, from) in receives {
            self.group
                .note(|l| l.message((*from, own), false, *dtype, shape))?;
            let out = self.room(shape, *dtype)?;
            calls.push((false, address(&out)?, bytes_of(&out), *from));
            received.push(out);
        }
        let op = match (sends, receives) {
            (_, []) => "send",
            ([], _) => "recv",
            _ => "exchange",
        };
        self.enqueue(op, |library, comm, stream| {
            // SAFETY: each tensor has as many bytes, and else it is as in `all_reduce`. A group that was begun is
            // ended.
            unsafe {
                let mut result = (library.ncclGroupStart)();
                if result != rccl::SUCCESS {
                    return result;
                }
                for (is_send, at, bytes, peer) in calls {
                    if result == rccl::SUCCESS {
                        let peer = peer as c_int;
                        result = match is_send {
                            true => (library.ncclSend)(at, bytes, rccl::UINT8, peer, comm, stream),
                            false => (library.ncclRecv)(at, bytes, rccl::UINT8, peer, comm, stream),
                        };
                    }
                }
                match (library.ncclGroupEnd)() {
                    rccl::SUCCESS => result,
                    ended => ended,
                }
            }
        })?;
        Ok(Some(received))
    }

    fn has_background(&self) -> bool {
        true
    }

    fn start_all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Pending> {
        let op = "all_reduce";
        self.note(op, x, Some(by), None)?;
        let (wide, dtype) = self.reducible(op, x)?;
        let out = self.room(wide.shape(), wide.dtype())?;
        let (from, to, count) = (address(&wide)?, address(&out)?, wide.elem_count());
        let device = self.member().device.clone();
        let side = self.side()?;
        // The memory of both is free to use when the device has done what was enqueued so far.
        let ready = Event::new(&device)?;
        ready.record(device.stream())?;
        side.wait(&ready)?;
        self.call(op, |library, comm| {
            // SAFETY: both have `count` elements; what is returned keeps them until the device's stream has been told
            // to wait for the end of this.
            unsafe {
                (library.ncclAllReduce)(from, to, count, dtype, operation(by), comm, side.as_raw())
            }
        })?;
        let done = Arc::new(Event::new(&device)?);
        done.record(side)?;
        self.member().mark(op, Some(side))?;
        *self.lock_side() = Some(done.clone());
        let (group, dtype) = (self.group.clone(), x.dtype());
        // Smaller elements are made smaller again behind the wait, so that the result has to be what RCCL writes.
        if dtype != wide.dtype() {
            device.stream().wait(&done)?;
            return Ok(Pending::done(out.to_dtype(dtype)?));
        }
        Ok(Pending::until(out, move || {
            let waits = device.stream().wait(&done);
            drop(wide);
            group.check()?;
            Ok(waits?)
        }))
    }

    fn barrier(&self) -> Result<()> {
        let one = Tensor::ones(1, DType::U8, &self.device)?;
        self.all_reduce(&one, Reduce::Max)?;
        self.wait()
    }

    fn check(&self) -> Result<()> {
        Ok(self.group.check()?)
    }

    fn set_timeout(&self, timeout: Duration) {
        self.group.set_timeout(timeout);
    }

    fn abort(&self, reason: &str) {
        self.group.fail(Error::RankFailed {
            rank: self.member().rank,
            size: self.group.size,
            reason: reason.to_string(),
        });
    }
}
