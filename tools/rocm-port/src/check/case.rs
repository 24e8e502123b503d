//! A case: how a kernel is launched, on which inputs, and what it should give.

use super::dtype::DType;
use super::fill::{Fill, Word};
use super::finding::Kind;
use super::io::Io;
use super::tolerance::Tolerance;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Numbers of a grid or block in its dimensions, each an expression over sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Dims(pub [String; 3]);

impl<T: fmt::Display> From<T> for Dims {
    fn from(x: T) -> Self {
        Dims([x.to_string(), "1".to_string(), "1".to_string()])
    }
}

/// Two or three dimensions: `dims("n", "m", 1)`.
pub fn dims(x: impl fmt::Display, y: impl fmt::Display, z: impl fmt::Display) -> Dims {
    Dims([x.to_string(), y.to_string(), z.to_string()])
}

/// What a kernel does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It reads it, and must leave it as it is.
    In,
    /// It writes all of it; before that it must not read it.
    Out,
    /// It reads and writes it; what it does not write stays.
    InOut,
}

/// A buffer that a kernel gets the address of.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Type of the elements.
    pub dtype: DType,
    /// Number of elements, an expression over sizes.
    pub length: String,
    /// What the kernel does with it.
    pub role: Role,
    /// What is in it before; of [`Role::Out`] this does not count.
    pub fill: Fill,
    /// How far its elements may be from the reference.
    pub tolerance: Tolerance,
    /// Whether its elements may come in any order.
    pub any_order: bool,
    /// Ranges of elements, from an expression to below another, that must keep what they had.
    pub keep: Vec<(String, String)>,
}

impl Buffer {
    /// A buffer with its type's tolerance.
    pub fn new(dtype: DType, length: impl fmt::Display, role: Role, fill: Fill) -> Self {
        Buffer {
            dtype,
            length: length.to_string(),
            role,
            fill,
            tolerance: Tolerance::of(dtype),
            any_order: false,
            keep: Vec::new(),
        }
    }
}

/// What is passed for an argument.
#[derive(Clone, Debug)]
pub enum Argument {
    /// A number: an expression over sizes.
    Scalar(DType, Word),
    /// The address of a buffer of its own.
    Buffer(Buffer),
    /// The address of another argument's buffer, from an element on that an expression gives.
    Same(String, String),
    /// No address.
    Null,
    /// A structure by value: its fields in order, laid out as C does.
    Structure(Vec<Field>),
    /// Raw bytes by value, with their alignment.
    Bytes(Vec<u8>, usize),
}

/// A field of a structure.
#[derive(Clone, Debug)]
pub enum Field {
    /// A number: an expression over sizes.
    Number(DType, Word),
    /// The address of a buffer.
    Address(String),
    /// Bytes without alignment, such as padding.
    Bytes(Vec<u8>),
}

impl Field {
    /// A number: an expression over sizes.
    pub fn number(dtype: DType, value: impl Into<Word>) -> Self {
        Field::Number(dtype, value.into())
    }

    /// The address of a buffer.
    pub fn address(buffer: impl Into<String>) -> Self {
        Field::Address(buffer.into())
    }
}

/// What a function makes of a case's inputs.
type Compute = Arc<dyn Fn(&mut Io) + Send + Sync>;

/// Where expected outputs come from.
#[derive(Clone, Default)]
pub enum Reference {
    /// Nowhere: widths of waves and orders of threads must agree.
    #[default]
    None,
    /// A function.
    Function(Function),
    /// Numbers of a case file, or files of numpy, by buffer.
    Given(Vec<(String, Given)>),
}

/// A function as a [`Reference`].
#[derive(Clone)]
pub struct Function(pub(super) Compute);

/// The expected values of a buffer.
#[derive(Clone, Debug)]
pub enum Given {
    /// These; as many as the buffer has elements.
    Values(Vec<Word>),
    /// Those of a `.npy` file beside the case file.
    Npy(PathBuf),
}

/// How a kernel is launched, on which inputs, and what it should give. Arguments are in the kernel's order: each of
/// [`Case::value`], [`Case::input`], … appends one.
///
/// Sizes, lengths, grids and so on are expressions: whole numbers, names of sizes, `+ - * / %`, comparisons, `? :`,
/// and `ceil`, `floor`, `min`, `max`, `div_ceil(a, b)`, `align(a, b)`, `next_pow2(x)`, `sqrt`, `log2`, `abs`.
#[derive(Clone, Debug)]
pub struct Case {
    /// What reports call it; the kernel's name if nothing else is said.
    pub name: String,
    /// The entry.
    pub kernel: String,
    /// Sizes, of which all combinations run: names that change together, and their values.
    pub sizes: Vec<(Vec<String>, Vec<Vec<i64>>)>,
    /// Names for expressions over sizes and earlier names.
    pub names: Vec<(String, Word)>,
    /// What must hold for a combination of sizes; others are left out, also when a failing input is made smaller.
    pub conditions: Vec<String>,
    /// Blocks of the grid.
    pub grid: Dims,
    /// Threads of a block.
    pub block: Dims,
    /// Bytes of dynamic shared memory.
    pub shared: String,
    /// The arguments by name, in the kernel's order.
    pub arguments: Vec<(String, Argument)>,
    /// Buffers that no argument is the address of: that structures or other buffers point to.
    pub memory: Vec<(String, Buffer)>,
    /// What should come out.
    pub reference: Reference,
    /// What is known to be found, and why: a fault of the kernel's text. It is an error if it is not found.
    pub known: Vec<(Kind, String)>,
    /// Whether outputs may differ in rounding from run to run, as with atomic sums of floats.
    pub is_atomic: bool,
    /// Where files that it names are; of a case from a file that file's folder.
    pub folder: PathBuf,
}

impl Case {
    /// A case of an entry, launched with one block of one thread until something else is said.
    pub fn new(kernel: impl Into<String>) -> Self {
        let kernel = kernel.into();
        Case {
            name: kernel.clone(),
            kernel,
            sizes: Vec::new(),
            names: Vec::new(),
            conditions: Vec::new(),
            grid: Dims::from(1),
            block: Dims::from(1),
            shared: "0".to_string(),
            arguments: Vec::new(),
            memory: Vec::new(),
            reference: Reference::None,
            known: Vec::new(),
            is_atomic: false,
            folder: PathBuf::new(),
        }
    }

    /// What reports call it.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// A size and the values that it takes.
    pub fn size(mut self, name: impl Into<String>, values: impl IntoIterator<Item = i64>) -> Self {
        let values = values.into_iter().map(|value| vec![value]).collect();
        self.sizes.push((vec![name.into()], values));
        self
    }

    /// Sizes that change together: `.together(["rows", "columns"], [[1, 32], [7, 100]])`.
    pub fn together<const N: usize>(
        mut self,
        names: [&str; N],
        values: impl IntoIterator<Item = [i64; N]>,
    ) -> Self {
        let values = values.into_iter().map(|value| value.to_vec()).collect();
        self.sizes
            .push((names.map(str::to_string).to_vec(), values));
        self
    }

    /// A name for an expression over sizes and earlier names.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Word>) -> Self {
        self.names.push((name.into(), value.into()));
        self
    }

    /// What must hold of sizes, such as `"n % 32 == 0"`.
    pub fn when(mut self, condition: impl Into<String>) -> Self {
        self.conditions.push(condition.into());
        self
    }

    /// Blocks of the grid: an expression, or [`dims`].
    pub fn grid(mut self, grid: impl Into<Dims>) -> Self {
        self.grid = grid.into();
        self
    }

    /// Threads of a block: an expression, or [`dims`].
    pub fn block(mut self, block: impl Into<Dims>) -> Self {
        self.block = block.into();
        self
    }

    /// Bytes of dynamic shared memory.
    pub fn shared(mut self, bytes: impl fmt::Display) -> Self {
        self.shared = bytes.to_string();
        self
    }

    /// Appends any argument.
    pub fn argument(mut self, name: impl Into<String>, argument: Argument) -> Self {
        self.arguments.push((name.into(), argument));
        self
    }

    /// Appends a number: an expression over sizes.
    pub fn value(self, name: impl Into<String>, dtype: DType, value: impl Into<Word>) -> Self {
        self.argument(name, Argument::Scalar(dtype, value.into()))
    }

    /// Appends a buffer that the kernel reads.
    pub fn input(
        self,
        name: impl Into<String>,
        dtype: DType,
        length: impl fmt::Display,
        fill: Fill,
    ) -> Self {
        self.buffer(name, dtype, length, Role::In, fill)
    }

    /// Appends a buffer that the kernel writes wholly.
    pub fn output(self, name: impl Into<String>, dtype: DType, length: impl fmt::Display) -> Self {
        self.buffer(name, dtype, length, Role::Out, Fill::Zeros)
    }

    /// Appends a buffer that the kernel reads and writes, or writes in parts.
    pub fn inout(
        self,
        name: impl Into<String>,
        dtype: DType,
        length: impl fmt::Display,
        fill: Fill,
    ) -> Self {
        self.buffer(name, dtype, length, Role::InOut, fill)
    }

    fn buffer(
        self,
        name: impl Into<String>,
        dtype: DType,
        length: impl fmt::Display,
        role: Role,
        fill: Fill,
    ) -> Self {
        let buffer = Buffer::new(dtype, length, role, fill);
        self.argument(name, Argument::Buffer(buffer))
    }

    /// A buffer that no argument is the address of: [`Field::address`] of a structure, or [`Fill::Addresses`] of another
    /// buffer, points to it.
    pub fn memory(
        mut self,
        name: impl Into<String>,
        dtype: DType,
        length: impl fmt::Display,
        role: Role,
        fill: Fill,
    ) -> Self {
        let buffer = Buffer::new(dtype, length, role, fill);
        self.memory.push((name.into(), buffer));
        self
    }

    /// Appends the address of another argument's buffer, for kernels that work in place.
    pub fn same(self, name: impl Into<String>, of: impl Into<String>) -> Self {
        self.argument(name, Argument::Same(of.into(), "0".to_string()))
    }

    /// Appends no address.
    pub fn null(self, name: impl Into<String>) -> Self {
        self.argument(name, Argument::Null)
    }

    /// Appends a structure by value, its fields in order: `[Field::address("x"), Field::number(DType::I32, "n")]`.
    pub fn structure(
        self,
        name: impl Into<String>,
        fields: impl IntoIterator<Item = Field>,
    ) -> Self {
        let fields = fields.into_iter().collect();
        self.argument(name, Argument::Structure(fields))
    }

    /// Appends raw bytes by value.
    pub fn bytes(self, name: impl Into<String>, bytes: impl Into<Vec<u8>>, align: usize) -> Self {
        self.argument(name, Argument::Bytes(bytes.into(), align))
    }

    /// Says what should come out: the function reads inputs of its [`Io`] and sets the outputs. Outputs that it does
    /// not set are compared between widths and orders only.
    pub fn reference(mut self, compute: impl Fn(&mut Io) + Send + Sync + 'static) -> Self {
        self.reference = Reference::Function(Function(Arc::new(compute)));
        self
    }

    /// How far an output may be from the reference.
    pub fn tolerance(self, buffer: &str, tolerance: Tolerance) -> Self {
        self.change(buffer, |buffer| buffer.tolerance = tolerance)
    }

    /// An output whose elements may come in any order.
    pub fn any_order(self, buffer: &str) -> Self {
        self.change(buffer, |buffer| buffer.any_order = true)
    }

    /// Elements of a buffer, from an expression to below another, that must keep what they had.
    pub fn keep(self, buffer: &str, from: impl fmt::Display, to: impl fmt::Display) -> Self {
        let range = (from.to_string(), to.to_string());
        self.change(buffer, |buffer| buffer.keep.push(range.clone()))
    }

    /// Something that is known to be found, and why: a fault of the kernel's own text. The check fails if it is not
    /// found, and lists it with the reason if it is.
    pub fn known(mut self, kind: Kind, reason: impl Into<String>) -> Self {
        self.known.push((kind, reason.into()));
        self
    }

    /// Outputs may differ in rounding from run to run, as with atomic sums of floats.
    pub fn atomic(mut self) -> Self {
        self.is_atomic = true;
        self
    }

    /// # Panics
    /// If no buffer has that name: a case that says something of none is a mistake of its author.
    fn change(mut self, name: &str, change: impl Fn(&mut Buffer)) -> Self {
        let arguments = self
            .arguments
            .iter_mut()
            .filter_map(|(each, argument)| match argument {
                Argument::Buffer(buffer) => Some((each, buffer)),
                _ => None,
            });
        let memory = self.memory.iter_mut().map(|(each, buffer)| (each, buffer));
        let mut found = arguments.chain(memory).filter(|(each, _)| *each == name);
        match found.next().map(|(_, buffer)| buffer) {
            Some(buffer) => change(buffer),
            None => panic!(
                "case {}: no buffer before this is called {name:?}",
                self.name
            ),
        }
        self
    }

    /// Its buffers: those that arguments are the addresses of, then those that something else points to.
    pub fn buffers(&self) -> impl Iterator<Item = (&str, &Buffer)> {
        let arguments = self
            .arguments
            .iter()
            .filter_map(|(name, argument)| match argument {
                Argument::Buffer(buffer) => Some((name.as_str(), buffer)),
                _ => None,
            });
        let memory = self
            .memory
            .iter()
            .map(|(name, buffer)| (name.as_str(), buffer));
        arguments.chain(memory)
    }

    /// Files that it reads.
    pub fn files(&self) -> Vec<PathBuf> {
        let fills = self.buffers().filter_map(|(_, buffer)| match &buffer.fill {
            Fill::Npy(file) => Some(file),
            _ => None,
        });
        let given = match &self.reference {
            Reference::Given(given) => given.as_slice(),
            _ => &[],
        };
        let expected = given.iter().filter_map(|(_, given)| match given {
            Given::Npy(file) => Some(file),
            Given::Values(_) => None,
        });
        fills
            .chain(expected)
            .map(|file| self.folder.join(file))
            .collect()
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reference::None => f.write_str("none"),
            Reference::Function(_) => f.write_str("a function"),
            Reference::Given(given) => given.fmt(f),
        }
    }
}
