//! Names of people and machines taken out of what is shown and written.
//!
//! Nothing of the kind is looked for, but paths, variables and messages of libraries may hold it: home folders, the
//! names of user and host, MAC addresses, UUIDs and the unique ids of GPUs.

use regex::{NoExpand, Regex};
use serde_json::Value;

/// Names that say nothing about anybody.
const NOT_PERSONAL: &[&str] = &[
    "root",
    "user",
    "render",
    "video",
    "localhost",
    "amdgpu",
    "rocm",
];
/// Shorter names would be found everywhere.
const SHORTEST_NAME: usize = 3;

/// What always has the same form.
const FORMS: &[(&str, &str)] = &[
    (r"(?-u:\b)([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?-u:\b)", "MAC"),
    (
        r"(?-u:\b)[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}(?-u:\b)",
        "UUID",
    ),
    (r"(?-u:\b)GPU-[0-9A-Fa-f]{8,16}(?-u:\b)", "GPU-ID"),
    (r"/(home|Users)/[^/\s:;,'\x22]+", "/home/USER"),
];

/// What to take out.
#[derive(Debug)]
pub struct Mask {
    rules: Vec<(Regex, &'static str)>,
}

impl Mask {
    /// What this user and this machine are called.
    pub fn of_this_machine() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        Self::new(
            variable("HOME").as_deref(),
            &[variable("USER"), variable("LOGNAME")].map(Option::unwrap_or_default),
            &[host, variable("HOSTNAME")].map(Option::unwrap_or_default),
        )
    }

    /// A mask for a home folder and the names of a user and a host.
    pub fn new(home: Option<&str>, users: &[String], hosts: &[String]) -> Self {
        let mut rules = Vec::new();
        let mut add = |pattern: &str, instead| {
            // Patterns are constants and escaped names.
            if let Ok(rule) = Regex::new(pattern) {
                rules.push((rule, instead));
            }
        };
        let home = home.map(|home| home.trim_end_matches('/'));
        if let Some(home) = home.filter(|home| home.len() > 1) {
            add(&format!(r"{}(?-u:\b)", regex::escape(home)), "~");
        }
        for (pattern, instead) in FORMS {
            add(pattern, instead);
        }
        for (names, instead) in [(users, "USER"), (hosts, "HOST")] {
            for name in names.iter().map(|name| name.trim()) {
                let short = name.split('.').next().unwrap_or_default();
                for name in [name, short] {
                    if name.len() >= SHORTEST_NAME && !NOT_PERSONAL.contains(&name) {
                        let name = regex::escape(name);
                        add(&format!(r"(?-u:\b){name}(?-u:\b)"), instead);
                    }
                }
            }
        }
        Mask { rules }
    }

    /// A text without what is to be taken out.
    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_string();
        for (rule, instead) in &self.rules {
            if let std::borrow::Cow::Owned(masked) = rule.replace_all(&text, NoExpand(instead)) {
                text = masked;
            }
        }
        text
    }

    /// The same for every text in a value, names of fields included.
    pub fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => (fields.into_iter())
                .map(|(name, field)| (self.text(&name), self.value(field)))
                .collect(),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask() -> Mask {
        let name = |name: &str| vec![name.to_string()];
        Mask::new(
            Some("/data/people/annabelle"),
            &name("annabelle"),
            &name("workbench.example.org\n"),
        )
    }

    #[test]
    fn names_and_numbers_of_people_and_machines_go() {
        for (text, masked) in [
            ("/data/people/annabelle/rocm/lib", "~/rocm/lib"),
            ("owned by annabelle.", "owned by USER."),
            ("/home/someone/x:/home/other", "/home/USER/x:/home/USER"),
            ("on workbench: failed", "on HOST: failed"),
            ("at workbench.example.org", "at HOST"),
            ("ether 3c:7c:3f:01:02:ab up", "ether MAC up"),
            ("GPU-3f7a1b2c4d5e6f70,1", "GPU-ID,1"),
            ("root=0f8fad5b-d9cb-469f-a165-70867728950e", "root=UUID"),
        ] {
            assert_eq!(mask().text(text), masked);
        }
    }

    #[test]
    fn what_says_nothing_about_anybody_stays() {
        let same = "0000:03:00.0 gfx942:sramecc+:xnack- /opt/rocm-7.2.4/lib annabelles rocm:0 6.8.0-45-generic";
        assert_eq!(mask().text(same), same);
        let root = Mask::new(Some("/"), &["root".into()], &["localhost".into()]);
        assert_eq!(root.text("/usr/lib of root"), "/usr/lib of root");
    }

    #[test]
    fn values_are_masked_to_the_bottom() {
        let value = serde_json::json!({"annabelle": [{"path": "/home/annabelle/x"}, 1, null]});
        let masked = serde_json::json!({"USER": [{"path": "/home/USER/x"}, 1, null]});
        assert_eq!(mask().value(value), masked);
    }
}
