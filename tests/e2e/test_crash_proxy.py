"""The proxy that kills: it must be invisible, or the kill test proves nothing about the product."""

import json

import pytest

from tests.rig.api import Api
from tests.rig.control_plane import ADMIN_TOKEN, ControlPlane
from tests.rig.crash_proxy import CrashProxy, StoredWrite
from tests.rig.waiting import eventually

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def told() -> list[StoredWrite]:
    return []


def test_it_tells_stored_writes_only(real_control_plane: ControlPlane, told: list[StoredWrite]) -> None:
    with CrashProxy(real_control_plane.url, real_control_plane.folder / "certs", told.append) as proxy:
        api = Api(proxy.url, real_control_plane.ca_file, ADMIN_TOKEN)
        api.create(CONFIG_MAPS, {"metadata": {"name": "proxied"}})
        assert api.ask("POST", CONFIG_MAPS, {"metadata": {"name": "proxied"}}).status == 409
        assert api.get(f"{CONFIG_MAPS}/proxied")["metadata"]["name"] == "proxied"
        leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        api.create(leases, {"metadata": {"name": "proxied"}})
        api.delete(f"{leases}/proxied")
        api.delete(f"{CONFIG_MAPS}/proxied")
        api.close()
    assert told == [StoredWrite("POST", CONFIG_MAPS), StoredWrite("DELETE", f"{CONFIG_MAPS}/proxied")]


def test_a_watch_streams_through(real_control_plane: ControlPlane, told: list[StoredWrite]) -> None:
    import threading

    lines: list[dict[str, object]] = []
    with CrashProxy(real_control_plane.url, real_control_plane.folder / "certs", told.append) as proxy:
        api = Api(proxy.url, real_control_plane.ca_file, ADMIN_TOKEN)

        def watch() -> None:
            answer = api.ask("GET", f"{CONFIG_MAPS}?watch=1&timeoutSeconds=3&fieldSelector=metadata.name%3Dstreamed")
            lines.extend(json.loads(line) for line in answer.text.splitlines())

        watcher = threading.Thread(target=watch)
        watcher.start()
        real_control_plane.api.create(CONFIG_MAPS, {"metadata": {"name": "streamed"}})
        watcher.join(20)
        real_control_plane.api.delete(f"{CONFIG_MAPS}/streamed")
        eventually("the added object came through", lambda: [line["type"] for line in lines] == ["ADDED"], 1.0)
        api.close()
