//! The figures of several processes as those of one: each of a model's carries its name as the label `model`.

use std::collections::HashMap;

/// The lines of one metric: what is said about it, and its values.
#[derive(Debug, Default)]
struct Family {
    about: Vec<String>,
    values: Vec<String>,
}

/// Puts figures together: the server's own, and those of models by their names.
pub(super) fn merge(own: &str, models: &[(String, String)]) -> String {
    let mut order: Vec<String> = Vec::new();
    let mut families: HashMap<String, Family> = HashMap::new();
    let mut add = |text: &str, model: Option<&str>| {
        let mut current = String::new();
        for line in text.lines() {
            let mut words = line.splitn(4, ' ');
            let is_about = words.next() == Some("#");
            let (kind, name) = (
                words.next().unwrap_or_default(),
                words.next().unwrap_or_default(),
            );
            if is_about && ["HELP", "TYPE", "UNIT"].contains(&kind) {
                current = name.to_string();
            } else if is_about || line.is_empty() {
                continue;
            } else if current.is_empty() {
                current = line
                    .split(['{', ' '])
                    .next()
                    .unwrap_or_default()
                    .to_string();
            }
            let family = families.entry(current.clone()).or_insert_with(|| {
                order.push(current.clone());
                Family::default()
            });
            match (is_about, model) {
                (true, _)
                    if family
                        .about
                        .iter()
                        .any(|known| known.starts_with(&format!("# {kind} "))) => {}
                (true, _) => family.about.push(line.to_string()),
                (false, None) => family.values.push(line.to_string()),
                (false, Some(model)) => family.values.push(labelled(line, model)),
            }
        }
    };
    add(own, None);
    for (name, text) in models {
        add(text, Some(name));
    }
    let mut merged = String::new();
    for name in &order {
        let lines = families
            .get(name)
            .into_iter()
            .flat_map(|family| family.about.iter().chain(&family.values));
        for line in lines {
            merged.push_str(line);
            merged.push('\n');
        }
    }
    if own.lines().any(|line| line == "# EOF") {
        merged.push_str("# EOF\n");
    }
    merged
}

/// A value with the label.
fn labelled(line: &str, model: &str) -> String {
    let escaped = model
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    let end = line.find([' ', '{']).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    match rest.strip_prefix('{') {
        Some(labels) if labels.starts_with("model=\"") || labels.contains(",model=\"") => {
            line.to_string()
        }
        Some(labels) if labels.starts_with('}') => format!("{name}{{model=\"{escaped}\"{labels}"),
        Some(labels) => format!("{name}{{model=\"{escaped}\",{labels}"),
        None => format!("{name}{{model=\"{escaped}\"}}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_stay_together_and_values_are_labelled() {
        let own = "# HELP up Up.\n# TYPE up gauge\nup 1\n# EOF\n";
        let of_model = |count: u32| {
            format!(
                "# HELP done Done.\n# TYPE done counter\ndone_total {count}\ndone_total{{route=\"/a b\"}} 2\n# TYPE up gauge\nup 3\n# EOF\n"
            )
        };
        let models = [
            ("a".to_string(), of_model(5)),
            ("b\"".to_string(), of_model(6)),
        ];
        let expected =
            "# HELP up Up.\n# TYPE up gauge\nup 1\nup{model=\"a\"} 3\nup{model=\"b\\\"\"} 3\n\
            # HELP done Done.\n# TYPE done counter\n\
            done_total{model=\"a\"} 5\ndone_total{model=\"a\",route=\"/a b\"} 2\n\
            done_total{model=\"b\\\"\"} 6\ndone_total{model=\"b\\\"\",route=\"/a b\"} 2\n# EOF\n";
        assert_eq!(merge(own, &models), expected);
    }

    #[test]
    fn labels_that_are_there_stay() {
        assert_eq!(labelled("x{model=\"y\"} 1", "a"), "x{model=\"y\"} 1");
        assert_eq!(labelled("x{} 1", "a"), "x{model=\"a\"} 1");
    }
}
