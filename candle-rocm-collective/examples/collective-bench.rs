//! How long an all-reduce takes on each backend, at each size, between 2 and all GPUs.
//!
//! ```text
//! cargo run --release -p candle-rocm-collective --example collective-bench -- [--devices 0,1,2,3] [--ranks 2,4]
//!     [--backends peers,peers-1,peers-2,rccl,host] [--sizes 1K,64K,1M] [--dtype f16] [--calls 50] [--json]
//! ```
//!
//! `peers-1` and `peers-2` are peers' kernels with one meeting and with two. Each line first has the sum checked. `call`
//! is the time of a call of many that are enqueued behind each other, `graph` that of one of many in a graph, as a decode
//! step has them; times are those of the slowest rank, the fastest of several measurements. The rate is that of a ring:
//! 2 (n - 1) / n of the tensor's bytes, as NCCL's tests give it
//! (<https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md>).

use candle::{DType, Device, Result, Tensor};
use candle_rocm::ops::collective::Shots;
use candle_rocm::Capture;
use candle_rocm_collective::{choice, host, peers, Choice, Communicator, Options, Reduce};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Measurements of which the fastest counts.
const REPEATS: usize = 5;
/// Bytes that the calls of one measurement move at most, unless that were fewer than three calls.
const MOST_BYTES: usize = 1 << 30;
const USAGE: &str =
    "collective-bench [--devices 0,1] [--ranks 2,4] [--backends peers,peers-1,peers-2,rccl,host] \
                     [--sizes 1K,64K,1M] [--dtype f16] [--calls 50] [--json]";

struct Settings {
    devices: Vec<usize>,
    ranks: Vec<usize>,
    backends: Vec<String>,
    sizes: Vec<usize>,
    dtype: DType,
    calls: usize,
    json: bool,
}

/// A size such as 64K or 4M.
fn bytes(text: &str) -> Option<usize> {
    let (digits, factor) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (&text[..at], 1 << 10),
        (at, 'M' | 'm') => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(factor)
}

fn list<T>(text: &str, one: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    text.split(',').map(|item| one(item.trim())).collect()
}

fn settings(arguments: impl Iterator<Item = String>) -> Option<Settings> {
    let count = candle_rocm::Device::count().unwrap_or(0);
    let mut settings = Settings {
        devices: (0..count).collect(),
        ranks: Vec::new(),
        backends: ["peers-1", "peers-2", "rccl", "host"]
            .map(String::from)
            .to_vec(),
        sizes: (10..=26).step_by(2).map(|log| 1 << log).collect(),
        dtype: DType::F16,
        calls: 50,
        json: false,
    };
    let mut arguments = arguments;
    while let Some(name) = arguments.next() {
        if name == "--json" {
            settings.json = true;
            continue;
        }
        let value = arguments.next()?;
        match name.as_str() {
            "--devices" => settings.devices = list(&value, |item| item.parse().ok())?,
            "--ranks" => settings.ranks = list(&value, |item| item.parse().ok())?,
            "--backends" => settings.backends = list(&value, |item| Some(item.to_string()))?,
            "--sizes" => settings.sizes = list(&value, bytes)?,
            "--dtype" => {
                let dtypes = [DType::F16, DType::BF16, DType::F32];
                settings.dtype = dtypes.into_iter().find(|d| d.as_str() == value)?;
            }
            "--calls" => settings.calls = value.parse().ok().filter(|calls| *calls > 0)?,
            _ => return None,
        }
    }
    if settings.ranks.is_empty() {
        let all = settings.devices.len();
        settings.ranks = (1..)
            .map(|log| 1 << log)
            .take_while(|ranks| *ranks <= all)
            .collect();
    }
    Some(settings)
}

fn group(backend: &str, devices: &[Device]) -> Result<Vec<Communicator>> {
    match backend {
        "peers" => peers::group(devices, TIMEOUT),
        "peers-1" => peers::group_by(devices, TIMEOUT, Some(Shots::One)),
        "peers-2" => peers::group_by(devices, TIMEOUT, Some(Shots::Two)),
        "host" => host::group_within(devices, TIMEOUT),
        other => {
            let options = Options {
                choice: other.parse::<Choice>()?,
                remembers: false,
                ..Options::default()
            };
            choice::group(devices, &options)
        }
    }
}

/// What a rank measures: the time of a call, and of one in a graph.
type Times = (Duration, Option<Duration>);

fn fastest(rank: &Communicator, calls: usize, run: impl Fn() -> Result<()>) -> Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..REPEATS {
        rank.barrier()?;
        let begin = Instant::now();
        run()?;
        rank.device().synchronize()?;
        best = best.min(begin.elapsed() / calls as u32);
    }
    rank.check()?;
    Ok(best)
}

fn measure(rank: &Communicator, settings: &Settings, size: usize) -> Result<Times> {
    let count = (size / settings.dtype.size_in_bytes()).max(1);
    let calls = settings.calls.min(MOST_BYTES / size.max(1)).max(3);
    let own = (rank.rank() + 1) as f32;
    let x = Tensor::full(own, count, rank.device())?.to_dtype(settings.dtype)?;
    let sum = rank.all_reduce(&x, Reduce::Sum)?.to_dtype(DType::F32)?;
    let expected = (rank.size() * (rank.size() + 1) / 2) as f32;
    let (least, most) = (
        sum.min_all()?.to_scalar::<f32>()?,
        sum.max_all()?.to_scalar::<f32>()?,
    );
    if (least, most) != (expected, expected) {
        candle::bail!("a sum of {size} bytes is {least} to {most} instead of {expected}");
    }
    let repeated = || {
        for _ in 0..calls {
            rank.all_reduce(&x, Reduce::Sum)?;
        }
        Ok(())
    };
    let call = fastest(rank, calls, repeated)?;
    let Device::Rocm(gpu) = rank.device() else {
        return Ok((call, None));
    };
    if !rank.is_capturable() {
        return Ok((call, None));
    }
    let capture = Capture::begin(gpu.device())?;
    repeated()?;
    let graph = capture.end()?;
    // SAFETY: the tensor and the rank are alive.
    let graph = fastest(rank, calls, || Ok(unsafe { graph.launch() }?))?;
    Ok((call, Some(graph)))
}

/// The times of the slowest rank, for each size as far as it went.
fn times(group: &[Communicator], settings: &Settings) -> (Vec<Times>, Option<String>) {
    let mut all = Vec::new();
    for &size in &settings.sizes {
        let of_ranks = std::thread::scope(|scope| {
            let run = |rank: &Communicator| {
                measure(rank, settings, size).inspect_err(|error| rank.abort(&error.to_string()))
            };
            let threads = group.iter().map(|rank| scope.spawn(move || run(rank)));
            let threads: Vec<_> = threads.collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined
                .map(|t| t.expect("a rank does not panic"))
                .collect::<Result<Vec<_>>>()
        });
        match of_ranks {
            Ok(times) => all.extend(
                times
                    .into_iter()
                    .reduce(|a, b| (a.0.max(b.0), a.1.max(b.1))),
            ),
            Err(error) => return (all, Some(error.to_string())),
        }
    }
    (all, None)
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn main() -> Result<()> {
    let Some(settings) = settings(std::env::args().skip(1)) else {
        eprintln!("usage: {USAGE}");
        std::process::exit(2);
    };
    let devices = settings
        .devices
        .iter()
        .map(|&ordinal| Device::new_rocm(ordinal));
    let devices = devices.collect::<Result<Vec<_>>>()?;
    let mut records = Vec::new();
    for &ranks in &settings.ranks {
        let Some(devices) = devices.get(..ranks) else {
            candle::bail!("{ranks} ranks, where there are {} devices", devices.len());
        };
        for backend in &settings.backends {
            let (times, error) = match group(backend, devices) {
                Ok(group) => times(&group, &settings),
                Err(error) => (Vec::new(), Some(error.to_string())),
            };
            if !settings.json {
                println!("\n{backend}, {ranks} ranks, {:?}", settings.dtype);
                println!(
                    "{:>12} {:>12} {:>12} {:>10}",
                    "bytes", "call us", "graph us", "GB/s"
                );
            }
            for (size, (call, graph)) in settings.sizes.iter().zip(times) {
                let best = microseconds(graph.unwrap_or(call).min(call));
                let rate = 2.0 * (ranks - 1) as f64 / ranks as f64 * *size as f64 / best / 1e3;
                let (call, graph) = (microseconds(call), graph.map(microseconds));
                if settings.json {
                    let graph = graph.map_or("null".to_string(), |us| format!("{us:.2}"));
                    records.push(format!(
                        "{{\"backend\":\"{backend}\",\"ranks\":{ranks},\"bytes\":{size},\"call_us\":{call:.2},\
                         \"graph_us\":{graph},\"gigabytes_per_second\":{rate:.2}}}"
                    ));
                } else {
                    let graph = graph.map_or("-".to_string(), |us| format!("{us:.1}"));
                    println!("{size:>12} {call:>12.1} {graph:>12} {rate:>10.1}");
                }
            }
            if let Some(error) = error {
                eprintln!("{backend}, {ranks} ranks: {error}");
            }
        }
    }
    if settings.json {
        println!("[{}]", records.join(",\n "));
    }
    Ok(())
}
