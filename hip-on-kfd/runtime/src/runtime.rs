//! What the process has: its GPUs, and the objects behind handles.

use crate::device::Device;
use crate::event::Event;
use crate::graph::{Capture, Graph};
use crate::memory::{Block, Memories};
use crate::module::{Function, Module};
use crate::stream::Stream;
use crate::visible::visible;
use candle_kfd::{Displays, Error, Kfd};
use hip_abi::error::{HipError, HipResult};
use hip_abi::Registry;
use std::sync::{Arc, Mutex, OnceLock};

/// Set to 1, lets GPUs be used that drive a display.
const DISPLAY: &str = "CANDLE_KFD_DISPLAY";
/// Set to 1, leaves the warning out.
const YES: &str = "CANDLE_KFD_YES";
/// Said before the first packet.
const WARNING: &str = "this program writes packets of its own to the GPU, without ROCm; a wrong one can hang it, and the desktop on it. Save your work, or stop here (Ctrl-C). CANDLE_KFD_YES=1 leaves this out";

/// The process's GPUs and objects. Lives as long as the process.
pub struct Runtime {
    pub(crate) devices: Vec<Device>,
    pub(crate) memories: Memories,
    pub(crate) streams: Registry<Stream>,
    pub(crate) events: Registry<Event>,
    pub(crate) modules: Registry<Module>,
    pub(crate) functions: Registry<Function>,
    pub(crate) graphs: Registry<Graph>,
    pub(crate) execs: Registry<Graph>,
    /// Captures under way, with the ordinals of their devices.
    pub(crate) captures: Mutex<Vec<(usize, Arc<Capture>)>>,
}

static RUNTIME: OnceLock<Result<Runtime, HipError>> = OnceLock::new();

/// The process's runtime; its failure, told once, if there is no GPU.
pub(crate) fn runtime() -> HipResult<&'static Runtime> {
    let started = RUNTIME.get_or_init(|| match Kfd::open() {
        Ok(kfd) => start(&kfd),
        Err(error) => {
            eprintln!("hip-on-kfd: {error}");
            Err(HipError::NoDevice)
        }
    });
    started.as_ref().map_err(|error| *error)
}

/// Starts the process's runtime with a driver other than the kernel's, for tests; false if it was started before.
#[doc(hidden)]
pub fn start_with(kfd: &Arc<Kfd>) -> bool {
    RUNTIME.set(start(kfd)).is_ok()
}

fn start(kfd: &Arc<Kfd>) -> HipResult<Runtime> {
    let is_set = |variable| std::env::var_os(variable).is_some_and(|value| value == "1");
    let displays = match is_set(DISPLAY) {
        true => Displays::Allow,
        false => Displays::Refuse,
    };
    let mut devices = Vec::new();
    for index in visible(kfd.nodes().len(), |name| std::env::var(name).ok()) {
        let gpu = kfd.gpu(index, displays);
        match gpu.and_then(|gpu| Device::new(devices.len(), gpu)) {
            Ok(device) => devices.push(device),
            // The others serve all the same.
            Err(error) => {
                let how = match error {
                    Error::Display { .. } => format!(" ({DISPLAY}=1)"),
                    _ => String::new(),
                };
                eprintln!("hip-on-kfd: GPU {index} is left out: {error}{how}");
            }
        }
    }
    if devices.is_empty() {
        eprintln!("hip-on-kfd: the kernel driver has no GPU for this process");
        return Err(HipError::NoDevice);
    }
    if !is_set(YES) {
        eprintln!("hip-on-kfd: {WARNING}");
    }
    Ok(Runtime {
        devices,
        memories: Memories::default(),
        streams: Registry::default(),
        events: Registry::default(),
        modules: Registry::default(),
        functions: Registry::default(),
        graphs: Registry::default(),
        execs: Registry::default(),
        captures: Mutex::default(),
    })
}

impl Runtime {
    /// The device of an ordinal of C.
    pub(crate) fn device(&self, ordinal: i32) -> HipResult<&Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.devices.get(ordinal))
            .ok_or(HipError::InvalidDevice)
    }

    /// The calling thread's device.
    pub(crate) fn current(&self) -> HipResult<&Device> {
        self.devices
            .get(crate::status::ordinal())
            .ok_or(HipError::InvalidDevice)
    }

    /// Waits until no device uses memory any more, and gives it back; what a lost device may use yet stays with the
    /// process. Fails if the memory's own device is lost.
    pub(crate) fn release(&self, block: Block, owner: usize) -> HipResult {
        let mut released = Ok(());
        let mut is_used = false;
        for device in &self.devices {
            if let Err(error) = device.idle() {
                is_used = true;
                if device.ordinal == owner {
                    released = Err(error);
                }
            }
        }
        if is_used {
            std::mem::forget(block);
        }
        released
    }
}
