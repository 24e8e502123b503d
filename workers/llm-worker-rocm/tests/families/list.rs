//! The families.

use super::*;

pub fn llama() -> Family {
    Family {
        name: "llama",
        blocks: 2,
        interleaved: true,
        rotary: HEAD,
        layer_norm: false,
        gelu: false,
        exact_gelu: false,
        qkv_bias: false,
        all_bias: false,
        fused_qkv: false,
        packed_ffn: false,
        plain_ffn: false,
        qk_norm: QkNorm::None,
        pre_norms: true,
        post_norms: false,
        parallel: false,
        parallel_norm: false,
        window: |_| false,
        local_base: None,
        positions: |_| true,
        mixture: None,
        tied: false,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        score_scale: 1.0 / (HEAD as f64).sqrt(),
        score_cap: None,
        logit_cap: None,
        logit_factor: 1.0,
        rope_factor: 1.0,
        numbers: &[],
    }
}

pub fn families() -> Vec<Family> {
    let halves = || Family {
        interleaved: false,
        ..llama()
    };
    let gemma = || Family {
        gelu: true,
        tied: true,
        embedding_scale: (WIDTH as f64).sqrt(),
        ..halves()
    };
    let neox = || Family {
        layer_norm: true,
        gelu: true,
        qkv_bias: true,
        all_bias: true,
        plain_ffn: true,
        ..halves()
    };
    let four_of_two = Mixture {
        count: 4,
        used: 2,
        sums_to_one: true,
        shared: false,
    };
    vec![
        llama(),
        Family {
            name: "llama",
            tied: true,
            rope_factor: 4.0,
            numbers: &[("rope.scaling.factor", 4.0)],
            ..llama()
        },
        // Mixtral.
        Family {
            mixture: Some(four_of_two),
            ..llama()
        },
        Family {
            name: "granite",
            embedding_scale: 12.0,
            residual_scale: 0.22,
            score_scale: 0.015625,
            logit_factor: 1.0 / 8.0,
            numbers: &[
                ("embedding_scale", 12.0),
                ("residual_scale", 0.22),
                ("attention.scale", 0.015625),
                ("logit_scale", 8.0),
            ],
            ..llama()
        },
        Family {
            name: "smollm3",
            blocks: 4,
            positions: |block| block != 3,
            ..llama()
        },
        Family {
            name: "glm4",
            rotary: HEAD / 2,
            qkv_bias: true,
            packed_ffn: true,
            post_norms: true,
            ..llama()
        },
        Family {
            name: "chatglm",
            rotary: HEAD / 2,
            qkv_bias: true,
            fused_qkv: true,
            packed_ffn: true,
            ..llama()
        },
        Family {
            name: "qwen2",
            qkv_bias: true,
            ..halves()
        },
        Family {
            name: "qwen3",
            qk_norm: QkNorm::Head,
            ..halves()
        },
        Family {
            name: "qwen2moe",
            qkv_bias: true,
            mixture: Some(Mixture {
                sums_to_one: false,
                shared: true,
                ..four_of_two
            }),
            ..halves()
        },
        Family {
            name: "qwen3moe",
            qk_norm: QkNorm::Head,
            mixture: Some(four_of_two),
            ..halves()
        },
        Family {
            name: "phi3",
            fused_qkv: true,
            packed_ffn: true,
            window: |_| true,
            numbers: &[("attention.sliding_window", WINDOW as f32)],
            ..halves()
        },
        Family {
            name: "olmo2",
            qk_norm: QkNorm::Full,
            pre_norms: false,
            post_norms: true,
            ..halves()
        },
        Family {
            name: "olmoe",
            qk_norm: QkNorm::Full,
            mixture: Some(Mixture {
                sums_to_one: false,
                ..four_of_two
            }),
            ..halves()
        },
        gemma_named("gemma", gemma()),
        Family {
            name: "gemma2",
            blocks: 3,
            post_norms: true,
            window: |block| block % 2 == 0,
            score_cap: Some(5.0),
            logit_cap: Some(3.0),
            numbers: &[
                ("attention.sliding_window", WINDOW as f32),
                ("attn_logit_softcapping", 5.0),
                ("final_logit_softcapping", 3.0),
            ],
            ..gemma()
        },
        Family {
            name: "gemma3",
            blocks: 7,
            post_norms: true,
            qk_norm: QkNorm::Head,
            window: |block| block % 6 != 5,
            local_base: Some(10_000.0),
            rope_factor: 8.0,
            numbers: &[
                ("attention.sliding_window", WINDOW as f32),
                ("rope.freq_base", 1_000_000.0),
                ("rope.scaling.factor", 8.0),
            ],
            ..gemma()
        },
        Family {
            name: "command-r",
            layer_norm: true,
            parallel: true,
            tied: true,
            logit_factor: 0.0625,
            numbers: &[("logit_scale", 0.0625)],
            ..llama()
        },
        Family {
            name: "cohere2",
            blocks: 4,
            layer_norm: true,
            parallel: true,
            tied: true,
            window: |block| block != 3,
            positions: |block| block != 3,
            logit_factor: 0.25,
            numbers: &[
                ("logit_scale", 0.25),
                ("attention.sliding_window", WINDOW as f32),
            ],
            ..llama()
        },
        Family {
            name: "starcoder2",
            ..neox()
        },
        Family {
            name: "phi2",
            rotary: HEAD / 2,
            parallel: true,
            ..neox()
        },
        Family {
            name: "gptneox",
            exact_gelu: true,
            rotary: HEAD / 2,
            fused_qkv: true,
            parallel: true,
            parallel_norm: true,
            ..neox()
        },
    ]
}

fn gemma_named(name: &'static str, family: Family) -> Family {
    Family { name, ..family }
}
