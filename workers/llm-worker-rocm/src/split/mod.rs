//! One model on several GPUs: which split suits them.
//!
//! | Module   | Gives                                                                  |
//! |----------|------------------------------------------------------------------------|
//! | `args`   | `--devices`, `--split`, `--shares`                                     |
//! | [`choose`] | the choice: by layers, by tensors, or one GPU, as a pure function     |
//! | `cards`  | what the choice goes by: room, arch and bandwidth of GPUs, their links |
//! | `cut`    | where a model is cut into stages                                       |
//! | `demand` | what a model takes                                                     |
//! | `plan`   | the choice for a model file, and what is told of it                    |

mod args;
mod cards;
pub mod choose;
mod cut;
mod demand;
mod plan;

pub use args::{Placement, PlacementArgs};
pub use cards::{Card, Joints};
pub use demand::Demand;
pub(crate) use plan::{plan, Needs};
pub use plan::{DevicePart, Placed, SplitReport, StageReport};

use std::fmt;
use std::str::FromStr;

/// How devices share a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Split {
    /// As suits the model and the devices.
    #[default]
    Auto,
    /// Each has some of the layers.
    Layers,
    /// They divide the matrices of every layer.
    Tensor,
    /// One of them has all.
    None,
}

impl Split {
    /// What the command line calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Layers => "layers",
            Self::Tensor => "tensor",
            Self::None => "none",
        }
    }
}

impl FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            // llama.cpp calls it so.
            "layers" | "layer" => Ok(Self::Layers),
            "tensor" => Ok(Self::Tensor),
            "none" => Ok(Self::None),
            _ => Err(format!("{text} is not one of auto, layers, tensor, none")),
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
