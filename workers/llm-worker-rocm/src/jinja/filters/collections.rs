//! Filters of lists, mappings and whatever can be iterated.

use super::super::ast::Comparison;
use super::super::error::{Error, Result};
use super::super::interpreter::{Args, Interpreter};
use super::super::text::{Text, TextBuilder};
use super::super::value::{Object, Value};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

impl<'t> Interpreter<'t> {
    pub(super) fn collection_filter(
        &mut self,
        name: &str,
        value: Value,
        args: Args,
    ) -> Result<Value> {
        match name {
            "length" | "count" => {
                args.bind::<0>(name, [])?;
                if let Value::Str(text) = &value {
                    self.spend(text.len())?;
                }
                Ok(Value::int(self.length(&value)?))
            }
            "list" => {
                args.bind::<0>(name, [])?;
                let items = self.iterate(&value)?;
                self.list(items)
            }
            "items" => {
                args.bind::<0>(name, [])?;
                let items = match self.heap.dict(&value).cloned() {
                    Some(dict) => self.pairs(dict)?,
                    None if value.is_undefined() => Vec::new(),
                    None => return Err(Error::runtime("Can only get item pairs from a mapping.")),
                };
                self.iterator("generator", items)
            }
            "first" => {
                args.bind::<0>(name, [])?;
                if let Value::Object(id) = &value {
                    if let Object::Iterator(_, items) = self.heap.get_mut(*id) {
                        let first = items.pop_front();
                        return Ok(first.unwrap_or_else(|| no_item("first")));
                    }
                }
                let items = self.iterate(&value)?;
                Ok(items.into_iter().next().unwrap_or_else(|| no_item("first")))
            }
            "last" => {
                args.bind::<0>(name, [])?;
                if let Some(Object::Iterator(kind, _)) = self.heap.object(&value) {
                    return Err(Error::runtime(format!("'{kind}' object is not reversible")));
                }
                let items = self.iterate(&value)?;
                Ok(items
                    .into_iter()
                    .next_back()
                    .unwrap_or_else(|| no_item("last")))
            }
            "random" => {
                args.bind::<0>(name, [])?;
                let items = self.iterate(&value)?;
                if items.is_empty() {
                    return Ok(no_item("random"));
                }
                // A hasher's keys are random.
                let at = RandomState::new().hash_one(items.len()) as usize % items.len();
                Ok(items[at].clone())
            }
            "reverse" => {
                args.bind::<0>(name, [])?;
                if let Value::Str(text) = &value {
                    self.spend(text.len() * 16)?;
                    let mut reversed = TextBuilder::default();
                    for (at, c) in text.as_str().char_indices().rev() {
                        reversed.push_slice(text, at..at + c.len_utf8());
                    }
                    return Ok(Value::Str(reversed.build()));
                }
                let mut items = self.iterate(&value)?;
                items.reverse();
                self.iterator("list_reverseiterator", items)
            }
            "join" => {
                let [separator, attribute] = args.bind(name, ["d", "attribute"])?;
                let separator = self.text_or(separator, "")?;
                let mut out = TextBuilder::default();
                for (i, item) in self.iterate(&value)?.iter().enumerate() {
                    let item = self.by_attribute(item, attribute.as_ref(), None)?;
                    let item = self.text_of(&item)?;
                    self.spend(item.len() + separator.len())?;
                    if i > 0 {
                        out.push(&separator);
                    }
                    out.push(&item);
                }
                Ok(Value::Str(out.build()))
            }
            "map" => self.map(&value, args),
            "select" | "reject" | "selectattr" | "rejectattr" => self.select(name, &value, args),
            "sort" => {
                let [reverse, case, attribute] =
                    args.bind(name, ["reverse", "case_sensitive", "attribute"])?;
                let (reverse, case) = (self.flag(&reverse), self.flag(&case));
                let items = self.iterate(&value)?;
                let mut keys = Vec::with_capacity(items.len());
                for item in &items {
                    keys.push(self.sort_key(item, attribute.as_ref(), case)?);
                }
                let sorted = self.sorted(items, keys, reverse)?;
                self.list(sorted)
            }
            "dictsort" => self.sorted_dict(&value, args),
            "unique" => {
                let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
                let case = self.flag(&case);
                let mut seen = HashSet::new();
                let mut unique = Vec::new();
                for item in self.iterate(&value)? {
                    let key = self.by_attribute(&item, attribute.as_ref(), None)?;
                    let key = folded(key, case);
                    if seen.insert(self.heap.key(&key)?) {
                        unique.push(item);
                    }
                }
                self.iterator("generator", unique)
            }
            "min" | "max" => {
                let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
                let case = self.flag(&case);
                let wanted = if name == "min" {
                    Ordering::Less
                } else {
                    Ordering::Greater
                };
                let comparison = if name == "min" {
                    Comparison::Less
                } else {
                    Comparison::Greater
                };
                let mut best: Option<(Value, Value)> = None;
                for item in self.iterate(&value)? {
                    let key = self.by_attribute(&item, attribute.as_ref(), None)?;
                    let key = folded(key, case);
                    let better = match &best {
                        None => true,
                        Some((old, _)) => self.order(&key, old, comparison)? == Some(wanted),
                    };
                    if better {
                        best = Some((key, item));
                    }
                }
                let none = || Value::undefined("No aggregated item, sequence was empty.");
                Ok(best.map_or_else(none, |(_, item)| item))
            }
            "groupby" => self.grouped(&value, args),
            "batch" => {
                let [count, fill] = args.bind(name, ["linecount", "fill_with"])?;
                let count = usize::try_from(self.integer(count, name, 0)?).unwrap_or(0);
                let items = self.iterate(&value)?;
                let count = if count == 0 {
                    items.len().max(1)
                } else {
                    count
                };
                let mut batches = Vec::new();
                for batch in items.chunks(count) {
                    let mut batch = batch.to_vec();
                    if let Some(fill) = fill.as_ref().filter(|f| !matches!(f, Value::None)) {
                        self.spend((count - batch.len()).saturating_mul(48))?;
                        batch.resize(count, fill.clone());
                    }
                    batches.push(self.list(batch)?);
                }
                self.iterator("generator", batches)
            }
            _ => {
                let [slices, fill] = args.bind(name, ["slices", "fill_with"])?;
                let slices = self.integer(slices, name, 0)?;
                if slices == 0 {
                    return Err(Error::runtime("integer division or modulo by zero"));
                }
                let slices = usize::try_from(slices).unwrap_or(0);
                self.spend(slices.saturating_mul(64))?;
                let items = self.iterate(&value)?;
                let mut rest = items.as_slice();
                let mut parts = Vec::new();
                for i in 0..slices {
                    let extra = usize::from(i < items.len() % slices);
                    let (part, after) = rest.split_at(items.len() / slices + extra);
                    rest = after;
                    let mut part = part.to_vec();
                    let fill = fill
                        .as_ref()
                        .filter(|f| extra == 0 && !matches!(f, Value::None));
                    part.extend(fill.cloned());
                    parts.push(self.list(part)?);
                }
                self.iterator("generator", parts)
            }
        }
    }

    /// `item.a.b` or `item[0]` for an attribute that is given as text or number; the item itself without.
    pub(super) fn by_attribute(
        &mut self,
        item: &Value,
        attribute: Option<&Value>,
        default: Option<&Value>,
    ) -> Result<Value> {
        let parts = match attribute {
            None | Some(Value::None) => return Ok(item.clone()),
            Some(Value::Str(name)) => name
                .as_str()
                .split('.')
                .map(|part| match part.parse::<u32>() {
                    Ok(index) => Value::Int(index.into()),
                    Err(_) => Value::from(part),
                })
                .collect(),
            Some(other) => vec![other.clone()],
        };
        let mut found = item.clone();
        for part in parts {
            found = self.item(&found, &part)?;
            if let (true, Some(default)) = (found.is_undefined(), default) {
                found = default.clone();
            }
        }
        Ok(found)
    }

    /// What to sort an item by: one attribute, or several with commas between them.
    fn sort_key(&mut self, item: &Value, attribute: Option<&Value>, case: bool) -> Result<Value> {
        let names = match attribute {
            Some(Value::Str(names)) => names.as_str().split(',').map(Value::from).collect(),
            Some(other) => vec![other.clone()],
            None => vec![Value::None],
        };
        let mut keys = Vec::with_capacity(names.len());
        for name in names {
            keys.push(folded(self.by_attribute(item, Some(&name), None)?, case));
        }
        self.list(keys)
    }

    fn sorted_dict(&mut self, value: &Value, args: Args) -> Result<Value> {
        let [case, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
        let (case, reverse) = (self.flag(&case), self.flag(&reverse));
        let by_value = match self.text_or(by, "key")?.as_str() {
            "key" => false,
            "value" => true,
            _ => {
                return Err(Error::runtime(
                    "You can only sort by either \"key\" or \"value\"",
                ))
            }
        };
        let dict = self.heap.dict(value).cloned();
        let Some(dict) = dict else {
            let kind = self.heap.type_name(value);
            return Err(Error::runtime(format!(
                "'{kind}' object has no attribute 'items'"
            )));
        };
        let key = |(key, value): &(Value, Value)| {
            folded(if by_value { value } else { key }.clone(), case)
        };
        let keys = dict.values().map(key).collect();
        let pairs = self.pairs(dict)?;
        let sorted = self.sorted(pairs, keys, reverse)?;
        self.list(sorted)
    }

    fn grouped(&mut self, value: &Value, args: Args) -> Result<Value> {
        let [attribute, default, case] =
            args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
        let case = self.flag(&case);
        let items = self.iterate(value)?;
        let mut keys = Vec::with_capacity(items.len());
        for item in &items {
            let key = self.by_attribute(item, attribute.as_ref(), default.as_ref())?;
            keys.push(folded(key, case));
        }
        let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
        for item in self.sorted(items, keys, false)? {
            let key = self.by_attribute(&item, attribute.as_ref(), default.as_ref())?;
            let same = match groups.last() {
                Some((last, _)) => {
                    self.equal(&folded(last.clone(), case), &folded(key.clone(), case))?
                }
                None => false,
            };
            match groups.last_mut().filter(|_| same) {
                Some((_, items)) => items.push(item),
                None => groups.push((key, vec![item])),
            }
        }
        let mut made = Vec::with_capacity(groups.len());
        for (key, items) in groups {
            let items = self.list(items)?;
            made.push(self.heap.add(Object::Group([key, items])));
        }
        self.list(made)
    }

    /// The items of a value; none of one that is not true, as `map` and `select` have it.
    fn items_if_true(&mut self, value: &Value) -> Result<Vec<Value>> {
        match self.heap.truth(value) {
            true => self.iterate(value),
            false => Ok(Vec::new()),
        }
    }

    fn map(&mut self, value: &Value, mut args: Args) -> Result<Value> {
        let items = self.items_if_true(value)?;
        let mut mapped = Vec::with_capacity(items.len());
        if args.positional.is_empty() {
            let [attribute, default] = args.bind("map", ["attribute", "default"])?;
            if attribute.is_none() {
                return Err(Error::runtime("map requires a filter argument"));
            }
            for item in items {
                mapped.push(self.by_attribute(&item, attribute.as_ref(), default.as_ref())?);
            }
        } else {
            let Value::Str(name) = args.positional.remove(0) else {
                return Err(Error::runtime("map requires the name of a filter"));
            };
            for item in items {
                let args = Args {
                    positional: args.positional.clone(),
                    named: args.named.clone(),
                };
                mapped.push(self.filter(name.as_str(), item, args)?);
            }
        }
        self.iterator("generator", mapped)
    }

    fn select(&mut self, name: &str, value: &Value, mut args: Args) -> Result<Value> {
        let attribute = match name {
            "selectattr" | "rejectattr" if args.positional.is_empty() => {
                return Err(Error::runtime("Missing parameter for attribute name"));
            }
            "selectattr" | "rejectattr" => Some(args.positional.remove(0)),
            _ => None,
        };
        let test = match args.positional.is_empty() {
            true => None,
            false => match args.positional.remove(0) {
                Value::Str(test) => Some(test),
                _ => {
                    return Err(Error::runtime(format!(
                        "{name} requires the name of a test"
                    )))
                }
            },
        };
        let keeps = name.starts_with("select");
        let mut chosen = Vec::new();
        for item in self.items_if_true(value)? {
            let tested = self.by_attribute(&item, attribute.as_ref(), None)?;
            let fits = match &test {
                Some(test) => self.test(test.as_str(), &tested, args.positional.clone())?,
                None => self.heap.truth(&tested),
            };
            if fits == keeps {
                chosen.push(item);
            }
        }
        self.iterator("generator", chosen)
    }
}

fn no_item(which: &str) -> Value {
    Value::undefined(format!("No {which} item, sequence was empty."))
}

/// A text in lower case, unless case counts.
fn folded(value: Value, case: bool) -> Value {
    match value {
        Value::Str(text) if !case => Value::Str(Text::own(text.as_str().to_lowercase())),
        other => other,
    }
}
