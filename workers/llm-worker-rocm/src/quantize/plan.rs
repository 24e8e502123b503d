//! Which format each tensor gets.

use std::str::FromStr;
use worker::gguf::{dtype, Format};
use worker::{Error, Result};

/// What a model's weight matrices become.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    target: Target,
    overrides: Vec<Override>,
}

/// The type asked for, as files are named after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    base: Format,
    /// Type of the matrices that lose most by rounding, in the mixtures ending in `_M`.
    better: Option<Format>,
}

/// `PATTERN=TYPE`: tensors whose name contains the pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    pattern: String,
    format: Format,
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let upper = text.to_ascii_uppercase();
        if let Some(base @ ("Q4_K" | "Q5_K")) = upper.strip_suffix("_M") {
            return Ok(Self {
                base: writable(base)?,
                better: Some(writable("Q6_K")?),
            });
        }
        let plain = upper.strip_suffix("_S").filter(|base| base.ends_with("_K"));
        Ok(Self {
            base: writable(plain.unwrap_or(&upper))?,
            better: None,
        })
    }
}

impl FromStr for Override {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.rsplit_once('=') {
            Some((pattern, ty)) if !pattern.is_empty() => Ok(Self {
                pattern: pattern.to_string(),
                format: writable(ty)?,
            }),
            _ => Err(Error::Usage(format!(
                "{text:?} is not PATTERN=TYPE, for example ffn_down=Q6_K"
            ))),
        }
    }
}

/// A type by name that weights can be written in.
fn writable(name: &str) -> Result<Format> {
    let all = || {
        let names: Vec<&str> = Format::ALL
            .iter()
            .filter(|format| is_writable(format))
            .map(|format| format.name())
            .collect();
        names.join(" ")
    };
    if ["FP8", "F8_E4M3"].contains(&name.to_ascii_uppercase().as_str()) {
        return Err(Error::Usage(format!(
            "{name}: no program reads 8-bit floats from GGUF files; --type FP8 --format safetensors writes a folder, Q8_0 has as many bits"
        )));
    }
    Format::from_name(name).filter(is_writable).ok_or_else(|| {
        Error::Usage(format!(
            "{name:?} is not a type that weights are written in; the types are {}, Q4_K_M and Q5_K_M",
            all()
        ))
    })
}

/// Whether candle can quantize to it, and files have weights in it.
fn is_writable(format: &Format) -> bool {
    dtype(*format).is_ok() && !format.is_of_activations() && *format != Format::F8E4M3
}

impl Target {
    /// `general.file_type` of a file whose matrices are mostly of this type, as published files number it.
    pub fn file_type(self) -> Option<u32> {
        let code = match (self.base, self.better.is_some()) {
            (Format::F32, _) => 0,
            (Format::F16, _) => 1,
            (Format::Q4_0, _) => 2,
            (Format::Q4_1, _) => 3,
            (Format::Q8_0, _) => 7,
            (Format::Q5_0, _) => 8,
            (Format::Q5_1, _) => 9,
            (Format::Q2K, _) => 10,
            (Format::Q3K, _) => 11,
            (Format::Q4K, false) => 14,
            (Format::Q4K, true) => 15,
            (Format::Q5K, false) => 16,
            (Format::Q5K, true) => 17,
            (Format::Q6K, _) => 18,
            (Format::IQ2XXS, _) => 19,
            (Format::IQ2XS, _) => 20,
            (Format::IQ3XXS, _) => 23,
            (Format::IQ1S, _) => 24,
            (Format::IQ4NL, _) => 25,
            (Format::IQ3S, _) => 26,
            (Format::IQ2S, _) => 28,
            (Format::IQ4XS, _) => 30,
            (Format::IQ1M, _) => 31,
            (Format::BF16, _) => 32,
            (Format::TQ1_0, _) => 36,
            (Format::TQ2_0, _) => 37,
            (Format::MXFP4, _) => 38,
            _ => return None,
        };
        Some(code)
    }
}

impl Plan {
    /// `target` for every matrix, but for tensors that an override names.
    pub fn new(target: Target, overrides: Vec<Override>) -> Self {
        Self { target, overrides }
    }

    /// The type asked for.
    pub fn target(&self) -> Target {
        self.target
    }

    /// The format of a tensor; dims innermost first, `blocks` is the model's depth.
    ///
    /// Vectors, routers and convolutions stay in F32: they are small and sensitive. A row that is no whole number of
    /// blocks takes the nearest type of blocks of 32, or F16.
    pub fn format_of(&self, name: &str, dims: &[u64], blocks: u32) -> Format {
        let named = self.overrides.iter().find(|o| name.contains(&o.pattern));
        if let Some(chosen) = named {
            return fitting(chosen.format, dims);
        }
        if !is_matrix(name, dims) {
            return Format::F32;
        }
        let better = self.target.better.filter(|_| deserves_better(name, blocks));
        fitting(better.unwrap_or(self.target.base), dims)
    }
}

/// Whether a tensor is a matrix that activations are multiplied with, or an embedding; dims innermost first.
pub(crate) fn is_matrix(name: &str, dims: &[u64]) -> bool {
    const OTHERS: [&str; 5] = [
        "norm",
        "ffn_gate_inp",
        "conv1d",
        "shortconv.conv",
        "rope_freqs",
    ];
    // Rates and factors of recurrences lie as columns and are not called weights.
    dims.len() >= 2
        && dims[1] > 1
        && name.ends_with(".weight")
        && !OTHERS.iter().any(|part| name.contains(part))
}

/// The rule of the `_M` mixtures: the output matrix and those of heads, and the value and down projections of the first
/// and last eighth of the blocks and of every third between. (The table of llama.cpp's quantize.)
fn deserves_better(name: &str, blocks: u32) -> bool {
    if name == "output.weight" || name.ends_with("nextn.shared_head_head.weight") {
        return true;
    }
    let block = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
        .and_then(|(number, part)| Some((number.parse::<u32>().ok()?, part)));
    match block {
        Some((i, "attn_v.weight" | "ffn_down.weight" | "ffn_down_exps.weight")) => {
            i < blocks / 8 || i >= 7 * blocks / 8 || (i - blocks / 8) % 3 == 2
        }
        _ => false,
    }
}

fn fitting(format: Format, dims: &[u64]) -> Format {
    let row = dims.first().copied().unwrap_or(1);
    let fits = |format: Format| row % format.block_size() as u64 == 0;
    if fits(format) {
        return format;
    }
    let smaller = match format {
        Format::Q6K => Format::Q8_0,
        Format::Q5K => Format::Q5_1,
        Format::Q4K => Format::Q5_0,
        Format::TQ1_0 | Format::TQ2_0 => Format::Q4_0,
        format if format.block_size() > 32 => Format::IQ4NL,
        _ => Format::F16,
    };
    if fits(smaller) {
        smaller
    } else {
        Format::F16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_of(target: &str, overrides: &[&str], name: &str, dims: &[u64]) -> &'static str {
        let overrides = overrides.iter().map(|o| o.parse().unwrap()).collect();
        let plan = Plan::new(target.parse().unwrap(), overrides);
        plan.format_of(name, dims, 24).name()
    }

    #[test]
    fn matrices_take_the_target_and_the_rest_stays() {
        assert_eq!(
            type_of("q4_k", &[], "blk.0.attn_q.weight", &[512, 512]),
            "Q4_K"
        );
        assert_eq!(type_of("Q4_K_S", &[], "output.weight", &[512, 512]), "Q4_K");
        assert_eq!(
            type_of("Q4_0", &[], "blk.0.attn_norm.weight", &[512]),
            "F32"
        );
        assert_eq!(
            type_of("Q4_0", &[], "blk.0.ffn_gate_inp.weight", &[512, 8]),
            "F32"
        );
        assert_eq!(type_of("Q4_0", &[], "blk.0.ssm_a", &[1, 64]), "F32");
    }

    #[test]
    fn mixtures_give_more_bits_where_it_matters() {
        assert_eq!(type_of("Q4_K_M", &[], "output.weight", &[512, 512]), "Q6_K");
        let of_head = "blk.24.nextn.shared_head_head.weight";
        assert_eq!(type_of("Q4_K_M", &[], of_head, &[512, 512]), "Q6_K");
        assert_eq!(
            type_of("Q4_K_M", &[], "blk.2.attn_v.weight", &[512, 512]),
            "Q6_K"
        );
        assert_eq!(
            type_of("Q4_K_M", &[], "blk.3.attn_v.weight", &[512, 512]),
            "Q4_K"
        );
        assert_eq!(
            type_of("Q4_K_M", &[], "blk.5.ffn_down.weight", &[512, 512]),
            "Q6_K"
        );
        assert_eq!(
            type_of("Q5_K_M", &[], "blk.23.ffn_down.weight", &[512, 512]),
            "Q6_K"
        );
        assert_eq!(
            type_of("Q5_K_M", &[], "blk.23.ffn_up.weight", &[512, 512]),
            "Q5_K"
        );
    }

    #[test]
    fn ragged_rows_take_smaller_blocks() {
        assert_eq!(type_of("Q6_K", &[], "a.weight", &[576, 4]), "Q8_0");
        assert_eq!(type_of("Q4_K", &[], "a.weight", &[576, 4]), "Q5_0");
        assert_eq!(type_of("Q4_0", &[], "a.weight", &[100, 4]), "F16");
    }

    #[test]
    fn overrides_come_first() {
        let overrides = ["ffn_down=Q8_0", "ffn=Q5_0"];
        assert_eq!(
            type_of("Q4_0", &overrides, "blk.0.ffn_down.weight", &[64, 4]),
            "Q8_0"
        );
        assert_eq!(
            type_of("Q4_0", &overrides, "blk.0.ffn_up.weight", &[64, 4]),
            "Q5_0"
        );
    }

    #[test]
    fn floats_of_8_bits_are_no_type_of_gguf() {
        for name in ["fp8", "F8_E4M3"] {
            let error = name.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("--format safetensors"), "{error}");
        }
        let error = "Q9".parse::<Target>().unwrap_err().to_string();
        assert!(!error.contains("F8_E4M3"), "{error}");
    }

    #[test]
    fn types_of_no_file_are_refused_by_name() {
        for name in ["Q8_K", "I32", "Q9_9"] {
            let error = name.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("Q4_K_M"), "{error}");
        }
        assert!("=Q4_0".parse::<Override>().is_err());
    }
}
