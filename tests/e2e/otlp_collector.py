"""A collector for tests: takes OTLP over HTTP, keeps the spans. Reads the few protobuf fields it needs by hand."""
import http.server
import struct
import threading


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data):
    """{number: [value, ...]} of one message; numbers for varints and fixed widths, bytes for the rest."""
    out, at = {}, 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 1:
            value, at = data[at:at + 8], at + 8
        elif kind == 2:
            size, at = _varint(data, at)
            value, at = data[at:at + size], at + size
        elif kind == 5:
            value, at = data[at:at + 4], at + 4
        else:
            raise ValueError(f"wire type {kind}")
        out.setdefault(number, []).append(value)
    return out


def _any(data):
    fields = _fields(data)
    if 1 in fields:
        return fields[1][0].decode()
    if 2 in fields:
        return bool(fields[2][0])
    if 3 in fields:
        return fields[3][0] - (1 << 64) if fields[3][0] >> 63 else fields[3][0]
    if 4 in fields:
        return struct.unpack("<d", fields[4][0])[0]
    if 5 in fields:
        return [_any(value) for value in _fields(fields[5][0]).get(1, [])]
    return None


def _attributes(pairs):
    out = {}
    for pair in pairs:
        fields = _fields(pair)
        out[fields[1][0].decode()] = _any(fields[2][0])
    return out


def spans_of(data):
    """The spans of an ExportTraceServiceRequest as dicts."""
    out = []
    for resource_spans in map(_fields, _fields(data).get(1, [])):
        resource = _attributes(_fields(resource_spans[1][0]).get(1, []))
        for scope_spans in map(_fields, resource_spans.get(2, [])):
            scope = _fields(scope_spans[1][0])
            for span in map(_fields, scope_spans.get(2, [])):
                status = _fields(span[15][0]) if 15 in span else {}
                out.append({
                    "resource": resource,
                    "scope": scope[1][0].decode(),
                    "trace_id": span[1][0].hex(),
                    "span_id": span[2][0].hex(),
                    "tracestate": span.get(3, [b""])[0].decode(),
                    "parent_id": span.get(4, [b""])[0].hex(),
                    "name": span[5][0].decode(),
                    "kind": span[6][0],
                    "start": struct.unpack("<Q", span[7][0])[0],
                    "end": struct.unpack("<Q", span[8][0])[0],
                    "attributes": _attributes(span.get(9, [])),
                    "failed": status.get(3, [0])[0] == 2,
                    "error": status.get(2, [b""])[0].decode(),
                })
    return out


class Collector:
    """`tls`: a server-side SSLContext."""

    def __init__(self, tls=None):
        collector = self
        self.spans, self.lock, self.answers = [], threading.Lock(), []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                data = self.rfile.read(int(self.headers["content-length"]))
                status = collector.answers.pop(0) if collector.answers else 200
                if status == 200:
                    with collector.lock:
                        collector.spans += spans_of(data)
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_):
                collector.broken += 1

        self.server, self.broken = Server(("127.0.0.1", 0), Handler), 0
        if tls:
            # The handshake belongs to the connection's own thread.
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_address[1]}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def trace(self, trace_id):
        with self.lock:
            return [span for span in self.spans if span["trace_id"] == trace_id]

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
