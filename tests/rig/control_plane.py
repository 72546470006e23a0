"""A real Kubernetes control plane in one folder: etcd, kube-apiserver, and on demand the rest."""

import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import yaml

from tests.rig import binaries
from tests.rig.api import Api
from tests.rig.processes import Process, ProcessGone, free_port
from tests.rig.waiting import eventually
from tests.rig.workfolder import work_folder

ADMIN_TOKEN = "admin-token"
PLAIN_TOKEN = "plain-token"
"""Token of user `plain`, who has no rights but those a test grants."""

CONTROLLERS = {
    "full": "*",
    # Nodes without kubelets stay as they were posted: nothing marks them unreachable and evicts their pods.
    "fleet": "*,-node-lifecycle-controller",
    "lean": "disruption-controller,taint-eviction-controller,garbage-collector-controller,"
    "pod-garbage-collector-controller,namespace-controller,serviceaccount-controller",
    "none": "",
}

START_SECONDS = 60.0
ATTEMPTS = 3


class ControlPlane:
    """Start with `with` or start().

    `controllers` is a key of CONTROLLERS or a list as kube-controller-manager takes it. Without kubelets use "lean"
    or "fleet", which also leaves posted Nodes untainted. `flags` go to kube-apiserver.
    """

    def __init__(self, controllers: str = "lean", scheduler: bool = True, flags: Sequence[str] = ()) -> None:
        self._controllers = CONTROLLERS.get(controllers, controllers)
        self._scheduler = scheduler
        # ServiceAccount: pods need no token controller then. TokenRequest works all the same.
        disabled = ["ServiceAccount"] + (["TaintNodesByCondition"] if controllers == "fleet" else [])
        self._flags = [f"--disable-admission-plugins={','.join(disabled)}", *flags]
        self._stack = ExitStack()
        self._servers: dict[str, Process] = {}
        self._admin: Api | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Return when /readyz says ok and the default namespace exists; ProcessGone with the log's end otherwise."""
        self.folder = self._stack.enter_context(work_folder("cp"))
        try:
            self._write_credentials()
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._start_store_and_server()
                    break
                except ProcessGone:
                    # Somebody else took one of the ports in between; anything else fails again and is shown.
                    self._stop_all()
                    if attempt == ATTEMPTS:
                        raise
            self._start_controllers()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything and remove the folder; may be called twice."""
        self._stop_all()
        if self._admin:
            self._admin.close()
        self._stack.close()

    def restart_apiserver(self) -> None:
        """Restart kube-apiserver on the same port: every watch ends and old resourceVersions answer 410."""
        self.stop_apiserver()
        self.start_apiserver()

    def stop_apiserver(self) -> None:
        """Leave nobody on the API server's port until start_apiserver()."""
        self._servers.pop("kube-apiserver").stop()

    def start_apiserver(self) -> None:
        """Return when it is ready again, on the same port."""
        self._start_apiserver()

    @property
    def api(self) -> Api:
        """The admin's client."""
        assert self._admin is not None, "start() comes first"
        return self._admin

    @property
    def ca_file(self) -> Path:
        return self.folder / "certs" / "apiserver.crt"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def admin_token(self) -> str:
        return ADMIN_TOKEN

    def api_as(self, token: str) -> Api:
        """Return a client with another identity; the caller closes it."""
        return Api(self.url, self.ca_file, token)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as admin with `text` on stdin and return its output; CalledProcessError when it fails."""
        command = [binaries.path("kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *manifests: str | Path) -> None:
        """Apply manifests (text or files) with strict field validation; CRDs are served when this returns."""
        for manifest in manifests:
            text = manifest.read_text() if isinstance(manifest, Path) else manifest
            self.kubectl("apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-", text=text)
            for document in yaml.safe_load_all(text):
                if document and document["kind"] == "CustomResourceDefinition":
                    self._await_served(document)

    def service_account_token(self, namespace: str, name: str, pod: str | None = None, node: str | None = None) -> str:
        """Return a token of one hour; bound to a pod or a node it carries the node's name as a claim.

        The pod must exist, use this account and have spec.nodeName. Namespace and account are created when missing.
        """
        self.ensure(f"/api/v1/namespaces/{namespace}", "/api/v1/namespaces", name=namespace)
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.ensure(f"{accounts}/{name}", accounts, name=name)
        spec: dict[str, object] = {"expirationSeconds": 3600, "audiences": ["https://kubernetes.default.svc"]}
        if pod or node:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod" if pod else "Node", "name": pod or node}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token = self.api.create(f"{accounts}/{name}/token", request)["status"]["token"]
        assert isinstance(token, str)
        return token

    def ensure(self, path: str, collection: str, name: str) -> None:
        """Create an object without content unless it is there."""
        if self.api.find(path) is None:
            self.api.create(collection, {"metadata": {"name": name}})

    def _write_credentials(self) -> None:
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.folder / "sa.key"), "2048"], check=True, capture_output=True
        )
        users = f'{ADMIN_TOKEN},admin,admin,"system:masters"\n{PLAIN_TOKEN},plain,plain\n'
        (self.folder / "tokens.csv").write_text(users)

    def _start_store_and_server(self) -> None:
        store, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._store = store
        self._port = free_port()
        self._admin = None
        self.url = f"https://127.0.0.1:{self._port}"
        self._start(
            "etcd",
            *("--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--log-level", "warn"),
            *("--listen-client-urls", store, "--advertise-client-urls", store, "--listen-peer-urls", peers),
            *("--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"),
        )
        self._start_apiserver()

    def _start_apiserver(self) -> None:
        key = str(self.folder / "sa.key")
        server = self._start(
            "kube-apiserver",
            f"--etcd-servers={self._store}",
            *(f"--secure-port={self._port}", "--bind-address=127.0.0.1", f"--cert-dir={self.folder / 'certs'}"),
            *("--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer=https://kubernetes.default.svc"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *(
                f"--token-auth-file={self.folder / 'tokens.csv'}",
                "--authorization-mode=RBAC",
                "--allow-privileged=true",
            ),
            *self._flags,
        )

        def ready() -> bool:
            for process in self._servers.values():
                process.check_running()
            # The server writes its own certificate first; without the file there is nothing to connect to yet.
            if not self.ca_file.exists() or self.ca_file.stat().st_size == 0:
                return False
            if self._admin is None:
                self._admin = self.api_as(ADMIN_TOKEN)
            if self.api.ask("GET", "/readyz").status != 200:
                return False
            return self.api.find("/api/v1/namespaces/default") is not None

        eventually(f"kube-apiserver is ready, log {server.log}", ready, START_SECONDS, every=0.05)
        self._write_kubeconfig()

    def _start_controllers(self) -> None:
        common = ["--kubeconfig", str(self.kubeconfig), "--leader-elect=false", "--secure-port=0"]
        if self._controllers:
            self._start(
                "kube-controller-manager",
                *(*common, f"--controllers={self._controllers}", "--use-service-account-credentials"),
                f"--service-account-private-key-file={self.folder / 'sa.key'}",
            )
        if self._scheduler:
            self._start("kube-scheduler", *common)

    def _start(self, program: str, *arguments: str) -> Process:
        process = Process([binaries.path(program), *arguments], self.folder / f"{program}.log")
        self._servers[program] = process
        return process

    def _stop_all(self) -> None:
        # The API server hangs for 20 s when etcd goes first.
        for program in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            process = self._servers.pop(program, None)
            if process:
                process.stop()

    def _write_kubeconfig(self) -> None:
        entry = {"name": "rig"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "rig",
            "clusters": [{**entry, "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)}}],
            "users": [{**entry, "user": {"token": ADMIN_TOKEN}}],
            "contexts": [{**entry, "context": {"cluster": "rig", "user": "rig"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def _await_served(self, definition: dict[str, dict[str, object]]) -> None:
        spec = definition["spec"]
        names, versions = spec["names"], spec["versions"]
        assert isinstance(names, dict) and isinstance(versions, list)
        path = f"/apis/{spec['group']}/{versions[0]['name']}/{names['plural']}"
        # 404 until the resource is registered, then 429 "storage is (re)initializing" for a moment.
        eventually(f"{path} is served", lambda: self.api.ask("GET", path).status == 200, 30.0)
