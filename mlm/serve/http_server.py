"""An HTTP server for a few people, by uvicorn: requests are limited in size, number and time, and never trusted."""

import asyncio
import http
import ipaddress
import re
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlm.base import errors

MAX_BODY_BYTES = 16 * 1024  # of a request; as many hold its line and headers
TIMEOUT_SECONDS = 10.0  # in which a request must have arrived, and a response must have been sent
SHUTDOWN_SECONDS = 5  # that requests have to end with the server
MAX_CONNECTIONS = 32  # at once
CLOSED_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
HEADERS = {  # of each response that does not set them itself
    "Content-Security-Policy": CLOSED_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
REFUSALS = (HTTPException, errors.ConfigError, ClientDisconnect)  # errors of a request


class LingeringTransport:
    """A transport whose `close` has `linger` end it: if data arrive at a closed socket, the client can lose what was
    written.
    """

    def __init__(self, transport: asyncio.Transport, linger: Callable[[asyncio.Transport], None]):
        self.transport, self.linger, self.closed = transport, linger, False

    def __getattr__(self, name: str):
        return getattr(self.transport, name)

    def is_closing(self) -> bool:
        """Whether no more is written."""
        return self.closed or self.transport.is_closing()

    def close(self) -> None:
        """Writes no more."""
        if not self.is_closing():
            self.closed = True
            self.linger(self.transport)


class BoundedConnection(H11Protocol):
    """A connection of uvicorn's whose requests must arrive, and whose responses must leave, within TIMEOUT_SECONDS.

    If MAX_CONNECTIONS are open, a new one ends the one that has waited longest for its client. So connections that
    drip turn nobody away.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.half_closed = False  # the client sends no more, but reads
        self.clock = self.loop.call_later(TIMEOUT_SECONDS, self.check_time)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Makes room."""
        super().connection_made(LingeringTransport(transport, self.linger))  # type: ignore[arg-type]
        if len(self.connections) > MAX_CONNECTIONS:
            bounded = [one for one in self.connections if isinstance(one, BoundedConnection)]
            oldest = min(bounded, key=lambda one: (one.awaits_server(), one.clock.when()))
            oldest.end(503)
            oldest.transport.close()
            self.connections.discard(oldest)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        super().connection_lost(exc)
        self.clock.cancel()

    def restart_clock(self, seconds: float) -> None:
        """Ends the connection after this time, unless a request is being answered then."""
        self.clock.cancel()
        self.clock = self.loop.call_later(seconds, self.check_time)

    def check_time(self) -> None:
        """Ends the connection, unless it waits for the server."""
        if self.awaits_server():
            self.restart_clock(TIMEOUT_SECONDS)
        else:
            self.end(408)

    def is_answering(self) -> bool:
        """Whether a request has arrived that is not answered yet."""
        return self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete)

    def awaits_server(self) -> bool:
        """Whether a request is being answered, and the client reads what it is sent."""
        return self.is_answering() and not self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        """Parses what arrives; drops it after the last response."""
        if not self.transport.is_closing():
            super().data_received(data)

    def on_response_complete(self) -> None:
        """Starts the clock for the response to leave and the next request to arrive."""
        self.restart_clock(TIMEOUT_SECONDS)
        super().on_response_complete()
        if self.half_closed:
            self.close(400)

    def linger(self, transport: asyncio.Transport) -> None:
        """Writes no more, and closes the transport when the client sends no more, or its time is over."""
        if self.half_closed:
            transport.close()
        else:
            transport.write_eof()
            self.flow.resume_reading()
        self.restart_clock(TIMEOUT_SECONDS)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keeps the connection open until what has arrived is answered."""
        self.half_closed = True
        self.close(400)
        return self.is_answering()

    def shutdown(self) -> None:
        """Ends with the server: at once, or with the response to a request that has arrived."""
        if self.is_answering():
            super().shutdown()
        else:
            self.transport.abort()

    def end(self, status: int) -> None:
        """Closes the connection at once if the client does not read, otherwise as `close` does."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.close(status)

    def close(self, status: int) -> None:
        """Closes the connection if no request is being answered; refuses a part of a request with the status."""
        if self.is_answering() or self.transport.is_closing():
            return
        if self.conn.trailing_data[0] or (self.cycle is not None and not self.cycle.response_complete):
            self.refuse(status)
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP, in this server's words."""
        self.refuse(400)

    def refuse(self, status: int) -> None:
        """Sends the status and no more."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            reason = http.HTTPStatus(status).phrase
            response = make_refusal(status, f"{reason}: expected an HTTP/1.1 request in {TIMEOUT_SECONDS:g} seconds")
            headers = HEADERS | dict(response.headers) | {"Connection": "close"}
            head = h11.Response(status_code=status, headers=list(headers.items()), reason=reason)
            for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()


class RequestGuard:
    """An ASGI app around another: refuses requests that are too large, or not the page's own, and sets HEADERS.

    A request's Host must be an address or one of `names`: another site's page must not send requests in its reader's
    name (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, names: Collection[str]):
        self.app, self.names = app, {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds as ASGI has it."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self.find_refusal(Request(scope)) or self.app)(scope, receive, send_with_headers)

    def find_refusal(self, request: Request) -> JSONResponse | None:
        """The response to a request that is refused for its head."""
        headers, host = request.headers, request.headers.get("host", "")
        if request.scope["http_version"] not in ("1.0", "1.1"):
            return make_refusal(400, "expected HTTP/1.1")
        if not self.is_known_host(host):
            return make_refusal(421, "expected the address of this server as Host")
        if headers.getlist("origin") not in ([], [f"http://{host}"]):
            return make_refusal(403, "expected a request from the page of this server")
        size = headers.get("content-length", "" if request.method == "POST" else "0")
        if "transfer-encoding" in headers or not size:
            return make_refusal(411, "expected a body of a Content-Length")
        if int(size) > (MAX_BODY_BYTES if request.method == "POST" else 0):
            return make_refusal(413, f"expected at most {MAX_BODY_BYTES:,d} bytes by POST, none by GET")
        return None

    def is_known_host(self, host: str) -> bool:
        """Whether a Host, with or without a port, is this server's."""
        name = re.sub(r":\d{1,5}$", "", host, flags=re.A).removesuffix(".").lower()
        try:
            return name in self.names or bool(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
        except ValueError:
            return False


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound, and not listened at yet.

    Raises OSError if the port is taken, and for a host such as "", which stands for every address without saying so.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        if ipaddress.ip_address(bound.getsockname()[0]).is_unspecified and host not in ("0.0.0.0", "::"):
            raise OSError("0.0.0.0 listens on every address")
    except BaseException:
        bound.close()
        raise
    return bound


def format_url(bound: socket.socket) -> str:
    """The address for a browser."""
    host, port = bound.getsockname()[:2]
    host = socket.gethostname() if ipaddress.ip_address(host).is_unspecified else host
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def make_server(routes: Sequence[Route], host: str) -> uvicorn.Server:
    """A server of these routes that prints nothing but its errors; its method `run` takes the bound sockets."""
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys((*REFUSALS, Exception), respond_to_error))
    app.router.redirect_slashes = False
    return uvicorn.Server(
        uvicorn.Config(
            RequestGuard(app, ("localhost", host, socket.gethostname())),
            http=BoundedConnection,
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=round(TIMEOUT_SECONDS),
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            h11_max_incomplete_event_size=MAX_BODY_BYTES,
        )
    )


def make_refusal(status: int, line: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The response that says in one line why a request is refused."""
    return JSONResponse({"error": line}, status, headers)


async def respond_to_error(request: Request, error: Exception) -> JSONResponse:
    """The response to what a route raises; prints an error of the server in one line."""
    if isinstance(error, HTTPException):
        return make_refusal(error.status_code, error.detail, error.headers)
    if isinstance(error, REFUSALS):
        return make_refusal(400, str(error))
    print(f"error: {type(error).__name__}: {errors.first_line(error)}", file=sys.stderr)
    return make_refusal(500, "the server failed; its terminal shows the error")
