//! How GPUs of a machine are joined: which order makes the best neighbours of them, and what is known to be in the way.

use super::acs::redirecting_bridges;
use super::{Details, Iommu, Link, LinkKind, Usage};
use std::fmt;
use std::path::Path;

/// Most GPUs for which every order is looked at; more of them are put into a row step by step.
const ALL_ORDERS: usize = 12;

/// GPUs and what is between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fabric {
    /// The GPUs that were asked for.
    pub gpus: Vec<FabricGpu>,
    /// What stands between them and memory.
    pub iommu: Iommu,
}

/// A GPU among others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FabricGpu {
    /// PCI address.
    pub pci_id: String,
    /// Number of the hive: GPUs with the same one are joined by xGMI. None if it is in none.
    pub hive: Option<u64>,
    /// The memory node of the host that is nearest.
    pub numa: Option<u32>,
    /// Links to processors and other GPUs; none if the driver does not tell.
    pub links: Option<Vec<Link>>,
    /// Memory of its own.
    vram: Option<Usage>,
    /// What of it others on the bus reach.
    visible_vram: Option<u64>,
    /// Bridges above it that redirect requests between GPUs.
    redirecting: Vec<String>,
}

/// Whether two GPUs read and write each other's memory, by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Each reaches the other.
    Both,
    /// Only the first reaches the second.
    There,
    /// Only the second reaches the first.
    Back,
    /// Neither does.
    Neither,
    /// The kernel does not tell.
    Unknown,
}

/// Something that is known to slow down or break work on several GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trap {
    /// The IOMMU translates every access.
    Iommu,
    /// Others on the bus reach only a part of a GPU's memory, so that the driver gives them nothing of it.
    SmallWindow {
        /// The GPU.
        pci_id: String,
        /// What they reach, in bytes.
        visible: u64,
        /// What there is, in bytes.
        total: u64,
    },
    /// A bridge redirects what one GPU writes to another.
    Redirected {
        /// The bridge.
        bridge: String,
    },
    /// Two GPUs reach each other in one direction only.
    OneWay {
        /// The GPU that reaches the other.
        from: String,
        /// The GPU that does not.
        to: String,
    },
    /// GPUs do not reach each other's memory.
    Apart {
        /// Two of them, or all.
        gpus: Vec<String>,
    },
    /// A GPU cannot do atomic operations over its PCIe link.
    NoAtomics {
        /// The GPU.
        pci_id: String,
    },
}

impl Trap {
    /// A word for it, always the same.
    pub fn code(&self) -> &'static str {
        match self {
            Trap::Iommu => "iommu",
            Trap::SmallWindow { .. } => "bar",
            Trap::Redirected { .. } => "acs",
            Trap::OneWay { .. } => "one_way",
            Trap::Apart { .. } => "no_peer_access",
            Trap::NoAtomics { .. } => "atomics",
        }
    }

    /// What to do about it.
    pub fn advice(&self) -> &'static str {
        match self {
            Trap::Iommu => "start the kernel with iommu=pt (https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/install-faq.html)",
            Trap::SmallWindow { .. } => "switch on Resizable BAR and Above 4G Decoding in the machine's firmware",
            Trap::Redirected { .. } => "switch off ACS (PCIe access control) in the machine's firmware, unless virtual machines need it",
            Trap::OneWay { .. } => "nothing has to be done: they exchange data through the host's memory, which is slower; a newer kernel or firmware may mend it",
            Trap::Apart { .. } => "nothing has to be done: they exchange data through the host's memory, which is slower; direct access over PCIe needs a kernel with CONFIG_HSA_AMD_P2P and Resizable BAR",
            Trap::NoAtomics { .. } => "put the card into a slot at the processor; RCCL may hang with it unless NCCL_PROTO=Simple is set (https://github.com/ROCm/ROCR-Runtime/issues/355)",
        }
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trap::Iommu => f.write_str("the IOMMU translates every access, and there are several GPUs: copies between them may be slow or hang"),
            Trap::SmallWindow { pci_id, visible, total } => write!(
                f,
                "{pci_id}: {} MiB of {} MiB are reached directly, so that no other GPU reaches its memory",
                visible >> 20,
                total >> 20
            ),
            Trap::Redirected { bridge } => write!(
                f,
                "the PCIe bridge {bridge} redirects what GPUs write to each other to the processor: that is slow or fails"
            ),
            Trap::OneWay { from, to } => write!(f, "{from} reaches the memory of {to}, but not the other way around"),
            Trap::Apart { gpus } => write!(f, "{} do not reach each other's memory", gpus.join(" and ")),
            Trap::NoAtomics { pci_id } => write!(f, "{pci_id}: its PCIe link has no atomic operations"),
        }
    }
}

impl Fabric {
    /// Reads the running system for the GPUs at some PCI addresses.
    pub fn read<'a>(pci_ids: impl IntoIterator<Item = &'a str>) -> Self {
        Self::read_from(Path::new("/"), pci_ids)
    }

    /// Reads the tree under `root`.
    pub fn read_from<'a>(root: &Path, pci_ids: impl IntoIterator<Item = &'a str>) -> Self {
        let devices = root.join("sys/bus/pci/devices");
        let gpus: Vec<FabricGpu> = (pci_ids.into_iter())
            .map(|pci_id| {
                let details = Details::read_from(root, pci_id);
                FabricGpu {
                    pci_id: pci_id.to_string(),
                    hive: details.hive,
                    numa: details.numa,
                    links: details.node.map(|_| details.links),
                    vram: details.vram,
                    visible_vram: details.visible_vram,
                    redirecting: redirecting_bridges(&devices.join(pci_id)),
                }
            })
            .collect();
        Fabric {
            iommu: Iommu::read_from(root, gpus.iter().map(|gpu| gpu.pci_id.as_str())),
            gpus,
        }
    }

    /// The best link from one GPU to another, by their places in [`Self::gpus`].
    pub fn link(&self, from: usize, to: usize) -> Option<&Link> {
        let there = &self.gpus.get(to)?.pci_id;
        (self.gpus.get(from)?.links.iter().flatten())
            .filter(|link| link.gpu.as_ref() == Some(there))
            .min_by_key(|link| (!link.peer_dma, rank(link.kind), link.weight))
    }

    /// Whether two GPUs reach each other, as far as the kernel tells. HIP may see it in another way.
    pub fn reach(&self, a: usize, b: usize) -> Reach {
        let is_known = |at: usize| self.gpus.get(at).is_some_and(|gpu| gpu.links.is_some());
        if !is_known(a) || !is_known(b) {
            return Reach::Unknown;
        }
        let reaches = |from, to| self.link(from, to).is_some_and(|link| link.peer_dma);
        match (reaches(a, b), reaches(b, a)) {
            (true, true) => Reach::Both,
            (true, false) => Reach::There,
            (false, true) => Reach::Back,
            (false, false) => Reach::Neither,
        }
    }

    /// What it costs to have two GPUs beside each other: what they are joined by, then its weight, then whether they
    /// belong to different memory nodes.
    fn cost(&self, a: usize, b: usize) -> u64 {
        let link = self.link(a, b).filter(|_| self.reach(a, b) == Reach::Both);
        let joint = match link {
            Some(link) => (rank(link.kind) << 16) + link.weight.min(0xffff),
            None => 3 << 16,
        };
        let numa = |at: usize| self.gpus.get(at).and_then(|gpu| gpu.numa);
        (joint << 1) + u64::from(numa(a) != numa(b))
    }

    /// An order of the GPUs in which neighbours are joined as well as can be: GPUs of an xGMI hive stand together.
    /// Places in [`Self::gpus`]; where orders are as good, that which changes least at the front.
    pub fn order(&self) -> Vec<usize> {
        let count = self.gpus.len();
        if count <= ALL_ORDERS {
            best_row(count, &|a, b| self.cost(a, b))
        } else {
            stepwise_row(count, &|a, b| self.cost(a, b))
        }
    }

    /// What joins one GPU to another, briefly: `xGMI 15`, with the kernel's weight; `none` if neither link nor access is
    /// known, and with `(no access)` where only the link is.
    pub fn joint(&self, from: usize, to: usize) -> String {
        match self.link(from, to) {
            None => "none".to_string(),
            Some(link) if link.peer_dma => format!("{} {}", link.kind, link.weight),
            Some(link) => format!("{} {} (no access)", link.kind, link.weight),
        }
    }

    /// Lines of a table of what joins the GPUs, under these names for them.
    pub fn table(&self, names: &[&str]) -> Vec<String> {
        let count = names.len().min(self.gpus.len());
        let cell = |from: usize, to: usize| {
            if from == to {
                "-".to_string()
            } else {
                self.joint(from, to)
            }
        };
        let mut rows = vec![std::iter::once(String::new())
            .chain(names.iter().map(ToString::to_string))
            .collect::<Vec<_>>()];
        for (from, name) in names.iter().enumerate().take(count) {
            let cells = (0..count).map(|to| cell(from, to));
            rows.push(std::iter::once(name.to_string()).chain(cells).collect());
        }
        let wide = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..=count).map(wide).collect();
        let line = |row: &Vec<String>| {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
        };
        rows.iter().map(line).collect()
    }

    /// What is known to be in the way where these GPUs work together.
    pub fn traps(&self) -> Vec<Trap> {
        let mut traps = Vec::new();
        if self.gpus.len() < 2 {
            return traps;
        }
        if self.iommu == Iommu::Translating {
            traps.push(Trap::Iommu);
        }
        for gpu in &self.gpus {
            if let (Some(visible), Some(vram)) = (gpu.visible_vram, gpu.vram) {
                if visible < vram.total {
                    traps.push(Trap::SmallWindow {
                        pci_id: gpu.pci_id.clone(),
                        visible,
                        total: vram.total,
                    });
                }
            }
            let mut slot = (gpu.links.iter().flatten()).filter(|link| link.kind == LinkKind::Pcie);
            if slot.any(|link| link.gpu.is_none() && !link.atomics) {
                let pci_id = gpu.pci_id.clone();
                traps.push(Trap::NoAtomics { pci_id });
            }
        }
        let names = || self.gpus.iter().map(|gpu| gpu.pci_id.clone());
        let (mut by_pcie, mut pairs, mut apart) = (false, 0, Vec::new());
        for (a, from) in names().enumerate() {
            for (b, to) in names().enumerate().skip(a + 1) {
                pairs += 1;
                let link = self.link(a, b);
                by_pcie |= link.is_none_or(|link| link.kind == LinkKind::Pcie);
                let from = from.clone();
                match self.reach(a, b) {
                    Reach::There => traps.push(Trap::OneWay { from, to }),
                    Reach::Back => traps.push(Trap::OneWay { from: to, to: from }),
                    Reach::Neither => apart.push(vec![from, to]),
                    Reach::Both | Reach::Unknown => {}
                }
            }
        }
        // One sentence for all of them.
        if apart.len() == pairs {
            apart = vec![names().collect()];
        }
        traps.extend(apart.into_iter().map(|gpus| Trap::Apart { gpus }));
        if by_pcie {
            let mut bridges: Vec<&String> = (self.gpus.iter())
                .flat_map(|gpu| &gpu.redirecting)
                .collect();
            bridges.sort();
            bridges.dedup();
            let bridges = bridges.into_iter().cloned();
            traps.extend(bridges.map(|bridge| Trap::Redirected { bridge }));
        }
        traps
    }
}

/// Better kinds first.
fn rank(kind: LinkKind) -> u64 {
    match kind {
        LinkKind::Xgmi => 0,
        LinkKind::Other(_) => 1,
        LinkKind::Pcie => 2,
    }
}

/// The order of `count` things in which neighbours cost least together, the first of several in lexical order. After
/// Bellman, Held and Karp (<https://doi.org/10.1137/0110015>): the least cost of what remains, by what was visited and
/// where one stands.
fn best_row(count: usize, cost: &dyn Fn(usize, usize) -> u64) -> Vec<usize> {
    if count == 0 {
        return Vec::new();
    }
    let all = (1usize << count) - 1;
    let mut rest = vec![0u64; (all + 1) * count];
    // What has more members comes before what it can follow.
    for visited in (1..all).rev() {
        for last in (0..count).filter(|last| visited >> last & 1 == 1) {
            let next = (0..count).filter(|next| visited >> next & 1 == 0);
            let costs =
                next.map(|next| cost(last, next) + rest[(visited | 1 << next) * count + next]);
            rest[visited * count + last] = costs.min().unwrap_or(0);
        }
    }
    let mut row = Vec::with_capacity(count);
    let mut visited = 0usize;
    for _ in 0..count {
        let total = |next: usize| {
            let step = row.last().map_or(0, |&last| cost(last, next));
            step + rest[(visited | 1 << next) * count + next]
        };
        let open = (0..count).filter(|next| visited >> next & 1 == 0);
        let Some(next) = open.min_by_key(|&next| total(next)) else {
            break;
        };
        visited |= 1 << next;
        row.push(next);
    }
    row
}

/// The first, then always the nearest of those that remain.
fn stepwise_row(count: usize, cost: &dyn Fn(usize, usize) -> u64) -> Vec<usize> {
    let mut open: Vec<usize> = (1..count).collect();
    let mut row = vec![0];
    while let Some(&last) = row.last() {
        let Some(at) = (0..open.len()).min_by_key(|&at| cost(last, open[at])) else {
            break;
        };
        row.push(open.remove(at));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_row_is_the_least_of_all() {
        // Numbers that look random, against every order.
        for count in 1..7 {
            let cost = |a: usize, b: usize| ((a + 1) * (b + 1) * 2_654_435_761 % 97) as u64;
            let total = |row: &[usize]| {
                row.windows(2)
                    .map(|pair| cost(pair[0], pair[1]))
                    .sum::<u64>()
            };
            let mut orders = vec![Vec::new()];
            for _ in 0..count {
                let longer = |row: &Vec<usize>| {
                    let row = row.clone();
                    let rest: Vec<usize> = (0..count).filter(|at| !row.contains(at)).collect();
                    rest.into_iter()
                        .map(move |next| [&row[..], &[next]].concat())
                };
                orders = orders.iter().flat_map(longer).collect();
            }
            let best = orders.iter().map(|row| total(row)).min();
            // The first of the best: the orders are in lexical order.
            let first = orders.iter().find(|row| Some(total(row)) == best);
            assert_eq!(Some(&best_row(count, &cost)), first);
        }
        assert!(best_row(0, &|_, _| 0).is_empty());
    }

    #[test]
    fn many_are_put_into_a_row_step_by_step() {
        let cost = |a: usize, b: usize| if a % 4 == b % 4 { 0 } else { 1 };
        let row = stepwise_row(20, &cost);
        assert_eq!(row[..6], [0, 4, 8, 12, 16, 1]);
        assert_eq!(row.len(), 20);
    }
}
