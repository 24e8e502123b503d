//! Text towers of single-file checkpoints.

use crate::models::clip::{Activation, ClipConfig};
use crate::models::config::Others;
use crate::weights::openclip::text_tower;
use crate::weights::Weights;

/// A text tower with its configuration.
#[derive(Debug, Clone)]
pub struct Tower {
    /// Sizes.
    pub config: ClipConfig,
    /// Tensors.
    pub weights: Weights,
    /// Layers left out at the end unless a request says otherwise.
    pub leave_out: usize,
}

/// All towers of a checkpoint, in order.
pub(super) fn towers(weights: &Weights) -> Result<Vec<Tower>, String> {
    let mut towers = Vec::new();
    for (prefix, openclip, leave_out) in [
        // Stable Diffusion 1.
        ("cond_stage_model.transformer.", false, 0),
        // Stable Diffusion 2 reads the last but one layer.
        ("cond_stage_model.model.", true, 1),
        // XL, first and second tower; the refiner has only one.
        ("conditioner.embedders.0.transformer.", false, 1),
        ("conditioner.embedders.0.model.", true, 1),
        ("conditioner.embedders.1.model.", true, 1),
    ] {
        let original = weights.under(prefix);
        if original.is_empty() {
            continue;
        }
        let tower = match openclip {
            true => text_tower(&original),
            // Files from before transformers' change of names lack the first part.
            false if original.contains("embeddings.token_embedding.weight") => {
                original.renamed(|name| Some(format!("text_model.{name}")))
            }
            false => original,
        };
        towers.push(Tower {
            config: clip_config(&tower, openclip)
                .ok_or_else(|| format!("the text tower {prefix} is incomplete"))?,
            weights: tower,
            leave_out,
        });
    }
    Ok(towers)
}

/// What the tensors of a text tower tell about it. Whether it is OpenCLIP's they tell by their width only, so that it
/// may be said.
pub fn clip_config(tower: &Weights, openclip: bool) -> Option<ClipConfig> {
    let tokens = tower.shape("text_model.embeddings.token_embedding.weight")?;
    let positions = tower.shape("text_model.embeddings.position_embedding.weight")?;
    let up = tower.shape("text_model.encoder.layers.0.mlp.fc1.weight")?;
    let layers = (0..1024)
        .take_while(|i| tower.contains(&format!("text_model.encoder.layers.{i}.mlp.fc1.weight")))
        .count();
    let size = *tokens.get(1)?;
    let projection = tower.shape("text_projection.weight");
    Some(ClipConfig {
        vocab_size: *tokens.first()?,
        hidden_size: size,
        intermediate_size: *up.first()?,
        num_hidden_layers: layers,
        num_attention_heads: (size / 64).max(1),
        max_position_embeddings: *positions.first()?,
        // The larger towers are OpenCLIP's, whatever names their tensors have.
        hidden_act: match openclip || size > 768 {
            true => Activation::Gelu,
            false => Activation::QuickGelu,
        },
        layer_norm_eps: 1e-5,
        projection_dim: projection.and_then(|shape| shape.first().copied()),
        eos_token_id: None,
        others: Others::default(),
    })
}
