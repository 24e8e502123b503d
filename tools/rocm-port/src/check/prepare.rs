//! A case at one combination of sizes: the launch, its inputs, and what should come out.

use super::case::{Argument, Buffer, Case, Field, Given, Reference, Role};
use super::dtype::DType;
use super::expression::{evaluate, evaluate_whole, Names, Number};
use super::fill::{Fill, Word};
use super::io::{Contents, Io, Outcome};
use super::npy::MOST_BYTES;
use super::random::Random;
use super::tolerance::Expected;
use super::wire::{Address, Launch, Passed, Room};
use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Combinations of sizes at most.
const MOST_POINTS: usize = 100_000;
/// Bytes of a structure at most: HIP passes 4 KiB of arguments.
const MOST_STRUCTURE: usize = 4096;

/// Values of all sizes.
pub(super) type Point = BTreeMap<String, i64>;

/// Contents of buffers in place of those that their fills make.
pub(super) type Data = BTreeMap<String, Vec<u8>>;

/// Why a case cannot run: a mistake in the case.
pub(super) type Mistake = String;

/// A buffer of a launch.
pub(super) struct Prepared<'a> {
    pub spec: &'a Buffer,
    pub name: &'a str,
    /// What is in it before; empty for an output.
    pub before: Vec<u8>,
    pub length: usize,
    /// Ranges of elements that keep what they had.
    pub keep: Vec<(usize, usize)>,
}

/// A launch with all that belongs to it.
pub(super) struct Ready<'a> {
    pub case: &'a Case,
    pub point: Point,
    pub names: Names,
    pub launch: Launch,
    pub buffers: Vec<Prepared<'a>>,
    pub outcome: Outcome,
}

/// All combinations of a case's sizes that its conditions allow, the smallest first.
pub(super) fn points(case: &Case) -> Result<Vec<Point>, Mistake> {
    let mut points = vec![Point::new()];
    for (names, values) in &case.sizes {
        if values.iter().any(|row| row.len() != names.len()) {
            return Err(format!(
                "sizes {}: a row has another number of values",
                names.join(", ")
            ));
        }
        if values.is_empty() {
            return Err(format!("size {} has no values", names.join(", ")));
        }
        if points.len().saturating_mul(values.len()) > MOST_POINTS {
            return Err(format!("more than {MOST_POINTS} combinations of sizes"));
        }
        let with = |point: &Point, row: &Vec<i64>| {
            let pairs = names.iter().cloned().zip(row.iter().copied());
            point.clone().into_iter().chain(pairs).collect::<Point>()
        };
        points = points
            .iter()
            .flat_map(|point| values.iter().map(move |row| (point, row)))
            .map(|(point, row)| with(point, row))
            .collect();
    }
    let mut allowed = Vec::new();
    for point in points {
        if is_allowed(case, &names(case, &point)?)? {
            allowed.push(point);
        }
    }
    allowed.sort_by_key(|point| {
        point
            .values()
            .fold(0i64, |all, one| all.saturating_add(*one))
    });
    match allowed.is_empty() {
        true => Err(format!(
            "no combination of sizes fulfils {}",
            case.conditions.join(" and ")
        )),
        false => Ok(allowed),
    }
}

/// Sizes, and names for expressions over them.
pub(super) fn names(case: &Case, point: &Point) -> Result<Names, Mistake> {
    let sizes = point
        .iter()
        .map(|(name, &value)| (name.clone(), Number::Whole(value.into())));
    let mut names: Names = sizes.collect();
    for (name, word) in &case.names {
        let value = number(word, &names)?;
        names.insert(name.clone(), value);
    }
    Ok(names)
}

pub(super) fn is_allowed(case: &Case, names: &Names) -> Result<bool, Mistake> {
    for condition in &case.conditions {
        if evaluate(condition, names).map_err(text)?.real() == 0.0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

fn number(word: &Word, names: &Names) -> Result<Number, Mistake> {
    match word {
        Word::Whole(value) => Ok(Number::Whole((*value).into())),
        Word::Real(value) => Ok(Number::Real(*value)),
        Word::Text(expression) => evaluate(expression, names).map_err(text),
    }
}

fn count(what: &str, expression: &str, names: &Names) -> Result<u32, Mistake> {
    let value = evaluate_whole(expression, names).map_err(text)?;
    u32::try_from(value).map_err(|_| format!("{what} `{expression}` is {value}"))
}

fn scalar(dtype: DType, word: &Word, names: &Names) -> Result<Vec<u8>, Mistake> {
    match (number(word, names)?, dtype.integers()) {
        (Number::Whole(value), Some((low, high))) if (low..=high).contains(&value) => {
            Ok(dtype.encode_integers([value]))
        }
        (value, Some(_)) => Err(format!("`{word}` is {value}, which is no {dtype}")),
        (value, None) => Ok(dtype.encode_all([value.real()])),
    }
}

/// Fields one behind the other at their alignment, as C lays them out.
fn structure(
    fields: &[Field],
    names: &Names,
    index: &dyn Fn(&str) -> Result<usize, Mistake>,
) -> Result<Passed, Mistake> {
    let (mut bytes, mut align, mut addresses) = (Vec::<u8>::new(), 1, Vec::new());
    let mut place = |bytes: &mut Vec<u8>, size: usize| {
        align = align.max(size);
        bytes.resize(bytes.len().next_multiple_of(size), 0);
    };
    for field in fields {
        match field {
            Field::Number(dtype, word) => {
                place(&mut bytes, dtype.size());
                bytes.extend(scalar(*dtype, word, names)?);
            }
            Field::Address(buffer) => {
                place(&mut bytes, 8);
                let index = index(buffer)?;
                let at = bytes.len();
                addresses.push(Address { at, index });
                bytes.extend([0; 8]);
            }
            Field::Bytes(more) => bytes.extend(more),
        }
    }
    bytes.resize(bytes.len().next_multiple_of(align).max(1), 0);
    match bytes.len() > MOST_STRUCTURE {
        true => Err(format!("a structure of {} bytes", bytes.len())),
        false => Ok(Passed::Value {
            bytes,
            align,
            addresses,
        }),
    }
}

impl<'a> Ready<'a> {
    /// Prepares a launch. Inputs depend on the seed, the case and the buffer; those in `data` are taken as they are.
    pub fn new(case: &'a Case, point: &Point, data: &Data, seed: u64) -> Result<Self, Mistake> {
        let names = names(case, point)?;
        let context = |name: &str, why: Mistake| format!("argument {name}: {why}");
        let mut buffers: Vec<Prepared> = Vec::new();
        for (name, spec) in case.buffers() {
            if buffers.iter().any(|buffer| buffer.name == name) {
                return Err(format!("two buffers are called {name}"));
            }
            let made = buffer(spec, name, case, &names, data, seed);
            buffers.push(made.map_err(|why| context(name, why))?);
        }
        let bytes = |buffer: &Prepared| buffer.length * buffer.spec.dtype.size();
        let total = buffers.iter().map(bytes).fold(0, usize::saturating_add);
        if total > MOST_BYTES {
            return Err(format!(
                "its buffers have {total} bytes, more than {MOST_BYTES}"
            ));
        }
        let index = |name: &str| {
            let index = buffers.iter().position(|buffer| buffer.name == name);
            index.ok_or_else(|| format!("no buffer is called {name}"))
        };
        let mut arguments = Vec::new();
        let mut scalars = BTreeMap::new();
        for (name, argument) in &case.arguments {
            let passed = match argument {
                Argument::Scalar(dtype, word) => scalar(*dtype, word, &names).map(|bytes| {
                    scalars.insert(name.clone(), dtype.decode(&bytes));
                    let align = dtype.size();
                    let addresses = Vec::new();
                    Passed::Value {
                        bytes,
                        align,
                        addresses,
                    }
                }),
                Argument::Buffer(_) => index(name).map(|index| Passed::Buffer { index, offset: 0 }),
                Argument::Same(of, offset) => index(of).and_then(|index| {
                    let offset = count("the offset", offset, &names)? as usize;
                    let offset = offset * buffers[index].spec.dtype.size();
                    Ok(Passed::Buffer { index, offset })
                }),
                Argument::Null => Ok(Passed::Null),
                Argument::Structure(fields) => structure(fields, &names, &index),
                Argument::Bytes(bytes, align) => {
                    let fits = align.is_power_of_two()
                        && *align <= 64
                        && (1..=MOST_STRUCTURE).contains(&bytes.len());
                    match fits {
                        false => Err(format!("{} bytes aligned to {align}", bytes.len())),
                        true => Ok(Passed::Value {
                            bytes: bytes.clone(),
                            align: *align,
                            addresses: Vec::new(),
                        }),
                    }
                }
            };
            arguments.push(passed.map_err(|why| context(name, why))?);
        }
        let addresses = |buffer: &Prepared| match &buffer.spec.fill {
            Fill::Addresses(of) => {
                let each = of.iter().enumerate();
                each.map(|(at, name)| {
                    Ok(Address {
                        at: at * 8,
                        index: index(name)?,
                    })
                })
                .collect()
            }
            _ => Ok(Vec::new()),
        };
        let addresses = buffers
            .iter()
            .map(addresses)
            .collect::<Result<Vec<_>, Mistake>>()?;
        let three = |what: &str, dims: &[String; 3]| -> Result<[u32; 3], Mistake> {
            let [x, y, z] = dims;
            Ok([
                count(what, x, &names)?,
                count(what, y, &names)?,
                count(what, z, &names)?,
            ])
        };
        let launch = Launch {
            kernel: case.kernel.clone(),
            grid: three("the grid", &case.grid.0)?,
            block: three("the block", &case.block.0)?,
            shared: count("the shared memory", &case.shared, &names)?,
            arguments,
            rooms: buffers
                .iter()
                .zip(addresses)
                .map(|(buffer, addresses)| Room {
                    bytes: bytes(buffer),
                    is_written: buffer.spec.role != Role::Out,
                    addresses,
                })
                .collect(),
        };
        let mut ready = Ready {
            case,
            point: point.clone(),
            names,
            launch,
            buffers,
            outcome: Outcome::default(),
        };
        ready.outcome = ready.compute(scalars)?;
        // What may stay unwritten is written before, so that reading it back is no finding.
        for (buffer, room) in ready.buffers.iter_mut().zip(&mut ready.launch.rooms) {
            if ready.outcome.ignored.contains_key(buffer.name) && !room.is_written {
                room.is_written = true;
                buffer.before = vec![0; room.bytes];
            }
        }
        Ok(ready)
    }

    fn compute(&self, scalars: BTreeMap<String, f64>) -> Result<Outcome, Mistake> {
        match &self.case.reference {
            Reference::None => Ok(Outcome::default()),
            Reference::Function(function) => {
                let contents = |buffer: &Prepared| Contents {
                    dtype: buffer.spec.dtype,
                    length: buffer.length,
                    bytes: buffer.before.clone(),
                };
                let buffers = self
                    .buffers
                    .iter()
                    .map(|b| (b.name.to_string(), contents(b)));
                let mut io = Io::new(self.names.clone(), scalars, buffers.collect());
                let computed = catch_unwind(AssertUnwindSafe(|| (function.0)(&mut io)));
                computed.map_err(|why| {
                    let text = why.downcast_ref::<String>().cloned();
                    let text =
                        text.or_else(|| why.downcast_ref::<&str>().map(|text| text.to_string()));
                    format!("its reference panicked: {}", text.unwrap_or_default())
                })?;
                Ok(io.into_outcome())
            }
            Reference::Given(all) => {
                let mut expected = BTreeMap::new();
                for (name, given) in all {
                    let buffer = self.buffers.iter().find(|buffer| buffer.name == name);
                    let buffer =
                        buffer.ok_or_else(|| format!("expected: no buffer is called {name}"))?;
                    let dtype = buffer.spec.dtype;
                    let values = match given {
                        Given::Npy(file) => Expected::Bytes(super::npy::read(
                            &self.case.folder.join(file),
                            dtype,
                            buffer.length,
                        )?),
                        Given::Values(words) => {
                            let numbers = words.iter().map(|word| number(word, &self.names));
                            let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
                            if numbers.len() != buffer.length {
                                return Err(format!(
                                    "expected: {} values for {} elements of {name}",
                                    numbers.len(),
                                    buffer.length
                                ));
                            }
                            match dtype.is_float() {
                                true => {
                                    Expected::Floats(numbers.iter().map(|n| n.real()).collect())
                                }
                                false => Expected::Integers(
                                    numbers
                                        .iter()
                                        .map(|n| n.whole().unwrap_or(n.real() as i128))
                                        .collect(),
                                ),
                            }
                        }
                    };
                    expected.insert(name.clone(), values);
                }
                Ok(Outcome {
                    expected,
                    ..Outcome::default()
                })
            }
        }
    }

    /// Bytes of buffers before the launch, which a worker is sent.
    pub fn inputs(&self) -> Vec<&[u8]> {
        let all = self.buffers.iter().zip(&self.launch.rooms);
        let written = all.filter(|(_, room)| room.is_written);
        written
            .map(|(buffer, _)| buffer.before.as_slice())
            .collect()
    }
}

fn buffer<'a>(
    spec: &'a Buffer,
    name: &'a str,
    case: &Case,
    names: &Names,
    data: &Data,
    seed: u64,
) -> Result<Prepared<'a>, Mistake> {
    let whole = |expression: &str| {
        let value = evaluate_whole(expression, names).map_err(text)?;
        let fits = usize::try_from(value)
            .ok()
            .filter(|&value| value <= MOST_BYTES / spec.dtype.size());
        fits.ok_or_else(|| format!("`{expression}` is {value}"))
    };
    let length = whole(&spec.length)?;
    let mut keep = Vec::new();
    for (from, to) in &spec.keep {
        let range = (whole(from)?, whole(to)?);
        if range.0 > range.1 || range.1 > length {
            return Err(format!(
                "keep: {} to {} of {length} elements",
                range.0, range.1
            ));
        }
        keep.push(range);
    }
    if spec.role == Role::Out && !keep.is_empty() {
        return Err("keep: an output has nothing to keep; make it an inout".to_string());
    }
    let before = match (spec.role, data.get(name)) {
        (Role::Out, _) => Vec::new(),
        (_, Some(bytes)) if bytes.len() == length * spec.dtype.size() => bytes.clone(),
        _ => {
            let mut random = Random::of(seed, &[&case.name, name]);
            spec.fill
                .make(spec.dtype, length, names, &mut random, &case.folder)?
        }
    };
    Ok(Prepared {
        spec,
        name,
        before,
        length,
        keep,
    })
}
