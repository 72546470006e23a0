"""The policy file: which fault on which GPUs may be acted on, how far, and by which playbook.

Laws:
1. The first matching rule wins; no match, or no `mode`, means observe: nothing is written.
2. `enforce` must name its faults: a rule that matches everything is refused, not obeyed.
3. A wrong file never half-applies: `load_policy` raises `PolicyError` with every problem, and the caller keeps the
   last good policy.
Keys are camelCase as everywhere in Kubernetes; snake_case is accepted too.
"""

from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from remediator.domain.policy_errors import PolicyError, readable

Seconds = Annotated[float, Field(ge=0, le=30 * 86400)]


class Mode(StrEnum):
    """How far a rule may go."""

    OBSERVE = "observe"
    """No incident, no write; deferrals, Events and metrics say what would be done."""
    RECOMMEND = "recommend"
    """Opens the incident and waits there for the annotation gpuward.io/approve."""
    ENFORCE = "enforce"


class Part(BaseModel):
    """Base of every part of the file: frozen, and an unknown key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


def _percent(value: object) -> object:
    """Accepts `10` and `"10%"`."""
    if isinstance(value, str) and value.endswith("%"):
        return value[:-1].strip()
    return value


class Budget(Part):
    """How many GPU nodes may be out of service by us at once; the smaller bound wins."""

    nodes: Annotated[int, Field(ge=1)] | None = None
    """A count. Default when neither bound is given: 1."""
    percent: Annotated[float, Field(gt=0, le=100), BeforeValidator(_percent)] | None = None
    """Share of all GPU nodes, rounded down but at least one: a pool of 4 with 20 % must not dead-lock."""
    last_node: Literal["keep", "take"] = "keep"
    """Whether the last GPU node in service may be taken out. keep = a human decides ("never all")."""


class Drain(Part):
    """How pods leave a bad GPU."""

    pods: Literal["gpu", "node"] = "gpu"
    """gpu = only pods on the bad GPU; node = all GPU pods of the node (wanted before an automatic reboot)."""
    grace_seconds: Annotated[int, Field(ge=1)] | None = None
    """Termination grace for the eviction; None = the pod's own. 0 is not allowed: it would skip the grace."""
    bare_pods: Literal["hold", "evict"] = "hold"
    """Pods without a controller: nobody starts them again."""
    local_storage: Literal["hold", "evict"] = "hold"
    """Pods with a writable hostPath: their data does not move with them."""


JobTemplate = dict[str, Any]
"""A Job as a plain mapping with `spec`; `{{node}}`, `{{gpu}}`, `{{gpuIndex}}`, `{{fault}}`, `{{incident}}` are
replaced in every string; nodeName, labels, owner and name are set by us (jobs.py)."""


def _checked_job(template: JobTemplate) -> JobTemplate:
    pod: Any = template
    for key in ("spec", "template", "spec"):
        pod = pod.get(key) if isinstance(pod, Mapping) else None
    if not isinstance(pod, Mapping) or not pod.get("containers"):
        raise ValueError("a Job template needs spec.template.spec.containers")
    return template


class JobRepair(Part):
    """A repair done by a Job on the node."""

    kind: Literal["job"] = "job"
    name: Annotated[str, Field(min_length=1, max_length=32)] = "repair"
    """Short word for history and metrics: reset, reboot."""
    job: JobTemplate
    needs: Literal["gpu", "node"] = "node"
    """What must be free of running GPU pods first: the GPU (a reset) or the whole node (a reboot)."""
    proof: Literal["boot-id", "finding-cleared"] | None = None
    """What proves it; None = boot-id when it needs the node, else finding-cleared (and the Job succeeded)."""
    timeout_seconds: Seconds = 1800
    """From the request to the proof. A bare-metal reboot takes up to half an hour (reported for 8-GPU servers)."""

    _job = field_validator("job")(_checked_job)

    @property
    def proven_by(self) -> Literal["boot-id", "finding-cleared"]:
        return self.proof or ("boot-id" if self.needs == "node" else "finding-cleared")


class AskHuman(Part):
    """A repair done by a person: the incident waits, visibly, and goes on when it sees the proof."""

    kind: Literal["ask-human"] = "ask-human"
    name: Annotated[str, Field(min_length=1, max_length=32)] = "ask-human"


def _repair_kind(value: object) -> object:
    """Accepts the bare word `ask-human`, and a mapping without `kind` that has a `job`."""
    if value == "ask-human":
        return {"kind": "ask-human"}
    if isinstance(value, str):
        raise ValueError(f"{value!r} is not allowed; allowed: ask-human, or a mapping with job")
    if isinstance(value, Mapping) and "kind" not in value:
        return {"kind": "job", **value}
    return value


Repair = Annotated[
    Annotated[JobRepair | AskHuman, Field(discriminator="kind")],
    BeforeValidator(_repair_kind),
]


class Validation(Part):
    """How a repaired GPU proves itself."""

    job: JobTemplate | None = None
    """None = a clean report of a living exporter is the whole test."""
    timeout_seconds: Seconds = 900

    @field_validator("job")
    @classmethod
    def _job(cls, value: JobTemplate | None) -> JobTemplate | None:
        return None if value is None else _checked_job(value)


class Playbook(Part):
    """What is done about a fault, step by step."""

    suspicion_seconds: Seconds = 0
    """How long the fault must stand before anything happens. 0 suits certain faults (Xid 79): they never go away by
    themselves; use more for anything that flaps."""
    drain: Drain = Drain()
    repair: tuple[Repair, ...] = (AskHuman(),)
    """The ladder: the n-th attempt takes the n-th step, later attempts the last one."""
    validate_: Validation = Field(default=Validation(), alias="validate")
    probation_seconds: Seconds = 300
    """How long a validated GPU is watched before it gets work again; doubles for each earlier incident on the same
    GPU within a day."""
    attempts: Annotated[int, Field(ge=1, le=10)] = 2
    """Repairs in one incident before a human takes over: a loop of reboots helps nobody."""

    @field_validator("repair")
    @classmethod
    def _some_repair(cls, value: tuple[Repair, ...]) -> tuple[Repair, ...]:
        return value or (AskHuman(),)

    def repair_step(self, attempt: int) -> JobRepair | AskHuman:
        """The step of the `attempt`-th try, counted from 1."""
        return self.repair[min(max(attempt, 1), len(self.repair)) - 1]


class Rule(Part):
    """One row: what it matches and what may be done."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    mode: Mode = Mode.OBSERVE
    node_selector: dict[str, str] = {}
    """Labels the node must have; empty = any node."""
    models: tuple[str, ...] = ()
    """GPU model patterns (`*H100*`, case does not matter); empty = any model."""
    faults: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = ()
    """Fault code patterns (`xid-79`, `gpu-*`); empty = any fault (not with enforce)."""
    playbook: Playbook = Playbook()

    @model_validator(mode="after")
    def _enforce_names_faults(self) -> "Rule":
        if self.mode is Mode.ENFORCE and (not self.faults or "*" in self.faults):
            raise ValueError("mode enforce must name its faults, for example faults: [xid-79, xid-48, gpu-lost]")
        return self

    def matches(self, labels: Mapping[str, str], model: str | None, fault: str) -> bool:
        """Whether the rule speaks about this fault; a rule with models does not match an unknown model (None)."""
        if any(labels.get(key) != value for key, value in self.node_selector.items()):
            return False
        if self.models and not any(fnmatchcase((model or "").casefold(), p.casefold()) for p in self.models):
            return False
        return not self.faults or any(fnmatchcase(fault, pattern) for pattern in self.faults)


class Policy(Part):
    """The whole file. The empty file is valid: observe everything."""

    pause: bool = False
    """Stops every action at once, the return to service included; incidents stay visible."""
    budget: Budget = Budget()
    heartbeat_stale_seconds: Annotated[float, Field(ge=30, le=3600)] = 90
    """After so long without a heartbeat the health of a node is unknown: three missed renewals of 30 s."""
    mirror_condition: bool = True
    """Write the node condition GPUHealthy, on nodes some enforce rule selects."""
    protected_namespaces: tuple[str, ...] = ("kube-system",)
    """Pods there are never evicted, whatever a rule says. `protectedNamespaces: []` lifts it."""
    rules: tuple[Rule, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> "Policy":
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"rule names must differ; used more than once: {', '.join(twice)}")
        return self

    def rule_for(self, labels: Mapping[str, str], model: str | None, fault: str) -> Rule | None:
        """The first rule that matches; None = observe."""
        return next((rule for rule in self.rules if rule.matches(labels, model, fault)), None)

    def rule_named(self, name: str) -> Rule | None:
        return next((rule for rule in self.rules if rule.name == name), None)


def load_policy(raw: object) -> Policy:
    """The policy in `raw`, the parsed file (None = empty file); raises `PolicyError` with one line per problem."""
    try:
        return Policy.model_validate({} if raw is None else raw)
    except ValidationError as wrong:
        raise PolicyError(readable(wrong, Policy)) from wrong
