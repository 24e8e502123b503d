//! How far outputs may be from what they should be, and where they are farther.

use super::dtype::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// How far a value may be from the reference: `absolute + relative * |reference| + ulps * (distance between floats of
/// the type there)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tolerance {
    /// Whatever the value.
    pub absolute: f64,
    /// As a part of the value.
    pub relative: f64,
    /// In distances between neighbouring floats.
    pub ulps: f64,
}

impl Tolerance {
    /// No difference at all; NaN is equal to NaN, and zeros of both signs to each other.
    pub const EXACT: Tolerance = Tolerance {
        absolute: 0.0,
        relative: 0.0,
        ulps: 0.0,
    };

    /// What a type has if nothing else is said: exact for integers, and enough for some dozens of rounded operations
    /// on numbers near 1 for floats.
    pub fn of(dtype: DType) -> Self {
        let (absolute, relative) = match dtype {
            DType::F64 => (1e-12, 1e-11),
            DType::F32 => (1e-6, 1e-5),
            DType::F16 => (1e-4, 2e-3),
            DType::Bf16 => (1e-3, 1.6e-2),
            DType::F8e4m3 => (2e-3, 0.125),
            DType::F8e5m2 => (2e-5, 0.25),
            _ => return Self::EXACT,
        };
        Tolerance {
            absolute,
            relative,
            ulps: 0.0,
        }
    }

    /// Of an absolute and a relative part.
    pub fn near(absolute: f64, relative: f64) -> Self {
        Tolerance {
            absolute,
            relative,
            ulps: 0.0,
        }
    }

    /// Of distances between neighbouring floats.
    pub fn ulps(ulps: f64) -> Self {
        Tolerance {
            ulps,
            ..Self::EXACT
        }
    }

    /// Twice as far: between two results of which each may be off.
    pub(super) fn twice(self) -> Self {
        Tolerance {
            absolute: self.absolute * 2.0,
            relative: self.relative * 2.0,
            ulps: self.ulps * 2.0,
        }
    }

    fn allows(&self, dtype: DType, got: f64, want: f64) -> bool {
        if got == want || (got.is_nan() && want.is_nan()) {
            return true;
        }
        // What is too large for the type becomes infinite in the one and not in the other reference.
        let rounded = dtype.decode(&dtype.encode_all([want]));
        if got == rounded {
            return true;
        }
        let far = self.absolute + self.relative * want.abs() + self.ulps * dtype.ulp(want);
        (got - want).abs() <= far
    }
}

/// What an output should hold.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// Numbers, one for each element.
    Floats(Vec<f64>),
    /// Integers, which are compared exactly if the output has integers.
    Integers(Vec<i128>),
    /// The bytes of an output of the same type.
    Bytes(Vec<u8>),
}

/// The first element that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The output.
    pub buffer: String,
    /// Index of the element.
    pub element: usize,
    /// What it is.
    pub got: String,
    /// What it should be, or what it is elsewhere.
    pub want: String,
    /// How many elements are wrong.
    pub count: usize,
    /// Of how many.
    pub of: usize,
}

/// Compares an output with what it should be; none if all is well.
pub(super) fn compare(
    buffer: &str,
    dtype: DType,
    got: &[u8],
    want: &Expected,
    tolerance: Tolerance,
    any_order: bool,
    ignored: &BTreeSet<usize>,
) -> Option<Difference> {
    let difference = |wrong: Vec<usize>, of: usize, text: &dyn Fn(usize) -> (String, String)| {
        let element = *wrong.first()?;
        let (got, want) = text(element);
        Some(Difference {
            buffer: buffer.to_string(),
            element,
            got,
            want,
            count: wrong.len(),
            of,
        })
    };
    let length = got.len() / dtype.size();
    let wanted = match want {
        Expected::Floats(values) => values.len(),
        Expected::Integers(values) => values.len(),
        Expected::Bytes(bytes) => bytes.len() / dtype.size(),
    };
    if wanted != length {
        let text = |_| (format!("{length} elements"), format!("{wanted} elements"));
        return difference(vec![length.min(wanted)], length, &text);
    }
    if !dtype.is_float() && !matches!(want, Expected::Floats(_)) {
        let mut got = dtype.decode_integers(got);
        let mut want = match want {
            Expected::Integers(values) => values.clone(),
            Expected::Bytes(bytes) => dtype.decode_integers(bytes),
            Expected::Floats(_) => return None,
        };
        if any_order {
            got.sort_unstable();
            want.sort_unstable();
        }
        let far = tolerance.absolute as i128;
        let is_wrong = |&at: &usize| got[at].abs_diff(want[at]) > far.unsigned_abs();
        let wrong = (0..length)
            .filter(|at| !ignored.contains(at))
            .filter(is_wrong)
            .collect();
        let text = |at: usize| (got[at].to_string(), want[at].to_string());
        return difference(wrong, length, &text);
    }
    let mut got = dtype.decode_all(got);
    let mut want = match want {
        Expected::Floats(values) => values.clone(),
        Expected::Integers(values) => values.iter().map(|&value| value as f64).collect(),
        Expected::Bytes(bytes) => dtype.decode_all(bytes),
    };
    if any_order {
        got.sort_by(f64::total_cmp);
        want.sort_by(f64::total_cmp);
    }
    let is_wrong = |&at: &usize| !tolerance.allows(dtype, got[at], want[at]);
    let wrong = (0..length)
        .filter(|at| !ignored.contains(at))
        .filter(is_wrong)
        .collect();
    let text = |at: usize| (got[at].to_string(), want[at].to_string());
    difference(wrong, length, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(dtype: DType, got: &[f64], want: &[f64], tolerance: Tolerance) -> Option<usize> {
        let (got, want) = (
            dtype.encode_all(got.to_vec()),
            Expected::Floats(want.to_vec()),
        );
        compare("y", dtype, &got, &want, tolerance, false, &BTreeSet::new())
            .map(|found| found.element)
    }

    #[test]
    fn floats() {
        let exact = Tolerance::EXACT;
        assert_eq!(
            first(DType::F32, &[1.0, f64::NAN], &[1.0, f64::NAN], exact),
            None
        );
        assert_eq!(
            first(
                DType::F32,
                &[1.0, f64::NAN],
                &[1.0, 2.0],
                Tolerance::near(9.0, 9.0)
            ),
            Some(1)
        );
        assert_eq!(
            first(DType::F32, &[0.1], &[0.1], exact),
            None,
            "the reference is rounded"
        );
        assert_eq!(
            first(DType::F16, &[1e9], &[1e9], exact),
            None,
            "infinite in the type"
        );
        assert_eq!(
            first(DType::F16, &[1.0], &[1.0 + 2f64.powi(-10)], exact),
            Some(0)
        );
        assert_eq!(
            first(
                DType::F16,
                &[1.0],
                &[1.0 + 2f64.powi(-10)],
                Tolerance::ulps(1.0)
            ),
            None
        );
        assert_eq!(first(DType::F32, &[1.0, 1.0], &[1.0], exact), Some(1));
        let infinite = first(
            DType::F32,
            &[f64::INFINITY],
            &[1.0],
            Tolerance::of(DType::F32),
        );
        assert_eq!(infinite, Some(0));
    }

    #[test]
    fn integers_and_orders() {
        let got = DType::I64.encode_integers([i128::from(i64::MAX), 2]);
        let want = Expected::Integers(vec![2, i128::from(i64::MAX)]);
        let (exact, none) = (Tolerance::EXACT, BTreeSet::new());
        assert_eq!(
            compare("y", DType::I64, &got, &want, exact, true, &none),
            None
        );
        let found = compare("y", DType::I64, &got, &want, exact, false, &none).unwrap();
        assert_eq!((found.element, found.count, found.of), (0, 2, 2));
        let near = Expected::Integers(vec![i128::from(i64::MAX) - 1, 2]);
        assert!(compare("y", DType::I64, &got, &near, exact, false, &none).is_some());
        assert!(compare(
            "y",
            DType::I64,
            &got,
            &near,
            Tolerance::near(1.0, 0.0),
            false,
            &none
        )
        .is_none());
    }
}
