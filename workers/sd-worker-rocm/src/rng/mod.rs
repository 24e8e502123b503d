//! The random numbers of a seed, the same on every device.
//!
//! All are drawn on the host and image by image, so a picture depends on its own seed only, not on its batch or device.

mod brownian;
mod seed_sequence;

use brownian::BrownianTree;
use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use std::f64::consts::TAU;

/// Whose random numbers a seed stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RngKind {
    /// Philox as GPUs of PyTorch draw it; what web UIs give.
    #[default]
    Philox,
    /// The Mersenne Twister of PyTorch on the CPU; what diffusers gives with a generator on the CPU.
    TorchCpu,
}

impl RngKind {
    /// The kind of this name: `philox` (or `gpu`, `nv`), `torch-cpu` (or `cpu`), as web UIs call them.
    ///
    /// # Errors
    /// [`worker::Error::Usage`] that lists the names.
    pub fn from_name(name: &str) -> worker::Result<Self> {
        match name.to_ascii_lowercase().as_str() {
            "philox" | "gpu" | "nv" => Ok(Self::Philox),
            "torch-cpu" | "cpu" | "mt19937" => Ok(Self::TorchCpu),
            _ => Err(worker::Error::Usage(format!(
                "{name:?} is not a random number generator; use philox or torch-cpu"
            ))),
        }
    }

    /// The name that [`Self::from_name`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::Philox => "philox",
            Self::TorchCpu => "torch-cpu",
        }
    }
}

/// Standard normal latents for a batch, each image from its own seed.
pub struct BatchNoise {
    generators: Vec<Generator>,
    /// Shape of one image's latents.
    shape: Vec<usize>,
    device: Device,
    /// Noise that is drawn first, where it is another than the seeds', and the seeds behind it.
    first: Option<(Vec<f32>, Option<Vec<u64>>)>,
    kind: RngKind,
    seeds: Vec<u64>,
    /// The pictures' paths, for samplers that go along such.
    paths: Vec<BrownianTree>,
}

/// What is to differ from the noise of seeds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Variation<'a> {
    /// A seed for each image, whose noise is mixed in, and how far, 0 to 1.
    pub to: Option<(&'a [u64], f64)>,
    /// Height and width of latents whose noise stands in the middle of these.
    pub from_size: Option<(usize, usize)>,
    /// Added to the seeds for all but the first noise.
    pub delta: u64,
}

enum Generator {
    Philox(Philox),
    TorchCpu(Box<Mt19937>),
}

impl BatchNoise {
    /// Noise for images of these seeds, each with latents of `shape` (without the batch dimension).
    pub fn new(kind: RngKind, seeds: &[u64], shape: &[usize], device: &Device) -> Self {
        Self {
            generators: seeds
                .iter()
                .map(|seed| Generator::new(kind, *seed))
                .collect(),
            shape: shape.to_vec(),
            device: device.clone(),
            first: None,
            kind,
            seeds: seeds.to_vec(),
            paths: Vec::new(),
        }
    }

    /// Noise that differs, as AUTOMATIC1111's web UI has it.
    #[must_use]
    pub fn varied(mut self, seeds: &[u64], variation: &Variation) -> Self {
        let &Variation {
            to,
            from_size,
            delta,
        } = variation;
        if to.is_none() && from_size.is_none() && delta == 0 {
            return self;
        }
        let mut inner = self.shape.clone();
        if let (Some((height, width)), [.., h, w]) = (from_size, inner.as_mut_slice()) {
            (*h, *w) = (height, width);
        }
        let draw = |seed: u64, shape: &[usize]| {
            let mut values = vec![0f32; shape.iter().product()];
            Generator::new(self.kind, seed).fill_normal(&mut values);
            values
        };
        let mut all = Vec::new();
        for (i, seed) in seeds.iter().enumerate() {
            let mut noise = draw(*seed, &inner);
            if let Some((others, strength)) = to {
                let other = draw(others.get(i).copied().unwrap_or(0), &inner);
                noise = slerp(strength, &noise, &other, &inner);
            }
            if inner != self.shape {
                let mut outer = draw(*seed, &self.shape);
                put_in_the_middle(&mut outer, &self.shape, &noise, &inner);
                noise = outer;
            }
            all.extend(noise);
        }
        let behind = (delta != 0).then(|| seeds.iter().map(|s| s.wrapping_add(delta)).collect());
        self.first = Some((all, behind));
        self
    }

    /// Shape of one image's latents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Steps from now on go along a Brownian motion between two noise levels, the smaller first, each picture along that of
    /// its seed.
    pub fn go_along(&mut self, ends: (f64, f64)) {
        let count = self.shape.iter().product();
        let path = |seed: &u64| BrownianTree::new(self.kind, *seed, count, ends);
        self.paths = self.seeds.iter().map(path).collect();
    }

    /// The numbers of a step down from one noise level to another, f32, `(images, shape…)`: of unit variance, of the path
    /// where there is one, else the next ones.
    ///
    /// # Errors
    /// candle's, from the copy to the device.
    pub fn between(&mut self, from: f64, to: f64) -> candle_core::Result<Tensor> {
        let length = (from - to).sqrt() as f32;
        if self.paths.is_empty() || length.is_nan() || length == 0.0 {
            return self.draw();
        }
        let mut shape = vec![self.paths.len()];
        shape.extend(&self.shape);
        let steps: Vec<Vec<f32>> = (self.paths.par_iter_mut())
            .map(|path| path.between(to, from))
            .collect();
        // Backwards: from noise to the picture.
        let values = steps.concat().into_iter().map(|way| -way / length);
        Tensor::from_vec(values.collect::<Vec<f32>>(), shape, &self.device)
    }

    /// The next numbers of another shape, f32, `(images, shape…)`.
    ///
    /// # Errors
    /// candle's, from the copy to the device.
    pub fn more(&mut self, shape: &[usize]) -> candle_core::Result<Tensor> {
        let images = (0..self.generators.len()).map(|i| self.one(i, shape));
        Tensor::stack(&images.collect::<candle_core::Result<Vec<_>>>()?, 0)
    }

    /// The next numbers of another shape for one image, f32.
    ///
    /// # Errors
    /// candle's, from the copy to the device.
    pub fn one(&mut self, image: usize, shape: &[usize]) -> candle_core::Result<Tensor> {
        let mut values = vec![0f32; shape.iter().product()];
        self.generators[image].fill_normal(&mut values);
        Tensor::from_vec(values, shape, &self.device)
    }

    /// The next numbers, f32, `(images, shape…)`.
    ///
    /// # Errors
    /// candle's, from the copy to the device.
    pub fn draw(&mut self) -> candle_core::Result<Tensor> {
        let count = self.shape.iter().product();
        let mut values = vec![0f32; count * self.generators.len()];
        let first = self.first.take();
        for (generator, image) in self
            .generators
            .iter_mut()
            .zip(values.chunks_exact_mut(count))
        {
            generator.fill_normal(image);
        }
        if let Some((varied, behind)) = first {
            // The seeds' own noise counts as drawn.
            values = varied;
            if let Some(seeds) = behind {
                self.generators = seeds
                    .iter()
                    .map(|s| Generator::new(self.kind, *s))
                    .collect();
            }
        }
        let mut shape = vec![self.generators.len()];
        shape.extend(&self.shape);
        Tensor::from_vec(values, shape, &self.device)?.to_dtype(DType::F32)
    }
}

impl Generator {
    fn new(kind: RngKind, seed: u64) -> Self {
        match kind {
            RngKind::Philox => Self::Philox(Philox::new(seed)),
            RngKind::TorchCpu => Self::TorchCpu(Box::new(Mt19937::new(seed))),
        }
    }

    fn fill_normal(&mut self, values: &mut [f32]) {
        match self {
            Self::Philox(philox) => philox.fill_normal(values),
            Self::TorchCpu(twister) => twister.fill_normal(values),
        }
    }
}

/// The way on a sphere from one noise to another (Shoemake 1985), column by column along the second dimension of `shape`,
/// as the web UI does it: its angles are between these columns, and where they are nearly equal in the mean it mixes
/// plainly, with the ends exchanged.
fn slerp(strength: f64, low: &[f32], high: &[f32], shape: &[usize]) -> Vec<f32> {
    let [outer, length, rest @ ..] = shape else {
        return low.to_vec();
    };
    let inner: usize = rest.iter().product();
    let columns = || (0..outer * inner).map(|i| i / inner * length * inner + i % inner);
    let along = |first: usize| (0..*length).map(move |i| first + i * inner);
    let cosines: Vec<f64> = columns()
        .map(|first| {
            let sum = |a: &[f32], b: &[f32]| -> f64 {
                along(first)
                    .map(|at| f64::from(a[at]) * f64::from(b[at]))
                    .sum()
            };
            sum(low, high) / (sum(low, low) * sum(high, high)).sqrt()
        })
        .collect();
    let mix = |a: f64, b: f64, at: usize| (a * f64::from(low[at]) + b * f64::from(high[at])) as f32;
    if cosines.iter().sum::<f64>() / cosines.len() as f64 > 0.9995 {
        return (0..low.len())
            .map(|at| mix(strength, 1.0 - strength, at))
            .collect();
    }
    let mut out = vec![0f32; low.len()];
    for (first, cosine) in columns().zip(cosines) {
        let angle = cosine.clamp(-1.0, 1.0).acos();
        let (a, b) = match angle.sin() {
            0.0 => (1.0 - strength, strength),
            sine => (
                ((1.0 - strength) * angle).sin() / sine,
                (strength * angle).sin() / sine,
            ),
        };
        for at in along(first) {
            out[at] = mix(a, b, at);
        }
    }
    out
}

/// Puts noise into the middle of other noise; what does not fit is cut off on both sides.
fn put_in_the_middle(outer: &mut [f32], shape: &[usize], inner: &[f32], inner_shape: &[usize]) {
    let ([.., height, width], [.., h, w]) = (shape, inner_shape) else {
        return;
    };
    // The web UI halves the difference downwards: (-3) to (-2).
    let place = |outer: usize, inner: usize| {
        let half = (outer as i64 - inner as i64).div_euclid(2);
        let count = if half >= 0 {
            inner as i64
        } else {
            inner as i64 + 2 * half
        };
        (
            half.max(0) as usize,
            (-half).max(0) as usize,
            count.max(0) as usize,
        )
    };
    let ((to_y, from_y, rows), (to_x, from_x, columns)) = (place(*height, *h), place(*width, *w));
    for channel in 0..outer.len() / (height * width) {
        for y in 0..rows {
            let to = (channel * height + to_y + y) * width + to_x;
            let from = (channel * h + from_y + y) * w + from_x;
            outer[to..to + columns].copy_from_slice(&inner[from..from + columns]);
        }
    }
}

/// Philox 4x32 with 10 rounds (Salmon et al. 2011), laid out as web UIs imitate `torch.randn` of a CUDA device.
#[derive(Debug, Clone)]
pub struct Philox {
    key: [u32; 2],
    /// Calls so far; the first word of the counter.
    offset: u32,
}

impl Philox {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            key: [seed as u32, (seed >> 32) as u32],
            offset: 0,
        }
    }

    /// The block of this counter and key.
    pub fn block(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
        const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
        const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
        for round in 0..10 {
            if round > 0 {
                key[0] = key[0].wrapping_add(WEYL[0]);
                key[1] = key[1].wrapping_add(WEYL[1]);
            }
            let first = MULTIPLIERS[0] * u64::from(counter[0]);
            let second = MULTIPLIERS[1] * u64::from(counter[2]);
            counter = [
                (second >> 32) as u32 ^ counter[1] ^ key[0],
                second as u32,
                (first >> 32) as u32 ^ counter[3] ^ key[1],
                first as u32,
            ];
        }
        counter
    }

    /// Standard normal numbers, one block each; every call begins a new run of blocks.
    pub fn fill_normal(&mut self, values: &mut [f32]) {
        const SCALE: f64 = 1.0 / 4_294_967_296.0;
        for (i, value) in values.iter_mut().enumerate() {
            let [x, y, ..] = Self::block([self.offset, 0, i as u32, 0], self.key);
            let u = (f64::from(x) + 0.5) * SCALE;
            let v = (f64::from(y) + 0.5) * SCALE * TAU;
            *value = ((-2.0 * u.ln()).sqrt() * v.sin()) as f32;
        }
        self.offset = self.offset.wrapping_add(1);
    }
}

/// MT19937 (Matsumoto and Nishimura 1998) with the normal numbers of `torch.randn` on the CPU.
#[derive(Debug, Clone)]
pub struct Mt19937 {
    numbers: rand_mt::Mt,
    /// The second number of a pair, drawn for fewer than [`Self::BLOCK`] numbers.
    spare: Option<f64>,
}

impl Mt19937 {
    /// PyTorch turns uniform numbers into normal ones in blocks of this many.
    const BLOCK: usize = 16;

    /// A generator as `torch.manual_seed` makes it; like there, only the low 32 bits count.
    pub fn new(seed: u64) -> Self {
        Self {
            numbers: rand_mt::Mt::new(seed as u32),
            spare: None,
        }
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.numbers.next_u32()
    }

    /// A single-precision number in [0, 1), 24 bits.
    fn uniform_f32(&mut self) -> f32 {
        (self.next_u32() & 0x00FF_FFFF) as f32 / 16_777_216.0
    }

    /// A double-precision number in [0, 1), 53 bits.
    fn uniform_f64(&mut self) -> f64 {
        let high = u64::from(self.next_u32());
        let bits = ((high << 32) | u64::from(self.next_u32())) & ((1 << 53) - 1);
        bits as f64 / (1u64 << 53) as f64
    }

    /// Standard normal numbers as `torch.randn` of so many gives. Equal to PyTorch's up to the last bits of its
    /// vectorised logarithm and sine.
    pub fn fill_normal(&mut self, values: &mut [f32]) {
        let count = values.len();
        if count < Self::BLOCK {
            for value in values {
                *value = self.normal() as f32;
            }
            return;
        }
        for value in &mut *values {
            *value = self.uniform_f32();
        }
        for block in values.chunks_exact_mut(Self::BLOCK) {
            Self::box_muller(block);
        }
        if !count.is_multiple_of(Self::BLOCK) {
            // The last block is drawn anew and overlaps the one before.
            let last = &mut values[count - Self::BLOCK..];
            for value in &mut *last {
                *value = self.uniform_f32();
            }
            Self::box_muller(last);
        }
    }

    /// Uniform numbers to normal ones: the first half of a block gives the radius, the second the angle.
    fn box_muller(block: &mut [f32]) {
        let (first, second) = block.split_at_mut(Self::BLOCK / 2);
        for (x, y) in first.iter_mut().zip(second) {
            let radius = (-2.0 * (1.0 - *x).ln()).sqrt();
            let angle = std::f32::consts::TAU * *y;
            *x = radius * angle.cos();
            *y = radius * angle.sin();
        }
    }

    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let (u, v) = (self.uniform_f64(), self.uniform_f64());
        let radius = (-2.0 * (-v).ln_1p()).sqrt();
        let angle = TAU * u;
        self.spare = Some(radius * angle.sin());
        radius * angle.cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_known_answers() {
        // From the test vectors of Random123 (philox4x32, 10 rounds).
        assert_eq!(
            Philox::block([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            Philox::block([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            Philox::block(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn philox_is_torch_randn_of_a_gpu() {
        // torch.manual_seed(0); torch.randn(3, 4, device='cuda')
        let gpu = [
            -0.92466259,
            -0.42534415,
            -2.6438457,
            0.14518388,
            -0.12086647,
            -0.57972564,
            -0.62285122,
            -0.32838709,
            -1.07454231,
            -0.36314407,
            -1.67105067,
            2.26550497,
        ];
        let mut ours = [0f32; 12];
        Philox::new(0).fill_normal(&mut ours);
        for (a, b) in ours.iter().zip(gpu) {
            assert!((f64::from(*a) - b).abs() < 1e-6, "{a} {b}");
        }
    }

    #[test]
    fn mersenne_twister_known_answer() {
        // The 10000th number of the C++ standard's default seed.
        let mut twister = Mt19937::new(5489);
        let last = (0..10_000).map(|_| twister.next_u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn an_image_does_not_depend_on_its_batch() {
        let draw = |kind, seeds: &[u64]| {
            let mut noise = BatchNoise::new(kind, seeds, &[4, 3, 5], &Device::Cpu);
            let first = noise.draw().unwrap();
            let second = noise.draw().unwrap();
            Tensor::cat(&[first, second], 1).unwrap()
        };
        for kind in [RngKind::Philox, RngKind::TorchCpu] {
            let both = draw(kind, &[7, 8]);
            let alone = draw(kind, &[8]);
            let of = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(of(both.get(1).unwrap()), of(alone));
        }
    }
}
