//! Pooling, upsampling and sorting, in every dtype and arrangement.

differential::tests! {
    pool: "pool",
    upsample: "upsample",
    sort: "sort",
}
