"""The Eviction subresource: budgets, the three refusals with code 429, dry runs, preconditions, and its slowness."""

import threading
import time
from typing import Any

from tests.contract.api.asking import Answer, Ask, Object, Server
from tests.contract.api.world import BUDGETS, PODS, World, eventually, eviction

VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."


def evict(server: Server, pod: str, body: Object | None = None, **options: Any) -> Answer:
    path = f"{PODS}/{pod}/eviction"
    return server.ask(Ask(method="POST", path=path, body=eviction(pod, **options) if body is None else body))


def success(answer: Answer) -> bool:
    return answer.status == 201 and (answer.body["kind"], answer.body["status"], answer.body["code"]) == (
        "Status",
        "Success",
        201,
    )


def test_an_evicted_pod_stays_until_its_kubelet_ends_it(world: World, server: Server) -> None:
    world.pod()
    assert success(evict(server, world.name))
    pod = server.get(f"{PODS}/{world.name}")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30 and pod["metadata"]["generation"] == 2
    target = next(c for c in pod["status"]["conditions"] if c["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"], target["message"]) == (
        "True",
        "EvictionByEvictionAPI",
        "Eviction API: evicting",
    )
    assert success(evict(server, world.name)), "again while it terminates"


def test_a_dry_run_evicts_nobody(world: World, server: Server) -> None:
    world.pod()
    assert success(evict(server, world.name, dryRun=["All"]))
    assert "deletionTimestamp" not in server.get(f"{PODS}/{world.name}")["metadata"]


def test_a_pod_that_has_ended_goes_at_once_and_no_budget_is_asked(world: World, server: Server) -> None:
    world.pod(running=False)
    world.budget(minAvailable=1)
    server.merge(f"{PODS}/{world.name}/status", {"status": {"phase": "Failed"}})
    assert success(evict(server, world.name))
    assert server.ask(Ask(method="GET", path=f"{PODS}/{world.name}")).status == 404


def test_a_missing_pod(server: Server) -> None:
    answer = evict(server, "nope")
    assert (answer.status, answer.body["reason"]) == (404, "NotFound")
    assert answer.body["message"] == 'pods "nope" not found'


def test_another_uid(world: World, server: Server) -> None:
    uid = world.pod()["metadata"]["uid"]
    answer = evict(server, world.name, preconditions={"uid": "abc"})
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")
    assert answer.body["message"] == (
        f'Operation cannot be fulfilled on Pod "{world.name}": the UID in the precondition (abc) does not match the '
        f"UID in record ({uid}). The object might have been deleted and then recreated"
    )
    assert answer.body["details"] == {"name": world.name, "kind": "Pod"}


def test_another_name(world: World, server: Server) -> None:
    world.pod()
    answer = evict(server, world.name, eviction("other"))
    assert (answer.status, answer.body["message"]) == (400, "name in URL does not match name in Eviction object")


def test_an_exhausted_budget(world: World, server: Server) -> None:
    world.pod()
    world.budget(minAvailable=1)

    def counted() -> bool:
        return bool(server.get(f"{BUDGETS}/{world.name}")["status"]["currentHealthy"] == 1)

    eventually("the budget counts the pod", counted)
    answer = evict(server, world.name)
    assert (answer.status, answer.body["reason"], answer.body["message"]) == (429, "TooManyRequests", VIOLATES)
    told = f"The disruption budget {world.name} needs 1 healthy pods and has 1 currently"
    assert answer.body["details"] == {"causes": [{"reason": "DisruptionBudget", "message": told}]}
    assert "Retry-After" not in answer.headers


def test_a_budget_that_was_not_observed_yet(world: World, server: Server) -> None:
    world.pod()
    world.budget(minAvailable=0)
    told = f"The disruption budget {world.name} is still being processed by the server."

    done = threading.Event()

    def take_back() -> None:
        # The controller observes within milliseconds: its observation is taken back again and again.
        while not done.is_set():
            server.merge(f"{BUDGETS}/{world.name}/status", {"status": {"observedGeneration": 0}})

    def refused() -> Answer | None:
        answer = evict(server, world.name, dryRun=["All"])
        return answer if answer.status == 429 else None

    writer = threading.Thread(target=take_back)
    writer.start()
    try:
        answer = eventually("the server says that it is still processing", refused, 30.0)
    finally:
        done.set()
        writer.join()
    cause = {"reason": "DisruptionBudget", "message": told}
    assert answer.body["message"] == VIOLATES
    assert answer.body["details"] == {"causes": [cause], "retryAfterSeconds": 10}
    assert answer.headers["Retry-After"] == "10"


def test_two_budgets_for_one_pod(world: World, server: Server) -> None:
    world.pod()
    world.budget(minAvailable=0)
    world.budget("-b", minAvailable=0)
    answer = evict(server, world.name)
    assert answer.status == 500 and "reason" not in answer.body
    assert answer.body["message"] == (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    )


def test_a_budget_lets_as_many_go_as_it_allows(world: World, server: Server) -> None:
    names = [world.name, f"{world.name}-b", f"{world.name}-c"]
    for suffix in ("", "-b", "-c"):
        world.pod(suffix=suffix)
    world.budget(minAvailable=2)

    def allowed() -> bool:
        return bool(server.get(f"{BUDGETS}/{world.name}")["status"]["disruptionsAllowed"] == 1)

    eventually("the budget allows one", allowed)
    assert [evict(server, name).status for name in names] == [201, 429, 429]

    def settled() -> bool:
        status = server.get(f"{BUDGETS}/{world.name}")["status"]
        return (status["currentHealthy"], status["disruptionsAllowed"]) == (2, 0)

    eventually("the evicted pod no longer counts", settled)


def test_an_unready_pod_goes_while_the_budget_is_healthy(world: World, server: Server) -> None:
    for suffix in ("", "-b"):
        world.pod(suffix=suffix)
    server.merge(f"{PODS}/{world.name}-b/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
    world.budget(minAvailable=1)

    def counted() -> bool:
        return bool(server.get(f"{BUDGETS}/{world.name}")["status"]["currentHealthy"] == 1)

    eventually("the budget counts one healthy pod", counted)
    assert success(evict(server, f"{world.name}-b"))
    assert evict(server, world.name).status == 429


def test_one_by_one_an_eviction_costs_a_tenth_of_a_second(world: World, server: Server) -> None:
    names = [f"{world.name}{suffix}" for suffix in ("", "-b", "-c", "-d", "-e", "-f")]
    for name in names:
        world.pod(suffix=name.removeprefix(world.name))
    evict(server, names[0])
    started = time.monotonic()
    for name in names[1:]:
        assert success(evict(server, name))
    mean = (time.monotonic() - started) / len(names[1:])
    # Each waits for a progress notice of the store, asked for every 100 ms; a loaded machine only makes it slower.
    assert mean > 0.05
