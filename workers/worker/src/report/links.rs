//! What joins GPUs: links by the kernel, access by HIP.

use super::Gpu;
use candle_rocm::topology::Fabric;
use candle_rocm::{Device, PeerAccess};
use serde::Serialize;
use std::fmt;

/// What joins the GPUs of a machine.
#[derive(Debug, Clone, Serialize)]
pub struct Links {
    /// From each GPU to each other one.
    pub links: Vec<Link>,
    /// The order in which neighbours are joined best: that of GPUs that share a model.
    pub order: Vec<String>,
    /// What is in the way where GPUs work together.
    pub traps: Vec<Trap>,
    #[serde(skip)]
    table: Vec<String>,
}

/// The way from one GPU to another.
#[derive(Debug, Clone, Serialize)]
pub struct Link {
    /// The GPU that reads or writes.
    pub from: String,
    /// The GPU whose memory it is.
    pub to: String,
    /// `xGMI` or `PCIe`; `None` if the kernel does not tell.
    pub kind: Option<String>,
    /// The kernel's distance: 15 for each hop of xGMI, more for PCIe.
    pub weight: Option<u64>,
    /// Whether HIP says that the one can reach the other's memory; `None` if it does not say.
    pub access: Option<bool>,
}

/// Something that is known to slow down or break work on several GPUs.
#[derive(Debug, Clone, Serialize)]
pub struct Trap {
    /// A word for it.
    pub code: &'static str,
    /// What it is.
    pub text: String,
    /// What to do.
    pub advice: &'static str,
}

impl Links {
    /// Looks at GPUs in HIP's order; `None` unless there are several that can be opened.
    pub(super) fn of(gpus: &[Gpu]) -> Option<Self> {
        let usable: Vec<(&Gpu, Device)> = (gpus.iter().enumerate())
            .filter(|(_, gpu)| gpu.problem.is_none())
            .filter_map(|(ordinal, gpu)| Some((gpu, Device::new(ordinal).ok()?)))
            .collect();
        if usable.len() < 2 {
            return None;
        }
        let fabric = Fabric::read(usable.iter().map(|(gpu, _)| gpu.pci_id.as_str()));
        let mut links = Vec::new();
        let mut refused = Vec::new();
        for (a, (from, device)) in usable.iter().enumerate() {
            for (b, (to, other)) in usable.iter().enumerate().filter(|(b, _)| *b != a) {
                let access = match device.can_access_peer(other) {
                    Ok(PeerAccess::Possible) => Some(true),
                    Ok(PeerAccess::Refused) => Some(false),
                    Ok(PeerAccess::Unknown(_)) | Err(_) => None,
                };
                if access == Some(false) {
                    refused.push((from.device.as_str(), to.device.as_str()));
                }
                let link = fabric.link(a, b);
                links.push(Link {
                    from: from.device.clone(),
                    to: to.device.clone(),
                    kind: link.map(|link| link.kind.to_string()),
                    weight: link.map(|link| link.weight),
                    access,
                });
            }
        }
        let names: Vec<&str> = usable.iter().map(|(gpu, _)| gpu.device.as_str()).collect();
        let mut traps: Vec<Trap> = (fabric.traps().iter())
            .map(|trap| Trap {
                code: trap.code(),
                text: trap.to_string(),
                advice: trap.advice(),
            })
            .collect();
        traps.extend(by_hip(&refused));
        Some(Self {
            links,
            order: fabric
                .order()
                .into_iter()
                .map(|at| names[at].to_string())
                .collect(),
            traps,
            table: fabric.table(&names),
        })
    }
}

/// What HIP says of access, which counts.
fn by_hip(refused: &[(&str, &str)]) -> Vec<Trap> {
    let through_host =
        "nothing has to be done: they exchange data through the host's memory, which is slower";
    let trap = |(from, to): &(&str, &str)| {
        let both = refused.contains(&(to, from));
        match both {
            true if from < to => Some(Trap {
                code: "no_peer_access",
                text: format!("HIP: {from} and {to} do not reach each other's memory"),
                advice: through_host,
            }),
            true => None,
            false => Some(Trap {
                code: "one_way",
                text: format!(
                    "HIP: {to} reaches the memory of {from}, but not the other way around"
                ),
                advice: through_host,
            }),
        }
    };
    refused.iter().filter_map(trap).collect()
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "What joins the GPUs, with the kernel's weight")?;
        for line in &self.table {
            writeln!(f, "  {line}")?;
        }
        let without = self
            .links
            .iter()
            .filter(|link| link.access == Some(false))
            .count();
        match without {
            0 if self.links.iter().all(|link| link.access == Some(true)) => {
                writeln!(f, "  HIP: each reaches the memory of all others")?
            }
            0 => writeln!(
                f,
                "  HIP does not tell which of them reach each other's memory"
            )?,
            count => writeln!(
                f,
                "  HIP: in {count} of {} directions one does not reach the other's memory",
                self.links.len()
            )?,
        }
        writeln!(
            f,
            "  best order for a model that they share: {}",
            self.order.join(", ")
        )?;
        for trap in &self.traps {
            writeln!(f, "  warning: {}; {}", trap.text, trap.advice)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_in_one_direction_and_in_none_are_told_once() {
        let refused = [
            ("rocm:0", "rocm:1"),
            ("rocm:0", "rocm:2"),
            ("rocm:1", "rocm:0"),
        ];
        let traps = by_hip(&refused);
        let told: Vec<(&str, &str)> = traps
            .iter()
            .map(|trap| (trap.code, trap.text.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                (
                    "no_peer_access",
                    "HIP: rocm:0 and rocm:1 do not reach each other's memory"
                ),
                (
                    "one_way",
                    "HIP: rocm:2 reaches the memory of rocm:0, but not the other way around"
                ),
            ]
        );
    }
}
