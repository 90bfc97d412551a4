"""What `mlm export` writes and uploads beside a model: files for sentence-transformers, milestones, branches."""

import base64
import dataclasses
import http.server
import json
import threading

import jax
import numpy as np
import pytest
from small import small_config
from test_torch_export import LENGTH, build_model, load_torch

import mlm
from mlm.base import errors
from mlm.inference import export, hub_upload

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 " * 9]  # the last is longer than a row


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(a model, its folder with one milestone)."""
    model, folder = build_model(small_config(pack__seq_len=LENGTH)), tmp_path_factory.mktemp("export") / "out"
    milestone = dataclasses.replace(model, milestone=4, params=jax.tree.map(lambda x: x + 1, model.params))
    export.save_pretrained(model, str(folder), sentence_transformers=True, milestones=[milestone])
    return model, folder


def test_a_folder_for_sentence_transformers_encodes_as_we_do(exported, request):
    model, folder = exported
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == ["Transformer", "Pooling"]
    assert all((folder / module["path"]).is_dir() for module in modules)
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == LENGTH
    sentence_transformers = pytest.importorskip("sentence_transformers")
    request.getfixturevalue("load_torch")
    there = sentence_transformers.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(there.encode(TEXTS), model.encode(TEXTS), rtol=0, atol=1e-5)


def test_a_milestone_has_a_whole_folder_of_its_own(exported):
    model, folder = exported
    names = {path.name for path in folder.iterdir()}
    assert {path.name for path in (folder / "step4").iterdir()} == names - {"step4"}
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y + 1), mlm.load(folder / "step4").params, model.params)
    assert "after 4 updates" in (folder / "step4/README.md").read_text()


def test_the_branches_of_a_repository_have_the_files_of_the_folders(exported, monkeypatch):
    constants = pytest.importorskip("huggingface_hub").constants
    calls, commits = [], {}

    class Hub(http.server.BaseHTTPRequestHandler):
        """The part of huggingface.co's API that an upload of small files calls."""

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            calls.append(self.path)
            answer = {
                "url": "https://huggingface.co/lab/a",
                "commitUrl": "https://huggingface.co/lab/a/commit/1",
                "commitOid": "1",
            }
            if "/preupload/" in self.path:
                names = [entry["path"] for entry in json.loads(body)["files"]]
                answer = {"files": [{"path": x, "uploadMode": "regular", "shouldIgnore": False} for x in names]}
            if "/commit/" in self.path:
                values = [json.loads(line)["value"] for line in body.splitlines()]
                commits[self.path.rpartition("/")[2]] = {
                    value["path"]: base64.b64decode(value["content"]) for value in values if "path" in value
                }
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        folder = exported[1]
        assert hub_upload.push_folder(str(folder), "lab/a") == ["main", "step4"]
        server.shutdown()
    assert "/api/models/lab/a/branch/step4" in calls
    for branch, there in (("main", folder), ("step4", folder / "step4")):
        files = {str(path.relative_to(there)): path for path in there.rglob("*") if path.is_file()}
        assert commits[branch] == {name: x.read_bytes() for name, x in files.items() if not name.startswith("step")}
    with pytest.raises(errors.ConfigError, match="--push = 'lab/a': cannot be uploaded"):
        hub_upload.push_folder(str(folder), "lab/a")  # without the server


def test_a_repository_has_an_owner_and_a_name():
    for name in ("a", "lab/a/b", "/a", "lab/a b"):
        with pytest.raises(errors.ConfigError, match="ORG/NAME"):
            hub_upload.check_repository(name)
