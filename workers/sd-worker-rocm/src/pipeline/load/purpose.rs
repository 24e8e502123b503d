//! What a UNet is for, as its configuration tells: models that need more than a prompt and a picture are told apart
//! before they fail at the first step.

use crate::info::Purpose;
use crate::models::clip::ClipConfig;
use crate::models::config::PerBlock;
use crate::models::unet::config::UNetConfig;

/// Channels beside the latents of networks for inpainting: a mask, and the masked picture's latents.
fn inpainting_channels(unet: &UNetConfig) -> usize {
    2 * unet.out_channels + 1
}

/// What a UNet is for, if it fits its text encoders.
///
/// # Errors
/// Names the kind of model if it is not implemented, or the widths that do not fit.
pub(super) fn of(unet: &UNetConfig, towers: &[&ClipConfig]) -> Result<Purpose, String> {
    let (input, output) = (unet.in_channels, unet.out_channels);
    let other = |kind: &str| {
        Err(format!(
            "the denoiser takes {input} channels for {output}: this is {kind}, which is not implemented"
        ))
    };
    let purpose = match input {
        _ if input == output && is_refiner(unet, towers)? => Purpose::Refiner,
        _ if input == output || input == inpainting_channels(unet) => Purpose::Pictures,
        _ if input == 2 * output => Purpose::Instructions,
        _ if input == output + 1 => Purpose::Depth,
        _ if input == output + 3 => return other("an upscaler"),
        _ => return other("a model of a kind that is not known"),
    };
    let towers: Vec<usize> = towers.iter().map(|tower| tower.hidden_size).collect();
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
    Ok(purpose)
}

/// Refiners are conditioned on five numbers, the last an aesthetic score, instead of six.
fn is_refiner(unet: &UNetConfig, towers: &[&ClipConfig]) -> Result<bool, String> {
    let (Some(input), Some(width), Some(last)) = (
        unet.projection_class_embeddings_input_dim,
        unet.addition_time_embed_dim,
        towers.last(),
    ) else {
        return Ok(false);
    };
    let pooled = last.projection_dim.unwrap_or(last.hidden_size);
    match input.checked_sub(pooled) {
        Some(numbers) if numbers == 6 * width => Ok(false),
        Some(numbers) if numbers == 5 * width => Ok(true),
        _ => Err(format!(
            "projection_class_embeddings_input_dim is {input}; with a pooled text of {pooled} and addition_time_embed_dim {width} it must be {} or {}",
            pooled + 6 * width,
            pooled + 5 * width
        )),
    }
}

/// Whether pipelines of this class are of a kind that the parts of a folder do not tell, and that is not implemented.
///
/// # Errors
/// Names it.
pub(super) fn check_class(class: &str) -> Result<(), String> {
    const KINDS: [(&str, &str); 10] = [
        ("UnCLIP", "pictures from CLIP's embeddings of pictures"),
        ("ImageVariation", "variations of a picture without a prompt"),
        ("Upscale", "upscaling"),
        ("Kolors", "Kolors, whose text encoder is ChatGLM3"),
        ("GLIGEN", "boxes with prompts"),
        ("AnimateDiff", "videos"),
        ("Video", "videos"),
        ("Audio", "sounds"),
        ("Kandinsky", "Kandinsky"),
        ("LDM3D", "pictures with depths"),
    ];
    match KINDS.iter().find(|(word, _)| class.contains(word)) {
        Some((_, what)) => Err(format!("{class}, for {what}, is not implemented")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tower(width: usize, pooled: Option<usize>) -> ClipConfig {
        let json = format!(
            r#"{{"vocab_size": 10, "hidden_size": {width}, "intermediate_size": 8, "num_hidden_layers": 1,
                "num_attention_heads": 1, "projection_dim": {}}}"#,
            pooled.map_or("null".to_string(), |pooled| pooled.to_string())
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn models_for_other_purposes_are_told_apart() {
        let with = |input| UNetConfig {
            in_channels: input,
            cross_attention_dim: PerBlock::One(768),
            ..UNetConfig::default()
        };
        let (l, h, g) = (tower(768, None), tower(1024, None), tower(1280, Some(1280)));
        for (channels, purpose) in [
            (4, Purpose::Pictures),
            (9, Purpose::Pictures),
            (8, Purpose::Instructions),
            (5, Purpose::Depth),
        ] {
            assert_eq!(of(&with(channels), &[&l]), Ok(purpose), "{channels}");
        }
        for (channels, kind) in [(7, "upscaler"), (6, "not known")] {
            let error = of(&with(channels), &[&l]).unwrap_err();
            assert!(error.contains(kind), "{channels}: {error}");
        }
        assert!(of(&with(4), &[&h]).unwrap_err().contains("1024"));
        assert!(of(&with(4), &[&l, &g]).unwrap_err().contains("2048"));
        let xl = |numbers: usize, text| UNetConfig {
            addition_embed_type: Some("text_time".to_string()),
            addition_time_embed_dim: Some(256),
            projection_class_embeddings_input_dim: Some(numbers * 256 + 1280),
            cross_attention_dim: PerBlock::One(text),
            ..UNetConfig::default()
        };
        assert_eq!(of(&xl(6, 2048), &[&l, &g]), Ok(Purpose::Pictures));
        assert_eq!(of(&xl(5, 1280), &[&g]), Ok(Purpose::Refiner));
        assert!(of(&xl(4, 1280), &[&g])
            .unwrap_err()
            .contains("projection_class_embeddings_input_dim"));
    }

    #[test]
    fn other_pipelines_are_named() {
        assert_eq!(check_class("StableDiffusionXLInpaintPipeline"), Ok(()));
        for (class, what) in [
            ("StableUnCLIPImg2ImgPipeline", "CLIP's embeddings"),
            ("StableDiffusionImageVariationPipeline", "variations"),
            ("StableDiffusionUpscalePipeline", "upscaling"),
            ("KolorsPipeline", "ChatGLM3"),
        ] {
            let error = check_class(class).unwrap_err();
            assert!(error.contains(class) && error.contains(what), "{error}");
        }
    }
}
