//! The machine: GPUs by the kernel, driver, ROCm, permissions, and what changes how they work.

mod access;
mod environment;
mod fabric;
mod gpus;
mod machine;
mod rocm;

use crate::section::Scope;
use crate::{Check, Failure, Options, Section};
use candle_rocm::topology::Topology;
use std::path::Path;
use std::time::Duration;
use worker::report::{DeviceReport, Status};

/// See the [module](self).
pub struct System;

/// What `--only` calls it.
pub(crate) const NAME: &str = "system";

impl Section for System {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "GPUs, driver, ROCm, permissions, environment"
    }

    fn scope(&self) -> Scope {
        Scope::Machine
    }

    fn limit(&self, _: &Options) -> Duration {
        Duration::from_secs(300)
    }

    fn run(&self, check: &Check) -> Result<(), Failure> {
        let root = Path::new("/");
        let topology = Topology::read();
        let machine = machine::look(check, root, &topology);
        let cards = gpus::look(check, root, &topology);
        let fabric = fabric::look(check, root, &topology);
        let access = access::look(check, root);
        let variables = environment::look(check, &topology, std::env::vars());
        check.progress("loading ROCm's libraries");
        let devices = DeviceReport::gather();
        verdict(check, &devices);
        let rocm = rocm::look(check, &topology, &devices);
        check.facts(serde_json::json!({
            "machine": machine.facts(),
            "cards": cards,
            "fabric": fabric,
            "access": access,
            "variables": variables,
            "rocm": rocm,
            "devices": devices,
        }));
        Ok(())
    }
}

/// What `devices` says, as findings.
fn verdict(check: &Check, devices: &DeviceReport) {
    match devices.status {
        Status::Ready => check.note(&devices.message),
        Status::Incomplete => check.error("incomplete", &devices.message, ""),
        Status::NoGpu => check.error("no_gpu", &devices.message, ""),
        Status::NoRocm => check.error("no_rocm", &devices.message, ""),
        Status::Failed => check.error("rocm", &devices.message, ""),
    }
    for card in &devices.unusable_cards {
        let arch = card.arch.as_deref().unwrap_or("unknown processor");
        let text = format!(
            "{} ({arch}) at {} cannot be used: {}",
            card.name,
            card.pci_id,
            card.reasons.join("; ")
        );
        check.warning("unusable", text, "");
    }
    for gpu in &devices.gpus {
        match &gpu.problem {
            Some(problem) => {
                let text = format!("{} {}: {problem}", gpu.device, gpu.name);
                check.error("device", text, "");
            }
            None => check.note(format!("{}: {} ({})", gpu.device, gpu.name, gpu.arch)),
        }
    }
}
