//! Which of two elements is chosen: NaN is the greatest for a maximum and the least for a minimum, so that one in the
//! input is seen in the outcome, as in PyTorch.

/// Whether a value is not equal to itself.
#[inline(always)]
#[allow(clippy::eq_op)]
pub(crate) fn is_nan<T: PartialOrd + Copy>(v: T) -> bool {
    v != v
}

/// Whether `v` replaces `best` as the maximum of what has been seen. Of equal ones the first stays.
#[inline(always)]
pub(crate) fn is_greater<T: PartialOrd + Copy>(v: T, best: T) -> bool {
    v > best || (is_nan(v) && !is_nan(best))
}

/// The same as the minimum.
#[inline(always)]
pub(crate) fn is_less<T: PartialOrd + Copy>(v: T, best: T) -> bool {
    v < best || (is_nan(v) && !is_nan(best))
}

/// The greater of two, the first if they are equal; NaN if one is.
#[inline(always)]
pub(crate) fn maximum<T: PartialOrd + Copy>(a: T, b: T) -> T {
    if a < b || is_nan(b) {
        b
    } else {
        a
    }
}

/// The smaller of two, the first if they are equal; NaN if one is.
#[inline(always)]
pub(crate) fn minimum<T: PartialOrd + Copy>(a: T, b: T) -> T {
    if a > b || is_nan(b) {
        b
    } else {
        a
    }
}

/// `v`, or `zero` if it is not above that; NaN stays.
#[inline(always)]
pub(crate) fn relu<T: PartialOrd>(v: T, zero: T) -> T {
    if v <= zero {
        zero
    } else {
        v
    }
}
