"""What the dashboards share: the data source variable, a PromQL target, three kinds of panel."""

from collections.abc import Mapping
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, RED, GREY, BLUE = "green", "yellow", "red", "#808080", "blue"


@dataclass(frozen=True, kw_only=True)
class Text:
    """Words of a panel: what it shows, and why one should look."""

    title: str
    description: str
    unit: str = "short"


def query(expr: str, legend: str = "", *, instant: bool = False, ref: str = "A") -> prometheus.Dataquery:
    """A PromQL target; `instant` for stats and tables."""
    target = prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(ref)
    return target.instant().format(PromQueryFormat.TABLE) if instant else target.range()


def steps(base: str, *above: tuple[float, str]) -> dashboard.ThresholdsConfig:
    """Colours by value: `base` from minus infinity, then each (from value, colour)."""
    levels = [Threshold(value=None, color=base), *(Threshold(value=value, color=color) for value, color in above)]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(levels)


def number(text: Text, expr: str, thresholds: dashboard.ThresholdsConfig, *, span: int = 4) -> stat.Panel:
    """One big number with the colour of its threshold."""
    return (
        stat.Panel()
        .title(text.title)
        .description(text.description)
        .unit(text.unit)
        .datasource(DATASOURCE)
        .with_target(prometheus.Dataquery().expr(expr).instant().ref_id("A"))
        .thresholds(thresholds)
        .color_mode(BigValueColorMode.BACKGROUND)
        .graph_mode(BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("0")
        .height(4)
        .span(span)
    )


def lines(text: Text, targets: Mapping[str, str], *, span: int = 8, maximum: float | None = None) -> timeseries.Panel:
    """Lines over time; `targets` maps legend to PromQL."""
    panel = (
        timeseries.Panel()
        .title(text.title)
        .description(text.description)
        .unit(text.unit)
        .datasource(DATASOURCE)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
        )
        .min(0)
        .fill_opacity(8)
        .height(8)
        .span(span)
    )
    for position, (legend, expr) in enumerate(targets.items()):
        panel.with_target(query(expr, legend, ref=chr(ord("A") + position)))
    return panel if maximum is None else panel.max(maximum)


def rows(text: Text, expr: str, columns: Mapping[str, str], *, span: int = 12) -> table.Panel:
    """A table of the labels of `expr`; `columns` maps label to heading, in order, and drops the rest."""
    keep: dict[str, object] = {
        "include": {"names": list(columns)},
    }
    rename: dict[str, object] = {
        "indexByName": {name: position for position, name in enumerate(columns)},
        "renameByName": dict(columns),
    }
    return (
        table.Panel()
        .title(text.title)
        .description(text.description)
        .unit(text.unit)
        .datasource(DATASOURCE)
        .with_target(query(expr, instant=True))
        .with_transformation(DataTransformerConfig(id_val="filterFieldsByName", options=keep))
        .with_transformation(DataTransformerConfig(id_val="organize", options=rename))
        .override_by_name("Since", [DynamicConfigValue(id_val="unit", value="dateTimeFromNow")])
        .height(8)
        .span(span)
    )


def variable(name: str, label: str, values: str) -> dashboard.QueryVariable:
    """A multi-value template variable filled by a label query; All by default."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(values)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def board(title: str, uid: str, description: str) -> dashboard.Dashboard:
    """An empty dashboard with the data source variable and the house style."""
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["gpuward", "gpu"])
        .timezone("browser")
        .refresh("30s")
        .time("now-3h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .editable()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
