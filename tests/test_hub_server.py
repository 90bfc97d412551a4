"""What goes to huggingface.co and comes from it, by a server on this machine that answers as its interface does."""

import base64
import hashlib
import http.server
import json
import threading

import hub_folders
import pytest

from mlm.base import config, errors
from mlm.cli import command, use
from mlm.data.tasks import splits
from mlm.data.text import files, remote_files
from mlm.inference import export

constants = pytest.importorskip("huggingface_hub.constants", reason="the extra hub is not installed")
COMMIT = 40 * "a"
UPLOADED: dict[str, dict[str, bytes]] = {}  # contents by path, by branch
LARGE: dict[str, bytes] = {}  # contents of large files, by their SHA-256
NAMES = ("/lab/texts", "/lab/a", "/repos/create", "/validate-yaml")  # what there is at all
STORED = {"data/0.jsonl": b'{"text": "one"}\n{"text": "two"}\n', "README.md": b"# not a document"}


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves STORED as the data set lab/texts, and keeps what is uploaded to the model lab/a."""

    def answer(self, content, **headers):
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200 if any(name in self.path for name in NAMES) else 404)
        for name, value in {"Content-Length": str(len(raw)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw if self.command != "HEAD" else b"")

    def do_GET(self):
        number = lambda raw: hashlib.sha1(raw).hexdigest()
        if "/resolve/" in self.path:
            raw = STORED[self.path.partition(f"{COMMIT}/")[2]]
            self.answer(raw, ETag=f'"{number(raw)}"', X_Repo_Commit=COMMIT)
        elif "/lab/a/tree/" in self.path:
            there = UPLOADED.get(self.path.split("/tree/")[1].partition("?")[0], {})
            self.answer([{"type": "file", "path": name, "size": 1, "oid": COMMIT} for name in there])
        elif "/tree/" in self.path:
            listed = [
                {"type": "file", "path": name, "size": len(raw), "oid": number(raw)} for name, raw in STORED.items()
            ]
            self.answer(listed)
        else:
            self.answer({"id": "lab/texts", "sha": COMMIT, "siblings": [{"rfilename": name} for name in STORED]})

    do_HEAD = do_GET

    def do_POST(self):
        body, (*_, action, branch) = self.rfile.read(int(self.headers["Content-Length"])), self.path.split("/")
        address = f"http://127.0.0.1:{self.server.server_address[1]}/lab/a"
        if action == "preupload":
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in paths}
            files = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
            self.answer({"files": files})
        elif branch == "batch":
            upload = lambda file: {"upload": {"href": f"{address}/large/{file['oid']}"}}
            objects = [file | {"actions": upload(file)} for file in json.loads(body)["objects"]]
            self.answer({"transfer": "basic", "objects": objects})
        elif action == "commit":
            values = {"file": [], "lfsFile": [], "header": [], "deletedFile": []}
            for line in map(json.loads, body.splitlines()):
                values[line["key"]].append(line["value"])
            there = UPLOADED.setdefault(branch, {})
            there |= {file["path"]: base64.b64decode(file["content"]) for file in values["file"]}
            there |= {file["path"]: LARGE[file["oid"]] for file in values["lfsFile"]}
            for file in values["deletedFile"]:
                del there[file["path"]]
            self.answer({"commitUrl": f"{address}/commit/{COMMIT}", "commitOid": COMMIT, "success": True})
        else:  # reads the README.md, creates the repository, or a branch
            self.answer({"url": address, "id": "lab/a"})

    def do_PUT(self):
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        assert hashlib.sha256(raw).hexdigest() == self.path.rpartition("/")[2]
        LARGE[hashlib.sha256(raw).hexdigest()] = raw
        self.answer({})

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{running.server_address[1]}"
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + template)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_none")
        remote_files.fetch_files.cache_clear()
        yield
        running.shutdown()


def test_a_data_set_is_downloaded_and_read(server):
    found = files.find_files("config.data.path", "hf:datasets/lab/texts", "text")
    documents = files.read_documents(found, files.make_boundary("", "file"), "", "text")
    assert [document.text for document in documents] == ["one", "two"] and len(found) == 1
    labelled = config.Labelled(train="0.jsonl", dev="0.jsonl", text_column="text")
    task = config.Data(task="own", task_path="hf:datasets/lab/texts/data", labelled=labelled)
    assert splits.find_files(task)["train"].read_bytes() == STORED["data/0.jsonl"]
    with pytest.raises(errors.ConfigError, match=r"config\.data\.path = 'hf:datasets/lab/none': cannot be downloaded"):
        files.find_files("config.data.path", "hf:datasets/lab/none", "text")


def test_a_folder_is_uploaded_and_each_milestone_to_its_branch(server, tmp_path):
    """What an earlier upload has that this one lacks goes, and nothing else of the repository."""
    own = {"logo.png": b"", "README.md": b"old", "notes/vocab.txt": b""}
    stale = (
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "modules.json",
        "1_Pooling/config.json",
    )
    UPLOADED["main"] = own | dict.fromkeys((*stale, "vocab.txt", "modeling_mlm.py"), b"")
    UPLOADED["step4"] = dict.fromkeys(("model.safetensors", "generator/config.json"), b"")
    (tmp_path / "out" / "step4").mkdir(parents=True)
    for name in ("README.md", "model.safetensors", "step4/config.json"):
        (tmp_path / "out" / name).write_text(name)
    assert export.push_folder(str(tmp_path / "out"), "lab/a") == ["main", "step4"]
    uploaded = {"README.md": b"README.md", "model.safetensors": b"model.safetensors"}
    assert {"main": own | uploaded, "step4": {"config.json": b"step4/config.json"}} == UPLOADED


def test_a_refused_upload_is_a_line_and_leaves_what_was_exported(server, plain, tmp_path, capsys):
    words = ["export", str(plain["bert"]), str(tmp_path / "out"), "--push=lab/none"]
    with pytest.raises(SystemExit, match="2"):
        command.run_main(lambda: use.main(words))
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: --push = 'lab/none': cannot be uploaded") and line.endswith("out is complete")
    hub_folders.same_tensors(plain["bert"], tmp_path / "out")
