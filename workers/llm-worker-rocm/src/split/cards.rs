//! GPUs as the choice of a split sees them.

use crate::engine::room_for_cache;
use candle_core::rocm_backend::candle_rocm::sys::rccl::Rccl;
use candle_core::rocm_backend::candle_rocm::topology::{self, Topology};
use candle_core::rocm_backend::candle_rocm::{self, PeerAccess};
use candle_core::Device;
use worker::{Error, Result};

/// Bytes a second of a card that is in no table: of an order that makes it neither the fastest nor the slowest.
const USUAL_BANDWIDTH: f64 = 500e9;
/// Room where it is not known, as on the CPU, where it is a matter of the system.
const ROOM_OF_HOST: u64 = 1 << 40;

/// A GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Card {
    /// `rocm:N`, or `cpu`.
    pub name: String,
    /// The hardware in words.
    pub description: String,
    /// Its processor; only equal ones round alike.
    pub arch: String,
    /// Bytes that weights, keys and values may take.
    pub room: u64,
    /// Bytes a second that it reads, by its data sheet.
    pub bandwidth: f64,
}

/// What joins GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Joints {
    /// Two that do not reach each other's memory in both directions, in words; none if all do.
    pub apart: Option<String>,
    /// Whether there is an RCCL.
    pub rccl: bool,
}

impl Card {
    /// Looks at a device.
    pub(super) fn of(device: &Device, name: &str, description: &str, kernel: &Topology) -> Self {
        let room = match device {
            Device::Rocm(_) => room_for_cache(device, 0),
            _ => None,
        };
        let (arch, bandwidth) = match device {
            Device::Rocm(device) => {
                let properties = device.device().properties();
                let gpus = kernel.gpus.iter();
                let known = gpus
                    .filter(|gpu| gpu.pci_id == properties.pci_id)
                    .find_map(|gpu| topology::Card::of(gpu.device_id));
                let bandwidth = known.map(|card| card.bandwidth * 1e9);
                (properties.arch.to_string(), bandwidth)
            }
            _ => ("cpu".to_string(), None),
        };
        Self {
            name: name.to_string(),
            description: description.to_string(),
            arch,
            room: room.unwrap_or(ROOM_OF_HOST),
            bandwidth: bandwidth.unwrap_or(USUAL_BANDWIDTH),
        }
    }
}

impl Joints {
    /// Asks HIP. Ranks on the CPU meet in memory that all of them reach.
    ///
    /// # Errors
    /// [`Error::Device`] if a device fails.
    pub(super) fn of(devices: &[Device], names: &[String]) -> Result<Self> {
        let reaches = |from: &candle_rocm::Device, to: &candle_rocm::Device| {
            (from.can_access_peer(to))
                .map_err(|e| Error::Device(format!("asking for access between GPUs: {e}")))
        };
        let mut apart = None;
        for (a, from) in devices.iter().enumerate() {
            for (b, to) in devices.iter().enumerate() {
                let (Device::Rocm(from), Device::Rocm(to)) = (from, to) else {
                    continue;
                };
                let (from, to) = (from.device(), to.device());
                let there = reaches(from, to)?;
                if there == PeerAccess::Possible || apart.is_some() {
                    continue;
                }
                apart = Some(match (there, reaches(to, from)?) {
                    (PeerAccess::Unknown(symbol), _) => format!(
                        "this ROCm cannot tell which GPUs reach each other: {symbol} is missing"
                    ),
                    (_, PeerAccess::Possible) => format!(
                        "{} does not reach the memory of {}, though the other way around it does",
                        names[a], names[b]
                    ),
                    _ => format!(
                        "{} and {} do not reach each other's memory",
                        names[a], names[b]
                    ),
                });
            }
        }
        Ok(Self {
            apart,
            rccl: Rccl::get().is_ok(),
        })
    }
}
