//! Each GPU as the kernel has it: memory, links, slot, firmware, sensors.

use crate::sections::size;
use crate::sensors::Sensors;
use crate::Check;
use candle_rocm::topology::{Details, KernelGpu, Topology};
use serde_json::{json, Value};
use std::path::Path;

/// Looks at the GPUs of the tree under `root`.
pub(super) fn look(check: &Check, root: &Path, topology: &Topology) -> Value {
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
            "atomics": link.atomics,
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
        "hive": details.hive,
        "numa": details.numa,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Finding, Severity};
    use crate::section::Event;
    use crate::sections::system::{fabric, machine};
    use crate::Options;
    use std::fs;

    /// Two MI300X with xGMI between them; the second stands in a slot with half of its lanes and a small window.
    fn server() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/class/iommu/ivhd0/x".into(), "");
        write(
            "proc/cmdline".into(),
            "quiet root=UUID=0f8fad5b-d9cb-469f-a165-70867728950e",
        );
        write("dev/kfd".into(), "");
        for (node, bus, width, visible) in [(1, 3, "16", "206158430208"), (2, 35, "8", "268435456")]
        {
            let device = format!("sys/bus/pci/devices/0000:{bus:02x}:00.0");
            for (file, text) in [
                ("vendor", "0x1002"),
                ("device", "0x74a1"),
                ("class", "0x120000"),
                ("mem_info_vram_total", "206158430208"),
                ("mem_info_vram_used", "1048576"),
                ("mem_info_vis_vram_total", visible),
                ("current_link_speed", "32.0 GT/s PCIe"),
                ("max_link_speed", "32.0 GT/s PCIe"),
                ("current_link_width", width),
                ("max_link_width", "16"),
            ] {
                write(format!("{device}/{file}"), text);
            }
            let driver = root.path().join(device).join("driver");
            std::os::unix::fs::symlink("../../drivers/amdgpu", driver).unwrap();
            let folder = format!("sys/class/kfd/kfd/topology/nodes/{node}");
            let location = bus << 8;
            write(
                format!("{folder}/properties"),
                &format!("simd_count 1216\ngfx_target_version 90402\nlocation_id {location}\n"),
            );
            write(
                format!("{folder}/io_links/1/properties"),
                &format!(
                    "type 11\nnode_to {}\nweight 15\nmin_bandwidth 50000\nmax_bandwidth 50000\n",
                    3 - node
                ),
            );
        }
        root
    }

    #[test]
    fn what_is_slower_than_it_could_be_is_told() {
        let root = server();
        let options = Options::default();
        let (sender, events) = std::sync::mpsc::channel();
        let check = Check::new("system", None, &options, move |event| {
            let _ = sender.send(event);
        });
        let topology = Topology::read_from(root.path(), &|_| Ok(()));
        let machine = machine::look(&check, root.path(), &topology);
        let facts = look(&check, root.path(), &topology);
        let joined = fabric::look(&check, root.path(), &topology);
        let events: Vec<Event> = events.try_iter().collect();
        let warnings: Vec<&Finding> = (events.iter())
            .filter_map(|event| match event {
                Event::Found(finding) if finding.severity == Severity::Warning => Some(finding),
                _ => None,
            })
            .collect();
        let codes: Vec<&str> = warnings
            .iter()
            .map(|finding| finding.code.as_str())
            .collect();
        assert_eq!(codes, ["system.pcie_width", "system.bar", "system.iommu"]);
        assert!(
            warnings[0].text.contains("8 of 16 lanes"),
            "{}",
            warnings[0].text
        );
        assert!(
            warnings[1].text.contains("256.0 MiB of 192.0 GiB"),
            "{}",
            warnings[1].text
        );
        let notes: Vec<&String> = (events.iter())
            .filter_map(|event| match event {
                Event::Note(note) => Some(note),
                _ => None,
            })
            .collect();
        let linked =
            |note: &&&String| note.contains("to 0000:23:00.0: xGMI, weight 15, 50.0 to 50.0 GB/s");
        assert_eq!(notes.iter().filter(linked).count(), 1, "{notes:?}");
        let row = |note: &&&String| note.contains("0000:03:00.0  -             xGMI 15");
        assert_eq!(notes.iter().filter(row).count(), 1, "{notes:?}");
        let order = ["0000:03:00.0", "0000:23:00.0"];
        assert_eq!(joined["order"], json!(order));
        assert_eq!(joined["joints"][0][1], "xGMI 15");
        assert_eq!(joined["traps"], json!(["iommu", "bar"]));
        assert_eq!(facts[0]["links"][0]["kind"], "xGMI");
        assert_eq!(facts[1]["pcie"][0]["lanes"], 8);
        // Nothing of the kernel's command line but what was looked for.
        assert!(!format!("{facts} {}", machine.facts()).contains("0f8fad5b"));
    }
}
