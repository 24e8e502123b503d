//! `llm-worker-rocm bench`: how fast prompts are read and answers written.

mod report;

use super::session::{Session, SessionArgs, Step};
use crate::completion::{Completion, Finish, Output, TextOptions};
use crate::engine::api::{EngineOptions, Request, SamplingOptions, Status};
use crate::model::ModelFile;
use clap::Args;
use report::{Measured, Report};
use std::time::Instant;
use worker::progress::count_bar;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Most sequences that run at once.
const MAX_BATCH: usize = 1024;
/// Runs of a test that are not counted: the first compiles kernels and finds new shapes, the second records their
/// graphs.
const WARM_UPS: usize = 2;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    session: SessionArgs,

    /// Lengths of prompts to read, in tokens, separated by commas; 0 is none.
    #[arg(
        long,
        short = 'p',
        value_delimiter = ',',
        default_value = "512",
        value_name = "N,…"
    )]
    n_prompt: Vec<usize>,

    /// Numbers of tokens to generate, separated by commas; 0 is none.
    #[arg(
        long,
        short = 'g',
        value_delimiter = ',',
        default_value = "128",
        value_name = "N,…"
    )]
    n_gen: Vec<usize>,

    /// How many sequences run at once, separated by commas.
    #[arg(
        long,
        short = 'b',
        value_delimiter = ',',
        default_value = "1",
        value_name = "N,…"
    )]
    batch: Vec<usize>,

    /// How often each test runs, after two runs that are not counted.
    #[arg(long, short = 'r', default_value_t = 5, value_name = "N")]
    repetitions: usize,

    /// Most tokens of a step: what prompts are cut into.
    #[arg(long, default_value_t = 512, value_name = "N")]
    step_tokens: usize,

    /// Print JSON: one object with a list of results.
    #[arg(long)]
    json: bool,
}

/// A thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Test {
    kind: Kind,
    tokens: usize,
    batch: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Prompt processing.
    Prompt,
    /// Token generation.
    Generate,
}

impl Test {
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Prompt => "pp",
            Kind::Generate => "tg",
        };
        match self.batch {
            1 => format!("{kind}{}", self.tokens),
            batch => format!("{kind}{} x {batch}", self.tokens),
        }
    }

    /// Prompt length and tokens to generate, for each sequence.
    fn lengths(&self) -> (usize, usize) {
        match self.kind {
            Kind::Prompt => (self.tokens, 1),
            // The first token belongs to the prompt.
            Kind::Generate => (1, self.tokens + 1),
        }
    }
}

impl BenchArgs {
    pub(super) fn run(self) -> Result<()> {
        if self.session.follow("bench")? {
            return Ok(());
        }
        let tests = self.tests()?;
        let path = self.session.source.resolve()?;
        let file = ModelFile::open(&path)?;
        let model = file.describe()?;

        let longest = tests
            .iter()
            .map(|test| test.lengths())
            .map(|(p, g)| p + g)
            .max();
        let most = tests.iter().map(|test| test.batch).max().unwrap_or(1);
        let session = self.session.start(
            "bench",
            file,
            EngineOptions {
                context: longest.map(|n| n + 1),
                max_sequences: most,
                max_step_tokens: self.step_tokens,
                max_waiting: most,
                // Every run computes everything.
                prefix_cache: false,
                ..EngineOptions::default()
            },
        )?;
        let interrupt = Interrupt::install()?;
        let bar = count_bar(
            "measuring",
            (tests.len() * (WARM_UPS + self.repetitions)) as u64,
            "runs",
        );
        let mut results = Vec::new();
        for test in tests {
            let mut samples = Vec::new();
            let mut before = Status::default();
            for run in 0..WARM_UPS + self.repetitions {
                if run == WARM_UPS {
                    before = session.engine.status();
                }
                let rate = measure(&session, &interrupt, test)?;
                bar.inc(1);
                if run >= WARM_UPS {
                    samples.push(rate);
                }
            }
            let status = session.engine.status();
            let (decode, drafts) = (status.decode - before.decode, status.drafts - before.drafts);
            results.push(Measured::new(test, samples, decode, drafts));
        }
        bar.finish_and_clear();
        let report = Report {
            model: &model.name,
            architecture: &model.architecture,
            bytes: model.bytes,
            parameters: model.parameters,
            device: &session.selected.description,
            split: session.split.as_ref(),
            results: &results,
            buffer_bytes: session.engine.status().buffers,
        };
        report.print(self.json)
    }

    fn tests(&self) -> Result<Vec<Test>> {
        if self.repetitions == 0 || self.step_tokens == 0 {
            return Err(Error::Usage(
                "--repetitions and --step-tokens must be above 0".to_string(),
            ));
        }
        if self.batch.iter().any(|&n| n == 0 || n > MAX_BATCH) {
            return Err(Error::Usage(format!("--batch takes 1 to {MAX_BATCH}")));
        }
        let mut tests = Vec::new();
        for &batch in &self.batch {
            let kinds = [
                (Kind::Prompt, &self.n_prompt),
                (Kind::Generate, &self.n_gen),
            ];
            for (kind, lengths) in kinds {
                let lengths = lengths.iter().filter(|&&tokens| tokens > 0);
                tests.extend(lengths.map(|&tokens| Test {
                    kind,
                    tokens,
                    batch,
                }));
            }
        }
        match tests.is_empty() {
            true => Err(Error::Usage(
                "there is nothing to measure: --n-prompt and --n-gen are 0".to_string(),
            )),
            false => Ok(tests),
        }
    }
}

/// Runs a test once and gives its tokens per second.
fn measure(session: &Session, interrupt: &Interrupt, test: Test) -> Result<f64> {
    let (prompt, generate) = test.lengths();
    let vocabulary = session.tokenizer.vocab_size() as u64;
    let request = |sequence: usize| Request {
        max_tokens: Some(generate),
        ignore_end: true,
        ..Request::new(
            (0..prompt)
                .map(|i| scattered((sequence * prompt + i) as u64, vocabulary))
                .collect(),
            SamplingOptions::greedy(),
        )
    };
    let start = Instant::now();
    let mut completions = (0..test.batch)
        .map(|sequence| session.submit(request(sequence), TextOptions::default()))
        .collect::<Result<Vec<Completion>>>()?;
    let mut finished: Vec<Finish> = Vec::new();
    for completion in &mut completions {
        finished.push(end_of(session, interrupt, completion)?);
    }
    let seconds = match test.kind {
        Kind::Prompt => start.elapsed().as_secs_f64(),
        // From the first token to the last, of the sequence that took longest.
        Kind::Generate => finished
            .iter()
            .map(|finish| finish.timings.decode.as_secs_f64())
            .fold(0.0, f64::max),
    };
    Ok((test.tokens * test.batch) as f64 / seconds.max(1e-9))
}

fn end_of(session: &Session, interrupt: &Interrupt, completion: &mut Completion) -> Result<Finish> {
    loop {
        match session.wait(completion, interrupt)? {
            Step::Output(Output::Finished(finish)) => return Ok(finish),
            Step::Output(_) => {}
            Step::Interrupted => return Err(Error::Runtime("interrupted".to_string())),
        }
    }
}

/// A token that depends on its place only: the same work in every run and on every machine.
fn scattered(place: u64, vocabulary: u64) -> u32 {
    let mixed = (place + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    (mixed % vocabulary.max(1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_the_same_everywhere() {
        assert_eq!(scattered(0, 49152), scattered(0, 49152));
        assert!((0..1000).all(|i| scattered(i, 33) < 33));
        assert!((0..1000).any(|i| scattered(i, 33) == 32));
    }
}
