//! Encoders of text, and encoders with a decoder.

use candle_core::{DType, Result, Tensor};
use candle_transformers::models as m;
use models::{agree, agree_in, config, merge, Case};
use serde::de::DeserializeOwned;
use serde_json::{json, Value};

/// What BERT's family calls its settings in `config.json`, at the size of these tests; `changes` has a model's own.
fn small<T: DeserializeOwned>(changes: Value) -> T {
    let mut settings = json!({
        "vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 32, "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
        "pad_token_id": 0, "position_embedding_type": "absolute"
    });
    merge(&mut settings, changes);
    config(settings)
}

/// Two sentences, the second of which is padded, and the mask that says so (1 and 0, u32).
fn sentences(vb: &Case) -> Result<(Tensor, Tensor)> {
    let ids = vb.tokens(&[[3, 14, 15, 9, 26, 5], [35, 8, 9, 7, 0, 0]])?;
    let mask = [[1u32, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]];
    Ok((ids, Tensor::new(&mask, vb.device())?))
}

fn bert_outputs(vb: Case) -> Result<Vec<Tensor>> {
    let model = m::bert::BertModel::load(vb.clone(), &small(json!({})))?;
    let (ids, mask) = sentences(&vb)?;
    Ok(vec![model.forward(
        &ids,
        &ids.zeros_like()?,
        Some(&mask),
    )?])
}

#[test]
fn bert() {
    agree(bert_outputs);
}

#[test]
fn bert_f16() {
    agree_in(DType::F16, 1e-4, bert_outputs);
}

#[test]
fn bert_for_masked_lm() {
    agree(|vb| {
        let model = m::bert::BertForMaskedLM::load(vb.clone(), &small(json!({})))?;
        let (ids, mask) = sentences(&vb)?;
        Ok(vec![model.forward(
            &ids,
            &ids.zeros_like()?,
            Some(&mask),
        )?])
    });
}

#[test]
fn modernbert() {
    agree(|vb| {
        let changes = json!({
            "global_attn_every_n_layers": 2, "global_rope_theta": 1.6e5, "local_attention": 4, "local_rope_theta": 1e4
        });
        let model = m::modernbert::ModernBert::load(vb.clone(), &small(changes))?;
        let (ids, mask) = sentences(&vb)?;
        Ok(vec![model.forward(&ids, &mask)?])
    });
}

#[test]
fn distilbert() {
    agree(|vb| {
        let changes = json!({
            "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "activation": "gelu", "model_type": "distilbert"
        });
        let model = m::distilbert::DistilBertModel::load(vb.clone(), &small(changes))?;
        let (ids, _) = sentences(&vb)?;
        let mask = Tensor::zeros((2, 1, 1, 6), DType::U8, vb.device())?;
        Ok(vec![model.forward(&ids, &mask)?])
    });
}

#[test]
fn jina_bert() {
    agree(|vb| {
        let changes = json!({"position_embedding_type": "alibi"});
        let model = m::jina_bert::BertModel::new(vb.clone(), &small(changes))?;
        let (ids, _) = sentences(&vb)?;
        Ok(vec![candle_nn::Module::forward(&model, &ids)?])
    });
}

#[test]
fn nomic_bert() {
    agree(|vb| {
        let config = config(json!({
            "vocab_size": 48, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_inner": 64, "n_positions": 32,
            "type_vocab_size": 2, "layer_norm_epsilon": 1e-12, "rotary_emb_fraction": 1.0, "rotary_emb_base": 1000.0,
            "rotary_emb_interleaved": false, "qkv_proj_bias": false, "mlp_fc1_bias": false, "mlp_fc2_bias": false,
            "activation_function": "swiglu", "prenorm": false
        }));
        let model = m::nomic_bert::NomicBertModel::load(vb.clone(), &config)?;
        let (ids, mask) = sentences(&vb)?;
        Ok(vec![model.forward(&ids, None, Some(&mask))?])
    });
}

#[test]
fn xlm_roberta() {
    agree(|vb| {
        let model = m::xlm_roberta::XLMRobertaModel::new(&small(json!({})), vb.clone())?;
        let (ids, mask) = sentences(&vb)?;
        Ok(vec![model.forward(
            &ids,
            &mask,
            &ids.zeros_like()?,
            None,
            None,
            None,
        )?])
    });
}

/// Disentangled attention over relative positions.
#[test]
fn deberta_v2() {
    agree(|vb| {
        let changes = json!({
            "relative_attention": true, "max_relative_positions": -1, "position_biased_input": false,
            "pos_att_type": "p2c|c2p", "position_buckets": 8, "share_att_key": true, "norm_rel_ebd": "layer_norm",
            "type_vocab_size": 0
        });
        let model = m::debertav2::DebertaV2Model::load(vb.clone(), &small(changes))?;
        let (ids, mask) = sentences(&vb)?;
        Ok(vec![model.forward(&ids, None, Some(mask))?])
    });
}

#[test]
fn stella() {
    agree(|vb| {
        let config = m::stella_en_v5::Config {
            vocab_size: 48,
            hidden_size: 32,
            intermediate_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            max_position_embeddings: 32,
            embed_head: m::stella_en_v5::EmbedHead {
                in_features: 32,
                out_features: 24,
            },
            ..m::stella_en_v5::Config::new_1_5_b_v5(Default::default())
        };
        let mut model =
            m::stella_en_v5::EmbeddingModel::new(&config, vb.clone(), vb.pp("embedding_head"))?;
        let (ids, mask) = sentences(&vb)?;
        Ok(vec![model.forward(&ids, &mask)?])
    });
}

/// The encoder, then a prompt and one cached step of the decoder.
fn t5_outputs(vb: Case) -> Result<Vec<Tensor>> {
    let config = config(json!({
        "vocab_size": 48, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2,
        "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
        "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false, "is_encoder_decoder": true,
        "use_cache": true, "pad_token_id": 0, "eos_token_id": 1
    }));
    let mut model = m::t5::T5ForConditionalGeneration::load(vb.clone(), &config)?;
    let encoded = model.encode(&vb.tokens(&[[3, 14, 15, 9, 26]])?)?;
    let first = model.decode(&vb.tokens(&[[1, 7, 8]])?, &encoded)?;
    let second = model.decode(&vb.tokens(&[[5]])?, &encoded)?;
    Ok(vec![encoded, first, second])
}

#[test]
fn t5() {
    agree(t5_outputs);
}

#[test]
fn t5_bf16() {
    agree_in(DType::BF16, 3e-3, t5_outputs);
}

#[test]
fn marian() {
    agree(|vb| {
        let config = m::marian::Config {
            vocab_size: 48,
            decoder_vocab_size: Some(48),
            max_position_embeddings: 32,
            encoder_layers: 2,
            encoder_ffn_dim: 64,
            encoder_attention_heads: 4,
            decoder_layers: 2,
            decoder_ffn_dim: 64,
            decoder_attention_heads: 4,
            d_model: 32,
            ..m::marian::Config::opus_mt_fr_en()
        };
        let mut model = m::marian::MTModel::new(&config, vb.clone())?;
        let encoded = model
            .encoder()
            .forward(&vb.tokens(&[[3, 14, 15, 9, 26]])?, 0)?;
        let first = model.decode(&vb.tokens(&[[1, 7, 8]])?, &encoded, 0)?;
        let second = model.decode(&vb.tokens(&[[5]])?, &encoded, 3)?;
        Ok(vec![encoded, first, second])
    });
}
