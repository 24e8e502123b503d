//! The nodes of a graph, and the links between them.

use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// Links that are followed at most, from a node to what it depends on.
pub(super) const MOST_LINKS: usize = 64;
/// Most nodes of a graph.
pub(crate) const MOST_NODES: usize = 2000;
/// Longest name of a node.
const MOST_NAME: usize = 256;

/// A graph as ComfyUI's API has it: nodes by their numbers, each with its class and inputs.
pub(crate) struct Graph<'a> {
    nodes: &'a Map<String, Value>,
    /// Nodes whose inputs are in the request.
    read: HashSet<&'a str>,
}

/// A node: its number, class and inputs.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    /// Its number, which may be any text.
    pub(crate) id: &'a str,
    /// What it is.
    pub(crate) class: &'a str,
    /// Values, and links to other nodes' outputs.
    pub(crate) inputs: &'a Map<String, Value>,
}

/// The node and the number of its output that a value links to.
pub(crate) fn link(value: &Value) -> Option<(&str, usize)> {
    let [id, output] = value.as_array()?.as_slice() else {
        return None;
    };
    Some((id.as_str()?, usize::try_from(output.as_u64()?).ok()?))
}

impl<'a> Graph<'a> {
    /// Takes the nodes of a graph.
    ///
    /// # Errors
    /// Says what is wrong with a graph that is none, or too large.
    pub(crate) fn new(graph: &'a Value) -> Result<Self, String> {
        let nodes = graph.as_object().ok_or("it is no graph")?;
        if nodes.len() > MOST_NODES {
            return Err(format!("it has more than {MOST_NODES} nodes"));
        }
        if nodes.keys().any(|id| id.len() > MOST_NAME) {
            return Err(format!("a node's name is longer than {MOST_NAME} bytes"));
        }
        Ok(Self {
            nodes,
            read: HashSet::new(),
        })
    }

    /// All nodes that are such.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Node<'a>> {
        let nodes = self.nodes;
        nodes.keys().filter_map(move |id| of(nodes, id))
    }

    /// The node of this number.
    pub(crate) fn node(&self, id: &str) -> Option<Node<'a>> {
        of(self.nodes, id)
    }

    /// The same, of which the request tells from now on.
    pub(super) fn take(&mut self, id: &str) -> Option<Node<'a>> {
        let node = self.node(id)?;
        self.read.insert(node.id);
        Some(node)
    }

    /// Whether the request tells of a node.
    pub(super) fn has_read(&self, node: &Node) -> bool {
        self.read.contains(node.id)
    }

    /// The node that an input is linked to, and which of its outputs.
    pub(super) fn linked(&mut self, node: Node<'a>, input: &str) -> Option<(Node<'a>, usize)> {
        let (id, output) = link(node.inputs.get(input)?)?;
        Some((self.take(id)?, output))
    }

    /// An input's value, or that of a node which holds only one.
    pub(super) fn value(&mut self, node: Node<'a>, input: &str) -> Option<&'a Value> {
        let mut value = node.inputs.get(input)?;
        for _ in 0..MOST_LINKS {
            let Some((id, _)) = link(value) else {
                return Some(value).filter(|value| !value.is_array());
            };
            let holder = self.take(id)?;
            let names = ["value", "text", "string", "seed", "int", "float"];
            value = names.iter().find_map(|name| holder.inputs.get(*name))?;
        }
        None
    }

    /// A text.
    pub(super) fn text(&mut self, node: Node<'a>, input: &str) -> Option<&'a str> {
        self.value(node, input)?.as_str()
    }

    /// A number.
    pub(super) fn number(&mut self, node: Node<'a>, input: &str) -> Option<f64> {
        self.value(node, input)?.as_f64()
    }

    /// A whole number from 0, which may be written as a fraction of nothing.
    pub(super) fn count(&mut self, node: Node<'a>, input: &str) -> Option<usize> {
        let value = self.value(node, input)?;
        let float = || value.as_f64().filter(|float| float.fract() == 0.0);
        let float = || float().filter(|float| (0.0..9e15).contains(float));
        match value.as_u64() {
            Some(whole) => usize::try_from(whole).ok(),
            None => float().map(|float| float as usize),
        }
    }

    /// The nodes that these depend on, they among them.
    pub(crate) fn needed_by<'b>(&self, ids: impl Iterator<Item = &'b str>) -> HashSet<&'a str> {
        let mut needed = HashSet::new();
        let mut open: Vec<&str> = ids.filter_map(|id| Some(self.node(id)?.id)).collect();
        while let Some(id) = open.pop() {
            let Some(node) = self.node(id).filter(|node| needed.insert(node.id)) else {
                continue;
            };
            let links = node.inputs.values().filter_map(link);
            open.extend(links.filter_map(|(id, _)| Some(self.node(id)?.id)));
        }
        needed
    }

    /// A node from which links lead back to it, if there is one.
    pub(crate) fn circle(&self) -> Option<&'a str> {
        // Whoever depends on nothing that is left is taken away, until nothing or a circle remains.
        let mut waits: HashMap<&str, usize> = HashMap::new();
        let mut needed_by: HashMap<&str, Vec<&str>> = HashMap::new();
        for node in self.nodes() {
            let links = node.inputs.values().filter_map(link);
            let mut count = 0;
            for other in links.filter_map(|(id, _)| self.node(id)) {
                needed_by.entry(other.id).or_default().push(node.id);
                count += 1;
            }
            waits.insert(node.id, count);
        }
        let free = waits.iter().filter(|(_, count)| **count == 0);
        let mut free: Vec<&str> = free.map(|(id, _)| *id).collect();
        while let Some(id) = free.pop() {
            waits.remove(id);
            for other in needed_by.remove(id).into_iter().flatten() {
                if let Some(count) = waits.get_mut(other) {
                    *count -= 1;
                    if *count == 0 {
                        free.push(other);
                    }
                }
            }
        }
        waits.into_keys().min()
    }
}

fn of<'a>(nodes: &'a Map<String, Value>, id: &str) -> Option<Node<'a>> {
    let (id, node) = nodes.get_key_value(id)?;
    Some(Node {
        id,
        class: node.get("class_type")?.as_str()?,
        inputs: node.get("inputs")?.as_object()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn circles_and_what_is_needed() {
        let mut graph = json!({
            "a": {"class_type": "A", "inputs": {"x": ["b", 0], "y": 3}},
            "b": {"class_type": "B", "inputs": {"x": ["c", 1]}},
            "c": {"class_type": "C", "inputs": {"x": ["nowhere", 0], "y": [1, 2], "z": ["b"]}},
            "d": {"class_type": "D", "inputs": {"x": ["c", 0]}},
            "e": {"class": "none"},
        });
        let read = Graph::new(&graph).unwrap();
        let needed = read.needed_by(["a", "nowhere", "e"].into_iter());
        assert_eq!(needed, HashSet::from(["a", "b", "c"]));
        assert_eq!(read.circle(), None);
        graph["c"]["inputs"]["x"] = json!(["a", 0]);
        let read = Graph::new(&graph).unwrap();
        assert_eq!(read.circle(), Some("a"));
        assert_eq!(read.needed_by(["b"].into_iter()).len(), 3);
    }

    #[test]
    fn long_chains_and_large_graphs() {
        let chain = |length: usize| -> Value {
            let node = |i: usize| {
                (
                    i.to_string(),
                    json!({"class_type": "A", "inputs": {"x": [(i + 1).to_string(), 0]}}),
                )
            };
            Value::Object((0..length).map(node).collect())
        };
        let longest = chain(MOST_NODES);
        let read = Graph::new(&longest).unwrap();
        assert_eq!(read.circle(), None);
        assert_eq!(read.needed_by(["0"].into_iter()).len(), MOST_NODES);
        assert!(Graph::new(&chain(MOST_NODES + 1)).is_err());
        assert!(Graph::new(&json!([])).is_err());
    }
}
