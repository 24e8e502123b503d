//! A small Stable Diffusion against what diffusers computed: `tests/fixtures/tiny-sd`.

use candle_core::{DType, Device, Result, Tensor};
use candle_transformers::models::clip::text_model::{ClipTextConfig, ClipTextTransformer};
use candle_transformers::models::stable_diffusion as sd;
use differential::rocm;
use models::{distance, weights};
use sd::schedulers::SchedulerConfig;
use sd::unet_2d::{BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig};
use sd::vae::{AutoEncoderKL, AutoEncoderKLConfig};

const GUIDANCE: f64 = 7.5;
const LATENT_SCALE: f64 = 0.18215;

struct Reference(std::collections::HashMap<String, Tensor>);

impl Reference {
    fn load(device: &Device) -> Result<Self> {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../fixtures/tiny-sd/reference.safetensors"
        );
        candle_core::safetensors::load(file, device).map(Self)
    }

    fn get(&self, name: &str) -> &Tensor {
        &self.0[name]
    }

    /// Largest difference between `got` and the reference, which must not exceed `limit`.
    fn check(&self, name: &str, got: &Tensor, limit: f32) -> Result<()> {
        let difference = (got - self.get(name))?
            .abs()?
            .max_all()?
            .to_scalar::<f32>()?;
        println!("{name}: largest difference {difference:.1e}");
        assert!(
            difference <= limit,
            "{name} is off by {difference:e}, more than {limit:e}"
        );
        Ok(())
    }
}

fn text_encoder(device: &Device) -> Result<ClipTextTransformer> {
    let config = ClipTextConfig {
        vocab_size: 49408,
        embed_dim: 32,
        intermediate_size: 64,
        max_position_embeddings: 77,
        num_hidden_layers: 3,
        num_attention_heads: 4,
        projection_dim: 32,
        ..ClipTextConfig::vit_base_patch32()
    };
    let weights = weights(DType::F32, DType::F32, device);
    ClipTextTransformer::new(weights.pp("text_encoder.text_model"), &config)
}

fn unet(dtype: DType, device: &Device) -> Result<UNet2DConditionModel> {
    let block = |out_channels, use_cross_attn| BlockConfig {
        out_channels,
        use_cross_attn,
        attention_head_dim: 4,
    };
    let config = UNet2DConditionModelConfig {
        blocks: vec![
            block(32, Some(1)),
            block(64, Some(1)),
            block(64, Some(1)),
            block(64, None),
        ],
        layers_per_block: 1,
        cross_attention_dim: 32,
        ..Default::default()
    };
    UNet2DConditionModel::new(
        weights(dtype, dtype, device).pp("unet"),
        4,
        4,
        false,
        config,
    )
}

fn vae(device: &Device) -> Result<AutoEncoderKL> {
    let config = AutoEncoderKLConfig {
        block_out_channels: vec![32, 32, 64, 64],
        layers_per_block: 1,
        latent_channels: 4,
        norm_num_groups: 32,
        use_quant_conv: true,
        use_post_quant_conv: true,
    };
    AutoEncoderKL::new(
        weights(DType::F32, DType::F32, device).pp("vae"),
        3,
        3,
        config,
    )
}

/// The whole way from token numbers to pixels, compared at every step.
fn picture(device: &Device) -> Result<()> {
    let reference = Reference::load(device)?;
    let encoder = text_encoder(device)?;
    for prompt in ["uncond", "cond"] {
        let ids = reference
            .get(&format!("input_ids_{prompt}"))
            .to_dtype(DType::U32)?;
        let text = encoder.forward_with_mask(&ids, usize::MAX)?;
        reference.check(&format!("text_{prompt}"), &text, 1e-5)?;
    }
    let context = Tensor::cat(
        &[reference.get("text_uncond"), reference.get("text_cond")],
        0,
    )?;

    let unet = unet(DType::F32, device)?;
    let mut scheduler = sd::ddim::DDIMSchedulerConfig::default().build(6)?;
    let mut latents = (reference.get("latents_init") * scheduler.init_noise_sigma())?;
    for (i, timestep) in scheduler.timesteps().to_vec().into_iter().enumerate() {
        let noise = unet.forward(
            &Tensor::cat(&[&latents, &latents], 0)?,
            timestep as f64,
            &context,
        )?;
        let (uncond, cond) = (noise.narrow(0, 0, 1)?, noise.narrow(0, 1, 1)?);
        reference.check(&format!("noise_uncond_{i}"), &uncond, 2e-5)?;
        reference.check(&format!("noise_cond_{i}"), &cond, 2e-5)?;
        let guided = (&uncond + ((cond - &uncond)? * GUIDANCE)?)?;
        latents = scheduler.step(&guided, timestep, &latents)?;
        reference.check(&format!("latents_{i}"), &latents, 2e-4)?;
    }
    let image = vae(device)?.decode(&(latents / LATENT_SCALE)?)?;
    reference.check("image", &image, 5e-5)
}

#[test]
fn a_picture_on_the_cpu() -> Result<()> {
    picture(&Device::Cpu)
}

#[test]
fn a_picture_on_rocm() -> Result<()> {
    picture(&rocm())
}

/// One call of the UNet in half precision, against the reference in single.
fn half(dtype: DType, limit: f64) -> Result<()> {
    let device = rocm();
    let reference = Reference::load(&device)?;
    let noise = unet(dtype, &device)?.forward(
        &reference.get("latents_init").to_dtype(dtype)?,
        reference.get("timesteps").to_vec1::<i64>()?[0] as f64,
        &reference.get("text_cond").to_dtype(dtype)?,
    )?;
    let error = distance(&noise, reference.get("noise_cond_0"));
    println!("UNet in {}: NMSE {error:.1e}", dtype.as_str());
    assert!(error <= limit, "NMSE {error:e} exceeds {limit:e}");
    Ok(())
}

#[test]
fn unet_in_f16() -> Result<()> {
    half(DType::F16, 1e-4)
}

#[test]
fn unet_in_bf16() -> Result<()> {
    half(DType::BF16, 6e-3)
}
