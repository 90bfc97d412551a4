"""A page of trained models side by side, for a talk or a class: fillings, attention, and similar texts and words."""

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from mlm.base import errors
from mlm.inference import batching
from mlm.report import pages
from mlm.serve import http_server, panels

PAGE_FOLDER = Path(pages.__file__).parent
TASK_TITLES = {
    "fill_mask": "Tokens for [MASK]",
    "predict": "Predictions",
    "similar": "Similar texts",
    "word": "Similar words",
    "attend": "Attention",
}
SEARCH_TASKS = ("similar", "word")  # where there are texts to search
MAX_LINES, MAX_CHARACTERS = 2000, 300_000  # of --file: the states of all its words are stored
MAX_WAITING = 16  # requests that wait while one is computed
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


class ServeOptions(NamedTuple):
    """The address of `mlm serve`."""

    host: str = "127.0.0.1"  # 0.0.0.0 admits other machines
    port: int = 8000  # 0: any free port


class ModelServer:
    """The response of each address, one at a time: programs are compiled once, and memory is that of one request."""

    def __init__(self, model_panels: Sequence[panels.ModelPanel], example: str = ""):
        self.panels, self.example = model_panels, example
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
            {"name": panel.name, "description": panels.describe_model(panel.model), "unsupported": panel.unsupported}
            for panel in self.panels
        ]
        tasks = {name: title for name, title in TASK_TITLES.items() if self.panels[0].lines or name not in SEARCH_TASKS}
        if all("predict" in panel.unsupported for panel in self.panels):
            del tasks["predict"]
        html = pages.render("serve.html", models=models, example=self.example, max_chars=panels.MAX_TEXT, tasks=tasks)
        return HTMLResponse(html, headers={"Content-Security-Policy": PAGE_POLICY})

    async def send_answer(self, request: Request) -> Response:
        """Returns {"answer": ...} to the JSON value of a POST, as `compute_answer` computes it."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "expected Content-Type: application/json")
        try:
            async with asyncio.timeout(http_server.TIMEOUT_SECONDS):
                value = await request.json()
        except TimeoutError:
            raise HTTPException(408, "expected the body in time") from None
        except (ValueError, RecursionError):
            raise HTTPException(400, "expected JSON in UTF-8") from None
        return JSONResponse({"answer": await self.compute_answer(value)})

    async def send_attention(self, request: Request) -> Response:
        """Returns the attention page of a text, in a sandbox, as its query names model ("run") and text; or a page
        that says why there is none.
        """
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


def serve_models(folders: Sequence[str], lines: Mapping[int, str], options: ServeOptions) -> None:
    """Serves the page until Ctrl-C.

    Args:
        folders: of runs or Hugging Face models.
        lines: of --file, by their numbers there.

    Raises:
        ConfigError: a bad folder, address or port, or too much text.
    """
    num_characters = sum(map(len, lines.values()))
    for count, limit, unit in ((len(lines), MAX_LINES, "lines"), (num_characters, MAX_CHARACTERS, "characters")):
        errors.require(count <= limit, "--file", count, f"at most {limit:,d} {unit}; mlm similar takes more")
    try:
        bound = http_server.bind_socket(options.host, options.port)
    except (OSError, UnicodeError) as error:
        raise errors.ConfigError(
            f"--host = {options.host!r}, --port = {options.port}: expected an address of this "
            f"machine and a free port ({errors.first_line(error)})"
        ) from None
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
        model_server = ModelServer(model_panels, panels.choose_example(model_panels))
        server = http_server.make_server(model_server.routes(), options.host)
        bound.listen()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"ready: open {http_server.format_url(bound)} in a browser; Ctrl-C ends", flush=True)
        server.run(sockets=[bound])


def name_folders(folders: Sequence[str]) -> dict[str, str]:
    """Folders by the shortest ends of their paths that are unique."""
    paths = [Path(folder).absolute().parts for folder in folders]
    errors.require(len(set(paths)) == len(paths), "serve", list(folders), "each run once")
    depth = 1
    while len({path[-depth:] for path in paths}) < len(paths):
        depth += 1
    return {str(Path(*path[-depth:])): folder for path, folder in zip(paths, folders, strict=True)}
