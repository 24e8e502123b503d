//! What a UNet is for, as its configuration tells: models that need more than a prompt and a picture are told apart
//! before they fail at the first step.

use crate::models::config::PerBlock;
use crate::models::unet::config::UNetConfig;

/// Channels beside the latents of networks for inpainting: a mask, and the masked picture's latents.
fn inpainting_channels(unet: &UNetConfig) -> usize {
    2 * unet.out_channels + 1
}

/// Checks that a UNet fits its text encoders, of these widths, and is one that a prompt, a picture and a mask suffice
/// for.
///
/// # Errors
/// Names the kind of model, or the widths that do not fit.
pub(super) fn check(unet: &UNetConfig, towers: &[usize]) -> Result<(), String> {
    let (input, output) = (unet.in_channels, unet.out_channels);
    let kind = match input {
        _ if is_refiner(unet) => Some("a refiner of Stable Diffusion XL"),
        _ if input == output || input == inpainting_channels(unet) => None,
        _ if input == 2 * output => {
            Some("a model for instructions on pictures (InstructPix2Pix) or upscaling")
        }
        _ if input == output + 1 => Some("a model for depth maps"),
        _ if input == output + 3 => Some("an upscaler"),
        _ => Some("a model of a kind that is not known"),
    };
    if let Some(kind) = kind {
        return Err(format!(
            "the denoiser takes {input} channels for {output}: this is {kind}, which is not implemented"
        ));
    }
    let width: usize = towers.iter().sum();
    let fits = |wanted: &usize| *wanted == width;
    let all_fit = match &unet.cross_attention_dim {
        PerBlock::One(wanted) => fits(wanted),
        PerBlock::Each(wanted) => wanted.iter().all(fits),
    };
    if !all_fit {
        return Err(format!(
            "cross_attention_dim of the denoiser is {}, but the text encoders' widths {towers:?} make {width}",
            match &unet.cross_attention_dim {
                PerBlock::One(wanted) => wanted.to_string(),
                PerBlock::Each(wanted) => format!("{wanted:?}"),
            }
        ));
    }
    Ok(())
}

/// Refiners are conditioned on five numbers, the last an aesthetic score, instead of six.
fn is_refiner(unet: &UNetConfig) -> bool {
    let numbers = |count: usize| unet.addition_time_embed_dim.map(|width| count * width);
    match (
        unet.projection_class_embeddings_input_dim,
        &unet.cross_attention_dim,
    ) {
        // The second tower alone is as wide as its pooled text.
        (Some(input), PerBlock::One(text)) => numbers(5).is_some_and(|five| input == five + text),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_for_other_purposes_are_named() {
        let with = |input| UNetConfig {
            in_channels: input,
            cross_attention_dim: PerBlock::One(768),
            ..UNetConfig::default()
        };
        assert_eq!(check(&with(4), &[768]), Ok(()));
        assert_eq!(check(&with(9), &[768]), Ok(()));
        for (channels, kind) in [
            (8, "InstructPix2Pix"),
            (5, "depth"),
            (7, "upscaler"),
            (6, "not known"),
        ] {
            let error = check(&with(channels), &[768]).unwrap_err();
            assert!(error.contains(kind), "{channels}: {error}");
        }
        assert!(check(&with(4), &[1024]).unwrap_err().contains("1024"));
        assert!(check(&with(4), &[768, 1280]).unwrap_err().contains("2048"));
        let xl = |numbers: usize, text| UNetConfig {
            addition_embed_type: Some("text_time".to_string()),
            addition_time_embed_dim: Some(256),
            projection_class_embeddings_input_dim: Some(numbers * 256 + 1280),
            cross_attention_dim: PerBlock::One(text),
            ..UNetConfig::default()
        };
        assert_eq!(check(&xl(6, 2048), &[768, 1280]), Ok(()));
        assert!(check(&xl(5, 1280), &[1280])
            .unwrap_err()
            .contains("refiner"));
    }
}
