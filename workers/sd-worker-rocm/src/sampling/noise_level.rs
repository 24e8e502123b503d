//! A point between image and noise.

/// A point between image and noise: `x = alpha · image + sigma · noise`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NoiseLevel {
    /// What the network is told, 0 to the number of training steps (usually 1000); may lie between whole steps.
    pub timestep: f64,
    /// Share of the image.
    pub alpha: f64,
    /// Share of the noise.
    pub sigma: f64,
}

impl NoiseLevel {
    /// No noise.
    pub const CLEAN: Self = Self {
        timestep: 0.0,
        alpha: 1.0,
        sigma: 0.0,
    };

    /// Noise over image, the `sigma` of k-diffusion; infinite where no image is left.
    pub fn ratio(&self) -> f64 {
        self.sigma / self.alpha
    }
}
