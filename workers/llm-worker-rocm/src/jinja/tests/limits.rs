//! Templates that would take all time, memory or stack.

use super::super::{interpreter, on_large_stack, parser, ErrorKind, Template, Variable};
use serde_json::json;

/// What a template of a hostile model comes to, with little fuel so that a debug build is done soon.
fn outcome(source: &str) -> Result<String, ErrorKind> {
    let x = json!("y");
    let variables = [Variable {
        name: "x",
        value: &x,
        input: true,
    }];
    let rendered = on_large_stack(|| {
        let nodes = parser::parse(source)?;
        interpreter::render(&nodes, &variables, 3_000_000)
    });
    rendered.map(|rendered| rendered.text).map_err(|e| e.kind)
}

/// A chain or nest by length.
fn repeated(before: &str, part: &str, count: usize, after: &str) -> String {
    format!("{{{{ {before}{}{after} }}}}", part.repeat(count))
}

fn nested(open: &str, close: &str) -> String {
    format!("{{{{ {}1{} }}}}", open.repeat(45_000), close.repeat(45_000))
}

#[test]
fn long_expressions_take_no_stack() {
    for source in [
        repeated("", "not ", 22_500, "1"),
        repeated("", "1+", 22_500, "1"),
        repeated("", "1-", 22_500, "1"),
        repeated("", "-", 45_000, "1"),
        repeated("x", ".a", 22_500, ""),
        repeated("x", "()", 22_500, ""),
        repeated("x", "[0]", 22_500, ""),
        repeated("", "1 and ", 22_500, "1"),
        repeated("", "1 if 1 else ", 9_000, "1"),
        repeated("1", "|abs", 62_000, ""),
        nested("(", ")"),
        nested("[", "]"),
        nested("{1:", "}"),
        nested("f(", ")"),
        "{% if 1 %}".repeat(10_000),
        "{% for a in [1] %}".repeat(10_000),
        format!(
            "{{% set {}a{} = 1 %}}",
            "(".repeat(10_000),
            ")".repeat(10_000)
        ),
    ] {
        assert_eq!(outcome(&source), Err(ErrorKind::Limit), "{:.40}", source);
    }
    // These have no depth.
    assert_eq!(
        outcome(&repeated("", "1~", 10_000, "1")).unwrap().len(),
        10_001
    );
    assert_eq!(outcome(&repeated("", "1<", 22_500, "1")).unwrap(), "False");
    let elifs = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(7_600));
    assert_eq!(outcome(&elifs).unwrap(), "");
}

#[test]
fn values_may_contain_themselves_and_be_deep() {
    let namespace = "{% set n=namespace() %}{% set n.a=n %}";
    assert_eq!(
        outcome(&format!("{namespace}{{{{ n }}}}")).unwrap(),
        "<Namespace {'a': <Namespace {...}>}>"
    );
    assert_eq!(
        outcome(&format!("{namespace}{{{{ n|tojson }}}}")),
        Err(ErrorKind::Runtime)
    );
    assert_eq!(
        outcome("{% set a=[1] %}{% set _=a.append(a) %}{{ a }}").unwrap(),
        "[1, [...]]"
    );
    let circular = "{% set a=[1] %}{% set _=a.append(a) %}{{ a|tojson }}";
    assert_eq!(outcome(circular), Err(ErrorKind::Limit));

    let deep = |then: &str| {
        let lists =
            "{% set n=namespace(l=[]) %}{% for i in range(2000) %}{% set n.l=[n.l] %}{% endfor %}";
        outcome(&format!("{lists}{{{{ {then} }}}}"))
    };
    for then in ["n.l", "n.l|tojson", "n.l == [[n.l]]", "n.l < [n.l]"] {
        assert_eq!(deep(then), Err(ErrorKind::Limit), "{then}");
    }
    // Dropping them takes no stack either.
    assert_eq!(deep("1").unwrap(), "1");
    let wide =
        "{% set n=namespace(l=(1,)) %}{% for i in range(60) %}{% set n.l=(n.l,n.l) %}{% endfor %}";
    for then in ["n.l", "{n.l: 1}", "n.l|tojson", "n.l|string|length"] {
        assert_eq!(
            outcome(&format!("{wide}{{{{ {then} }}}}")),
            Err(ErrorKind::Limit),
            "{then}"
        );
    }
}

#[test]
fn fuel_covers_what_a_step_costs() {
    for source in [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% set s='a'*500000 %}{% for i in range(99999) %}{{ s.count('ab') }}{% endfor %}",
        "{% set s='a'*500000 %}{% for i in range(99999) %}{% if 'ab' in s %}{% endif %}{% endfor %}",
        "{% set n=namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = n.x + range(9999)|list %}{% endfor %}",
        "{% set n=namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n=namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set s='a'*100000 %}{{ s.replace('a', s) }}",
        "{% set s='a'*1000000 %}{{ s.join(['a']*1000) }}",
        "{% set l=range(9999)|list %}{% for i in range(99999) %}{% set q=l|sort %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{{ 'a' * 10**10 }}",
        "{{ [1] * 10**10 }}",
        "{{ '%999999d' % 1 }}{{ '%999999999d' % 1 }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'a'.zfill(99999999999) }}",
        "{{ 'a'|center(99999999999) }}",
        "{{ 'a\\n'|indent(10**9) }}",
        "{{ ('\\t'*10000).expandtabs(1048576) }}",
        "{{ [1]|slice(999999999999)|list }}",
        "{{ [1]|batch(99999999999, 0)|list }}",
        "{% set a=[1] %}{% for i in range(99) %}{% set _=a.extend(a) %}{% endfor %}",
        "{% set d=dict() %}{% for i in range(99999) %}{% set _=d.update({i: 1}) %}{% endfor %}",
        "{% set s='\\x01'*10000 %}{% for i in range(9999) %}{% set q=[s]|string %}{% endfor %}",
        "{{ range(1000000) }}",
        "{{ 10**100 }}",
    ] {
        assert_eq!(outcome(source), Err(ErrorKind::Limit), "{source}");
    }
}

#[test]
fn recursion_ends() {
    for source in [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(x) %}{{ m((((((((((x)))))))))) }}{% endmacro %}{{ m(1) }}",
        "{% macro m() %}{% call m() %}{% endcall %}{{ caller }}{% endmacro %}{% call m() %}{% endcall %}",
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    ] {
        assert_eq!(outcome(source), Err(ErrorKind::Limit), "{source}");
    }
}

#[test]
fn numbers_at_the_edges_do_not_panic() {
    let huge = i128::MAX;
    for source in [
        format!("{{{{ (-{huge} - 1) // -1 }}}}"),
        format!("{{{{ -(-{huge} - 1) }}}}"),
        format!("{{{{ (-{huge} - 1)|abs }}}}"),
        format!("{{{{ range({huge}, -5) }}}}"),
        format!("{{{{ [1,2][{huge}::-{huge}] }}}}{{{{ [1][-{huge}] }}}}{{{{ 'ab'[-{huge}:{huge}] }}}}"),
        format!("{{{{ -{huge} in range(5) }}}}{{{{ {huge} in range(-5, 5) }}}}"),
        format!("{{{{ 'a'.center({huge}) }}}}"),
        format!("{{{{ 'a'.find('a', -{huge}, {huge}) }}}}{{{{ [1].insert({huge}, 2) }}}}{{{{ [1].pop(-{huge}) }}}}"),
        format!("{{{{ 1.5|round({huge}) }}}}{{{{ 1.5|round(-{huge}) }}}}{{{{ {huge}|round(-5) }}}}"),
        format!("{{{{ 'x'|truncate({huge}) }}}}{{{{ 'x'|wordwrap({huge}) }}}}{{{{ '%*d' % (-{huge}, 1) }}}}"),
        "{{ 1e300|int }}{{ 'inf'|float|int }}{{ 'nan'|float|int }}{{ 1e300 // 1e-300 }}".to_string(),
        "{{ [3, 'nan'|float, 1]|sort }}{{ ['nan'|float, 1]|max }}{{ {'nan'|float: 1} }}".to_string(),
    ] {
        // A text or an error, whatever Python would say.
        let _ = outcome(&source);
    }
}

#[test]
fn a_template_takes_a_second_at_most() {
    let began = std::time::Instant::now();
    let source =
        "{% set s='a'*5000000 %}{% for i in range(99999) %}{{ s.count('ab') }}{% endfor %}";
    let error = Template::new(source).unwrap().render(&[]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit);
    // Of a quiet machine and a release build; this only tells it from minutes.
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}
