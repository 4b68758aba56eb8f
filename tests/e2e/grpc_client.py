"""A gRPC client that does exactly what a test says, frame by frame: one connection, no thread, on the h2 package."""
import contextlib
import socket
import ssl
import struct
import time

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

import extproc_messages as messages

INTERNAL_ERROR = h2.errors.ErrorCodes.INTERNAL_ERROR
CANCEL = h2.errors.ErrorCodes.CANCEL


class Stream:
    """One gRPC call, or with `plain` any HTTP exchange. `status` is set once trailers came, `reset` once RST_STREAM."""

    def __init__(self, connection, number, plain=False):
        self.connection, self.number, self.plain = connection, number, plain
        self.buffer, self.queue, self.raw = bytearray(), [], 0
        self.headers, self.status, self.status_text, self.reset, self.ended = None, None, "", None, False
        self.trailers = None

    def send(self, message, flag=0, end=False, seconds=10):
        self.send_bytes(messages.frame(message, flag), end, seconds)

    def send_bytes(self, data, end=False, seconds=10):
        """As the flow-control window allows; what comes meanwhile is kept for receive()."""
        view = memoryview(data)
        deadline = time.monotonic() + seconds
        while view:
            room = min(self.connection.h2.local_flow_control_window(self.number), self.connection.h2.max_outbound_frame_size)
            if room <= 0:
                assert time.monotonic() < deadline, "the server opens no window"
                self.connection.pump(0.05)
                self._still_open()
                continue
            self.connection.h2.send_data(self.number, bytes(view[:room]))
            view = view[room:]
            self.connection.flush()
        if end:
            self.half_close()

    def _still_open(self):
        if self.reset is not None or self.ended or self.connection.closed:
            raise ConnectionError("the server ended the stream")

    def half_close(self):
        self.connection.h2.end_stream(self.number)
        self.connection.flush()

    def send_trailers(self, trailers):
        self.connection.h2.send_headers(self.number, trailers, end_stream=True)
        self.connection.flush()

    def cancel(self, code=INTERNAL_ERROR):
        """Envoy ends every stream by RST_STREAM(INTERNAL_ERROR)."""
        with contextlib.suppress(h2.exceptions.StreamClosedError):
            self.connection.h2.reset_stream(self.number, code)
        self.connection.flush()
        self.connection.streams.pop(self.number, None)

    def receive(self, seconds=10):
        """The next message's bytes; None when the stream ended."""
        deadline = time.monotonic() + seconds
        while not self.queue:
            if self.ended or self.reset is not None or self.connection.closed:
                return None
            left = deadline - time.monotonic()
            assert left > 0, f"no message within {seconds} s"
            self.connection.pump(left)
        return self.queue.pop(0)

    def answer(self, seconds=10):
        message = self.receive(seconds)
        return None if message is None else messages.read_answer(message)

    def answers(self, until, seconds=10):
        """Answers up to the first for which until(answer) holds."""
        out = []
        while True:
            answer = self.answer(seconds)
            assert answer is not None, f"ended with status {self.status} {self.status_text}, reset {self.reset}, after {out}"
            out.append(answer)
            if until(answer):
                return out

    def is_silent(self, seconds=0.3):
        """Whether nothing comes for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.connection.pump(left)
            if self.queue or self.ended or self.reset is not None:
                return False
        return True

    def wait_for_end(self, seconds=10):
        deadline = time.monotonic() + seconds
        while not self.ended and self.reset is None and not self.connection.closed:
            left = deadline - time.monotonic()
            assert left > 0, f"the stream did not end within {seconds} s"
            self.connection.pump(left)
        return self.status

    def _take(self, data):
        self.raw += len(data)
        self.buffer += data
        while not self.plain and len(self.buffer) >= 5:
            size = struct.unpack(">I", self.buffer[1:5])[0]
            if len(self.buffer) < 5 + size:
                return
            self.queue.append(bytes(self.buffer[5:5 + size]))
            del self.buffer[:5 + size]

    def _take_headers(self, headers):
        fields = {key.decode() if isinstance(key, bytes) else key: value.decode() if isinstance(value, bytes) else value
                  for key, value in headers}
        if self.headers is None:
            self.headers = fields
        else:
            self.trailers = fields
        if "grpc-status" in fields:
            self.status, self.status_text = int(fields["grpc-status"]), fields.get("grpc-message", "")


class Connection:
    """One HTTP/2 connection. With read_ahead=False windows are opened only by acknowledge()."""

    def __init__(self, port, tls=False, window=65536, read_ahead=True, host="127.0.0.1", settings=None):
        raw = socket.create_connection((host, port), timeout=10)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
            raw = context.wrap_socket(raw, server_hostname="localhost")
            assert raw.selected_alpn_protocol() == "h2"
        self.socket, self.read_ahead = raw, read_ahead
        self.streams, self.closed, self.goaway, self.unread, self.pongs = {}, False, None, [], 0
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        codes = h2.settings.SettingCodes
        self.h2.local_settings = h2.settings.Settings(
            client=True, initial_values={codes.ENABLE_PUSH: 0, codes.INITIAL_WINDOW_SIZE: window, **(settings or {})})
        self.h2.initiate_connection()
        if read_ahead:
            self.h2.increment_flow_control_window(16 * 1024 * 1024)
        self.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.closed = True
        self.socket.close()

    def open(self, path=messages.PROCESS, headers=(), end=False, authority="epp"):
        number = self.h2.get_next_available_stream_id()
        self.h2.send_headers(number, [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", authority),
                                      ("te", "trailers"), ("content-type", "application/grpc"), *headers], end_stream=end)
        self.streams[number] = Stream(self, number)
        self.flush()
        return self.streams[number]

    def request(self, path, headers=(), end=False):
        """A plain POST; its answer collects in `buffer`."""
        number = self.h2.get_next_available_stream_id()
        self.h2.send_headers(number, [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test"), *headers],
                             end_stream=end)
        self.streams[number] = Stream(self, number, plain=True)
        self.flush()
        return self.streams[number]

    def call(self, path, message=b"", seconds=10):
        """A unary call: (message or None, grpc-status)."""
        stream = self.open(path)
        stream.send(message, end=True)
        stream.wait_for_end(seconds)
        return (stream.queue or [None])[0], stream.status

    def flush(self):
        data = self.h2.data_to_send()
        if data and not self.closed:
            try:
                self.socket.settimeout(10)
                self.socket.sendall(data)
            except (ConnectionError, ssl.SSLError):
                self.closed = True

    def acknowledge(self):
        """Opens the windows by all that was read so far (with read_ahead=False)."""
        for number, size in self.unread:
            with contextlib.suppress(h2.exceptions.StreamClosedError, h2.exceptions.StreamIDTooLowError):
                self.h2.acknowledge_received_data(size, number)
        self.unread = []
        self.flush()

    def pump(self, seconds):
        """Takes what the socket has, waiting for it up to so long."""
        if self.closed:
            return
        self.socket.settimeout(max(seconds, 0.001))
        try:
            data = self.socket.recv(1 << 20)
        except (TimeoutError, ssl.SSLWantReadError):
            return
        except ConnectionError:
            data = b""
        if not data:
            self.closed = True
            return
        try:
            events = self.h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            self.flush()
            self.closed = True
            raise
        for event in events:
            self._on_event(event)
        self.flush()

    def _on_event(self, event):
        if isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = event.error_code
            return
        if isinstance(event, h2.events.PingAckReceived):
            self.pongs += 1
        number = getattr(event, "stream_id", None)
        stream = self.streams.get(number)
        if isinstance(event, h2.events.DataReceived):
            if self.read_ahead:
                self.h2.acknowledge_received_data(event.flow_controlled_length, number)
            else:
                self.unread.append((number, event.flow_controlled_length))
            if stream:
                stream._take(event.data)
        if stream is None:
            return
        if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
            stream._take_headers(event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            stream.ended = True
        elif isinstance(event, h2.events.StreamReset):
            stream.reset = event.error_code
