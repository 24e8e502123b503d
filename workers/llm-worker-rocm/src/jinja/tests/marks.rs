//! What came from outside stays marked.

use super::render;
use serde_json::json;

/// The text with brackets around what came from outside.
fn marked(source: &str) -> String {
    let variables =
        json!({"x": "ab cd", "l": ["p", "q"], "d": {"k": "v\"w"}, "u": "éß", "own": "OWN"});
    let rendered = render(source, &variables).unwrap();
    let mut out = String::new();
    let mut at = 0;
    for range in &rendered.input {
        out.push_str(&rendered.text[at..range.start]);
        out.push('[');
        out.push_str(&rendered.text[range.clone()]);
        out.push(']');
        at = range.end;
    }
    out + &rendered.text[at..]
}

#[test]
fn marks_survive_what_templates_do() {
    for (source, text) in [
        ("<{{ x }}>{{ own }}", "<[ab cd]>OWN"),
        (
            "{{ '<' + x + '>' }}{{ '<' ~ x ~ '>' }}",
            "<[ab cd]><[ab cd]>",
        ),
        (
            "{{ (' ' + x + ' ')|trim }}.{{ x.strip('ad') }}",
            "[ab cd].[b c]",
        ),
        ("{{ ('<' ~ x ~ '>').split(' ')|join('/') }}", "<[ab]/[cd]>"),
        (
            "{{ ('<' ~ x)[2:4] }}{{ ('<' ~ x)[0] }}{{ ('<' ~ x)[::-1] }}",
            "[b ]<[dc ba]<",
        ),
        (
            "{{ x.upper() }}{{ ('a' ~ u)|upper }}{{ ('ab' ~ x)|title }}",
            "[AB CD]A[ÉSS]Ab[ab Cd]",
        ),
        (
            "{{ x|replace('b', '--') }}{{ 'a-b'.replace('-', x) }}",
            "[a]--[ cd]a[ab cd]b",
        ),
        (
            "{{ '%s=%5s|' % (x, l[0]) }}{{ '{}:{}'.format(1, x) }}",
            "[ab cd]=    [p]|1:[ab cd]",
        ),
        (
            "{{ l }}{{ d }}{{ d|tojson }}",
            "['[p]', '[q]']{'[k]': '[v\"w]'}{\"[k]\": \"[v\\\"w]\"}",
        ),
        (
            "{% for k, v in d|items %}{{ k }}={{ v }}{% endfor %}",
            "[k]=[v\"w]",
        ),
        (
            "{% set t %}<{{ x }}>{% endset %}{{ t|length }}{{ t }}",
            "7<[ab cd]>",
        ),
        (
            "{% macro m(a) %}({{ a }}){% endmacro %}{{ m(x)|upper }}",
            "([AB CD])",
        ),
        (
            "{{ x.partition(' ')[2] }}{{ x.center(7, '*') }}{{ x|indent(2, true) }}",
            "[cd]*[ab cd]*  [ab cd]",
        ),
        (
            "{% for c in x[:2] %}{{ c }}-{% endfor %}{{ l|map('upper')|join }}",
            "[a]-[b]-[PQ]",
        ),
        (
            "{{ x == 'ab cd' }}{{ 'b' in x }}{{ x|length }}",
            "TrueTrue5",
        ),
    ] {
        assert_eq!(marked(source), text, "{source}");
    }
}
