//! How much memory there is, as the system tells without a device being opened.

use super::schedule::Place;
use crate::device::host_memory_room;
use candle_rocm::topology::Topology;
use std::path::{Path, PathBuf};

/// Variables that give devices other numbers than the system's.
const RENUMBERING: [&str; 3] = [
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
];

/// Bytes that are free where a model would be; none if that is not known.
pub(super) fn free(place: Place) -> Option<u64> {
    match place {
        Place::Cpu => host_memory_room(),
        Place::Rocm(_) => {
            if RENUMBERING
                .iter()
                .any(|name| std::env::var_os(name).is_some())
            {
                return None;
            }
            let topology = Topology::read();
            let of_card = |ordinal: usize| {
                let card = topology.gpus.get(ordinal)?;
                free_of_card(&Path::new("/sys/bus/pci/devices").join(&card.pci_id))
            };
            place.ordinals().map(of_card).sum()
        }
    }
}

/// As amdgpu tells it (<https://docs.kernel.org/gpu/amdgpu/driver-misc.html>); of an APU what it may use of the host's
/// memory counts as well.
fn free_of_card(folder: &Path) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let path: PathBuf = folder.join(name);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let free = |kind: &str| -> Option<u64> {
        let total = number(&format!("mem_info_{kind}_total"))?;
        Some(total.saturating_sub(number(&format!("mem_info_{kind}_used"))?))
    };
    let own = free("vram")?;
    // Less than a card has of its own: it is a part of the host's memory that the firmware has set aside.
    let is_apu = number("mem_info_vram_total")? < number("mem_info_gtt_total").unwrap_or(0) / 2;
    Some(own + free("gtt").filter(|_| is_apu).unwrap_or(0))
}

/// The devices' memory that a process says it uses, in its figures: one line, or one for each device.
pub(super) fn used_by(figures: &str) -> Option<u64> {
    let lines = figures.lines().filter(|line| {
        let name = line.split([' ', '{']).next().unwrap_or_default();
        name.ends_with("_device_memory_used_bytes")
    });
    let values = lines.map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    let sum = values.reduce(|sum, value| Some(sum? + value?))??;
    (sum.is_finite() && sum >= 0.0).then_some(sum as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_and_apus() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, value: u64| {
            std::fs::write(folder.path().join(name), format!("{value}\n")).unwrap();
        };
        assert_eq!(free_of_card(folder.path()), None);
        write("mem_info_vram_total", 24 << 30);
        write("mem_info_vram_used", 4 << 30);
        assert_eq!(free_of_card(folder.path()), Some(20 << 30));
        write("mem_info_gtt_total", 16 << 30);
        write("mem_info_gtt_used", 1 << 30);
        assert_eq!(free_of_card(folder.path()), Some(20 << 30));
        write("mem_info_vram_total", 1 << 30);
        write("mem_info_vram_used", 1 << 29);
        assert_eq!(free_of_card(folder.path()), Some((15 << 30) + (1 << 29)));
    }

    #[test]
    fn what_figures_say() {
        let text = "# HELP llm_device_memory_used_bytes x\nllm_device_memory_bytes 9\nllm_device_memory_used_bytes 5e3\n";
        assert_eq!(used_by(text), Some(5000));
        let two = "sd_worker_device_memory_used_bytes{device=\"rocm:0\"} 5e3\nsd_worker_device_memory_used_bytes{device=\"rocm:1\"} 70\n";
        assert_eq!(used_by(two), Some(5070));
        assert_eq!(used_by("llm_running 1\n"), None);
    }
}
