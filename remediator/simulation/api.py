"""The server without a wire: a `Call` in, a `Reply` or a `Watch` out, a refusal as `ApiError`."""

import re
from collections.abc import Mapping

from remediator.simulation import crds
from remediator.simulation.calls import MAX_BODY, Call, Reply, Target, refusal, target_of
from remediator.simulation.discovery import PUBLIC, discover
from remediator.simulation.eviction import PodActions
from remediator.simulation.reads import Reads
from remediator.simulation.resources import Registry
from remediator.simulation.status_errors import (
    ApiError,
    Obj,
    details_of,
    no_such_resource,
    not_allowed,
    not_done_here,
    not_found,
)
from remediator.simulation.store import Store
from remediator.simulation.watching import Watch, open_watch
from remediator.simulation.writes import Clock, Writes

ANONYMOUS = "system:anonymous"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_NOT_SERVED = re.compile(r"/(log|exec|attach|portforward|proxy|ephemeralcontainers|resize|scale|token|approval)$")
_REVIEWS = ("authentication.k8s.io", "authorization.k8s.io")


class Api:
    """All requests of the embedded API server."""

    def __init__(self, store: Store, clock: Clock, tokens: Mapping[str, str] | None = None) -> None:
        """`tokens` maps bearer tokens to user names; None lets everyone in as `admin`."""
        self.store = store
        self.registry = Registry()
        self.clock = clock
        self.reads = Reads(store)
        self.writes = Writes(store, clock)
        self.pods = PodActions(store, self.writes, clock)
        self._tokens = tokens

    def answer(self, call: Call) -> Reply | Watch:
        """The answer to one request; never raises."""
        try:
            self._admit(call)
            found = discover(self.registry, call)
            return self._resource(call) if found is None else found
        except ApiError as error:
            return refusal(error)

    def _admit(self, call: Call) -> None:
        """Who asks (401, 403), how much (413), and what is never served (501)."""
        if len(call.body) > MAX_BODY:
            raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}")
        if any(name.startswith("impersonate-") for name in call.headers):
            raise not_done_here("impersonation")
        if self._tokens is not None:
            scheme, _, token = call.headers.get("authorization", "").partition(" ")
            if not scheme and call.path not in PUBLIC:
                raise self._anonymous(call)
            if scheme and (scheme.lower() != "bearer" or token.strip() not in self._tokens):
                raise ApiError(401, "Unauthorized", "Unauthorized")
        if any(f"/{group}/" in call.path for group in _REVIEWS):
            raise not_done_here("authorization: RBAC is not enforced, so access reviews")

    def _anonymous(self, call: Call) -> ApiError:
        if discover(self.registry, call) is not None:
            told = f'forbidden: User "{ANONYMOUS}" cannot get path "{call.path}"'
            return ApiError(403, "Forbidden", told, {})
        target = target_of(self.registry, call.path)
        resource = target.resource
        verb = self._verb(call, target)
        what = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
        where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
        named = f' "{target.name}"' if target.name else ""
        told = f'User "{ANONYMOUS}" cannot {verb} resource "{what}" in API group "{resource.group}" {where}'
        message = f"{resource.id}{named} is forbidden: {told}"
        details = details_of(resource.group, target.name, resource.plural)
        return ApiError(403, "Forbidden", message, details)

    def _verb(self, call: Call, target: Target) -> str:
        if call.method == "GET":
            if call.flag("watch"):
                return "watch"
            return "get" if target.name else "list"
        return "deletecollection" if call.method == "DELETE" and not target.name else _VERBS.get(call.method, "get")

    def _resource(self, call: Call) -> Reply | Watch:
        target = target_of(self.registry, call.path)
        if target.subresource and target.subresource not in target.resource.subresources:
            if _NOT_SERVED.search(call.path):
                raise not_done_here(f"{target.resource.plural}/{target.subresource}")
            if target.resource.custom is not None:
                raise not_found(target.resource.plural, target.resource.group, target.name)
            raise no_such_resource()
        verb = self._verb(call, target)
        if target.subresource in ("eviction", "binding"):
            return self._pod_action(verb, target, call)
        return self._perform(verb, target, call)

    def _perform(self, verb: str, target: Target, call: Call) -> Reply | Watch:
        match verb:
            case "watch":
                return open_watch(self.store, target, call)
            case "get":
                return self.reads.get(target, call)
            case "list":
                return self.reads.list_all(target, call)
            case "create" if not target.name and (target.namespace or not target.resource.namespaced):
                return self._create(target, call)
            case "update" if target.name:
                return self._after(target, self.writes.replace(target, self._body(target, call), call), call)
            case "patch" if target.name:
                return self._after(target, self.writes.patch(target, call), call)
            case "delete" if not target.subresource:
                return self._delete(target, call)
            case "deletecollection" if target.namespace or not target.resource.namespaced:
                return self._delete_all(target, call)
        raise not_allowed()

    def _body(self, target: Target, call: Call) -> Obj:
        if call.media_type() not in ("application/json", ""):
            raise not_done_here(f"a body of type {call.media_type()}")
        return call.json_object(target.resource.kind)

    def _pod_action(self, verb: str, target: Target, call: Call) -> Reply:
        if verb != "create":
            raise not_allowed()
        action = self.pods.evict if target.subresource == "eviction" else self.pods.bind
        return action(target, self._body(target, call), call)

    def _create(self, target: Target, call: Call) -> Reply:
        body = self._body(target, call)
        if target.resource.id == crds.DEFINITIONS:
            crds.check({"metadata": {}, **body})
        return self._after(target, self.writes.create(target, body, call), call)

    def _after(self, target: Target, reply: Reply, call: Call) -> Reply:
        """A stored definition is served from the next request on."""
        if target.resource.id == crds.DEFINITIONS and not call.dry_run and not target.subresource:
            crds.check(reply.body)
            crds.serve(self.store, self.registry, reply.body["metadata"]["name"], self.clock())
        return reply

    def _delete(self, target: Target, call: Call) -> Reply:
        reply = self.writes.delete(target, call.options(), call)
        if target.resource.id == crds.DEFINITIONS and not call.dry_run:
            crds.withdraw(self.store, self.registry, reply.body)
            reply.body = crds.terminating(reply.body, self.clock())
        return reply

    def _delete_all(self, target: Target, call: Call) -> Reply:
        reply = self.reads.list_all(target, call)
        for item in reply.body["items"]:
            metadata = item["metadata"]
            one = Target(
                resource=target.resource,
                namespace=metadata.get("namespace", ""),
                name=metadata["name"],
                subresource="",
            )
            self._delete(one, call)
        return reply
