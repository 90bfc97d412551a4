"""A page of trained models side by side, for a talk or a class: fillings, attention, and similar texts and words.

Served by uvicorn to a few people: requests are limited in size and number, and never trusted.
"""

import asyncio
import ipaddress
import logging
import re
import signal
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlm.base import errors
from mlm.inference import batching
from mlm.report import pages
from mlm.serve import panels

PAGE_FOLDER = Path(pages.__file__).parent
MAX_LINES, MAX_CHARACTERS = 2000, 300_000  # of --file: the states of all its words are stored
MAX_WAITING = 16  # requests that wait while one is computed
WAIT_SECONDS = 60.0  # that a request waits for those before it
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
# The page takes its script and style from this server alone; the attention page contains its own, and has no access to
# this server.
PAGE_POLICY = CLOSED_POLICY.replace(
    "default-src 'none'",
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; img-src data:",
)
FRAME_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)


class ModelServer:
    """The response of each address, one at a time: programs are compiled once, and memory is that of one request."""

    def __init__(self, model_panels: Sequence[panels.Panel], examples: Sequence[str] = ()):
        self.panels, self.examples = panels.align_maps(model_panels), examples
        self.lock, self.num_waiting = asyncio.Lock(), 0
        batching.LOGGER.setLevel(logging.ERROR)  # what a model does not read is no news of the server's

    def routes(self) -> list[Route]:
        """Returns the addresses."""
        css = pages.render("sweep.css") + pages.render("serve.css")
        return [
            Route("/", self.send_page),
            Route("/serve.css", lambda request: Response(css, media_type="text/css")),
            Route("/serve.js", lambda request: FileResponse(PAGE_FOLDER / "serve.js", media_type="text/javascript")),
            Route("/ask", self.send_answer, methods=["POST"]),
            Route("/attention", self.send_attention),
        ]

    async def send_page(self, request: Request) -> Response:
        """Returns the HTML page, with a column for each model."""
        models = [
            {
                "name": panel.name,
                "description": panels.describe_panel(panel),
                "unsupported": panel.unsupported,
                "is_optimum": isinstance(panel, panels.OptimumPanel),
            }
            for panel in self.panels
        ]
        tasks = {name: title for name, (title, *_) in panels.PANEL_TASKS.items()}
        if not self.panels[0].lines:
            del tasks["similar"], tasks["word"]
        if all("predict" in panel.unsupported for panel in self.panels):
            del tasks["predict"]
        if not all(panel.has_attention for panel in self.panels if isinstance(panel, panels.ModelPanel)):
            tasks["attend"] = "Saliency"
        html = pages.render("serve.html", models=models, examples=self.examples, max_chars=panels.MAX_TEXT, tasks=tasks)
        return HTMLResponse(html, headers={"Content-Security-Policy": PAGE_POLICY})

    async def send_answer(self, request: Request) -> Response:
        """Returns {"answer": ...} to the JSON value of a POST, as `compute_answer` computes it."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "expected Content-Type: application/json")
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                value = await request.json()
        except TimeoutError:
            raise HTTPException(408, "expected the body in time") from None
        except (ValueError, RecursionError):
            raise HTTPException(400, "expected JSON in UTF-8") from None
        return JSONResponse({"answer": await self.compute_answer(value)})

    async def send_attention(self, request: Request) -> Response:
        """Returns the attention page of a query's model ("run") and text, in a sandbox, or why there is none."""
        run = request.query_params.get("run", "")
        value = dict(request.query_params, run=int(run) if run.isdecimal() and len(run) < 9 else run, what="attend")
        try:
            status, html = 200, await self.compute_answer(value)
        except errors.ConfigError as error:
            status, html = 400, pages.render("serve_error.html", line=str(error))
        except HTTPException as error:
            status, html = error.status_code, pages.render("serve_error.html", line=error.detail)
        return HTMLResponse(html, status, {"Content-Security-Policy": FRAME_POLICY})

    async def compute_answer(self, value):
        """A panel's answer to a JSON value, alone. Raises ConfigError for a bad one, HTTPException if too many wait."""
        request = panels.parse_request(value, len(self.panels))
        if self.num_waiting == MAX_WAITING:
            raise HTTPException(429, "too many requests at once; try again")
        self.num_waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self.lock.acquire()
        except TimeoutError:
            raise HTTPException(429, "earlier requests take long; try again") from None
        finally:
            self.num_waiting -= 1
        try:
            return await run_in_threadpool(panels.answer_request, self.panels[request.run], request)
        finally:
            self.lock.release()


def serve_models(folders: Sequence[str], lines: Mapping[int, str], host: str, port: int) -> None:
    """Serves the page until Ctrl-C; folders: of runs or Hugging Face models; lines: of --file, by their numbers there;
    host: 0.0.0.0 admits other machines; port: 0 is any free one.

    Raises ConfigError for a bad folder, address or port, or too much text.
    """
    num_characters = sum(map(len, lines.values()))
    for count, limit, unit in ((len(lines), MAX_LINES, "lines"), (num_characters, MAX_CHARACTERS, "characters")):
        errors.require(count <= limit, "--file", count, f"at most {limit:,d} {unit}; mlm similar takes more")
    expected = "an address of this machine and a free port"
    with errors.explain(f"--host = {host!r}, --port = {port}", expected, OSError, UnicodeError):
        bound = bind_socket(host, port)
    with bound:
        from mlm.inference import pretrained_io  # seconds, after what is checked at once

        names = name_folders(folders)
        print(f"loading {', '.join(names)}", flush=True)
        # All before the first is compiled, which takes longer: a wrong folder shows soon.
        models = {name: pretrained_io.load_model(folder) for name, folder in names.items()}
        model_panels = []
        for name, model in models.items():
            print(f"{name}: compiling", flush=True)
            model_panels.append(panels.prepare_panel(name, model, lines))
        optimum = panels.find_optimum(list(models.values()))
        examples = panels.choose_examples(model_panels, optimum.list_examples() if optimum else ())
        model_server = ModelServer([*model_panels, *([optimum] if optimum else [])], examples)
        server = make_server(model_server.routes(), host)
        bound.listen()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"ready: open {format_url(bound)} in a browser; Ctrl-C ends", flush=True)
        server.run(sockets=[bound])


def name_folders(folders: Sequence[str]) -> dict[str, str]:
    """Folders by the shortest ends of their paths that are unique."""
    paths = [Path(folder).absolute().parts for folder in folders]
    errors.require(len(set(paths)) == len(paths), "serve", list(folders), "each run once")
    depth = 1
    while len({path[-depth:] for path in paths}) < len(paths):
        depth += 1
    return {str(Path(*path[-depth:])): folder for path, folder in zip(paths, folders, strict=True)}


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
    """A bound socket, not listened at. Raises OSError for a taken port, and for a host "", which is every address."""
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
