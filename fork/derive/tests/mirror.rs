//! The rule on small made-up sources.

use candle_derive::mirror::{mirror, rename, FileRules, Mirrored};
use candle_derive::strip::without_rocm;

fn run_with(text: &str, rules: FileRules) -> (String, Mirrored) {
    let file = syn::parse_file(text).expect("the test's source parses");
    let mut outcome = mirror(text, &file, text.parse().expect("lexes"), rules);
    let derived = std::mem::take(&mut outcome.edits).apply(text);
    (derived, outcome)
}

/// Derives, and checks what must hold of every derivation: nothing is left over, the outcome parses, and without what
/// the feature adds it is the original.
fn run(text: &str) -> String {
    let (derived, outcome) = run_with(text, FileRules::default());
    assert!(
        outcome.leftovers.is_empty(),
        "left over: {:?}",
        outcome.leftovers
    );
    let without = without_rocm(&derived).expect("the derived text parses");
    assert_eq!(without, text, "{derived}");
    derived
}

#[test]
fn variants_get_a_twin() {
    let derived = run("enum Device {\n    Cpu,\n    /// Apple's.\n    Metal(MetalDevice),\n}\n");
    assert!(
        derived.contains("#[cfg(feature = \"rocm\")]\n    /// Apple's.\n    Rocm(RocmDevice),\n"),
        "{derived}"
    );
}

#[test]
fn arms_get_a_twin_with_their_text_renamed() {
    let derived = run("fn f(d: &Device) -> u8 {\n    match d {\n        Device::Cpu => 0,\n        Device::Metal(m) => m.metal_id( /* as is */ )\n    }\n}\n");
    assert!(derived.contains("#[cfg(feature = \"rocm\")]\n        Device::Rocm(m) => m.rocm_id( /* as is */ ),\n        Device::Metal(m)"), "{derived}");
}

#[test]
fn tuple_patterns_and_guards_are_kept() {
    let derived = run("fn f(p: (S, S)) -> bool { match p { (S::Metal(a), S::Metal(b)) if a > 0 => { a == b } _ => false } }");
    assert!(
        derived.contains("(S::Rocm(a), S::Rocm(b)) if a > 0 => { a == b }"),
        "{derived}"
    );
}

#[test]
fn of_an_or_pattern_only_the_metal_alternative_is_gated() {
    let derived =
        run("fn f(d: D) -> bool { match d { D::Cuda(_) | D::Metal(_) => true, D::Cpu => false } }");
    assert!(
        derived.contains("#[cfg(feature = \"rocm\")]\nD::Rocm(_) => true,"),
        "{derived}"
    );
    assert_eq!(derived.matches("D::Cuda").count(), 1);
}

#[test]
fn nested_matches_are_found_in_arms_that_do_not_mention_metal() {
    let derived = run("fn f(a: D, b: D) -> u8 { match a { D::Cpu => match b { D::Metal(_) => 1, _ => 2 }, _ => 3 } }");
    assert_eq!(derived.matches("D::Rocm(_) => 1,").count(), 1, "{derived}");
}

#[test]
fn trait_methods_get_a_twin() {
    let derived = run("trait Op {\n    /// On a metal device.\n    fn metal_fwd(&self, s: &MetalStorage) -> MetalStorage { todo(s) }\n}\n");
    assert!(derived.contains("/// On a rocm device.\n    fn rocm_fwd(&self, s: &RocmStorage) -> RocmStorage { todo(s) }"), "{derived}");
}

#[test]
fn methods_behind_the_feature_call_our_overlay() {
    let text = "impl Op for RotaryEmbI {\n    fn cuda_fwd(&self) { struct S; impl Map for S {} }\n    #[cfg(feature = \"metal\")]\n    fn metal_fwd(\n        &self,\n        s: &MetalStorage,\n        l: &Layout,\n    ) -> R<MetalStorage> {\n        metal_only(s, l)\n    }\n}\n";
    let derived = run(text);
    assert!(
        derived.contains("#[cfg(feature = \"rocm\")]\n    fn rocm_fwd("),
        "{derived}"
    );
    assert!(
        derived.contains("rocm::rotary_emb_i(self, s, l)"),
        "{derived}"
    );
    assert!(!derived.contains("rocm_only"), "{derived}");
}

#[test]
fn imports_bring_rocm_beside_metal() {
    let derived = run("use crate::{bail, CpuStorage, MetalStorage, Result};\n");
    assert!(
        derived
            .starts_with("#[cfg(feature = \"rocm\")]\nuse crate::RocmStorage;\nuse crate::{bail,"),
        "{derived}"
    );
}

#[test]
fn gated_items_are_copied_and_negated_ones_are_not() {
    let derived = run("#[cfg(feature = \"metal\")]\npub mod metal_backend;\n#[cfg(not(feature = \"metal\"))]\npub use dummy::MetalDevice;\n#[cfg(feature = \"metal\")]\npub use metal_backend::MetalDevice;\n");
    assert!(
        derived.contains("#[cfg(feature = \"rocm\")]\npub mod rocm_backend;"),
        "{derived}"
    );
    assert!(
        derived.contains("pub use rocm_backend::RocmDevice;"),
        "{derived}"
    );
    assert!(!derived.contains("dummy::Rocm"), "{derived}");
}

#[test]
fn macro_calls_that_declare_methods_get_a_twin() {
    let derived = run("impl<C: Op1> OpN for C {\n    forward!(cpu_fwd, CpuStorage);\n    forward!(metal_fwd, MetalStorage);\n}\n");
    assert!(
        derived.contains("#[cfg(feature = \"rocm\")]\n    forward!(rocm_fwd, RocmStorage);"),
        "{derived}"
    );
}

#[test]
fn gated_arms_take_the_recipes_body() {
    let text = "fn f(d: &Device) -> S {\n    match d {\n        #[cfg(feature = \"metal\")]\n        Device::Metal(device) => { apples_only(device) }\n        #[cfg(not(feature = \"metal\"))]\n        Device::Metal(_) => fail(),\n    }\n}\n";
    let rules = FileRules {
        arm_bodies: &["device.load()"],
        ..Default::default()
    };
    let (derived, outcome) = run_with(text, rules);
    assert_eq!(outcome.arm_bodies_used, 1);
    assert!(
        derived.contains("Device::Rocm(device) => device.load(),"),
        "{derived}"
    );
    // Without a body the arm is reported with its lines.
    assert_eq!(run_with(text, FileRules::default()).1.leftovers, [3, 4]);
}

#[test]
fn what_no_rule_covers_is_reported_with_its_line() {
    let text = "fn f(d: &D) -> bool {\n    let x = 1;\n    d.is_metal() && x > 0\n}\n";
    assert_eq!(run_with(text, FileRules::default()).1.leftovers, [3]);
    let excused = FileRules {
        without_twin: &["is_metal", "never_met"],
        ..Default::default()
    };
    let outcome = run_with(text, excused).1;
    assert!(outcome.leftovers.is_empty());
    assert_eq!(outcome.without_twin_hits, [1, 0]);
}

#[test]
fn comments_and_prose_are_no_mentions() {
    run("//! Cpu, Cuda or Metal.\n// metal\n/// Metal\nfn f() -> &'static str { \"made of metal\" }\n");
}

#[test]
fn renaming_keeps_the_rest() {
    assert_eq!(
        rename("QMetalStorage metal:{gpu_id} métal"),
        "QRocmStorage rocm:{gpu_id} métal"
    );
}
