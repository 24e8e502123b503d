//! Gradients of fused operations and of flash attention, against differences of values, and a transformer trained with
//! them.

differential::tests! {
    gradients_of_fused_operations_are_derivatives: "fused-gradients",
    gradients_of_long_rows_are_those_of_the_formula: "fused-gradients-large",
    what_has_no_gradient_says_so: "fused-gradients-none",
    gradients_of_flash_attention_are_derivatives: "flash-derivatives",
    gradients_of_flash_attention_are_those_of_the_cpu: "flash-gradients",
    dropout_is_what_its_seed_says: "flash-dropout",
    a_transformer_learns_with_fused_operations: "flash-transformer",
}
