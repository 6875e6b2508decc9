"""A loopback HTTP server that speaks the part of the model hub's interface that `samara pull` uses, and misbehaves on
request. One `Behaviour` describes how; tests change it between or during downloads."""

import hashlib
import http.server
import json
import re
import threading
import time


class Behaviour:
    """What the server does to a request for the file. Counters say what it saw."""

    def __init__(self, content, path="model-Q8_0.gguf"):
        self.content = content
        self.path = path
        self.etag = '"one"'
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.listed_size = len(content)
        self.listing = None          # bytes sent instead of the real listing
        self.listing_status = []     # statuses for the first listing requests
        self.statuses = []           # statuses for the first file requests, then normal
        self.retry_after = None      # header for those
        self.drop_after = []         # per request: body bytes after which the connection is closed
        self.stall_after = []        # per request: body bytes after which nothing comes any more
        self.wrong_length = None     # Content-Length sent instead of the real one
        self.no_length = False       # close-delimited body
        self.extra_body = b""        # sent after the content
        self.no_ranges = False       # answers 200 with everything
        self.range_shift = 0         # lies about where a range starts
        self.redirect = None         # function(path) -> Location of file requests, or None
        self.bytes_per_second = None
        self.on_request = None       # function(number of file requests so far), called before answering
        self.file_requests = []      # headers of each
        self.listing_requests = []
        self.stop_stalling = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        behaviour = self.server.behaviour
        if self.path.startswith("/api/models/"):
            self.send_listing(behaviour)
        elif "/resolve/main/" in self.path or self.path.startswith("/storage/"):
            self.send_file(behaviour)
        else:
            self.send_status(404)

    def send_status(self, status, retry_after=None):
        body = b"<html>an error page</html>"
        self.send_response(status)
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_listing(self, behaviour):
        behaviour.listing_requests.append((self.path, dict(self.headers)))
        if behaviour.listing_status:
            self.send_status(behaviour.listing_status.pop(0))
            return
        body = behaviour.listing
        if callable(body):
            body, link = body(self.path)
        else:
            link = None
        if body is None:
            body = json.dumps([
                {"type": "directory", "oid": "0", "size": 0, "path": "folder"},
                {"type": "file", "oid": "1", "size": 10, "path": "README.md"},
                entry(behaviour.path, behaviour.listed_size, behaviour.sha256),
            ]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if link:
            self.send_header("Link", f'<{link}>; rel="next"')
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, behaviour):
        location = behaviour.redirect(self.path) if behaviour.redirect else None
        if location:
            self.server.redirected.append(dict(self.headers))
            self.send_response(302)
            self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        behaviour.file_requests.append(dict(self.headers))
        if behaviour.on_request:
            behaviour.on_request(len(behaviour.file_requests))
        if behaviour.statuses:
            self.send_status(behaviour.statuses.pop(0), behaviour.retry_after)
            return
        content, first, status = behaviour.content, 0, 200
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        validator = self.headers.get("If-Range")
        if wanted and not behaviour.no_ranges and validator in (None, behaviour.etag):
            first, status = int(wanted[1]), 206
        if first > len(content):
            self.send_status(416)
            return
        body = content[first:] + behaviour.extra_body
        self.send_response(status)
        if behaviour.etag:
            self.send_header("ETag", behaviour.etag)
        if status == 206:
            shown = first + behaviour.range_shift
            self.send_header("Content-Range", f"bytes {shown}-{len(content) - 1}/{len(content)}")
        if behaviour.no_length:
            self.send_header("Connection", "close")
        else:
            length = len(body) if behaviour.wrong_length is None else behaviour.wrong_length
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.send_body(behaviour, body)

    def send_body(self, behaviour, body):
        drop = behaviour.drop_after.pop(0) if behaviour.drop_after else None
        stall = behaviour.stall_after.pop(0) if behaviour.stall_after else None
        end = min(x for x in (drop, stall, len(body)) if x is not None)
        step = 16384
        try:
            for at in range(0, end, step):
                self.wfile.write(body[at:min(at + step, end)])
                if behaviour.bytes_per_second:
                    time.sleep(step / behaviour.bytes_per_second)
            self.wfile.flush()
            if stall is not None and end == stall:
                behaviour.stop_stalling.wait(30)
        except OSError:
            pass
        self.close_connection = True


def entry(path, size, sha256):
    """A listing's entry for a file stored by its hash."""
    return {"type": "file", "oid": "2", "size": size, "path": path,
            "lfs": {"oid": sha256, "size": size, "pointerSize": 134}}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behaviour):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour = behaviour
        self.redirected = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that goes away is what these tests are about

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.behaviour.stop_stalling.set()
        self.shutdown()
        self.server_close()
