//! The tensors of a safetensors folder for candle-transformers, which asks for them by name.

use candle_core::safetensors::MmapedSafetensors;
use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// What files may hold that no model reads: tables that follow from the configuration.
const IGNORED: [&str; 4] = [
    "rotary_emb.inv_freq",
    "attn.bias",
    "attn.masked_bias",
    "attention.rope.freqs",
];

/// Mapped files that remember what was asked for.
pub(super) struct Files {
    files: MmapedSafetensors,
    /// A tensor of the model, and the file's that stands for it if there is none of its name.
    stand_ins: &'static [(&'static str, &'static str)],
    seen: Mutex<BTreeSet<String>>,
}

impl Files {
    pub(super) fn new(
        files: MmapedSafetensors,
        stand_ins: &'static [(&'static str, &'static str)],
    ) -> Arc<Self> {
        Arc::new(Self {
            files,
            stand_ins,
            seen: Mutex::default(),
        })
    }

    /// What candle-transformers loads from.
    pub(super) fn builder(self: &Arc<Self>, dtype: DType, device: &Device) -> VarBuilder<'static> {
        let backend = Box::new(Backend(self.clone()));
        VarBuilder::from_backend(backend, dtype, device.clone())
    }

    /// A tensor that nobody asked for: the model would be another without it.
    pub(super) fn left_over(&self, tied: bool) -> Option<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let names = self.files.tensors().into_iter().map(|(name, _)| name);
        names.filter(|name| !seen.contains(name)).find(|name| {
            let ignored = IGNORED.iter().any(|end| name.ends_with(end));
            !(ignored || tied && name == "lm_head.weight")
        })
    }

    fn resolve<'a>(&self, name: &'a str) -> &'a str
    where
        'static: 'a,
    {
        let stand_in = self.stand_ins.iter().find(|(model, _)| *model == name);
        let name = match stand_in {
            Some((_, other)) if self.files.get(name).is_err() => other,
            _ => name,
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(name.to_string());
        name
    }
}

struct Backend(Arc<Files>);

impl SimpleBackend for Backend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let name = self.0.resolve(name);
        SimpleBackend::get(&self.0.files, shape, name, init, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let name = self.0.resolve(name);
        self.0.files.get_unchecked(name, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let stand_in = self.0.stand_ins.iter().find(|(model, _)| *model == name);
        let there = |name: &str| self.0.files.get(name).is_ok();
        there(name) || stand_in.is_some_and(|(_, other)| there(other))
    }
}
