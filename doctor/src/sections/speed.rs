//! How fast the GPU is, beside its data sheet.

use super::{size, GIB, MIB};
use crate::pattern::{Pattern, Patterns, WORD};
use crate::report::Measurement;
use crate::{Check, Failure, Options, Section};
use candle_rocm::topology::{Card, Topology};
use candle_rocm::{blas, contiguous_strides, DType, Device, View};
use std::time::{Duration, Instant};

/// See the [module](self).
pub struct Speed;

/// Batches whose best counts.
const BATCHES: usize = 5;
/// Launches of a batch.
const LAUNCHES: u32 = 1000;
/// Less of the data sheet's bandwidth, and of its matrix rate, is worth a warning. Reaching all of it is not expected:
/// large copies reach about 80 percent, large products 40 to 80.
const POOR_BANDWIDTH: f64 = 0.5;
const POOR_MATRIX: f64 = 0.15;
/// A launch that takes the host longer than this, in microseconds, makes small models wait.
const SLOW_LAUNCH: f64 = 50.0;

impl Section for Speed {
    fn name(&self) -> &'static str {
        "speed"
    }

    fn about(&self) -> &'static str {
        "bandwidth, matrix products and launches, beside the data sheet"
    }

    fn limit(&self, _: &Options) -> Duration {
        Duration::from_secs(600)
    }

    fn run(&self, check: &Check) -> Result<(), Failure> {
        let device = check.device()?;
        let pci_id = &device.properties().pci_id;
        let kernel_gpu = Topology::read()
            .gpus
            .into_iter()
            .find(|gpu| gpu.pci_id == *pci_id);
        let card = kernel_gpu.and_then(|gpu| Card::of(gpu.device_id));
        match card {
            Some(card) => check.note(format!("beside the data sheet of {}", card.name)),
            None => check.note("no data sheet of this card is known to this program"),
        }
        let patterns = Patterns::new(&device)?;
        bandwidth(check, &device, &patterns, card)?;
        matrices(check, &device, card)?;
        launches(check, &device, &patterns)
    }
}

fn beside(card: Option<&Card>, figure: impl Fn(&Card) -> f64) -> Option<(f64, String)> {
    card.map(|card| (figure(card), "the data sheet".to_string()))
}

fn bandwidth(
    check: &Check,
    device: &Device,
    patterns: &Patterns,
    card: Option<&Card>,
) -> Result<(), Failure> {
    let (free, _) = device.memory_info()?;
    let bytes = check.options().pick(GIB, 256 * MIB, MIB).min(free / 4) / WORD * WORD;
    check.progress(format!("memory, {}", size(bytes)));
    let (from, to) = (device.alloc(bytes)?, device.alloc(bytes)?);
    patterns.fill(&from, Pattern::Random, 0, 0)?;
    let copied = best(device, || device.copy(&from, 0, &to, 0, bytes))?;
    let written = best(device, || patterns.fill(&to, Pattern::Address, 0, 0))?;
    // Small copies stay in caches, which says nothing about memory.
    let reference = |large: bool| beside(card, |card| card.bandwidth).filter(|_| large);
    let large = bytes >= 256 * MIB;
    let copy_rate = 2.0 * bytes as f64 / copied / 1e9;
    for (what, rate) in [
        ("memory, read and written by a copy", copy_rate),
        ("memory, written by a kernel", bytes as f64 / written / 1e9),
    ] {
        check.measure(Measurement::new(what, rate, "GB/s").beside(reference(large)));
    }
    if let Some((sheet, _)) =
        reference(large).filter(|(sheet, _)| copy_rate < sheet * POOR_BANDWIDTH)
    {
        check.warning(
            "bandwidth",
            format!("copies within the GPU reach {copy_rate:.0} GB/s of {sheet:.0} by the data sheet"),
            "see that no other program uses the GPU, and that its clocks are not held down (power limit, temperature: section overlap)",
        );
    }
    Ok(())
}

fn matrices(check: &Check, device: &Device, card: Option<&Card>) -> Result<(), Failure> {
    let n = check.options().pick(8192, 4096, 64);
    let dims = [n, n];
    let strides = contiguous_strides(&dims);
    for (dtype, figure) in [
        (DType::F32, (|card| card.f32) as fn(&Card) -> f64),
        (DType::F16, |card| card.f16),
        (DType::BF16, |card| card.bf16),
    ] {
        let what = format!("matrix product, {dtype}, {n} x {n} x {n}");
        check.progress(&what);
        // Zeros would need less power than numbers do, but random bits could be infinite.
        let values = numbers(dtype, n * n);
        let (left, right) = (device.upload(&values)?, device.upload(&values)?);
        let left = View::contiguous(&left, dtype, &dims, &strides);
        let right = View::contiguous(&right, dtype, &dims, &strides);
        let seconds = best(device, || {
            blas::matmul(device, dtype, (1, n, n, n), &left, &right).map(drop)
        });
        let seconds = match seconds {
            Ok(seconds) => seconds,
            Err(error) => {
                check.error(
                    "matrix",
                    format!("{what}: {error}"),
                    "models need matrix products: see the section system for rocBLAS",
                );
                continue;
            }
        };
        let rate = 2.0 * (n as f64).powi(3) / seconds / 1e12;
        let reference = beside(card, figure);
        if let Some((sheet, _)) = reference
            .clone()
            .filter(|(sheet, _)| rate < sheet * POOR_MATRIX)
        {
            check.warning(
                "matrix_slow",
                format!("{what}: {rate:.1} TFLOP/s of {sheet:.0} by the data sheet"),
                "see that no other program uses the GPU, that its clocks are not held down, and that rocBLAS has files for its processor (section system)",
            );
        }
        check.measure(Measurement::new(what, rate, "TFLOP/s").beside(reference));
    }
    Ok(())
}

/// Numbers between 1 and 2 of a dtype, little-endian.
fn numbers(dtype: DType, count: usize) -> Vec<u8> {
    let mantissa = |i: usize, bits: u32| Pattern::Random.word(0, i as u64) >> (32 - bits);
    let mut bytes = Vec::with_capacity(count * dtype.size_in_bytes());
    for i in 0..count {
        match dtype {
            DType::F16 => bytes.extend((0x3c00 | mantissa(i, 10) as u16).to_le_bytes()),
            DType::BF16 => bytes.extend((0x3f80 | mantissa(i, 7) as u16).to_le_bytes()),
            _ => bytes.extend((0x3f80_0000 | mantissa(i, 23)).to_le_bytes()),
        }
    }
    bytes
}

fn launches(check: &Check, device: &Device, patterns: &Patterns) -> Result<(), Failure> {
    check.progress("launches");
    let word = device.alloc(WORD)?;
    let count = check.options().pick(LAUNCHES, LAUNCHES, 50);
    let launch = || patterns.fill(&word, Pattern::Address, 0, 0);
    let batch = best(device, || (0..count).try_for_each(|_| launch()))?;
    let alone = best(device, launch)?;
    let each = batch / f64::from(count) * 1e6;
    check.measure(Measurement::new(
        format!("a launch, of {count} in a row"),
        each,
        "µs",
    ));
    check.measure(Measurement::new("a launch, waited for", alone * 1e6, "µs"));
    if each > SLOW_LAUNCH && !check.options().small {
        check.warning(
            "launch",
            format!("a launch takes {each:.0} µs; 2 to 10 are usual"),
            "see that CANDLE_ROCM_SYNC, AMD_SERIALIZE_KERNEL and HIP_LAUNCH_BLOCKING are not set, and that the processor is not busy or throttled",
        );
    }
    Ok(())
}

/// The best time of a call and of waiting for it, after one that warms up, in seconds.
fn best(
    device: &Device,
    mut call: impl FnMut() -> candle_rocm::Result<()>,
) -> candle_rocm::Result<f64> {
    call()?;
    device.synchronize()?;
    let mut best = f64::INFINITY;
    for _ in 0..BATCHES {
        let start = Instant::now();
        call()?;
        device.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best.max(1e-9))
}
