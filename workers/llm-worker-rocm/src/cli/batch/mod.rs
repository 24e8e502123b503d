//! `llm-worker-rocm batch`.

mod show;
mod state;

use super::serve::{seconds, ModelArgs, Service};
use super::source::SourceArgs;
use crate::batch::ask::{Ask, Own, Remote, Trouble};
use crate::batch::feed::{self, Feed, Window};
use crate::batch::figures::Figures;
use crate::batch::input::{Fingerprint, Lines};
use crate::batch::journal::{self, Journal, Known, Sink};
use crate::batch::outcome::{About, Entry};
use crate::batch::run::{Course, End, Run};
use crate::engine::EngineOptions;
use crate::server::App;
use clap::{Arg, Args};
use show::{Show, Summary};
use state::State;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::{mpsc, watch};
use worker::cli::log::tell;
use worker::cli::output::print_json;
use worker::http::listen::termination;
use worker::http::Caller;
use worker::progress::byte_bar;
use worker::serve::{Identity, Inside};
use worker::{Error, Result};

/// Most requests that are computed at once on a GPU, unless told otherwise: nobody waits for one of them, and weights
/// are read once for all.
const GPU_PARALLEL: usize = 64;
/// Requests at once that are computed one after the other: the next one is ready when one has ended.
const UNQUEUED: usize = 16;
/// Requests at once for a server, unless told otherwise.
const REMOTE_CONCURRENCY: usize = 16;
/// Most requests at once.
const MAX_CONCURRENCY: usize = 4096;
/// Prompts that the engine's queue takes: the number of requests has its own limit.
const QUEUE: usize = 1 << 20;
/// Outcomes between the requests and the file.
const OUTCOMES: usize = 256;
/// Threads that run handlers; the engine has its own.
const THREADS: usize = 4;
/// Bytes that are read of the input at once.
const READ_BYTES: usize = 1 << 20;
/// Exit code after a signal.
const EXIT_INTERRUPTED: u8 = 130;

/// Arguments of `batch`.
#[derive(Debug, Args)]
#[command(mut_args(beside_url))]
pub struct BatchArgs {
    /// Requests, one a line: {"custom_id", "method": "POST", "url": "/v1/chat/completions", "body": {…}}; `-` reads
    /// standard input.
    #[arg(value_name = "IN.JSONL")]
    input: PathBuf,

    /// Where results go, one a line, in any order; a file that is there already is gone on with. `-` writes to standard
    /// output.
    #[arg(long, short, value_name = "OUT.JSONL")]
    output: PathBuf,

    /// Ask this server in place of a model of one's own: http://HOST:PORT.
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// The key for that server.
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// Requests at once; if absent, twice as many as are computed at once, or 16 with --url.
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,

    /// How often a request is tried again that was refused with 429 or 503, or found no server; with growing pauses, or
    /// after the time that the server names.
    #[arg(long, default_value_t = 10, value_name = "N")]
    retries: u32,

    /// Ask those again whose results are errors.
    #[arg(long)]
    retry_errors: bool,

    /// Go on with an output whose input or model was another; results that are there stay.
    #[arg(long)]
    force: bool,

    /// Seconds that a request may take; 0 is no limit.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    timeout: u64,

    /// Longest line in bytes; longer ones are errors.
    #[arg(long, default_value_t = 16 << 20, value_name = "N")]
    max_line_bytes: usize,

    /// Print one JSON object at the end.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    source: SourceArgs,

    #[command(flatten)]
    model: ModelArgs,
}

/// The arguments that go with `--url`.
const WITH_URL: [&str; 10] = [
    "input",
    "output",
    "url",
    "api_key",
    "concurrency",
    "retries",
    "retry_errors",
    "force",
    "max_line_bytes",
    "json",
];

/// A server elsewhere has its own model, and whatever is said of one here would count for nothing.
fn beside_url(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "model" => arg
            .required(false)
            .default_value("")
            .hide_default_value(true)
            .conflicts_with("url"),
        id if WITH_URL.contains(&id) => arg,
        _ => arg.conflicts_with("url"),
    }
}

/// What a run is to do.
struct Work {
    asker: Arc<dyn Ask>,
    concurrency: usize,
    sink: Sink,
    known: Known,
    figures: Arc<Figures>,
    /// Lines of the input, if that is known.
    lines: Option<u64>,
}

impl BatchArgs {
    pub(super) fn run(self) -> Result<()> {
        let to_stdout = self.output == Path::new("-");
        if to_stdout && (self.json || self.retry_errors || self.force) {
            return Err(Error::Usage(
                "-o - leaves standard output to the results, and nothing that could be gone on with: give a file for \
                 --json, --retry-errors and --force"
                    .to_string(),
            ));
        }
        if self.url.is_none() && self.source.is_unnamed() {
            return Err(Error::Usage(
                "who is to answer? Give --model, or --url for a server".to_string(),
            ));
        }
        if self.url.is_none() && self.api_key.is_some() {
            let reason = "--api-key is for the server that --url names";
            return Err(Error::Usage(reason.to_string()));
        }
        if self.url.is_none() && self.model.follows()? {
            let placement = self.model.open_devices()?;
            return (self.model).follow("batch", &self.source, &placement.selected, || {});
        }
        let wanted = self.wanted_concurrency()?;
        let at_server = wanted.unwrap_or(REMOTE_CONCURRENCY);
        let remote = match &self.url {
            Some(url) => Some(Remote::new(url, self.api_key.clone(), at_server)?),
            None => None,
        };
        let input = self.fingerprint()?;
        let figures = Arc::new(Figures::default());
        let (mut known, mut sink) = (Known::default(), Sink::Standard);
        if !to_stdout {
            let model = match &self.url {
                Some(url) => url.clone(),
                None => state::of_model(&self.source.resolve()?)?,
            };
            let state = State {
                input: input.clone(),
                model,
            };
            let journal = self.journal(&state, &mut known, &figures)?;
            sink = Sink::File(journal);
        }
        let lines = input.map(|input| input.lines);
        let is_done = !self.force && lines.is_some_and(|lines| known.count() >= lines);
        if is_done {
            tracing::info!("all lines have their results already");
            return self.tell(&Summary::new(
                &figures,
                lines,
                Instant::now().elapsed(),
                false,
            ));
        }
        match remote {
            Some(remote) => self.answer(Work {
                asker: Arc::new(remote),
                concurrency: at_server,
                sink,
                known,
                figures,
                lines,
            }),
            None => {
                let (app, parallel) = self.load()?;
                let concurrency = wanted.unwrap_or((2 * parallel).clamp(1, MAX_CONCURRENCY));
                let inside = Inside::new(app.clone(), self.max_line_bytes);
                let result = self.answer(Work {
                    asker: Arc::new(Own::new(inside, Caller::default(), UNQUEUED)),
                    concurrency,
                    sink,
                    known,
                    figures,
                    lines,
                });
                if let Some(loaded) = app.frame.stop() {
                    worker::serve::Served::stop(&loaded, std::time::Duration::ZERO);
                }
                result
            }
        }
    }

    /// How many requests are asked at once, if that was said.
    fn wanted_concurrency(&self) -> Result<Option<usize>> {
        match self.concurrency {
            Some(n) if !(1..=MAX_CONCURRENCY).contains(&n) => Err(Error::Usage(format!(
                "--concurrency {n} is not from 1 to {MAX_CONCURRENCY}"
            ))),
            wanted => Ok(wanted),
        }
    }

    /// The input's content, unless it comes through a pipe.
    fn fingerprint(&self) -> Result<Option<Fingerprint>> {
        if self.input == Path::new("-") {
            return Ok(None);
        }
        let failed = Error::io(&self.input);
        let about = std::fs::metadata(&self.input).map_err(&failed)?;
        if !about.is_file() {
            return Ok(None);
        }
        let is_same =
            std::fs::canonicalize(&self.input).ok() == std::fs::canonicalize(&self.output).ok();
        if is_same {
            return Err(Error::Usage(format!(
                "{} is the input and the output; name another -o",
                self.input.display()
            )));
        }
        let file = BufReader::with_capacity(READ_BYTES, File::open(&self.input).map_err(&failed)?);
        let bar = byte_bar("reading", about.len());
        let fingerprint = Fingerprint::of(file, |bytes| {
            bar.inc(bytes);
            true
        });
        bar.finish_and_clear();
        fingerprint.map(Some).map_err(failed)
    }

    /// The output, and what it has already.
    fn journal(&self, state: &State, known: &mut Known, figures: &Figures) -> Result<Journal> {
        let path = State::path_of(&self.output);
        let mut journal = Journal::open(&self.output)?;
        let is_new = journal.is_empty();
        if !is_new && !self.force {
            let earlier = State::read(&path)?.ok_or_else(|| {
                Error::Usage(format!(
                    "{} is not empty, and there is no {} that says what it belongs to: name another -o, or go on with \
                     it by --force",
                    self.output.display(),
                    path.display()
                ))
            })?;
            if let Some(difference) = earlier.difference(state) {
                return Err(Error::Usage(format!(
                    "{} was begun with another {difference}: name another -o, or keep its results and go on by --force",
                    self.output.display()
                )));
            }
        }
        let keep = |entry: &Entry| {
            let is_of_line = matches!(entry.about, About::Line(_));
            // Another input has other lines.
            (entry.is_success || !self.retry_errors) && !(self.force && is_of_line)
        };
        journal.read(known, figures, keep)?;
        if is_new || self.force {
            state.write(&path)?;
        }
        Ok(journal)
    }

    /// The server's handlers with a model, and how many requests are computed at once.
    fn load(&self) -> Result<(Arc<App>, usize)> {
        let placement = Arc::new(self.model.open_devices()?);
        let selected = placement.as_one();
        let name = self.model.name(&self.source);
        let options = self.model.app_options(name, seconds(self.timeout))?;
        let identity = Identity {
            device: (&selected).into(),
            ..Identity::default()
        };
        let app = App::new(identity, options);
        let usual = match selected.device.is_rocm() {
            true => GPU_PARALLEL,
            false => EngineOptions::default().max_sequences,
        };
        let parallel = self.model.parallel().unwrap_or(usual);
        let service = Service {
            parallel,
            queue: QUEUE,
            slot_save_path: None,
            sleep_after: None,
            kv_events: None,
            placement,
        };
        tracing::info!("loading the model");
        let progress = &app.frame.progress;
        let loaded = (self.model).load("batch", &self.source, &selected, progress, &service)?;
        app.frame.serve(loaded);
        Ok((app, parallel))
    }

    /// Answers what is left of the input.
    fn answer(&self, work: Work) -> Result<()> {
        let begun = Instant::now();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(work.concurrency + 64)
            .enable_all()
            .build()
            .map_err(|e| Error::Runtime(format!("cannot start threads: {e}")))?;
        let (windows, to_ask) = mpsc::channel(1);
        let (outcomes, to_write) = mpsc::channel(OUTCOMES);
        let show = Show::start(work.figures.clone(), work.lines)?;
        let writer = journal::spawn(work.sink, to_write, work.figures.clone())?;
        let reader = self.read(work.known, windows, work.figures.clone())?;
        let run = Run {
            asker: work.asker,
            limit: Box::new(move |_| work.concurrency),
            retries: self.retries,
        };
        let end: Result<End> = runtime.block_on(async {
            let terminated = termination(false)?;
            let (set, course) = watch::channel(Course::On);
            tokio::spawn(async move {
                terminated.await;
                tell("interrupted: what has begun is finished; once more ends at once");
                // Nobody hears it only when the run has ended.
                let _ = set.send(Course::Finish);
                std::future::pending::<()>().await;
            });
            Ok(run.run(to_ask, outcomes, course).await)
        });
        // Answers of servers that are no longer waited for come on threads.
        runtime.shutdown_background();
        let end = end?;
        let written = joined(writer)?;
        let figures = work.figures;
        drop(show);
        // A reader of a pipe that gives nothing more may wait for ever.
        let read = match end {
            End::Complete => joined(reader)?,
            _ => Ok(()),
        };
        written?;
        let is_stopped = end != End::Complete;
        self.tell(&Summary::new(
            &figures,
            work.lines,
            begun.elapsed(),
            is_stopped,
        ))?;
        read.map_err(Error::io(&self.input))?;
        match end {
            End::Complete => Ok(()),
            End::Stopped => Err(Error::Ended(EXIT_INTERRUPTED)),
            End::Trouble(Trouble::Lost(reason)) => Err(Error::DeviceLost(reason)),
            End::Trouble(Trouble::Unreachable(reason)) => Err(Error::Runtime(format!(
                "the server does not answer: {reason}; the same command goes on"
            ))),
            End::Trouble(Trouble::Stopping) | End::Unwritable => Err(Error::Runtime(
                "the run ended before its time; the same command goes on".to_string(),
            )),
        }
    }

    /// A thread that reads the input.
    fn read(
        &self,
        known: Known,
        windows: mpsc::Sender<Window>,
        figures: Arc<Figures>,
    ) -> Result<JoinHandle<io::Result<()>>> {
        let (source, is_live): (Box<dyn Read + Send>, bool) = match self.input == Path::new("-") {
            true => (Box::new(io::stdin()), true),
            false => {
                let file = File::open(&self.input).map_err(Error::io(&self.input))?;
                let about = file.metadata().map_err(Error::io(&self.input))?;
                (Box::new(file), !about.is_file())
            }
        };
        let source = BufReader::with_capacity(READ_BYTES, source);
        let feed = Feed {
            lines: Lines::new(source, self.max_line_bytes),
            known,
            only: None,
            is_live,
        };
        feed::spawn(feed, windows, figures)
    }

    /// Tells how it went.
    fn tell(&self, summary: &Summary) -> Result<()> {
        tell(&summary.to_string());
        if summary.is_interrupted && self.output != Path::new("-") {
            tell("the same command goes on where this one ended");
        }
        match self.json {
            true => print_json(summary),
            false => Ok(()),
        }
    }
}

fn joined<T>(thread: JoinHandle<T>) -> Result<T> {
    thread
        .join()
        .map_err(|_| Error::Runtime("a thread panicked; the same command goes on".to_string()))
}
