//! `candle_nn::fused` and `candle_nn::moe` on both devices against their plain forms in f64.

differential::tests! {
    norms_of_sums: "fused-norms",
    group_norms: "group-norms",
    gated_activations: "gated",
    epilogues: "epilogues",
    gradients_flow_through: "fused-gradients-flow",
    odd_halves_are_refused: "gate-mul-refusals",
    experts: "moe",
    quantized_experts: "moe-gguf",
    slots_that_do_not_fit_are_refused: "moe-refusals",
}
