"""A Docker Engine in this process: the part of its HTTP API that l2rtui uses, on a Unix socket or a port.

It stores networks and containers, multiplexes logs into chunks, upgrades connections for exec, and fails on
request.
"""

from __future__ import annotations

import base64
import gzip
import http.server
import io
import json
import re
import socketserver
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

API_VERSION = "1.47"
NEVER = "0001-01-01T00:00:00Z"
START_NS = 1_700_000_000_000_000_000
"""Time of the first event; each further one is a second later."""


def stamp(nanoseconds: int) -> str:
    """Format a time like the Engine."""
    head = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{head}.{nanoseconds % 1_000_000_000:09}Z"


def frame(stream: int, content: bytes) -> bytes:
    """A piece of output, multiplexed like by the Engine."""
    return bytes([stream, 0, 0, 0]) + len(content).to_bytes(4, "big") + content


def _run_here(argv: list[str]) -> tuple[bytes, int]:
    done = subprocess.run(argv, capture_output=True, check=False, timeout=30)
    return frame(1, done.stdout) + frame(2, done.stderr), done.returncode


class Refusal(Exception):  # noqa: N818  (an answer, not a failure of the fake)
    """An answer with a status of 400 or more."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FakeDockerEngine:
    """One Engine.

    Attributes:
        images: Names of the existing images.
        requests: Method and path of every request, without the version.
        exec_output: Given a command, the frames it writes immediately and its exit code.
        is_live: Times are real, each container prints a greeting when it starts, and commands in it really run on
            this machine.
    """

    def __init__(self, path: str = "", *, images: tuple[str, ...] = ("img:1",), is_live: bool = False) -> None:
        self.registry_digests: dict[str, str] = {}
        self.images = {
            name: {"Id": f"sha256:{number:064x}", "RepoTags": [name]} for number, name in enumerate(images)
        }
        self.info: dict[str, Any] = {"Name": "My.Host", "NCPU": 4, "MemTotal": 1 << 33, "ServerVersion": "27.0"}
        self.networks: dict[str, dict[str, Any]] = {}
        self.containers: dict[str, dict[str, Any]] = {}
        self.files: dict[str, dict[str, tuple[tarfile.TarInfo, bytes]]] = {}
        self.logs: dict[str, list[tuple[int, int, bytes]]] = {}
        self.execs: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []
        self.pushes: list[dict[str, Any]] = []
        self.stream_messages: list[dict[str, Any]] = []
        self.exec_output: Callable[[list[str]], tuple[bytes, int]] = (
            _run_here if is_live else lambda _: (frame(1, b"out"), 0)
        )
        self.changed = threading.Condition()
        self.cut = threading.Event()
        """If set, streams break off in the middle of a chunk."""
        self.running = threading.Event()
        """If not set, requests are accepted but not answered, like by a stopped Engine."""
        self.running.set()
        self.streams = 0
        """Streams that are open now."""
        self._failures: list[list[Any]] = []
        self._clock = START_NS
        self.is_live = is_live
        if path:
            self._server: socketserver.BaseServer = _UnixServer(path, self)
            self.url = f"unix://{path}"
        else:
            server = _TcpServer(self)
            self._server, self.url = server, f"tcp://127.0.0.1:{server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all streams and stop."""
        self.cut.set()
        self.running.set()
        self.wake()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # --- interface for tests ---------------------------------------------------------------------------------
    def fail(self, method: str, path: str, status: int, message: str, times: int = 1) -> None:
        """Refuse the next requests to paths that match a pattern."""
        self._failures.append([method, re.compile(path), status, message, times])

    def tick(self) -> int:
        """The next moment, in nanoseconds."""
        self._clock = time.time_ns() if self.is_live else self._clock + 1_000_000_000
        return self._clock

    def by_name(self, name: str) -> dict[str, Any]:
        """A container by its name."""
        return next(body for body in self.containers.values() if body["Name"] == f"/{name}")

    def write(self, name: str, text: str, stream: int = 1, moment: int | None = None) -> None:
        """Write to a container's log; without a line end, the next write continues the line."""
        self.logs[self.by_name(name)["Id"]].append((moment or self.tick(), stream, text.encode()))
        self.wake()

    def end(self, name: str, code: int = 0, **state: Any) -> None:
        """End a container's process."""
        self.by_name(name)["State"] |= {
            "Status": "exited", "ExitCode": code, "FinishedAt": stamp(self.tick()), "Pid": 0, **state,
        }  # fmt: skip
        self.wake()

    def restart(self, name: str) -> None:
        """Start it again, like the Engine by its restart policy."""
        body = self.by_name(name)
        body["RestartCount"] += 1
        body["State"] |= {"Status": "running", "StartedAt": stamp(self.tick()), "Pid": 4243}
        self.wake()

    def event(self, action: str, name: str, **attributes: str) -> None:
        """Record an event."""
        body = self.by_name(name)
        actor = {"ID": body["Id"], "Attributes": {"name": name, **body["Config"]["Labels"], **attributes}}
        moment = time.time_ns()
        self.events.append({"Type": "container", "Action": action, "Actor": actor, "timeNano": moment})
        self.wake()

    def wake(self) -> None:
        """Let streams check for new data."""
        with self.changed:
            self.changed.notify_all()

    # --- answers ---------------------------------------------------------------------------------------------
    def check_failures(self, method: str, path: str) -> None:
        """Raise the failure requested by a test."""
        for failure in self._failures:
            if failure[0] == method and failure[1].search(path) and failure[4] > 0:
                failure[4] -= 1
                raise Refusal(failure[2], failure[3])

    def container(self, name: str) -> dict[str, Any]:
        """A container by id or name."""
        for identity, body in self.containers.items():
            if name in (identity, body["Name"].lstrip("/")):
                return body
        raise Refusal(404, f"No such container: {name}")

    def create(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make a container."""
        if any(other["Name"] == f"/{name}" for other in self.containers.values()):
            raise Refusal(409, f"Conflict. The container name {name} is already in use.")
        if body["Image"] not in self.images:
            raise Refusal(404, f"No such image: {body['Image']}")
        identity = f"{len(self.requests):064x}"
        config = {key: value for key, value in body.items() if key not in ("HostConfig", "NetworkingConfig")}
        self.containers[identity] = {
            "Id": identity, "Name": f"/{name}", "Image": self.images[body["Image"]]["Id"],
            "Created": stamp(self.tick()), "Path": (body.get("Entrypoint") or body.get("Cmd") or [""])[0],
            "Args": body.get("Cmd") or [], "RestartCount": 0, "Mounts": [],
            "State": {
                "Status": "created", "ExitCode": 0, "Error": "", "OOMKilled": False, "Pid": 0,
                "StartedAt": NEVER, "FinishedAt": NEVER,
            },
            "Config": {"Labels": {}, "Env": [], **config},
            "HostConfig": {
                "DeviceRequests": None, "Memory": 0, "ShmSize": 1 << 26, "RestartPolicy": {"Name": "no"},
                **body["HostConfig"],
            },
            "NetworkSettings": {"Networks": {body["HostConfig"]["NetworkMode"]: {"IPAddress": ""}}},
        }  # fmt: skip
        self.files[identity] = {}
        self.logs[identity] = []
        return {"Id": identity, "Warnings": []}

    def set_running(self, body: dict[str, Any]) -> None:
        """Start a container."""
        body["State"] |= {"Status": "running", "StartedAt": stamp(self.tick()), "Pid": 4242}
        for network in body["NetworkSettings"]["Networks"].values():
            network["IPAddress"] = "127.0.0.1"
        if self.is_live:
            self.write(body["Name"].lstrip("/"), "hello\n")
        self.event("start", body["Name"].lstrip("/"))

    def remove_network(self, identity: str) -> None:
        """Remove a network without containers."""
        network = self.networks.get(identity)
        if network is None:
            raise Refusal(404, f"network {identity} not found")
        if any(network["Name"] in body["NetworkSettings"]["Networks"] for body in self.containers.values()):
            raise Refusal(403, f"network {network['Name']} has active endpoints")
        del self.networks[identity]

    def unpack(self, identity: str, archive: bytes) -> None:
        """Put an archive into a container."""
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            for member in packed.getmembers():
                file = packed.extractfile(member) if member.isfile() else None
                self.files[identity]["/" + member.name] = (member, file.read() if file else b"")

    def pack(self, identity: str, path: str) -> bytes:
        """An archive of one file or folder; a folder that was never put there is a new volume, owned by root."""
        folder = tarfile.TarInfo(path.strip("/").rpartition("/")[2])
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        member, content = self.files[identity].get(path, (folder, b""))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.addfile(member, io.BytesIO(content))
        return packed.getvalue()

    def log_blocks(self, body: dict[str, Any], query: dict[str, str]) -> Iterator[bytes]:
        """Frames of a container's log, then of new output until its process ends."""
        since, until = (_nanoseconds(query.get(name, "0")) for name in ("since", "until"))
        lines = self.logs[body["Id"]]
        chosen = [line for line in lines if line[0] >= since and (not until or line[0] < until)]
        if query.get("tail", "all") != "all":
            chosen = chosen[-int(query["tail"]) :]
        for moment, stream, content in chosen:
            yield frame(stream, _timed(moment, query) + content)
        sent = len(lines)
        while query.get("follow") == "1":
            self._wait(lambda count=sent: len(lines) > count or body["State"]["Status"] != "running")
            has_ended = body["State"]["Status"] != "running"  # before the lines: those of its end are sent too
            for moment, stream, content in lines[sent:]:
                sent += 1
                yield frame(stream, _timed(moment, query) + content)
            if has_ended or self.cut.is_set():
                return

    def event_blocks(self, query: dict[str, str]) -> Iterator[bytes]:
        """Events as lines of JSON; endless unless an end was requested."""
        filters, sent = json.loads(query.get("filters", "{}")), 0
        while True:
            for event in self.events[sent:]:
                sent += 1
                if _matches(event["Actor"]["Attributes"], filters) and event["Actor"]["ID"] in filters.get(
                    "container", [event["Actor"]["ID"]]
                ):
                    yield json.dumps(event).encode() + b"\n"
            if "until" in query or self.cut.is_set():
                return
            self._wait(lambda count=sent: len(self.events) > count)

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            self.changed.wait_for(lambda: condition() or self.cut.is_set(), 30.0)


def _timed(moment: int, query: dict[str, str]) -> bytes:
    return f"{stamp(moment)} ".encode() if query.get("timestamps") == "1" else b""


def _nanoseconds(text: str) -> int:
    seconds, _, rest = text.partition(".")
    return int(seconds) * 1_000_000_000 + int(rest.ljust(9, "0")[:9] or 0)


def _matches(labels: dict[str, str], filters: dict[str, list[str]]) -> bool:
    for wish in filters.get("label", ()):
        key, equals, value = wish.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: str, engine: FakeDockerEngine) -> None:
        self.engine = engine
        super().__init__(path, _Handler)


class _TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True

    def __init__(self, engine: FakeDockerEngine) -> None:
        self.engine = engine
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _UnixServer

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        engine, parts = self.server.engine, urlsplit(self.path)
        self.engine = engine
        path = re.sub(r"^/v[0-9.]+", "", unquote(parts.path))
        self.query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.body = self._read_body()
        engine.running.wait()
        engine.requests.append((self.command, path))
        try:
            engine.check_failures(self.command, path)
            for method, pattern, answer in _ROUTES:
                match = re.fullmatch(pattern, path)
                if method == self.command and match:
                    answer(self, *match.groups())
                    return
            self._send(404, {"message": "page not found"})
        except Refusal as refusal:
            self._send(refusal.status, {"message": str(refusal)})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815  (http.server's names)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, status: int, document: Any = None) -> None:
        self._send_raw(status, b"" if document is None else json.dumps(document).encode())

    def _send_raw(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _send_chunks(self, blocks: Iterator[bytes], headers: dict[str, str] | None = None) -> None:
        self.send_response(200)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.engine.streams += 1
        try:
            for block in filter(None, blocks):
                self.wfile.write(f"{len(block):x}\r\n".encode() + block + b"\r\n")
            if self.engine.cut.is_set():  # half a chunk, and the connection is closed
                self.wfile.write(b"20\r\nhalf")
                self.close_connection = True
                return
            self.wfile.write(b"0\r\n\r\n")
        finally:
            self.engine.streams -= 1

    # --- one method for each path ----------------------------------------------------------------------------
    def version(self) -> None:
        self._send(200, {"ApiVersion": API_VERSION})

    def info(self) -> None:
        self._send(200, self.engine.info)

    def networks(self) -> None:
        filters = json.loads(self.query.get("filters", "{}"))
        self._send(200, [net for net in self.engine.networks.values() if _matches(net["Labels"], filters)])

    def create_network(self) -> None:
        body = json.loads(self.body)
        identity = f"net-{len(self.engine.requests)}"
        created = {"Id": identity, "Created": stamp(self.engine.tick()), **body}
        self.engine.networks[identity] = created
        self._send(201, {"Id": identity})

    def remove_network(self, identity: str) -> None:
        self.engine.remove_network(identity)
        self._send(204)

    def containers(self) -> None:
        filters = json.loads(self.query.get("filters", "{}"))
        self._send(
            200,
            [
                {
                    "Id": body["Id"],
                    "Names": [body["Name"]],
                    "State": body["State"]["Status"],
                    "Image": body["Config"]["Image"],
                    "Labels": body["Config"]["Labels"],
                    "Created": int(datetime.fromisoformat(body["Created"]).timestamp()),
                }
                for body in list(self.engine.containers.values())
                if _matches(body["Config"]["Labels"], filters)
            ],
        )

    def create_container(self) -> None:
        self._send(201, self.engine.create(self.query["name"], json.loads(self.body)))

    def inspect(self, name: str) -> None:
        self._send(200, self.engine.container(name))

    def start(self, name: str) -> None:
        self.engine.set_running(self.engine.container(name))
        self._send(204)

    def stop(self, name: str) -> None:
        body = self.engine.container(name)
        if body["State"]["Status"] == "running":
            self.engine.end(body["Name"].lstrip("/"), 143)
        self._send(204)

    def kill(self, name: str) -> None:
        self.engine.end(self.engine.container(name)["Name"].lstrip("/"), 128 + int(self.query["signal"]))
        self._send(204)

    def remove(self, name: str) -> None:
        del self.engine.containers[self.engine.container(name)["Id"]]
        self.engine.wake()
        self._send(204)

    def put_archive(self, name: str) -> None:
        self.engine.unpack(self.engine.container(name)["Id"], self.body)
        self._send(200)

    def get_archive(self, name: str) -> None:
        packed = self.engine.pack(self.engine.container(name)["Id"], self.query["path"])
        is_gzip = "gzip" in self.headers.get("Accept-Encoding", "")  # like the Engine, only for archives
        packed = gzip.compress(packed) if is_gzip else packed
        self._send_chunks(iter([packed[:100], packed[100:]]), {"Content-Encoding": "gzip"} if is_gzip else {})

    def logs(self, name: str) -> None:
        self._send_chunks(self.engine.log_blocks(self.engine.container(name), self.query))

    def events(self) -> None:
        self._send_chunks(self.engine.event_blocks(self.query))

    def create_exec(self, name: str) -> None:
        self.engine.container(name)
        identity = f"exec-{len(self.engine.execs)}"
        self.engine.execs[identity] = {"request": json.loads(self.body), "ExitCode": None, "sizes": []}
        self._send(201, {"Id": identity})

    def start_exec(self, identity: str) -> None:
        started = self.engine.execs[identity]
        request = started["request"]
        output, code = self.engine.exec_output(request["Cmd"])
        # In one piece with the head: a client that drops its buffered data loses these.
        self.wfile.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n" + output)
        if request["Tty"]:  # a shell: it ends at Ctrl-D, once it knows the size of its terminal
            while (key := self.rfile.read(1)) not in (b"\x04", b""):
                self.wfile.write(key)
            with self.engine.changed:
                self.engine.changed.wait_for(lambda: started["sizes"], 10.0)
        elif request["AttachStdin"]:
            started["input"] = self.rfile.read()
            self.wfile.write(frame(1, b"read " + started["input"]))
        started["ExitCode"] = code
        self.close_connection = True

    def attach(self, name: str) -> None:
        """Write a word to stderr, then echo typed input in capitals until `quit`."""
        container = self.engine.container(name)
        is_terminal = container["Config"].get("Tty")
        self.wfile.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")

        def say(stream: int, text: bytes) -> None:
            self.wfile.write(text if is_terminal else frame(stream, text))

        say(2, b"ready \x1b]0;title\x07\n")
        typed = b""
        while key := self.rfile.read(1):
            typed += key
            say(1, key.upper())
            if typed.endswith(b"quit"):
                break
        container["typed"] = typed
        self.close_connection = True

    def resize(self, name: str) -> None:
        self.engine.container(name).setdefault("sizes", []).append((int(self.query["w"]), int(self.query["h"])))
        self._send(200)

    def inspect_exec(self, identity: str) -> None:
        self._send(200, {"ExitCode": self.engine.execs[identity]["ExitCode"]})

    def resize_exec(self, identity: str) -> None:
        self.engine.execs[identity]["sizes"].append((self.query["w"], self.query["h"]))
        self.engine.wake()
        self._send(200)

    def images(self) -> None:
        self._send(200, [{"Id": image["Id"]} for image in self.engine.images.values()])

    def inspect_image(self, name: str) -> None:
        for key, image in self.engine.images.items():
            if name in (key, image["Id"]):
                self._send(200, image)
                return
        raise Refusal(404, f"No such image: {name}")

    def distribution(self, name: str) -> None:
        if name not in self.engine.registry_digests:
            raise Refusal(500, f"{name}: no such host")
        self._send(200, {"Descriptor": {"digest": self.engine.registry_digests[name]}})

    def tag_image(self, name: str) -> None:
        image = next(image for key, image in self.engine.images.items() if name in (key, image["Id"]))
        self.engine.images[f"{self.query['repo']}:{self.query['tag']}"] = image
        self._send(201)

    def push_image(self, name: str) -> None:
        auth = json.loads(base64.urlsafe_b64decode(self.headers["X-Registry-Auth"]))
        self.engine.pushes.append({"name": name, "tag": self.query["tag"], "auth": auth})
        self._send_chunks(self._messages())

    def build_image(self) -> None:
        with tarfile.open(fileobj=io.BytesIO(self.body)) as context:
            self.engine.pushes.append({"context": context.getnames(), **self.query})
        self._send_chunks(self._messages())

    def _messages(self) -> Iterator[bytes]:
        for message in self.engine.stream_messages:
            yield json.dumps(message).encode() + b"\r\n"


_ROUTES: tuple[tuple[str, str, Callable[..., None]], ...] = (
    ("GET", "/version", _Handler.version),
    ("GET", "/info", _Handler.info),
    ("GET", "/networks", _Handler.networks),
    ("POST", "/networks/create", _Handler.create_network),
    ("DELETE", "/networks/([^/]+)", _Handler.remove_network),
    ("GET", "/containers/json", _Handler.containers),
    ("POST", "/containers/create", _Handler.create_container),
    ("GET", "/containers/([^/]+)/json", _Handler.inspect),
    ("POST", "/containers/([^/]+)/start", _Handler.start),
    ("POST", "/containers/([^/]+)/stop", _Handler.stop),
    ("POST", "/containers/([^/]+)/kill", _Handler.kill),
    ("DELETE", "/containers/([^/]+)", _Handler.remove),
    ("PUT", "/containers/([^/]+)/archive", _Handler.put_archive),
    ("GET", "/containers/([^/]+)/archive", _Handler.get_archive),
    ("GET", "/containers/([^/]+)/logs", _Handler.logs),
    ("GET", "/events", _Handler.events),
    ("POST", "/containers/([^/]+)/attach", _Handler.attach),
    ("POST", "/containers/([^/]+)/resize", _Handler.resize),
    ("POST", "/containers/([^/]+)/exec", _Handler.create_exec),
    ("POST", "/exec/([^/]+)/start", _Handler.start_exec),
    ("GET", "/exec/([^/]+)/json", _Handler.inspect_exec),
    ("POST", "/exec/([^/]+)/resize", _Handler.resize_exec),
    ("GET", "/images/json", _Handler.images),
    ("GET", "/images/(.+)/json", _Handler.inspect_image),
    ("GET", "/distribution/(.+)/json", _Handler.distribution),
    ("POST", "/images/(.+)/tag", _Handler.tag_image),
    ("POST", "/images/(.+)/push", _Handler.push_image),
    ("POST", "/build", _Handler.build_image),
)
