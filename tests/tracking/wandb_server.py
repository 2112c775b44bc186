"""A fake wandb server that records runs."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REFUSED = {"errors": [{"message": "user is not logged in"}]}


class WandbServer:
    """Listens on a local port until stopped.

    Attributes:
        history: rows logged for each run id, in order of arrival.
        completed: exit codes reported for each run id.
    """

    def __init__(self, status: int = 200) -> None:
        """Answers every request with ``status``; anything but 200 is a refusal."""
        self.history: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.completed: dict[str, list[int]] = defaultdict(list)
        self.status = status
        self._connections: set[socket.socket] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        """Closes the port and all connections."""
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._connections):
            connection.close()

    def _handler(outer) -> type[BaseHTTPRequestHandler]:  # noqa: N805  (the handler has its own self)
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer._connections.add(self.connection)

            def finish(self) -> None:
                outer._connections.discard(self.connection)
                super().finish()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                answer = json.dumps(outer._answer(self.path, body) if outer.status == 200 else REFUSED).encode()
                self.send_response(outer.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_PUT = do_POST

            def log_message(self, *_: object) -> None:
                """Suppresses the request log."""

        return Handler

    def _answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/graphql":
            asked = json.loads(body)
            named = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
            answers = {
                "UpsertBucket": self._upserted,
                "RunResumeStatus": self._resume_status,
                "CreateRunFiles": self._files,
            }
            make = answers.get(named[1] if named else "")
            return {"data": make(asked["variables"]) if make else {}}
        stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path)
        if stream:
            self._receive(stream[1], json.loads(body))
        return {}

    def _receive(self, run: str, told: dict[str, Any]) -> None:
        rows = told.get("files", {}).get("wandb-history.jsonl")
        if rows is not None:
            # Like the real server, data sent at an offset replaces what was there.
            self.history[run][rows["offset"] :] = [json.loads(row) for row in rows["content"]]
        if told.get("complete"):
            self.completed[run].append(told["exitcode"])

    def _upserted(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.history[asked["name"]]
        project = {"id": "project", "name": asked.get("project") or "p", "entity": {"id": "entity", "name": "me"}}
        bucket = {"id": "bucket", "name": asked["name"], "displayName": asked.get("displayName"), "project": project}
        return {"upsertBucket": {"bucket": {**bucket, "historyLineCount": None}, "inserted": True}}

    def _resume_status(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["name"] not in self.history:
            return {"model": {"id": "project", "name": "p", "entity": {"id": "entity", "name": "me"}, "bucket": None}}
        rows = self.history[asked["name"]]
        bucket = {
            "id": "bucket",
            "name": asked["name"],
            "displayName": "",
            "notes": None,
            "tags": [],
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyLineCount": len(rows),
            "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]),
            "eventsTail": "[]",
            "summaryMetrics": json.dumps(rows[-1] if rows else {}),
            "config": "{}",
            "wandbConfig": '{"t": 1}',
        }
        return {"model": {"id": "project", "name": "p", "entity": {"id": "entity", "name": "me"}, "bucket": bucket}}

    def _files(self, asked: dict[str, Any]) -> dict[str, Any]:
        files = [{"name": name, "uploadUrl": f"{self.url}/upload"} for name in asked["files"]]
        return {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": files}}
