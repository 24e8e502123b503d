//! Streams and events.

use super::*;

pub fn streams_and_events(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("streams");
    let mut milliseconds = -1.0;
    // SAFETY: results are written, or what is passed is refused.
    unsafe {
        let mut out = null_mut();
        side.says("nowhere", (hip.hipStreamCreateWithFlags)(null_mut(), 0));
        side.says("unknown flags", (hip.hipStreamCreateWithFlags)(&mut out, 2));
        for (stream, what) in [(null_mut(), "default"), (NOBODY, "nobody's")] {
            side.says(&format!("query {what}"), (hip.hipStreamQuery)(stream));
            side.says(&format!("wait {what}"), (hip.hipStreamSynchronize)(stream));
            side.says(&format!("destroy {what}"), (hip.hipStreamDestroy)(stream));
        }
        // `hipStreamLegacy` and `hipStreamPerThread`.
        for named in [1, 2] {
            let status = (hip.hipStreamSynchronize)(named as *mut c_void);
            side.says(&format!("wait stream {named}"), status);
        }
        let stream = side.stream(NON_BLOCKING);
        let event = side.event(0);
        side.says("query an event", (hip.hipStreamQuery)(event));
        side.says("query", (hip.hipStreamQuery)(stream));

        side.case("events");
        side.says("nowhere", (hip.hipEventCreateWithFlags)(null_mut(), 0));
        // Blocking, untimed, between processes, with and without time, fences of three kinds, and two of them.
        for flags in [
            1,
            2,
            3,
            4,
            6,
            8,
            0x2000_0000,
            0x4000_0000,
            0x8000_0000,
            0xc000_0000,
            0x6000_0000,
        ] {
            let mut made = null_mut();
            let status = (hip.hipEventCreateWithFlags)(&mut made, flags);
            side.says(&format!("flags {flags:#x}"), status);
        }
        let (other, untimed) = (side.event(0), side.event(UNTIMED));
        side.says("query new", (hip.hipEventQuery)(event));
        side.says("wait new", (hip.hipEventSynchronize)(event));
        let elapsed = |ms, from, to, what: &str| {
            side.says(what, (hip.hipEventElapsedTime)(ms, from, to));
        };
        elapsed(&mut milliseconds, event, other, "time between new ones");
        side.says("record", (hip.hipEventRecord)(event, stream));
        elapsed(&mut milliseconds, event, other, "time to a new one");
        side.says("record other", (hip.hipEventRecord)(other, stream));
        side.says("wait", (hip.hipEventSynchronize)(other));
        side.says("query done", (hip.hipEventQuery)(event));
        elapsed(&mut milliseconds, event, other, "time");
        side.note("is forward", milliseconds >= 0.0);
        elapsed(&mut milliseconds, other, event, "time back");
        side.note("is backward", milliseconds <= 0.0);
        elapsed(&mut milliseconds, event, event, "time of one");
        side.note("is nothing", milliseconds == 0.0);
        elapsed(null_mut(), event, other, "time nowhere");
        side.says("record untimed", (hip.hipEventRecord)(untimed, stream));
        common::ok((hip.hipEventSynchronize)(untimed));
        elapsed(&mut milliseconds, event, untimed, "time of an untimed one");
        elapsed(&mut milliseconds, event, NOBODY, "time of nobody's");
        side.says("record nobody's", (hip.hipEventRecord)(NOBODY, stream));
        side.says("record on nobody's", (hip.hipEventRecord)(event, NOBODY));
        side.says("record on default", (hip.hipEventRecord)(event, null_mut()));
        side.says("query nobody's", (hip.hipEventQuery)(NOBODY));
        side.says("query nothing", (hip.hipEventQuery)(null_mut()));
        let wait = |on, event, flags, what: &str| {
            side.says(what, (hip.hipStreamWaitEvent)(on, event, flags));
        };
        wait(stream, event, 0, "stream waits");
        wait(stream, event, 1, "with flags");
        wait(stream, NOBODY, 0, "for nobody's");
        wait(NOBODY, event, 0, "nobody's waits");
        wait(null_mut(), event, 0, "default waits");
        wait(stream, side.event(0), 0, "for a new one");
        side.says("destroy", (hip.hipEventDestroy)(event));
        side.says("destroy again", (hip.hipEventDestroy)(event));
        side.says("query destroyed", (hip.hipEventQuery)(event));
        side.says("destroy stream", (hip.hipStreamDestroy)(stream));
        side.says("destroy stream again", (hip.hipStreamDestroy)(stream));
        side.says("query is no error", (hip.hipGetLastError)());
    }
}
