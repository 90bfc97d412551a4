"""An HTTP server for a few people: requests are limited in size, number and time, and never trusted."""

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

MAX_BODY_BYTES = 16 * 1024  # of a request
TIMEOUT_SECONDS = 10.0  # in which a request must have arrived, and a response must have been sent
MAX_CONNECTIONS = 32  # at once
CLOSED_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STATUS_CHANGES: dict[int, int] = {
    http.HTTPStatus.NOT_IMPLEMENTED: http.HTTPStatus.METHOD_NOT_ALLOWED,  # the library's status: ours
    http.HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: http.HTTPStatus.BAD_REQUEST,
}


class Request(NamedTuple):
    """A GET or POST request. body: a POST's JSON value."""

    path: str
    query: dict[str, str]
    body: Any = None


class Response(NamedTuple):
    """A response. policy: its Content-Security-Policy."""

    content_type: str
    body: bytes
    policy: str = CLOSED_POLICY


class RequestRefused(Exception):
    """The server refuses a request, with an HTTP status and a line that says why."""

    def __init__(self, status: int, line: str):
        super().__init__(line)
        self.status = status


class HttpServer(http.server.ThreadingHTTPServer):
    """Serves `routes`, functions of a Request by method and path, once it is activated.

    It refuses requests whose Host is neither an address, localhost nor `host`: another site's page must not send
    requests in its reader's name (DNS rebinding). Raises OSError if the port is taken.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, routes: dict[tuple[str, str], Callable[[Request], Response]]):
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.routes, self.names = routes, {"localhost", host.lower(), socket.gethostname().lower()}
        self.free_connections, self.deadlines = threading.BoundedSemaphore(MAX_CONNECTIONS), {}
        super().__init__((host, port), RequestHandler, bind_and_activate=False)
        try:
            self.server_bind()
        except OSError:
            self.server_close()
            raise

    def server_bind(self):
        """Binds the socket as the library does, but looks up no host name."""
        socketserver.TCPServer.server_bind(self)  # http.server's would ask the network for a name
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def url(self) -> str:
        """The address for a browser."""
        host, port = str(self.server_address[0]), self.server_address[1]
        host = socket.gethostname() if ipaddress.ip_address(host).is_unspecified else host
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def process_request(self, request: Any, client_address):
        """Starts a thread for a connection, or refuses it with status 503 if MAX_CONNECTIONS are open."""
        if not self.free_connections.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.free_connections.release()
            raise

    def process_request_thread(self, request, client_address):
        """Serves a connection in its thread, then frees its place among MAX_CONNECTIONS."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.deadlines.pop(request, None)
            self.free_connections.release()

    def service_actions(self):
        """Ends connections whose request has not arrived in time, however slowly it drips in."""
        for request, deadline in list(self.deadlines.items()):
            if deadline < time.monotonic():
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RD)

    def handle_error(self, request, client_address):
        """Prints an error of the server in one line; ignores those of a connection, which the client causes."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):  # which the client causes
            print_error(error)


class RequestHandler(http.server.BaseHTTPRequestHandler):
    """One connection. The response to a bad request is one line of JSON; it closes the connection unless the end of the
    request is certain.
    """

    server: HttpServer
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # of a request without one: it is refused with headers, as others are
    timeout = TIMEOUT_SECONDS

    def handle_one_request(self):
        """Serves one request of the connection, which must arrive within TIMEOUT_SECONDS."""
        self.server.deadlines[self.connection] = time.monotonic() + TIMEOUT_SECONDS
        super().handle_one_request()

    def finish(self):
        """Closes the sending side and reads the rest: a client that still sends could lose the response otherwise."""
        super().finish()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(0.5)
            deadline = time.monotonic() + 1
            while self.connection.recv(2**16) and time.monotonic() < deadline:
                pass

    def do_GET(self):
        """Responds to GET, and to HEAD without the body."""
        self._respond(lambda: self._read_head()._replace(body=None))

    do_HEAD = do_GET

    def do_POST(self):
        """Responds to POST, whose body must be JSON."""
        self._respond(lambda: self._read_head()._replace(body=self._read_body()))

    def _respond(self, read):
        try:
            request = read()
            self.server.deadlines.pop(self.connection, None)
            method = "GET" if self.command == "HEAD" else self.command
            paths = {path for _, path in self.server.routes}
            if request.path not in paths:
                raise RequestRefused(404, "no such page")
            if (method, request.path) not in self.server.routes:
                raise RequestRefused(405, f"{method} is not allowed here")
            self._send(200, self.server.routes[method, request.path](request))
        except RequestRefused as refused:
            self._send(refused.status, error_response(str(refused)))
        except OSError:
            raise
        except Exception as error:
            print_error(error)
            self._send(500, error_response("the server failed; its terminal shows the error"))

    def _read_head(self) -> Request:
        """The request without its body. Raises RequestRefused, and the connection ends, if it is not clear."""
        self.close_connection, keep = True, self.close_connection
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or self.headers.defects:
            raise RequestRefused(400, "expected one Host, and headers that can be read")
        if not self._is_known_host(hosts[0]):
            raise RequestRefused(421, f"expected the address of this server, {self.server.url()}")
        if self.headers.get_all("Origin", [f"http://{hosts[0]}"]) != [f"http://{hosts[0]}"]:
            raise RequestRefused(403, "expected a request from the page of this server")
        lengths = self.headers.get_all("Content-Length", ["0"])
        if "Transfer-Encoding" in self.headers or len(lengths) != 1 or not re.fullmatch(r"\d{1,12}", lengths[0], re.A):
            raise RequestRefused(411, "expected a body of a Content-Length")
        if int(lengths[0]) > (MAX_BODY_BYTES if self.command == "POST" else 0):
            raise RequestRefused(413, f"expected at most {MAX_BODY_BYTES:,d} bytes by POST, none by GET")
        path, _, query = self.path.partition("?")
        try:
            pairs = urllib.parse.parse_qsl(
                query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=8
            )
        except ValueError as error:
            raise RequestRefused(400, f"expected a query of names and values ({error})") from None
        if len(dict(pairs)) < len(pairs) or not self.path.isascii():
            raise RequestRefused(400, "expected each name once, in ASCII or percent-encoded")
        self.close_connection = keep
        return Request(path, dict(pairs))

    def _read_body(self):
        """The JSON of the body."""
        self.close_connection, keep = True, self.close_connection
        if self.headers.get_content_type() != "application/json" or "Content-Type" not in self.headers:
            raise RequestRefused(415, "expected Content-Type: application/json")
        size = int(self.headers.get("Content-Length", "0"))
        try:
            body = self.rfile.read(size)
        except TimeoutError:
            body = b""
        if len(body) < size:
            raise RequestRefused(408, f"expected {size} bytes within {TIMEOUT_SECONDS:g} seconds")
        self.close_connection = keep
        try:
            return json.loads(body.decode())
        except (ValueError, RecursionError):
            raise RequestRefused(400, "expected JSON in UTF-8") from None

    def _is_known_host(self, host) -> bool:
        name = re.sub(r":\d{1,5}$", "", host, flags=re.A).removesuffix(".").lower()
        try:
            return name in self.server.names or bool(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
        except ValueError:
            return False

    def send_error(self, code, message=None, explain=None):
        """The library's refusals, without its own messages, which may repeat the request."""
        status = http.HTTPStatus(STATUS_CHANGES.get(code, code))
        self.close_connection = True
        self._send(status, error_response(f"{status.phrase}: expected an HTTP/1.1 request, GET, HEAD or POST"))

    def _send(self, status, response):
        self.server.deadlines.pop(self.connection, None)
        self.send_response(status)
        headers = HEADERS | {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Content-Security-Policy": response.policy,
        }
        if status == 405:
            headers["Allow"] = "GET, HEAD, POST"
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def version_string(self):
        """Returns the Server header, which names neither Python nor a version."""
        return "mlm"

    def log_message(self, *args):
        """Prints nothing for each request, as http.server would."""


def print_error(error: BaseException) -> None:
    """Prints an error of the server in one line."""
    print(f"error: {type(error).__name__}: {errors.first_line(error)}", file=sys.stderr)


def error_response(error: str) -> Response:
    """The answer that holds an error."""
    return json_response({"error": error})


def json_response(value) -> Response:
    """A value as JSON, in ASCII."""
    return Response("application/json", json.dumps(value).encode())
