//! Models that hear or speak.

use candle_core::{DType, Module, Result, Tensor};
use candle_transformers::models as m;
use models::{agree, agree_in, config, Case};
use serde_json::json;

fn whisper_outputs(vb: Case) -> Result<Vec<Tensor>> {
    let config = config(json!({
        "num_mel_bins": 16, "max_source_positions": 12, "d_model": 32, "encoder_attention_heads": 4,
        "encoder_layers": 2, "vocab_size": 48, "max_target_positions": 16, "decoder_attention_heads": 4,
        "decoder_layers": 2
    }));
    let mut model = m::whisper::model::Whisper::load(&vb, config)?;
    let heard = model
        .encoder
        .forward(&vb.input("mel", (1, 16, 24))?, true)?;
    let said = model
        .decoder
        .forward(&vb.tokens(&[[3, 14, 15]])?, &heard, true)?;
    let logits = model.decoder.final_linear(&said)?;
    Ok(vec![heard, logits])
}

#[test]
fn whisper() {
    agree(whisper_outputs);
}

#[test]
fn whisper_f16() {
    agree_in(DType::F16, 1e-4, whisper_outputs);
}

/// Codes must be equal, and what is decoded from them alike.
#[test]
fn encodec() {
    agree(|vb| {
        let config = m::encodec::Config {
            target_bandwidths: vec![24.],
            hidden_size: 16,
            num_filters: 4,
            upsampling_ratios: vec![4, 2],
            codebook_size: 32,
            sampling_rate: 4_800,
            ..Default::default()
        };
        let model = m::encodec::Model::new(&config, vb.clone())?;
        let codes = model.encode(&vb.input("wave", (1, 1, 64))?)?;
        let wave = model.decode(&codes)?;
        Ok(vec![codes, wave])
    });
}

#[test]
fn mimi() {
    agree(|vb| {
        let mut config = m::mimi::Config::v0_1(Some(4));
        config.seanet.dimension = 32;
        config.seanet.n_filters = 4;
        config.seanet.ratios = vec![4, 2];
        config.transformer.d_model = 32;
        config.transformer.num_heads = 4;
        config.transformer.num_layers = 2;
        config.transformer.dim_feedforward = 64;
        config.transformer.max_seq_len = 64;
        config.sample_rate = 200.;
        config.quantizer_bins = 32;
        config.quantizer_dim = 16;
        let mut model = m::mimi::Model::new(config, vb.clone())?;
        let codes = model.encode(&vb.input("wave", (1, 1, 160))?)?;
        let wave = model.decode(&codes)?;
        Ok(vec![codes, wave])
    });
}

#[test]
fn snac() {
    agree(|vb| {
        let config = m::snac::Config {
            sampling_rate: 24_000,
            encoder_dim: 4,
            encoder_rates: vec![2, 2],
            decoder_dim: 16,
            decoder_rates: vec![2, 2],
            attn_window_size: None,
            codebook_size: 32,
            codebook_dim: 8,
            vq_strides: vec![2, 1],
            noise: false,
            depthwise: false,
        };
        let model = m::snac::Model::new(&config, vb.clone())?;
        let mut outputs = model.encode(&vb.input("wave", (1, 1, 64))?)?;
        let wave = model.decode(&outputs.iter().collect::<Vec<_>>())?;
        outputs.push(wave);
        Ok(outputs)
    });
}

/// `dac::Model` fixes its width (1536); here is a decoder of its blocks.
#[test]
fn dac_decoder() {
    agree(|vb| {
        let quantizer = m::dac::ResidualVectorQuantizer::new(16, 3, 32, 8, vb.pp("quantizer"))?;
        let decoder = m::dac::Decoder::new(16, 32, &[4, 2], 1, vb.pp("decoder"))?;
        let codes = vb.input("codes", (1, 3, 5))?;
        let codes = ((codes + 2.)? * 8.)?.to_dtype(DType::U32)?;
        Ok(vec![decoder.forward(&quantizer.from_codes(&codes)?)?])
    });
}
