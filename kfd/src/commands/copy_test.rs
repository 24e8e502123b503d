//! `kfd copy-test`: copies between host and GPUs, within them, and between all pairs.

use super::{By, Verdict};
use crate::cli::bytes;
use crate::kernels::Kernels;
use crate::lane::Lane;
use crate::output::{rate, size, Output};
use crate::session::{Card, Choice, Session};
use crate::Result;
use candle_kfd::sdma::{Engine, SdmaQueue};
use candle_kfd::{Kind, Memory};
use clap::Args;
use gpu_topology::LinkKind;
use memory_pattern::{Pattern, WORD};
use serde_json::json;
use std::time::{Duration, Instant};

/// Bytes before and after what is copied, which must stay as they are.
const GUARD: u64 = 4096;
/// What they hold.
const GUARDED: u32 = 0xa5c3_3c5a;
/// Sizes that are copied, up to the largest that was asked for; an odd one first.
const SIZES: [u64; 8] = [
    13,
    4,
    4 << 10,
    64 << 10,
    1 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
];
/// Where the odd one begins, beyond the guard.
const ODD: u64 = 3;
/// Bytes that are copied for a measurement, and how often at most.
const MEASURED: u64 = 256 << 20;
const MOST_REPEATS: u64 = 32;
/// Measurements of which the best counts.
const TIMED: usize = 3;

/// What is copied, and how.
#[derive(Args, Debug)]
pub struct Options {
    /// The largest copy: 64K, 16M.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = bytes)]
    max: u64,

    /// Who copies: kernels on the GPU, or SDMA.
    #[arg(long, value_enum, default_value_t = By::Both)]
    by: By,

    /// Only whether copies are right.
    #[arg(long)]
    no_speed: bool,
}

/// Copies on all routes of the GPUs that were asked for.
///
/// # Errors
/// candle-kfd's; [`Error::Wrong`](crate::Error::Wrong) if bytes were.
pub fn run(choice: &Choice, options: &Options) -> Result<()> {
    let Session {
        cards,
        mut output,
        interrupt,
        timeout,
    } = choice.begin("copy-test")?;
    let mut verdict = Verdict::new("copy-test");
    let sizes: Vec<u64> = SIZES
        .into_iter()
        .filter(|&size| size <= options.max)
        .collect();
    let routes: Vec<Route> = routes(cards.len()).collect();
    output.begin("copies", (routes.len() * sizes.len()) as u64);
    'routes: for route in routes {
        let place = match Place::new(&cards, route, &sizes, timeout) {
            Ok(place) => place,
            // A GPU without a way to another is no fault.
            Err(crate::Error::Kfd(error)) if route.is_peer() && is_unreachable(&error) => {
                skip(&output, &cards, route, &error);
                output.step(sizes.len() as u64);
                continue;
            }
            Err(error) => return Err(error),
        };
        let card = &cards[route.owner()];
        let kernels = options.by.kernels(card, &output)?;
        let sdma = (options.by != By::Kernels).then_some(By::Sdma);
        let ways = [kernels.is_some().then_some(By::Kernels), sdma];
        for &bytes in &sizes {
            for by in ways.into_iter().flatten() {
                if interrupt.is_raised() {
                    break 'routes;
                }
                // Kernels copy words.
                let kernels = kernels.filter(|_| by == By::Kernels);
                if kernels.is_some() && !bytes.is_multiple_of(WORD as u64) {
                    continue;
                }
                let mut wrong = place.copied_wrongly(kernels, bytes)?;
                let mut speed = None;
                if !options.no_speed {
                    speed = Some(place.speed(kernels, bytes)?);
                    wrong = wrong.or(place.look(bytes)?);
                }
                tell(&output, &cards, route, by, bytes, &wrong, speed);
                if wrong.is_some() {
                    verdict.wrong();
                }
            }
            output.step(1);
        }
    }
    verdict.end(&mut output, interrupt.is_raised())
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Up(usize),
    Down(usize),
    Within(usize),
    Peer { from: usize, to: usize },
}

/// All routes of so many GPUs.
fn routes(cards: usize) -> impl Iterator<Item = Route> {
    let own = (0..cards).flat_map(|i| [Route::Up(i), Route::Down(i), Route::Within(i)]);
    let pairs = (0..cards).flat_map(move |from| (0..cards).map(move |to| (from, to)));
    let peers = pairs
        .filter(|(from, to)| from != to)
        .map(|(from, to)| Route::Peer { from, to });
    own.chain(peers)
}

impl Route {
    /// Whose engine copies: the one that has what is copied.
    fn owner(self) -> usize {
        match self {
            Route::Up(card) | Route::Down(card) | Route::Within(card) => card,
            Route::Peer { from, .. } => from,
        }
    }

    fn is_peer(self) -> bool {
        matches!(self, Route::Peer { .. })
    }

    fn text(self, cards: &[Card]) -> String {
        match self {
            Route::Up(card) => format!("host to {}", cards[card].name()),
            Route::Down(card) => format!("{} to host", cards[card].name()),
            Route::Within(card) => format!("within {}", cards[card].name()),
            Route::Peer { from, to } => {
                format!("{} to {}", cards[from].name(), cards[to].name())
            }
        }
    }

    fn ends(self, cards: &[Card]) -> [Option<usize>; 2] {
        let (from, to) = match self {
            Route::Up(card) => (None, Some(card)),
            Route::Down(card) => (Some(card), None),
            Route::Within(card) => (Some(card), Some(card)),
            Route::Peer { from, to } => (Some(from), Some(to)),
        };
        [from, to].map(|end| end.map(|card| cards[card].index))
    }
}

/// Whether a GPU does not reach the other's memory.
fn is_unreachable(error: &candle_kfd::Error) -> bool {
    matches!(error, candle_kfd::Error::Peers { .. })
}

fn skip(output: &Output, cards: &[Card], route: Route, error: &candle_kfd::Error) {
    let [from, to] = route.ends(cards);
    output.say(
        "skipped",
        &format!("{}: left out: {error}", route.text(cards)),
        json!({ "from": from, "to": to, "why": error.to_string() }),
    );
}

fn tell(
    output: &Output,
    cards: &[Card],
    route: Route,
    by: By,
    bytes: u64,
    wrong: &Option<WrongByte>,
    speed: Option<f64>,
) {
    let [from, to] = route.ends(cards);
    let by = match by {
        By::Kernels => "kernels",
        By::Sdma | By::Both => "SDMA",
    };
    let mut text = format!("{}, by {by}, {}: ", route.text(cards), size(bytes));
    match wrong {
        None => text.push_str("right"),
        Some(wrong) => text.push_str(&format!("WRONG: {wrong}")),
    }
    if let Some(speed) = speed {
        text.push_str(&format!(", {speed:.2} GB/s"));
    }
    let found = wrong.as_ref().map(|wrong| {
        json!({
            "offset": wrong.offset,
            "address": wrong.address,
            "bytes": wrong.bytes,
            "is": wrong.is,
            "should_be": wrong.should_be,
            "in_copy": wrong.in_copy,
        })
    });
    output.say(
        "copy",
        &text,
        json!({
            "from": from,
            "to": to,
            "by": by,
            "bytes": bytes,
            "gb_per_second": speed,
            "wrong": found,
        }),
    );
}

/// The first byte that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WrongByte {
    /// From where the copy goes to; negative before it.
    offset: i64,
    address: u64,
    /// How many differ.
    bytes: u64,
    is: u8,
    should_be: u8,
    /// Whether it was to be copied, or not to be touched.
    in_copy: bool,
}

impl std::fmt::Display for WrongByte {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match self.in_copy {
            true => "of the copy",
            false => "from the copy on, which was not to be touched",
        };
        write!(
            f,
            "{} bytes differ, the first is byte {} {place} (address {:#x}): {:#04x} instead of {:#04x}",
            self.bytes, self.offset, self.address, self.is, self.should_be
        )
    }
}

/// Memory at both ends of a route.
struct Place<'a> {
    /// Copies on the route, if that is not the lane's business.
    over_xgmi: Option<SdmaQueue>,
    near: &'a Lane,
    /// Fetches what arrived.
    far: &'a Lane,
    from: Memory,
    to: Memory,
    sent: Vec<u8>,
    timeout: Duration,
}

impl<'a> Place<'a> {
    fn new(cards: &'a [Card], route: Route, sizes: &[u64], timeout: Duration) -> Result<Self> {
        // Guards and all, in whole words.
        let ends = sizes.iter().map(|&bytes| {
            let (from, to) = offsets(bytes);
            from.max(to) + bytes + GUARD
        });
        let largest = ends.max().unwrap_or(2 * GUARD);
        let bytes = usize::try_from(largest.next_multiple_of(WORD as u64))?;
        let owner = &cards[route.owner()];
        let far = match route {
            Route::Peer { to, .. } => &cards[to],
            _ => owner,
        };
        let (from, to) = match route {
            Route::Up(_) => (Kind::Gtt, Kind::Vram),
            Route::Down(_) => (Kind::Vram, Kind::Gtt),
            Route::Within(_) | Route::Peer { .. } => (Kind::Vram, Kind::Vram),
        };
        let from = owner.gpu.allocate(bytes, from)?;
        let to = far.gpu.allocate(bytes, to)?;
        if route.is_peer() {
            to.map_to(std::slice::from_ref(&owner.gpu))?;
        }
        let link = (owner.gpu.node().links.iter())
            .find(|link| link.gpu.as_ref() == Some(&far.gpu.node().pci_id));
        let is_xgmi = link.is_some_and(|link| link.kind == LinkKind::Xgmi);
        let has_engine = is_xgmi && owner.gpu.node().sdma_xgmi_engines > 0;
        let over_xgmi = has_engine.then(|| SdmaQueue::new(&owner.gpu, Engine::Xgmi));
        let mut sent = vec![0; bytes];
        Pattern::Random.fill(bytes as u32, 0, &mut sent);
        owner.lane.send(&sent, &from, 0)?;
        Ok(Place {
            over_xgmi: over_xgmi.transpose()?,
            near: &owner.lane,
            far: &far.lane,
            from,
            to,
            sent,
            timeout,
        })
    }

    fn queue(&self) -> &SdmaQueue {
        self.over_xgmi.as_ref().unwrap_or(&self.near.queue)
    }

    /// Copies once, and looks at what arrived and at what is around it.
    fn copied_wrongly(&self, kernels: Option<&Kernels>, bytes: u64) -> Result<Option<WrongByte>> {
        let (from, to) = offsets(bytes);
        // Guards, and what the copy is to replace.
        let words = (to + bytes + GUARD) / WORD as u64;
        self.far.fill_value(&self.to, 0, GUARDED, words)?;
        match kernels {
            Some(kernels) => kernels.copy((&self.to, to), (&self.from, from), bytes)?,
            None => (self.queue()).copy((&self.to, to), (&self.from, from), bytes, self.timeout)?,
        }
        self.look(bytes)
    }

    /// Looks at what is there after a copy and around it.
    fn look(&self, bytes: u64) -> Result<Option<WrongByte>> {
        let (from, to) = offsets(bytes);
        let words = (to + bytes + GUARD) / WORD as u64;
        let mut arrived = vec![0; usize::try_from(words)? * WORD];
        self.far.fetch(&self.to, 0, &mut arrived)?;
        let copied = to as usize..(to + bytes) as usize;
        let guarded = GUARDED.to_le_bytes();
        let mut first = None;
        let mut differing = 0;
        for (at, &is) in arrived.iter().enumerate() {
            let in_copy = copied.contains(&at);
            let should_be = match in_copy {
                true => self.sent[at - to as usize + from as usize],
                false => guarded[at % WORD],
            };
            if is != should_be {
                differing += 1;
                first.get_or_insert(WrongByte {
                    offset: at as i64 - to as i64,
                    address: self.to.address() + at as u64,
                    bytes: 0,
                    is,
                    should_be,
                    in_copy,
                });
            }
        }
        Ok(first.map(|first| WrongByte {
            bytes: differing,
            ..first
        }))
    }

    /// How fast copies are, one after the other, in GB/s: the best of some times.
    fn speed(&self, kernels: Option<&Kernels>, bytes: u64) -> Result<f64> {
        let (from, to) = offsets(bytes);
        let repeats = (MEASURED / bytes).clamp(1, MOST_REPEATS);
        let mut best = Duration::MAX;
        for _ in 0..TIMED {
            let start = Instant::now();
            match kernels {
                Some(kernels) => {
                    for _ in 0..repeats {
                        kernels.copy((&self.to, to), (&self.from, from), bytes)?;
                    }
                }
                None => {
                    let to = self.to.range(to, bytes)?;
                    let from = self.from.range(from, bytes)?;
                    let mut packets = self.queue().packets();
                    packets.acquire();
                    for _ in 0..repeats {
                        packets.copy(to, from, bytes);
                    }
                    packets.release();
                    // SAFETY: both ranges lie in memory of this place, which outlives the call.
                    unsafe { self.queue().run(&packets, self.timeout) }?;
                }
            }
            best = best.min(start.elapsed());
        }
        Ok(rate(bytes * repeats, best.as_secs_f64()))
    }
}

/// Where a copy begins at both ends: sizes that are no whole words begin at odd places.
fn offsets(bytes: u64) -> (u64, u64) {
    match bytes % WORD as u64 {
        0 => (GUARD, GUARD),
        _ => (GUARD + ODD + 2, GUARD + ODD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pairs_are_routes() {
        assert_eq!(
            routes(1).collect::<Vec<_>>(),
            [Route::Up(0), Route::Down(0), Route::Within(0)]
        );
        let three: Vec<Route> = routes(3).collect();
        assert_eq!(three.len(), 9 + 6);
        assert!(three.contains(&Route::Peer { from: 2, to: 0 }));
    }
}
