//! Functions of rows against an oracle of plain loops, on the device and on the CPU.

differential::tests! {
    long_rows_of_halves: "long-rows",
    special_values_in_every_position: "special-positions",
    special_values_beside_each_other: "special-pairs",
    extreme_scales: "extreme-scales",
    shapes_of_nothing_and_of_one: "degenerate-shapes",
}
