//! `sd-worker-rocm bench`.

use super::model::ModelArgs;
use super::request::RequestArgs;
use crate::pipeline::{ModelInfo, Pipeline, Timings};
use crate::request::ValidRequest;
use candle_core::Device;
use clap::Args;
use serde_json::{json, Value};
use std::ops::ControlFlow;
use std::time::Instant;
use worker::cli::output::print_line;
use worker::graphs::GraphUse;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The prompt of the measured runs.
    #[arg(default_value = "a red car in the city at sunset")]
    prompt: String,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    request: RequestArgs,

    /// Measured runs, after one that warms up.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100), value_name = "N")]
    runs: u32,

    /// Pictures at a time, each number measured by itself, as 1,4; instead of --batch.
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    batches: Vec<usize>,

    /// Measure with graphs, and again launch by launch.
    #[arg(long, conflicts_with = "no_graph")]
    both: bool,

    /// Print one JSON object for each measurement.
    #[arg(long)]
    json: bool,
}

/// What is measured of runs that are the same: medians in milliseconds.
struct Measured {
    evaluation: f64,
    enqueue: f64,
    decode: f64,
    picture: f64,
    evaluations: f64,
    launches: f64,
    graphs: usize,
}

impl Measured {
    fn of(runs: &[Timings]) -> Self {
        let milliseconds = |of: &dyn Fn(&Timings) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(|t| of(t) * 1e3).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        let evaluations = |t: &Timings| t.evaluations.max(1) as f64;
        let first = runs.first().copied().unwrap_or_default();
        Self {
            evaluation: milliseconds(&|t| t.denoise.as_secs_f64() / evaluations(t)),
            enqueue: milliseconds(&|t| t.enqueue.as_secs_f64() / evaluations(t)),
            decode: milliseconds(&|t| t.decode.as_secs_f64()),
            picture: milliseconds(&|t| (t.lora + t.encode + t.denoise + t.decode).as_secs_f64()),
            evaluations: evaluations(&first),
            launches: first.launches as f64 / evaluations(&first),
            graphs: first.graphs,
        }
    }
}

/// How the first picture came about, in milliseconds.
struct First {
    load: f64,
    timings: Timings,
    /// Files of kernels that were loaded for it.
    kernels: usize,
}

impl First {
    fn json(&self) -> Value {
        let t = &self.timings;
        let parts = [t.lora, t.encode, t.denoise, t.decode].map(|part| part.as_secs_f64() * 1e3);
        json!({
            "load_ms": self.load,
            "encode_ms": parts[0] + parts[1],
            "denoise_ms": parts[2],
            "decode_ms": parts[3],
            "picture_ms": self.load + parts.iter().sum::<f64>(),
            "kernels": self.kernels,
        })
    }
}

impl BenchArgs {
    pub(super) fn run(self) -> Result<()> {
        let begun = Instant::now();
        let mut loaded = self.model.load()?;
        let load = begun.elapsed().as_secs_f64() * 1e3;
        let info = loaded.info().clone();
        let device = loaded.device().description;
        let devices = loaded.devices_as_json();
        // Of several that are the same, one is measured.
        let pipeline = &mut loaded.models[0].pipeline;
        let graphs: &[GraphUse] = match (self.both, pipeline.options().graphs) {
            (true, _) => &[GraphUse::On, GraphUse::Off],
            (false, GraphUse::Off) => &[GraphUse::Off],
            (false, _) => &[],
        };
        let batches: Vec<Option<usize>> = match self.batches.as_slice() {
            [] => vec![None],
            several => several.iter().copied().map(Some).collect(),
        };
        let interrupt = Interrupt::install()?;
        let mut first: Option<First> = None;
        for batch in batches {
            for graphs in graphs
                .iter()
                .copied()
                .map(Some)
                .chain(graphs.is_empty().then_some(None))
            {
                if let Some(graphs) = graphs {
                    pipeline.set_graphs(graphs);
                }
                let mut asked = self.request.clone();
                if let Some(batch) = batch {
                    asked.set_batch(batch);
                }
                let request = asked.request(&self.prompt, &info, None)?;
                let mut runs = self.timings(pipeline, &request, &interrupt)?;
                let warm_up = runs.remove(0);
                let first = first.get_or_insert_with(|| First {
                    load,
                    timings: warm_up,
                    kernels: loaded_kernels(pipeline.device()),
                });
                let measured = Measured::of(&runs);
                let without_graphs = match measured.graphs {
                    0 => pipeline.without_graphs(),
                    _ => None,
                };
                match self.json {
                    true => {
                        let json = json!({
                            "model": info.name,
                            "precision": info.precision,
                            "device": device,
                            "devices": devices,
                            "width": request.width,
                            "height": request.height,
                            "batch": request.batch,
                            "runs": self.runs,
                            "evaluations": measured.evaluations,
                            "evaluation_ms": measured.evaluation,
                            "enqueue_ms": measured.enqueue,
                            "launches": measured.launches,
                            "graphs": measured.graphs,
                            "without_graphs": without_graphs,
                            "decode_ms": measured.decode,
                            "picture_ms": measured.picture,
                            "first": first.json(),
                        });
                        print_line(&json.to_string())?;
                    }
                    false => self.tell(&info, &device, &request, &measured, without_graphs)?,
                }
            }
        }
        Ok(())
    }

    /// The timings of one run more than are measured.
    fn timings(
        &self,
        pipeline: &mut Pipeline,
        request: &ValidRequest,
        interrupt: &Interrupt,
    ) -> Result<Vec<Timings>> {
        let mut runs = Vec::new();
        for _ in 0..=self.runs {
            let generated = pipeline.generate(request, &mut |_| {
                if interrupt.is_raised() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            if generated.cancelled {
                return Err(Error::Runtime("interrupted".to_string()));
            }
            runs.push(generated.timings);
        }
        Ok(runs)
    }

    fn tell(
        &self,
        info: &ModelInfo,
        device: &str,
        request: &ValidRequest,
        measured: &Measured,
        without_graphs: Option<String>,
    ) -> Result<()> {
        let how = match (measured.graphs, without_graphs) {
            (0, Some(why)) => format!("no graphs: {why}"),
            (0, None) => "no graphs".to_string(),
            (graphs, _) => format!(
                "{graphs} of {:.0} evaluations as graphs",
                measured.evaluations
            ),
        };
        print_line(&format!(
            "{} ({}) on {device}, {} x {}, batch {}, median of {} runs:\n  a step's evaluation  {:.2} ms ({:.2} it/s)\n  of which enqueueing  {:.2} ms, {:.0} launches ({how})\n  latents to pixels    {:.2} ms\n  a whole picture      {:.1} ms",
            info.name,
            info.precision,
            request.width,
            request.height,
            request.batch,
            self.runs,
            measured.evaluation,
            1e3 / measured.evaluation.max(1e-9),
            measured.enqueue,
            measured.launches,
            measured.decode,
            measured.picture,
        ))
    }
}

/// Files of kernels that a device has loaded.
fn loaded_kernels(device: &Device) -> usize {
    match device {
        Device::Rocm(device) => device.device().loaded_objects().len(),
        _ => 0,
    }
}
