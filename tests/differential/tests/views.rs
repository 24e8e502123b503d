//! Views with offsets through every family of operations: each operand lies inside a larger tensor, in one of several
//! ways, and the result must be that of the CPU on compact copies. An offset that is lost, counted twice or taken for
//! bytes shows at once.

differential::tests! {
    every_family_takes_views_with_offsets: "views",
}
