//! Element-wise operations in every dtype, arrangement and a range of sizes.

differential::tests! {
    unary: "unary",
    affine_of_integers: "affine",
    binary_and_comparisons: "binary",
    casts_between_every_pair: "cast",
    special_values_agree: "special",
    where_cond: "where",
    constants: "constants",
    more_than_65535_blocks: "large",
}
