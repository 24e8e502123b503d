//! Answers that would make the findings go away without repairing anything.

use super::server::{Script, Server};
use super::*;
use rocm_port::repair::state::{End, Verdict};

/// Each is refused, said to the model, and leaves the text as it was.
#[test]
fn every_way_to_cheat_is_refused_and_told() {
    let include = "#include \"port/cuda.h\"";
    let head = "extern \"C\" __global__ void twice(float *y, const float *x, int n) {";
    let body =
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = change(x[i]);";
    let after_include = |line: &str| diff(include, &format!("{include}\n{line}"));
    let before_return = |code: &str| diff("    return v;", &format!("    {code}\n    return v;"));
    let other_file =
        "```diff\n--- a/cases.toml\n+++ b/cases.toml\n@@ -1 +1 @@\n-rel = 1e-5\n+rel = 1e5\n```";
    let two_files = format!(
        "{}\n{}",
        right().replace("```\n", ""),
        other_file.replace("```diff\n", "")
    );
    let deleted = "```diff\n--- a/twice.hip\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n```";
    let answers = [
        (other_file.to_string(), "only the kernel file"),
        (two_files, "only the kernel file"),
        (deleted.to_string(), "creates, deletes"),
        (after_include("#include <stdlib.h>"), "only bodies"),
        (after_include("#define float double"), "only bodies"),
        (after_include("#define __syncthreads()"), "only bodies"),
        (after_include("#if __HIP_SIM__"), "HIP_SIM"),
        (after_include("#line 7"), "only bodies"),
        (after_include("#pragma GCC optimize(\"O0\")"), "is new"),
        (after_include("static int hook = 1;"), "only bodies"),
        (
            after_include("__attribute__((constructor)) void hook() {}"),
            "__attribute__",
        ),
        (before_return("asm(\"nop\");"), "may not be added"),
        (
            before_return("char c[3] = {105, 100, 0}; system(c);"),
            "system",
        ),
        (before_return("fopen(0, 0);"), "fopen"),
        (
            before_return("if (warpSize == 64) return v + 1;"),
            "asks what",
        ),
        (before_return("((void (*)())16)();"), "may not be called"),
        (before_return("v = *(float *)getenv(0);"), "getenv"),
        (diff(head, &head.replace(", int n", "")), "only bodies"),
        (diff(body, "    // nothing"), "is empty"),
        (
            diff(
                "    if (i < n) y[i] = change(x[i]);",
                "    if (i < n) y[i] = 1;",
            ),
            "use its parameter x",
        ),
    ];
    let count = answers.len();
    let scripts = answers
        .iter()
        .map(|(answer, _)| Script::Whole(answer.clone()));
    let server = Server::start(scripts.collect());
    let mut judge = Judge::new();
    let state = repair(&endpoint(&server), &mut judge, count);
    let texts = (state.best.as_str(), state.current.as_str());
    assert_eq!(
        (state.end.clone(), texts),
        (Some(End::Rounds), (FILE, FILE))
    );
    // Nothing of it was compiled.
    assert_eq!(judge.seeds.len(), 1);
    for (at, (answer, why)) in answers.iter().enumerate() {
        let verdict = &state.steps[at + 1].verdict;
        assert!(
            matches!(verdict, Verdict::Refused(said) if said.contains(why)),
            "{answer}: {verdict:?}"
        );
        if at + 1 < count {
            let told = server.asked(at + 1);
            assert!(told.contains("was refused and not applied"), "{told}");
        }
    }
}
