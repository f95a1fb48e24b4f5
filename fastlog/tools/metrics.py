"""``fastlog metrics``: the dashboard and the alerts that belong to ``/metrics`` of a broker."""

from __future__ import annotations

from importlib import resources

import click

from fastlog.tools import options

EXIT_CODES = (("0", "done"), ("2", "wrong usage"), ("130, 143", "stopped by SIGINT, by SIGTERM"))


@click.group(
    cls=options.CommandGroup,
    name="metrics",
    examples=("fastlog metrics dashboard > fastlog.json", "fastlog metrics rules > fastlog.rules.yml"),
    exit_codes=EXIT_CODES,
)
def metrics_command() -> None:
    """Print a dashboard, or alerts, for brokers that Prometheus asks."""


@metrics_command.command(
    cls=options.Command,
    name="dashboard",
    examples=("fastlog metrics dashboard > fastlog.json", "fastlog metrics dashboard | jq .title"),
    exit_codes=EXIT_CODES,
)
def dashboard_command() -> None:
    """Print a dashboard, to be imported in Grafana."""
    click.echo(_shipped("dashboard.json"), nl=False)


@metrics_command.command(
    cls=options.Command,
    name="rules",
    examples=("fastlog metrics rules > fastlog.rules.yml", "fastlog metrics rules | grep alert:"),
    exit_codes=EXIT_CODES,
)
def rules_command() -> None:
    """Print alerts, a file for rule_files of Prometheus."""
    click.echo(_shipped("rules.yml"), nl=False)


def _shipped(name: str) -> str:
    return resources.files("fastlog").joinpath("metrics", name).read_text(encoding="utf-8")
