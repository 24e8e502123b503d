//! Captures and graphs.

use super::*;

pub fn graphs(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("captures");
    let (stream, other) = (side.stream(NON_BLOCKING), side.stream(NON_BLOCKING));
    let blocking = side.stream(0);
    let module = side.module();
    let (add, nothing) = (
        side.function(module, "scramble"),
        side.function(module, "nothing"),
    );
    let (numbers, copied) = (side.malloc(256), side.malloc(256));
    let mut graph = null_mut();
    // SAFETY: results are written, memory outlives the graphs, or what is passed is refused.
    unsafe {
        let begin = |stream, mode, what: &str| {
            side.says(what, (hip.hipStreamBeginCapture)(stream, mode));
        };
        let end = |stream, what: &str| {
            let mut graph = NOBODY;
            let status = (hip.hipStreamEndCapture)(stream, &mut graph);
            side.says(what, status);
            side.note("a graph is made", !graph.is_null() && graph != NOBODY);
            graph
        };
        begin(null_mut(), RELAXED, "of the default stream");
        begin(NOBODY, RELAXED, "of nobody's");
        begin(stream, 3, "in no mode");
        begin(stream, -1, "in no mode either");
        end(stream, "end what was not begun");
        end(null_mut(), "end of the default stream");
        end(NOBODY, "end of nobody's");

        begin(stream, RELAXED, "begin");
        begin(stream, RELAXED, "begin again");
        side.says("fill", (hip.hipMemsetAsync)(numbers, 0, 256, stream));
        side.says("add", side.add(add, numbers, 64, 5, stream));
        let copy = |to, from, bytes, kind, what: &str| {
            side.says(what, (hip.hipMemcpyAsync)(to, from, bytes, kind, stream));
        };
        copy(copied, numbers, 256, WITHIN, "copy");
        // What is refused is refused at once, and is no part of the graph.
        copy(copied, numbers, 257, WITHIN, "copy past the end");
        copy(null_mut(), numbers, 16, HOST, "copy to nowhere");
        copy(copied, numbers, 16, DEVICE, "copy in a wrong direction");
        copy(copied, numbers, 16, 9, "copy in no direction");
        let status = (hip.hipMemsetAsync)(numbers, 0, 257, stream);
        side.says("fill past the end", status);
        for (block, lds, what) in [
            (65, 0, "too many threads"),
            (0, 0, "none"),
            (64, 1 << 20, "LDS"),
        ] {
            let status = side.launch(nothing, [1; 3], [block, 1, 1], lds, stream, null_mut());
            side.says(&format!("launch with {what}"), status);
        }
        let (fork, join) = (side.event(UNTIMED), side.event(UNTIMED));
        side.says("fork", (hip.hipEventRecord)(fork, stream));
        side.says("join in", (hip.hipStreamWaitEvent)(other, fork, 0));
        side.says("add beside", side.add(add, numbers, 32, 1, other));
        side.says("record", (hip.hipEventRecord)(join, other));
        side.says("join", (hip.hipStreamWaitEvent)(stream, join, 0));
        side.says("query in a capture", (hip.hipEventQuery)(fork));
        side.says("wait in a capture", (hip.hipEventSynchronize)(fork));
        end(other, "end of a stream that joined");
        side.says("end nowhere", (hip.hipStreamEndCapture)(stream, null_mut()));
        // Memory may come and go meanwhile.
        let meanwhile = side.malloc(64);
        side.says("free meanwhile", (hip.hipFree)(meanwhile));
        let made = end(stream, "end");
        side.says("query afterwards", (hip.hipEventQuery)(fork));

        side.case("graphs");
        let instantiate = |out, graph, what: &str| {
            let status = (hip.hipGraphInstantiate)(out, graph, null_mut(), null_mut(), 0);
            side.says(what, status);
        };
        let mut exec = null_mut();
        instantiate(&mut exec, NOBODY, "of nobody's");
        instantiate(null_mut(), made, "nowhere");
        instantiate(&mut exec, made, "instantiate");
        side.says("destroy", (hip.hipGraphDestroy)(made));
        side.says("destroy again", (hip.hipGraphDestroy)(made));
        side.says("launch", (hip.hipGraphLaunch)(exec, stream));
        side.says("launch again", (hip.hipGraphLaunch)(exec, stream));
        common::ok((hip.hipStreamSynchronize)(stream));
        side.says("launch on default", (hip.hipGraphLaunch)(exec, null_mut()));
        common::ok((hip.hipStreamSynchronize)(null_mut()));
        side.note("numbers", side.words(numbers, 64, stream));
        side.note("copied", side.words(copied, 64, stream));
        side.says("launch nobody's", (hip.hipGraphLaunch)(NOBODY, stream));
        side.says("launch on nobody's", (hip.hipGraphLaunch)(exec, NOBODY));
        begin(stream, RELAXED, "record a graph");
        side.says("in a graph", (hip.hipGraphLaunch)(exec, stream));
        let outer = end(stream, "end of it");
        side.says("destroy exec", (hip.hipGraphExecDestroy)(exec));
        side.says("destroy exec again", (hip.hipGraphExecDestroy)(exec));
        side.says("launch destroyed", (hip.hipGraphLaunch)(exec, stream));
        common::ok((hip.hipGraphDestroy)(outer));

        side.case("spoiled captures");
        for (what, call) in [
            (
                "stream",
                hip.hipStreamSynchronize as unsafe extern "C" fn(_) -> _,
            ),
            ("query", hip.hipStreamQuery),
        ] {
            begin(stream, RELAXED, what);
            side.says(&format!("{what} waits"), call(stream));
            side.says(
                &format!("{what} adds"),
                side.add(add, numbers, 64, 1, stream),
            );
            end(stream, &format!("{what} ends"));
        }
        begin(stream, RELAXED, "device");
        side.says("device waits", (hip.hipDeviceSynchronize)());
        end(stream, "device ends");
        begin(stream, RELAXED, "other streams");
        side.says("another waits", (hip.hipStreamSynchronize)(other));
        side.says("default waits", (hip.hipStreamSynchronize)(null_mut()));
        end(stream, "they spoil nothing");
        begin(blocking, RELAXED, "a blocking stream");
        side.says(
            "default fills",
            (hip.hipMemsetAsync)(numbers, 0, 4, null_mut()),
        );
        side.says("default waits", (hip.hipStreamSynchronize)(null_mut()));
        end(blocking, "it ends");
        // Two captures do not become one.
        begin(stream, RELAXED, "one");
        begin(other, RELAXED, "two");
        common::ok((hip.hipEventRecord)(fork, stream));
        side.says("merge", (hip.hipStreamWaitEvent)(other, fork, 0));
        end(stream, "one ends");
        end(other, "two ends");
        begin(other, RELAXED, "to be destroyed");
        side.says("destroy a captured stream", (hip.hipStreamDestroy)(other));
        side.says(
            "of what is gone",
            (hip.hipStreamEndCapture)(other, &mut graph),
        );
        common::ok((hip.hipDeviceSynchronize)());
        for memory in [numbers, copied] {
            common::ok((hip.hipFree)(memory));
        }
        for stream in [stream, blocking] {
            common::ok((hip.hipStreamDestroy)(stream));
        }
        common::ok((hip.hipModuleUnload)(module));
    }
}
