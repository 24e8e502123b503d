//! The state and the figures of the model, for the frame.

use super::App;
use crate::jobs::Counters;
use serde_json::{json, Map, Value};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use worker::serve::{Figure, Served, Status};

/// The part of the grace after which jobs that still run are cancelled, so that their clients hear why.
const PATIENCE: f64 = 0.9;

impl Served for App {
    fn status(&self) -> Status {
        let lost = self.queue().devices().into_iter().filter_map(|state| {
            let reason = state.lost?;
            Some(format!("{} is lost: {reason}", state.device))
        });
        Status {
            busy: self.queue().is_busy(),
            lost: self.queue().lost(),
            degraded: lost.collect(),
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let Counters {
            submitted,
            refused,
            completed,
            failed,
            cancelled,
            pictures,
            steps,
            busy_micros,
        } = self.queue().counters();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = [
            ("jobs_submitted", "Jobs taken", submitted),
            (
                "jobs_refused",
                "Jobs not taken, the queue being full",
                refused,
            ),
            ("jobs_completed", "Jobs that gave pictures", completed),
            ("jobs_failed", "Jobs that ended with an error", failed),
            ("jobs_cancelled", "Jobs that were cancelled", cancelled),
            ("pictures", "Pictures made", pictures),
            ("steps", "Sampler steps done", steps),
        ];
        let mut figures: Vec<Figure> = counters
            .into_iter()
            .map(|(name, help, counter)| Figure::counter(name, help, read(counter)))
            .collect();
        let busy = read(busy_micros) as f64 / 1e6;
        figures.push(Figure::seconds("busy_seconds", "Time spent on jobs", busy));
        let waiting = self.queue().waiting() as u64;
        figures.push(Figure::level("queue_length", "Jobs waiting", waiting));
        let running = self.queue().all_running().len() as u64;
        figures.push(Figure::level("jobs_running", "Jobs in progress", running));
        figures.extend(self.device_figures());
        figures
    }

    fn info(&self) -> Map<String, Value> {
        let info = self.queue().info();
        let defaults = &info.defaults;
        let fields = [
            ("precision", json!(info.precision)),
            ("devices", self.describe_devices()),
            (
                "defaults",
                json!({
                    "width": defaults.width,
                    "height": defaults.height,
                    "steps": defaults.steps,
                    "guidance_scale": defaults.guidance,
                    "sampler": defaults.sampler.label(),
                    "schedule": defaults.schedule().label(),
                }),
            ),
            ("size_multiple", json!(info.size_multiple)),
            ("inpainting", json!(info.inpainting)),
        ];
        fields
            .into_iter()
            .map(|(name, value)| (name.to_string(), value))
            .collect()
    }

    fn stop(&self, grace: Duration) {
        let queue = self.queue();
        queue.close();
        queue.wait_idle(grace.mul_f64(PATIENCE));
        queue.stop();
        if let Some(keeper) = self.keeper() {
            keeper.stop();
        }
    }
}
