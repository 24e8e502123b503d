//! Frames of a video that are there from the beginning.

use super::denoiser::run::Ends;
use crate::rng::BatchNoise;
use crate::sampling::NoiseLevel;
use candle_core::{Result, Tensor};

/// Latents of frames that the network sees beside those that become, without noise or with a little that becomes less.
pub(super) struct Given {
    /// In the place of the first, `(1, channels, 1, height, width)`.
    first: Option<Tensor>,
    /// Behind all others, of frames that the network knows the places of.
    later: Vec<Tensor>,
    /// How much noise they have, times the square of the share of time that is left.
    noise: f64,
    /// The first as the network has seen it last, one for each video.
    seen: Option<Tensor>,
}

impl Given {
    /// Of what a network sees of pictures, if there are such latents.
    pub fn of(ends: &Ends) -> Option<Self> {
        let given = ends.first.is_some() || !ends.later.is_empty();
        given.then(|| Self {
            first: ends.first.clone(),
            later: ends
                .later
                .iter()
                .map(|(_, latent)| latent.clone())
                .collect(),
            noise: ends.noise,
            seen: None,
        })
    }

    /// What the network is to see at this level in the place of `x`, `(batch, channels, frames, height, width)`.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn input(
        &mut self,
        x: &Tensor,
        level: &NoiseLevel,
        noise: &mut BatchNoise,
    ) -> Result<Tensor> {
        let (batch, channels, frames, height, width) = x.dims5()?;
        let count = self.later.len();
        let scale = self.noise * (level.timestep / 1000.0).powi(2);
        // As diffusers draws it: for all latents, token by token, later frames first.
        let noise = match self.noise > 0.0 {
            true => {
                let all = count + frames;
                let noise = noise.more(&[all * height * width, channels])?;
                let noise = noise.transpose(1, 2)?.contiguous()?;
                Some(noise.reshape((batch, channels, all, height, width))?)
            }
            false => None,
        };
        let noised = |latent: &Tensor, at: usize| {
            let latent = latent.to_dtype(x.dtype())?.repeat((batch, 1, 1, 1, 1))?;
            match &noise {
                Some(noise) => latent + (noise.narrow(2, at, 1)? * scale)?,
                None => Ok(latent),
            }
        };
        let mut parts = Vec::new();
        match &self.first {
            Some(first) => {
                let first = noised(first, count)?;
                parts.push(with_first(x, &first)?);
                self.seen = Some(first);
            }
            None => parts.push(x.clone()),
        }
        for (i, latent) in self.later.iter().enumerate() {
            parts.push(noised(latent, i)?);
        }
        Tensor::cat(&parts, 2)
    }

    /// What of the network's output is about the video's frames.
    ///
    /// # Errors
    /// If the device fails.
    pub fn output(&self, output: Tensor) -> Result<Tensor> {
        match self.later.len() {
            0 => Ok(output),
            later => output.narrow(2, 0, output.dim(2)? - later)?.contiguous(),
        }
    }

    /// The video when all steps are done.
    ///
    /// # Errors
    /// If the device fails.
    pub fn end(&self, x: Tensor) -> Result<Tensor> {
        match &self.seen {
            Some(first) => with_first(&x, first),
            None => Ok(x),
        }
    }
}

/// Latents `(batch, channels, frames, height, width)` with `first`, `(batch, channels, 1, height, width)`.
fn with_first(latents: &Tensor, first: &Tensor) -> Result<Tensor> {
    match latents.dim(2)? {
        1 => Ok(first.clone()),
        frames => Tensor::cat(&[first, &latents.narrow(2, 1, frames - 1)?], 2),
    }
}
