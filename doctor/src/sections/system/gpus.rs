//! Each GPU as the kernel has it: memory, links, slot, firmware, sensors.

use super::machine::{Iommu, Machine};
use crate::sections::size;
use crate::sensors::Sensors;
use crate::Check;
use candle_rocm::topology::{Details, KernelGpu, Topology};
use serde_json::{json, Value};
use std::path::Path;

/// Looks at the GPUs of the tree under `root`.
pub(super) fn look(check: &Check, root: &Path, topology: &Topology, machine: &Machine) -> Value {
    let mut facts = Vec::new();
    for gpu in &topology.gpus {
        let details = Details::read_from(root, &gpu.pci_id);
        tell(check, gpu, &details);
        warn(check, gpu, &details);
        if let Some(sensors) = Sensors::of(root, &gpu.pci_id) {
            if let Some((now, usual)) = sensors.power_caps().filter(|(now, usual)| now < usual) {
                let text = format!(
                    "{}: the power limit is {now:.0} W of {usual:.0} W",
                    gpu.pci_id
                );
                check.info(
                    "power_limit",
                    text,
                    "it is slower so than its data sheet says",
                );
            }
        }
        facts.push(self::facts(gpu, &details));
    }
    if topology.gpus.is_empty() {
        check.note("the kernel knows no AMD GPU");
    }
    if topology.gpus.len() > 1 && machine.iommu == Iommu::Translating {
        check.warning(
            "iommu",
            "the IOMMU translates every access, and there are several GPUs: copies between them may be slow or hang",
            "start the kernel with iommu=pt (https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/install-faq.html)",
        );
    }
    Value::Array(facts)
}

fn tell(check: &Check, gpu: &KernelGpu, details: &Details) {
    let mut parts = Vec::new();
    if let Some(memory) = gpu.memory_bytes.or(details.vram.map(|vram| vram.total)) {
        parts.push(size(memory as usize));
    }
    if let Some(gtt) = details.gtt {
        parts.push(format!("{} of the host's", size(gtt.total as usize)));
    }
    if let Some(link) = details.pcie.last() {
        parts.push(format!(
            "PCIe {} GT/s x{} (at most {} x{})",
            link.speed, link.width, link.max_speed, link.max_width
        ));
    }
    let arch = gpu.arch.as_deref().unwrap_or("unknown processor");
    check.note(format!(
        "{} {} ({arch}): {}",
        gpu.pci_id,
        gpu.display_name(),
        parts.join(", ")
    ));
    for link in details.links.iter().filter(|link| link.gpu.is_some()) {
        let bandwidth = match (link.min_bandwidth, link.max_bandwidth) {
            (_, 0) => String::new(),
            (min, max) => format!(", {:.1} to {:.1} GB/s", min as f64 / 1e3, max as f64 / 1e3),
        };
        check.note(format!(
            "   to {}: {}, weight {}{bandwidth}",
            link.gpu.as_deref().unwrap_or_default(),
            link.kind,
            link.weight
        ));
    }
}

fn warn(check: &Check, gpu: &KernelGpu, details: &Details) {
    let id = &gpu.pci_id;
    for link in details
        .pcie
        .iter()
        .filter(|link| link.width < link.max_width)
    {
        check.warning(
            "pcie_width",
            format!("{id}: the PCIe link of {} has {} of {} lanes", link.pci_id, link.width, link.max_width),
            "put the card into a slot with all lanes, and see that it sits well; copies to and from the host are slower so",
        );
    }
    if let (Some(visible), Some(vram)) = (details.visible_vram, details.vram) {
        if visible < vram.total {
            check.warning(
                "bar",
                format!(
                    "{id}: the processor reaches {} of {} directly",
                    size(visible as usize),
                    size(vram.total as usize)
                ),
                "switch on Resizable BAR (and Above 4G Decoding) in the machine's firmware",
            );
        }
    }
    if let Some(vram) = details.vram.filter(|vram| vram.used > vram.total / 4) {
        check.info(
            "memory_used",
            format!(
                "{id}: {} of {} are taken",
                size(vram.used as usize),
                size(vram.total as usize)
            ),
            "end what else uses the GPU, to measure well",
        );
    }
    for link in details.links.iter().filter(|link| !link.peer_dma) {
        if let Some(other) = &link.gpu {
            let text = format!("{id} and {other} cannot reach each other's memory");
            check.info("peer", text, "copies between them go through the host");
        }
    }
}

fn facts(gpu: &KernelGpu, details: &Details) -> Value {
    let links = details.links.iter().map(|link| {
        json!({
            "kind": link.kind.to_string(),
            "node": link.node,
            "gpu": link.gpu,
            "weight": link.weight,
            "min_bandwidth_mb": link.min_bandwidth,
            "max_bandwidth_mb": link.max_bandwidth,
            "peer_dma": link.peer_dma,
        })
    });
    let caches = details.caches.iter().map(|cache| {
        json!({
            "level": cache.level,
            "data": cache.data,
            "instructions": cache.instructions,
            "bytes": cache.bytes,
            "count": cache.count,
        })
    });
    let banks = details.banks.iter().map(|bank| {
        json!({
            "bytes": bank.bytes,
            "host_visible": bank.host_visible,
            "width_bits": bank.width,
            "clock_mhz": bank.clock,
        })
    });
    let pcie = details.pcie.iter().map(|link| {
        json!({
            "device": link.pci_id,
            "gigatransfers": link.speed,
            "lanes": link.width,
            "max_gigatransfers": link.max_speed,
            "max_lanes": link.max_width,
        })
    });
    let usage =
        |usage: &candle_rocm::topology::Usage| json!({ "total": usage.total, "used": usage.used });
    json!({
        "pci_id": gpu.pci_id,
        "device_id": format!("{:04x}", gpu.device_id),
        "revision": details.revision,
        "name": gpu.display_name(),
        "arch": gpu.arch,
        "simds": gpu.simd_count,
        "wave_size": gpu.wave_size,
        "max_clock_mhz": details.max_clock,
        "partition": details.partition,
        "node": details.node,
        "vram": details.vram.as_ref().map(usage),
        "visible_vram": details.visible_vram,
        "gtt": details.gtt.as_ref().map(usage),
        "firmware": details.firmware,
        "vbios": details.vbios,
        "links": links.collect::<Vec<_>>(),
        "caches": caches.collect::<Vec<_>>(),
        "banks": banks.collect::<Vec<_>>(),
        "pcie": pcie.collect::<Vec<_>>(),
        "obstacles": gpu.obstacles.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
