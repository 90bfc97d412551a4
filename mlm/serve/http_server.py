"""An HTTP server for a few people, by uvicorn: requests are limited in size and number, and never trusted."""

import ipaddress
import re
import socket
import sys
from collections.abc import Collection, Mapping, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlm.base import errors

MAX_BODY_BYTES = 16 * 1024  # of a request; as many hold its line and headers
TIMEOUT_SECONDS = 10  # in which a body must have arrived, and that a connection waits for its next request
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
            http="h11",
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=TIMEOUT_SECONDS,
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
