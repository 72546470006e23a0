"""promtool, the judge of expositions."""

import shutil
import subprocess

from tests.rig.require import require_rig


def check_metrics(text: str) -> None:
    """Fails with promtool's words when it has any complaint; skips visibly where there is no promtool."""
    promtool = shutil.which("promtool")
    if promtool is None:
        require_rig("promtool is not on PATH (Debian package prometheus)")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30, check=False
    )
    complaints = done.stdout + done.stderr
    assert done.returncode == 0 and not complaints, f"promtool: {complaints}"
