"""An HTTP server for a few people: what they ask is bounded in size, number and time, and nothing of it is trusted."""
import contextlib
import http.server
import ipaddress
import json
import re
import socket
import socketserver
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple

from mlm.base import errors

BODY = 16 * 1024        # bytes of a question
SECONDS = 10.0          # in which a question must have come, and an answer must have gone
CONNECTIONS = 32        # at once
CLOSED = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
           "Cross-Origin-Resource-Policy": "same-origin"}
OURS = {http.HTTPStatus.NOT_IMPLEMENTED: http.HTTPStatus.METHOD_NOT_ALLOWED,  # what the library answers: what we do
        http.HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: http.HTTPStatus.BAD_REQUEST}


class Asked(NamedTuple):
    """What is asked: by GET a query, by POST also what its JSON says."""

    path: str
    query: dict[str, str]
    said: Any = None


class Answer(NamedTuple):
    """What is answered. policy: its Content-Security-Policy."""

    kind: str
    body: bytes
    policy: str = CLOSED


class Refused(Exception):
    """A question that is not answered, with its HTTP status and a line that says why."""

    def __init__(self, status: int, line: str):
        super().__init__(line)
        self.status = status


class Server(http.server.ThreadingHTTPServer):
    """Serves `answers`, by method and path a function of `Asked`, once it is activated.

    Those who name it by what is neither an address, localhost nor `host` are refused: a page of theirs may not speak
    for the reader of it (DNS rebinding). Raises OSError where the port is taken.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, answers: dict[tuple[str, str], Callable[[Asked], Answer]]):
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.answers, self.names = answers, {"localhost", host.lower(), socket.gethostname().lower()}
        self.free, self.until = threading.BoundedSemaphore(CONNECTIONS), {}
        super().__init__((host, port), Handler, bind_and_activate=False)
        try:
            self.server_bind()
        except OSError:
            self.server_close()
            raise

    def server_bind(self):
        socketserver.TCPServer.server_bind(self)  # http.server's would ask the network for a name
        self.server_name, self.server_port = self.server_address[:2]

    def where(self) -> str:
        """What to type into a browser."""
        host, port = self.server_address[:2]
        host = socket.gethostname() if ipaddress.ip_address(host).is_unspecified else host
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def process_request(self, request, client_address):
        if not self.free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.free.release()
            raise

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.until.pop(request, None)
            self.free.release()

    def service_actions(self):
        """Ends the waiting for what has not come in time, however slowly it drips."""
        for request, until in list(self.until.items()):
            if until < time.monotonic():
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RD)

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # which is the asker's doing
            complain(sys.exc_info()[1])


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection. Whatever is wrong with a question is answered in a line of JSON, and ends the connection where
    its end is not known for sure."""

    server: Server
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # of a question that names none: it is refused as others are, with a head
    timeout = SECONDS

    def handle_one_request(self):
        self.server.until[self.connection] = time.monotonic() + SECONDS
        super().handle_one_request()

    def finish(self):
        """Says that no more will come, and hears the rest: an answer is lost where the asker still speaks."""
        super().finish()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(0.5)
            until = time.monotonic() + 1
            while self.connection.recv(2 ** 16) and time.monotonic() < until:
                pass

    def do_GET(self):
        self._do(lambda: self._asked()._replace(said=None))

    do_HEAD = do_GET

    def do_POST(self):
        self._do(lambda: self._asked()._replace(said=self._said()))

    def _do(self, read):
        try:
            asked = read()
            self.server.until.pop(self.connection, None)
            method = "GET" if self.command == "HEAD" else self.command
            paths = {path for _, path in self.server.answers}
            if asked.path not in paths:
                raise Refused(404, "there is nothing here")
            if (method, asked.path) not in self.server.answers:
                raise Refused(405, f"{method} is not answered here")
            self._send(200, self.server.answers[method, asked.path](asked))
        except Refused as refused:
            self._send(refused.status, line(str(refused)))
        except OSError:
            raise
        except Exception as error:
            complain(error)
            self._send(500, line("the server failed, and says why where it was started"))

    def _asked(self) -> Asked:
        """What the head of the question says. Raises Refused, and the connection ends, where it is not plain."""
        self.close_connection, keep = True, self.close_connection
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or self.headers.defects:
            raise Refused(400, "expected one Host, and headers that can be read")
        if not self._known(hosts[0]):
            raise Refused(421, f"expected the address of this server, {self.server.where()}")
        if self.headers.get_all("Origin", [f"http://{hosts[0]}"]) != [f"http://{hosts[0]}"]:
            raise Refused(403, "expected a question from the page of this server")
        lengths = self.headers.get_all("Content-Length", ["0"])
        if "Transfer-Encoding" in self.headers or len(lengths) != 1 or not re.fullmatch(r"\d{1,12}", lengths[0], re.A):
            raise Refused(411, "expected a body of a Content-Length")
        if int(lengths[0]) > (BODY if self.command == "POST" else 0):
            raise Refused(413, f"expected at most {BODY:,d} bytes by POST, none by GET")
        path, _, query = self.path.partition("?")
        try:
            found = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict",
                                           max_num_fields=8)
        except ValueError as error:
            raise Refused(400, f"expected a query of names and values ({error})") from None
        if len(dict(found)) < len(found) or not self.path.isascii():
            raise Refused(400, "expected each name once, in ASCII or percent-encoded")
        self.close_connection = keep
        return Asked(path, dict(found))

    def _said(self):
        """The JSON of the body."""
        self.close_connection, keep = True, self.close_connection
        if self.headers.get_content_type() != "application/json" or "Content-Type" not in self.headers:
            raise Refused(415, "expected Content-Type: application/json")
        size = int(self.headers.get("Content-Length", "0"))
        try:
            body = self.rfile.read(size)
        except TimeoutError:
            body = b""
        if len(body) < size:
            raise Refused(408, f"expected {size} bytes within {SECONDS:g} seconds")
        self.close_connection = keep
        try:
            return json.loads(body.decode())
        except (ValueError, RecursionError):
            raise Refused(400, "expected JSON in UTF-8") from None

    def _known(self, host) -> bool:
        name = re.sub(r":\d{1,5}$", "", host, flags=re.A).removesuffix(".").lower()
        try:
            return name in self.server.names or bool(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
        except ValueError:
            return False

    def send_error(self, code, message=None, explain=None):
        """What the library refuses: its own words may hold what was asked."""
        status = http.HTTPStatus(OURS.get(code, code))
        self.close_connection = True
        self._send(status, line(f"{status.phrase}: expected an HTTP/1.1 question, GET, HEAD or POST"))

    def _send(self, status, answer):
        self.server.until.pop(self.connection, None)
        self.send_response(status)
        headers = HEADERS | {"Content-Type": answer.kind, "Content-Length": str(len(answer.body)),
                             "Content-Security-Policy": answer.policy}
        if status == 405:
            headers["Allow"] = "GET, HEAD, POST"
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def version_string(self):
        return "mlm"

    def log_message(self, *args):
        """Says nothing of each question, as http.server would."""


def complain(error: BaseException) -> None:
    print(f"error: {type(error).__name__}: {errors.first_line(error)}", file=sys.stderr)


def line(error: str) -> Answer:
    return told({"error": error})


def told(value) -> Answer:
    """A value as JSON, in ASCII."""
    return Answer("application/json", json.dumps(value).encode())
