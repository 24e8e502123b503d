//! Copies: whether every byte arrives where it belongs, and how fast.
//!
//! What a copy brings is looked at on the side to which it went, and what it takes was made on the side from which it
//! comes, so that each direction is judged alone.

use super::{host_memory, size, GIB, MIB};
use crate::pattern::{Mismatch, Pattern, Patterns};
use crate::report::Measurement;
use crate::{Check, Failure, Options, Section};
use candle_rocm::topology::{Details, Topology};
use candle_rocm::{Buffer, Device};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// See the [module](self).
pub struct Copies;

/// Bytes of the copies: sizes on both sides of what drivers and this product treat differently.
const SIZES: &[usize] = &[
    4,
    36,
    4 << 10,
    100_004,
    MIB,
    4 * MIB + 4,
    64 * MIB,
    256 * MIB,
    GIB,
];

/// From this size on the rate is worth telling.
const RATE_FROM: usize = 4 * MIB;
/// Copies whose best time counts.
const REPEATS: usize = 3;
/// Less of the link's bandwidth than this is worth a warning.
const POOR: f64 = 0.5;

const ADVICE: &str = "results of this GPU cannot be trusted: try again with HSA_ENABLE_SDMA=0; if that helps, it is the driver's copy engine, else look at the slot, the riser and overclocking. Please send the report";

impl Section for Copies {
    fn name(&self) -> &'static str {
        "copies"
    }

    fn about(&self) -> &'static str {
        "copies between host and GPU, within the GPU and between GPUs, checked and timed"
    }

    fn limit(&self, _: &Options) -> Duration {
        Duration::from_secs(600)
    }

    fn run(&self, check: &Check) -> Result<(), Failure> {
        let device = check.device()?;
        let gpu = Lane::new(check, device)?;
        let sizes = sizes(check.options(), &gpu)?;
        let largest = *sizes.last().unwrap_or(&SIZES[0]);
        let link = Link::of(&gpu.device);
        for &bytes in &sizes {
            gpu.one_size(bytes, bytes == largest, &link)?;
        }
        gpu.both_at_once(largest, &link)?;
        link.warn(check);
        gpu.peers(largest)
    }
}

/// The sizes that there is room for on both sides.
fn sizes(options: &Options, gpu: &Lane) -> Result<Vec<usize>, Failure> {
    let most = options.pick(GIB, 64 * MIB, 5 * MIB);
    let (free, _) = gpu.device.memory_info()?;
    // Two buffers of the device and as much of the host at once.
    let room = most.min(free / 4).min(host_memory());
    let sizes: Vec<usize> = SIZES.iter().copied().filter(|&size| size <= room).collect();
    if sizes
        .last()
        .is_none_or(|&largest| largest < most.min(SIZES[SIZES.len() - 1]) / 4)
    {
        let text = format!(
            "copies of at most {} were tried: more memory is not free",
            size(room)
        );
        gpu.check.info("sizes", text, "");
    }
    Ok(sizes)
}

/// The link to the host, by the kernel.
struct Link {
    details: Option<Details>,
    /// The best rate of a direction, in bytes a second.
    best: Mutex<f64>,
}

impl Link {
    fn of(device: &Device) -> Self {
        let pci_id = &device.properties().pci_id;
        let gpu = Topology::read()
            .gpus
            .into_iter()
            .find(|gpu| gpu.pci_id == *pci_id);
        Link {
            details: gpu.map(|gpu| gpu.details()),
            best: Mutex::new(0.0),
        }
    }

    fn reference(&self) -> Option<(f64, String)> {
        let details = self.details.as_ref()?;
        let best = details.best_bandwidth()?;
        let link = details
            .pcie
            .iter()
            .find(|link| link.max_bandwidth() == best)?;
        let name = format!("PCIe {} GT/s x{}", link.max_speed, link.max_width);
        Some((best / 1e9, name))
    }

    fn note(&self, rate: f64) {
        let mut best = self.best.lock().unwrap_or_else(|e| e.into_inner());
        *best = best.max(rate);
    }

    /// Tells if the link is far from what it could be.
    fn warn(&self, check: &Check) {
        let best = *self.best.lock().unwrap_or_else(|e| e.into_inner()) / 1e9;
        let Some((reference, name)) = self.reference().filter(|_| best > 0.0) else {
            return;
        };
        if best < reference * POOR {
            check.warning(
                "slow",
                format!("the best copy between host and GPU reached {best:.1} GB/s of {reference:.1} ({name})"),
                "see that the card sits in a slot with all lanes, directly at the processor, and that no power saving holds the link down; models load and large batches move more slowly",
            );
        }
    }
}

/// One GPU and what its copies need.
struct Lane<'a> {
    check: &'a Check,
    device: Device,
    patterns: Patterns,
    /// Directions of which a fault was told.
    told: Mutex<BTreeSet<&'static str>>,
}

impl<'a> Lane<'a> {
    fn new(check: &'a Check, device: Device) -> Result<Self, Failure> {
        check.progress("making the kernels that check");
        Ok(Lane {
            check,
            patterns: Patterns::new(&device)?,
            device,
            told: Mutex::default(),
        })
    }

    /// Tells of a direction's first fault.
    fn judge(&self, code: &'static str, what: &str, found: Option<Mismatch>) {
        let Some(found) = found else { return };
        let mut told = self.told.lock().unwrap_or_else(|e| e.into_inner());
        if told.insert(code) {
            self.check.error(code, format!("{what}: {found}"), ADVICE);
        }
    }

    /// Tells a direction's rate, from the size on where it is more than overhead.
    fn rate(&self, what: &str, bytes: usize, seconds: f64, link: Option<&Link>, shown: bool) {
        let rate = bytes as f64 / seconds.max(1e-9);
        if let Some(link) = link {
            link.note(rate);
        }
        if bytes < RATE_FROM {
            return;
        }
        let name = format!("{what}, {}", size(bytes));
        let measurement =
            Measurement::new(name, rate / 1e9, "GB/s").beside(link.and_then(Link::reference));
        self.check.measure(match shown {
            true => measurement,
            false => measurement.detail(),
        });
    }

    fn one_size(&self, bytes: usize, shown: bool, link: &Link) -> Result<(), Failure> {
        let large = bytes >= RATE_FROM;
        let repeats = if large { REPEATS } else { 1 };
        let seed = bytes as u32;
        let pattern = Pattern::Random;
        let mut host = self.device.alloc_host(bytes)?;
        let (near, far) = (self.device.alloc(bytes)?, self.device.alloc(bytes)?);
        let checked = |buffer: &Buffer, seed| self.patterns.check(buffer, bytes, pattern, seed, 0);

        let what = format!("host to device, {}", size(bytes));
        self.check.progress(&what);
        pattern.fill(seed, 0, &mut host);
        let seconds = best(repeats, || Ok(host.copy_to(&near, 0, bytes)?))?;
        self.judge("h2d", &what, checked(&near, seed)?);
        self.rate("host to device", bytes, seconds, Some(link), shown);
        let seconds = best(1, || {
            self.device.upload_into(&host, &far, 0)?;
            Ok(self.device.synchronize()?)
        })?;
        let staged = format!("{what}, through the product's own buffers");
        self.judge("h2d", &staged, checked(&far, seed)?);
        self.rate("host to device, staged", bytes, seconds, None, shown);

        let what = format!("device to host, {}", size(bytes));
        self.check.progress(&what);
        self.patterns.fill(&near, pattern, seed ^ 1, 0)?;
        self.device.synchronize()?;
        let seconds = best(repeats, || Ok(host.copy_from(&near, 0, bytes)?))?;
        self.judge("d2h", &what, pattern.compare(seed ^ 1, 0, &host));
        self.rate("device to host", bytes, seconds, Some(link), shown);
        host.fill(0);
        let seconds = best(1, || Ok(self.device.download(&near, 0, &mut host)?))?;
        let staged = format!("{what}, through the product's own buffers");
        self.judge("d2h", &staged, pattern.compare(seed ^ 1, 0, &host));
        self.rate("device to host, staged", bytes, seconds, None, shown);

        let what = format!("device to device, {}", size(bytes));
        self.check.progress(&what);
        self.patterns.fill(&near, pattern, seed ^ 2, 0)?;
        self.device.synchronize()?;
        let seconds = best(repeats, || {
            self.device.copy(&near, 0, &far, 0, bytes)?;
            Ok(self.device.synchronize()?)
        })?;
        self.judge("d2d", &what, checked(&far, seed ^ 2)?);
        self.rate("device to device", bytes, seconds, None, shown);
        Ok(())
    }

    /// Host to device and device to host at the same time, each on a stream of its own.
    fn both_at_once(&self, bytes: usize, link: &Link) -> Result<(), Failure> {
        let what = format!("both directions at once, {}", size(bytes));
        self.check.progress(&what);
        let other = Lane::new(self.check, Device::new(self.device.ordinal())?)?;
        let (down, up) = (&other, self);
        let pattern = Pattern::Random;
        let mut sent = up.device.alloc_host(bytes)?;
        let mut received = down.device.alloc_host(bytes)?;
        let (to, from) = (up.device.alloc(bytes)?, down.device.alloc(bytes)?);
        pattern.fill(3, 0, &mut sent);
        down.patterns.fill(&from, pattern, 4, 0)?;
        down.device.synchronize()?;
        let start = Instant::now();
        std::thread::scope(|scope| -> Result<(), Failure> {
            let to = &to;
            let upload = scope.spawn(move || -> candle_rocm::Result<()> {
                (0..REPEATS).try_for_each(|_| sent.copy_to(to, 0, bytes))
            });
            let result: candle_rocm::Result<()> =
                (0..REPEATS).try_for_each(|_| received.copy_from(&from, 0, bytes));
            upload
                .join()
                .map_err(|_| "the thread that uploads panicked")??;
            Ok(result?)
        })?;
        let seconds = start.elapsed().as_secs_f64() / REPEATS as f64;
        self.judge(
            "both",
            &format!("{what}, to the device"),
            up.patterns.check(&to, bytes, pattern, 3, 0)?,
        );
        self.judge(
            "both",
            &format!("{what}, to the host"),
            pattern.compare(4, 0, &received),
        );
        let reference = link
            .reference()
            .map(|(rate, name)| (2.0 * rate, format!("{name}, twice")));
        let rate = 2.0 * bytes as f64 / seconds.max(1e-9) / 1e9;
        self.check
            .measure(Measurement::new(what, rate, "GB/s").beside(reference));
        Ok(())
    }

    /// To and from every other GPU with a higher number: each pair once.
    fn peers(&self, largest: usize) -> Result<(), Failure> {
        let here = self.device.ordinal();
        let count = Device::count()?;
        for there in here + 1..count {
            self.peer(there, largest)?;
        }
        if count == 1 {
            self.check.note("between GPUs: there is one only");
        } else if here + 1 == count {
            self.check
                .note("between GPUs: looked at from those with lower numbers");
        }
        Ok(())
    }

    fn peer(&self, there: usize, largest: usize) -> Result<(), Failure> {
        let other = Device::new(there)?;
        let (free, _) = other.memory_info()?;
        let pattern = Pattern::Random;
        let patterns = Patterns::new(&other)?;
        let way = way_between(&self.device, &other);
        self.check.note(format!(
            "rocm:{} and rocm:{there}: {}",
            self.device.ordinal(),
            way.text
        ));
        for bytes in [4, 100_004, MIB + 4, largest] {
            if bytes > free / 4 || bytes > largest {
                continue;
            }
            let (ours, theirs) = (self.device.alloc(bytes)?, other.alloc(bytes)?);
            for outward in [true, false] {
                let (from, to) = match outward {
                    true => (&self.patterns, &patterns),
                    false => (&patterns, &self.patterns),
                };
                let (source, target) = match outward {
                    true => (&ours, &theirs),
                    false => (&theirs, &ours),
                };
                let name = format!(
                    "rocm:{} to rocm:{}",
                    from.device().ordinal(),
                    to.device().ordinal()
                );
                let what = format!("{name}, {}", size(bytes));
                self.check.progress(&what);
                let seed = 5 + u32::from(outward);
                from.fill(source, pattern, seed, 0)?;
                from.device().synchronize()?;
                let seconds = best(REPEATS, || {
                    to.device().copy(source, 0, target, 0, bytes)?;
                    Ok(to.device().synchronize()?)
                })?;
                self.judge("peer", &what, to.check(target, bytes, pattern, seed, 0)?);
                if bytes == largest {
                    let rate = bytes as f64 / seconds.max(1e-9) / 1e9;
                    let measurement = Measurement::new(what, rate, "GB/s");
                    self.check
                        .measure(measurement.beside(way.reference.clone()));
                }
            }
        }
        Ok(())
    }
}

/// How two GPUs reach each other.
struct Way {
    text: String,
    reference: Option<(f64, String)>,
}

fn way_between(one: &Device, other: &Device) -> Way {
    let details = Link::of(one).details;
    let link = (details.as_ref()).and_then(|details| details.link_to(&other.properties().pci_id));
    match link {
        Some(link) if link.peer_dma => Way {
            text: format!("{}, weight {}", link.kind, link.weight),
            // The kernel counts in MB/s, and 0 stands for unknown.
            reference: (link.max_bandwidth > 0).then(|| {
                (
                    link.max_bandwidth as f64 / 1e3,
                    format!("{}, by the kernel", link.kind),
                )
            }),
        },
        Some(link) => Way {
            text: format!(
                "{}, but no access to each other's memory: copies go through the host",
                link.kind
            ),
            reference: None,
        },
        None => Way {
            text: "the kernel knows no link: copies go through the host".to_string(),
            reference: None,
        },
    }
}

/// The best time of so many calls, in seconds.
fn best(repeats: usize, mut call: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let mut best = f64::INFINITY;
    for _ in 0..repeats {
        let start = Instant::now();
        call()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}
