//! Modules and launches.

use super::*;

pub fn modules(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("modules");
    let stream = side.stream(NON_BLOCKING);
    let numbers = side.malloc(1024);
    let mut out = null_mut();
    // SAFETY: results are written, what is passed is whole, or refused before more of it is read.
    unsafe {
        let load = |bytes: &[u8], what: &str| {
            let mut module = null_mut();
            side.says(
                what,
                (hip.hipModuleLoadData)(&mut module, bytes.as_ptr().cast()),
            );
        };
        load(b"no code object at all", "load text");
        load(&[0; 64], "load zeros");
        let nowhere = (hip.hipModuleLoadData)(null_mut(), side.object.as_ptr().cast());
        side.says("load nowhere", nowhere);
        side.says(
            "load nothing",
            (hip.hipModuleLoadData)(&mut out, std::ptr::null()),
        );
        let module = side.module();
        let get = |module, name: *const c_char, what: &str| {
            let mut function = null_mut();
            side.says(
                what,
                (hip.hipModuleGetFunction)(&mut function, module, name),
            );
        };
        get(module, c"absent".as_ptr(), "no such kernel");
        get(module, std::ptr::null(), "no name");
        get(module, c"".as_ptr(), "an empty name");
        get(module, c"\xff".as_ptr(), "a name that is no text");
        get(NOBODY, c"nothing".as_ptr(), "of nobody's");
        let status = (hip.hipModuleGetFunction)(null_mut(), module, c"nothing".as_ptr());
        side.says("nowhere", status);
        let (add, nothing) = (
            side.function(module, "scramble"),
            side.function(module, "nothing"),
        );
        common::ok((hip.hipMemsetAsync)(numbers, 0, 1024, stream));
        side.says("launch", side.add(add, numbers, 64, 5, stream));
        side.says(
            "launch on default",
            side.add(add, numbers, 32, 1, null_mut()),
        );
        common::ok((hip.hipStreamSynchronize)(null_mut()));
        side.note("added", side.words(numbers, 65, stream));
        let launch = |function, blocks, block, lds, stream, what: &str| {
            side.says(
                what,
                side.launch(function, blocks, block, lds, stream, null_mut()),
            );
        };
        let (one, wave) = ([1; 3], [64, 1, 1]);
        launch(nothing, one, wave, 0, stream, "without arguments");
        launch(add, one, wave, 0, stream, "arguments are missing");
        launch(nothing, [0, 1, 1], wave, 0, stream, "no blocks");
        launch(nothing, [1, 1, 0], wave, 0, stream, "no blocks in depth");
        launch(nothing, one, [0, 1, 1], 0, stream, "no threads");
        launch(
            nothing,
            one,
            [65, 1, 1],
            0,
            stream,
            "more threads than its bounds",
        );
        launch(
            nothing,
            one,
            [1025, 1, 1],
            0,
            stream,
            "more threads than a block has",
        );
        launch(
            nothing,
            one,
            [1024, 1024, 1024],
            0,
            stream,
            "far more threads",
        );
        launch(nothing, one, wave, 1 << 20, stream, "too much LDS");
        launch(nothing, one, wave, u32::MAX, stream, "far too much LDS");
        launch(NOBODY, one, wave, 0, stream, "nobody's kernel");
        launch(nothing, one, wave, 0, NOBODY, "on nobody's stream");
        let mut params: [*mut c_void; 2] = [null_mut(); 2];
        let status = side.launch(add, one, wave, 0, stream, params.as_mut_ptr());
        side.says("arguments that are nowhere", status);
        common::ok((hip.hipSetDevice)(1));
        launch(
            nothing,
            one,
            wave,
            0,
            null_mut(),
            "on another device's stream",
        );
        common::ok((hip.hipSetDevice)(0));
        common::ok((hip.hipStreamSynchronize)(stream));
        side.says("unload", (hip.hipModuleUnload)(module));
        side.says("unload again", (hip.hipModuleUnload)(module));
        launch(nothing, one, wave, 0, stream, "of an unloaded module");
        get(module, c"nothing".as_ptr(), "of an unloaded one");
        side.says("free", (hip.hipFree)(numbers));
        common::ok((hip.hipStreamDestroy)(stream));
    }
}
