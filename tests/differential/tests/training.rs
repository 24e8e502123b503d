//! Gradients on `Device::Rocm` against the CPU's, those against differences of the function's values, and a network
//! trained on both.

differential::tests! {
    gradients_are_those_of_the_cpu: "gradients",
    gradients_are_derivatives: "derivatives",
    functions_without_a_gradient: "functions-without-a-gradient",
    a_network_trained_with_adamw: "adamw",
    a_network_trained_with_sgd: "sgd",
}
