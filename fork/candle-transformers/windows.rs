//! Faults of upstream's sliding windows: where they are left out.

use candle_derive::{Edit, Fix};

const GEMMA2: &str = "src/models/gemma2.rs";
const GEMMA3: &str = "src/models/gemma3.rs";
const GEMMA4: &str = "src/models/gemma4/text.rs";
const MISTRAL: &str = "src/models/mistral.rs";
const MIXTRAL: &str = "src/models/mixtral.rs";
const QUANTIZED_MISTRAL: &str = "src/models/quantized_mistral.rs";
const QWEN2: &str = "src/models/qwen2.rs";
const QWEN2_MOE: &str = "src/models/qwen2_moe.rs";
const STARCODER2: &str = "src/models/starcoder2.rs";
const UTILS: &str = "src/utils.rs";

/// Where keys and values are kept: what a step sees is taken from there.
const KEPT: &str = "        self.kv_cache = Some((key_states.clone(), value_states.clone()));\n";
const SEEN: &str = "        self.kv_cache = Some((key_states.clone(), value_states.clone()));\n        let key_states = crate::utils::in_window(key_states, q_len, self.sliding_window)?;\n        let value_states = crate::utils::in_window(value_states, q_len, self.sliding_window)?;\n";

/// The mask of what came before a piece of a prompt.
const NOTHING_HIDDEN: &str = "Tensor::zeros((tgt_len, seqlen_offset), DType::F32, &self.device)?;";
const HIDDEN: &str =
    "crate::utils::past_mask(tgt_len, seqlen_offset, self.sliding_window, &self.device)?;";
const HIDDEN_BY_ANY: &str =
    "crate::utils::past_mask(tgt_len, seqlen_offset, Some(self.sliding_window), &self.device)?;";

/// The field of a layer's attention, with and without flash attention.
const FLASH_FIELD: &str = "    kv_cache: Option<(Tensor, Tensor)>,\n    use_flash_attn: bool,\n}";
const FLASH_FIELD_AND_WINDOW: &str = "    kv_cache: Option<(Tensor, Tensor)>,\n    use_flash_attn: bool,\n    sliding_window: Option<usize>,\n}";
const FIELD: &str = "    kv_cache: Option<(Tensor, Tensor)>,\n}";
const FIELD_AND_WINDOW: &str =
    "    kv_cache: Option<(Tensor, Tensor)>,\n    sliding_window: Option<usize>,\n}";
const FLASH_INIT: &str =
    "            kv_cache: None,\n            use_flash_attn: cfg.use_flash_attn,\n";
const INIT: &str = "            kv_cache: None,\n";

/// What stands for `candle_flash_attn`, which takes the window as the keys before a token.
const FLASH: &str = "    causal: bool,\n) -> Result<Tensor> {\n    candle_flash_attn::flash_attn(q, k, v, softmax_scale, causal)\n";
const FLASH_WINDOWED: &str = "    causal: bool,\n    window: Option<usize>,\n) -> Result<Tensor> {\n    let before = window.map(|window| window.saturating_sub(1));\n    candle_flash_attn::flash_attn_windowed(q, k, v, softmax_scale, before, causal.then_some(0))\n";
const FLASH_SOFTCAP: &str = "    causal: bool,\n    window: Option<usize>,\n    softcap: Option<f64>,\n) -> Result<Tensor> {\n    let (before, behind) = (window.map(|window| window.saturating_sub(1)), causal.then_some(0));\n    let softcap = softcap.unwrap_or(0.) as f32;\n    candle_flash_attn::flash_attn_alibi_windowed_softcap(\n        q, k, v, None, softmax_scale, before, behind, softcap,\n    )\n";
const NO_FLASH: &str =
    "fn flash_attn(_: &Tensor, _: &Tensor, _: &Tensor, _: f32, _: bool) -> Result<Tensor> {";
const NO_FLASH_WINDOWED: &str = "fn flash_attn(\n    _: &Tensor,\n    _: &Tensor,\n    _: &Tensor,\n    _: f32,\n    _: bool,\n    _: Option<usize>,\n) -> Result<Tensor> {";
const NO_FLASH_SOFTCAP: &str = "fn flash_attn(\n    _: &Tensor,\n    _: &Tensor,\n    _: &Tensor,\n    _: f32,\n    _: bool,\n    _: Option<usize>,\n    _: Option<f64>,\n) -> Result<Tensor> {";

/// Which mask a layer gets where only some have a window.
const SAME_MASK: &str =
    "            xs = layer.forward(&xs, attention_mask.as_ref(), seqlen_offset)?\n";
const MASK_OF_LAYER: &str = "            let mask = match layer.self_attn.sliding_window {\n                Some(_) => &sliding_mask,\n                None => &attention_mask,\n            };\n            xs = layer.forward(&xs, mask.as_ref(), seqlen_offset)?\n";

const fn once(file: &'static str, find: &'static str, replace: &'static str) -> Edit {
    Edit {
        file,
        find,
        replace,
        count: 1,
    }
}

/// In the order in which they are applied.
pub const IN_STEPS_AND_FLASH: Fix = Fix {
    name: "sliding windows hold for steps, later pieces of a prompt and flash attention",
    reason: "A window limited what the tokens of a first prompt saw of each other, with plain attention. The tokens after it, one by one or several at once, saw all that was \
             before, and flash attention saw everything (and left out Gemma 3's softcap). Gemma 3 and 4 could not take a second piece beyond the window at all, as their caches had \
             given up what its first tokens see. Qwen 2 had windows in all layers, where its configurations say `use_sliding_window: false`, or have them from `max_window_layers` on.",
    edits: &[
        once(
            UTILS,
            "pub fn apply_repeat_penalty(",
            r#"/// What `tgt` tokens at `offset` see of those before, `(tgt, offset)`, to be added to scores: `-inf` where a window of `window` tokens
/// has left a key behind.
pub(crate) fn past_mask(
    tgt: usize,
    offset: usize,
    window: Option<usize>,
    device: &Device,
) -> Result<Tensor> {
    let mask: Vec<f32> = (offset..offset + tgt)
        .flat_map(|i| {
            (0..offset).map(move |j| match window {
                Some(window) if j + window <= i => f32::NEG_INFINITY,
                _ => 0.,
            })
        })
        .collect();
    Tensor::from_vec(mask, (tgt, offset), device)
}

/// Keys or values `(batch, heads, length, size)` for the last `q_len` tokens: for one, those of its window; for several, all, as a mask
/// says which.
pub(crate) fn in_window(xs: Tensor, q_len: usize, window: Option<usize>) -> Result<Tensor> {
    let length = xs.dim(2)?;
    match window {
        Some(window) if q_len == 1 && length > window => xs.narrow(2, length - window, window),
        _ => Ok(xs),
    }
}

/// Appends to the cache of a window and gives what the new tokens see: the cache, or, for several tokens after others, what it held and they,
/// in order, as the first of them see what the last overwrite.
pub(crate) fn append_in_window(
    cache: &mut candle_nn::kv_cache::RotatingKvCache,
    k: &Tensor,
    v: &Tensor,
) -> Result<(Tensor, Tensor)> {
    if k.dim(2)? == 1 || cache.current_seq_len() == 0 {
        return cache.append(k, v);
    }
    // Once it is full, the oldest entry is where the next one goes.
    let size = cache.k_cache().max_seq_len();
    let oldest = match cache.current_seq_len() < size {
        true => 0,
        false => cache.offset(),
    };
    let seen = |held: Option<Tensor>, new: &Tensor| match held {
        Some(held) => {
            let (late, early) = (held.narrow(2, 0, oldest)?, held.narrow(2, oldest, held.dim(2)? - oldest)?);
            Tensor::cat(&[&early, &late, new], 2)
        }
        None => Ok(new.clone()),
    };
    let all = (seen(cache.k()?, k)?, seen(cache.v()?, v)?);
    cache.append(k, v)?;
    Ok(all)
}

pub fn apply_repeat_penalty("#,
        ),
        // Mistral.
        once(MISTRAL, FLASH, FLASH_WINDOWED),
        once(MISTRAL, NO_FLASH, NO_FLASH_WINDOWED),
        once(MISTRAL, FLASH_FIELD, FLASH_FIELD_AND_WINDOW),
        once(
            MISTRAL,
            FLASH_INIT,
            "            kv_cache: None,\n            use_flash_attn: cfg.use_flash_attn,\n            sliding_window: cfg.sliding_window,\n",
        ),
        // A caller's mask has a column for every key.
        once(
            MISTRAL,
            KEPT,
            "        self.kv_cache = Some((key_states.clone(), value_states.clone()));\n        let window = self.sliding_window.filter(|_| attention_mask.is_none());\n        let key_states = crate::utils::in_window(key_states, q_len, window)?;\n        let value_states = crate::utils::in_window(value_states, q_len, window)?;\n",
        ),
        once(
            MISTRAL,
            "flash_attn(&q, &k, &v, softmax_scale, q_len > 1)?.transpose(1, 2)?",
            "flash_attn(&q, &k, &v, softmax_scale, q_len > 1, self.sliding_window)?\n                .transpose(1, 2)?",
        ),
        once(MISTRAL, NOTHING_HIDDEN, HIDDEN),
        // Mixtral.
        once(MIXTRAL, FLASH, FLASH_WINDOWED),
        once(MIXTRAL, NO_FLASH, NO_FLASH_WINDOWED),
        once(MIXTRAL, FLASH_FIELD, FLASH_FIELD_AND_WINDOW),
        once(
            MIXTRAL,
            FLASH_INIT,
            "            kv_cache: None,\n            use_flash_attn: cfg.use_flash_attn,\n            sliding_window: Some(cfg.sliding_window),\n",
        ),
        once(MIXTRAL, KEPT, SEEN),
        once(
            MIXTRAL,
            "flash_attn(&q, &k, &v, softmax_scale, q_len > 1)?.transpose(1, 2)?",
            "flash_attn(&q, &k, &v, softmax_scale, q_len > 1, self.sliding_window)?\n                .transpose(1, 2)?",
        ),
        once(MIXTRAL, NOTHING_HIDDEN, HIDDEN_BY_ANY),
        // StarCoder 2 and Mistral from GGUF files.
        once(STARCODER2, FIELD, FIELD_AND_WINDOW),
        once(
            STARCODER2,
            INIT,
            "            kv_cache: None,\n            sliding_window: cfg.sliding_window,\n",
        ),
        once(STARCODER2, KEPT, SEEN),
        once(STARCODER2, NOTHING_HIDDEN, HIDDEN),
        once(QUANTIZED_MISTRAL, FIELD, FIELD_AND_WINDOW),
        once(
            QUANTIZED_MISTRAL,
            INIT,
            "            kv_cache: None,\n            sliding_window: cfg.sliding_window,\n",
        ),
        once(QUANTIZED_MISTRAL, KEPT, SEEN),
        once(QUANTIZED_MISTRAL, NOTHING_HIDDEN, HIDDEN),
        // Qwen 2.
        once(QWEN2, FIELD, FIELD_AND_WINDOW),
        once(
            QWEN2,
            INIT,
            "            kv_cache: None,\n            sliding_window: cfg.use_sliding_window.then_some(cfg.sliding_window),\n",
        ),
        once(QWEN2, KEPT, SEEN),
        once(
            QWEN2,
            "            let layer = DecoderLayer::new(rotary_emb.clone(), cfg, vb_l.pp(layer_idx))?;\n",
            "            let mut layer = DecoderLayer::new(rotary_emb.clone(), cfg, vb_l.pp(layer_idx))?;\n            if layer_idx < cfg.max_window_layers {\n                layer.self_attn.sliding_window = None;\n            }\n",
        ),
        once(
            QWEN2,
            "Tensor::zeros((tgt_len, seqlen_offset), self.dtype, &self.device)?;",
            HIDDEN_BY_ANY,
        ),
        once(
            QWEN2,
            "Some(self.prepare_causal_attention_mask(b_size, seq_len, seqlen_offset)?)",
            "Some(crate::utils::build_additive_causal_mask(\n                seq_len,\n                seqlen_offset,\n                None,\n                &self.device,\n                self.dtype,\n            )?)",
        ),
        once(
            QWEN2,
            "        let mut xs = self.embed_tokens.forward(input_ids)?;\n",
            "        let mut windows = self.layers.iter().filter_map(|layer| layer.self_attn.sliding_window);\n        // A caller's mask holds for all layers.\n        let sliding_mask = if attn_mask.is_none() && seq_len > 1 && windows.next().is_some() {\n            Some(self.prepare_causal_attention_mask(b_size, seq_len, seqlen_offset)?)\n        } else {\n            attention_mask.clone()\n        };\n        let mut xs = self.embed_tokens.forward(input_ids)?;\n",
        ),
        once(QWEN2, SAME_MASK, MASK_OF_LAYER),
        once(QWEN2_MOE, FIELD, FIELD_AND_WINDOW),
        once(
            QWEN2_MOE,
            INIT,
            "            kv_cache: None,\n            sliding_window: cfg.use_sliding_window.then_some(cfg.sliding_window),\n",
        ),
        once(QWEN2_MOE, KEPT, SEEN),
        once(
            QWEN2_MOE,
            "            let layer = DecoderLayer::new(layer_idx, rotary_emb.clone(), cfg, vb_l.pp(layer_idx))?;\n",
            "            let mut layer = DecoderLayer::new(layer_idx, rotary_emb.clone(), cfg, vb_l.pp(layer_idx))?;\n            if layer_idx < cfg.max_window_layers {\n                layer.self_attn.sliding_window = None;\n            }\n",
        ),
        once(QWEN2_MOE, NOTHING_HIDDEN, HIDDEN_BY_ANY),
        once(
            QWEN2_MOE,
            "        let attention_mask = if seq_len <= 1 {\n            None\n        } else {\n            let mask = self.prepare_decoder_attention_mask(b_size, seq_len, seqlen_offset)?;\n            Some(mask)\n        };\n",
            "        let (attention_mask, sliding_mask) = if seq_len <= 1 {\n            (None, None)\n        } else {\n            let mask = crate::utils::build_additive_causal_mask(\n                seq_len,\n                seqlen_offset,\n                None,\n                &self.device,\n                self.dtype,\n            )?;\n            let mut windows = self.layers.iter().filter_map(|layer| layer.self_attn.sliding_window);\n            let sliding = match windows.next() {\n                Some(_) => self.prepare_decoder_attention_mask(b_size, seq_len, seqlen_offset)?,\n                None => mask.clone(),\n            };\n            (Some(mask), Some(sliding))\n        };\n",
        ),
        once(QWEN2_MOE, SAME_MASK, MASK_OF_LAYER),
        // Gemma 3 and 4.
        once(GEMMA3, FLASH, FLASH_SOFTCAP),
        once(GEMMA3, NO_FLASH, NO_FLASH_SOFTCAP),
        once(
            GEMMA3,
            "    kv_cache: KvCache,\n    use_flash_attn: bool,\n}",
            "    kv_cache: KvCache,\n    use_flash_attn: bool,\n    sliding_window: Option<usize>,\n}",
        ),
        once(
            GEMMA3,
            "            kv_cache,\n            use_flash_attn,\n",
            "            kv_cache,\n            use_flash_attn,\n            sliding_window,\n",
        ),
        once(
            GEMMA3,
            "KvCache::Rotating(cache) => cache.append(&key_states, &value_states)?,",
            "KvCache::Rotating(cache) => {\n                crate::utils::append_in_window(cache, &key_states, &value_states)?\n            }",
        ),
        once(
            GEMMA3,
            "            flash_attn(&q, &k, &v, scale, attention_mask.is_some())?.transpose(1, 2)?\n",
            "            let (causal, softcap) = (attention_mask.is_some(), self.attn_logit_softcapping);\n            flash_attn(&q, &k, &v, scale, causal, self.sliding_window, softcap)?.transpose(1, 2)?\n",
        ),
        once(GEMMA3, ALL_OF_THE_PAST, KEPT_OF_THE_PAST),
        once(GEMMA3, ALL_KEYS, KEPT_KEYS),
        once(GEMMA4, FLASH, FLASH_WINDOWED),
        once(GEMMA4, NO_FLASH, NO_FLASH_WINDOWED),
        once(
            GEMMA4,
            "    kv_cache: KvCache,\n    use_flash_attn: bool,\n}",
            "    kv_cache: KvCache,\n    use_flash_attn: bool,\n    sliding_window: Option<usize>,\n}",
        ),
        once(
            GEMMA4,
            "            kv_cache,\n            use_flash_attn: cfg.use_flash_attn,\n",
            "            kv_cache,\n            use_flash_attn: cfg.use_flash_attn,\n            sliding_window: is_sliding.then(|| cfg.effective_sliding_window()),\n",
        ),
        once(
            GEMMA4,
            "            KvCache::Rotating(cache) => cache.append(&k, &v)?,",
            "            KvCache::Rotating(cache) => crate::utils::append_in_window(cache, &k, &v)?,",
        ),
        once(
            GEMMA4,
            "flash_attn(&q, &k, &v, scale, mask.is_some())?.transpose(1, 2)?",
            "flash_attn(&q, &k, &v, scale, mask.is_some(), self.sliding_window)?.transpose(1, 2)?",
        ),
        once(GEMMA4, ALL_OF_THE_PAST, KEPT_OF_THE_PAST),
        once(GEMMA4, ALL_KEYS, KEPT_KEYS),
        once(
            GEMMA4,
            "            sliding_window: cfg.sliding_window,\n",
            "            sliding_window: cfg.effective_sliding_window(),\n",
        ),
    ],
};

/// Of the past, Gemma's caches keep a window.
const ALL_OF_THE_PAST: &str =
    "        let mask0 = Tensor::zeros((tgt_len, seqlen_offset), DType::F32, device)?;\n";
const KEPT_OF_THE_PAST: &str = "        let kept = sliding_window.map_or(seqlen_offset, |window| window.min(seqlen_offset));\n        let mask0 = crate::utils::past_mask(tgt_len, seqlen_offset, sliding_window, device)?\n            .narrow(1, seqlen_offset - kept, kept)?;\n";
const ALL_KEYS: &str = "    mask.expand((b_size, 1, tgt_len, tgt_len + seqlen_offset))?\n";
const KEPT_KEYS: &str =
    "    let keys = mask.dim(1)?;\n    mask.expand((b_size, 1, tgt_len, keys))?\n";

/// Gemma 2, for itself: what is wrong there goes further.
pub const OF_GEMMA2: Fix = Fix {
    name: "Gemma 2 has its window in every other layer",
    reason: "All layers had it, in a first prompt; steps and later pieces saw everything, and flash attention, too, without the softcap. The layers with a window are the first, \
             the third and so on, for prompts and steps, and flash attention has both.",
    edits: &[
        once(GEMMA2, FLASH, FLASH_SOFTCAP),
        once(GEMMA2, NO_FLASH, NO_FLASH_SOFTCAP),
        once(GEMMA2, FLASH_FIELD, FLASH_FIELD_AND_WINDOW),
        once(
            GEMMA2,
            "            kv_cache: None,\n            use_flash_attn,\n",
            "            kv_cache: None,\n            use_flash_attn,\n            sliding_window: cfg.sliding_window,\n",
        ),
        once(GEMMA2, KEPT, SEEN),
        once(
            GEMMA2,
            "            flash_attn(&q, &k, &v, scale, attention_mask.is_some())?.transpose(1, 2)?\n",
            "            let (causal, softcap) = (attention_mask.is_some(), self.attn_logit_softcapping);\n            flash_attn(&q, &k, &v, scale, causal, self.sliding_window, softcap)?.transpose(1, 2)?\n",
        ),
        once(
            GEMMA2,
            "            let layer =\n                DecoderLayer::new(rotary_emb.clone(), use_flash_attn, cfg, vb_l.pp(layer_idx))?;\n",
            "            let mut layer =\n                DecoderLayer::new(rotary_emb.clone(), use_flash_attn, cfg, vb_l.pp(layer_idx))?;\n            if layer_idx % 2 == 1 {\n                layer.self_attn.sliding_window = None;\n            }\n",
        ),
        once(GEMMA2, NOTHING_HIDDEN, HIDDEN),
        once(
            GEMMA2,
            "        let attention_mask = if seq_len <= 1 {\n            None\n        } else {\n            let mask = self.prepare_decoder_attention_mask(b_size, seq_len, seqlen_offset)?;\n            Some(mask)\n        };\n",
            "        let (attention_mask, sliding_mask) = if seq_len <= 1 {\n            (None, None)\n        } else {\n            let mask = crate::utils::build_additive_causal_mask(\n                seq_len,\n                seqlen_offset,\n                None,\n                &self.device,\n                self.dtype,\n            )?;\n            let sliding = self.prepare_decoder_attention_mask(b_size, seq_len, seqlen_offset)?;\n            (Some(mask), Some(sliding))\n        };\n",
        ),
        once(GEMMA2, SAME_MASK, MASK_OF_LAYER),
    ],
};
