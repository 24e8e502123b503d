//! How the GPUs are joined, and what is in the way where they work together.

use crate::Check;
use candle_rocm::topology::{Fabric, Topology, Trap};
use serde_json::{json, Value};
use std::path::Path;

/// Looks at the GPUs of the tree under `root`.
pub(super) fn look(check: &Check, root: &Path, topology: &Topology) -> Value {
    let names: Vec<&str> = topology
        .gpus
        .iter()
        .map(|gpu| gpu.pci_id.as_str())
        .collect();
    let fabric = Fabric::read_from(root, names.iter().copied());
    let order: Vec<&str> = fabric.order().into_iter().map(|at| names[at]).collect();
    if names.len() > 1 {
        check.note("what joins the GPUs, with the kernel's weight, from those of the rows to those of the columns:");
        for line in fabric.table(&names) {
            check.note(format!("   {line}"));
        }
        check.note(format!(
            "   the best order for several that share a model: {}",
            order.join(", ")
        ));
    }
    let traps = fabric.traps();
    for trap in &traps {
        let (code, text, advice) = (trap.code(), trap.to_string(), trap.advice());
        match trap {
            // Told of each GPU already.
            Trap::SmallWindow { .. } => {}
            Trap::Iommu | Trap::Redirected { .. } | Trap::OneWay { .. } => {
                check.warning(code, text, advice)
            }
            Trap::Apart { .. } | Trap::NoAtomics { .. } => check.info(code, text, advice),
        }
    }
    let joints = (0..names.len()).map(|from| {
        let joint = |to: usize| (from != to).then(|| fabric.joint(from, to));
        (0..names.len()).map(joint).collect::<Vec<_>>()
    });
    json!({
        "order": order,
        "joints": joints.collect::<Vec<_>>(),
        "traps": traps.iter().map(Trap::code).collect::<Vec<_>>(),
    })
}
