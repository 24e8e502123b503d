//! Tensors by the names that `mmproj` files have for encoders of sound, `a.*`; the decoder's in the same manner, `d.*`.

/// Hugging Face's name; `None` for one that no Whisper model has.
pub(super) fn of_folder(name: &str) -> Option<String> {
    /// Parts of a block.
    const PARTS: [(&str, &str); 13] = [
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.out_proj", "attn_out"),
        ("self_attn_layer_norm", "ln1"),
        ("encoder_attn.q_proj", "cross_q"),
        ("encoder_attn.k_proj", "cross_k"),
        ("encoder_attn.v_proj", "cross_v"),
        ("encoder_attn.out_proj", "cross_out"),
        ("encoder_attn_layer_norm", "cross_ln"),
        ("fc1", "ffn_up"),
        ("fc2", "ffn_down"),
        ("final_layer_norm", "ln2"),
    ];
    const WHOLE: [(&str, &str); 7] = [
        ("encoder.conv1", "a.conv1d.1"),
        ("encoder.conv2", "a.conv1d.2"),
        ("encoder.embed_positions", "a.position_embd"),
        ("encoder.layer_norm", "a.post_ln"),
        ("decoder.embed_tokens", "d.token_embd"),
        ("decoder.embed_positions", "d.position_embd"),
        ("decoder.layer_norm", "d.post_ln"),
    ];
    let name = name.strip_prefix("model.").unwrap_or(name);
    renamed(name, "layers", &WHOLE, &PARTS)
}

/// OpenAI's name; `None` for one that no Whisper model has.
pub(super) fn of_openai(name: &str) -> Option<String> {
    const PARTS: [(&str, &str); 13] = [
        ("attn.query", "attn_q"),
        ("attn.key", "attn_k"),
        ("attn.value", "attn_v"),
        ("attn.out", "attn_out"),
        ("attn_ln", "ln1"),
        ("cross_attn.query", "cross_q"),
        ("cross_attn.key", "cross_k"),
        ("cross_attn.value", "cross_v"),
        ("cross_attn.out", "cross_out"),
        ("cross_attn_ln", "cross_ln"),
        ("mlp.0", "ffn_up"),
        ("mlp.2", "ffn_down"),
        ("mlp_ln", "ln2"),
    ];
    const WHOLE: [(&str, &str); 5] = [
        ("encoder.conv1", "a.conv1d.1"),
        ("encoder.conv2", "a.conv1d.2"),
        ("encoder.ln_post", "a.post_ln"),
        ("decoder.token_embedding", "d.token_embd"),
        ("decoder.ln", "d.post_ln"),
    ];
    // Tables that are no module's have no "weight" behind their names.
    match name {
        "encoder.positional_embedding" => Some("a.position_embd.weight".to_string()),
        "decoder.positional_embedding" => Some("d.position_embd.weight".to_string()),
        _ => renamed(name, "blocks", &WHOLE, &PARTS),
    }
}

fn renamed(
    name: &str,
    list: &str,
    whole: &[(&str, &str)],
    parts: &[(&str, &str)],
) -> Option<String> {
    let (module, kind) = name.rsplit_once('.')?;
    if !matches!(kind, "weight" | "bias") {
        return None;
    }
    let own = |table: &[(&str, &str)], module: &str| {
        let found = table.iter().find(|(theirs, _)| *theirs == module);
        found.map(|(_, own)| own.to_string())
    };
    if let Some(own) = own(whole, module) {
        return Some(format!("{own}.{kind}"));
    }
    let (side, rest) = module.split_once('.')?;
    let side = match side {
        "encoder" => "a",
        "decoder" => "d",
        _ => return None,
    };
    let (block, part) = rest
        .strip_prefix(list)?
        .strip_prefix('.')?
        .split_once('.')?;
    let block: u32 = block.parse().ok()?;
    Some(format!("{side}.blk.{block}.{}.{kind}", own(parts, part)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_lead_to_the_same_name() {
        for (folder, openai, own) in [
            (
                "model.encoder.conv1.bias",
                "encoder.conv1.bias",
                "a.conv1d.1.bias",
            ),
            (
                "model.encoder.layers.11.self_attn.k_proj.weight",
                "encoder.blocks.11.attn.key.weight",
                "a.blk.11.attn_k.weight",
            ),
            (
                "model.decoder.layers.0.encoder_attn_layer_norm.bias",
                "decoder.blocks.0.cross_attn_ln.bias",
                "d.blk.0.cross_ln.bias",
            ),
            (
                "model.decoder.embed_positions.weight",
                "decoder.positional_embedding",
                "d.position_embd.weight",
            ),
        ] {
            assert_eq!(of_folder(folder).as_deref(), Some(own));
            assert_eq!(of_openai(openai).as_deref(), Some(own));
        }
        for name in [
            "model.encoder.layers.x.fc1.weight",
            "proj_out.weight",
            "a",
            "",
        ] {
            assert_eq!(of_folder(name), None, "{name}");
            assert_eq!(of_openai(name), None, "{name}");
        }
    }
}
