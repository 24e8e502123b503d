//! How keys and values are stored, for every command that runs a model.

use crate::engine::api::{EngineOptions, KvDType, KvRotation, KvTypes};
use clap::Args;

/// How keys and values are stored.
#[derive(Debug, Clone, Default, Args)]
pub struct KvArgs {
    /// How keys and values are stored: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl or f8_e4m3; what suits the
    /// device if absent.
    #[arg(long, visible_alias = "kv-type", value_name = "TYPE")]
    kv_dtype: Option<KvDType>,

    /// How keys are stored, if not as --kv-dtype says.
    #[arg(long, value_name = "TYPE")]
    cache_type_k: Option<KvDType>,

    /// How values are stored, if not as --kv-dtype says.
    #[arg(long, value_name = "TYPE")]
    cache_type_v: Option<KvDType>,

    /// Whether keys and values turn before they are rounded, so that no element is much larger than the others: auto
    /// (those of four and five bits), on (all that are quantized) or off.
    #[arg(long, default_value_t, value_name = "WHEN")]
    kv_rotation: KvRotation,
}

impl KvArgs {
    /// An engine's options with these.
    pub(super) fn options(&self, options: EngineOptions) -> EngineOptions {
        EngineOptions {
            kv_dtype: self.kv_dtype,
            key_dtype: self.cache_type_k,
            value_dtype: self.cache_type_v,
            kv_rotation: self.kv_rotation,
            ..options
        }
    }

    /// What is asked for, as far as that is known without a model.
    pub(super) fn types(&self) -> Option<KvTypes> {
        let given = [self.kv_dtype, self.cache_type_k, self.cache_type_v];
        let options = self.options(EngineOptions::default());
        let any = given.iter().any(Option::is_some);
        any.then(|| options.kv_types(KvDType::F16))
    }
}
