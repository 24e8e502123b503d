//! Whether somebody looks at what a GPU shows.

use super::sysfs::{entries, file_name, text};
use std::path::Path;

/// What shows the pictures of the GPU at a PCI address: connectors with a screen behind them, such as `DP-1`, and
/// consoles of the kernel, such as `fb0`. Empty if it drives no display.
///
/// (Linux' `drm_sysfs.c`: `/sys/class/drm/cardN-CONNECTOR/status`; `fbsysfs.c`: `/sys/class/graphics/fbN/device`.)
pub fn displays(root: &Path, pci_id: &str) -> Vec<String> {
    let drm = root.join("sys/class/drm");
    let cards: Vec<String> = (entries(&drm))
        .filter(|card| is_numbered(&file_name(card), "card") && is_at(card, pci_id))
        .map(|card| format!("{}-", file_name(&card)))
        .collect();
    let connected = entries(&drm).filter_map(|connector| {
        let name = file_name(&connector);
        let output = cards.iter().find_map(|card| name.strip_prefix(card))?;
        let status = text(&connector.join("status"))?;
        (status == "connected").then(|| output.to_string())
    });
    let consoles = (entries(&root.join("sys/class/graphics")))
        .filter(|console| is_numbered(&file_name(console), "fb") && is_at(console, pci_id))
        .map(|console| file_name(&console));
    let mut found: Vec<String> = connected.chain(consoles).collect();
    found.sort();
    found
}

/// Whether a name is a prefix and a number.
fn is_numbered(name: &str, prefix: &str) -> bool {
    (name.strip_prefix(prefix))
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether what a folder stands for belongs to the device at a PCI address.
fn is_at(folder: &Path, pci_id: &str) -> bool {
    let device = folder.join("device");
    let slot = text(&device.join("uevent")).is_some_and(|uevent| {
        let mut slots = uevent
            .lines()
            .filter_map(|line| line.strip_prefix("PCI_SLOT_NAME="));
        slots.any(|slot| slot == pci_id)
    });
    slot || std::fs::canonicalize(device).is_ok_and(|real| file_name(&real) == pci_id)
}
