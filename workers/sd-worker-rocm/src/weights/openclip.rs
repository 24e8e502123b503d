//! OpenCLIP's text tower under transformers' names.

use super::Weights;

/// The names of [`crate::models::clip`] for the tensors of `tower`; its attention's stacked matrices become three.
pub fn text_tower(tower: &Weights) -> Weights {
    let mut renamed = tower.renamed(|name| {
        let new = match name {
            "token_embedding.weight" => "text_model.embeddings.token_embedding.weight".to_string(),
            "positional_embedding" => "text_model.embeddings.position_embedding.weight".to_string(),
            "text_projection" => "text_projection.weight".to_string(),
            _ => match name.strip_prefix("ln_final.") {
                Some(kind) => format!("text_model.final_layer_norm.{kind}"),
                None => layer(name.strip_prefix("transformer.resblocks.")?)?,
            },
        };
        Some(new)
    });
    // It is applied from the other side there.
    renamed.transpose("text_projection.weight");
    let stacked: Vec<String> = renamed
        .names()
        .filter(|name| name.contains(".in_proj_"))
        .map(String::from)
        .collect();
    for name in stacked {
        let rows = renamed
            .shape(&name)
            .and_then(|shape| Some(shape.first()? / 3))
            .unwrap_or(0);
        for (i, part) in ["q_proj.", "k_proj.", "v_proj."].into_iter().enumerate() {
            let new = name.replace("in_proj_", part);
            renamed.split(&name, new, i * rows, rows);
        }
    }
    renamed.renamed(|name| (!name.contains(".in_proj_")).then(|| name.to_string()))
}

fn layer(name: &str) -> Option<String> {
    let (number, rest) = name.split_once('.')?;
    let rest = rest
        .replace("attn.in_proj_", "self_attn.in_proj_")
        .replace("attn.out_proj.", "self_attn.out_proj.")
        .replace("ln_1.", "layer_norm1.")
        .replace("ln_2.", "layer_norm2.")
        .replace("mlp.c_fc.", "mlp.fc1.")
        .replace("mlp.c_proj.", "mlp.fc2.");
    Some(format!("text_model.encoder.layers.{number}.{rest}"))
}
