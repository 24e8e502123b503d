//! What routers of mixtures do in their own way.

/// How a router's numbers become weights of experts, unless the file says otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// What its numbers become first.
    pub scores: Scores,
    /// The weights of a token's experts are divided by their sum.
    pub normalised: bool,
    /// Added to that sum.
    pub epsilon: f32,
    /// A weight is the factor of its expert's input, not of what the expert gives.
    pub scales_input: bool,
    /// An expert's weight is its share of the softmax over those that were not chosen before it and are not far behind
    /// it: no more than twice this share of the larger number. The other rules count for nothing then. ("GRIN: GRadient-
    /// INformed MoE", Liu et al., 2024.)
    pub near: Option<f64>,
}

/// What experts are chosen by, and what their weights are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each number.
    Sigmoid,
    /// The numbers themselves; weights are the softmax over the chosen ones.
    Chosen,
}

impl Routing {
    /// Probabilities of all experts; those of the chosen ones are scaled to a sum of 1.
    pub const NORMALISED: Self = Self {
        scores: Scores::Softmax,
        normalised: true,
        epsilon: 0.0,
        scales_input: false,
        near: None,
    };
    /// [`Routing::near`] of Phi 3.5 with experts.
    pub const NEARNESS: f64 = 0.01;
    /// That model's.
    pub const NEAR: Self = Self {
        near: Some(Self::NEARNESS),
        ..Self::PLAIN
    };
    /// Probabilities of all experts; those of the chosen ones as they are.
    pub const PLAIN: Self = Self {
        normalised: false,
        ..Self::NORMALISED
    };
    /// DeepSeek-V3's: sigmoids, those of the chosen ones scaled to a sum of 1.
    pub const SIGMOID: Self = Self {
        scores: Scores::Sigmoid,
        epsilon: 1e-20,
        ..Self::NORMALISED
    };
    /// The softmax over the chosen ones.
    pub const CHOSEN: Self = Self {
        scores: Scores::Chosen,
        ..Self::PLAIN
    };
    /// The sigmoid of each chosen one's number, and it is the expert's input that is scaled.
    pub const INPUT: Self = Self {
        scores: Scores::Sigmoid,
        scales_input: true,
        ..Self::PLAIN
    };
}
