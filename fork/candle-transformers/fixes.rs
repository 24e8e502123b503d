//! Faults of candle-transformers 0.11.1 that the derived crate does not have. `FIXES.md` is this list as a page;
//! `tests/models/tests/fixes.rs` of the repository has a test for each that the published crate fails.

#[path = "windows.rs"]
mod windows;

use candle_derive::{Edit, Fix};

const UNET_BLOCKS: &str = "src/models/stable_diffusion/unet_2d_blocks.rs";
const DEEPSEEK2: &str = "src/models/deepseek2.rs";
const MMDIT_EMBEDDING: &str = "src/models/mmdit/embedding.rs";
const QUANTIZED_LFM2: &str = "src/models/quantized_lfm2.rs";
const QUANTIZED_LLAMA: &str = "src/models/quantized_llama.rs";

pub const FIXES: &[Fix] = &[
    Fix {
        name: "the UNet's down and up blocks take norm_num_groups",
        reason: "The number of groups reached the middle block only. With any other number than 32 the weights loaded all \
                 the same, and the result was wrong.",
        edits: &[
            Edit {
                file: UNET_BLOCKS,
                find: "eps: config.resnet_eps,\n            output_scale_factor: config.output_scale_factor,\n            temb_channels,",
                replace: "eps: config.resnet_eps,\n            groups: config.resnet_groups,\n            output_scale_factor: config.output_scale_factor,\n            temb_channels,",
                count: 1,
            },
            Edit {
                file: UNET_BLOCKS,
                find: "temb_channels,\n            eps: config.resnet_eps,\n            output_scale_factor: config.output_scale_factor,",
                replace: "temb_channels,\n            eps: config.resnet_eps,\n            groups: config.resnet_groups,\n            output_scale_factor: config.output_scale_factor,",
                count: 1,
            },
        ],
    },
    Fix {
        name: "Stable Diffusion's GEGLU gates with the exact GELU",
        reason: "The UNet gated with the approximation by tanh; the models were trained with the function of erf.",
        edits: &[Edit {
            file: "src/models/stable_diffusion/attention.rs",
            find: "hidden_states_and_gate[1].gelu()?",
            replace: "hidden_states_and_gate[1].gelu_erf()?",
            count: 1,
        }],
    },
    Fix {
        name: "quantized Gemma gates with GELU",
        reason: "`quantized_gemma3` gated with SiLU; every Gemma has the GELU of tanh there, as `gemma3` does.",
        edits: &[Edit {
            file: "src/models/quantized_gemma3.rs",
            find: "let silu = candle_nn::ops::silu(&gate)?;\n        let gated = (silu * up)?;",
            replace: "let gated = (gate.gelu()? * up)?;",
            count: 1,
        }],
    },
    Fix {
        name: "quantized Gemma's steps see the sliding window",
        reason: "`quantized_gemma3` limited the prompt to the window, but not the tokens after it: layers with a window saw \
                 everything from the token on that leaves it.",
        edits: &[Edit {
            file: "src/models/quantized_gemma3.rs",
            find: "        self.kv_cache = Some((k.clone(), v.clone())); // update cache\n",
            replace: "        self.kv_cache = Some((k.clone(), v.clone())); // update cache\n        let (k, v) = match self.sliding_window_size {\n            Some(window) if seq_len == 1 && k.dim(2)? > window => {\n                let start = k.dim(2)? - window;\n                (k.narrow(2, start, window)?, v.narrow(2, start, window)?)\n            }\n            _ => (k, v),\n        };\n",
            count: 1,
        }],
    },
    Fix {
        name: "sliding windows are as wide as their configurations say",
        reason: "A window of n tokens let n + 1 through in a prompt: n before the token, and the token itself, which counts as one of them. \
                 Tokens after the prompt saw n where caches are limited.",
        edits: &[
            Edit {
                file: "src/models/gemma2.rs",
                find: "i < j || j + sliding_window < i",
                replace: "i < j || j + sliding_window <= i",
                count: 1,
            },
            Edit {
                file: "src/models/gemma3.rs",
                find: "i < j || j + sliding_window < i",
                replace: "i < j || j + sliding_window <= i",
                count: 1,
            },
            Edit {
                file: "src/models/gemma4/text.rs",
                find: "i < j || j + sliding_window < i",
                replace: "i < j || j + sliding_window <= i",
                count: 1,
            },
            Edit {
                file: "src/models/mistral.rs",
                find: "i < j || j + sliding_window < i",
                replace: "i < j || j + sliding_window <= i",
                count: 1,
            },
            Edit {
                file: "src/models/mixtral.rs",
                find: "i < j || j + self.sliding_window < i",
                replace: "i < j || j + self.sliding_window <= i",
                count: 1,
            },
            Edit {
                file: "src/models/quantized_gemma3.rs",
                find: "i < j || j + sliding_window_size < i",
                replace: "i < j || j + sliding_window_size <= i",
                count: 1,
            },
            Edit {
                file: "src/models/quantized_mistral.rs",
                find: "i < j || j + sliding_window < i",
                replace: "i < j || j + sliding_window <= i",
                count: 1,
            },
            Edit {
                file: "src/models/qwen2.rs",
                find: "i < j || j + self.sliding_window < i",
                replace: "i < j || j + self.sliding_window <= i",
                count: 1,
            },
            Edit {
                file: "src/models/qwen2_moe.rs",
                find: "i < j || j + self.sliding_window < i",
                replace: "i < j || j + self.sliding_window <= i",
                count: 1,
            },
            Edit {
                file: "src/models/starcoder2.rs",
                find: "i < j || j + sliding_window < i",
                replace: "i < j || j + sliding_window <= i",
                count: 1,
            },
        ],
    },
    windows::IN_STEPS_AND_FLASH,
    windows::OF_GEMMA2,
    Fix {
        name: "quantized Gemma takes a prompt in pieces",
        reason: "A second piece of several tokens failed, as its mask was joined from two dtypes, and what it saw of the pieces before was hidden.",
        edits: &[
            Edit {
                file: "src/models/quantized_gemma3.rs",
                find: "use candle::D;\n",
                replace: "",
                count: 1,
            },
            Edit {
                file: "src/models/quantized_gemma3.rs",
                find: "            (0..seq_len)\n                .flat_map(|i| {\n                    (0..seq_len).map(move |j| {\n",
                replace: "            (index_pos..index_pos + seq_len)\n                .flat_map(|i| {\n                    (0..index_pos + seq_len).map(move |j| {\n",
                count: 1,
            },
            Edit {
                file: "src/models/quantized_gemma3.rs",
                find: "            (0..seq_len)\n                .flat_map(|i| (0..seq_len).map(",
                replace: "            (index_pos..index_pos + seq_len)\n                .flat_map(|i| (0..index_pos + seq_len).map(",
                count: 1,
            },
            Edit {
                file: "src/models/quantized_gemma3.rs",
                find: "        let mask = Tensor::from_slice(&mask, (seq_len, seq_len), device)?;\n        let mask = if index_pos > 0 {\n            let mask0 = Tensor::zeros((seq_len, index_pos), DType::F32, device)?;\n            Tensor::cat(&[&mask0, &mask], D::Minus1)?\n        } else {\n            mask\n        };\n",
                replace: "        let mask = Tensor::from_slice(&mask, (seq_len, seq_len + index_pos), device)?;\n",
                count: 1,
            },
        ],
    },
    Fix {
        name: "TrOCR's decoder sees the whole picture",
        reason: "The causal mask among tokens was applied to the picture's patches, too: several tokens at once failed, as there are not as many patches. \
                 Every token sees every patch.",
        edits: &[
            Edit {
                file: "src/models/trocr.rs",
                find: "            let encoder_attention_mask = attention_mask.clone(); // TODO\n",
                replace: "",
                count: 1,
            },
            Edit {
                file: "src/models/trocr.rs",
                find: "                Some(encoder_hidden_states),\n                Some(&encoder_attention_mask),\n",
                replace: "                Some(encoder_hidden_states),\n                None,\n",
                count: 1,
            },
        ],
    },
    Fix {
        name: "quantized Llama scales its rotary frequencies",
        reason: "Llama 3.1 and later store a divisor per frequency in `rope_freqs.weight`, which was ignored: right at first, \
                 and worse with every position.",
        edits: &[
            Edit {
                file: QUANTIZED_LLAMA,
                find: "    freq_base: f32,\n    device: &Device,\n",
                replace: "    freq_base: f32,\n    freq_factors: Option<&Tensor>,\n    device: &Device,\n",
                count: 1,
            },
            Edit {
                file: QUANTIZED_LLAMA,
                find: "    let theta = Tensor::new(theta.as_slice(), device)?;\n",
                replace: "    let theta = Tensor::new(theta.as_slice(), device)?;\n    let theta = match freq_factors {\n        Some(factors) => (theta / factors)?,\n        None => theta,\n    };\n",
                count: 1,
            },
            Edit {
                file: QUANTIZED_LLAMA,
                find: "precomput_freqs_cis(head_dim, 10000., &ct.device)",
                replace: "precomput_freqs_cis(head_dim, 10000., None, &ct.device)",
                count: 1,
            },
            Edit {
                file: QUANTIZED_LLAMA,
                find: "        let (cos, sin) = precomput_freqs_cis(rope_dim, rope_freq_base, device)?;\n",
                replace: "        let freq_factors = match ct.tensor_infos.contains_key(\"rope_freqs.weight\") {\n            true => Some(ct.tensor(reader, \"rope_freqs.weight\", device)?.dequantize(device)?),\n            false => None,\n        };\n        let (cos, sin) =\n            precomput_freqs_cis(rope_dim, rope_freq_base, freq_factors.as_ref(), device)?;\n",
                count: 1,
            },
        ],
    },
    Fix {
        name: "Gemma 3 takes prompts with several key-value heads",
        reason: "The values reached the cache transposed, which it refuses: every size above 1B failed at the first prompt.",
        edits: &[Edit {
            file: "src/models/gemma3.rs",
            find: "KvCache::Normal(cache) => cache.append(&key_states, &value_states)?,",
            replace: "KvCache::Normal(cache) => {\n                cache.append(&key_states.contiguous()?, &value_states.contiguous()?)?\n            }",
            count: 1,
        }],
    },
    Fix {
        name: "DeepSeek-V2 chooses its groups of experts",
        reason: "With `group_limited_greedy` the numbers of experts were taken for numbers of groups (out of range, or the wrong \
                 group), and the weights of the chosen experts came from the mask instead of the scores.",
        edits: &[
            Edit {
                file: DEEPSEEK2,
                find: "let group_idx = scores.topk_unsorted(self.cfg.topk_group)?.indices;",
                replace: "let group_idx = group_scores.topk_unsorted(self.cfg.topk_group)?.indices;",
                count: 1,
            },
            Edit {
                file: DEEPSEEK2,
                find: "                    .reshape((bs, seq_len, ()))?;\n                // (n, e)\n                // Invert the mask\n                let tmp_scores = masked_fill(&score_mask, &(1. - &score_mask.ne(0.)?)?, 0.)?;",
                replace: "                    .reshape((bs * seq_len, ()))?;\n                // (n, e)\n                let tmp_scores = (&scores * &score_mask)?;",
                count: 1,
            },
            Edit {
                file: DEEPSEEK2,
                find: "fn masked_fill(on_false: &Tensor, mask: &Tensor, on_true: f32) -> Result<Tensor> {\n    let shape = mask.shape();\n    let on_true = Tensor::new(on_true, on_false.device())?.broadcast_as(shape.dims())?;\n    let m = mask.where_cond(&on_true, on_false)?;\n    Ok(m)\n}\n\n",
                replace: "",
                count: 1,
            },
        ],
    },
    Fix {
        name: "EnCodec and Mimi encode on every device",
        reason: "The search for the nearest entry of a codebook existed for the CPU only. Elsewhere it is done with tensor \
                 operations, by the method that the same file holds for comparison.",
        edits: &[
            Edit {
                file: "src/models/encodec.rs",
                find: "    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {\n        let mut target_shape",
                replace: "    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {\n        if !xs.device().is_cpu() {\n            return self.encode_slow(xs);\n        }\n        let mut target_shape",
                count: 1,
            },
            Edit {
                file: "src/models/mimi/quantization.rs",
                find: "    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {\n        let _enter = self.span_encode.enter();\n        let mut target_shape",
                replace: "    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {\n        if !xs.device().is_cpu() {\n            return self.encode_slow(xs);\n        }\n        let _enter = self.span_encode.enter();\n        let mut target_shape",
                count: 1,
            },
        ],
    },
    Fix {
        name: "MMDiT computes in the dtype of its weights",
        reason: "The timestep was embedded in f16 whatever the weights were, so that Stable Diffusion 3 failed in f32 and bf16.",
        edits: &[
            Edit {
                file: MMDIT_EMBEDDING,
                find: "    mlp: nn::Sequential,\n    frequency_embedding_size: usize,\n",
                replace: "    mlp: nn::Sequential,\n    frequency_embedding_size: usize,\n    dtype: DType,\n",
                count: 1,
            },
            Edit {
                file: MMDIT_EMBEDDING,
                find: "            mlp,\n            frequency_embedding_size,\n",
                replace: "            mlp,\n            frequency_embedding_size,\n            dtype: vb.dtype(),\n",
                count: 1,
            },
            Edit {
                file: MMDIT_EMBEDDING,
                find: "        let embedding = Tensor::cat(&[args.cos()?, args.sin()?], 1)?;\n        embedding.to_dtype(candle::DType::F16)\n",
                replace: "        Tensor::cat(&[args.cos()?, args.sin()?], 1)\n",
                count: 1,
            },
            Edit {
                file: MMDIT_EMBEDDING,
                find: "        self.mlp.forward(&t_freq)\n",
                replace: "        self.mlp.forward(&t_freq.to_dtype(self.dtype)?)\n",
                count: 1,
            },
        ],
    },
    Fix {
        name: "Mixtral computes in the dtype of its weights",
        reason: "The experts' weights in the sum were f32 whatever the model was, which failed in f16 and bf16, and so with flash attention.",
        edits: &[Edit {
            file: "src/models/mixtral.rs",
            find: "Tensor::new(selected_rws[expert_idx].as_slice(), xs.device())?.reshape(((), 1))?;",
            replace: "Tensor::new(selected_rws[expert_idx].as_slice(), xs.device())?\n                    .reshape(((), 1))?\n                    .to_dtype(xs.dtype())?;",
            count: 1,
        }],
    },
    Fix {
        name: "BERT in f16",
        reason: "What is masked got the lowest number of f32, which is minus infinity in f16, and times zero that made everything \
                 NaN. It gets the lowest number of f16, which does as well. Chinese CLIP's text encoder had the same.",
        edits: &[
            Edit {
                file: "src/models/bert.rs",
                find: "&Tensor::try_from(f32::MIN)?",
                replace: "&Tensor::try_from(-65504f32)?",
                count: 1,
            },
            Edit {
                file: "src/models/chinese_clip/text_model.rs",
                find: "&Tensor::try_from(f32::MIN)?",
                replace: "&Tensor::try_from(-65504f32)?",
                count: 1,
            },
        ],
    },
    Fix {
        name: "T5's decoder and Whisper compute in the dtype of their weights",
        reason: "Masks and Whisper's positions were f32 whatever the weights were, and the models failed in f16 and bf16.",
        edits: &[
            Edit {
                file: "src/models/t5.rs",
                find: "    let on_true = Tensor::new(on_true, on_false.device())?.broadcast_as(shape.dims())?;\n",
                replace: "    let on_true = Tensor::new(on_true, on_false.device())?\n        .to_dtype(on_false.dtype())?\n        .broadcast_as(shape.dims())?;\n",
                count: 1,
            },
            Edit {
                file: "src/models/whisper/model.rs",
                find: "sinusoids(n_ctx, n_state, vb.device())?;",
                replace: "sinusoids(n_ctx, n_state, vb.device())?.to_dtype(vb.dtype())?;",
                count: 1,
            },
            Edit {
                file: "src/models/whisper/model.rs",
                find: "let mask = Tensor::from_vec(mask, (n_ctx, n_ctx), vb.device())?;",
                replace: "let mask = Tensor::from_vec(mask, (n_ctx, n_ctx), vb.device())?.to_dtype(vb.dtype())?;",
                count: 1,
            },
        ],
    },
    Fix {
        name: "a prompt at position 0 begins a new sequence",
        reason: "StableLM and StarCoder (`bigcode`) had no way to forget a sequence: what came before was seen by all later ones. \
                 Quantized LFM2's convolutions began from the last sequence's tokens if the prompt was of one token.",
        edits: &[
            Edit {
                file: "src/models/stable_lm.rs",
                find: "        let (key_states, value_states) = match &self.kv_cache {\n",
                replace: "        let (key_states, value_states) = match self.kv_cache.as_ref().filter(|_| seqlen_offset > 0) {\n",
                count: 1,
            },
            Edit {
                file: "src/models/bigcode.rs",
                find: "            if let Some(kv_cache) = &self.kv_cache {\n",
                replace: "            let begins = attention_mask.dim(D::Minus1)? == hidden_states.dim(1)?;\n            if let Some(kv_cache) = self.kv_cache.as_ref().filter(|_| !begins) {\n",
                count: 1,
            },
            Edit {
                file: QUANTIZED_LFM2,
                find: "fn forward(&mut self, xs: &Tensor, _index_pos: usize) -> Result<Tensor> {",
                replace: "fn forward(&mut self, xs: &Tensor, index_pos: usize) -> Result<Tensor> {",
                count: 1,
            },
            Edit {
                file: QUANTIZED_LFM2,
                find: "let mut state = if let Some(cache) = &self.cache {",
                replace: "let mut state = if let Some(cache) = self.cache.as_ref().filter(|_| index_pos > 0) {",
                count: 1,
            },
        ],
    },
    Fix {
        name: "Falcon has the exact GELU",
        reason: "Its feed-forward part had the approximation by tanh; the models were trained with the function of erf.",
        edits: &[Edit {
            file: "src/models/falcon.rs",
            find: ".gelu()?",
            replace: ".gelu_erf()?",
            count: 1,
        }],
    },
    Fix {
        name: "the VAE's attention holds no matrix of all scores on a GPU",
        reason: "`AttentionBlock` held scores of every pixel with every other one: 4 GiB for an image of 1024 pixels a side. On a GPU \
                 that is fused attention now, unless gradients are kept.",
        edits: &[Edit {
            file: "src/models/stable_diffusion/attention.rs",
            find: "        let attention_scores = (query_states * scale)?.matmul(&(key_states.t()? * scale)?)?;\n        \
                   let attention_probs = nn::ops::softmax(&attention_scores, D::Minus1)?;\n\n        \
                   // TODO: revert the call to force_contiguous once the three matmul kernels have been\n        \
                   // adapted to handle layout with some dims set to 1.\n        \
                   let xs = attention_probs.matmul(&value_states)?;\n",
            replace: "        let xs = if xs.device().is_rocm() && !query_states.track_op() {\n            \
                      nn::ops::sdpa(&query_states, &key_states, &value_states, None, false, (scale * scale) as f32, 1.)?\n        \
                      } else {\n            \
                      let attention_scores = (query_states * scale)?.matmul(&(key_states.t()? * scale)?)?;\n            \
                      nn::ops::softmax(&attention_scores, D::Minus1)?.matmul(&value_states)?\n        \
                      };\n",
            count: 1,
        }],
    },
];
