"""Xid counters: per GPU and code, once per fault, for one boot."""

import pytest

from exporter.assess.witness import KEPT, Sighting, Subject, forget, pair
from exporter.assess.xids import MAX_SERIES, XidCount, XidCounts, count, located
from exporter.readings import XidEvent, XidFamily
from tests.rig.readings_world import BOOT, NEXT_BOOT, a_gpu, address, an_xid, at, uuid


def numbers(counts: XidCounts) -> dict[tuple[str | None, int], int]:
    """Count by GPU and code."""
    return {(c.gpu, c.code): c.count for c in counts.counts}


def test_counted_by_gpu_and_code() -> None:
    events = (an_xid(31), an_xid(31, seconds=1), an_xid(13), an_xid(31, gpu=1), an_xid(79, gpu=None))
    counts = count(XidCounts(), events, BOOT)
    assert numbers(counts) == {(uuid(0), 31): 2, (uuid(0), 13): 1, (uuid(1), 31): 1, (None, 79): 1}
    assert counts.counts[0] == XidCount(gpu=None, code=79, count=1, last_seen=at(0))


def test_two_witnesses_count_once_over_several_calls() -> None:
    counts = count(XidCounts(), (an_xid(31, source="nvml-event"),), BOOT)
    counts = count(counts, (an_xid(31, seconds=2),), BOOT)
    assert numbers(counts) == {(uuid(0), 31): 1}
    counts = count(counts, (an_xid(31, seconds=3), an_xid(31, seconds=20, source="nvml-event")), BOOT)
    assert numbers(counts) == {(uuid(0), 31): 3}


def test_the_newest_time_stays() -> None:
    counts = count(XidCounts(), (an_xid(31, seconds=9), an_xid(31, seconds=4)), BOOT)
    assert counts.counts[0].last_seen == at(9)


def test_a_new_boot_starts_again() -> None:
    counts = count(XidCounts(), (an_xid(31),), BOOT)
    assert count(counts, (), BOOT).counts == counts.counts
    assert count(counts, (), NEXT_BOOT).counts == ()


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(an_xid(31, boot_id=NEXT_BOOT), id="another boot"),
        pytest.param(an_xid(20034, family=XidFamily.SXID), id="a switch's error"),
    ],
)
def test_not_counted(event: XidEvent) -> None:
    assert count(XidCounts(), (event,), BOOT).counts == ()


def test_series_are_bounded() -> None:
    events = tuple(an_xid(code % 5000, seconds=code / 100) for code in range(10_000))
    counts = count(XidCounts(), events, BOOT)
    assert len(counts.counts) == MAX_SERIES
    assert counts.overflow == 2 * (5000 - MAX_SERIES)


def test_addresses_find_their_gpu() -> None:
    gpus = (a_gpu(0), a_gpu(1))
    by_address = an_xid(31, gpu=None, pci_bus_id=address(1))
    strange = an_xid(31, gpu=None, pci_bus_id=address(7))
    switch = an_xid(20034, gpu=None, pci_bus_id=address(0), family=XidFamily.SXID)
    found = located((an_xid(31), by_address, strange, switch), gpus)
    assert [event.gpu for event in found] == [uuid(0), uuid(1), None, None]


def test_a_storm_keeps_a_bounded_number_of_open_events() -> None:
    unpaired: dict[Subject, tuple[Sighting, ...]] = {}
    window = XidCounts().window
    for n in range(10_000):
        pair(unpaired, ("g", "xid-31"), ("kernel-log", at(n / 10_000)), window)
    assert len(unpaired["g", "xid-31"]) == KEPT


def test_open_events_are_forgotten_after_the_window() -> None:
    unpaired: dict[Subject, tuple[Sighting, ...]] = {("g", "xid-31"): (("kernel-log", at(0)),)}
    forget(unpaired, at(5), XidCounts().window)
    assert unpaired
    forget(unpaired, at(5.1), XidCounts().window)
    assert unpaired == {}
