//! Computing and copying at the same time: whether both stay right, for seconds or for hours.

use super::{host_memory, size, MIB};
use crate::pattern::{work_on_host, Pattern, Patterns, WORD};
use crate::report::Measurement;
use crate::sensors::{Sample, Sensors, Throttle};
use crate::{Check, Failure, Options, Section};
use candle_rocm::{Buffer, HostBuffer};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// See the [module](self).
pub struct Overlap;

/// How often temperature and clocks are read.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// So near to the driver's limit is too hot, in degrees.
const MARGIN: f64 = 3.0;
/// Rounds whose time is measured before the long run.
const TIMED: usize = 5;

const ADVICE: &str = "results of this GPU cannot be trusted under load: take back overclocking and undervolting, look at temperature and power supply, and try AMD_SERIALIZE_COPY=3 to tell the copy engine from the rest. Please send the report";

impl Section for Overlap {
    fn name(&self) -> &'static str {
        "overlap"
    }

    fn about(&self) -> &'static str {
        "computing and copying at once on two streams, checked; --soak makes it last"
    }

    fn limit(&self, options: &Options) -> Duration {
        Duration::from_secs(options.soak_seconds.unwrap_or(0)) + Duration::from_secs(300)
    }

    fn run(&self, check: &Check) -> Result<(), Failure> {
        let options = check.options();
        let seconds = options.soak_seconds.unwrap_or(options.pick(20, 5, 1));
        let duration = Duration::from_secs(seconds);
        check.progress("making the kernels that check");
        let work = Work::new(check, options)?;
        let traffic = Traffic::new(check, options)?;
        let alone = (timed(|| work.round())?, timed(|| traffic.round())?);
        let pci_id = &work.patterns.device().properties().pci_id;
        let watch = Watch::new(pci_id);
        let stop = AtomicBool::new(false);
        let rounds = [AtomicU64::new(0), AtomicU64::new(0)];
        let going = |count: &AtomicU64| {
            count.fetch_add(1, Ordering::Relaxed);
            !stop.load(Ordering::Relaxed)
        };
        let start = Instant::now();
        let samples = std::thread::scope(|scope| -> Result<Vec<Sample>, Failure> {
            let computing = scope.spawn(|| -> Result<(), Failure> {
                while going(&rounds[0]) {
                    work.round()?;
                }
                Ok(())
            });
            let copying = scope.spawn(|| -> Result<(), Failure> {
                while going(&rounds[1]) {
                    traffic.round()?;
                }
                Ok(())
            });
            let mut samples = Vec::new();
            while start.elapsed() < duration && !computing.is_finished() && !copying.is_finished() {
                std::thread::sleep(SAMPLE_EVERY.min(duration / 4));
                let sample = watch.sample();
                check.progress(describe(&sample, start.elapsed(), duration));
                samples.push(sample);
            }
            stop.store(true, Ordering::Relaxed);
            let ends = [computing.join(), copying.join()];
            for end in ends {
                end.map_err(|_| "a thread panicked")??;
            }
            Ok(samples)
        })?;
        let seconds = start.elapsed().as_secs_f64();
        // A thread counts the round in which it stops.
        let done = rounds.map(|count| count.into_inner().saturating_sub(1));
        check.note(format!(
            "{} rounds of {} words computed and {} of {} copied to and fro in {seconds:.0} s",
            done[0],
            work.words(),
            done[1],
            size(traffic.bytes())
        ));
        let (computing, copying) = alone;
        for (name, alone, rounds) in [
            ("a round of computing", computing, done[0]),
            ("a round of copying", copying, done[1]),
        ] {
            let both = seconds / rounds.max(1) as f64;
            check.measure(Measurement::new(
                format!("{name}, alone"),
                alone * 1e3,
                "ms",
            ));
            check.measure(Measurement::new(
                format!("{name}, with the other"),
                both * 1e3,
                "ms",
            ));
        }
        watch.tell(check, &samples);
        Ok(())
    }
}

/// Words computed by many steps, whose values the host knows.
struct Work<'a> {
    check: &'a Check,
    patterns: Patterns,
    result: Buffer,
    expected: Buffer,
    steps: u32,
    told: AtomicBool,
}

const SEED: u32 = 11;

impl<'a> Work<'a> {
    fn new(check: &'a Check, options: &Options) -> Result<Self, Failure> {
        let device = check.device()?;
        let (words, steps) = options.pick((4 << 20, 256), (1 << 20, 256), (1 << 12, 16));
        let expected = device.upload(&work_on_host(words, steps, SEED))?;
        Ok(Work {
            check,
            patterns: Patterns::new(&device)?,
            result: device.alloc(words * WORD)?,
            expected,
            steps,
            told: AtomicBool::new(false),
        })
    }

    fn words(&self) -> usize {
        self.result.len() / WORD
    }

    fn round(&self) -> Result<(), Failure> {
        self.patterns.fill(&self.result, Pattern::Address, 0, 0)?;
        self.patterns.work(&self.result, self.steps, SEED)?;
        if let Some(found) = self.patterns.compare(&self.result, &self.expected)? {
            if !self.told.swap(true, Ordering::Relaxed) {
                let text = format!("words computed while copies went on: {found}");
                self.check.error("compute", text, ADVICE);
            }
        }
        Ok(())
    }
}

/// Copies to the device and back, on a stream of their own.
struct Traffic<'a> {
    check: &'a Check,
    patterns: Patterns,
    buffer: Buffer,
    host: Mutex<Host>,
    told: AtomicBool,
}

/// What is sent, and where it comes back to.
struct Host {
    sent: HostBuffer,
    received: HostBuffer,
}

/// Seed of what is sent.
const SENT: u32 = 13;

impl<'a> Traffic<'a> {
    fn new(check: &'a Check, options: &Options) -> Result<Self, Failure> {
        let device = check.device()?;
        let (free, _) = device.memory_info()?;
        let bytes = options.pick(64 * MIB, 64 * MIB, 2 * MIB);
        let bytes = bytes.min(free / 8).min(host_memory()).max(WORD) / WORD * WORD;
        let mut sent = device.alloc_host(bytes)?;
        Pattern::Random.fill(SENT, 0, &mut sent);
        let received = device.alloc_host(bytes)?;
        Ok(Traffic {
            check,
            patterns: Patterns::new(&device)?,
            buffer: device.alloc(bytes)?,
            host: Mutex::new(Host { sent, received }),
            told: AtomicBool::new(false),
        })
    }

    fn bytes(&self) -> usize {
        self.buffer.len()
    }

    fn round(&self) -> Result<(), Failure> {
        let mut host = self.host.lock().unwrap_or_else(|e| e.into_inner());
        let Host { sent, received } = &mut *host;
        let bytes = self.bytes();
        // What the round before left must not pass for this one's.
        self.patterns.fill(&self.buffer, Pattern::Address, 0, 0)?;
        received.fill(0);
        sent.copy_to(&self.buffer, 0, bytes)?;
        let arrived = (self.patterns).check(&self.buffer, bytes, Pattern::Random, SENT, 0)?;
        received.copy_from(&self.buffer, 0, bytes)?;
        let returned = match received[..] == sent[..] {
            true => None,
            false => Pattern::Random.compare(SENT, 0, received),
        };
        for (found, what) in [
            (arrived, "to the device"),
            (returned, "to the device and back"),
        ] {
            if let Some(found) = found {
                if !self.told.swap(true, Ordering::Relaxed) {
                    let text = format!("words copied {what} while the GPU computed: {found}");
                    self.check.error("copy", text, ADVICE);
                }
            }
        }
        Ok(())
    }
}

/// Seconds of a call on average, after one that warms up.
fn timed(mut call: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    call()?;
    let start = Instant::now();
    for _ in 0..TIMED {
        call()?;
    }
    Ok(start.elapsed().as_secs_f64() / TIMED as f64)
}

/// The card's sensors, if the kernel shows them.
struct Watch {
    sensors: Option<Sensors>,
}

impl Watch {
    fn new(pci_id: &str) -> Self {
        Watch {
            sensors: Sensors::of(Path::new("/"), pci_id),
        }
    }

    fn sample(&self) -> Sample {
        self.sensors
            .as_ref()
            .map(Sensors::sample)
            .unwrap_or_default()
    }

    fn tell(&self, check: &Check, samples: &[Sample]) {
        let Some(sensors) = &self.sensors else {
            check.note("the kernel shows no sensors of this GPU");
            return;
        };
        let critical = sensors.critical();
        for (name, unit, of) in [
            (
                "temperature, hottest",
                "°C",
                (|s| s.hot) as fn(&Sample) -> Option<f64>,
            ),
            ("memory temperature, hottest", "°C", |s| s.memory),
            ("power, highest", "W", |s| s.watts),
            ("core clock, highest", "MHz", |s| s.megahertz),
        ] {
            if let Some(highest) = samples.iter().filter_map(of).reduce(f64::max) {
                check.measure(Measurement::new(name, highest, unit));
            }
        }
        // The first half warms up.
        let clocks = samples[samples.len() / 2..]
            .iter()
            .filter_map(|s| s.megahertz);
        if let Some(lowest) = clocks.reduce(f64::min) {
            check.measure(Measurement::new(
                "core clock, lowest of the second half",
                lowest,
                "MHz",
            ));
        }
        let hottest = samples.iter().filter_map(|s| s.hot).reduce(f64::max);
        if let (Some(hottest), Some(critical)) = (hottest, critical) {
            if hottest > critical - MARGIN {
                check.warning(
                    "hot",
                    format!(
                        "{hottest:.0} °C, and the driver slows the GPU down at {critical:.0} °C"
                    ),
                    "clean the cooler, look at fans and the case's air, or lower the power limit",
                );
            }
        }
        let throttled = samples.iter().filter_map(|s| s.throttled);
        let all = Throttle(throttled.fold(0, |all, throttle| all | throttle.0));
        let reasons = all.reasons();
        if reasons.contains(&"temperature") {
            check.warning(
                "throttled",
                format!("the GPU was slowed down by {}", reasons.join(", ")),
                "clean the cooler, look at fans and the case's air, or lower the power limit",
            );
        } else if !reasons.is_empty() {
            check.note(format!(
                "the GPU was held back by {}, as is usual under load",
                reasons.join(", ")
            ));
        }
    }
}

fn describe(sample: &Sample, elapsed: Duration, of: Duration) -> String {
    let mut text = format!("{} of {} s", elapsed.as_secs(), of.as_secs());
    for (value, unit) in [
        (sample.hot, "°C"),
        (sample.watts, "W"),
        (sample.megahertz, "MHz"),
    ] {
        if let Some(value) = value {
            text += &format!(", {value:.0} {unit}");
        }
    }
    text
}
