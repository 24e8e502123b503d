//! Which type each tensor gets.

use std::str::FromStr;
use worker::gguf::GgmlType;
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
    base: GgmlType,
    /// Type of the matrices that lose most by rounding, in the mixtures ending in `_M`.
    better: Option<GgmlType>,
}

/// `PATTERN=TYPE`: tensors whose name contains the pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    pattern: String,
    ggml_type: GgmlType,
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
                ggml_type: writable(ty)?,
            }),
            _ => Err(Error::Usage(format!(
                "{text:?} is not PATTERN=TYPE, for example ffn_down=Q6_K"
            ))),
        }
    }
}

/// A type by name that weights can be written in.
fn writable(name: &str) -> Result<GgmlType> {
    let all = || {
        let names: Vec<&str> = GgmlType::ALL
            .iter()
            .filter(|ty| is_writable(ty))
            .map(|ty| ty.name)
            .collect();
        names.join(" ")
    };
    GgmlType::from_name(name)
        .filter(is_writable)
        .ok_or_else(|| {
            Error::Usage(format!(
                "{name:?} is not a type that weights are written in; the types are {}, Q4_K_M and Q5_K_M",
                all()
            ))
        })
}

/// Q8_1 and Q8_K hold activations while computing, no file has them.
fn is_writable(ty: &GgmlType) -> bool {
    ty.dtype.is_some() && !matches!(ty.name, "Q8_1" | "Q8_K")
}

impl Target {
    /// `general.file_type` of a file whose matrices are mostly of this type, as published files number it.
    pub fn file_type(self) -> Option<u32> {
        let code = match (self.base.name, self.better.is_some()) {
            ("F32", _) => 0,
            ("F16", _) => 1,
            ("Q4_0", _) => 2,
            ("Q4_1", _) => 3,
            ("Q8_0", _) => 7,
            ("Q5_0", _) => 8,
            ("Q5_1", _) => 9,
            ("Q2_K", _) => 10,
            ("Q3_K", _) => 11,
            ("Q4_K", false) => 14,
            ("Q4_K", true) => 15,
            ("Q5_K", false) => 16,
            ("Q5_K", true) => 17,
            ("Q6_K", _) => 18,
            ("IQ2_XXS", _) => 19,
            ("IQ2_XS", _) => 20,
            ("IQ3_XXS", _) => 23,
            ("IQ1_S", _) => 24,
            ("IQ4_NL", _) => 25,
            ("IQ3_S", _) => 26,
            ("IQ2_S", _) => 28,
            ("IQ4_XS", _) => 30,
            ("IQ1_M", _) => 31,
            ("BF16", _) => 32,
            ("TQ1_0", _) => 36,
            ("TQ2_0", _) => 37,
            ("MXFP4", _) => 38,
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

    /// The type of a tensor; dims innermost first, `blocks` is the model's depth.
    ///
    /// Vectors, routers and convolutions stay in F32: they are small and sensitive. A row that is no whole number of blocks takes the nearest
    /// type of blocks of 32, or F16.
    pub fn type_of(&self, name: &str, dims: &[u64], blocks: u32) -> GgmlType {
        let f32 = known("F32");
        let named = self.overrides.iter().find(|o| name.contains(&o.pattern));
        if let Some(chosen) = named {
            return fitting(chosen.ggml_type, dims);
        }
        let matrix = dims.len() >= 2 && dims[1] > 1;
        if !matrix
            || ["norm", "ffn_gate_inp", "conv1d", "rope_freqs"]
                .iter()
                .any(|part| name.contains(part))
        {
            return f32;
        }
        let better = self.target.better.filter(|_| deserves_better(name, blocks));
        fitting(better.unwrap_or(self.target.base), dims)
    }
}

/// The rule of the `_M` mixtures: the output matrix, and the value and down projections of the first and last eighth of the blocks
/// and of every third between. (The table of llama.cpp's quantize.)
fn deserves_better(name: &str, blocks: u32) -> bool {
    if name == "output.weight" {
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

fn fitting(ty: GgmlType, dims: &[u64]) -> GgmlType {
    let row = dims.first().copied().unwrap_or(1);
    let fits = |ty: GgmlType| row % ty.block_elements == 0;
    if fits(ty) {
        return ty;
    }
    let smaller = match ty.name {
        "Q6_K" => "Q8_0",
        "Q5_K" => "Q5_1",
        "Q4_K" => "Q5_0",
        "TQ1_0" | "TQ2_0" => "Q4_0",
        name if ty.block_elements > 32
            && GgmlType::from_name("IQ4_NL").is_some_and(|t| t.dtype.is_some())
            && name != "IQ4_NL" =>
        {
            "IQ4_NL"
        }
        _ => "F16",
    };
    let smaller = known(smaller);
    if fits(smaller) {
        smaller
    } else {
        known("F16")
    }
}

fn known(name: &'static str) -> GgmlType {
    GgmlType::from_name(name).expect("the table of types has the names used here")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_of(target: &str, overrides: &[&str], name: &str, dims: &[u64]) -> &'static str {
        let overrides = overrides.iter().map(|o| o.parse().unwrap()).collect();
        let plan = Plan::new(target.parse().unwrap(), overrides);
        plan.type_of(name, dims, 24).name
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
    }

    #[test]
    fn mixtures_give_more_bits_where_it_matters() {
        assert_eq!(type_of("Q4_K_M", &[], "output.weight", &[512, 512]), "Q6_K");
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
    fn types_of_no_file_are_refused_by_name() {
        for name in ["Q8_K", "I32", "Q9_9"] {
            let error = name.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("Q4_K_M"), "{error}");
        }
        assert!("=Q4_0".parse::<Override>().is_err());
    }
}
