//! Methods of lists, tuples, mappings and loops.

use super::super::ast::Comparison;
use super::super::error::{Error, Result};
use super::super::interpreter::{Args, Interpreter};
use super::super::text::Text;
use super::super::value::{Dict, Id, Key, Object, Value};
use std::cmp::Ordering;

impl<'t> Interpreter<'t> {
    pub(super) fn object_method(
        &mut self,
        id: Id,
        name: &'static str,
        args: Args,
    ) -> Result<Value> {
        match self.heap.get(id) {
            Object::List(_) | Object::Tuple(_) => self.list_method(id, name, args),
            Object::Dict(_) => self.dict_method(id, name, args),
            Object::Loop(_) => self.loop_method(id, name, args),
            Object::Cycler { .. } => {
                args.positional_only::<0>(name)?;
                let Object::Cycler { items, at } = self.heap.get_mut(id) else {
                    return Ok(Value::None);
                };
                if name == "reset" {
                    *at = 0;
                    return Ok(Value::None);
                }
                let item = items[*at].clone();
                *at = (*at + 1) % items.len();
                Ok(item)
            }
            _ => Err(Error::runtime(format!("there is no method {name}"))),
        }
    }

    fn items_mut(&mut self, id: Id) -> Result<&mut Vec<Value>> {
        match self.heap.get_mut(id) {
            Object::List(items) | Object::Tuple(items) => Ok(items),
            _ => Err(Error::runtime("not a list")),
        }
    }

    fn list_method(&mut self, id: Id, name: &'static str, args: Args) -> Result<Value> {
        let needed = || Error::runtime(format!("{name}() needs an argument"));
        let integer = |value: &Value| {
            value
                .as_index()
                .ok_or_else(|| Error::runtime(format!("{name}() needs an integer")))
        };
        let length = self.items_mut(id)?.len();
        self.spend(length + 64)?;
        match name {
            "append" => {
                let [item] = args.positional_only(name)?;
                self.items_mut(id)?.push(item.ok_or_else(needed)?);
            }
            "clear" => self.items_mut(id)?.clear(),
            "copy" => {
                let items = self.items_mut(id)?.clone();
                return self.list(items);
            }
            "extend" => {
                let [more] = args.positional_only(name)?;
                let more = self.iterate(&more.ok_or_else(needed)?)?;
                self.spend(more.len() * 48)?;
                self.items_mut(id)?.extend(more);
            }
            "insert" => {
                let [at, item] = args.positional_only(name)?;
                let (Some(at), Some(item)) = (at, item) else {
                    return Err(needed());
                };
                let at = clamp(integer(&at)?, length);
                self.items_mut(id)?.insert(at, item);
            }
            "pop" => {
                let [at] = args.positional_only(name)?;
                let at = at.as_ref().map_or(Ok(-1), integer)?;
                let at = if at < 0 { at + length as i128 } else { at };
                if length == 0 {
                    return Err(Error::runtime("pop from empty list"));
                }
                return match usize::try_from(at) {
                    Ok(at) if at < length => Ok(self.items_mut(id)?.remove(at)),
                    _ => Err(Error::runtime("pop index out of range")),
                };
            }
            "reverse" => self.items_mut(id)?.reverse(),
            "sort" => {
                let [reverse] = args.bind(name, ["reverse"])?;
                let reverse = reverse.is_some_and(|value| self.heap.truth(&value));
                let items = self.items_mut(id)?.clone();
                let sorted = self.sorted(items.clone(), items, reverse)?;
                *self.items_mut(id)? = sorted;
            }
            _ => {
                let [item, start, stop] = args.positional_only(name)?;
                let item = item.ok_or_else(needed)?;
                let start = start.as_ref().map_or(Ok(0), integer)?;
                let stop = stop.as_ref().map_or(Ok(length as i128), integer)?;
                let (start, stop) = (clamp(start, length), clamp(stop, length));
                let items = self.items_mut(id)?.clone();
                let mut count = 0;
                for (i, other) in items.iter().enumerate() {
                    let within = name == "count" || (start..stop).contains(&i);
                    if !within || !self.equal(other, &item)? {
                        continue;
                    }
                    match name {
                        "index" => return Ok(Value::int(i)),
                        "remove" => {
                            self.items_mut(id)?.remove(i);
                            return Ok(Value::None);
                        }
                        _ => count += 1,
                    }
                }
                if name == "count" {
                    return Ok(Value::int(count));
                }
                let item = self.repr(&item)?;
                return Err(Error::runtime(format!("{} is not in list", item.as_str())));
            }
        }
        Ok(Value::None)
    }

    /// The items in the order of their keys; equal ones stay as they were.
    pub(in super::super) fn sorted(
        &mut self,
        items: Vec<Value>,
        keys: Vec<Value>,
        reverse: bool,
    ) -> Result<Vec<Value>> {
        let mut pairs: Vec<(Value, Value)> = keys.into_iter().zip(items).collect();
        self.spend(pairs.len() * 64)?;
        let mut fault = None;
        pairs.sort_by(|(a, _), (b, _)| {
            let order = match fault {
                Some(_) => Ok(None),
                None => self.order(a, b, Comparison::Less),
            };
            let order = order.unwrap_or_else(|e| {
                fault = Some(e);
                None
            });
            let order = order.unwrap_or(Ordering::Equal);
            if reverse {
                order.reverse()
            } else {
                order
            }
        });
        match fault {
            Some(fault) => Err(fault),
            None => Ok(pairs.into_iter().map(|(_, item)| item).collect()),
        }
    }

    fn dict_mut(&mut self, id: Id) -> Result<&mut Dict> {
        match self.heap.get_mut(id) {
            Object::Dict(dict) => Ok(dict),
            _ => Err(Error::runtime("not a dict")),
        }
    }

    /// `dict.fromkeys(keys, value)`
    pub(super) fn dict_from_keys(
        &mut self,
        keys: Option<Value>,
        value: Option<Value>,
    ) -> Result<Value> {
        let keys = keys.ok_or_else(|| Error::runtime("fromkeys() needs keys"))?;
        let value = value.unwrap_or(Value::None);
        let mut dict = Dict::new();
        for key in self.iterate(&keys)? {
            dict.entry(self.heap.key(&key)?)
                .or_insert((key, value.clone()));
        }
        self.dict(dict)
    }

    fn dict_method(&mut self, id: Id, name: &'static str, args: Args) -> Result<Value> {
        let needed = || Error::runtime(format!("{name}() needs an argument"));
        let length = self.dict_mut(id)?.len();
        match name {
            "get" | "setdefault" => {
                let [key, default] = args.bind(name, ["key", "default"])?;
                let spelled = key.ok_or_else(needed)?;
                let default = default.unwrap_or(Value::None);
                let key = self.heap.key(&spelled)?;
                if let Some((_, value)) = self.dict_mut(id)?.get(&key) {
                    return Ok(value.clone());
                }
                if name == "setdefault" {
                    self.spend(200)?;
                    self.dict_mut(id)?.insert(key, (spelled, default.clone()));
                }
                Ok(default)
            }
            "items" | "keys" | "values" | "copy" | "clear" => {
                args.positional_only::<0>(name)?;
                self.spend(length * 64 + 64)?;
                let entries = self.dict_mut(id)?.clone();
                let view = |name, items| Object::View(name, items);
                let object = match name {
                    "copy" => return self.dict(entries),
                    "clear" => {
                        self.dict_mut(id)?.clear();
                        return Ok(Value::None);
                    }
                    "keys" => view("dict_keys", entries.into_values().map(|(k, _)| k).collect()),
                    "values" => view(
                        "dict_values",
                        entries.into_values().map(|(_, v)| v).collect(),
                    ),
                    _ => view("dict_items", self.pairs(entries)?),
                };
                Ok(self.heap.add(object))
            }
            "fromkeys" => {
                let [keys, value] = args.positional_only(name)?;
                self.dict_from_keys(keys, value)
            }
            "pop" => {
                let [key, default] = args.positional_only(name)?;
                let spelled = key.ok_or_else(needed)?;
                let key = self.heap.key(&spelled)?;
                self.spend(length)?;
                match (self.dict_mut(id)?.shift_remove(&key), default) {
                    (Some((_, value)), _) | (None, Some(value)) => Ok(value),
                    (None, None) => {
                        let key = self.repr(&spelled)?;
                        Err(Error::runtime(format!("there is no key {}", key.as_str())))
                    }
                }
            }
            "popitem" => {
                args.positional_only::<0>(name)?;
                match self.dict_mut(id)?.pop() {
                    Some((_, (key, value))) => self.tuple(vec![key, value]),
                    None => Err(Error::runtime("popitem(): dictionary is empty")),
                }
            }
            _ => {
                let more = self.dict_of(args)?;
                self.spend(more.len() * 200)?;
                let dict = self.dict_mut(id)?;
                for (key, (spelled, value)) in more {
                    match dict.get_mut(&key) {
                        Some((_, old)) => *old = value,
                        None => {
                            dict.insert(key, (spelled, value));
                        }
                    }
                }
                Ok(Value::None)
            }
        }
    }

    /// Entries as pairs.
    pub(in super::super) fn pairs(&mut self, entries: Dict) -> Result<Vec<Value>> {
        let entries = entries.into_values();
        entries
            .map(|(key, value)| self.tuple(vec![key, value]))
            .collect()
    }

    fn loop_method(&mut self, id: Id, name: &'static str, args: Args) -> Result<Value> {
        if name == "cycle" {
            let items = args.positional;
            let Object::Loop(state) = self.heap.get(id) else {
                return Ok(Value::None);
            };
            return match items.is_empty() {
                true => Err(Error::runtime("no items for cycling given")),
                false => Ok(items[state.index % items.len()].clone()),
            };
        }
        let values = args.positional;
        let seen = match self.heap.get_mut(id) {
            Object::Loop(state) => state.seen.replace(values.clone()),
            _ => None,
        };
        let Some(seen) = seen.filter(|seen| seen.len() == values.len()) else {
            return Ok(Value::Bool(true));
        };
        for (a, b) in seen.iter().zip(&values) {
            if !self.equal(a, b)? {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }

    /// The entries of a mapping given as text keys, for `%` and `format`.
    pub(in super::super) fn entry(&self, value: &Value, name: &Text) -> Option<Value> {
        let dict = self.heap.dict(value)?;
        dict.get(&Key::Str(name.clone()))
            .map(|(_, value)| value.clone())
    }
}

/// An index that may be negative, or beyond the ends, as a place in a list.
fn clamp(index: i128, length: usize) -> usize {
    let length = length as i128;
    let index = if index < 0 {
        index.saturating_add(length)
    } else {
        index
    };
    index.clamp(0, length) as usize
}
