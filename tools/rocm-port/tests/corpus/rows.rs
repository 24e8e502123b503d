//! A launch of a kernel with what has to come out: what tables of cases are made of.

use crate::data::{Data, Type};

/// One launch.
#[derive(Clone, Debug)]
pub struct Row {
    /// The kernel's name in the CUDA text, with its namespaces.
    pub kernel: String,
    /// Its template arguments.
    pub template: Vec<String>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    pub arguments: Vec<Argument>,
    /// What is particular about it.
    pub about: String,
    /// Why the kernel is known to be wrong here, as CUDA text: it must be found.
    pub known: Option<&'static str>,
    /// Whether floats are added atomically, so that their sums are rounded differently in every order.
    pub atomic: bool,
}

/// An argument of a launch.
#[derive(Clone, Debug)]
pub enum Argument {
    /// One element by value.
    Scalar(Data),
    /// A null pointer.
    Null,
    /// A buffer that is read only.
    Input(Data),
    /// A buffer that is written.
    Output(Output),
    /// A buffer of the addresses of other buffers.
    Table(Vec<Argument>),
    /// A structure by value: its bytes, and where addresses of buffers stand in it.
    Structure(Vec<u8>, Vec<(usize, Argument)>),
}

/// What has to be in a buffer.
#[derive(Clone, Debug)]
pub struct Output {
    /// What is in it before; without, nothing that may be read.
    pub initial: Option<Data>,
    pub kind: Type,
    /// NaN stands for a number that is not looked at.
    pub expected: Vec<f64>,
    /// Whether the order of elements is free.
    pub any_order: bool,
    /// Allowed difference.
    pub absolute: f64,
    /// Allowed difference, as a part of the expected number.
    pub relative: f64,
}

impl Output {
    /// Numbers that are exact but for their rounding to `kind`.
    pub fn exact(kind: Type, expected: impl IntoIterator<Item = f64>) -> Self {
        let expected = expected.into_iter().collect();
        Self {
            initial: None,
            kind,
            expected,
            any_order: false,
            absolute: 0.,
            relative: 0.,
        }
    }

    /// Numbers that are `steps` roundings of their type away from exact ones.
    pub fn near(kind: Type, expected: impl IntoIterator<Item = f64>, steps: f64) -> Self {
        Self::exact(kind, expected).within(0., steps * kind.step())
    }

    /// With an allowed difference.
    pub fn within(self, absolute: f64, relative: f64) -> Self {
        Self {
            absolute,
            relative,
            ..self
        }
    }

    /// With elements in any order.
    pub fn any_order(self) -> Self {
        Self {
            any_order: true,
            ..self
        }
    }

    /// With contents that the kernel may read.
    pub fn over(self, initial: Data) -> Self {
        Self {
            initial: Some(initial),
            ..self
        }
    }
}

impl Row {
    /// A launch of one block of one thread, so far.
    pub fn new(kernel: impl Into<String>) -> Self {
        Self {
            kernel: kernel.into(),
            template: Vec::new(),
            grid: [1; 3],
            block: [1; 3],
            shared: 0,
            arguments: Vec::new(),
            about: String::new(),
            known: None,
            atomic: false,
        }
    }

    /// With template arguments.
    pub fn template(mut self, arguments: &[&str]) -> Self {
        self.template = arguments.iter().map(|&a| a.to_owned()).collect();
        self
    }

    pub fn grid(mut self, grid: [usize; 3]) -> Self {
        self.grid = grid.map(|n| n as u32);
        self
    }

    pub fn block(mut self, block: [usize; 3]) -> Self {
        self.block = block.map(|n| n as u32);
        self
    }

    /// One thread per element, in blocks of 64: so blocks are ragged at the end.
    pub fn each(self, elements: usize) -> Self {
        self.grid([elements.div_ceil(64), 1, 1]).block([64, 1, 1])
    }

    /// Fewer threads than elements, for kernels that walk in steps of the grid.
    pub fn steps(self, elements: usize) -> Self {
        self.grid([elements.div_ceil(128).min(2), 1, 1])
            .block([64, 1, 1])
    }

    pub fn shared(mut self, bytes: usize) -> Self {
        self.shared = bytes as u32;
        self
    }

    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    /// See [`Row::known`].
    pub fn known(mut self, reason: &'static str) -> Self {
        self.known = Some(reason);
        self
    }

    /// See [`Row::atomic`].
    pub fn atomic(mut self) -> Self {
        self.atomic = true;
        self
    }

    fn argument(mut self, argument: Argument) -> Self {
        self.arguments.push(argument);
        self
    }

    pub fn scalar(self, kind: Type, value: f64) -> Self {
        self.argument(Argument::Scalar(Data::new(kind, [value])))
    }

    /// A `size_t`.
    pub fn size(self, value: usize) -> Self {
        self.scalar(Type::U64, value as f64)
    }

    /// Several `size_t`.
    pub fn sizes(self, values: &[usize]) -> Self {
        values.iter().fold(self, |row, &value| row.size(value))
    }

    /// Several `int`.
    pub fn ints(self, values: &[usize]) -> Self {
        values
            .iter()
            .fold(self, |row, &value| row.scalar(Type::I32, value as f64))
    }

    pub fn null(self) -> Self {
        self.argument(Argument::Null)
    }

    pub fn input(self, data: &Data) -> Self {
        self.argument(Argument::Input(data.clone()))
    }

    /// Raw bytes.
    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.argument(Argument::Input(Data {
            kind: Type::U8,
            bytes: bytes.to_vec(),
        }))
    }

    pub fn output(self, output: Output) -> Self {
        self.argument(Argument::Output(output))
    }

    pub fn structure(self, bytes: Vec<u8>, buffers: Vec<(usize, Argument)>) -> Self {
        self.argument(Argument::Structure(bytes, buffers))
    }
}
