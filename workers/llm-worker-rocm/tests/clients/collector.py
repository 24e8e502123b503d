"""A collector of traces: takes OTLP over HTTP and keeps the spans."""

import http.server
import threading

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(item) for item in any_value.array_value.values]
    return getattr(any_value, kind)


def attributes(pairs):
    return {pair.key: value(pair.value) for pair in pairs}


class Collector:
    def __init__(self):
        self.spans = []
        self.resources = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                batch = ExportTraceServiceRequest()
                batch.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                for resource in batch.resource_spans:
                    collector.resources.append(attributes(resource.resource.attributes))
                    for scope in resource.scope_spans:
                        collector.spans.extend(scope.spans)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def of_trace(self, trace_id):
        """The spans of a trace by their names."""
        return {span.name: span for span in self.spans if span.trace_id.hex() == trace_id}
