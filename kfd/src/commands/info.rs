//! `kfd info`: the driver and its GPUs.

use crate::output::{size, Output};
use crate::session::Choice;
use crate::Result;
use candle_kfd::generation::Generation;
use candle_kfd::Kfd;
use serde_json::json;
use std::sync::Arc;

/// Shows them.
///
/// # Errors
/// candle-kfd's, if there is no driver that this user may open.
pub fn run(choice: &Choice) -> Result<()> {
    let kfd = choice.open()?;
    let output = Output::new(choice.common.json);
    let (major, minor) = kfd.version();
    output.say(
        "driver",
        &format!(
            "driver interface {major}.{minor}, {} GPUs",
            kfd.nodes().len()
        ),
        json!({ "version": [major, minor], "gpus": kfd.nodes().len() }),
    );
    let all = 0..kfd.nodes().len();
    let wanted = |index: &usize| choice.common.gpu.is_empty() || choice.common.gpu.contains(index);
    for index in all.filter(wanted) {
        gpu(choice, &output, &kfd, index);
    }
    Ok(())
}

fn gpu(choice: &Choice, output: &Output, kfd: &Arc<Kfd>, index: usize) {
    let node = &kfd.nodes()[index];
    let opened = kfd.gpu(index, choice.displays());
    let free = opened.as_ref().ok().and_then(|gpu| gpu.free_bytes().ok());
    let refused = opened.as_ref().err().map(ToString::to_string);
    let generation = Generation::of(&node.arch).ok();
    let sdma = generation.map(|generation| format!("{:?}", generation.sdma));
    let links: Vec<_> = (node.links.iter())
        .map(|link| {
            json!({
                "node": link.node,
                "gpu": link.gpu,
                "kind": link.kind.to_string(),
                "max_mb_per_second": link.max_bandwidth,
                "peer_dma": link.peer_dma,
            })
        })
        .collect();
    let mut text = format!(
        "GPU {index}: {} at {}, {} compute units, {} of memory{}",
        node.arch,
        node.pci_id,
        node.cu_count(),
        size(node.memory_bytes),
        free.map_or_else(String::new, |free| format!(", {} free", size(free))),
    );
    text.push_str(&format!(
        "\n  SDMA {}: {} engines, {} for xGMI, {} queues each; {} dies; the host sees {}",
        sdma.as_deref().unwrap_or("unknown"),
        node.sdma_engines,
        node.sdma_xgmi_engines,
        node.sdma_queues_per_engine,
        node.xcc_count,
        match node.visible_bytes() {
            0 => "none of the memory".to_string(),
            visible => size(visible),
        },
    ));
    for link in &node.links {
        let to = match &link.gpu {
            Some(gpu) => format!("the GPU at {gpu}"),
            None => "the host".to_string(),
        };
        text.push_str(&format!("\n  {} to {to}", link.kind));
        if link.max_bandwidth > 0 {
            text.push_str(&format!(
                ", {:.1} GB/s at most",
                link.max_bandwidth as f64 / 1e3
            ));
        }
    }
    if let Some(refused) = &refused {
        text.push_str(&format!("\n  refused: {refused}"));
    }
    output.say(
        "gpu",
        &text,
        json!({
            "gpu": index,
            "arch": node.arch,
            "pci": node.pci_id,
            "gpu_id": node.gpu_id,
            "render_minor": node.render_minor,
            "compute_units": node.cu_count(),
            "dies": node.xcc_count,
            "wave_size": node.wave_size,
            "memory_bytes": node.memory_bytes,
            "visible_bytes": node.visible_bytes(),
            "free_bytes": free,
            "max_clock_mhz": node.max_clock,
            "sdma": {
                "packets": sdma,
                "engines": node.sdma_engines,
                "xgmi_engines": node.sdma_xgmi_engines,
                "queues_per_engine": node.sdma_queues_per_engine,
                "firmware": node.sdma_firmware,
            },
            "links": links,
            "refused": refused,
        }),
    );
}
