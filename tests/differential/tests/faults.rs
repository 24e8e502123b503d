//! Where the published candle is at fault (`fork/*/FIXES.md`), `Device::Rocm` and the CPU agree on what is right.

differential::tests! {
    f8e4m3_as_f64: "f8e4m3-as-f64",
    products_with_one_right_hand_side: "products-with-one-right-hand-side",
    convolutions: "convolutions-of-views",
    gather_with_fewer_ids: "gather-with-fewer-ids",
    avg_pool2d_of_integers: "avg-pool2d-of-integers",
    bilinear_resizing_of_a_view_to_its_own_size: "bilinear-resizing-of-a-view-to-its-own-size",
    sorting_nan: "sorting-nan",
    rope_with_tables_for_every_sequence: "rope-with-tables-for-every-sequence",
    functions_of_integers: "functions-of-integers",
    reductions_of_small_floats: "reductions-of-small-floats",
    nan_in_extrema: "nan-in-extrema",
    cumulative_sums: "cumulative-sums",
    powers: "powers",
    gradients_at_ties: "gradients-at-ties",
}
