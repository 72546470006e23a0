"""The rig itself: a real Prometheus scrapes, answers queries and fires alerts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.prometheus import Prometheus, require_prometheus
from tests.rig.waiting import eventually

pytestmark = pytest.mark.prometheus

RULE = """
groups:
- name: rig
  rules:
  - {alert: NothingThere, expr: 'up{job="nowhere"} == 0'}
  - {alert: NeverTrue, expr: 'up{job="nowhere"} == 1'}
"""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    require_prometheus()
    rules: Path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(RULE)
    with Prometheus({"nowhere": ["127.0.0.1:1"]}, [rules]) as running:
        yield running


def test_it_scrapes_and_answers(prometheus: Prometheus) -> None:
    (sample,) = eventually("the first scrape is stored", lambda: prometheus.query("up"), 30.0)
    assert (sample.labels["job"], sample.value) == ("nowhere", 0.0)


def test_its_alerts_fire(prometheus: Prometheus) -> None:
    (labels,) = eventually("the alert fires", lambda: prometheus.firing("NothingThere"), 30.0)
    assert labels["instance"] == "127.0.0.1:1"
    assert prometheus.firing("NeverTrue") == []


def test_a_bad_query_says_what_is_wrong(prometheus: Prometheus) -> None:
    with pytest.raises(AssertionError, match="parse error"):
        prometheus.query("rate(")
