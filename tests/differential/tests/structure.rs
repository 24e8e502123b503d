//! Reductions, indexing, copies, matrix products, layers and random numbers.

differential::tests! {
    reductions: "reduce",
    argmin_and_argmax_give_u32: "argmin-and-argmax",
    indexing: "indexing",
    offsets_of_views_count_elements: "offsets-of-views",
    index_out_of_range_is_a_typed_error_and_the_device_goes_on: "index-out-of-range",
    copies: "copy",
    matrix_products: "matmul",
    layers: "layers",
    random_numbers: "rand",
    copies_between_devices: "copies-between-devices",
    every_float_dtype_survives_the_round_trip: "round-trip",
}
