"""A fake wandb server that records runs."""

import gzip
import json
import os
import re
import subprocess
import sys
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REJECTED = {"errors": [{"message": "user is not logged in"}]}


class WandbServer:
    """Listens on a local port until stopped.

    Attributes:
        history: rows logged for each run id, in order of arrival.
        completed: exit codes reported for each run id.
        views: workspaces that were saved.
    """

    def __init__(self, status=200):
        """Answers every request with ``status``; anything but 200 is an error."""
        self.history = defaultdict(list)
        self.completed = defaultdict(list)
        self.views = []
        self.status = status
        self._connections = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self):
        """Closes the port and all connections."""
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._connections):
            connection.close()

    def _handler(outer):  # noqa: N805  (the handler has its own self)
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                outer._connections.add(self.connection)

            def finish(self):
                outer._connections.discard(self.connection)
                super().finish()

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                answer = json.dumps(outer._answer(self.path, body) if outer.status == 200 else REJECTED).encode()
                self.send_response(outer.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_PUT = do_POST

            def log_message(self, *_):
                """Suppresses the request log."""

        return Handler

    def _answer(self, path, body):
        if path == "/graphql":
            query = json.loads(body)
            named = re.search(r"(?:query|mutation)\s+(\w+)", query["query"])
            answers = {
                "Viewer": self._viewer,
                "GetDefaultEntity": self._viewer,
                "UpsertView2": self._view,
                "UpsertBucket": self._upserted,
                "RunResumeStatus": self._resume_status,
                "CreateRunFiles": self._files,
            }
            make = answers.get(named[1] if named else "")
            return {"data": make(query.get("variables") or {}) if make else {}}
        stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path)
        if stream:
            self._receive(stream[1], json.loads(body))
        return {}

    def _receive(self, run, body):
        rows = body.get("files", {}).get("wandb-history.jsonl")
        if rows is not None:
            # Like the real server, data sent at an offset replaces what was there.
            self.history[run][rows["offset"] :] = [json.loads(row) for row in rows["content"]]
        if body.get("complete"):
            self.completed[run].append(body["exitcode"])

    def _viewer(self, query):
        viewer = {"id": "viewer", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer}

    def _view(self, query):
        self.views.append(query)
        return {"upsertView": {"view": {"id": "view", "name": query["name"]}, "inserted": True}}

    def _upserted(self, query):
        self.history[query["name"]]
        project = {"id": "project", "name": query.get("project") or "p", "entity": {"id": "entity", "name": "me"}}
        bucket = {"id": "bucket", "name": query["name"], "displayName": query.get("displayName"), "project": project}
        return {"upsertBucket": {"bucket": {**bucket, "historyLineCount": None}, "inserted": True}}

    def _resume_status(self, query):
        model = {"id": "project", "name": "p", "entity": {"id": "entity", "name": "me"}, "bucket": None}
        if query["name"] not in self.history:
            return {"model": model}
        rows = self.history[query["name"]]
        bucket = {"id": "bucket", "name": query["name"], "displayName": "", "notes": None, "tags": []}
        bucket |= {"logLineCount": 0, "eventsLineCount": 0, "historyLineCount": len(rows), "eventsTail": "[]"}
        bucket |= {"historyTail": json.dumps([json.dumps(row) for row in rows[-1:]])}
        bucket |= {"summaryMetrics": json.dumps(rows[-1] if rows else {}), "config": "{}", "wandbConfig": '{"t": 1}'}
        return {"model": {**model, "bucket": bucket}}

    def _files(self, query):
        files = [{"name": name, "uploadUrl": f"{self.url}/upload"} for name in query["files"]]
        return {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": files}}


def synced(run_dir):
    """A server to which wandb's own command has uploaded what wandb wrote into the directory of a run."""
    server = WandbServer()
    environment = {**os.environ, "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": server.url}
    command = [sys.executable, "-m", "wandb", "sync", str(run_dir / "wandb")]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    server.stop()
    return server
