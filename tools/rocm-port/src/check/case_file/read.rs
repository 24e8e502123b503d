//! Cases from what a file holds.

use super::text::{ArgumentText, CaseText, DimsText, ExpectedText, FieldText};
use crate::check::case::{Argument, Buffer, Case, Dims, Field, Given, Reference, Role};
use crate::check::fill::{Fill, Word};
use std::path::Path;

impl DimsText {
    fn into_dims(self) -> Result<Dims, String> {
        match self {
            DimsText::One(x) => Ok(Dims::from(x)),
            DimsText::More(all) if (1..=3).contains(&all.len()) => {
                let one = |at: usize| all.get(at).map_or("1".to_string(), Word::to_string);
                Ok(Dims([one(0), one(1), one(2)]))
            }
            DimsText::More(all) => Err(format!("a grid or block of {} dimensions", all.len())),
        }
    }
}

impl CaseText {
    pub(super) fn into_case(self, folder: &Path) -> Result<Case, String> {
        let mut case = Case::new(self.kernel);
        if let Some(name) = self.name {
            case.name = name;
        }
        let sizes = self.sizes.into_iter().map(|(name, values)| {
            (
                vec![name],
                values.into_iter().map(|value| vec![value]).collect(),
            )
        });
        case.sizes = sizes.collect();
        case.sizes
            .extend(self.together.into_iter().map(|one| (one.names, one.values)));
        case.names = self
            .names
            .into_iter()
            .map(|one| (one.name, one.value))
            .collect();
        case.conditions = self.when;
        (case.grid, case.block) = (self.grid.into_dims()?, self.block.into_dims()?);
        case.shared = self.shared.map_or("0".to_string(), |word| word.to_string());
        case.is_atomic = self.atomic;
        case.known = self
            .known
            .into_iter()
            .map(|one| (one.kind, one.reason))
            .collect();
        case.folder = folder.to_path_buf();
        let mut given = Vec::new();
        for argument in self.argument {
            let name = argument.name.clone();
            let argument = argument.into_argument(&mut given);
            let argument = argument.map_err(|why| format!("argument {name}: {why}"))?;
            case.arguments.push((name, argument));
        }
        for buffer in self.memory {
            let name = buffer.name.clone();
            match buffer.into_argument(&mut given) {
                Ok(Argument::Buffer(buffer)) => case.memory.push((name, buffer)),
                Ok(_) => return Err(format!("memory {name}: it is no buffer")),
                Err(why) => return Err(format!("memory {name}: {why}")),
            }
        }
        if !given.is_empty() {
            case.reference = Reference::Given(given);
        }
        Ok(case)
    }
}

impl ArgumentText {
    fn into_argument(self, given: &mut Vec<(String, Given)>) -> Result<Argument, String> {
        let kinds = [
            self.scalar.is_some(),
            self.input.is_some(),
            self.output.is_some(),
            self.inout.is_some(),
            self.same.is_some(),
            self.null.is_some(),
            self.structure.is_some(),
            self.bytes.is_some(),
        ];
        if kinds.iter().filter(|kind| **kind).count() != 1 {
            return Err(
                "it needs one of scalar, input, output, inout, same, null, structure and bytes"
                    .to_string(),
            );
        }
        let is_buffer = self.input.or(self.output).or(self.inout).is_some();
        let of_buffer = self.length.is_some()
            || self.fill.is_some()
            || self.expected.is_some()
            || self.tolerance.is_some()
            || self.any_order
            || !self.keep.is_empty();
        if of_buffer && !is_buffer {
            return Err(
                "only buffers have length, fill, expected, tolerance, any_order and keep"
                    .to_string(),
            );
        }
        if let Some(dtype) = self.scalar {
            let value = self.value.ok_or("a scalar needs a value")?;
            return Ok(Argument::Scalar(dtype, value));
        }
        if self.value.is_some() {
            return Err("only scalars have a value".to_string());
        }
        if let Some(of) = self.same {
            let offset = self.offset.map_or("0".to_string(), |word| word.to_string());
            return Ok(Argument::Same(of, offset));
        }
        if let Some(bytes) = self.bytes {
            return Ok(Argument::Bytes(bytes, self.align.unwrap_or(1)));
        }
        if let Some(fields) = self.structure {
            let fields = fields.into_iter().map(FieldText::into_field);
            return Ok(Argument::Structure(fields.collect::<Result<_, _>>()?));
        }
        let (role, dtype) = match (self.input, self.output, self.inout) {
            (Some(dtype), ..) => (Role::In, dtype),
            (_, Some(dtype), _) => (Role::Out, dtype),
            (.., Some(dtype)) => (Role::InOut, dtype),
            _ => return Ok(Argument::Null),
        };
        let length = self.length.ok_or("a buffer needs a length")?;
        let fill = match (role, self.fill) {
            (Role::Out, None) => Fill::Zeros,
            (Role::Out, Some(_)) => {
                return Err("an output has no fill; make it an inout".to_string())
            }
            (_, Some(fill)) => fill,
            (_, None) => return Err("it needs a fill".to_string()),
        };
        let mut buffer = Buffer::new(dtype, length, role, fill);
        buffer.tolerance = self.tolerance.unwrap_or(buffer.tolerance);
        buffer.any_order = self.any_order;
        let keep = self
            .keep
            .into_iter()
            .map(|(from, to)| (from.to_string(), to.to_string()));
        buffer.keep = keep.collect();
        match self.expected {
            None => {}
            Some(_) if role == Role::In => return Err("an input has nothing expected".to_string()),
            Some(ExpectedText::Values(values)) => given.push((self.name, Given::Values(values))),
            Some(ExpectedText::File { npy }) => given.push((self.name, Given::Npy(npy))),
        }
        Ok(Argument::Buffer(buffer))
    }
}

impl FieldText {
    fn into_field(self) -> Result<Field, String> {
        match (self.dtype, self.value, self.address, self.bytes) {
            (Some(dtype), Some(value), None, None) => Ok(Field::Number(dtype, value)),
            (None, None, Some(buffer), None) => Ok(Field::Address(buffer)),
            (None, None, None, Some(bytes)) => Ok(Field::Bytes(bytes)),
            _ => Err("a field has type and value, or address, or bytes".to_string()),
        }
    }
}
