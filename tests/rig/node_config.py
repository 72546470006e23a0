"""The configuration files of a rig node: containerd, kubelet, and a network plugin for pods that do not talk."""

import json
from pathlib import Path

import yaml

from tests.rig.image import NAME as PAUSE_IMAGE
from tests.rig.processes import free_port

# ADD must name an address or the kubelet takes the sandbox for broken; nobody ever sends a packet to it.
CNI_SCRIPT = """#!/bin/sh
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.0","0.3.1","0.4.0"]}' ;;
ADD)
  address="10.88.$(($$ / 250 % 250)).$(($$ % 250 + 1))/16"
  echo '{"cniVersion":"0.4.0","ips":[{"version":"4","address":"'$address'"}]}' ;;
esac
"""


def write_cni(folder: Path) -> None:
    """Write plugin scripts and a network list; containerd calls `loopback` by name for every sandbox."""
    for part in ("bin", "conf"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name in ("loopback", "rig"):
        script = folder / "bin" / name
        script.write_text(CNI_SCRIPT)
        script.chmod(0o755)
    network = {"cniVersion": "0.4.0", "name": "rig", "plugins": [{"type": "rig"}]}
    (folder / "conf" / "10-rig.conflist").write_text(json.dumps(network))


def containerd_toml(folder: Path) -> str:
    """Return containerd's configuration; its root is on the node's disk, its state in the node's /run."""
    # restrict_oom_score_adj: lowering the score is refused inside a sandboxed machine, and runc dies of that.
    return f"""version = 2
root = "{folder}/containerd"
state = "/run/containerd-rig"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{folder}/cni/bin"
    conf_dir = "{folder}/cni/conf"
"""


def kubelet_yaml(folder: Path, cgroup: str) -> str:
    """Return the kubelet's configuration; anybody may call it, on loopback, in a test."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": free_port(),
            "readOnlyPort": 0,
            "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "podLogsDir": str(folder / "var-log" / "pods"),
            "resolvConf": str(folder / "resolv.conf"),
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            # Capacity changes must show within a test's patience, not within ten seconds.
            "nodeStatusUpdateFrequency": "1s",
            # The machine's disk is not the test's subject: no eviction, and our only images are never collected.
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }
    )
