//! Bridges that send what one GPU writes to another up to the processor first.
//!
//! PCI Express calls it Access Control Services: a port with "P2P Request Redirect" lets no request pass to the port
//! beside it. The registers are those of the PCI Express Base Specification, section 7.7.11, as `pci_regs.h` names them
//! (<https://github.com/torvalds/linux/blob/master/include/uapi/linux/pci_regs.h>).

use super::sysfs::file_name;
use std::path::Path;

/// Where extended capabilities begin.
const EXTENDED: usize = 0x100;
/// The capability of access control, where its control register is, and its bit for redirected requests.
const ACS: u16 = 0x000d;
const CONTROL: usize = 6;
const REDIRECTS_REQUESTS: u16 = 1 << 2;

/// The bridges above a device that redirect requests between GPUs, as far as this user may read their registers: root
/// may.
pub(super) fn redirecting_bridges(device: &Path) -> Vec<String> {
    let Ok(real) = std::fs::canonicalize(device) else {
        return Vec::new();
    };
    (real.ancestors().skip(1))
        .map_while(|bridge| {
            std::fs::read(bridge.join("config"))
                .ok()
                .map(|c| (bridge, c))
        })
        .filter(|(_, config)| redirects(config))
        .map(|(bridge, _)| file_name(bridge))
        .collect()
}

/// Whether a port's configuration space has the redirection of requests switched on.
fn redirects(config: &[u8]) -> bool {
    let word = |at: usize| {
        let bytes = config.get(at..at + 2)?;
        Some(u16::from_le_bytes([bytes[0], bytes[1]]))
    };
    let mut at = EXTENDED;
    // So many capabilities fit at most, and a damaged list may be a ring.
    for _ in 0..(4096 - EXTENDED) / 8 {
        let (Some(id), Some(next)) = (word(at), word(at + 2)) else {
            return false;
        };
        if id == ACS {
            return word(at + CONTROL).is_some_and(|control| control & REDIRECTS_REQUESTS != 0);
        }
        at = usize::from(next >> 4);
        if at < EXTENDED {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration space with capabilities at 0x100 and 0x148, the second of which is access control.
    fn space(control: u16) -> Vec<u8> {
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&0x1481_0001_u32.to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        config[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
        config
    }

    #[test]
    fn the_control_register_is_found_in_the_list() {
        assert!(redirects(&space(0x1d)));
        assert!(!redirects(&space(0x19)));
    }

    #[test]
    fn what_cannot_be_read_redirects_nothing() {
        // Others than root read 64 bytes.
        assert!(!redirects(&space(0x1d)[..64]));
        assert!(!redirects(&space(0x1d)[..0x14c]));
        let mut ring = space(0x1d);
        ring[0x100..0x104].copy_from_slice(&0x1001_0001_u32.to_le_bytes());
        assert!(!redirects(&ring));
    }
}
