"""ext-proc and gRPC health messages by hand, so that the tests owe nothing to the code they test.

Field numbers: envoy/service/ext_proc/v3/external_processor.proto, grpc/health/v1/health.proto.
"""
import dataclasses
import struct

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
HEALTH = "/grpc.health.v1.Health/"
EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED = range(5)
DESTINATION = "x-gateway-destination-endpoint"
REQUEST_FIELDS = {"request_headers": 2, "response_headers": 3, "request_body": 4, "response_body": 5,
                  "request_trailers": 6, "response_trailers": 7}
ANSWER_FIELDS = {1: "request_headers", 2: "response_headers", 3: "request_body", 4: "response_body",
                 5: "request_trailers", 6: "response_trailers", 7: "immediate"}


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field, value):
    return varint(field << 3) + varint(value)


def data(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def decode(message):
    """{field: [values]}: integers, bytes; doubles and fixed numbers as bytes."""
    fields, at = {}, 0

    def read():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = read()
        kind = tag & 7
        if kind == 0:
            value = read()
        else:
            size = {1: 8, 5: 4}.get(kind) or read()
            value = bytes(message[at:at + size])
            assert len(value) == size, "a field longer than its message"
            at += size
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def frame(message, flag=0):
    return struct.pack(">BI", flag, len(message)) + message


def struct_value(value):
    """google.protobuf.Value."""
    if value is None:
        return number(1, 0)
    if isinstance(value, bool):
        return number(4, int(value))
    if isinstance(value, (int, float)):
        return varint(2 << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, str):
        return data(3, value)
    if isinstance(value, dict):
        return data(5, struct_message(value))
    return data(6, b"".join(data(1, struct_value(one)) for one in value))


def struct_message(fields):
    return b"".join(data(1, data(1, key) + data(2, struct_value(value))) for key, value in fields.items())


def read_value(message):
    fields = decode(message)
    if 2 in fields:
        return struct.unpack("<d", fields[2][0])[0]
    if 3 in fields:
        return fields[3][0].decode()
    if 4 in fields:
        return bool(fields[4][0])
    if 5 in fields:
        return read_struct(fields[5][0])
    if 6 in fields:
        return [read_value(one) for one in decode(fields[6][0]).get(1, [])]
    return None


def read_struct(message):
    out = {}
    for entry in decode(message).get(1, []):
        fields = decode(entry)
        out[fields[1][0].decode()] = read_value(fields[2][0])
    return out


def header_map(headers):
    pairs = headers.items() if isinstance(headers, dict) else headers
    return b"".join(data(1, data(1, key) + data(3, value)) for key, value in pairs)


def extras(metadata=None, modes=None):
    """metadata_context {namespace: {…}} and protocol_config (request mode, response mode)."""
    namespaces = b"".join(data(1, data(1, name) + data(2, struct_message(fields)))
                          for name, fields in (metadata or {}).items())
    out = data(8, namespaces)
    if modes:
        out += data(11, b"".join(number(i + 1, mode) for i, mode in enumerate(modes) if mode))
    return out


def headers_message(kind, headers, end_of_stream=False, **more):
    content = data(1, header_map(headers)) + (number(3, 1) if end_of_stream else b"")
    return data(REQUEST_FIELDS[kind], content) + extras(**more)


def body_message(kind, body, end_of_stream=False, **more):
    content = (data(1, body) if body else b"") + (number(2, 1) if end_of_stream else b"")
    return data(REQUEST_FIELDS[kind], content) + extras(**more)


def trailers_message(kind, trailers=(), **more):
    return data(REQUEST_FIELDS[kind], data(1, header_map(trailers))) + extras(**more)


@dataclasses.dataclass
class Answer:
    """One ProcessingResponse."""
    kind: str
    set_headers: list = dataclasses.field(default_factory=list)  # (key, value)
    remove_headers: list = dataclasses.field(default_factory=list)
    clear_route_cache: bool = False
    body: bytes = None           # of a plain body mutation or an immediate response
    streamed: bytes = None       # of a streamed_response
    end_of_stream: bool = False  # of a streamed_response
    replace: bool = False        # CONTINUE_AND_REPLACE
    status: int = None           # of an immediate response
    metadata: dict = dataclasses.field(default_factory=dict)
    mode_override: bytes = None

    def header(self, name):
        values = [value for key, value in self.set_headers if key.lower() == name]
        return values[-1] if values else None

    @property
    def destination(self):
        return self.header(DESTINATION)


def read_mutation(answer, message):
    fields = decode(message)
    for option in fields.get(1, []):
        header = decode(decode(option)[1][0])
        assert not (header.get(2) and header.get(3)), "both value and raw_value"
        value = (header.get(3) or header.get(2) or [b""])[0]
        answer.set_headers.append((header[1][0].decode(), value.decode("latin-1")))
    answer.remove_headers += [name.decode() for name in fields.get(2, [])]


def read_answer(message):
    fields = decode(message)
    kinds = [field for field in ANSWER_FIELDS if field in fields]
    assert len(kinds) == 1, f"{len(kinds)} answers in one message"
    answer = Answer(ANSWER_FIELDS[kinds[0]])
    content = decode(fields[kinds[0]][0])
    if 8 in fields:
        answer.metadata = read_struct(fields[8][0])
    answer.mode_override = fields.get(9, [None])[0]
    if answer.kind == "immediate":
        answer.status = decode(content[1][0])[1][0]
        answer.body = content.get(3, [b""])[0]
        for mutation in content.get(2, []):
            read_mutation(answer, mutation)
    elif answer.kind.endswith("trailers"):
        for mutation in content.get(1, []):
            read_mutation(answer, mutation)
    elif 1 in content:
        common = decode(content[1][0])
        answer.replace = bool(common.get(1, [0])[0])
        answer.clear_route_cache = bool(common.get(5, [0])[0])
        for mutation in common.get(2, []):
            read_mutation(answer, mutation)
        for mutation in common.get(3, []):
            body = decode(mutation)
            if 1 in body:
                answer.body = body[1][0]
            if 3 in body:
                piece = decode(body[3][0])
                answer.streamed = piece.get(1, [b""])[0]
                answer.end_of_stream = bool(piece.get(2, [0])[0])
    return answer
