//! `kfd soak`: a mixture for as long as the user likes.

mod peers;
mod sdma;
mod timeline;

use super::overlap_test::Overlap;
use super::Verdict;
use crate::random::Random;
use crate::session::{Card, Choice, Session};
use crate::Result;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::time::{Duration, Instant};

/// Bytes that a scenario works on.
const BYTES: u64 = 4 << 20;
/// How often is told how it goes.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What is done, and for how long.
#[derive(Args, Debug)]
pub struct Options {
    /// For how long; Ctrl-C ends it sooner.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,

    /// Where the random numbers begin: the same seed does the same again.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Only these scenarios, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCENARIO,…")]
    only: Vec<Scenario>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// SDMA stress: copies and fills of random sizes and places within a GPU, compared with the host's own.
    Sdma,
    /// Computing and copying at once.
    Overlap,
    /// Queues that wait for values which the others write.
    Timeline,
    /// Copies between random pairs of GPUs.
    Peers,
}

impl Scenario {
    fn name(self) -> &'static str {
        match self {
            Scenario::Sdma => "SDMA stress",
            Scenario::Overlap => "compute/copy overlap",
            Scenario::Timeline => "timeline semaphores",
            Scenario::Peers => "multi-GPU",
        }
    }
}

/// One scenario on one GPU, or on all.
trait Rounds {
    /// Does a round; what is wrong, in words.
    fn round(&mut self, random: &mut Random) -> Result<Option<String>>;
}

/// A scenario that takes its turns.
struct Turn<'a> {
    scenario: Scenario,
    /// On which GPU; none means all.
    card: Option<&'a Card>,
    rounds: Box<dyn Rounds + 'a>,
    /// Rounds that were done.
    count: u64,
}

impl<'a> Turn<'a> {
    fn new(scenario: Scenario, card: Option<&'a Card>, rounds: impl Rounds + 'a) -> Self {
        Turn {
            scenario,
            card,
            rounds: Box::new(rounds),
            count: 0,
        }
    }

    fn place(&self) -> String {
        self.card.map_or_else(|| "all GPUs".to_string(), Card::name)
    }
}

/// Runs the scenarios in turn until time is up.
///
/// # Errors
/// candle-kfd's; [`Error::Wrong`](crate::Error::Wrong) if anything was.
pub fn run(choice: &Choice, options: &Options) -> Result<()> {
    let Session {
        cards,
        mut output,
        interrupt,
        timeout,
    } = choice.begin("soak")?;
    let wanted = |scenario| options.only.is_empty() || options.only.contains(&scenario);
    let mut turns = Vec::new();
    for card in &cards {
        if wanted(Scenario::Sdma) {
            let rounds = sdma::Stress::new(card, BYTES)?;
            turns.push(Turn::new(Scenario::Sdma, Some(card), rounds));
        }
        if wanted(Scenario::Overlap) {
            let kernels = card.kernels(&output)?;
            let mut overlap = Overlap::new(card, kernels, BYTES, timeout)?;
            overlap.calibrate()?;
            turns.push(Turn::new(Scenario::Overlap, Some(card), overlap));
        }
        if wanted(Scenario::Timeline) {
            let rounds = timeline::Chain::new(card, timeout)?;
            turns.push(Turn::new(Scenario::Timeline, Some(card), rounds));
        }
    }
    if wanted(Scenario::Peers) && cards.len() > 1 {
        let rounds = peers::Pairs::new(&cards, BYTES, timeout)?;
        turns.push(Turn::new(Scenario::Peers, None, rounds));
    } else if options.only.contains(&Scenario::Peers) {
        return Err(crate::Error::Usage(
            "--only peers needs two GPUs".to_string(),
        ));
    }
    let mut verdict = Verdict::new("soak");
    let mut random = Random::new(options.seed);
    let end = Duration::from_secs(options.seconds);
    let start = Instant::now();
    let mut told = Duration::ZERO;
    output.begin("soak", options.seconds);
    let mut stepped = 0;
    while start.elapsed() < end && !interrupt.is_raised() {
        for turn in &mut turns {
            let wrong = turn.rounds.round(&mut random)?;
            turn.count += 1;
            if let Some(wrong) = wrong {
                verdict.wrong();
                let (place, count) = (turn.place(), turn.count);
                output.say(
                    "wrong",
                    &format!(
                        "{place}, {}, round {count}: WRONG: {wrong}",
                        turn.scenario.name()
                    ),
                    json!({
                        "gpu": turn.card.map(|card| card.index),
                        "scenario": turn.scenario.name(),
                        "round": count,
                        "seed": options.seed,
                        "what": wrong,
                    }),
                );
            }
        }
        let now = start.elapsed();
        output.step(now.as_secs().min(options.seconds) - stepped);
        stepped = now.as_secs().min(options.seconds);
        if now - told >= TELL_EVERY {
            told = now;
            output.note(&format!("{} s", now.as_secs()));
        }
    }
    output.end();
    for turn in &turns {
        let (place, count) = (turn.place(), turn.count);
        output.say(
            "rounds",
            &format!("{place}, {}: {count} rounds", turn.scenario.name()),
            json!({
                "gpu": turn.card.map(|card| card.index),
                "scenario": turn.scenario.name(),
                "rounds": count,
            }),
        );
    }
    verdict.end(&mut output, interrupt.is_raised())
}

impl Rounds for Overlap<'_> {
    fn round(&mut self, _: &mut Random) -> Result<Option<String>> {
        self.timed(true, true)?;
        let wrong = self.wrong()?;
        Ok((!wrong.is_empty()).then(|| wrong.join("; ")))
    }
}
