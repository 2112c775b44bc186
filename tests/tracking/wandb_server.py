"""A fake wandb server that records runs and their artifacts."""

import json
import os
import re
import subprocess
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REJECTED = {"errors": [{"message": "user is not logged in"}]}
PROJECT = {"id": "project", "internalId": "project", "name": "p", "entity": {"id": "entity", "name": "me"}}


@dataclass
class Artifact:
    """An artifact that a run logged.

    Attributes:
        request: what wandb sent about it: its name, type, run and metadata.
        files: their contents by name.
    """

    request: dict
    files: dict[str, bytes] = field(default_factory=dict)


class Handler(BaseHTTPRequestHandler):
    """Hands each request to its server, of the class below."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        answer = json.dumps(self.server.answer(self.path, body) if self.server.status == 200 else REJECTED).encode()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST

    def log_message(self, *_):
        """Suppresses the request log."""


class WandbServer(ThreadingHTTPServer):
    """Listens on a local port until stopped.

    Attributes:
        runs: what was sent about each run id besides: its project, names, group, tags and configuration.
        history: rows logged for each run id, in order of arrival.
        completed: exit codes reported for each run id.
        artifacts: those that were uploaded and committed, by name.
        views: workspaces that were saved.
        rejection: why artifacts are rejected; empty to accept them.
        status: of every answer; with another one than 200 every request is an error.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs = defaultdict(dict)
        self.history = defaultdict(list)
        self.completed = defaultdict(list)
        self.artifacts = {}
        self.views = []
        self.rejection = ""
        self.status = 200
        self._begun = []
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self):
        """Closes the port; a connection ends with its answer."""
        self.shutdown()
        self.server_close()

    def answer(self, path, body):
        if path == "/graphql":
            query = json.loads(body)
            named = re.search(r"(?:query|mutation)\s+(\w+)", query["query"])
            if self.rejection and named and named[1] == "CreateArtifact":
                return {"errors": [{"message": self.rejection}]}
            answer = getattr(self, f"_{named[1]}", None) if named else None
            return {"data": answer(query.get("variables") or {}) if answer else {}}
        stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path)
        if stream:
            self._receive(stream[1], json.loads(body))
        uploaded = re.fullmatch(r"/artifacts/(\d+)/(.*)", path)
        if uploaded:
            self._begun[int(uploaded[1])].files[uploaded[2]] = body
        return {}

    def _receive(self, run, body):
        rows = body.get("files", {}).get("wandb-history.jsonl")
        if rows is not None:
            # Like the real server, data sent at an offset replaces what was there.
            self.history[run][rows["offset"] :] = [json.loads(row) for row in rows["content"]]
        if body.get("complete"):
            self.completed[run].append(body["exitcode"])

    # The answers to GraphQL's operations, by their names.

    def _Viewer(self, query):
        return {"viewer": {"id": "viewer", "entity": "me", "username": "me", "teams": {"edges": []}}}

    _GetDefaultEntity = _Viewer

    def _UpsertView2(self, query):
        self.views.append(query)
        return {"upsertView": {"view": {"id": "view", "name": query["name"]}, "inserted": True}}

    def _UpsertBucket(self, query):
        self.history[query["name"]]
        self.runs[query["name"]] |= {key: value for key, value in query.items() if value is not None}
        project = PROJECT | {"name": query.get("project") or "p"}
        bucket = {"id": "bucket", "name": query["name"], "displayName": query.get("displayName"), "project": project}
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def _RunResumeStatus(self, query):
        if query["name"] not in self.history:
            return {"model": PROJECT | {"bucket": None}}
        rows = self.history[query["name"]]
        bucket = {"id": "bucket", "name": query["name"], "config": "{}", "historyLineCount": len(rows)}
        bucket |= {"logLineCount": 0, "eventsLineCount": 0, "eventsTail": "[]"}
        bucket |= {"historyTail": json.dumps([json.dumps(row) for row in rows[-1:]])}
        bucket |= {"summaryMetrics": json.dumps(rows[-1] if rows else {}), "wandbConfig": '{"t": 1}'}
        return {"model": PROJECT | {"bucket": bucket}}

    def _CreateRunFiles(self, query):
        files = [{"name": name, "uploadUrl": f"{self.url}/upload"} for name in query["files"]]
        return {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": files}}

    def _ArtifactType(self, query):
        return {"project": {"artifact": None}}

    def _CreateArtifact(self, query):
        self._begun.append(Artifact(query["input"]))
        number = str(len(self._begun) - 1)
        artifact = {"id": number, "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
        return {"createArtifact": {"artifact": artifact}}

    def _CreateArtifactManifest(self, query):
        file = {"id": "file", "uploadUrl": f"{self.url}/upload", "uploadHeaders": []}
        made = {"artifactManifest": {"id": "manifest", "file": file}}
        return {"createArtifactManifest": made, "updateArtifactManifest": made}

    _UpdateArtifactManifest = _CreateArtifactManifest

    def _CreateArtifactFiles(self, query):
        edges = []
        for file in query["input"]["artifactFiles"]:
            number, name = file["artifactID"], file["name"]
            node = {"storagePath": name, "uploadUrl": f"{self.url}/artifacts/{number}/{name}", "uploadHeaders": []}
            edges.append({"node": {**node, "uploadMultipartUrls": None, "artifact": {"id": number}}})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def _CommitArtifact(self, query):
        artifact = self._begun[int(query["artifactID"])]
        self.artifacts[artifact.request["artifactCollectionName"]] = artifact
        return {"commitArtifact": {"artifact": {"id": query["artifactID"], "digest": artifact.request["digest"]}}}

    def _ArtifactByID(self, query):
        request = self._begun[int(query["id"])].request
        sequence = {"__typename": "ArtifactSequence", "name": request["artifactCollectionName"], "project": PROJECT}
        described = {"__typename": "Artifact", "id": query["id"], "artifactSequence": sequence, "versionIndex": 0}
        described |= {"artifactType": {"name": request["artifactTypeName"]}, "description": None, "tags": []}
        described |= {"metadata": request["metadata"], "digest": request["digest"], "size": 0, "fileCount": 0}
        described |= {"ttlDurationSeconds": -2, "ttlIsInherited": True, "historyStep": None, "state": "COMMITTED"}
        described |= {"aliases": [], "commitHash": "c", "createdAt": "2026-01-01T00:00:00", "updatedAt": None}
        return {"artifact": described}


def without_a_login(home, **more):
    """The environment of a process that finds neither a login nor settings of wandb."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "NETRC"))}
    return {**kept, "HOME": str(home), **more}


def synced(run_dir):
    """A server to which wandb's own command has uploaded what wandb wrote into the directory of a run."""
    server = WandbServer()
    environment = {**os.environ, "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": server.url}
    command = [sys.executable, "-m", "wandb", "sync", str(run_dir / "wandb")]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    server.stop()
    return server
