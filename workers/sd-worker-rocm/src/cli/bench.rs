//! `sd-worker-rocm bench`.

use super::model::ModelArgs;
use super::request::RequestArgs;
use clap::Args;
use std::ops::ControlFlow;
use worker::cli::output::print_line;
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

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl BenchArgs {
    pub(super) fn run(self) -> Result<()> {
        let mut loaded = self.model.load()?;
        let info = loaded.info().clone();
        let device = loaded.device().description;
        let devices = loaded.devices_as_json();
        // Of several that are the same, one is measured.
        let pipeline = &mut loaded.models[0].pipeline;
        let request = self.request.request(&self.prompt, &info, None)?;
        let interrupt = Interrupt::install()?;
        let mut runs = Vec::new();
        for i in 0..=self.runs {
            let generated = pipeline.generate(&request, &mut |_| {
                if interrupt.is_raised() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            if generated.cancelled {
                return Err(Error::Runtime("interrupted".to_string()));
            }
            if i > 0 {
                runs.push(generated.timings);
            }
        }
        let milliseconds = |of: fn(&crate::pipeline::Timings) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(|t| of(t) * 1e3).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let per_evaluation = |t: &crate::pipeline::Timings| t.evaluations.max(1) as f64;
        let evaluation = milliseconds(|t| t.denoise.as_secs_f64() / t.evaluations.max(1) as f64);
        let enqueue = milliseconds(|t| t.enqueue.as_secs_f64() / t.evaluations.max(1) as f64);
        let launches = runs
            .first()
            .map_or(0.0, |t| t.launches as f64 / per_evaluation(t));
        let decode = milliseconds(|t| t.decode.as_secs_f64());
        let evaluations = runs.first().map_or(0.0, per_evaluation);
        if self.json {
            let json = serde_json::json!({
                "model": info.name,
                "precision": info.precision,
                "device": device,
                "devices": devices,
                "width": request.width,
                "height": request.height,
                "batch": request.batch,
                "runs": self.runs,
                "evaluations": evaluations,
                "evaluation_ms": evaluation,
                "enqueue_ms": enqueue,
                "launches": launches,
                "decode_ms": decode,
            });
            return print_line(&json.to_string());
        }
        print_line(&format!(
            "{} ({}) on {}, {} x {}, batch {}, median of {} runs:\n  a step's evaluation  {evaluation:.2} ms ({:.2} it/s)\n  of which enqueueing  {enqueue:.2} ms, {launches:.0} launches\n  latents to pixels    {decode:.2} ms",
            info.name,
            info.precision,
            device,
            request.width,
            request.height,
            request.batch,
            self.runs,
            1e3 / evaluation.max(1e-9),
        ))
    }
}
