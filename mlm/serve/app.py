"""A page of trained models side by side, for a talk or a class: fillings, attention, and similar texts and words."""

import dataclasses
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mlm.serve import http_server, panels

MAX_LINES, MAX_CHARACTERS = 2000, 300_000  # of --file: the states of all its words are stored
MAX_WAITING = 16  # requests at once: one is computed, the others wait
WAIT_SECONDS = 60.0  # that a request waits for those before it
# The page takes its script and style from this server alone; the attention page contains its own, and has no access to
# this server.
PAGE_POLICY = http_server.CLOSED_POLICY.replace(
    "default-src 'none'",
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; img-src data:",
)
FRAME_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)


@dataclasses.dataclass(frozen=True)
class ServeOptions:
    """Options of `mlm serve`.

    Attributes:
        host: The address to listen on; 0.0.0.0 admits other machines.
        port: The port to listen on, 0 to 65535; 0: any free port.
    """

    host: str = "127.0.0.1"
    port: int = 8000


class ModelServer:
    """The response of each address. It computes one request at a time: programs are compiled once, and memory is that
    of one request.
    """

    def __init__(self, model_panels: Sequence[panels.ModelPanel], example: str = ""):
        self.panels, self.example = model_panels, example
        self.lock, self.waiting = threading.Lock(), threading.BoundedSemaphore(MAX_WAITING)

    def routes(self) -> dict[tuple[str, str], Callable[[http_server.Request], http_server.Response]]:
        """Returns the functions that respond, by method and path, as HttpServer uses them."""
        return {
            ("GET", "/"): self.send_page,
            ("GET", "/serve.css"): self.send_style,
            ("GET", "/serve.js"): self.send_script,
            ("POST", "/ask"): self.answer_request,
            ("GET", "/attention"): self.send_attention,
        }

    def send_page(self, request: http_server.Request) -> http_server.Response:
        """Returns the HTML page, with a column for each model."""
        from mlm.report.pages import serve

        columns = [
            serve.ModelColumn(panel.name, panels.describe_model(panel.model), panel.unsupported)
            for panel in self.panels
        ]
        html = serve.render_html(columns, self.example, panels.MAX_TEXT, bool(self.panels[0].lines))
        return http_server.Response("text/html; charset=utf-8", html.encode(), PAGE_POLICY)

    def send_style(self, request: http_server.Request) -> http_server.Response:
        """Returns the page's style sheet."""
        from mlm.report.pages import serve

        return http_server.Response("text/css; charset=utf-8", serve.render_css().encode())

    def send_script(self, request: http_server.Request) -> http_server.Response:
        """Returns the page's script."""
        from mlm.report.pages import serve

        return http_server.Response("text/javascript; charset=utf-8", serve.read_js().encode())

    def answer_request(self, request: http_server.Request) -> http_server.Response:
        """Returns {"answer": ...} to the JSON value of a POST, as `compute_answer` computes it."""
        return http_server.json_response({"answer": self.compute_answer(request.body)})

    def send_attention(self, request: http_server.Request) -> http_server.Response:
        """Returns the attention page of a text, in a sandbox, as its query names model ("run") and text."""
        run = request.query.get("run", "")
        value = request.query | {"run": int(run) if run.isdecimal() and len(run) < 9 else run, "what": "attend"}
        return http_server.Response("text/html; charset=utf-8", self.compute_answer(value).encode(), FRAME_POLICY)

    def compute_answer(self, value):
        """A panel's answer to the request in a JSON value, computed while no other request is."""
        from mlm.base import errors

        if not self.waiting.acquire(blocking=False):
            raise http_server.RequestRefused(429, "too many requests at once; try again")
        try:
            request = panels.parse_request(value, len(self.panels))
            if not self.lock.acquire(timeout=WAIT_SECONDS):
                raise http_server.RequestRefused(429, "earlier requests take long; try again")
            try:
                return panels.answer_request(self.panels[request.run], request)
            finally:
                self.lock.release()
        except errors.ConfigError as error:
            raise http_server.RequestRefused(400, str(error)) from None
        finally:
            self.waiting.release()


def serve_models(folders: Sequence[str], lines: Mapping[int, str], options: ServeOptions) -> None:
    """Serves the page until Ctrl-C.

    Args:
        folders: of runs or Hugging Face models.
        lines: of --file, by their numbers there.

    Raises:
        ConfigError: a bad folder, address or port, or too much text.
    """
    from mlm.base import errors

    num_characters = sum(map(len, lines.values()))
    for count, limit, unit in ((len(lines), MAX_LINES, "lines"), (num_characters, MAX_CHARACTERS, "characters")):
        errors.require(count <= limit, "--file", count, f"at most {limit:,d} {unit}; mlm similar takes more")
    model_panels = []
    model_server = ModelServer(model_panels)
    try:
        server = http_server.HttpServer(options.host, options.port, model_server.routes())
    except (OSError, UnicodeError) as error:
        raise errors.ConfigError(
            f"--host = {options.host!r}, --port = {options.port}: expected an address of this "
            f"machine and a free port ({errors.first_line(error)})"
        ) from None
    try:
        for name, folder in name_folders(folders).items():
            print(f"{name}: loading and compiling", flush=True)
            model_panels.append(panels.prepare_panel(name, folder, lines))
        model_server.example = panels.choose_example(model_panels)
        server.server_activate()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"ready: open {server.url()} in a browser; Ctrl-C ends", flush=True)
        server.serve_forever()
    finally:
        server.socket.close()
        model_server.lock.acquire(timeout=5)  # nothing is computed while the process ends


def name_folders(folders: Sequence[str]) -> dict[str, str]:
    """Folders by the shortest ends of their paths that are unique."""
    from mlm.base import errors

    paths = [Path(folder).absolute().parts for folder in folders]
    errors.require(len(set(paths)) == len(paths), "serve", list(folders), "each run once")
    depth = 1
    while len({path[-depth:] for path in paths}) < len(paths):
        depth += 1
    return {str(Path(*path[-depth:])): folder for path, folder in zip(paths, folders, strict=True)}
