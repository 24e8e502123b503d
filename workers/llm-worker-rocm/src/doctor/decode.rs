//! The decoding of a small model, whose tokens are known.
//!
//! `tiny.gguf` is a llama of one block with random weights in Q4_K_M; `tiny.json` has prompts and the tokens that the
//! CPU finds, each by a wide margin. `tests/doctor.rs` makes both (`CANDLE_ROCM_WRITE_FIXTURES=1`) and compares them.

use crate::engine::api::{Event, GraphUse, Request, SamplingOptions, Ticket};
use crate::engine::{Engine, EngineOptions};
use crate::model::{LoadOptions, ModelFile};
use doctor::report::Measurement;
use doctor::{Check, Failure, Options, Section};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use worker::device::DeviceRequest;

/// The model, a GGUF file.
pub const MODEL: &[u8] = include_bytes!("tiny.gguf");
const CASES: &str = include_str!("tiny.json");

/// Tokens of a prompt, and those that follow when always the most likely one is taken.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Case {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// What follows.
    pub tokens: Vec<u32>,
}

/// Prompts whose tokens are known.
pub fn cases() -> Vec<Case> {
    serde_json::from_str(CASES).expect("a test reads it")
}

/// See the [module](self).
pub(super) struct Decode;

const ADVICE: &str = "answers of this GPU cannot be trusted: look at the sections operations, copies and memory for the cause, and send the report";

const GRAPH_ADVICE: &str = "answers are right without graphs, but slower: try another release of ROCm, and send the report";

impl Section for Decode {
    fn name(&self) -> &'static str {
        "decode"
    }

    fn about(&self) -> &'static str {
        "a small model's tokens against known ones, alone, together, and as graphs"
    }

    fn limit(&self, _: &Options) -> Duration {
        Duration::from_secs(900)
    }

    fn run(&self, check: &Check) -> Result<(), Failure> {
        check.progress("loading the model");
        let file = TemporaryFile::write(MODEL)?;
        let cases = cases();
        let mut wrong = [false; 2];
        for (graphs, wrong) in [true, false].into_iter().zip(&mut wrong) {
            let how = if graphs {
                "as graphs"
            } else {
                "launch by launch"
            };
            check.progress(format!("decoding {how}"));
            let engine = start(&file.0, check.ordinal(), graphs)?;
            let begun = Instant::now();
            let alone: Vec<Vec<u32>> = (cases.iter())
                .map(|case| submit(&engine, case).and_then(answer))
                .collect::<Result<_, _>>()?;
            let seconds = begun.elapsed().as_secs_f64();
            let tickets: Vec<Ticket> = (cases.iter())
                .map(|case| submit(&engine, case))
                .collect::<Result<_, _>>()?;
            let together: Vec<Vec<u32>> =
                tickets.into_iter().map(answer).collect::<Result<_, _>>()?;
            for (what, answers) in [("alone", &alone), ("together", &together)] {
                for (n, (case, answer)) in cases.iter().zip(answers).enumerate() {
                    let same = case
                        .tokens
                        .iter()
                        .zip(answer)
                        .take_while(|(a, b)| a == b)
                        .count();
                    if same < case.tokens.len() && !*wrong {
                        *wrong = true;
                        let text = format!(
                            "{how}, prompt {n} {what}: only the first {same} of {} tokens are the known ones",
                            case.tokens.len()
                        );
                        check.error(if graphs { "graph" } else { "tokens" }, text, ADVICE);
                    }
                }
            }
            if let Some(why) = engine.status().without_graphs {
                let text = format!("the engine has given graphs up: {why}");
                check.warning("no_graphs", text, GRAPH_ADVICE);
            }
            let tokens: usize = alone.iter().map(Vec::len).sum();
            let name = format!("tokens of {} bytes of weights, {how}", MODEL.len());
            check.measure(Measurement::new(
                name,
                tokens as f64 / seconds.max(1e-9),
                "/s",
            ));
        }
        match wrong {
            [true, false] => check.note("launch by launch the same tokens are right: serve with --no-graph until this is mended"),
            [false, false] => check.note(format!("{} prompts gave the known tokens", cases.len())),
            _ => {}
        }
        Ok(())
    }
}

fn start(path: &std::path::Path, ordinal: usize, graphs: bool) -> Result<Engine, Failure> {
    let device = DeviceRequest::Rocm(ordinal).select()?.device;
    let model = ModelFile::open(path)?.load(&device, &LoadOptions::default())?;
    let options = EngineOptions {
        kv_blocks: Some(32),
        graphs: match graphs {
            true => GraphUse::On,
            false => GraphUse::Off,
        },
        prefix_cache: false,
        ..EngineOptions::default()
    };
    Ok(Engine::start(model, &options)?)
}

fn submit(engine: &Engine, case: &Case) -> Result<Ticket, Failure> {
    let request = Request {
        max_tokens: Some(case.tokens.len()),
        ignore_end: true,
        ..Request::new(case.prompt.clone(), SamplingOptions::greedy())
    };
    engine
        .submit(request)
        .map_err(|failure| failure.to_string().into())
}

/// Waits for all of a request's tokens.
fn answer(mut ticket: Ticket) -> Result<Vec<u32>, Failure> {
    let mut tokens = Vec::new();
    loop {
        match ticket.events.blocking_recv() {
            Some(Event::Started { .. } | Event::Progress { .. } | Event::Prompt(_)) => {}
            Some(Event::Token { token, .. }) => tokens.push(token.token),
            Some(Event::Finished(_)) => return Ok(tokens),
            Some(Event::Failed(failure)) => return Err(failure.to_string().into()),
            None => return Err("the engine ended".into()),
        }
    }
}

/// A file that is removed when it is no longer needed.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn write(bytes: &[u8]) -> std::io::Result<Self> {
        let name = format!("rocm-doctor-{}.gguf", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes)?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // What stays is a few hundred KiB in a folder that the system empties.
        let _ = std::fs::remove_file(&self.0);
    }
}
