//! `llm-worker-rocm bench`: how fast prompts are read and answers written.

use super::output::{print_json, print_line};
use super::session::{Session, SessionArgs, Step};
use crate::completion::{Completion, Finish, Output, TextOptions};
use crate::engine::api::{DecodeFigures, EngineOptions, Request, SamplingOptions};
use crate::model::ModelFile;
use clap::Args;
use serde::Serialize;
use std::time::Instant;
use worker::device::BufferMemory;
use worker::progress::count_bar;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Most sequences that run at once.
const MAX_BATCH: usize = 1024;
/// Runs of a test that are not counted: the first compiles kernels and finds new shapes, the second records their graphs.
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

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    model: &'a str,
    architecture: &'a str,
    bytes: u64,
    parameters: u64,
    device: &'a str,
    results: &'a [Measured],
    /// Behind the last test.
    #[serde(skip_serializing_if = "Option::is_none")]
    buffer_bytes: Option<BufferMemory>,
}

/// A test's result.
#[derive(Debug, Clone, Serialize)]
struct Measured {
    test: String,
    batch: usize,
    n_prompt: usize,
    n_gen: usize,
    /// Tokens per second, all sequences together: mean, standard deviation, and each run's.
    tokens_per_second: f64,
    deviation: f64,
    samples: Vec<f64>,
    /// Of a test that generates, on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    decode: Option<HostCost>,
}

/// What a step of one new token for each sequence costs the host, on average.
#[derive(Debug, Clone, Serialize)]
struct HostCost {
    /// Time until the device has its work.
    enqueue_microseconds: f64,
    /// A graph counts as one.
    launches: f64,
    /// Part of the steps that were enqueued as a graph.
    graphs: f64,
}

impl HostCost {
    /// Nothing if nothing was launched: the host computes itself.
    fn new(figures: DecodeFigures) -> Option<Self> {
        let steps = figures.steps as f64;
        (figures.launches > 0).then(|| Self {
            enqueue_microseconds: figures.enqueue.as_secs_f64() * 1e6 / steps,
            launches: figures.launches as f64 / steps,
            graphs: figures.graphs as f64 / steps,
        })
    }
}

impl Measured {
    fn new(test: Test, samples: Vec<f64>, figures: DecodeFigures) -> Self {
        let count = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|s| (s - mean).powi(2)).sum();
        let (n_prompt, n_gen) = match test.kind {
            Kind::Prompt => (test.tokens, 0),
            Kind::Generate => (0, test.tokens),
        };
        Self {
            test: test.name(),
            batch: test.batch,
            tokens_per_second: mean,
            deviation: (squares / (count - 1.0).max(1.0)).sqrt(),
            n_prompt,
            n_gen,
            samples,
            decode: match test.kind {
                Kind::Prompt => None,
                Kind::Generate => HostCost::new(figures),
            },
        }
    }
}

impl BenchArgs {
    pub(super) fn run(self) -> Result<()> {
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
            let mut before = DecodeFigures::default();
            for run in 0..WARM_UPS + self.repetitions {
                if run == WARM_UPS {
                    before = session.engine.status().decode;
                }
                let rate = measure(&session, &interrupt, test)?;
                bar.inc(1);
                if run >= WARM_UPS {
                    samples.push(rate);
                }
            }
            let figures = session.engine.status().decode - before;
            results.push(Measured::new(test, samples, figures));
        }
        bar.finish_and_clear();
        if self.json {
            print_json(&Report {
                model: &model.name,
                device: &session.selected.description,
                architecture: &model.architecture,
                results: &results,
                buffer_bytes: session.engine.status().buffers,
                bytes: model.bytes,
                parameters: model.parameters,
            })
        } else {
            print_table(
                &model.name,
                model.bytes,
                model.parameters,
                &session.selected.description,
                &results,
            )
        }
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

fn print_table(
    name: &str,
    bytes: u64,
    parameters: u64,
    device: &str,
    results: &[Measured],
) -> Result<()> {
    print_line(&format!(
        "{name}: {:.2} GiB, {:.2} B parameters; {device}",
        bytes as f64 / f64::from(1u32 << 30),
        parameters as f64 / 1e9
    ))?;
    let mut columns = vec![
        Column::new("test", results.iter().map(|r| r.test.clone())),
        Column::new(
            "tokens/s",
            results
                .iter()
                .map(|r| format!("{:.2} ± {:.2}", r.tokens_per_second, r.deviation)),
        ),
    ];
    if results.iter().any(|r| r.decode.is_some()) {
        let cells = |cell: fn(&HostCost) -> String| {
            results
                .iter()
                .map(move |r| r.decode.as_ref().map(cell).unwrap_or_default())
        };
        columns.extend([
            Column::new(
                "enqueue µs/step",
                cells(|cost| format!("{:.1}", cost.enqueue_microseconds)),
            ),
            Column::new(
                "launches/step",
                cells(|cost| format!("{:.1}", cost.launches)),
            ),
            Column::new(
                "graphs",
                cells(|cost| format!("{:.0} %", 100.0 * cost.graphs)),
            ),
        ]);
    }
    for line in 0..results.len() + 2 {
        let cells: Vec<String> = columns
            .iter()
            .enumerate()
            .map(|(i, column)| column.line(line, i > 0))
            .collect();
        print_line(&format!("|{}|", cells.join("|")))?;
    }
    Ok(())
}

/// A column of a table, its title first.
struct Column {
    cells: Vec<String>,
    width: usize,
}

impl Column {
    fn new(title: &str, cells: impl Iterator<Item = String>) -> Self {
        let cells: Vec<String> = std::iter::once(title.to_string()).chain(cells).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max();
        Self {
            width: width.unwrap_or(0),
            cells,
        }
    }

    /// A cell of the title's line, the rule's, or a result's.
    fn line(&self, line: usize, right: bool) -> String {
        let Self { cells, width } = self;
        match (line, right) {
            (1, true) => format!("-{:->width$}:", ""),
            (1, false) => format!("-{:->width$}-", ""),
            (0, true) => format!(" {:>width$} ", cells[0]),
            (0, false) => format!(" {:<width$} ", cells[0]),
            (_, true) => format!(" {:>width$} ", cells[line - 1]),
            (_, false) => format!(" {:<width$} ", cells[line - 1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_deviations() {
        let test = Test {
            kind: Kind::Generate,
            tokens: 8,
            batch: 2,
        };
        let figures = DecodeFigures {
            steps: 4,
            graphs: 3,
            launches: 20,
            enqueue: std::time::Duration::from_micros(10),
        };
        let measured = Measured::new(test, vec![1.0, 2.0, 3.0], figures);
        assert_eq!((measured.tokens_per_second, measured.deviation), (2.0, 1.0));
        assert_eq!(measured.test, "tg8 x 2");
        let cost = measured.decode.unwrap();
        assert_eq!(
            (cost.enqueue_microseconds, cost.launches, cost.graphs),
            (2.5, 5.0, 0.75)
        );
        let on_the_host = Measured::new(test, vec![4.0], DecodeFigures::default());
        assert!(on_the_host.deviation == 0.0 && on_the_host.decode.is_none());
    }

    #[test]
    fn prompts_are_the_same_everywhere() {
        assert_eq!(scattered(0, 49152), scattered(0, 49152));
        assert!((0..1000).all(|i| scattered(i, 33) < 33));
        assert!((0..1000).any(|i| scattered(i, 33) == 32));
    }
}
