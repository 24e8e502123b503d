//! `kfd overlap-test`: computing and copying at once.

use super::Verdict;
use crate::cli::bytes;
use crate::kernels::Kernels;
use crate::lane::{Lane, Wrong};
use crate::output::{rate, size};
use crate::session::{Card, Choice, Session};
use crate::Result;
use candle_kfd::sdma::{Engine, SdmaQueue, Ticket};
use candle_kfd::{Kind, Memory};
use clap::Args;
use memory_pattern::{work_on_host, Pattern, WORD};
use serde_json::json;
use std::time::{Duration, Instant};

/// Words that are computed at first, to see how long that takes.
const STEPS: u32 = 64;
/// Steps of a word at most.
const MOST_STEPS: u32 = 1 << 16;
/// Words that the host computes, too.
const SAMPLE: usize = 4096;

/// How much is computed and copied.
#[derive(Args, Debug)]
pub struct Options {
    /// Bytes that are copied each way, and computed: 64M.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = bytes)]
    size: u64,

    /// How often.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Tests the GPUs that were asked for, one after the other.
///
/// # Errors
/// candle-kfd's; [`Error::Wrong`](crate::Error::Wrong) if results or copies were.
pub fn run(choice: &Choice, options: &Options) -> Result<()> {
    let Session {
        cards,
        mut output,
        interrupt,
        timeout,
    } = choice.begin("overlap-test")?;
    let mut verdict = Verdict::new("overlap-test");
    for card in &cards {
        let kernels = card.kernels(&output)?;
        let what = match kernels {
            Some(_) => "computing and copying",
            None => "copying both ways",
        };
        let mut overlap = Overlap::new(card, kernels, options.size, timeout)?;
        output.begin(&format!("{what} on {}", card.name()), options.rounds.into());
        overlap.calibrate()?;
        let mut best: Option<Times> = None;
        for _ in 0..options.rounds {
            if interrupt.is_raised() {
                break;
            }
            let times = Times {
                first: overlap.timed(true, false)?,
                second: overlap.timed(false, true)?,
                both: overlap.timed(true, true)?,
            };
            if best.is_none_or(|best| times.both < best.both) {
                best = Some(times);
            }
            for wrong in overlap.wrong()? {
                verdict.wrong();
                output.say(
                    "wrong",
                    &format!("{}: WRONG: {wrong}", card.name()),
                    json!({ "gpu": card.index, "what": wrong }),
                );
            }
            output.step(1);
        }
        let Some(times) = best else { break };
        let [first, second, both] =
            [times.first, times.second, times.both].map(|time| time.as_secs_f64());
        let (first_name, second_name) = overlap.names();
        output.say(
            "overlap",
            &format!(
                "{}: {first_name} alone {:.3} ms, {second_name} alone {:.3} ms ({:.2} GB/s), both at once {:.3} ms: {:.2} times the longer one (1 is full overlap, {:.2} none)",
                card.name(),
                first * 1e3,
                second * 1e3,
                rate(overlap.second_bytes(), second),
                both * 1e3,
                both / first.max(second),
                (first + second) / first.max(second),
            ),
            json!({
                "gpu": card.index,
                "first": first_name,
                "second": second_name,
                "bytes": overlap.second_bytes(),
                "first_ms": first * 1e3,
                "second_ms": second * 1e3,
                "both_ms": both * 1e3,
                "ratio": both / first.max(second),
                "ratio_without_overlap": (first + second) / first.max(second),
            }),
        );
    }
    verdict.end(&mut output, interrupt.is_raised())
}

#[derive(Clone, Copy, Debug)]
struct Times {
    first: Duration,
    second: Duration,
    both: Duration,
}

/// What runs at once: with kernels computing and copies both ways, without them one way and the other.
pub struct Overlap<'a> {
    compute: Option<Compute<'a>>,
    up: Way,
    down: Way,
    lane: &'a Lane,
    timeout: Duration,
}

struct Compute<'a> {
    kernels: &'a Kernels,
    words: Memory,
    reference: Memory,
    steps: u32,
    seed: u32,
}

/// One direction, with a queue of its own.
struct Way {
    queue: SdmaQueue,
    from: Memory,
    to: Memory,
    seed: u32,
}

impl Way {
    fn new(card: &Card, kinds: [Kind; 2], bytes: usize, seed: u32) -> Result<Self> {
        let [from, to] = kinds;
        Ok(Way {
            queue: SdmaQueue::new(&card.gpu, Engine::Any)?,
            from: card.gpu.allocate(bytes, from)?,
            to: card.gpu.allocate(bytes, to)?,
            seed,
        })
    }

    fn begin(&self) -> Result<Ticket> {
        let mut packets = self.queue.packets();
        let (to, from) = (self.to.address(), self.from.address());
        packets
            .acquire()
            .copy(to, from, self.to.len() as u64)
            .release();
        // SAFETY: both memories are as long as the copy, and live as long as the queue, which is dropped first.
        Ok(unsafe { self.queue.submit(&packets) }?)
    }

    /// What did not arrive; what is there is overwritten for the next time.
    fn wrong(&self, lane: &Lane) -> Result<Option<Wrong>> {
        let wrong = lane.check(&self.to, Pattern::Random, self.seed, 0)?;
        lane.fill_value(&self.to, 0, 0, (self.to.len() / WORD) as u64)?;
        Ok(wrong)
    }
}

impl<'a> Overlap<'a> {
    /// Memory and queues for so many bytes.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn new(
        card: &'a Card,
        kernels: Option<&'a Kernels>,
        bytes: u64,
        timeout: Duration,
    ) -> Result<Self> {
        let bytes = usize::try_from(bytes.next_multiple_of(WORD as u64))?;
        let compute = kernels.map(|kernels| -> Result<Compute<'a>> {
            Ok(Compute {
                kernels,
                words: card.gpu.allocate(bytes, Kind::Vram)?,
                reference: card.gpu.allocate(bytes, Kind::Vram)?,
                steps: STEPS,
                seed: 0,
            })
        });
        let overlap = Overlap {
            compute: compute.transpose()?,
            up: Way::new(card, [Kind::Gtt, Kind::Vram], bytes, 1)?,
            down: Way::new(card, [Kind::Vram, Kind::Gtt], bytes, 2)?,
            lane: &card.lane,
            timeout,
        };
        for way in [&overlap.up, &overlap.down] {
            (overlap.lane).fill(&way.from, Pattern::Random, way.seed, 0)?;
        }
        Ok(overlap)
    }

    /// Has computing take about as long as copying, and computes what it is to give, which the host knows in part.
    ///
    /// # Errors
    /// candle-kfd's; [`Error::Other`](crate::Error::Other) if what is computed alone is wrong.
    pub fn calibrate(&mut self) -> Result<()> {
        if self.compute.is_none() {
            return Ok(());
        }
        let copying = self.timed(false, true)?.as_secs_f64();
        let computing = self.timed(true, false)?.as_secs_f64();
        let Some(compute) = &mut self.compute else {
            return Ok(());
        };
        let steps = f64::from(compute.steps) * copying / computing.max(1e-9);
        compute.steps = (steps as u32).clamp(1, MOST_STEPS);
        compute
            .kernels
            .work(&compute.reference, compute.steps, compute.seed)?;
        let sample = SAMPLE.min(compute.reference.len() / WORD);
        let mut is = vec![0; sample * WORD];
        self.lane.fetch(&compute.reference, 0, &mut is)?;
        match is == work_on_host(sample, compute.steps, compute.seed) {
            true => Ok(()),
            false => Err(crate::Error::Other(
                "what the GPU computes alone is wrong already; look at memory-test".to_string(),
            )),
        }
    }

    fn names(&self) -> (&'static str, &'static str) {
        match self.compute {
            Some(_) => ("computing", "copying"),
            None => ("copying to the GPU", "copying to the host"),
        }
    }

    fn second_bytes(&self) -> u64 {
        let one = self.up.to.len() as u64;
        match self.compute {
            Some(_) => 2 * one,
            None => one,
        }
    }

    /// How long one of them, or both at once, take.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn timed(&self, first: bool, second: bool) -> Result<Duration> {
        let start = Instant::now();
        let mut copies = Vec::new();
        match &self.compute {
            Some(_) if second => copies.extend([&self.up, &self.down]),
            Some(_) => {}
            None => {
                copies.extend(first.then_some(&self.up));
                copies.extend(second.then_some(&self.down));
            }
        }
        let mut tickets = Vec::new();
        for way in &copies {
            tickets.push(way.begin()?);
        }
        if let (Some(compute), true) = (&self.compute, first) {
            (compute.kernels).work(&compute.words, compute.steps, compute.seed)?;
        }
        for (way, ticket) in copies.iter().zip(tickets) {
            way.queue.wait(ticket, self.timeout)?;
        }
        Ok(start.elapsed())
    }

    /// What is wrong after both have run, in words.
    ///
    /// # Errors
    /// candle-kfd's.
    pub fn wrong(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for (way, name) in [
            (&self.up, "copied to the GPU"),
            (&self.down, "copied to the host"),
        ] {
            if let Some(wrong) = way.wrong(self.lane)? {
                found.push(format!("{}, {name}: {wrong}", size(way.to.len() as u64)));
            }
        }
        if let Some(compute) = &self.compute {
            let differs = (compute.kernels).compare(&compute.words, &compute.reference)?;
            if let Some(mismatch) = differs {
                let wrong = Wrong::of(&compute.words, 0, mismatch);
                found.push(format!("computed: {wrong}"));
            }
            let words = (compute.words.len() / WORD) as u64;
            self.lane.fill_value(&compute.words, 0, 0, words)?;
        }
        Ok(found)
    }
}
