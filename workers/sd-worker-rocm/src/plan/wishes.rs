//! What the user says about devices: `--part-device`, `--guidance-devices`.

use std::str::FromStr;
use worker::device::{DeviceList, DeviceRequest};

/// A part of a model that may have a device of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The text encoders.
    Text,
    /// The denoiser, with the sampler.
    Denoiser,
    /// The VAE.
    Vae,
    /// ControlNets.
    ControlNet,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Text, Self::Denoiser, Self::Vae, Self::ControlNet];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Denoiser => "denoiser",
            Self::Vae => "vae",
            Self::ControlNet => "controlnet",
        }
    }
}

/// `text=1,vae=1`: parts and their devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartDevices(Vec<(Part, DeviceRequest)>);

impl FromStr for PartDevices {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut parts: Vec<(Part, DeviceRequest)> = Vec::new();
        for item in text.split(',') {
            let (name, device) = item
                .split_once('=')
                .ok_or_else(|| format!("{item:?} is no part with its device, such as text=1"))?;
            let name = name.trim();
            let part = Part::ALL.into_iter().find(|part| part.name() == name);
            let part = part.ok_or_else(|| {
                let names = Part::ALL.map(Part::name).join(", ");
                format!("{name:?} is no part of a model; the parts are {names}")
            })?;
            if parts.iter().any(|(known, _)| *known == part) {
                return Err(format!("{name} is given two devices"));
            }
            parts.push((part, one_device(device)?));
        }
        Ok(Self(parts))
    }
}

/// The devices of guidance's halves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuidanceDevices {
    /// Never on two devices.
    Off,
    /// One after the other on this device, with the numbers that two devices give.
    InTurn(DeviceRequest),
    /// At the same time: the prompt's on the first, the negative prompt's on the second.
    Two([DeviceRequest; 2]),
}

impl FromStr for GuidanceDevices {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.trim() == "off" {
            return Ok(Self::Off);
        }
        match text.parse()? {
            DeviceList::These(devices) => match devices.as_slice() {
                [one] => Ok(Self::InTurn(*one)),
                [first, second] => Ok(Self::Two([*first, *second])),
                _ => Err("guidance has two halves: name two devices, one, or off".to_string()),
            },
            DeviceList::All => Err("guidance has two halves: name their two devices".to_string()),
        }
    }
}

fn one_device(text: &str) -> std::result::Result<DeviceRequest, String> {
    match text.parse()? {
        DeviceList::These(devices) if devices.len() == 1 => Ok(devices[0]),
        _ => Err(format!("{text:?} is not one device")),
    }
}

/// What was asked for.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// Parts with devices of their own.
    pub parts: PartDevices,
    /// Where the halves of guidance are computed; `None` leaves it to the rules.
    pub guidance: Option<GuidanceDevices>,
    /// Weights rest in host memory: only one part is on a device at a time.
    pub offload: bool,
}

impl Wishes {
    /// The devices that are named, in the order in which they are to be opened.
    pub fn devices(&self) -> Vec<DeviceRequest> {
        let mut devices = match &self.guidance {
            Some(GuidanceDevices::Two(two)) => two.to_vec(),
            Some(GuidanceDevices::InTurn(one)) => vec![*one],
            Some(GuidanceDevices::Off) | None => Vec::new(),
        };
        for (_, device) in &self.parts.0 {
            if !devices.contains(device) {
                devices.push(*device);
            }
        }
        devices
    }

    /// Whether one model is divided as the user says.
    pub(super) fn names_devices(&self) -> bool {
        !self.devices().is_empty()
    }

    /// Whether it is said where the denoiser goes.
    pub fn names_denoiser(&self) -> bool {
        let by_guidance = matches!(
            self.guidance,
            Some(GuidanceDevices::Two(_) | GuidanceDevices::InTurn(_))
        );
        by_guidance || self.part(Part::Denoiser).is_some()
    }

    /// The device of a part, if it is named.
    pub(super) fn part(&self, part: Part) -> Option<DeviceRequest> {
        let found = self.parts.0.iter().find(|(known, _)| *known == part);
        found.map(|(_, device)| *device)
    }
}
