//! Rotary tables.

use crate::engine::decoder::config::Base;
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::rotary::{self, Scaling, Tables};
use crate::engine::decoder::tensors::{ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT};
use candle_core::DType;
use std::ops::Range;
use worker::{Error, Result};

impl Loader<'_> {
    pub(super) fn tables(&self, base: Base, context: usize) -> Result<Tables> {
        let c = self.config;
        let rope = &c.rope;
        let used: Range<usize> = 0..c.blocks;
        let local = used.clone().any(|b| c.layer(b).rotary == Some(Base::Local));
        let global = used
            .clone()
            .any(|b| c.layer(b).rotary == Some(Base::Global));
        let frequencies = match base {
            Base::Global if !global => Vec::new(),
            Base::Local if local => {
                rotary::frequencies(c.local_dims(), c.local_base(), &Scaling::None, None)
            }
            Base::Local => Vec::new(),
            Base::Global => {
                let longer = context > rope.original_context;
                let factors = [
                    (ROPE_FACTORS, true),
                    (ROPE_FACTORS_LONG, longer),
                    (ROPE_FACTORS_SHORT, !longer),
                ];
                let factors = factors
                    .into_iter()
                    .find(|(name, fits)| *fits && self.has(name))
                    .map(|(name, _)| {
                        self.vector(name, DType::F32)?
                            .to_vec1::<f32>()
                            .map_err(Error::candle("loading the model"))
                    })
                    .transpose()?;
                rotary::frequencies(rope.dims, rope.base, &rope.scaling, factors.as_deref())
            }
        };
        let magnitude = match base {
            Base::Global => rope.magnitude,
            Base::Local => 1.0,
        };
        let interleaved = c.traits.interleaved;
        Ok(Tables::new(
            frequencies,
            magnitude,
            interleaved,
            self.device,
        ))
    }
}
