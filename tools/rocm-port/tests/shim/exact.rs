//! Exact binary numbers, and what they become in a format of fewer digits: the reference for floats of 16 and 8 bits.

/// How a number is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nearest,
    Zero,
    Up,
    Down,
}

pub const MODES: [Mode; 4] = [Mode::Nearest, Mode::Zero, Mode::Up, Mode::Down];

/// A format by the bits of its mantissa and exponent, as IEEE 754 has them.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub mantissa: u32,
    pub exponent: u32,
}

pub const F16: Format = Format {
    mantissa: 10,
    exponent: 5,
};
pub const BF16: Format = Format {
    mantissa: 7,
    exponent: 8,
};
pub const F32: Format = Format {
    mantissa: 23,
    exponent: 8,
};

/// A finite number: `±magnitude * 2^exponent`.
#[derive(Clone, Copy, Debug)]
pub struct Exact {
    pub negative: bool,
    pub magnitude: u128,
    pub exponent: i32,
}

impl Format {
    pub fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    pub fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.mantissa
    }

    pub fn sign(self) -> u64 {
        1 << (self.mantissa + self.exponent)
    }

    /// Canonical: all ones but the sign.
    pub fn nan(self) -> u64 {
        self.sign() - 1
    }

    pub fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.infinity()
    }

    pub fn is_finite(self, bits: u64) -> bool {
        bits & (self.sign() - 1) < self.infinity()
    }

    /// The number of finite bits.
    pub fn exact(self, bits: u64) -> Exact {
        let field = (bits >> self.mantissa & ((1 << self.exponent) - 1)) as i32;
        let fraction = bits & ((1 << self.mantissa) - 1);
        let hidden = u64::from(field > 0) << self.mantissa;
        Exact {
            negative: bits & self.sign() != 0,
            magnitude: u128::from(fraction | hidden),
            exponent: field.max(1) - self.bias() - self.mantissa as i32,
        }
    }

    pub fn value(self, bits: u64) -> f64 {
        if self.is_nan(bits) {
            return f64::NAN;
        }
        let sign = if bits & self.sign() != 0 { -1.0 } else { 1.0 };
        match self.is_finite(bits) {
            true => {
                let exact = self.exact(bits);
                sign * exact.magnitude as f64 * 2f64.powi(exact.exponent)
            }
            false => sign * f64::INFINITY,
        }
    }

    /// Rounds, with infinity beyond the range.
    pub fn round(self, number: Exact, mode: Mode) -> u64 {
        let sign = if number.negative { self.sign() } else { 0 };
        if number.magnitude == 0 {
            return sign;
        }
        let top = 127 - number.magnitude.leading_zeros() as i32 + number.exponent;
        let least = 1 - self.bias();
        // Digits end here.
        let unit = top.max(least) - self.mantissa as i32;
        let shift = unit - number.exponent;
        let away = match mode {
            Mode::Up => !number.negative,
            Mode::Down => number.negative,
            _ => false,
        };
        let digits = if shift <= 0 {
            number.magnitude << -shift
        } else {
            let (kept, lost) = match shift {
                128.. => (0, number.magnitude),
                _ => (
                    number.magnitude >> shift,
                    number.magnitude & ((1 << shift) - 1),
                ),
            };
            let half = if shift <= 128 {
                1u128 << (shift - 1)
            } else {
                u128::MAX
            };
            let up = match mode {
                Mode::Nearest => lost > half || (lost == half && kept & 1 == 1),
                _ => away && lost != 0,
            };
            kept + u128::from(up)
        };
        let field = (unit + self.mantissa as i32 + self.bias() - 1) as u64;
        let bits = (field << self.mantissa) + digits as u64;
        if bits >= self.infinity() {
            let to_infinity = mode == Mode::Nearest || away;
            return sign | (self.infinity() - u64::from(!to_infinity));
        }
        sign | bits
    }

    /// A double, rounded.
    pub fn of(self, value: f64, mode: Mode) -> u64 {
        if value.is_nan() {
            return self.nan();
        }
        if value.is_infinite() {
            return self.infinity() | if value < 0.0 { self.sign() } else { 0 };
        }
        self.round(Exact::of(value), mode)
    }
}

impl Exact {
    pub fn of(value: f64) -> Exact {
        let double = Format {
            mantissa: 52,
            exponent: 11,
        };
        let exact = double.exact(value.to_bits());
        // Without zeros at its end, so that products and shifted sums have room.
        let zeros = match exact.magnitude {
            0 => 0,
            m => m.trailing_zeros(),
        };
        Exact {
            magnitude: exact.magnitude >> zeros,
            exponent: exact.exponent + zeros as i32,
            ..exact
        }
    }

    pub fn integer(value: i128) -> Exact {
        Exact {
            negative: value < 0,
            magnitude: value.unsigned_abs(),
            exponent: 0,
        }
    }

    pub fn times(self, other: Exact) -> Exact {
        Exact {
            negative: self.negative != other.negative,
            magnitude: self.magnitude * other.magnitude,
            exponent: self.exponent + other.exponent,
        }
    }

    fn top(self) -> i32 {
        128 - self.magnitude.leading_zeros() as i32 + self.exponent
    }

    /// A sum whose zero is positive; what lies too far below is a last digit that is not zero.
    pub fn plus(self, other: Exact) -> Exact {
        if self.magnitude == 0 || other.magnitude == 0 {
            return if self.magnitude == 0 { other } else { self };
        }
        let (high, low) = match self.top() >= other.top() {
            true => (self, other),
            false => (other, self),
        };
        let signed = |e: Exact, m: u128| if e.negative { -(m as i128) } else { m as i128 };
        let (sum, exponent) = if high.top() - low.exponent <= 120 {
            let exponent = high.exponent.min(low.exponent);
            let aligned = |e: Exact| signed(e, e.magnitude << (e.exponent - exponent));
            (aligned(high) + aligned(low), exponent)
        } else {
            let room = high.magnitude.leading_zeros() as i32 - 4;
            (
                signed(high, high.magnitude << room) + signed(low, 1),
                high.exponent - room,
            )
        };
        Exact {
            negative: sum < 0,
            magnitude: sum.unsigned_abs(),
            exponent,
        }
    }

    /// A quotient of numbers of less than 40 bits, to more digits than any format here has, the last of them sticky.
    pub fn over(self, other: Exact) -> Exact {
        let dividend = self.magnitude << 80;
        let (quotient, rest) = (dividend / other.magnitude, dividend % other.magnitude);
        Exact {
            negative: self.negative != other.negative,
            magnitude: quotient << 1 | u128::from(rest != 0),
            exponent: self.exponent - other.exponent - 81,
        }
    }

    /// A root, likewise.
    pub fn root(self) -> Exact {
        let odd = self.exponent & 1;
        let square = self.magnitude << (60 + odd);
        let mut root = (square as f64).sqrt() as u128;
        while root * root > square {
            root -= 1;
        }
        while (root + 1) * (root + 1) <= square {
            root += 1;
        }
        Exact {
            negative: false,
            magnitude: root << 1 | u128::from(root * root != square),
            exponent: (self.exponent - odd - 60) / 2 - 1,
        }
    }
}

/// A sequence of random words.
pub fn words(seed: u64, n: usize) -> Vec<u64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    (0..n).map(|_| next()).collect()
}
