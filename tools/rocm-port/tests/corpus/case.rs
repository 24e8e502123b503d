//! Launches as cases of `check`.

use crate::data::{Data, Type};
use crate::rows::{Argument, Output, Row};
use rocm_port::check::{dims, Case, DType, Field, Fill, Role, Tolerance, Word};

/// The type as `check` names it.
fn dtype(kind: Type) -> DType {
    match kind {
        Type::U8 => DType::U8,
        Type::U32 => DType::U32,
        Type::U64 => DType::U64,
        Type::I16 => DType::I16,
        Type::I32 => DType::I32,
        Type::I64 => DType::I64,
        Type::F8 => DType::F8e4m3,
        Type::F16 => DType::F16,
        Type::BF16 => DType::Bf16,
        Type::F32 => DType::F32,
        Type::F64 => DType::F64,
    }
}

/// Buffers that a case has so far, and what should be in them.
struct Buffers {
    case: Case,
    outputs: Vec<(String, Output)>,
    count: usize,
}

/// A launch of `entry` as a case that is called `name`.
pub fn case(row: &Row, entry: &str, name: String) -> Case {
    let three = |n: [u32; 3]| dims(n[0], n[1], n[2]);
    let case = Case::new(entry)
        .named(name)
        .grid(three(row.grid))
        .block(three(row.block))
        .shared(row.shared);
    let mut made = Buffers {
        case,
        outputs: Vec::new(),
        count: 0,
    };
    for argument in &row.arguments {
        made.append(argument);
    }
    let outputs = made.outputs;
    let mut case = made.case;
    for (name, output) in &outputs {
        case = case.tolerance(name, Tolerance::near(output.absolute, output.relative));
        if output.any_order {
            case = case.any_order(name);
        }
    }
    if row.atomic {
        case = case.atomic();
    }
    case.reference(move |io| {
        for (name, output) in &outputs {
            let unknown = output.expected.iter().enumerate();
            io.ignore(name, unknown.filter(|(_, v)| v.is_nan()).map(|(i, _)| i));
            match output.kind.float() {
                // What is exact is so after its rounding.
                true if output.absolute == 0. && output.relative == 0. => {
                    io.set(
                        name,
                        output.expected.iter().map(|&v| output.kind.rounded(v)),
                    );
                }
                true => io.set(name, output.expected.iter().copied()),
                // Integers wrap.
                false => io.set_bytes(
                    name,
                    Data::new(output.kind, output.expected.iter().copied()).bytes,
                ),
            }
        }
    })
}

impl Buffers {
    fn next(&mut self) -> String {
        self.count += 1;
        format!("a{}", self.count - 1)
    }

    /// Appends an argument of the kernel.
    fn append(&mut self, argument: &Argument) {
        let name = self.next();
        let case = std::mem::replace(&mut self.case, Case::new(""));
        self.case = match argument {
            Argument::Scalar(data) if data.kind.float() => {
                case.value(&name, dtype(data.kind), Word::Real(data.values()[0]))
            }
            Argument::Scalar(data) => case.value(
                &name,
                dtype(data.kind),
                Word::Whole(data.values()[0] as i64),
            ),
            Argument::Null => case.null(&name),
            Argument::Input(data) => {
                let count = data.bytes.len() / data.kind.bytes();
                case.input(
                    &name,
                    dtype(data.kind),
                    count,
                    Fill::Bytes(data.bytes.clone()),
                )
            }
            Argument::Output(output) => {
                self.outputs.push((name.clone(), output.clone()));
                let (kind, count) = (dtype(output.kind), output.expected.len());
                match &output.initial {
                    Some(before) => {
                        case.inout(&name, kind, count, Fill::Bytes(before.bytes.clone()))
                    }
                    None => case.output(&name, kind, count),
                }
            }
            Argument::Table(buffers) => {
                self.case = case;
                let names: Vec<String> = buffers.iter().map(|b| self.memory(b)).collect();
                let case = std::mem::replace(&mut self.case, Case::new(""));
                let count = names.len();
                case.input(&name, DType::U64, count, Fill::Addresses(names))
            }
            Argument::Structure(bytes, buffers) => {
                self.case = case;
                let mut fields = Vec::new();
                let mut from = 0;
                for (at, buffer) in buffers {
                    fields.push(Field::Bytes(bytes[from..*at].to_vec()));
                    fields.push(Field::address(self.memory(buffer)));
                    from = at + 8;
                }
                fields.push(Field::Bytes(bytes[from..].to_vec()));
                let case = std::mem::replace(&mut self.case, Case::new(""));
                case.structure(&name, fields)
            }
        };
    }

    /// A buffer whose address stands in another one, or in a structure.
    fn memory(&mut self, argument: &Argument) -> String {
        let name = self.next();
        let case = std::mem::replace(&mut self.case, Case::new(""));
        let (kind, count, role, fill) = match argument {
            Argument::Input(data) => (
                data.kind,
                data.bytes.len() / data.kind.bytes(),
                Role::In,
                Fill::Bytes(data.bytes.clone()),
            ),
            Argument::Output(output) => {
                self.outputs.push((name.clone(), output.clone()));
                let count = output.expected.len();
                match &output.initial {
                    Some(before) => (
                        output.kind,
                        count,
                        Role::InOut,
                        Fill::Bytes(before.bytes.clone()),
                    ),
                    None => (output.kind, count, Role::Out, Fill::Zeros),
                }
            }
            other => panic!("{other:?} has no address"),
        };
        self.case = case.memory(&name, dtype(kind), count, role, fill);
        name
    }
}
