//! Attributes, items, slices and iteration.

use super::super::error::{Error, Result};
use super::super::methods::method_of;
use super::super::text::{Text, TextBuilder};
use super::super::value::{range_length, Loop, Object, Value};
use super::Interpreter;

impl<'t> Interpreter<'t> {
    /// `value.name`: a method or attribute, else an item.
    pub(in super::super) fn attribute(&mut self, value: &Value, name: &str) -> Result<Value> {
        if let Some(value) = self.own_attribute(value, name)? {
            return Ok(value);
        }
        if let Some(dict) = self.heap.dict(value) {
            if let Some((_, found)) = dict.get(name) {
                return Ok(found.clone());
            }
        }
        Ok(self.absent(value, name))
    }

    /// A method or an attribute of the value's type.
    fn own_attribute(&mut self, value: &Value, name: &str) -> Result<Option<Value>> {
        if let Value::Undefined(reason) = value {
            return Err(Error::runtime(reason.to_string()));
        }
        if name.starts_with('_') {
            return Ok(None);
        }
        if let Some(method) = method_of(&self.heap, value, name) {
            self.spend(64)?;
            return Ok(Some(self.heap.add(Object::Method(value.clone(), method))));
        }
        Ok(match self.heap.object(value) {
            Some(Object::Namespace(attributes)) => {
                attributes.get(name).map(|(_, value)| value.clone())
            }
            Some(Object::Loop(state)) => loop_attribute(state, name),
            Some(Object::Macro { node, .. }) => match name {
                "name" => Some(Value::from(node.name.as_str())),
                "arguments" => {
                    let names = node
                        .parameters
                        .iter()
                        .map(|(name, _)| Value::from(name.as_str()));
                    let names = names.collect();
                    Some(self.tuple(names)?)
                }
                _ => None,
            },
            Some(Object::Group([key, items])) => match name {
                "grouper" => Some(key.clone()),
                "list" => Some(items.clone()),
                _ => None,
            },
            Some(Object::Cycler { items, at }) if name == "current" => items.get(*at).cloned(),
            _ => None,
        })
    }

    fn absent(&self, value: &Value, name: &str) -> Value {
        let kind = self.heap.type_name(value);
        Value::undefined(match value {
            Value::None => format!("'None' has no attribute '{name}'"),
            _ => format!("'{kind} object' has no attribute '{name}'"),
        })
    }

    /// `value[key]`: an item, else for a text as key an attribute.
    pub(in super::super) fn item(&mut self, value: &Value, key: &Value) -> Result<Value> {
        if let Value::Undefined(reason) = value {
            return Err(Error::runtime(reason.to_string()));
        }
        if let Some(found) = self.own_item(value, key)? {
            return Ok(found);
        }
        if let Value::Str(name) = key {
            if let Some(found) = self.own_attribute(value, name.as_str())? {
                return Ok(found);
            }
            return Ok(self.absent(value, name.as_str()));
        }
        let kind = self.heap.type_name(value);
        let key = self.repr(key)?;
        Ok(Value::undefined(format!(
            "{kind} object has no element {}",
            key.as_str()
        )))
    }

    fn own_item(&mut self, value: &Value, key: &Value) -> Result<Option<Value>> {
        if let (Value::Str(text), Some(index)) = (value, key.as_index()) {
            self.spend(text.len())?;
            let range = if text.as_str().is_ascii() {
                position(index, text.len()).map(|i| i..i + 1)
            } else {
                let chars = text.as_str().char_indices();
                position(index, chars.clone().count())
                    .and_then(|i| chars.clone().nth(i))
                    .map(|(i, c)| i..i + c.len_utf8())
            };
            return Ok(range.map(|range| Value::Str(text.slice(range))));
        }
        Ok(match self.heap.object(value) {
            Some(Object::Dict(dict)) => match self.heap.key(key) {
                Ok(key) => dict.get(&key).map(|(_, value)| value.clone()),
                Err(_) => None,
            },
            Some(Object::List(items) | Object::Tuple(items)) => key
                .as_index()
                .and_then(|index| position(index, items.len()))
                .map(|i| items[i].clone()),
            Some(Object::Group(pair)) => key
                .as_index()
                .and_then(|index| position(index, 2))
                .map(|i| pair[i].clone()),
            Some(Object::Range { start, stop, step }) => {
                let length = range_length(*start, *stop, *step);
                let index = key.as_index().map(|i| if i < 0 { i + length } else { i });
                index
                    .filter(|i| (0..length).contains(i))
                    .map(|i| Value::Int(start + i * step))
            }
            _ => None,
        })
    }

    /// `value[start:stop:step]`
    pub(in super::super) fn slice(&mut self, value: &Value, bounds: &[Value; 3]) -> Result<Value> {
        if let Value::Undefined(reason) = value {
            return Err(Error::runtime(reason.to_string()));
        }
        let mut numbers = [None; 3];
        for (bound, number) in bounds.iter().zip(&mut numbers) {
            *number = match bound {
                Value::None => None,
                other => Some(other.as_index().ok_or_else(|| {
                    Error::runtime(
                        "slice indices must be integers or None or have an __index__ method",
                    )
                })?),
            };
        }
        if numbers[2] == Some(0) {
            return Err(Error::runtime("slice step cannot be zero"));
        }
        if let Value::Str(text) = value {
            self.spend(text.len())?;
            return Ok(Value::Str(slice_text(text, numbers)));
        }
        let (items, tuple) = match self.heap.object(value) {
            Some(Object::List(items)) => (items, false),
            Some(Object::Tuple(items)) => (items, true),
            Some(Object::Range { start, stop, step }) => {
                let (first, by) = (*start, *step);
                let length = range_length(first, *stop, by);
                let (start, stop, step) = slice_bounds(length, numbers);
                self.spend(64)?;
                return Ok(self.heap.add(Object::Range {
                    start: first + start * by,
                    stop: first + stop * by,
                    step: by.saturating_mul(step),
                }));
            }
            _ => {
                let kind = self.heap.type_name(value);
                return Err(Error::runtime(format!(
                    "'{kind}' object is not subscriptable"
                )));
            }
        };
        let chosen = indices(items.len(), numbers)
            .map(|i| items[i].clone())
            .collect();
        match tuple {
            true => self.tuple(chosen),
            false => self.list(chosen),
        }
    }

    /// The items that a loop over the value sees. An iterator is used up.
    ///
    /// # Errors
    /// [`Error`] for a value that cannot be iterated.
    pub(in super::super) fn iterate(&mut self, value: &Value) -> Result<Vec<Value>> {
        let items = match value {
            Value::Undefined(_) => Vec::new(),
            Value::Str(text) => {
                self.spend(text.len() * 64)?;
                let chars = text.as_str().char_indices();
                chars
                    .map(|(i, c)| Value::Str(text.slice(i..i + c.len_utf8())))
                    .collect()
            }
            Value::Object(id) => match self.heap.get_mut(*id) {
                Object::List(items) | Object::Tuple(items) | Object::View(_, items) => {
                    items.clone()
                }
                Object::Group(pair) => pair.to_vec(),
                Object::Iterator(_, items) => std::mem::take(items).into(),
                Object::Dict(dict) => dict.values().map(|(key, _)| key.clone()).collect(),
                Object::Range { start, stop, step } => {
                    let (start, step) = (*start, *step);
                    let length = range_length(start, *stop, step);
                    (0..length).map(|i| Value::Int(start + i * step)).collect()
                }
                _ => return Err(self.not_iterable(value)),
            },
            _ => return Err(self.not_iterable(value)),
        };
        self.spend(items.len() * 16)?;
        Ok(items)
    }

    fn not_iterable(&self, value: &Value) -> Error {
        let kind = self.heap.type_name(value);
        Error::runtime(format!("'{kind}' object is not iterable"))
    }

    /// `len(value)`
    pub(in super::super) fn length(&self, value: &Value) -> Result<usize> {
        Ok(match value {
            Value::Undefined(_) => 0,
            Value::Str(text) => text.as_str().chars().count(),
            other => match self.heap.object(other) {
                Some(Object::List(items) | Object::Tuple(items) | Object::View(_, items)) => {
                    items.len()
                }
                Some(Object::Dict(dict)) => dict.len(),
                Some(Object::Group(_)) => 2,
                Some(Object::Loop(state)) => state.items.len(),
                Some(Object::Range { start, stop, step }) => {
                    range_length(*start, *stop, *step) as usize
                }
                _ => {
                    let kind = self.heap.type_name(other);
                    return Err(Error::runtime(format!(
                        "object of type '{kind}' has no len()"
                    )));
                }
            },
        })
    }
}

/// An index from the front or, if negative, from the back.
pub(in super::super) fn position(index: i128, length: usize) -> Option<usize> {
    let length = length as i128;
    let index = if index < 0 { index + length } else { index };
    (0..length).contains(&index).then_some(index as usize)
}

/// Where a slice of `length` items starts and stops, and its step.
fn slice_bounds(length: i128, [start, stop, step]: [Option<i128>; 3]) -> (i128, i128, i128) {
    let step = step.unwrap_or(1);
    let (low, high) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let bound = |value: i128| {
        let value = if value < 0 {
            value.saturating_add(length)
        } else {
            value
        };
        value.clamp(low, high)
    };
    let start = start.map_or(if step > 0 { low } else { high }, bound);
    let stop = stop.map_or(if step > 0 { high } else { low }, bound);
    (start, stop, step)
}

/// The places that a slice of `length` items has.
fn indices(length: usize, numbers: [Option<i128>; 3]) -> impl Iterator<Item = usize> {
    let (start, stop, step) = slice_bounds(length as i128, numbers);
    let count = range_length(start, stop, step);
    (0..count).map(move |i| (start + i * step) as usize)
}

fn slice_text(text: &Text, bounds: [Option<i128>; 3]) -> Text {
    let whole = text.as_str();
    if bounds[2].unwrap_or(1) == 1 {
        let chars = if whole.is_ascii() {
            whole.len()
        } else {
            whole.chars().count()
        };
        let mut chosen = indices(chars, bounds);
        let Some(first) = chosen.next() else {
            return Text::own("");
        };
        let last = chosen.last().unwrap_or(first);
        if chars == whole.len() {
            return text.slice(first..last + 1);
        }
        let places: Vec<usize> = whole.char_indices().map(|(i, _)| i).collect();
        let end = places.get(last + 1).copied().unwrap_or(whole.len());
        return text.slice(places[first]..end);
    }
    let chars: Vec<_> = whole.char_indices().collect();
    let mut part = TextBuilder::default();
    for i in indices(chars.len(), bounds) {
        let (at, c) = chars[i];
        part.push_slice(text, at..at + c.len_utf8());
    }
    part.build()
}

fn loop_attribute(state: &Loop, name: &str) -> Option<Value> {
    let (index, length) = (state.index, state.items.len());
    Some(match name {
        "index" => Value::int(index + 1),
        "index0" => Value::int(index),
        "revindex" => Value::int(length - index),
        "revindex0" => Value::int(length - index - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == length),
        "length" => Value::int(length),
        "depth" => Value::int(state.depth + 1),
        "depth0" => Value::int(state.depth),
        "previtem" => match index.checked_sub(1) {
            Some(before) => state.items[before].clone(),
            None => Value::undefined("there is no previous item"),
        },
        "nextitem" => match state.items.get(index + 1) {
            Some(after) => after.clone(),
            None => Value::undefined("there is no next item"),
        },
        _ => return None,
    })
}
