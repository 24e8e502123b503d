//! What buffers hold before a kernel runs: random values of several kinds, or given ones.

use super::dtype::DType;
use super::expression::{evaluate, evaluate_whole, ExpressionError, Names, Number};
use super::random::Random;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// What a function of [`Fill::with`] makes the contents of a buffer from.
pub struct Making<'a> {
    /// Random numbers of this buffer.
    pub random: &'a mut Random,
    /// How many elements are wanted.
    pub length: usize,
    names: &'a Names,
}

impl Making<'_> {
    /// A size of the case, or a name of [`super::Case::with`].
    ///
    /// # Panics
    /// If there is none of that name that is a whole number, 0 or above.
    pub fn size(&self, name: &str) -> usize {
        let found = self.names.get(name).and_then(|number| number.whole());
        let size = found.and_then(|value| usize::try_from(value).ok());
        size.unwrap_or_else(|| panic!("there is no size {name:?}"))
    }
}

/// Makes the contents of a buffer.
type Maker = Arc<dyn Fn(&mut Making) -> Vec<f64> + Send + Sync>;

/// How a buffer is filled. In case files: `{ uniform = [-2.0, 2.0] }`, `"zeros"`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// Every value between two alike.
    Uniform(f64, f64),
    /// A normal distribution: mean and standard deviation.
    Normal(f64, f64),
    /// Integers from the first to the last, both included, as expressions over sizes: `["0", "rows - 1"]`.
    Ints(Word, Word),
    /// Nothing but zeros.
    Zeros,
    /// The same number everywhere.
    Constant(f64),
    /// 0, 1, 2, …
    Iota,
    /// These numbers, each an expression over sizes; a buffer that is longer repeats them.
    Values(Vec<Word>),
    /// Uniform values between two, ascending.
    Sorted(f64, f64),
    /// The numbers below the length, each once.
    Permutation,
    /// Random bits: every pattern of the type, NaN and infinities too.
    Bits,
    /// What conversions get wrong: zeros of both signs, the smallest and largest numbers, halves between neighbours,
    /// infinities, NaN; and values of all sizes between.
    Edges,
    /// Blocks of quantized formats: random bytes, of which some places are scales.
    Blocks(Blocks),
    /// The addresses of these buffers, in elements of type u64.
    Addresses(Vec<String>),
    /// The data of a `.npy` file of the same type and number of elements, beside the case file.
    Npy(PathBuf),
    /// These bytes.
    #[serde(skip)]
    Bytes(Vec<u8>),
    /// What a function makes.
    #[serde(skip)]
    With(Function),
}

/// A function in a [`Fill`].
#[derive(Clone)]
pub struct Function(Maker);

/// A number in a case file, or an expression as text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Word {
    /// A whole number.
    Whole(i64),
    /// One with a fraction.
    Real(f64),
    /// An expression over sizes.
    Text(String),
}

/// Blocks of a quantized format: bytes of which some are scales, and all others random.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blocks {
    /// Bytes of a block.
    pub bytes: usize,
    /// Where in a block its scales are, and of which type.
    pub scales: Vec<(usize, DType)>,
    /// Scales are between these.
    #[serde(default = "Blocks::sane")]
    pub range: (f64, f64),
}

impl Blocks {
    fn sane() -> (f64, f64) {
        (0.005, 0.02)
    }
}

impl Fill {
    /// Uniform between two values.
    pub fn uniform(low: f64, high: f64) -> Self {
        Fill::Uniform(low, high)
    }

    /// Integers between two expressions, both included.
    pub fn ints(low: impl Into<Word>, high: impl Into<Word>) -> Self {
        Fill::Ints(low.into(), high.into())
    }

    /// These values or expressions, such as the dimensions and strides of a layout.
    pub fn values<T: Into<Word>>(values: impl IntoIterator<Item = T>) -> Self {
        Fill::Values(values.into_iter().map(Into::into).collect())
    }

    /// Blocks of a quantized format with scales between 0.005 and 0.02.
    pub fn blocks(bytes: usize, scales: impl Into<Vec<(usize, DType)>>) -> Self {
        Fill::Blocks(Blocks {
            bytes,
            scales: scales.into(),
            range: Blocks::sane(),
        })
    }

    /// What a function makes: of random numbers, sizes, and the number of elements.
    pub fn with(make: impl Fn(&mut Making) -> Vec<f64> + Send + Sync + 'static) -> Self {
        Fill::With(Function(Arc::new(make)))
    }

    /// Whether a smaller input may have other values in its place: zeros, or the lowest integer.
    pub(super) fn is_random(&self) -> bool {
        matches!(
            self,
            Fill::Uniform(..) | Fill::Normal(..) | Fill::Ints(..) | Fill::Bits | Fill::Edges
        )
    }

    /// What a value is replaced by when an input is made smaller.
    pub(super) fn simplest(&self, dtype: DType, names: &Names) -> Vec<u8> {
        match self {
            Fill::Ints(low, high) => {
                let bound = |word: &Word| word.whole(names).unwrap_or(0);
                dtype.encode_integers([0.clamp(bound(low), bound(high).max(bound(low)))])
            }
            _ => dtype.encode_all([0.0]),
        }
    }

    /// The bytes of `length` elements. `folder` is where files are looked for.
    pub(super) fn make(
        &self,
        dtype: DType,
        length: usize,
        names: &Names,
        random: &mut Random,
        folder: &std::path::Path,
    ) -> Result<Vec<u8>, String> {
        let floats = |values: &mut dyn FnMut(usize) -> f64| {
            let mut bytes = Vec::with_capacity(length * dtype.size());
            (0..length).for_each(|at| dtype.encode(values(at), &mut bytes));
            bytes
        };
        let text = |error: ExpressionError| error.to_string();
        Ok(match self {
            Fill::Uniform(low, high) => floats(&mut |_| random.uniform(*low, *high)),
            Fill::Normal(mean, deviation) => floats(&mut |_| mean + deviation * random.normal()),
            Fill::Zeros => vec![0; length * dtype.size()],
            Fill::Constant(value) => floats(&mut |_| *value),
            Fill::Iota => dtype.encode_integers(0..length as i128),
            Fill::Ints(low, high) => {
                let (low, high) = (
                    low.whole(names).map_err(text)?,
                    high.whole(names).map_err(text)?,
                );
                if low > high && length > 0 {
                    return Err(format!("ints: {low} is above {high}"));
                }
                dtype.encode_integers((0..length).map(|_| random.between(low, high)))
            }
            Fill::Values(words) => {
                let numbers = words.iter().map(|word| word.number(names));
                let numbers = numbers.collect::<Result<Vec<_>, _>>().map_err(text)?;
                if numbers.is_empty() && length > 0 {
                    return Err("values: there are none".to_string());
                }
                let mut bytes = Vec::new();
                for number in numbers.iter().cycle().take(length) {
                    match number {
                        Number::Whole(value) => dtype.encode_integer(*value, &mut bytes),
                        Number::Real(value) => dtype.encode(*value, &mut bytes),
                    }
                }
                bytes
            }
            Fill::Sorted(low, high) => {
                let mut values: Vec<f64> =
                    (0..length).map(|_| random.uniform(*low, *high)).collect();
                values.sort_by(f64::total_cmp);
                floats(&mut |at| values[at])
            }
            Fill::Permutation => {
                let mut values: Vec<i128> = (0..length as i128).collect();
                for last in (1..length).rev() {
                    values.swap(last, random.between(0, last as i128) as usize);
                }
                dtype.encode_integers(values)
            }
            Fill::Bits => {
                let mut bytes: Vec<u8> = (0..length * dtype.size())
                    .map(|_| random.next() as u8)
                    .collect();
                bytes.truncate(length * dtype.size());
                bytes
            }
            Fill::Addresses(buffers) => match dtype == DType::U64 && buffers.len() == length {
                true => vec![0; length * dtype.size()],
                false => {
                    let have = buffers.len();
                    return Err(format!(
                        "{have} addresses for {length} elements of {dtype}, not u64"
                    ));
                }
            },
            Fill::Edges => edges(dtype, length, random),
            Fill::Blocks(blocks) => blocks.make(length * dtype.size(), random)?,
            Fill::Npy(file) => super::npy::read(&folder.join(file), dtype, length)?,
            Fill::Bytes(bytes) => match bytes.len() == length * dtype.size() {
                true => bytes.clone(),
                false => {
                    let wanted = length * dtype.size();
                    return Err(format!("{} bytes are given for {wanted}", bytes.len()));
                }
            },
            Fill::With(Function(make)) => {
                let values = make(&mut Making {
                    random,
                    length,
                    names,
                });
                if values.len() != length {
                    return Err(format!(
                        "the function made {} values of {length}",
                        values.len()
                    ));
                }
                dtype.encode_all(values)
            }
        })
    }
}

impl Blocks {
    fn make(&self, bytes: usize, random: &mut Random) -> Result<Vec<u8>, String> {
        let fits = |&(at, dtype): &(usize, DType)| {
            (at.checked_add(dtype.size())).is_some_and(|end| end <= self.bytes)
        };
        if self.bytes == 0 || !bytes.is_multiple_of(self.bytes) || !self.scales.iter().all(fits) {
            return Err(format!(
                "blocks of {} bytes with scales at {:?} do not make up {bytes} bytes",
                self.bytes, self.scales
            ));
        }
        let mut all: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
        for block in all.chunks_exact_mut(self.bytes) {
            for &(at, dtype) in &self.scales {
                let scale = dtype.encode_all([random.uniform(self.range.0, self.range.1)]);
                block[at..at + dtype.size()].copy_from_slice(&scale);
            }
        }
        Ok(all)
    }
}

fn edges(dtype: DType, length: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length * dtype.size());
    if let Some((low, high)) = dtype.integers() {
        let special = [
            0,
            1,
            -1,
            low,
            high,
            low + 1,
            high - 1,
            high / 2,
            2,
            127,
            128,
            255,
        ];
        for at in 0..length {
            let value = special.get(at).copied();
            let value = value.unwrap_or_else(|| random.between(low, high) >> random.between(0, 63));
            dtype.encode_integer(value, &mut bytes);
        }
        return bytes;
    }
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        dtype.ulp(0.0),
        -dtype.ulp(0.0),
        1.0 + dtype.ulp(1.0),
        1.0 - dtype.ulp(1.0) / 2.0,
        f64::from(f32::MAX),
        65504.0,
        0.5,
        -1.5,
        2.5,
        f64::from(f32::MIN_POSITIVE),
    ];
    for at in 0..length {
        let size = random.uniform(-20.0, 20.0).exp2();
        let value = special
            .get(at)
            .copied()
            .unwrap_or(size * random.uniform(-1.0, 1.0));
        dtype.encode(value, &mut bytes);
    }
    bytes
}

impl Word {
    fn number(&self, names: &Names) -> Result<Number, ExpressionError> {
        match self {
            Word::Whole(value) => Ok(Number::Whole((*value).into())),
            Word::Real(value) => Ok(Number::Real(*value)),
            Word::Text(text) => evaluate(text, names),
        }
    }

    fn whole(&self, names: &Names) -> Result<i128, ExpressionError> {
        evaluate_whole(&self.to_string(), names)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Whole(value) => write!(f, "{value}"),
            Word::Real(value) => write!(f, "{value}"),
            Word::Text(text) => f.write_str(text),
        }
    }
}

impl From<&str> for Word {
    fn from(text: &str) -> Self {
        Word::Text(text.to_string())
    }
}

impl From<String> for Word {
    fn from(text: String) -> Self {
        Word::Text(text)
    }
}

impl From<f64> for Word {
    fn from(value: f64) -> Self {
        Word::Real(value)
    }
}

macro_rules! whole {
    ($($type:ty)*) => {$(
        impl From<$type> for Word {
            fn from(value: $type) -> Self {
                match i64::try_from(value) {
                    Ok(value) => Word::Whole(value),
                    Err(_) => Word::Text(value.to_string()),
                }
            }
        }
    )*};
}
whole!(i32 i64 u32 u64 usize);

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fill::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Fill::With(_) => f.write_str("a function"),
            other => match serde_json::to_string(other) {
                Ok(text) => f.write_str(&text),
                Err(_) => Err(fmt::Error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn make(fill: Fill, dtype: DType, length: usize) -> Result<Vec<u8>, String> {
        let names = [("n".to_string(), Number::Whole(7))].into();
        fill.make(dtype, length, &names, &mut Random::new(1), Path::new(""))
    }

    #[test]
    fn kinds() {
        let ints = make(Fill::ints(-2, "n - 1"), DType::I32, 1000).unwrap();
        let mut ints = DType::I32.decode_integers(&ints);
        ints.sort_unstable();
        ints.dedup();
        assert_eq!(ints, (-2..=6).collect::<Vec<_>>());
        let sorted = DType::F32.decode_all(&make(Fill::Sorted(-1.0, 1.0), DType::F32, 50).unwrap());
        assert!(sorted.is_sorted() && sorted[0] >= -1.0 && sorted[0] < 0.0);
        let mut order =
            DType::U32.decode_integers(&make(Fill::Permutation, DType::U32, 64).unwrap());
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert_eq!(order, (0..64).collect::<Vec<_>>());
        let values = make(Fill::values(["n", "n * 2", "1"]), DType::U64, 4).unwrap();
        assert_eq!(DType::U64.decode_integers(&values), [7, 14, 1, 7]);
        let normal =
            DType::F64.decode_all(&make(Fill::Normal(3.0, 0.5), DType::F64, 4000).unwrap());
        let mean = normal.iter().sum::<f64>() / 4000.0;
        assert!((mean - 3.0).abs() < 0.05, "{mean}");
        let edges = DType::F16.decode_all(&make(Fill::Edges, DType::F16, 100).unwrap());
        assert!(edges[6].is_nan() && edges[7] == 2f64.powi(-24));
    }

    #[test]
    fn blocks_have_sane_scales() {
        let fill = Fill::blocks(18, [(0, DType::F16)]);
        let bytes = make(fill.clone(), DType::U8, 180).unwrap();
        for block in bytes.chunks(18) {
            assert!((0.004..0.021).contains(&DType::F16.decode(block)));
        }
        assert!(make(fill, DType::U8, 181).is_err());
        assert!(make(Fill::blocks(2, [(1, DType::F16)]), DType::U8, 2).is_err());
    }

    #[test]
    fn mistakes_are_errors() {
        assert!(make(Fill::ints("n", 1), DType::I32, 1).is_err());
        assert!(make(Fill::ints("k", 1), DType::I32, 1).is_err());
        assert!(make(Fill::Values(vec![]), DType::I32, 1).is_err());
        assert!(make(Fill::Bytes(vec![1]), DType::I32, 1).is_err());
        assert!(make(Fill::with(|_| vec![]), DType::I32, 1).is_err());
        assert!(make(Fill::Npy("no such file".into()), DType::I32, 1).is_err());
    }
}
