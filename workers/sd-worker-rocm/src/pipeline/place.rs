//! Where the parts of a model are.

use candle_core::Device;

/// The devices of a model's parts. What passes between parts on different ones is copied from device to device.
#[derive(Debug, Clone)]
pub struct Placement {
    /// Of the text encoders.
    pub text: Device,
    /// Of the denoiser, and of the sampler.
    pub denoiser: Device,
    /// Of the VAE, and of the small one for previews.
    pub vae: Device,
    /// Of ControlNets.
    pub controlnet: Device,
    /// How the halves of guidance are computed.
    pub guidance: GuidancePlace,
}

/// How one model computes the two halves of guidance: the predictions for the negative prompt and for the prompt.
#[derive(Debug, Clone, Default)]
pub enum GuidancePlace {
    /// As one batch on the denoiser's device.
    #[default]
    Together,
    /// One after the other on the denoiser's device: the numbers that two devices give.
    InTurn,
    /// The negative prompt's half by a second denoiser on this device, at the same time.
    Second(Device),
}

impl Placement {
    /// Each device that is used, once.
    pub fn devices(&self) -> Vec<&Device> {
        let second = match &self.guidance {
            GuidancePlace::Second(device) => Some(device),
            GuidancePlace::Together | GuidancePlace::InTurn => None,
        };
        let mut devices: Vec<&Device> = Vec::new();
        let all = [&self.denoiser, &self.text, &self.vae, &self.controlnet];
        for device in all.into_iter().chain(second) {
            if !devices.iter().any(|known| known.same_device(device)) {
                devices.push(device);
            }
        }
        devices
    }
}

impl From<&Device> for Placement {
    /// All on one device.
    fn from(device: &Device) -> Self {
        Self {
            text: device.clone(),
            denoiser: device.clone(),
            vae: device.clone(),
            controlnet: device.clone(),
            guidance: GuidancePlace::Together,
        }
    }
}
