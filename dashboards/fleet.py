"""Fleet: what is broken, who is hurt, what is wasted, what the remediator does about it."""

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import BLUE, GREEN, GREY, RED, YELLOW, Text, board, lines, number, rows, steps, variable

NODES = 'instance=~"$node"'


def fleet() -> dashboard.Dashboard:
    """The first dashboard an operator opens."""
    page = board("gpuward / Fleet", "gpuward-fleet", "All GPUs: health, faults, pods on them, use, remediation.")
    page.with_variable(variable("node", "Node", "label_values(gpu_info, instance)"))
    _broken(page)
    _used(page)
    _hardware(page)
    _remediation(page)
    return page


def _broken(page: dashboard.Dashboard) -> None:
    page.with_row(dashboard.Row("What is broken"))
    worst = steps(GREEN, (1, RED))
    doubt = steps(GREEN, (1, YELLOW))
    page.with_panel(
        number(Text(title="GPUs", description="GPUs seen in this boot."), f"count(gpu_up{{{NODES}}})", steps(BLUE))
    ).with_panel(
        number(
            Text(title="Unhealthy", description="GPUs that must get no new work."),
            f'sum(gpu_health{{{NODES}, state="Unhealthy"}})',
            worst,
        )
    ).with_panel(
        number(
            Text(title="Degraded", description="GPUs with a warning; they go on working."),
            f'sum(gpu_health{{{NODES}, state="Degraded"}})',
            doubt,
        )
    ).with_panel(
        number(
            Text(title="Unknown", description="GPUs whose driver does not answer; nothing is done on doubt."),
            f'sum(gpu_health{{{NODES}, state="Unknown"}})',
            doubt,
        )
    ).with_panel(
        number(
            Text(title="Not answering", description="GPUs that are lost, hung or missing."),
            f"count(gpu_up{{{NODES}}} == 0) or vector(0)",
            worst,
        )
    ).with_panel(
        number(
            Text(title="Blind nodes", description="Nodes whose exporter cannot tell which pods use its GPUs."),
            f"count(gpu_mapping_known{{{NODES}}} == 0) or vector(0)",
            doubt,
        )
    )
    page.with_panel(
        rows(
            Text(
                title="Findings", description="Every fault that stands; it goes only when what clears it has happened."
            ),
            f"max by (instance, gpu, code, severity) (gpu_finding{{{NODES}}}) > 0",
            {"instance": "Node", "gpu": "GPU", "code": "Fault", "severity": "Severity"},
        )
    ).with_panel(
        rows(
            Text(title="Pods on GPUs that are not healthy", description="Who is hurt now."),
            f"max by (instance, gpu, namespace, pod) (gpu_allocation_info{{{NODES}}})"
            f' and on (instance, gpu) (gpu_health{{{NODES}, state="Healthy"}} == 0)',
            {"instance": "Node", "gpu": "GPU", "namespace": "Namespace", "pod": "Pod"},
        )
    )
    page.with_panel(
        lines(
            Text(title="Xids", description="Driver errors by code, per five minutes."),
            {"Xid {{xid}}": f"sum by (xid) (increase(gpu_xid_errors_total{{{NODES}}}[5m]))"},
            span=24,
        )
    )


def _used(page: dashboard.Dashboard) -> None:
    page.with_row(dashboard.Row("Who uses it"))
    page.with_panel(
        lines(
            Text(title="Allocated and busy", description="GPUs held by a pod against the sum of their utilization."),
            {
                "GPUs": f"count(gpu_up{{{NODES}}})",
                "allocated": f"count(count by (instance, gpu) (gpu_allocation_info{{{NODES}}})) or vector(0)",
                "busy": f"sum(gpu_utilization_ratio{{{NODES}}})",
            },
        )
    ).with_panel(
        lines(
            Text(title="Allocated GPUs by namespace", description="GPUs held by pods of each namespace."),
            {"{{namespace}}": f"count by (namespace) (gpu_allocation_info{{{NODES}}})"},
        )
    ).with_panel(
        rows(
            Text(title="Allocated but idle", description="Held by a pod, below 1 % utilization for 15 minutes."),
            f"max by (instance, gpu, namespace, pod) (gpu_allocation_info{{{NODES}}})"
            f" and on (instance, gpu) (max_over_time(gpu_utilization_ratio{{{NODES}}}[15m]) < 0.01)",
            {"instance": "Node", "gpu": "GPU", "namespace": "Namespace", "pod": "Pod"},
            span=8,
        )
    )


def _hardware(page: dashboard.Dashboard) -> None:
    page.with_row(dashboard.Row("Hardware"))
    page.with_panel(
        lines(
            Text(title="Utilization", description="Mean per node.", unit="percentunit"),
            {"{{instance}}": f"avg by (instance) (gpu_utilization_ratio{{{NODES}}})"},
            maximum=1,
        )
    ).with_panel(
        lines(
            Text(title="Memory used", description="Share of the memory of all GPUs of a node.", unit="percentunit"),
            {
                "{{instance}}": f"sum by (instance) (gpu_memory_used_bytes{{{NODES}}})"
                f" / sum by (instance) (gpu_memory_total_bytes{{{NODES}}})"
            },
            maximum=1,
        )
    ).with_panel(
        lines(
            Text(title="Power", description="Sum per node.", unit="watt"),
            {"{{instance}}": f"sum by (instance) (gpu_power_watts{{{NODES}}})"},
        )
    ).with_panel(
        lines(
            Text(title="Hottest GPU", description="Maximum per node.", unit="celsius"),
            {"{{instance}}": f"max by (instance) (gpu_temperature_celsius{{{NODES}}})"},
        )
    ).with_panel(
        lines(
            Text(
                title="GPUs slowed by heat or power brake", description="Clock event bits hw_slowdown, thermal, brake."
            ),
            {
                "{{reason}}": f'sum by (reason) (gpu_clock_event_active{{{NODES}, reason=~"hw_.*|sw_thermal.*"}})',
            },
        )
    ).with_panel(
        lines(
            Text(title="Oldest reading", description="Age of the stalest reading per node.", unit="s"),
            {"{{instance}}": f"max by (instance) (gpu_snapshot_age_seconds{{{NODES}}})"},
        )
    )


def _remediation(page: dashboard.Dashboard) -> None:
    page.with_row(dashboard.Row("Remediation"))
    page.with_panel(
        lines(
            Text(
                title="Open incidents by phase",
                description="Each waits visibly; kubectl get gpuincidents says for what.",
            ),
            {"{{phase}}": "sum by (phase) (gpuward_remediator_incidents)"},
        )
    ).with_panel(
        lines(
            Text(title="Waiting for", description="Actions wanted and not taken, by reason."),
            {"{{reason}}": "sum by (reason) (gpuward_remediator_deferrals)"},
        )
    ).with_panel(
        lines(
            Text(title="Evictions", description="By result, per five minutes."),
            {"{{result}}": "sum by (result) (increase(gpuward_remediator_evictions_total[5m]))"},
        )
    ).with_panel(
        number(
            Text(title="Leader", description="Exactly one replica writes."),
            "sum(gpuward_remediator_leader)",
            steps(RED, (1, GREEN), (2, RED)),
        )
    ).with_panel(
        number(
            Text(title="Policy in force", description="0 = the file was refused; the last good one is in force."),
            "min(gpuward_remediator_policy_valid)",
            steps(RED, (1, GREEN)),
        )
    ).with_panel(
        number(
            Text(
                title="Budget used",
                description="Targets out of service by us against what the policy allows.",
                unit="percentunit",
            ),
            "max(gpuward_remediator_nodes_out / (gpuward_remediator_nodes_out_allowed > 0)) or vector(0)",
            steps(GREY, (0.01, YELLOW), (1, RED)),
        )
    )
