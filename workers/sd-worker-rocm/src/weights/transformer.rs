//! Single files of transformers: diffusers' names for the originals'.
//!
//! Files of this kind come from the models' makers, from ComfyUI and as GGUF; they have the transformer alone, or more
//! below another prefix.

use super::Weights;

/// The name with the first prefix of `table` that it has replaced.
pub(super) fn with_prefix(name: &str, table: &[(&str, &str)]) -> Option<String> {
    table
        .iter()
        .find_map(|(old, new)| Some(format!("{new}{}", name.strip_prefix(old)?)))
}

fn rows(weights: &Weights, name: &str) -> usize {
    let shape = weights.shape(name);
    shape.and_then(|shape| shape.first().copied()).unwrap_or(0)
}

/// Every tensor whose name has `mark` becomes several, named by what stands for the mark, with their shares of the
/// rows.
pub(super) fn unstack(weights: &mut Weights, mark: &str, parts: &[(&str, usize)]) {
    let stacked: Vec<String> = weights
        .names()
        .filter(|name| name.contains(mark))
        .map(String::from)
        .collect();
    let shares: usize = parts.iter().map(|(_, share)| share).sum();
    for name in stacked {
        let share = rows(weights, &name) / shares;
        let mut first = 0;
        for (part, count) in parts {
            weights.split(&name, name.replace(mark, part), first, count * share);
            first += count * share;
        }
        weights.remove(&name);
    }
}

/// Scale and shift of a last norm stand the other way round in diffusers.
fn swap_halves(weights: &mut Weights, layer: &str) {
    for kind in ["weight", "bias"] {
        let name = format!("{layer}.{kind}");
        let half = rows(weights, &name) / 2;
        let halves = [format!("{name}.second"), format!("{name}.first")];
        weights.split(&name, halves[0].clone(), half, half);
        weights.split(&name, halves[1].clone(), 0, half);
        weights.stack(&halves, name);
    }
}

type Table = &'static [(&'static str, &'static str)];

/// Names of the originals and diffusers' for them, without the blocks' numbers. Marks stand for layers that are stacked
/// there.
const FLUX_DOUBLE: Table = &[
    ("img_mod.lin.", "norm1.linear."),
    ("txt_mod.lin.", "norm1_context.linear."),
    ("img_attn.qkv.", "attn.STACKED."),
    ("txt_attn.qkv.", "attn.STACKED_TEXT."),
    ("img_attn.norm.query_norm.scale", "attn.norm_q.weight"),
    ("img_attn.norm.key_norm.scale", "attn.norm_k.weight"),
    ("txt_attn.norm.query_norm.scale", "attn.norm_added_q.weight"),
    ("txt_attn.norm.key_norm.scale", "attn.norm_added_k.weight"),
    ("img_attn.proj.", "attn.to_out.0."),
    ("txt_attn.proj.", "attn.to_add_out."),
    ("img_mlp.0.", "ff.net.0.proj."),
    ("img_mlp.2.", "ff.net.2."),
    ("txt_mlp.0.", "ff_context.net.0.proj."),
    ("txt_mlp.2.", "ff_context.net.2."),
];
const FLUX_SINGLE: Table = &[
    ("modulation.lin.", "norm.linear."),
    ("linear1.", "STACKED_SINGLE."),
    ("linear2.", "proj_out."),
    ("norm.query_norm.scale", "attn.norm_q.weight"),
    ("norm.key_norm.scale", "attn.norm_k.weight"),
];
const FLUX_REST: Table = &[
    ("img_in.", "x_embedder."),
    ("txt_in.", "context_embedder."),
    (
        "time_in.in_layer.",
        "time_text_embed.timestep_embedder.linear_1.",
    ),
    (
        "time_in.out_layer.",
        "time_text_embed.timestep_embedder.linear_2.",
    ),
    (
        "vector_in.in_layer.",
        "time_text_embed.text_embedder.linear_1.",
    ),
    (
        "vector_in.out_layer.",
        "time_text_embed.text_embedder.linear_2.",
    ),
    (
        "guidance_in.in_layer.",
        "time_text_embed.guidance_embedder.linear_1.",
    ),
    (
        "guidance_in.out_layer.",
        "time_text_embed.guidance_embedder.linear_2.",
    ),
    ("final_layer.linear.", "proj_out."),
    ("final_layer.adaLN_modulation.1.", "norm_out.linear."),
];
/// FLUX.2's, whose norms are named by `scale` or `weight`.
const FLUX2_DOUBLE: Table = &[
    ("img_attn.qkv.", "attn.STACKED."),
    ("txt_attn.qkv.", "attn.STACKED_TEXT."),
    ("img_attn.norm.query_norm.", "attn.norm_q."),
    ("img_attn.norm.key_norm.", "attn.norm_k."),
    ("txt_attn.norm.query_norm.", "attn.norm_added_q."),
    ("txt_attn.norm.key_norm.", "attn.norm_added_k."),
    ("img_attn.proj.", "attn.to_out.0."),
    ("txt_attn.proj.", "attn.to_add_out."),
    ("img_mlp.0.", "ff.linear_in."),
    ("img_mlp.2.", "ff.linear_out."),
    ("txt_mlp.0.", "ff_context.linear_in."),
    ("txt_mlp.2.", "ff_context.linear_out."),
];
const FLUX2_SINGLE: Table = &[
    ("linear1.", "attn.to_qkv_mlp_proj."),
    ("linear2.", "attn.to_out."),
    ("norm.query_norm.", "attn.norm_q."),
    ("norm.key_norm.", "attn.norm_k."),
];
const FLUX2_REST: Table = &[
    ("img_in.", "x_embedder."),
    ("txt_in.", "context_embedder."),
    (
        "time_in.in_layer.",
        "time_guidance_embed.timestep_embedder.linear_1.",
    ),
    (
        "time_in.out_layer.",
        "time_guidance_embed.timestep_embedder.linear_2.",
    ),
    (
        "guidance_in.in_layer.",
        "time_guidance_embed.guidance_embedder.linear_1.",
    ),
    (
        "guidance_in.out_layer.",
        "time_guidance_embed.guidance_embedder.linear_2.",
    ),
    (
        "double_stream_modulation_img.lin.",
        "double_stream_modulation_img.linear.",
    ),
    (
        "double_stream_modulation_txt.lin.",
        "double_stream_modulation_txt.linear.",
    ),
    (
        "single_stream_modulation.lin.",
        "single_stream_modulation.linear.",
    ),
    ("final_layer.linear.", "proj_out."),
    ("final_layer.adaLN_modulation.1.", "norm_out.linear."),
];

/// Chroma's network for scales, shifts and gates.
const CHROMA_SMALL: &str = "distilled_guidance_layer";

const SD3_JOINT: Table = &[
    ("x_block.adaLN_modulation.1.", "norm1.linear."),
    ("x_block.attn.qkv.", "attn.STACKED."),
    ("x_block.attn.proj.", "attn.to_out.0."),
    ("x_block.attn.ln_q.", "attn.norm_q."),
    ("x_block.attn.ln_k.", "attn.norm_k."),
    ("x_block.attn2.qkv.", "attn2.STACKED."),
    ("x_block.attn2.proj.", "attn2.to_out.0."),
    ("x_block.attn2.ln_q.", "attn2.norm_q."),
    ("x_block.attn2.ln_k.", "attn2.norm_k."),
    ("x_block.mlp.fc1.", "ff.net.0.proj."),
    ("x_block.mlp.fc2.", "ff.net.2."),
    ("context_block.adaLN_modulation.1.", "norm1_context.linear."),
    ("context_block.attn.qkv.", "attn.STACKED_TEXT."),
    ("context_block.attn.proj.", "attn.to_add_out."),
    ("context_block.attn.ln_q.", "attn.norm_added_q."),
    ("context_block.attn.ln_k.", "attn.norm_added_k."),
    ("context_block.mlp.fc1.", "ff_context.net.0.proj."),
    ("context_block.mlp.fc2.", "ff_context.net.2."),
];
const SD3_REST: Table = &[
    ("pos_embed", "pos_embed.pos_embed"),
    ("x_embedder.proj.", "pos_embed.proj."),
    ("context_embedder.", "context_embedder."),
    (
        "t_embedder.mlp.0.",
        "time_text_embed.timestep_embedder.linear_1.",
    ),
    (
        "t_embedder.mlp.2.",
        "time_text_embed.timestep_embedder.linear_2.",
    ),
    (
        "y_embedder.mlp.0.",
        "time_text_embed.text_embedder.linear_1.",
    ),
    (
        "y_embedder.mlp.2.",
        "time_text_embed.text_embedder.linear_2.",
    ),
    ("final_layer.linear.", "proj_out."),
    ("final_layer.adaLN_modulation.1.", "norm_out.linear."),
];

/// Blocks of the originals, diffusers' name for them, and their layers.
const BLOCKS: [(&str, &str, Table); 3] = [
    ("double_blocks", "transformer_blocks", FLUX_DOUBLE),
    ("single_blocks", "single_transformer_blocks", FLUX_SINGLE),
    ("joint_blocks", "transformer_blocks", SD3_JOINT),
];

/// The same of FLUX.2.
const FLUX2_BLOCKS: [(&str, &str, Table); 2] = [
    ("double_blocks", "transformer_blocks", FLUX2_DOUBLE),
    ("single_blocks", "single_transformer_blocks", FLUX2_SINGLE),
];

/// What the marks stand for: layers with their shares of the rows.
const STACKS: [(&str, &[(&str, usize)]); 3] = [
    (
        "STACKED_TEXT",
        &[("add_q_proj", 1), ("add_k_proj", 1), ("add_v_proj", 1)],
    ),
    (
        "STACKED_SINGLE",
        &[
            ("attn.to_q", 1),
            ("attn.to_k", 1),
            ("attn.to_v", 1),
            ("proj_mlp", 4),
        ],
    ),
    (STACKED, PICTURE),
];
pub(super) const STACKED: &str = "STACKED";
pub(super) const PICTURE: &[(&str, usize)] = &[("to_q", 1), ("to_k", 1), ("to_v", 1)];

/// diffusers' names for those of the originals' blocks and for those in `rest`, with stacked tensors taken apart.
fn renamed(original: &Weights, rest: Table) -> Weights {
    let mut weights = original.renamed(|name| {
        let block = BLOCKS.iter().find_map(|(old, new, table)| {
            let (number, layer) = name.strip_prefix(old)?.strip_prefix('.')?.split_once('.')?;
            Some(format!("{new}.{number}.{}", with_prefix(layer, table)?))
        });
        block.or_else(|| with_prefix(name, rest))
    });
    for (mark, parts) in STACKS {
        unstack(&mut weights, mark, parts);
    }
    swap_halves(&mut weights, "norm_out.linear");
    weights
}

/// The layers under diffusers' names that one under an original's name is made of, with their shares of its outputs; in
/// LoRAs' names dots are underscores. None for the last norm, whose halves have changed places, and for what may be
/// Stable Diffusion 3's last norm of the text.
pub fn from_original(layer: &str) -> Option<Vec<(String, usize)>> {
    let block = BLOCKS.iter().find_map(|(old, new, table)| {
        let (number, layer) = layer
            .strip_prefix(old)?
            .strip_prefix('_')?
            .split_once('_')?;
        if *old == "joint_blocks" && layer.starts_with("context_block_adaLN") {
            return None;
        }
        Some(format!("{new}_{number}_{}", find(layer, table)?))
    });
    let name = block
        .or_else(|| find(layer, FLUX_REST))
        .or_else(|| find(layer, SD3_REST))
        .filter(|name| name != "norm_out_linear")?;
    Some(taken_apart(name))
}

/// A name without dots.
fn flat(name: &str) -> String {
    name.trim_end_matches('.').replace('.', "_")
}

/// The name of a layer, all of it without dots, by a table.
fn find(layer: &str, table: Table) -> Option<String> {
    let found = table.iter().find(|(old, _)| flat(old) == layer)?;
    Some(flat(found.1))
}

/// The layers that one with a mark in its name stands for, with their shares.
fn taken_apart(name: String) -> Vec<(String, usize)> {
    let stack = STACKS.iter().find(|(mark, _)| name.contains(mark));
    match stack {
        None => vec![(name, 1)],
        Some((mark, parts)) => parts
            .iter()
            .map(|(part, share)| (name.replace(mark, &flat(part)), *share))
            .collect(),
    }
}

/// As [`from_original`], for FLUX.2 and for what Chroma has more than FLUX.1.
pub fn from_flux2(layer: &str) -> Option<Vec<(String, usize)>> {
    if let Some(rest) = layer.strip_prefix(CHROMA_SMALL) {
        let rest = rest.replace("_in_layer", "_linear_1");
        let rest = rest.replace("_out_layer", "_linear_2");
        return Some(vec![(format!("{CHROMA_SMALL}{rest}"), 1)]);
    }
    let block = FLUX2_BLOCKS.iter().find_map(|(old, new, table)| {
        let (number, layer) = layer
            .strip_prefix(old)?
            .strip_prefix('_')?
            .split_once('_')?;
        Some(format!("{new}_{number}_{}", find(layer, table)?))
    });
    let name = block
        .or_else(|| find(layer, FLUX2_REST))
        .filter(|name| name != "norm_out_linear")?;
    Some(taken_apart(name))
}

/// The same of Lumina 2's and Z-Image's originals, which have many names in common: what a layer is in each.
pub fn from_sandwich(layer: &str) -> Vec<Vec<(String, usize)>> {
    let part = ["layers_", "noise_refiner_", "context_refiner_"];
    let block = part.iter().find_map(|part| {
        let (number, rest) = layer.strip_prefix(part)?.split_once('_')?;
        Some((format!("{part}{number}_"), rest))
    });
    let one = |name: String| vec![(name, 1)];
    let Some((block, rest)) = block else {
        let (lumina, z_image) = match layer {
            "cap_embedder_1" => ("time_caption_embed_caption_embedder_1", ""),
            "t_embedder_mlp_0" => ("time_caption_embed_timestep_embedder_linear_1", ""),
            "t_embedder_mlp_2" => ("time_caption_embed_timestep_embedder_linear_2", ""),
            "x_embedder" => ("", "all_x_embedder_2-1"),
            "final_layer_linear" => ("norm_out_linear_2", "all_final_layer_2-1_linear"),
            "final_layer_adaLN_modulation_1" => (
                "norm_out_linear_1",
                "all_final_layer_2-1_adaLN_modulation_1",
            ),
            _ => return Vec::new(),
        };
        return vec![one(lumina.to_string()), one(z_image.to_string())];
    };
    let stacked = |attention: &str, queries: usize| {
        let shares = [("q", queries), ("k", 1), ("v", 1)];
        let name = |part| format!("{block}{attention}_to_{part}");
        shares.map(|(part, share)| (name(part), share)).to_vec()
    };
    match rest {
        // Lumina 2 has three heads of queries for one of keys and values.
        "attention_qkv" => vec![stacked("attn", 3), stacked("attention", 1)],
        "attention_out" => vec![
            one(format!("{block}attn_to_out_0")),
            one(format!("{block}attention_to_out_0")),
        ],
        "adaLN_modulation_1" => vec![one(format!("{block}norm1_linear"))],
        _ => match rest.strip_prefix("feed_forward_w") {
            Some(number) => vec![one(format!("{block}feed_forward_linear_{number}"))],
            None => Vec::new(),
        },
    }
}

/// FLUX.1's tensors under diffusers' names.
pub fn flux(file: &Weights) -> Weights {
    match file.contains("img_in.weight") {
        true => renamed(file, FLUX_REST),
        false => file.clone(),
    }
}

/// FLUX.2's tensors under diffusers' names.
pub fn flux2(file: &Weights) -> Weights {
    if !file.contains("img_in.weight") {
        return file.clone();
    }
    let mut weights = file.renamed(|name| {
        let block = FLUX2_BLOCKS.iter().find_map(|(old, new, table)| {
            let (number, layer) = name.strip_prefix(old)?.strip_prefix('.')?.split_once('.')?;
            Some(format!("{new}.{number}.{}", with_prefix(layer, table)?))
        });
        let name = block.or_else(|| with_prefix(name, FLUX2_REST))?;
        Some(match name.strip_suffix(".scale") {
            Some(norm) => format!("{norm}.weight"),
            None => name,
        })
    });
    for (mark, parts) in STACKS {
        unstack(&mut weights, mark, parts);
    }
    swap_halves(&mut weights, "norm_out.linear");
    weights
}

/// Chroma's tensors under diffusers' names.
pub fn chroma(file: &Weights) -> Weights {
    if !file.contains("img_in.weight") {
        return file.clone();
    }
    let small = file.under(&format!("{CHROMA_SMALL}.")).renamed(|name| {
        let name = match name.strip_prefix("norms.") {
            Some(norm) => format!("norms.{}", norm.replace(".scale", ".weight")),
            None => name
                .replace(".in_layer.", ".linear_1.")
                .replace(".out_layer.", ".linear_2."),
        };
        Some(format!("{CHROMA_SMALL}.{name}"))
    });
    let mut weights = renamed(file, FLUX_REST);
    weights.extend(small);
    weights
}

/// Stable Diffusion 3's tensors under diffusers' names.
pub fn sd3(original: &Weights) -> Weights {
    if !original.contains("x_embedder.proj.weight") {
        return original.clone();
    }
    let mut weights = renamed(original, SD3_REST);
    // The text's stream ends in the last block, with a norm of two parts.
    let blocks = (0..).take_while(|i| {
        weights.contains(&format!(
            "transformer_blocks.{i}.norm1_context.linear.weight"
        ))
    });
    if let Some(last) = blocks.last() {
        swap_halves(
            &mut weights,
            &format!("transformer_blocks.{last}.norm1_context.linear"),
        );
    }
    weights
}

/// Lumina 2's tensors under diffusers' names.
pub fn lumina2(original: &Weights) -> Weights {
    const REST: Table = &[
        ("cap_embedder.", "time_caption_embed.caption_embedder."),
        (
            "t_embedder.mlp.0.",
            "time_caption_embed.timestep_embedder.linear_1.",
        ),
        (
            "t_embedder.mlp.2.",
            "time_caption_embed.timestep_embedder.linear_2.",
        ),
        ("final_layer.adaLN_modulation.1.", "norm_out.linear_1."),
        ("final_layer.linear.", "norm_out.linear_2."),
    ];
    let mut weights = original.renamed(|name| {
        if name.starts_with("norm_final.") {
            // It is in files, and in no network.
            return None;
        }
        let first = match name.starts_with("context_refiner.") {
            true => ".norm1.",
            false => ".norm1.norm.",
        };
        let name = name
            .replace(".attention.qkv.", ".attn.STACKED.")
            .replace(".attention.out.", ".attn.to_out.0.")
            .replace(".attention.q_norm.", ".attn.norm_q.")
            .replace(".attention.k_norm.", ".attn.norm_k.")
            .replace(".attention_norm1.", first)
            .replace(".attention_norm2.", ".norm2.")
            .replace(".feed_forward.w", ".feed_forward.linear_");
        let moved = with_prefix(&name, REST);
        let blocks = |name: String| name.replace(".adaLN_modulation.1.", ".norm1.linear.");
        Some(moved.unwrap_or_else(|| blocks(name)))
    });
    // Queries have as many rows as there are columns; keys and values share the rest.
    let shape = weights.shape(&format!("layers.0.attn.{STACKED}.weight"));
    if let Some([rows, columns]) = shape.as_deref() {
        let shared = rows.saturating_sub(*columns) / 2;
        if shared > 0 && columns.is_multiple_of(shared) {
            let parts = [("to_q", columns / shared), ("to_k", 1), ("to_v", 1)];
            unstack(&mut weights, STACKED, &parts);
        }
    }
    weights
}

/// Z-Image's tensors under diffusers' names.
pub fn z_image(original: &Weights) -> Weights {
    let mut weights = original.renamed(|name| {
        let name = name
            .replace(".attention.qkv.", ".attention.STACKED.")
            .replace(".attention.out.", ".attention.to_out.0.")
            .replace(".attention.q_norm.", ".attention.norm_q.")
            .replace(".attention.k_norm.", ".attention.norm_k.");
        let moved = with_prefix(
            &name,
            &[
                ("x_embedder.", "all_x_embedder.2-1."),
                ("final_layer.", "all_final_layer.2-1."),
            ],
        );
        Some(moved.unwrap_or(name))
    });
    unstack(&mut weights, STACKED, PICTURE);
    weights
}
