"""A small reflector for the fake kubelets: every bound pod, again after every break."""

import threading
from collections.abc import Callable

from remediator.simulation.client import HttpClient, WatchStream
from remediator.simulation.status_errors import ApiError, Obj

PAUSE_SECONDS = 0.2
WATCH_SECONDS = 3
"""A stream that stalls is left soon and followed again from the last version: pods must start within seconds."""
BOUND = {"fieldSelector": "spec.nodeName!="}


class PodFeed:
    """Calls `tell(type, pod)` from its own thread; a pod that vanished during a break is told as DELETED."""

    def __init__(self, client: HttpClient, tell: Callable[[str, Obj], None]) -> None:
        self._client = client
        self._tell = tell
        self._known: dict[str, Obj] = {}
        self._stopping = threading.Event()
        self._stream: WatchStream | None = None
        self._thread = threading.Thread(target=self._run, name="fake-kubelet-pods", daemon=True)

    def start(self) -> None:
        """Begins with a list."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch and joins."""
        self._stopping.set()
        if self._stream is not None:
            self._stream.close()
        self._thread.join()

    def _run(self) -> None:
        version = ""
        while not self._stopping.is_set():
            try:
                version = version or self._list()
                version = self._watch(version)
            except ApiError:
                version = ""
                self._stopping.wait(PAUSE_SECONDS)
            except (OSError, ValueError):
                # ValueError: the stream was closed under the reader, or a line was cut.
                self._stopping.wait(PAUSE_SECONDS)
        self._client.close()

    def _list(self) -> str:
        reply = self._client.request("GET", f"/api/v1/pods?fieldSelector={BOUND['fieldSelector']}")
        pods = {pod["metadata"]["uid"]: pod for pod in reply["items"]}
        for uid in self._known.keys() - pods.keys():
            self._note("DELETED", self._known[uid])
        for pod in pods.values():
            self._note("MODIFIED", pod)
        return str(reply["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """Follows until the stream ends; the version to go on from, "" after an ERROR."""
        self._stream = self._client.watch(
            "/api/v1/pods",
            BOUND | {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)},
        )
        if self._stopping.is_set():
            self._stream.close()
        for kind, obj in self._stream:
            if kind == "ERROR":
                return ""
            version = obj["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                self._note(kind, obj)
        return version

    def _note(self, kind: str, pod: Obj) -> None:
        if kind == "DELETED":
            self._known.pop(pod["metadata"]["uid"], None)
        else:
            self._known[pod["metadata"]["uid"]] = pod
        self._tell(kind, pod)
