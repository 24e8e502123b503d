//! Tensors of modules, gathered from all files.

use super::scheme::Quantization;
use crate::hf::files::{plain_format, Stored};
use std::collections::BTreeMap;

/// The name of each tensor's part behind that of the module.
const PARTS: [&str; 14] = [
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "bias_scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
];

/// What is said of activations and caches.
const OF_ACTIVATIONS: [&str; 12] = [
    "input_scale",
    "input_scale_ub",
    "input_global_scale",
    "input_zero_point",
    "activation_scale",
    "output_scale",
    "output_zero_point",
    "k_scale",
    "v_scale",
    "q_scale",
    "prob_scale",
    "kv_scale",
];

/// The matrices of stacked experts, which have no `weight` in their names.
const STACKED: [&str; 2] = ["experts.gate_up_proj", "experts.down_proj"];

/// Tensors of a module by their parts' names.
#[derive(Debug, Default)]
pub(in crate::hf) struct Module {
    /// The name of its tensor in a folder that is not quantized.
    pub tensor: String,
    pub parts: BTreeMap<String, Stored>,
}

/// Tensors of all quantized modules, by modules' names.
#[derive(Default)]
pub(in crate::hf) struct Parts {
    pub modules: BTreeMap<String, Module>,
}

/// A tensor's module, the name of the module's matrix, and the name of the part.
fn split(name: &str) -> Option<(&str, String, &str)> {
    for matrix in STACKED {
        // Other modules' names may end like that (`shared_experts.down_proj.weight`).
        let Some(at) = name.rfind(matrix).filter(|at| name[..*at].ends_with('.')) else {
            continue;
        };
        let (module, rest) = name.split_at(at + matrix.len());
        let part = match rest {
            "" => "weight",
            "_scale" => "weight_scale",
            "_scale_inv" => "weight_scale_inv",
            rest => match rest.strip_prefix('_') {
                Some(part) => part,
                None => continue,
            },
        };
        return Some((module, module.to_string(), part));
    }
    let (module, part) = name.rsplit_once('.')?;
    Some((module, format!("{module}.weight"), part))
}

impl Parts {
    /// Takes a tensor that is part of a quantized matrix, or says something of activations; gives whether it is.
    pub(in crate::hf) fn take(&mut self, name: &str, stored: Stored) -> Result<bool, String> {
        let Some((module, tensor, part)) = split(name) else {
            return Ok(false);
        };
        if OF_ACTIVATIONS.contains(&part) {
            return Ok(true);
        }
        let is_plain = part == "weight" && plain_format(stored.dtype).is_some();
        if is_plain || !PARTS.contains(&part) {
            return Ok(false);
        }
        let module = self.modules.entry(module.to_string()).or_default();
        module.tensor = tensor;
        match module.parts.insert(part.to_string(), stored) {
            Some(_) => Err(format!("tensor {name} appears twice")),
            None => Ok(true),
        }
    }
}

impl Module {
    /// Takes a part that has to be there.
    pub(super) fn take(&mut self, part: &str) -> Result<Stored, String> {
        let found = self.parts.remove(part);
        found.ok_or_else(|| format!("it has no {part}"))
    }
}

/// For messages: what a configuration says of a module that it should not.
pub(super) fn unexpected(quantization: &Quantization, module: &Module) -> String {
    let parts: Vec<&str> = module.parts.keys().map(String::as_str).collect();
    format!(
        "quantization_config ({}) leaves it as it is, yet it has {}",
        quantization.method(),
        parts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_belong_to_modules() {
        let found = |name: &str| {
            let (module, tensor, part) = split(name).unwrap();
            (module.to_string(), tensor, part.to_string())
        };
        let expected = |module: &str, tensor: &str, part: &str| {
            (module.to_string(), tensor.to_string(), part.to_string())
        };
        assert_eq!(
            found("a.q_proj.weight_scale"),
            expected("a.q_proj", "a.q_proj.weight", "weight_scale")
        );
        let stacked = "mlp.experts.gate_up_proj";
        for (ending, part) in [
            ("", "weight"),
            ("_scale", "weight_scale"),
            ("_scale_inv", "weight_scale_inv"),
            ("_weight_scale_2", "weight_scale_2"),
        ] {
            let name = format!("{stacked}{ending}");
            assert_eq!(found(&name), expected(stacked, stacked, part));
        }
        assert_eq!(
            found("mlp.experts.3.down_proj.weight").1,
            "mlp.experts.3.down_proj.weight"
        );
        for module in ["mlp.shared_experts.down_proj", "a.experts.down_proj"] {
            let name = format!("{module}.weight");
            assert_eq!(found(&name), expected(module, &name, "weight"));
        }
    }
}
