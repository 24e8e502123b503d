//! `--devices 0,1`: several devices as a type and as arguments, and the candle devices for them.

use super::{DeviceArgs, DeviceRequest, Selected};
use crate::{Error, Result};
use clap::Args;
use std::str::FromStr;

/// Most GPUs of a list.
pub const MOST_GPUS: usize = 64;

/// Several devices, as the user named them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceList {
    /// Every AMD GPU that this process sees.
    All,
    /// These, in this order: GPUs at most once each. The CPU may come several times, to try on one machine what spans
    /// devices.
    These(Vec<DeviceRequest>),
}

impl FromStr for DeviceList {
    type Err = String;

    /// `0,1`, `0-3`, `rocm:0,rocm:2`, `0,cpu`, `all`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let text = text.trim();
        if text == "all" {
            return Ok(Self::All);
        }
        let mut devices = Vec::new();
        for item in text.split(',') {
            let item = item.trim();
            let bad = || {
                format!(
                    "{item:?} names no device; give numbers of GPUs (0,1 or 0-3), cpu, or all alone"
                )
            };
            let numbers = match item.split_once('-') {
                Some((first, last)) => {
                    let number = |text: &str| text.parse::<usize>().map_err(|_| bad());
                    number(first)?..=number(last)?
                }
                None => match item.parse::<usize>() {
                    Ok(number) => number..=number,
                    Err(_) => match item.parse() {
                        Ok(DeviceRequest::Cpu) => {
                            devices.push(DeviceRequest::Cpu);
                            continue;
                        }
                        Ok(DeviceRequest::Rocm(number)) => number..=number,
                        Ok(DeviceRequest::Auto) | Err(_) => return Err(bad()),
                    },
                },
            };
            if numbers.is_empty() || *numbers.end() >= MOST_GPUS {
                return Err(bad());
            }
            for number in numbers {
                let device = DeviceRequest::Rocm(number);
                if devices.contains(&device) {
                    return Err(format!("GPU {number} is named twice"));
                }
                devices.push(device);
            }
        }
        Ok(Self::These(devices))
    }
}

impl DeviceList {
    /// The devices one by one.
    ///
    /// # Errors
    /// [`Error::Device`] for `all` if there is no GPU.
    pub fn requests(&self) -> Result<Vec<DeviceRequest>> {
        match self {
            Self::These(devices) => Ok(devices.clone()),
            Self::All => {
                let count = candle_rocm::Device::count()
                    .map_err(|error| Error::Device(format!("--devices all: {error}")))?;
                Ok((0..count.min(MOST_GPUS)).map(DeviceRequest::Rocm).collect())
            }
        }
    }

    /// Opens all of them, each under a name of its own.
    ///
    /// # Errors
    /// Those of [`DeviceRequest::open`].
    pub fn open(&self) -> Result<Vec<Selected>> {
        let mut opened: Vec<Selected> = Vec::new();
        for request in self.requests()? {
            let mut selected = request.open()?;
            let plain = selected.name.clone();
            let mut number = 1;
            while opened.iter().any(|other| other.name == selected.name) {
                number += 1;
                selected.name = format!("{plain}-{number}");
            }
            opened.push(selected);
        }
        Ok(opened)
    }

    /// What stands for all where one device is asked about: the first that may be a GPU, or the CPU.
    pub fn representative(&self) -> DeviceRequest {
        match self {
            Self::All => DeviceRequest::Rocm(0),
            Self::These(devices) => {
                let first = devices.iter().copied().find(|device| device.may_be_rocm());
                first.unwrap_or(DeviceRequest::Cpu)
            }
        }
    }
}

impl std::fmt::Display for DeviceList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self::These(devices) = self else {
            return f.write_str("all");
        };
        let names: Vec<String> = devices.iter().map(ToString::to_string).collect();
        f.write_str(&names.join(","))
    }
}

/// The arguments that say where to compute, on one device or on several.
#[derive(Debug, Clone, Args)]
pub struct DeviceListArgs {
    #[command(flatten)]
    one: DeviceArgs,

    /// Compute on several devices: numbers of AMD GPUs (0,1 or 0-3), or all; cpu may stand beside them.
    #[arg(long, value_name = "LIST", value_parser = str::parse::<DeviceList>)]
    devices: Option<DeviceList>,
}

impl DeviceListArgs {
    /// The devices that are named, one if `--devices` is not given.
    ///
    /// # Errors
    /// [`Error::Usage`] if the arguments contradict each other.
    pub fn list(&self) -> Result<DeviceList> {
        let one = self.one.request()?;
        match &self.devices {
            None => Ok(DeviceList::These(vec![one])),
            Some(devices) if one == DeviceRequest::Auto => Ok(devices.clone()),
            Some(_) => Err(Error::Usage(
                "--devices and --device (or --rocm-device) say different things; give one of them"
                    .to_string(),
            )),
        }
    }

    /// Whether `--devices` is given.
    pub fn is_list(&self) -> bool {
        self.devices.is_some()
    }

    /// Whether several devices are named.
    pub fn are_several(&self) -> bool {
        match &self.devices {
            None => false,
            Some(DeviceList::All) => true,
            Some(DeviceList::These(devices)) => devices.len() > 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DeviceRequest::{Cpu, Rocm};

    fn args(list: &[&str]) -> std::result::Result<DeviceListArgs, String> {
        use clap::FromArgMatches;
        let command = DeviceListArgs::augment_args(clap::Command::new("test"));
        let matches = command.try_get_matches_from([&["test"], list].concat());
        let matches = matches.map_err(|e| e.to_string())?;
        DeviceListArgs::from_arg_matches(&matches).map_err(|e| e.to_string())
    }

    #[test]
    fn spellings() {
        let these = |devices: &[DeviceRequest]| Ok(DeviceList::These(devices.to_vec()));
        for (text, expected) in [
            ("all", Ok(DeviceList::All)),
            ("0", these(&[Rocm(0)])),
            ("2,0", these(&[Rocm(2), Rocm(0)])),
            ("rocm:1, rocm:3", these(&[Rocm(1), Rocm(3)])),
            ("0-2,5", these(&[Rocm(0), Rocm(1), Rocm(2), Rocm(5)])),
            ("0,cpu", these(&[Rocm(0), Cpu])),
            ("cpu,cpu", these(&[Cpu, Cpu])),
        ] {
            assert_eq!(text.parse::<DeviceList>(), expected, "{text}");
        }
        for bad in [
            "", ",", "0,", "auto", "gpu", "3-1", "0-", "-1", "0-99", "64", "all,0", "0,0", "0-2,1",
            "1-x",
        ] {
            assert!(bad.parse::<DeviceList>().is_err(), "{bad}");
        }
        let list: DeviceList = "0-1,cpu".parse().unwrap();
        assert_eq!(list.to_string(), "rocm:0,rocm:1,cpu");
    }

    #[test]
    fn one_way_to_name_devices() {
        assert_eq!(
            args(&["--device", "rocm:1"]).unwrap().list().unwrap(),
            DeviceList::These(vec![Rocm(1)])
        );
        let several = args(&["--devices", "0,1"]).unwrap();
        assert!(several.are_several());
        assert_eq!(
            several.list().unwrap(),
            DeviceList::These(vec![Rocm(0), Rocm(1)])
        );
        let both = args(&["--devices", "0,1", "--device", "cpu"]).unwrap();
        assert_eq!(both.list().unwrap_err().exit_code(), 2);
        assert!(args(&["--devices", "0,0"]).unwrap_err().contains("twice"));
    }

    #[test]
    fn each_has_a_name() {
        let list: DeviceList = "cpu,cpu,cpu".parse().unwrap();
        let names = list.open().unwrap().into_iter().map(|device| device.name);
        assert_eq!(names.collect::<Vec<_>>(), ["cpu", "cpu-2", "cpu-3"]);
        assert_eq!(list.representative(), Cpu);
        let mixed: DeviceList = "cpu,1".parse().unwrap();
        assert_eq!(mixed.representative(), Rocm(1));
    }
}
