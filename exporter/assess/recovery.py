"""The driver's own word on what a GPU needs: field 230, and Xid 154 where the field cannot be read.

Laws:
1. Field 230 > Xid 154 > catalogue. While the field can be read, Xid 154 adds nothing.
2. An action that we do not know stops the GPU and asks a human: the driver wants something.
3. Action 0 takes away what the driver asked before; it never weakens what an Xid says, because it may lag behind it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from exporter.health.vocabulary import Advice, ClearedBy, Scope, Severity


@dataclass(frozen=True, kw_only=True)
class Demand:
    """One recovery action in our words."""

    words: str
    severity: Severity
    scope: Scope
    advice: Advice

    @property
    def cleared_by(self) -> ClearedBy:
        """What ends the demand when nobody can read the field."""
        return ClearedBy.REBOOT if self.advice is Advice.REBOOT_NODE else ClearedBy.GPU_RESET


DEMANDS: Mapping[int, Demand] = MappingProxyType(
    {
        1: Demand(words="GPU reset", severity=Severity.CRITICAL, scope=Scope.GPU, advice=Advice.RESET_GPU),
        2: Demand(words="node reboot", severity=Severity.CRITICAL, scope=Scope.NODE, advice=Advice.REBOOT_NODE),
        # Peers that use this GPU's memory must stop; then the driver decides anew.
        3: Demand(words="drain peers", severity=Severity.ERROR, scope=Scope.GPU, advice=Advice.RESTART_APP),
        4: Demand(words="drain and reset", severity=Severity.CRITICAL, scope=Scope.GPU, advice=Advice.RESET_GPU),
        5: Demand(
            words="recover the IMEX domain",
            severity=Severity.ERROR,
            scope=Scope.FABRIC,
            advice=Advice.CONTACT_SUPPORT,
        ),
        6: Demand(words="bus reset", severity=Severity.CRITICAL, scope=Scope.GPU, advice=Advice.RESET_GPU),
        7: Demand(words="system reboot", severity=Severity.CRITICAL, scope=Scope.NODE, advice=Advice.REBOOT_NODE),
    }
)

_CHANGED = re.compile(r"recovery action changed from 0x([0-9a-f]{1,8})\b.*? to 0x([0-9a-f]{1,8})\b", re.IGNORECASE)


def demand(action: int) -> Demand:
    """What action `action` (> 0) asks for."""
    known = DEMANDS.get(action)
    if known is not None:
        return known
    return Demand(
        words=f"unknown action {action}",
        severity=Severity.CRITICAL,
        scope=Scope.GPU,
        advice=Advice.CONTACT_SUPPORT,
    )


def announced_action(text: str) -> int | None:
    """The new action in the text of an Xid 154; None when it says none. Only the hex numbers count: the words changed
    between driver branches."""
    found = _CHANGED.search(text)
    return int(found.group(2), 16) if found else None
