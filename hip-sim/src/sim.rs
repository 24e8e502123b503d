//! The state of the process: devices, memory, handles, counters.

use crate::arch::Arch;
use crate::config::Config;
use crate::error::{HipError, HipResult};
use crate::exec::Module;
use crate::hip::event::Event;
use crate::hip::graph::{Capture, Graph, GraphExec};
use crate::hip::memory::HostMemory;
use crate::hip::stream::Stream;
use crate::inject::Failure;
use crate::memory::{Memory, Overrun};
use crate::report::Reports;
use hip_abi::Registry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// One simulated GPU.
pub(crate) struct Device {
    pub arch: Arch,
    /// The stream behind the null handle.
    pub default_stream: Arc<Stream>,
    /// Name of the kernel that was launched last, for reports.
    pub last_kernel: Mutex<String>,
}

/// Counters of calls that did their work.
#[derive(Default)]
pub(crate) struct Counters {
    pub launches: AtomicU64,
    pub copies: AtomicU64,
    pub memsets: AtomicU64,
    pub gemms: AtomicU64,
    pub synchronizations: AtomicU64,
    pub graphs: AtomicU64,
    pub calls: AtomicU64,
}

impl Counters {
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) struct Sim {
    pub config: Config,
    pub memory: Memory,
    pub host_memory: Mutex<HostMemory>,
    pub reports: Reports,
    pub counters: Counters,
    pub devices: Vec<Device>,
    pub streams: Registry<Stream>,
    pub events: Registry<Event>,
    pub modules: Registry<Module>,
    pub functions: Registry<crate::exec::Function>,
    pub graphs: Registry<Graph>,
    pub graph_execs: Registry<GraphExec>,
    /// Captures under way.
    pub captures: Mutex<Vec<Arc<Capture>>>,
}

static SIM: OnceLock<Sim> = OnceLock::new();

/// The process's simulator, made from the environment on first use.
pub(crate) fn sim() -> &'static Sim {
    SIM.get_or_init(|| {
        let config = Config::from_env();
        let device = |(ordinal, arch): (usize, &Arch)| Device {
            arch: arch.clone(),
            default_stream: Arc::new(Stream::new(ordinal, 0, 0)),
            last_kernel: Mutex::default(),
        };
        Sim {
            memory: Memory::new(config.devices.len(), config.memory, config.check),
            devices: config.devices.iter().enumerate().map(device).collect(),
            config,
            host_memory: Mutex::default(),
            reports: Reports::default(),
            counters: Counters::default(),
            streams: Registry::default(),
            events: Registry::default(),
            modules: Registry::default(),
            functions: Registry::default(),
            graphs: Registry::default(),
            graph_execs: Registry::default(),
            captures: Mutex::default(),
        }
    })
}

impl Sim {
    /// What every call that needs a device checks first.
    pub fn gate(&self) -> HipResult {
        if self.devices.is_empty() {
            return Err(HipError::NoDevice);
        }
        self.config.failures.check(Failure::Lost)?;
        self.reports.surface()
    }

    /// Changes the links between devices.
    pub fn set_peers(&self, text: &str) -> Result<(), String> {
        self.config.peers.set(text)?;
        self.show_peers();
        Ok(())
    }

    /// Shows the checked kernels of every device what they may plainly access. What goes over a link that gives wrong
    /// data is not plain.
    pub fn show_peers(&self) {
        for device in 0..self.devices.len() {
            for peer in (0..self.devices.len()).filter(|peer| *peer != device) {
                let plain = self.config.peers.is_open(device, peer)
                    && !self.config.wrong.spoils_link(device, peer);
                self.memory.show(device, peer, plain);
            }
        }
    }

    /// The device whose memory an address lies in, if kernels of `device` may not access it.
    pub fn closed_peer(&self, device: usize, address: usize) -> Option<usize> {
        (self.memory.device_of(address)).filter(|peer| !self.config.peers.is_open(device, *peer))
    }

    /// Reports one broken guard zone.
    pub fn report_overrun(&self, overrun: &Overrun) {
        let Overrun { allocation, offset } = overrun;
        let kernel = self.devices[allocation.device]
            .last_kernel
            .lock()
            .unwrap_or_else(|e| e.into_inner());
        let after = if kernel.is_empty() {
            "before any kernel".to_string()
        } else {
            format!("last kernel {kernel}")
        };
        self.reports.add(format!(
            "guard zone overwritten at byte {offset} of an allocation of {} bytes at {:#x} on device {} ({after})",
            allocation.len, allocation.start, allocation.device
        ));
    }

    /// Verifies the guards of every allocation of a device: illegal address if one is broken.
    pub fn check_guards(&self, device: usize) -> HipResult {
        let overruns = self.memory.take_overruns(device);
        for overrun in &overruns {
            self.report_overrun(overrun);
        }
        match overruns.is_empty() {
            true => Ok(()),
            false => Err(HipError::IllegalAddress),
        }
    }
}
