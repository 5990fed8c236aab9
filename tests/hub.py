"""A hub of models on this machine: the part of the protocol that fetching a file uses, and ways in which it fails.

A question after a file (HEAD) is answered with its commit, its size and its SHA-256, and leads to another address, as a
content network does; fetching (GET) understands ranges.
"""

import hashlib
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import safetensors.torch

COMMIT = "c0ffee" + 34 * "0"


@dataclass
class Hub:
    """What the hub serves, and what it was asked.

    Attributes:
        address: of the hub.
        contents: address of another server, which the hub sends for contents.
        files: contents by repository and name: "timm/net/model.safetensors".
        gated: repositories that are given to those who accepted the licence.
        promised: SHA-256 that is promised instead of that of the content, by repository and name.
        cuts: connections that are cut in the middle of a file before one is served whole.
        requests: method, path and range of every request.
    """

    address: str = ""
    contents: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    promised: dict[str, str] = field(default_factory=dict)
    cuts: int = 0
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def put(self, name, model):
        """Publishes the weights of a network under the name that timm has for it."""
        tensors = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
        self.files[f"timm/{name}/model.safetensors"] = safetensors.torch.save(tensors)


def make_handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, status, headers, content=b""):
            self.send_response(status)
            for key, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self):
            self.serve()

        def do_GET(self):
            self.serve()

        def serve(self):
            hub.requests.append((self.command, self.path, self.headers.get("Range")))
            if self.path.startswith("/content/"):
                return self.send(hub.files[self.path.removeprefix("/content/")])
            asked = re.fullmatch(r"/([^/]+/[^/]+)/resolve/main/([^/]+)", self.path)
            repo, name = asked.groups() if asked else ("", "")
            if repo in hub.gated:
                return self.answer(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
            if not any(file.startswith(f"{repo}/") for file in hub.files):
                return self.answer(404, {"X-Error-Code": "RepoNotFound"})
            if (content := hub.files.get(f"{repo}/{name}")) is None:
                return self.answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            digest = hub.promised.get(f"{repo}/{name}") or hashlib.sha256(content).hexdigest()
            headers = {"X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{digest}"'}
            headers |= {"ETag": '"of the pointer"', "Location": f"{hub.contents}/content/{repo}/{name}"}
            return self.answer(302, headers)

        def send(self, content):
            begin = int(re.sub(r"\D", "", self.headers.get("Range") or "0"))
            rest = content[begin:]
            headers = {"ETag": '"content"'}
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            if hub.cuts and self.command == "GET":
                hub.cuts -= 1
                self.send_response(206 if begin else 200)
                for key, value in {**headers, "Content-Length": str(len(rest))}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(rest[: len(rest) // 2])
                self.wfile.flush()
                self.close_connection = True
                return None
            return self.answer(206 if begin else 200, headers, rest)

    return Handler


@contextmanager
def serving_hub():
    """A hub that listens on a port of this machine."""
    hub = Hub()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), make_handler(hub)) for _ in range(2)]
    hub.address, hub.contents = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def use_hub(hub, folder, monkeypatch):
    """Points huggingface_hub of this process to the hub, with an empty cache in `folder`."""
    from huggingface_hub import constants, file_download

    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    for module in (constants, file_download):  # older versions have copies
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
