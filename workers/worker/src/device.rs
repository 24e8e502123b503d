//! `--device auto|cpu|rocm[:n]` and `--devices 0,1` as types and as arguments, and the candle devices for them.

mod list;

pub use list::{DeviceList, DeviceListArgs, MOST_GPUS};

use crate::{Error, Result};
use candle_core::Device;
use clap::Args;
use serde::Serialize;
use std::str::FromStr;

/// What the user asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceRequest {
    /// The first AMD GPU, or the CPU if there is none.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The AMD GPU of this ordinal; never anything else.
    Rocm(usize),
}

impl FromStr for DeviceRequest {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let bad = || format!("{text:?} is not a device; use auto, cpu, rocm or rocm:N");
        match text.split_once(':') {
            None => match text {
                "auto" => Ok(Self::Auto),
                "cpu" => Ok(Self::Cpu),
                "rocm" => Ok(Self::Rocm(0)),
                _ => Err(bad()),
            },
            Some(("rocm", ordinal)) => ordinal.parse().map(Self::Rocm).map_err(|_| bad()),
            Some(_) => Err(bad()),
        }
    }
}

impl std::fmt::Display for DeviceRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Rocm(ordinal) => write!(f, "rocm:{ordinal}"),
        }
    }
}

/// A device to compute on.
#[derive(Debug, Clone)]
pub struct Selected {
    /// candle's handle.
    pub device: Device,
    /// `cpu` or `rocm:N`.
    pub name: String,
    /// The hardware in words.
    pub description: String,
    /// Why `auto` settled for the CPU; to be shown at start.
    pub fallback: Option<String>,
}

/// What a device is called: `cpu` or `rocm:N`.
pub fn name_of(device: &Device) -> String {
    request_of(device).to_string()
}

fn request_of(device: &Device) -> DeviceRequest {
    match device {
        Device::Rocm(device) => DeviceRequest::Rocm(device.device().ordinal()),
        _ => DeviceRequest::Cpu,
    }
}

impl Selected {
    /// What names it.
    pub fn request(&self) -> DeviceRequest {
        request_of(&self.device)
    }
}

/// Device memory that buffers have taken, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BufferMemory {
    /// In buffers that exist.
    pub live: usize,
    /// Kept for the next ones.
    pub cached: usize,
}

/// What buffers have taken on a GPU; nothing on the CPU.
pub fn buffer_memory(device: &Device) -> Option<BufferMemory> {
    match device {
        Device::Rocm(device) => {
            let stats = device.device().memory_stats();
            Some(BufferMemory {
                live: stats.live_bytes,
                cached: stats.cached_bytes,
            })
        }
        _ => None,
    }
}

/// Bytes of a device's memory that are free, and all of it: a GPU's own, all processes counted, or the host's, of which
/// the whole is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that a program can still have.
    pub free: u64,
    /// Bytes in all; what is free where that is not known.
    pub total: u64,
}

/// How much room a device has; `None` if the system does not tell.
pub fn room(device: &Device) -> Option<Room> {
    match device {
        Device::Rocm(gpu) => {
            let (free, total) = gpu.device().memory_info().ok()?;
            let cached = gpu.device().memory_stats().cached_bytes;
            let own = (free + cached) as u64;
            let free = shared_memory_room(device).unwrap_or(own);
            Some(Room {
                free,
                total: (total as u64).max(free),
            })
        }
        _ => {
            let free = host_memory_room()?;
            Some(Room { free, total: free })
        }
    }
}

/// Why rocBLAS cannot multiply on a GPU; nothing if it can, and on the CPU.
fn without_rocblas(device: &Device) -> Option<&'static str> {
    match device {
        Device::Rocm(device) => candle_rocm::blas::refusal(device.device()),
        _ => None,
    }
}

/// The same device for another thread: on a GPU with a stream and memory of its own. What a thread enqueues on a device
/// that another one records becomes part of that one's graph.
///
/// # Errors
/// [`Error::Device`] if the device fails.
pub fn beside(device: &Device) -> Result<Device> {
    match device {
        Device::Rocm(gpu) => Device::new_rocm(gpu.device().ordinal())
            .map_err(|error| Error::Device(format!("opening the GPU once more: {error}"))),
        _ => Ok(device.clone()),
    }
}

/// Gives the memory back to the GPU that buffers of the past have left: loading makes many that are not needed again.
///
/// # Errors
/// [`Error::Device`] if the device fails.
pub fn release_unused(device: &Device) -> Result<()> {
    match device {
        Device::Rocm(device) => (device.device().trim())
            .map_err(|error| Error::Device(format!("giving memory back: {error}"))),
        _ => Ok(()),
    }
}

impl DeviceRequest {
    /// Opens the device.
    ///
    /// # Errors
    /// [`Error::Device`] if a GPU was asked for and cannot be used, with what was looked for and where. The CPU
    /// is never a silent stand-in.
    pub fn select(self) -> Result<Selected> {
        match self {
            Self::Cpu => Ok(cpu(None)),
            Self::Rocm(ordinal) => rocm(ordinal),
            // A GPU that is there but fails is an error to show, not a reason to be a hundred times slower.
            Self::Auto => match unavailable() {
                None => rocm(0),
                Some(reason) => Ok(cpu(Some(reason))),
            },
        }
    }
}

/// The arguments that say where to compute.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    /// Where to compute: auto, cpu, rocm or rocm:N. `auto` takes the first GPU, or says that it uses the CPU.
    #[arg(long, short, default_value = "auto", value_parser = str::parse::<DeviceRequest>)]
    device: DeviceRequest,

    /// The AMD GPU of this number; the same as --device rocm:N.
    #[arg(long, env = "ROCM_DEVICE", value_name = "N")]
    rocm_device: Option<usize>,
}

impl DeviceArgs {
    /// Opens the device, and logs if the CPU takes the place of a GPU.
    ///
    /// # Errors
    /// [`Error::Usage`] if the two arguments contradict each other, and those of [`DeviceRequest::select`].
    pub fn select(&self) -> Result<Selected> {
        self.request()?.open()
    }

    /// What the arguments say.
    ///
    /// # Errors
    /// [`Error::Usage`] if they contradict each other.
    pub fn request(&self) -> Result<DeviceRequest> {
        match (self.rocm_device, self.device) {
            (None, device) => Ok(device),
            (Some(n), DeviceRequest::Auto) => Ok(DeviceRequest::Rocm(n)),
            (Some(n), device) if device == DeviceRequest::Rocm(n) => Ok(device),
            (Some(_), _) => Err(Error::Usage(
                "--rocm-device and --device say different things; give one of them".to_string(),
            )),
        }
    }
}

impl DeviceRequest {
    /// Whether it may turn out to be an AMD GPU. Looks for ROCm's runtime, but neither starts it nor touches a GPU.
    pub fn may_be_rocm(self) -> bool {
        match self {
            Self::Cpu => false,
            Self::Rocm(_) => true,
            Self::Auto => candle_rocm::sys::hip::Hip::get().is_ok(),
        }
    }

    /// As [`Self::select`], and logs if the CPU takes the place of a GPU, or own products that of rocBLAS.
    ///
    /// # Errors
    /// Those of [`Self::select`].
    pub fn open(self) -> Result<Selected> {
        let selected = self.select()?;
        if let Some(reason) = &selected.fallback {
            tracing::warn!("using the CPU: {reason}");
        }
        if let Some(reason) = without_rocblas(&selected.device) {
            tracing::warn!("products of floats are made by this program's own kernels: {reason}");
        }
        Ok(selected)
    }
}

fn cpu(fallback: Option<String>) -> Selected {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    Selected {
        device: Device::Cpu,
        name: "cpu".to_string(),
        description: format!("CPU, {threads} threads"),
        fallback,
    }
}

/// Launches that a device has made so far; 0 for one that does not count.
pub fn launches(device: &Device) -> u64 {
    match device {
        Device::Rocm(device) => device.device().launches(),
        _ => 0,
    }
}

/// Bytes that programs can still have of the host's memory, within this process's control group; `None` if the system
/// does not tell.
pub fn host_memory_room() -> Option<u64> {
    candle_rocm::host_memory::HostMemory::read().room()
}

/// Bytes that a GPU without memory of its own can have of the host's; `None` for other devices.
pub fn shared_memory_room(device: &Device) -> Option<u64> {
    match device {
        Device::Rocm(device) => device.device().shared_memory_room().ok()?,
        _ => None,
    }
}

fn unavailable() -> Option<String> {
    use candle_rocm::sys::LoadError;
    match candle_rocm::Device::count() {
        // Most machines without a GPU: one line is enough, `devices` lists what was tried.
        Err(candle_rocm::Error::Load(LoadError::NotFound { sonames, .. })) => Some(format!(
            "ROCm's {} was not found (the command `devices` tells where it was looked for)",
            sonames.stem
        )),
        Err(error) if error.is_no_device() => Some(error.to_string()),
        _ => None,
    }
}

fn rocm(ordinal: usize) -> Result<Selected> {
    let failed = |error: String| {
        let place = match candle_rocm::sys::hip::Hip::get() {
            Ok(hip) => format!("ROCm's runtime is {}.", hip.path.display()),
            Err(_) => "ROCm is looked for under ROCM_PATH and HIP_PATH, on the dynamic loader's path and in /opt/rocm*/lib.".to_string(),
        };
        Error::Device(format!(
            "--device rocm:{ordinal} cannot be used: {error}\n{place} The command `devices` shows what is there and what is missing; --device cpu needs no GPU."
        ))
    };
    let gpu = candle_rocm::Device::new(ordinal).map_err(|e| failed(e.to_string()))?;
    let device = Device::new_rocm(ordinal).map_err(|e| failed(e.to_string()))?;
    let properties = gpu.properties();
    Ok(Selected {
        device,
        name: format!("rocm:{ordinal}"),
        description: format!("{} ({})", properties.name, properties.arch),
        fallback: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        let parse = str::parse::<DeviceRequest>;
        assert_eq!(parse("auto"), Ok(DeviceRequest::Auto));
        assert_eq!(parse("cpu"), Ok(DeviceRequest::Cpu));
        assert_eq!(parse("rocm"), Ok(DeviceRequest::Rocm(0)));
        assert_eq!(parse("rocm:3"), Ok(DeviceRequest::Rocm(3)));
        for bad in [
            "", "gpu", "cuda:0", "rocm:", "rocm:x", "rocm:-1", "cpu:0", "ROCM",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn two_ways_to_name_a_gpu() {
        let request = |rocm_device, device: &str| {
            let device = device.parse().unwrap();
            let args = DeviceArgs {
                device,
                rocm_device,
            };
            args.request()
        };
        assert_eq!(request(None, "cpu").unwrap(), DeviceRequest::Cpu);
        for device in ["auto", "rocm:2"] {
            assert_eq!(request(Some(2), device).unwrap(), DeviceRequest::Rocm(2));
        }
        for device in ["cpu", "rocm:1"] {
            let error = request(Some(2), device).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{error}");
        }
    }

    #[test]
    fn the_cpu_is_always_there() {
        let selected = DeviceRequest::Cpu.select().unwrap();
        assert!(selected.device.is_cpu());
        assert_eq!(selected.fallback, None);
    }
}
