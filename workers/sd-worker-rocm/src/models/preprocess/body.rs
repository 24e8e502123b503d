//! OpenPose (arXiv:1611.08050): maps of where people's joints are, and fields along their limbs.

use super::layers::{channels, conv_of_file};
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::Conv2d;

/// Layers before the stages, which go down a size behind those marked.
const FIRST: [(&str, bool); 12] = [
    ("conv1_1", false),
    ("conv1_2", true),
    ("conv2_1", false),
    ("conv2_2", true),
    ("conv3_1", false),
    ("conv3_2", false),
    ("conv3_3", false),
    ("conv3_4", true),
    ("conv4_1", false),
    ("conv4_2", false),
    ("conv4_3_CPM", false),
    ("conv4_4_CPM", false),
];

/// Stages, each of which sees what the one before has found.
const STAGES: usize = 6;

/// Channels of the fields along limbs: two for each of 19.
pub const FIELDS: usize = 38;

/// Maps of joints: 18, and one of where there is none.
pub const MAPS: usize = 19;

/// Pixels that a value of the maps stands for, each way.
pub const STRIDE: usize = 8;

/// The two halves of a stage: fields and maps.
type Stage = [Vec<Conv2d>; 2];

/// The network.
#[derive(Debug, Clone)]
pub struct Body {
    first: Vec<(Conv2d, bool)>,
    stages: Vec<Stage>,
}

fn half(vb: &VarBuilder, stage: usize, half: usize, inputs: usize) -> Result<Vec<Conv2d>> {
    let name = |i: usize| match stage {
        1 => format!("conv5_{i}_CPM_L{half}"),
        stage => format!("Mconv{i}_stage{stage}_L{half}"),
    };
    let count = if stage == 1 { 5 } else { 7 };
    let mut inputs = inputs;
    let mut layers = Vec::with_capacity(count);
    for i in 1..=count {
        let layer = conv_of_file(vb.pp(name(i)), inputs)?;
        inputs = channels(&layer);
        layers.push(layer);
    }
    let wanted = [FIELDS, MAPS][half - 1];
    if inputs != wanted {
        candle_core::bail!("{} gives {inputs} channels, not {wanted}", name(count))
    }
    Ok(layers)
}

fn run(layers: &[Conv2d], x: &Tensor) -> Result<Tensor> {
    let mut x = x.clone();
    for (i, layer) in layers.iter().enumerate() {
        x = layer.forward(&x)?;
        if i + 1 < layers.len() {
            x = x.relu()?;
        }
    }
    Ok(x)
}

impl Body {
    /// Reads the original's names; widths are those of the file.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder) -> Result<Self> {
        let mut inputs = 3;
        let mut first = Vec::with_capacity(FIRST.len());
        for (name, halves) in FIRST {
            let layer = conv_of_file(vb.pp(name), inputs)?;
            inputs = channels(&layer);
            first.push((layer, halves));
        }
        let stage = |stage| {
            let inputs = match stage {
                1 => inputs,
                _ => inputs + FIELDS + MAPS,
            };
            Ok([half(&vb, stage, 1, inputs)?, half(&vb, stage, 2, inputs)?])
        };
        Ok(Self {
            first,
            stages: (1..=STAGES).map(stage).collect::<Result<_>>()?,
        })
    }

    /// Fields `(1, 38, height / 8, width / 8)` and maps `(1, 19, height / 8, width / 8)` of `(1, 3, height, width)`:
    /// blue, green, red, about -0.5..0.5; sides are multiples of 8.
    ///
    /// # Errors
    /// If the picture is too small, or the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (_, _, height, width) = x.dims4()?;
        if height < STRIDE || width < STRIDE || height % STRIDE != 0 || width % STRIDE != 0 {
            candle_core::bail!(
                "poses of {width} x {height} pixels: multiples of {STRIDE} are wanted"
            )
        }
        let mut x = x.clone();
        for (layer, halves) in &self.first {
            x = layer.forward(&x)?.relu()?;
            if *halves {
                x = x.max_pool2d(2)?;
            }
        }
        let mut found: Option<(Tensor, Tensor)> = None;
        for [fields, maps] in &self.stages {
            let seen = match &found {
                None => x.clone(),
                Some((fields, maps)) => Tensor::cat(&[fields, maps, &x], 1)?,
            };
            found = Some((run(fields, &seen)?, run(maps, &seen)?));
        }
        found.ok_or_else(|| candle_core::Error::msg("a network without stages"))
    }
}
