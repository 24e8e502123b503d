//! `--devices`, `--split` and `--shares`, and the devices that they name.

use super::{Placed, Split};
use candle_core::rocm_backend::candle_rocm;
use candle_core::rocm_backend::candle_rocm::topology::Fabric;
use candle_core::Device;
use clap::Args;
use worker::device::{DeviceList, DeviceListArgs, DeviceRequest, Selected};
use worker::{Error, Result};

/// Where a model computes: on one device, or on several that share it.
#[derive(Debug, Clone, Args)]
pub struct PlacementArgs {
    #[command(flatten)]
    devices: DeviceListArgs,

    /// How --devices share the model: layers (each has some of them), tensor (they divide the matrices of every layer),
    /// none (one of them has all), or auto, as suits the model and the devices.
    #[arg(long, default_value_t, value_name = "auto|layers|tensor|none")]
    split: Split,

    /// The part of each of --devices, in their order, as in 3,1; by their free memory if absent.
    #[arg(long, value_delimiter = ',', value_name = "X,X,…")]
    shares: Vec<f64>,
}

impl PlacementArgs {
    /// The devices that are named.
    ///
    /// # Errors
    /// [`Error::Usage`] for options that contradict each other.
    pub fn list(&self) -> Result<DeviceList> {
        let list = self.devices.list()?;
        if self.devices.is_list() {
            return Ok(list);
        }
        let option = match self.split {
            Split::Layers | Split::Tensor => format!("--split {}", self.split),
            Split::Auto | Split::None if !self.shares.is_empty() => "--shares".to_string(),
            Split::Auto | Split::None => return Ok(list),
        };
        Err(Error::Usage(format!(
            "{option} says how GPUs share a model: name these with --devices 0,1,… or --devices all"
        )))
    }

    /// The device by which it is told whether a GPU is used.
    ///
    /// # Errors
    /// Those of [`Self::list`].
    pub fn representative(&self) -> Result<DeviceRequest> {
        Ok(match self.list()? {
            // As it was said: it may become the CPU.
            DeviceList::These(one) if one.len() == 1 => one[0],
            list => list.representative(),
        })
    }

    /// Opens the devices, and logs if the CPU takes the place of a GPU.
    ///
    /// # Errors
    /// [`Error::Usage`] for options that contradict each other, [`Error::Device`] naming a device that cannot be used.
    pub fn open(&self) -> Result<Placement> {
        let list = match self.list()? {
            DeviceList::All => DeviceList::These(all()?),
            list => list,
        };
        let selected = list.open()?;
        let order = order(&selected);
        let in_order = |place: &usize| selected[*place].clone();
        // As many as devices, or it is refused when the model is known.
        let shares = match self.shares.len() == selected.len() {
            true => order.iter().map(|place| self.shares[*place]).collect(),
            false => self.shares.clone(),
        };
        Ok(Placement {
            selected: order.iter().map(in_order).collect(),
            split: self.split,
            shares,
        })
    }
}

/// An order of devices in which neighbours are joined best. Logs what is in the way between them.
fn order(selected: &[Selected]) -> Vec<usize> {
    let address = |one: &Selected| match &one.device {
        Device::Rocm(device) => Some(device.device().properties().pci_id.clone()),
        _ => None,
    };
    let addresses: Option<Vec<String>> = selected.iter().map(address).collect();
    let Some(addresses) = addresses.filter(|addresses| addresses.len() > 1) else {
        return (0..selected.len()).collect();
    };
    let fabric = Fabric::read(addresses.iter().map(String::as_str));
    for trap in fabric.traps() {
        tracing::warn!("{trap}; {}", trap.advice());
    }
    fabric.order()
}

/// Every GPU of a supported arch; those that share the host's memory only where there are no others.
fn all() -> Result<Vec<DeviceRequest>> {
    let mut candidates = Vec::new();
    for request in DeviceList::All.requests()? {
        let DeviceRequest::Rocm(ordinal) = request else {
            continue;
        };
        let gpu = candle_rocm::Device::new(ordinal)
            .map_err(|error| Error::Device(format!("--devices all: {request}: {error}")))?;
        let properties = gpu.properties();
        if properties.arch.is_supported() {
            candidates.push((request, properties.integrated));
        } else {
            tracing::warn!(
                "{request} is left out: its processor {} is not supported",
                properties.arch
            );
        }
    }
    let taken = without_integrated(&candidates);
    for (left, _) in candidates
        .iter()
        .filter(|(request, _)| !taken.contains(request))
    {
        tracing::info!("{left} is left out of --devices all: it shares the host's memory");
    }
    if taken.is_empty() {
        let reason = "--devices all: no GPU here can be used; the command `devices` tells why";
        return Err(Error::Device(reason.to_string()));
    }
    Ok(taken)
}

/// GPUs, each with whether it shares the host's memory; those that do only if all do.
fn without_integrated(candidates: &[(DeviceRequest, bool)]) -> Vec<DeviceRequest> {
    let has_cards = candidates.iter().any(|(_, integrated)| !integrated);
    let taken = candidates
        .iter()
        .filter(|(_, integrated)| !(has_cards && *integrated));
    taken.map(|(request, _)| *request).collect()
}

/// Devices, and how a model is to be shared between them.
#[derive(Debug, Clone)]
pub struct Placement {
    /// At least one; so that neighbours are joined best.
    pub selected: Vec<Selected>,
    /// How.
    pub split: Split,
    /// The part of each, or none.
    pub shares: Vec<f64>,
}

impl Placement {
    /// Whether there is anything to share.
    pub fn is_shared(&self) -> bool {
        self.selected.len() > 1
    }

    /// What it comes to where several hosts run the model: all their devices have some of the layers each, which node 0
    /// divides.
    ///
    /// # Errors
    /// [`Error::Usage`] if another split was asked for.
    pub fn over_hosts(&self) -> Result<Placed> {
        match self.split {
            Split::Tensor => Err(Error::Usage(
                "--split tensor divides matrices between GPUs of one host; with --nnodes each GPU has some of the layers"
                    .to_string(),
            )),
            _ => Ok(Placed::whole(self.selected[0].device.clone())),
        }
    }

    /// A device of each arch among them: kernels are compiled for archs.
    pub fn of_each_arch(&self) -> Vec<&Device> {
        let arch = |one: &Selected| match &one.device {
            Device::Rocm(device) => Some(device.device().properties().arch.clone()),
            _ => None,
        };
        let mut seen = Vec::new();
        let mut devices = Vec::new();
        for one in &self.selected {
            let arch = arch(one);
            if !seen.contains(&arch) {
                seen.push(arch);
                devices.push(&one.device);
            }
        }
        devices
    }

    /// The first device, where what is not shared is computed, with the names of all.
    pub fn as_one(&self) -> Selected {
        let first = &self.selected[0];
        if !self.is_shared() {
            return first.clone();
        }
        let names: Vec<&str> = self.selected.iter().map(|one| one.name.as_str()).collect();
        // Equal ones as a number.
        let mut kinds: Vec<(&str, usize)> = Vec::new();
        for one in &self.selected {
            match kinds.iter_mut().find(|(kind, _)| *kind == one.description) {
                Some((_, count)) => *count += 1,
                None => kinds.push((&one.description, 1)),
            }
        }
        let kind = |(kind, count): &(&str, usize)| match count {
            1 => kind.to_string(),
            count => format!("{count} x {kind}"),
        };
        let kinds: Vec<String> = kinds.iter().map(kind).collect();
        Selected {
            device: first.device.clone(),
            name: names.join(","),
            description: kinds.join(", "),
            fallback: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        devices: PlacementArgs,
    }

    fn try_parse(line: &str) -> std::result::Result<PlacementArgs, clap::Error> {
        let words = std::iter::once("x").chain(line.split_whitespace());
        Ok(Cli::try_parse_from(words)?.devices)
    }

    fn parse(line: &str) -> PlacementArgs {
        try_parse(line).unwrap()
    }

    #[test]
    fn options_that_contradict_each_other_are_refused_by_name() {
        for (line, why) in [
            (
                "--devices 0,1 --device rocm:0",
                "--device (or --rocm-device)",
            ),
            ("--devices 0,1 --device cpu", "--device (or --rocm-device)"),
            ("--split layers", "--split layers says how"),
            ("--split tensor --device rocm:1", "--devices all"),
            ("--shares 3,1", "--shares says how"),
        ] {
            let error = parse(line).list().unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(why), "{line}: {error}");
        }
        for line in [
            "--devices x",
            "--devices 0,0",
            "--split rows",
            "--devices 0,1 --shares x",
        ] {
            assert!(try_parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn without_devices_all_is_as_it_was() {
        let of = |line: &str| parse(line).representative().unwrap();
        assert_eq!(of("--device rocm:1"), DeviceRequest::Rocm(1));
        assert_eq!(of(""), DeviceRequest::Auto);
        assert_eq!(of("--split none --device cpu"), DeviceRequest::Cpu);
        assert_eq!(of("--devices rocm:2,1"), DeviceRequest::Rocm(2));
        assert_eq!(of("--devices all"), DeviceRequest::Rocm(0));
        let placement = parse("--device cpu").open().unwrap();
        assert_eq!(placement.as_one().name, "cpu");
        assert!(!placement.is_shared());
    }

    #[test]
    fn several_devices_have_one_name() {
        let placement = parse("--devices cpu,cpu,cpu --shares 1,2,3")
            .open()
            .unwrap();
        let one = placement.as_one();
        assert_eq!(one.name, "cpu,cpu-2,cpu-3");
        assert!(
            one.description.starts_with("3 x CPU"),
            "{}",
            one.description
        );
        assert_eq!(placement.shares, [1.0, 2.0, 3.0]);
        let gpu = |ordinal: usize, description: &str| Selected {
            device: Device::Cpu,
            name: format!("rocm:{ordinal}"),
            description: description.to_string(),
            fallback: None,
        };
        let mixed = Placement {
            selected: vec![gpu(2, "A"), gpu(0, "B"), gpu(1, "A")],
            split: Split::Auto,
            shares: Vec::new(),
        };
        let one = mixed.as_one();
        assert_eq!(
            (&*one.name, &*one.description),
            ("rocm:2,rocm:0,rocm:1", "2 x A, B")
        );
    }

    #[test]
    fn hosts_divide_layers_only() {
        let of = |split: &str| {
            parse(&format!("--devices cpu,cpu --split {split}"))
                .open()
                .unwrap()
        };
        assert!(of("layers").over_hosts().unwrap().plan.is_none());
        let error = of("tensor").over_hosts().unwrap_err();
        assert!(error.to_string().contains("--nnodes"), "{error}");
    }

    #[test]
    fn all_leaves_out_what_shares_the_hosts_memory_beside_cards() {
        let gpu = DeviceRequest::Rocm;
        let mixed = [(gpu(0), true), (gpu(1), false), (gpu(2), false)];
        assert_eq!(without_integrated(&mixed), [gpu(1), gpu(2)]);
        assert_eq!(without_integrated(&mixed[..1]), [gpu(0)]);
    }
}
