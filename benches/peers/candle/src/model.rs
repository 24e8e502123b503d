//! Prompts and answers of whole models: GGUF files of Llama's architecture through candle-transformers.
//!
//! The tests, the tokens and the JSON are those of `llm-worker-rocm bench`: a prompt counts until its next token is
//! known on the host, an answer from its first token to its last.

use candle_core::quantized::{gguf_file, GgmlDType};
use candle_core::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::generation::{LogitsProcessor, Sampling};
use candle_transformers::models::{llama, quantized_llama};
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::time::Instant;

const PROMPT: usize = 512;
const GENERATED: usize = 128;
const REPETITIONS: usize = 5;

enum Model {
    Quantized(quantized_llama::ModelWeights),
    /// Of 16-bit matrices, which candle's quantized model would widen to 32 bits.
    Half {
        model: llama::Llama,
        config: llama::Config,
        cache: llama::Cache,
    },
}

impl Model {
    fn open(path: &str, device: &Device) -> Result<(Self, usize)> {
        let mut file = BufReader::new(File::open(path)?);
        let content = gguf_file::Content::read(&mut file)?;
        let embedding = content
            .tensor_infos
            .get("token_embd.weight")
            .ok_or_else(|| Error::Msg(format!("{path} has no token_embd.weight")))?;
        let vocabulary = embedding.shape.dims2()?.0;
        let model = match embedding.ggml_dtype {
            GgmlDType::F16 => Self::half(&content, &mut file, device)?,
            _ => Self::Quantized(quantized_llama::ModelWeights::from_gguf(
                content, &mut file, device,
            )?),
        };
        Ok((model, vocabulary))
    }

    fn half(
        content: &gguf_file::Content,
        file: &mut BufReader<File>,
        device: &Device,
    ) -> Result<Self> {
        let config = config(content)?;
        let mut tensors = HashMap::new();
        for name in content.tensor_infos.keys() {
            // Through the host, so that candle's device never holds a tensor twice.
            let tensor = content.tensor(file, name, &Device::Cpu)?;
            let tensor = match tensor.dtype() {
                GgmlDType::F16 => Tensor::from_raw_buffer(
                    &tensor.data()?,
                    DType::F16,
                    tensor.shape().dims(),
                    device,
                )?,
                _ => tensor
                    .dequantize(&Device::Cpu)?
                    .to_dtype(DType::F16)?
                    .to_device(device)?,
            };
            tensors.insert(name_in_llama(name)?, tensor);
        }
        let weights = VarBuilder::from_tensors(tensors, DType::F16, device);
        let model = llama::Llama::load(weights, &config)?;
        let cache = llama::Cache::new(true, DType::F16, &config, device)?;
        Ok(Self::Half {
            model,
            config,
            cache,
        })
    }

    /// Forgets all tokens.
    fn clear(&mut self, device: &Device) -> Result<()> {
        match self {
            Self::Quantized(model) => model.clear_kv_cache(),
            Self::Half { config, cache, .. } => {
                *cache = llama::Cache::new(true, DType::F16, config, device)?
            }
        }
        Ok(())
    }

    /// The scores of the token that follows `tokens`, which stand at `position`.
    fn forward(&mut self, tokens: &[u32], position: usize, device: &Device) -> Result<Tensor> {
        let input = Tensor::new(tokens, device)?.unsqueeze(0)?;
        let logits = match self {
            Self::Quantized(model) => model.forward(&input, position)?,
            Self::Half { model, cache, .. } => model.forward(&input, position, cache)?,
        };
        logits.squeeze(0)
    }
}

fn config(content: &gguf_file::Content) -> Result<llama::Config> {
    let value = |key: &str| {
        let key = format!("llama.{key}");
        content
            .metadata
            .get(&key)
            .ok_or_else(|| Error::Msg(format!("the file has no {key}")))
    };
    let number = |key: &str| Ok::<_, Error>(value(key)?.to_u32()? as usize);
    Ok(llama::Config {
        hidden_size: number("embedding_length")?,
        intermediate_size: number("feed_forward_length")?,
        vocab_size: number("vocab_size")?,
        num_hidden_layers: number("block_count")?,
        num_attention_heads: number("attention.head_count")?,
        num_key_value_heads: number("attention.head_count_kv")?,
        use_flash_attn: false,
        rms_norm_eps: value("attention.layer_norm_rms_epsilon")?.to_f32()? as f64,
        rope_theta: value("rope.freq_base")?.to_f32()?,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: number("context_length")?,
        tie_word_embeddings: !content.tensor_infos.contains_key("output.weight"),
    })
}

/// What a tensor of a GGUF file is called in candle's model.
fn name_in_llama(name: &str) -> Result<String> {
    let whole = match name {
        "token_embd.weight" => Some("model.embed_tokens.weight"),
        "output_norm.weight" => Some("model.norm.weight"),
        "output.weight" => Some("lm_head.weight"),
        _ => None,
    };
    if let Some(whole) = whole {
        return Ok(whole.to_string());
    }
    let unknown = || Error::Msg(format!("{name} is no tensor of a Llama"));
    let (layer, part) = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
        .ok_or_else(unknown)?;
    let part = match part {
        "attn_q.weight" => "self_attn.q_proj.weight",
        "attn_k.weight" => "self_attn.k_proj.weight",
        "attn_v.weight" => "self_attn.v_proj.weight",
        "attn_output.weight" => "self_attn.o_proj.weight",
        "ffn_gate.weight" => "mlp.gate_proj.weight",
        "ffn_up.weight" => "mlp.up_proj.weight",
        "ffn_down.weight" => "mlp.down_proj.weight",
        "attn_norm.weight" => "input_layernorm.weight",
        "ffn_norm.weight" => "post_attention_layernorm.weight",
        _ => return Err(unknown()),
    };
    Ok(format!("model.layers.{layer}.{part}"))
}

/// The tokens of `llm-worker-rocm bench`.
fn scattered(place: u64, vocabulary: u64) -> u32 {
    ((((place + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)) >> 33) % vocabulary) as u32
}

/// One result as JSON, the rates of runs in tokens per second.
fn result(test: &str, rates: &[f64]) -> String {
    let count = rates.len() as f64;
    let mean = rates.iter().sum::<f64>() / count;
    let deviation = (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>()
        / (count - 1.0).max(1.0))
    .sqrt();
    format!(
        r#"{{"test":"{test}","tokens_per_second":{mean},"deviation":{deviation},"samples":{rates:?}}}"#
    )
}

/// Measures a file and prints one JSON object.
pub fn measure(path: &str, device: &Device) -> Result<()> {
    let (mut model, vocabulary) = Model::open(path, device)?;
    let prompt: Vec<u32> = (0..PROMPT as u64)
        .map(|place| scattered(place, vocabulary as u64))
        .collect();
    let mut sampler = LogitsProcessor::from_sampling(0, Sampling::ArgMax);
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for run in 0..=REPETITIONS {
        model.clear(device)?;
        device.synchronize()?;
        let start = Instant::now();
        sampler.sample(&model.forward(&prompt, 0, device)?)?;
        let seconds_to_read = start.elapsed().as_secs_f64();

        model.clear(device)?;
        let mut token = sampler.sample(&model.forward(&prompt[..1], 0, device)?)?;
        let start = Instant::now();
        for position in 1..=GENERATED {
            token = sampler.sample(&model.forward(&[token], position, device)?)?;
        }
        let seconds_to_write = start.elapsed().as_secs_f64();

        // The first run warms up.
        if run > 0 {
            read.push(PROMPT as f64 / seconds_to_read);
            written.push(GENERATED as f64 / seconds_to_write);
        }
    }
    let results = [
        result(&format!("pp{PROMPT}"), &read),
        result(&format!("tg{GENERATED}"), &written),
    ]
    .join(",");
    println!(
        r#"{{"model":{path:?},"device":"candle 0.11.1, {:?}","results":[{results}]}}"#,
        device.location()
    );
    Ok(())
}
