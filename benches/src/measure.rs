//! Timing, and tensors to time with.

use crate::Cli;
use candle_rocm::{contiguous_strides, ops, Buffer, Capture, DType, Device, Error, Result, View};
use std::fmt::Display;
use std::time::{Duration, Instant};

/// A group of measurements on a device.
pub struct Bench<'a> {
    pub device: &'a Device,
    group: &'a str,
    target: Duration,
    shrink: usize,
    only: &'a str,
}

/// What an operation does, for its rate.
#[derive(Clone, Copy)]
pub enum Work {
    /// Bytes read and written at least.
    Bytes(f64),
    /// Floating-point operations.
    Flops(f64),
    /// Calls only.
    Calls,
}

/// Batches of calls whose median counts.
const BATCHES: usize = 5;

impl<'a> Bench<'a> {
    pub fn new(device: &'a Device, group: &'a str, cli: &'a Cli) -> Self {
        Bench {
            device,
            group,
            target: Duration::from_millis(cli.milliseconds.max(1)),
            shrink: cli.shrink.max(1),
            only: &cli.only,
        }
    }

    /// The same group on another device.
    pub fn on<'b>(&'b self, device: &'b Device) -> Bench<'b> {
        Bench { device, ..*self }
    }

    /// A size, divided as asked for, and a multiple of 256.
    pub fn size(&self, size: usize) -> usize {
        (size / self.shrink).max(1).next_multiple_of(256)
    }

    /// Prints what one call takes: the host enqueues a batch of calls and waits for the device once, so that a call
    /// whose work is shorter than what enqueuing it costs shows that cost. An operation that the device refuses prints
    /// why.
    pub fn time(
        &self,
        name: impl Display,
        size: impl Display,
        work: Work,
        mut call: impl FnMut(usize) -> Result<()>,
    ) {
        if self.wants(&name, &size) {
            let seconds = self.seconds(&mut call);
            self.report(&name, &size, seconds, work);
        }
    }

    /// Prints what one of `calls` calls takes that are recorded in one graph: the device's time, without what enqueuing
    /// costs. Buffers that `call` uses and did not make live as long as it does.
    pub fn time_recorded(
        &self,
        name: impl Display,
        size: impl Display,
        work: Work,
        calls: usize,
        mut call: impl FnMut(usize) -> Result<()>,
    ) {
        if !self.wants(&name, &size) {
            return;
        }
        let mut record = || {
            // What the first call compiles and allocates cannot be recorded.
            call(0)?;
            self.device.synchronize()?;
            let capture = Capture::begin(self.device)?;
            (0..calls).try_for_each(&mut call)?;
            capture.end()
        };
        let seconds = record().and_then(|graph| {
            // SAFETY: what the calls use lives longer than the graph.
            self.seconds(&mut |_| unsafe { graph.launch() })
        });
        let seconds = seconds.map(|seconds| seconds / calls as f64);
        self.report(&name, &size, seconds, work);
    }

    fn wants(&self, name: &dyn Display, size: &dyn Display) -> bool {
        format!("{name} {size}").contains(self.only)
    }

    fn report(&self, name: &dyn Display, size: &dyn Display, seconds: Result<f64>, work: Work) {
        match seconds {
            Ok(seconds) => self.print(name, size, seconds, work),
            Err(error) => println!("# {} {name} {size}: {error}", self.group),
        }
    }

    /// One line of the report.
    pub fn print(&self, name: &dyn Display, size: &dyn Display, seconds: f64, work: Work) {
        let (rate, unit) = match work {
            Work::Bytes(bytes) => (bytes / seconds / 1e9, "GB/s"),
            Work::Flops(flops) => (flops / seconds / 1e12, "TFLOP/s"),
            Work::Calls => (1.0 / seconds / 1e3, "kcall/s"),
        };
        println!(
            "{}\t{name}\t{size}\t{:.3}\t{rate:.2}\t{unit}",
            self.group,
            seconds * 1e6
        );
    }

    /// Seconds per call: the median of batches that take at least as long as asked for together.
    fn seconds(&self, call: &mut impl FnMut(usize) -> Result<()>) -> Result<f64> {
        let mut batch = |count: usize| -> Result<f64> {
            let start = Instant::now();
            (0..count).try_for_each(&mut *call)?;
            self.device.synchronize()?;
            Ok(start.elapsed().as_secs_f64())
        };
        // Compiles, loads, fills the allocator's cache, wakes the clocks.
        batch(2)?;
        let mut count = 2;
        let share = self.target.as_secs_f64() / BATCHES as f64;
        while count < 1 << 20 {
            let seconds = batch(count)?;
            if seconds >= share {
                break;
            }
            let wanted = share * 1.2 / seconds.max(1e-7) * count as f64;
            count = (wanted as usize).clamp(count * 2, count * 16);
        }
        let mut times = (0..BATCHES)
            .map(|_| batch(count))
            .collect::<Result<Vec<_>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[BATCHES / 2] / count as f64)
    }

    /// A tensor of random numbers.
    pub fn random(&self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let count = dims.iter().product();
        let buffer = match dtype {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {
                ops::rand::normal(self.device, dtype, count, 0.0, 1.0)?
            }
            _ => {
                return Err(Error::UnsupportedDType { op: "bench", dtype });
            }
        };
        Ok(Tensor::new(buffer, dtype, dims))
    }

    /// A tensor of integers below `limit`, spread over them.
    pub fn indices(&self, dims: &[usize], limit: usize) -> Result<Tensor> {
        let mut random = Random(7);
        let bytes: Vec<u8> = (0..dims.iter().product::<usize>())
            .flat_map(|_| ((random.next() % limit as u64) as u32).to_le_bytes())
            .collect();
        Ok(Tensor::new(self.device.upload(&bytes)?, DType::U32, dims))
    }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A tensor that owns its memory.
pub struct Tensor {
    pub buffer: Buffer,
    pub dtype: DType,
    dims: Vec<usize>,
    strides: Vec<usize>,
}

impl Tensor {
    pub fn new(buffer: Buffer, dtype: DType, dims: &[usize]) -> Self {
        let strides = contiguous_strides(dims);
        Tensor {
            buffer,
            dtype,
            dims: dims.to_vec(),
            strides: strides.to_vec(),
        }
    }

    pub fn view(&self) -> View<'_> {
        View::contiguous(&self.buffer, self.dtype, &self.dims, &self.strides)
    }

    /// The first and the last dimension swapped.
    pub fn transposed(mut self) -> Self {
        let last = self.dims.len() - 1;
        self.dims.swap(0, last);
        self.strides.swap(0, last);
        self
    }

    /// The same elements for every index of a new outermost dimension.
    pub fn repeated(mut self, count: usize) -> Self {
        self.dims.insert(0, count);
        self.strides.insert(0, 0);
        self
    }
}
