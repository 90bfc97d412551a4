"""Trained models side by side on one page, for a talk or a class: what they fill in, look at, and find alike."""
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import flags

from mlm.cli import command
from mlm.serve import http_server, panels

_PORT = flags.DEFINE_integer("port", 8000, "serve: where; 0 any that is free.", lower_bound=0, upper_bound=65535)
_HOST = flags.DEFINE_string("host", "127.0.0.1", "serve: by which address; 0.0.0.0 lets other machines ask, too.")

LINES, LETTERS = 2000, 300_000  # of --file: the states of all its words are kept
WAITING = 16            # questions at once: one is answered, the others wait
WAIT = 60.0             # seconds that one waits for those before it
# The page has its script and style from this server alone; the attention page its own, without a way to this server.
PAGE = http_server.CLOSED.replace("default-src 'none'", "default-src 'none'; script-src 'self'; style-src 'self'; "
                          "connect-src 'self'; frame-src 'self'; img-src data:")
FRAME = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; " \
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"


class Asks:
    """What is answered at each address. One question at a time is computed: programs are compiled once, and memory is
    that of one."""

    def __init__(self, shown: Sequence[panels.Column], example: str = ""):
        self.shown, self.example = shown, example
        self.lock, self.room = threading.Lock(), threading.BoundedSemaphore(WAITING)

    def answers(self) -> dict:
        return {("GET", "/"): self.page, ("GET", "/serve.css"): self.style, ("GET", "/serve.js"): self.script,
                ("POST", "/ask"): self.ask, ("GET", "/attention"): self.attention}

    def page(self, asked: http_server.Asked) -> http_server.Answer:
        from mlm.report.pages import serve

        return http_server.Answer("text/html; charset=utf-8", serve.html(
            [serve.Column(one.name, panels.about(one.model), one.cannot) for one in self.shown], self.example,
            panels.TEXT, bool(self.shown[0].lines)).encode(), PAGE)

    def style(self, asked: http_server.Asked) -> http_server.Answer:
        from mlm.report.pages import serve

        return http_server.Answer("text/css; charset=utf-8", serve.css().encode())

    def script(self, asked: http_server.Asked) -> http_server.Answer:
        from mlm.report.pages import serve

        return http_server.Answer("text/javascript; charset=utf-8", serve.js().encode())

    def ask(self, asked: http_server.Asked) -> http_server.Answer:
        return http_server.told({"answer": self.alone(asked.said, panels.answer)})

    def attention(self, asked: http_server.Asked) -> http_server.Answer:
        run = asked.query.get("run", "")
        said = asked.query | {"run": int(run) if run.isdecimal() and len(run) < 9 else run, "what": "attend"}
        return http_server.Answer("text/html; charset=utf-8", self.alone(said, panels.answer).encode(), FRAME)

    def alone(self, said, answer):
        """What a column answers, with no other question computed meanwhile."""
        from mlm.base import errors

        if not self.room.acquire(blocking=False):
            raise http_server.Refused(429, "too many questions at once; ask again")
        try:
            question = panels.read(said, len(self.shown))
            if not self.lock.acquire(timeout=WAIT):
                raise http_server.Refused(429, "the questions before this one take long; ask again")
            try:
                return answer(self.shown[question.run], question)
            finally:
                self.lock.release()
        except errors.ConfigError as error:
            raise http_server.Refused(400, str(error)) from None
        finally:
            self.room.release()


def serve(folders: Sequence[str], lines: Mapping[int, str]) -> None:
    """Answers until Ctrl-C. lines: of --file, by their numbers there. Raises ConfigError for a bad folder, address or
    port, and for too much text.
    """
    from mlm.base import errors

    for count, most, what in ((len(lines), LINES, "lines"), (sum(map(len, lines.values())), LETTERS, "characters")):
        errors.require(count <= most, "--file", count, f"at most {most:,d} {what}; mlm.cli.use similar takes more")
    host, port, shown = _HOST.value, _PORT.value, []
    asks = Asks(shown)
    try:
        server = http_server.Server(host, port, asks.answers())
    except (OSError, UnicodeError) as error:
        raise errors.ConfigError(f"--host = {host!r}, --port = {port}: expected an address of this machine and a free "
                                 f"port ({errors.first_line(error)})") from None
    try:
        for name, folder in named(folders).items():
            print(f"{name}: opening and compiling", flush=True)
            shown.append(panels.prepared(name, folder, lines))
        asks.example = panels.example(shown)
        server.server_activate()
        command.listen()
        print(f"ready: open {server.where()} in a browser; Ctrl-C ends", flush=True)
        server.serve_forever()
    finally:
        server.socket.close()
        asks.lock.acquire(timeout=5)  # nothing is computed while the process ends


def named(folders: Sequence[str]) -> dict[str, str]:
    """Folders by the shortest ends of their paths that tell them apart."""
    from mlm.base import errors

    places = [Path(folder).absolute().parts for folder in folders]
    errors.require(len(set(places)) == len(places), "serve", list(folders), "each run once")
    depth = 1
    while len({place[-depth:] for place in places}) < len(places):
        depth += 1
    return {str(Path(*place[-depth:])): folder for place, folder in zip(places, folders, strict=True)}
