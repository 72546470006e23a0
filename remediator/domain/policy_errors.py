"""Problems of a policy file in words a person can act on: which key, what is wrong, what is allowed."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError


class PolicyError(ValueError):
    """A policy that cannot be used; `problems` has one readable line per wrong key."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def readable(wrong: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """One line per problem of `wrong`, keys written as the file writes them: `rules[0].playbook.attempts: ...`."""
    return tuple(_line(dict(error), model) for error in wrong.errors(include_url=False))


def _line(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    path, parents = _walk(error["loc"], model)
    where = path or "the file"
    given = error.get("input")
    match error["type"]:
        case "extra_forbidden":
            allowed = sorted({_name(m, f) for m in parents for f in m.model_fields})
            close = get_close_matches(str(error["loc"][-1]), allowed, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            return f"{where}: unknown key{hint}; allowed: {', '.join(allowed)}"
        case "enum" | "literal_error":
            expected = str(error.get("ctx", {}).get("expected", "")).replace("'", "").replace(" or ", ", ")
            return f"{where}: {given!r} is not allowed; allowed: {expected}"
        case "missing":
            return f"{where}: is missing"
        case "value_error":
            return f"{where}: {error['msg'].removeprefix('Value error, ')}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{where}: a mapping of keys is wanted, not {_short(given)}"
        case "tuple_type":
            return f"{where}: a list is wanted, not {_short(given)}"
        case _:
            return f"{where}: {_short(given)} is wrong: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _walk(loc: Sequence[str | int], model: type[BaseModel]) -> tuple[str, list[type[BaseModel]]]:
    """The path in the file's words, and the models that could hold its last key."""
    path, parents, models = "", [model], [model]
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
            continue
        tagged = [m for m in models if m.model_fields.get("kind") and m.model_fields["kind"].default == part]
        if tagged and len(models) > 1:
            # pydantic names the chosen member of the union here; the file has no such level.
            models = tagged
            continue
        path += f".{part}" if path else str(part)
        parents = models
        annotations = [f.annotation for m in models for name, f in m.model_fields.items() if part in (name, f.alias)]
        models = [found for annotation in annotations for found in _models_in(annotation)]
    return path, parents


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models_in(argument)]


def _name(model: type[BaseModel], field: str) -> str:
    return model.model_fields[field].alias or field
