"""HTML of the console: one Jinja environment that escapes every value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from tidemark.console import charts
from tidemark.console.lag_charts import LagHistory
from tidemark.core.cluster import Setting
from tidemark.core.texts import counted, format_duration, visible
from tidemark.ops.report.owner_report import outcome_of
from tidemark.ops.report.page import minute
from tidemark.quality.checks import is_measured
from tidemark.quality.html_templates import TEMPLATES, html_environment

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"


@cache
def _environment() -> jinja2.Environment:
    environment = html_environment(FOLDER / "templates", TEMPLATES)
    environment.filters |= {"number": number, "time": time, "ago": ago, "duration": duration}
    environment.filters |= {"minute": minute, "with_code": with_code}
    environment.filters["setting_value"] = setting_value
    environment.filters["counted"] = counted
    environment.tests["measured"] = is_measured
    environment.filters["outcome"] = outcome_of
    environment.globals |= {
        "state_class": charts.state_class,
        "lag_history": LagHistory,
    }
    return environment


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return a page as HTML."""
    return _environment().get_template(template).render(values)


_QUOTED = r"""(?<![^\s`])'[^']*'(?:"'"'[^']*')*"""
"""An argument of a command that `shlex.quote` has quoted."""
_SHORTEST_MS, _SMALLEST_BYTES = 1_000, 1_024
_NO_LIMIT = 2**62
"""Kafka's settings without a limit have values such as 2**63 - 1."""
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_CODE = re.compile(rf"`((?>{_QUOTED}|[^`])+)`")


def with_code(text: str) -> Markup:
    """Return a text as HTML, with its parts in backquotes as elements `code`.

    A backquote in a quoted argument of a command belongs to the command.
    """
    parts = enumerate(_CODE.split(visible(text)))
    code = Markup("<code>{}</code>")
    return Markup().join(code.format(each) if n % 2 else escape(each) for n, each in parts)


def number(value: int | None) -> str:
    """Return a number with separators of thousands; a dash for None."""
    return "-" if value is None else f"{value:,}"


def time(value: datetime | None) -> str:
    """Return a time in UTC to the second; a dash for None."""
    return "-" if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def ago(value: datetime | None, now: datetime) -> str:
    """Return the age of a time in words, also of a future one by another clock; a dash for None."""
    if value is None:
        return "-"
    age = now - value
    future = f"{format_duration(-age)} in the future"
    return future if age < timedelta() else f"{format_duration(age)} ago"


def setting_value(setting: Setting) -> str:
    """Return the value of a setting of Kafka; a duration or size also in its largest units."""
    if setting.is_sensitive:
        return "(hidden)"
    if setting.value is None:
        return "-"
    text = _in_units(setting.name, int(setting.value)) if setting.value.isdecimal() else ""
    return f"{setting.value} ({text})" if text else setting.value


def _in_units(name: str, value: int) -> str:
    """Return a duration or size as text; empty for other settings and for those without a limit."""
    if name.endswith(".ms") and _SHORTEST_MS <= value < _NO_LIMIT:
        return format_duration(timedelta(milliseconds=value))
    if name.endswith(".bytes") and _SMALLEST_BYTES <= value < _NO_LIMIT:
        power = min((value.bit_length() - 1) // 10, len(_SIZES) - 1)
        return f"{value / 1024**power:,.3g} {_SIZES[power]}"
    return ""


def duration(value: timedelta | None) -> str:
    """Return a duration in words; a dash for None."""
    return "-" if value is None else format_duration(value)
