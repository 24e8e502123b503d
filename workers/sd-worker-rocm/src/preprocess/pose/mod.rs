//! Poses: people found in maps of their joints, and drawn as ControlNets were trained with them.

mod draw;
mod people;

pub use draw::draw;
pub use people::{people, Person};

/// Joints: nose, neck, right and left arm, right and left leg, eyes, ears.
pub const JOINTS: usize = 18;

/// Pairs of joints that limbs join, and the first of the two fields along each.
const LIMBS: [(usize, usize, usize); 19] = [
    (1, 2, 12),
    (1, 5, 20),
    (2, 3, 14),
    (3, 4, 16),
    (5, 6, 22),
    (6, 7, 24),
    (1, 8, 0),
    (8, 9, 2),
    (9, 10, 4),
    (1, 11, 6),
    (11, 12, 8),
    (12, 13, 10),
    (1, 0, 28),
    (0, 14, 30),
    (14, 16, 34),
    (0, 15, 32),
    (15, 17, 36),
    (2, 16, 18),
    (5, 17, 26),
];

/// Limbs that found a person and are drawn: the last two only join what others have found.
const DRAWN: usize = 17;
