//! The devices that a model is on, as routes and figures tell of them.

use super::App;
use candle_core::Device;
use serde_json::{json, Value};
use worker::device::{buffer_memory, room};
use worker::serve::{Figure, Labels};

/// A device with what is on it.
#[derive(Debug, Clone)]
pub struct ServedDevice {
    /// Its name.
    pub name: String,
    /// The hardware.
    pub description: String,
    /// The parts of the model that are there.
    pub parts: Vec<String>,
    /// Bytes of its memory, if that is known.
    pub total: Option<u64>,
    /// candle's handle.
    pub device: Device,
}

impl ServedDevice {
    /// For programs.
    pub fn describe(&self) -> Value {
        json!({"name": self.name, "description": self.description, "parts": self.parts})
    }

    /// As the web UI tells of a GPU's memory, in bytes. Asks the device.
    fn memory(&self) -> Value {
        let Device::Rocm(gpu) = &self.device else {
            return json!({"error": "unavailable"});
        };
        let Some(room) = room(&self.device) else {
            return json!({"error": "the device does not answer"});
        };
        let stats = gpu.device().memory_stats();
        let reserved = stats.live_bytes + stats.cached_bytes;
        let of = |current: usize, peak: usize| json!({"current": current, "peak": peak});
        json!({
            "system": {"free": room.free, "used": room.total.saturating_sub(room.free), "total": room.total},
            "active": of(stats.live_bytes, stats.peak_bytes),
            "allocated": of(stats.live_bytes, stats.peak_bytes),
            "reserved": of(reserved, reserved.max(stats.peak_bytes)),
            "inactive": of(stats.cached_bytes, stats.cached_bytes),
            "events": {"retries": stats.ooms, "oom": stats.ooms},
        })
    }
}

impl App {
    /// Each device: what it is, what is on it, and why it is gone, if it is.
    pub(super) fn describe_devices(&self) -> Value {
        let devices = self.devices().iter().map(|device| {
            let mut described = device.describe();
            if let Some(reason) = self.why_lost(&device.name) {
                described["lost"] = json!(reason);
            }
            described
        });
        devices.collect()
    }

    /// What `/sdapi/v1/memory` answers: the process's memory, the first GPU's, and each device's. Asks the devices, so
    /// it may block.
    pub(super) fn memory(&self) -> Value {
        let each: Vec<Value> = (self.devices().iter())
            .map(|device| {
                let mut told = match self.why_lost(&device.name) {
                    Some(reason) => json!({"error": format!("lost: {reason}")}),
                    None => device.memory(),
                };
                told["name"] = json!(device.name);
                told["description"] = json!(device.description);
                told["parts"] = json!(device.parts);
                told
            })
            .collect();
        let gpus = self.devices().iter().zip(&each);
        let mut gpus = gpus.filter(|(device, _)| device.device.is_rocm());
        let first = gpus.next().map(|(_, told)| told.clone());
        json!({
            "ram": host_memory(),
            "cuda": first.unwrap_or_else(|| json!({"error": "unavailable"})),
            "devices": each,
        })
    }

    /// Why a device is gone, if it is.
    fn why_lost(&self, name: &str) -> Option<String> {
        let states = self.queue().devices().into_iter();
        let mut of_it = states.filter(|state| state.device.split(',').any(|device| device == name));
        of_it.find_map(|state| state.lost)
    }

    /// Figures of each model's devices, and the memory of each device.
    pub(super) fn device_figures(&self) -> Vec<Figure> {
        let states = self.queue().devices();
        let named = || states.iter().filter(|state| !state.device.is_empty());
        let label = |name: &str| -> Labels { vec![("device", name.to_string())] };
        let mut figures = Vec::new();
        if named().next().is_some() {
            figures.push(Figure::gauges(
                "device_up",
                "1 while the devices of a model work, 0 once they are lost",
                named()
                    .map(|state| {
                        let up = f64::from(u8::from(state.lost.is_none()));
                        (label(&state.device), up)
                    })
                    .collect(),
            ));
            figures.push(Figure::counters(
                "device_pictures",
                "Pictures made there, also of jobs that failed",
                named()
                    .map(|state| (label(&state.device), state.pictures as f64))
                    .collect(),
            ));
            figures.push(Figure::counters(
                "device_steps",
                "Sampler steps done there",
                named()
                    .map(|state| (label(&state.device), state.steps as f64))
                    .collect(),
            ));
            figures.push(Figure::counters(
                "device_busy_seconds",
                "Time spent on pictures there",
                named()
                    .map(|state| (label(&state.device), state.busy.as_secs_f64()))
                    .collect(),
            ));
        }
        let used = self.devices().iter().filter_map(|device| {
            let memory = buffer_memory(&device.device)?;
            let used = (memory.live + memory.cached) as f64;
            Some((label(&device.name), used))
        });
        let used: Vec<_> = used.collect();
        let gpus = self
            .devices()
            .iter()
            .filter(|device| device.device.is_rocm());
        let total = gpus.filter_map(|device| Some((label(&device.name), device.total? as f64)));
        let total: Vec<_> = total.collect();
        if !used.is_empty() {
            let help = "The device's memory that this process uses";
            figures.push(Figure::gauges("device_memory_used_bytes", help, used));
        }
        if !total.is_empty() {
            let help = "The device's memory";
            figures.push(Figure::gauges("device_memory_bytes", help, total));
        }
        figures
    }
}

/// The host's memory in bytes: what is left to this process, what it uses, and both.
pub(super) fn host_memory() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let used = status.lines().find_map(|line| {
        let number = line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?;
        Some(number.trim().parse::<u64>().ok()? << 10)
    });
    let used = used.unwrap_or(0);
    let free = worker::device::host_memory_room().unwrap_or(0);
    json!({"free": free, "used": used, "total": free + used})
}
