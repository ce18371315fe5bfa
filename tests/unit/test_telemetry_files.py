"""Dashboards, alerts and docs name the metrics that there are, and all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from trtspec.service.telemetry import catalogue as names

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "scripts" / "deploy" / "grafana"
COUNTERS = {family.name for family in (*names.OF_REQUESTS, *names.OF_ENGINE) if not family.buckets}
EXPOSED = {
    *(f"{names.PREFIX}{name}_total" for name in COUNTERS),
    *(f"{names.PREFIX}{family.name}_bucket" for family in names.OF_REQUESTS if family.buckets),
    *(names.PREFIX + family.name for family in names.GAUGES),
}


def queries() -> dict[str, str]:
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    dashboard = " ".join(target["expr"] for panel in panels for target in panel.get("targets", ()))
    return {"dashboard.json": dashboard, "rules.yml": (DEPLOY / "rules.yml").read_text()}


def test_queries_name_metrics_that_there_are() -> None:
    for file, text in queries().items():
        found = set(re.findall(r"\btrtspec_[a-z0-9_]+", text))
        assert len(found) > 15 and found <= EXPOSED, file


def test_the_dashboard_shows_every_metric_but_those_of_trees() -> None:
    shown = set(re.findall(r"\btrtspec_[a-z0-9_]+", queries()["dashboard.json"]))
    assert EXPOSED - shown == {"trtspec_spec_decode_num_verified_nodes_total"}


def test_panels_have_their_own_ids_and_do_not_overlap() -> None:
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


def test_the_docs_tell_every_metric_and_every_alert() -> None:
    text = (ROOT / "scripts" / "docs" / "metrics.md").read_text()
    told = set(re.findall(r"`(?:…_)?([a-z0-9_]+)", text))
    for name in EXPOSED:
        short = name.removeprefix(names.PREFIX).removesuffix("_bucket")
        assert short in told or short.removeprefix("spec_decode_") in told, name
    alerts = set(re.findall(r"alert: (\w+)", (DEPLOY / "rules.yml").read_text()))
    assert alerts == set(re.findall(r"`(Trtspec\w+)`", text))
