"""What happens to an object of any kind on its way into the store; which rules apply depends on built-in or custom.

Built-in kinds have no schema here: fields are stored as sent (the answer carries a warning when strict validation was
asked for). Custom resources are pruned and validated by their schema.
"""

from remediator.simulation import builtin, custom
from remediator.simulation.calls import Call, Target
from remediator.simulation.metadata import compacted, finalizer_errors, label_errors, name_errors, tidied
from remediator.simulation.status_errors import FieldError, Obj, not_done_here

VALIDATION = ("Strict", "Warn", "Ignore")


def cleaned(target: Target, obj: Obj, call: Call) -> tuple[Obj, dict[str, str]]:
    """The object as the server would read it, with defaults; and warnings as headers."""
    resource = target.resource
    mode = call.query.get("fieldValidation", "") or "Warn"
    if mode not in VALIDATION:
        raise not_done_here(f"fieldValidation={mode}")
    obj = tidied(obj)
    if resource.custom is not None:
        obj, headers = custom.pruned(target, obj, mode, patched=call.method == "PATCH")
        return custom.defaulted(resource, obj), headers
    told = f"embedded API server: fields of {resource.kind} are not checked against a schema"
    return builtin.defaulted(resource, compacted(obj)), {"Warning": f'299 - "{told}"'} if mode == "Strict" else {}


def at_create(target: Target, obj: Obj) -> Obj:
    """What admission and the kind's own rules add or drop in a POST."""
    resource = target.resource
    if "status" in resource.subresources and resource.id not in ("nodes", "pods"):
        obj = {key: value for key, value in obj.items() if key != "status"}
    return obj if resource.custom is not None else builtin.at_create(resource, obj)


def errors_of(target: Target, obj: Obj, old: Obj | None) -> list[FieldError]:
    """Everything wrong with the object; `old` is None at create."""
    resource, metadata = target.resource, obj["metadata"]
    if old is None:
        errors = name_errors(metadata.get("name"), dots=resource.id != "namespaces") + label_errors(metadata)
    else:
        # The server checks metadata twice on an update: its causes come doubled, its message does not.
        errors = 2 * (finalizer_errors(old, obj) + label_errors(metadata))
    if resource.custom is not None:
        return errors + custom.errors_of(target, obj, old)
    return errors + builtin.errors_of(resource, obj, old)
