//! Which device may reach the memory of which other one, and how well: `HIP_SIM_PEERS`.

use crate::error::{HipError, HipResult};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Devices that masks have room for.
pub(crate) const MAX_DEVICES: usize = 64;
const DELAYS: RangeInclusive<f64> = 0.0..=60_000.0;

/// What links the machine has.
#[derive(Clone, Debug, PartialEq)]
struct Links {
    /// By device, a bit for each device whose memory it may access.
    reach: Vec<u64>,
    /// By device, milliseconds that what uses the link to another one takes longer.
    delays: Vec<Vec<f64>>,
    /// Whether atomics of a device work in the memory of another one.
    atomics: bool,
}

impl Links {
    fn all(devices: usize) -> Links {
        Links {
            reach: (0..devices)
                .map(|d| ((1u128 << devices) - 1) as u64 & !(1 << d))
                .collect(),
            delays: vec![vec![0.0; devices]; devices],
            atomics: true,
        }
    }

    /// Reads a comma list as `HIP_SIM_PEERS` has it; the item that cannot be understood is the error.
    fn parse(text: &str, devices: usize) -> Result<Links, String> {
        let mut links = Links::all(devices);
        // Links that are named are the only ones.
        let (mut reach, mut is_named) = (vec![0; devices], false);
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let unknown = || {
                format!(
                    "HIP_SIM_PEERS: {item:?} is not understood; hip-sim/README.md tells what is"
                )
            };
            is_named |= !item.starts_with("slow:") && item != "no-atomics";
            if let Some(slow) = item.strip_prefix("slow:") {
                let (pair, delay) = match slow.split_once(':') {
                    Some((pair, delay)) => {
                        (Some(pair_of(pair, devices).ok_or_else(unknown)?), delay)
                    }
                    None => (None, slow),
                };
                let delay: f64 = delay
                    .parse()
                    .ok()
                    .filter(|ms| DELAYS.contains(ms))
                    .ok_or_else(unknown)?;
                match pair {
                    Some((a, b, _)) => (links.delays[a][b], links.delays[b][a]) = (delay, delay),
                    None => links.delays.iter_mut().flatten().for_each(|d| *d = delay),
                }
            } else if item == "no-atomics" {
                links.atomics = false;
            } else if item == "all" {
                reach = Links::all(devices).reach;
            } else if item == "none" {
                reach.fill(0);
            } else if let Some((a, b, one_way)) = pair_of(item, devices) {
                reach[a] |= 1 << b;
                if !one_way {
                    reach[b] |= 1 << a;
                }
            } else {
                reach = matrix_of(item, devices).ok_or_else(unknown)?;
            }
        }
        if is_named {
            links.reach = reach;
        }
        Ok(links)
    }
}

/// `A-B`, both ways, or `A>B`, in which only A may access the memory of B.
fn pair_of(text: &str, devices: usize) -> Option<(usize, usize, bool)> {
    let one_way = text.contains('>');
    let (a, b) = text.split_once(['-', '>'])?;
    let (a, b): (usize, usize) = (a.parse().ok()?, b.parse().ok()?);
    (a != b && a < devices && b < devices).then_some((a, b, one_way))
}

/// A row of zeros and ones for each device, with slashes between them.
fn matrix_of(text: &str, devices: usize) -> Option<Vec<u64>> {
    let row = |(device, row): (usize, &str)| {
        let bits = row
            .bytes()
            .enumerate()
            .try_fold(0u64, |mask, (peer, digit)| match digit {
                b'1' => Some(mask | 1 << peer),
                b'0' => Some(mask),
                _ => None,
            })?;
        (row.len() == devices).then_some(bits & !(1 << device))
    };
    let rows: Option<Vec<u64>> = text.split('/').enumerate().map(row).collect();
    rows.filter(|rows| rows.len() == devices)
}

/// The links, and which of them were opened.
#[derive(Debug)]
pub(crate) struct Peers {
    links: Mutex<Links>,
    /// By device, a bit for each device whose memory its kernels may access: its own, and those that were enabled.
    open: Vec<AtomicU64>,
}

impl Peers {
    /// For so many devices, with the links that the text tells.
    pub fn new(text: &str, devices: usize) -> Result<Peers, String> {
        if devices > MAX_DEVICES {
            return Err(format!("{devices} devices are more than {MAX_DEVICES}"));
        }
        Ok(Peers {
            links: Mutex::new(Links::parse(text, devices)?),
            open: (0..devices).map(|d| AtomicU64::new(1 << d)).collect(),
        })
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Changes the links; access that was enabled is closed again.
    pub fn set(&self, text: &str) -> Result<(), String> {
        *self.links() = Links::parse(text, self.open.len())?;
        for (device, open) in self.open.iter().enumerate() {
            open.store(1 << device, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Whether a device can be given access to the memory of another one.
    pub fn can_access(&self, device: usize, peer: usize) -> bool {
        self.links().reach[device] >> peer & 1 != 0
    }

    /// Whether atomics of a device work in the memory of another one.
    pub fn has_atomics(&self, device: usize, peer: usize) -> bool {
        self.links().atomics && self.can_access(device, peer)
    }

    /// Whether kernels of a device may access the memory of a device.
    pub fn is_open(&self, device: usize, peer: usize) -> bool {
        self.open[device].load(Ordering::Relaxed) >> peer & 1 != 0
    }

    /// Gives a device access.
    pub fn enable(&self, device: usize, peer: usize) -> HipResult {
        if !self.can_access(device, peer) {
            return Err(HipError::InvalidDevice);
        }
        match self.open[device].fetch_or(1 << peer, Ordering::SeqCst) >> peer & 1 {
            0 => Ok(()),
            _ => Err(HipError::PeerAccessAlreadyEnabled),
        }
    }

    /// Takes access away.
    pub fn disable(&self, device: usize, peer: usize) -> HipResult {
        match self.open[device].fetch_and(!(1 << peer), Ordering::SeqCst) >> peer & 1 {
            0 => Err(HipError::PeerAccessNotEnabled),
            _ => Ok(()),
        }
    }

    /// Waits as long as something that uses the link between two devices takes longer.
    pub fn delay(&self, a: usize, b: usize) {
        let milliseconds = self.links().delays[a][b];
        if milliseconds > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(milliseconds / 1e3));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Links, Peers};
    use crate::error::HipError;

    fn reach(text: &str, devices: usize) -> Vec<u64> {
        Links::parse(text, devices).unwrap().reach
    }

    #[test]
    fn who_reaches_whom() {
        assert_eq!(reach("", 3), [0b110, 0b101, 0b011]);
        assert_eq!(reach("slow:2", 3), reach("all", 3));
        assert_eq!(reach("none", 2), [0, 0]);
        assert_eq!(reach("0-1, 2>0", 3), [0b010, 0b001, 0b001]);
        assert_eq!(reach("010/101/110", 3), [0b010, 0b101, 0b011]);
        assert_eq!(reach("all", 64)[63], u64::MAX >> 1);
        let links = Links::parse("all,slow:0-1:2.5,no-atomics", 3).unwrap();
        assert_eq!(
            (links.delays[1][0], links.delays[1][2], links.atomics),
            (2.5, 0.0, false)
        );
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for bad in [
            "some",
            "0-2",
            "0-0",
            "01/1",
            "01/10/00",
            "slow:",
            "slow:x",
            "slow:0-9:1",
            "slow:-1",
        ] {
            assert!(Links::parse(bad, 2).unwrap_err().contains(bad), "{bad}");
        }
    }

    #[test]
    fn access_is_enabled_once_and_one_way() {
        let peers = Peers::new("0>1", 2).unwrap();
        assert!(peers.is_open(0, 0) && !peers.is_open(0, 1));
        assert_eq!(peers.enable(1, 0), Err(HipError::InvalidDevice));
        assert_eq!(peers.enable(0, 1), Ok(()));
        assert_eq!(peers.enable(0, 1), Err(HipError::PeerAccessAlreadyEnabled));
        assert!(peers.is_open(0, 1) && !peers.is_open(1, 0));
        assert_eq!(peers.disable(0, 1), Ok(()));
        assert_eq!(peers.disable(0, 1), Err(HipError::PeerAccessNotEnabled));
    }
}
