"""Hostile texts and payloads appear as text on every page, and add no element or attribute."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from tests.core.test_errors import build, every_error
from tests.ops.report.test_cluster import CLUSTER, FixedCluster
from tests.support.chromium import chromium_tab
from tests.support.consoles import SomeRights, console_of, served
from tests.support.file_lake import FileLake, Payload, home_lake
from tests.support.hostile import PAYLOADS, TEXTS
from tests.support.memory_consoles import MemoryApp, memory_app, memory_web
from tests.support.quality_reports import REPORT
from tests.support.typed_lake import home_typed_lake
from tidemark.bronze.backfill.selection import select
from tidemark.console.records import COUNT
from tidemark.console.rendering import render
from tidemark.console.runs import BACKFILL_DAG
from tidemark.core.cluster import BrokerDescription, ClusterDescription, Setting, Settings
from tidemark.core.errors import TidemarkError
from tidemark.core.origins import DagRunRequester
from tidemark.core.texts import visible
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.quality.check_results import Example

pytestmark = pytest.mark.slow


class Structure(HTMLParser):
    """Counts the elements of a page with the names of their attributes.

    Attributes:
        elements: Number of each element.
        texts: All texts and values of attributes.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: Counter[tuple[str, ...]] = Counter()
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag, *sorted(name for name, _ in attrs)] += 1
        self.texts += [value for _, value in attrs if value]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def test_the_corpus_is_large_enough() -> None:
    assert len(set(PAYLOADS)) >= 200


@every_error
def test_hostile_fields_of_an_error_are_text(kind: type[TidemarkError]) -> None:
    """They come from Kafka, storages, registries and specs. A fix marks its commands as code."""
    usual = build(kind)
    hostile: dict[str, Any] = {}
    for name in (each.name for each in fields(kind)):
        value = getattr(usual, name)
        if isinstance(value, str):
            hostile[name] = "".join(TEXTS)
        elif isinstance(value, tuple) and isinstance(value[0], str):
            hostile[name] = TEXTS
    frame = {"root": "", "here": "", "refreshes": True, "toggle": "", "status": 422, "text": ""}
    before, after = (
        Structure(render("error.html", {**frame, "error": error}))
        for error in (usual, replace(usual, **hostile))
    )
    assert after.elements.keys() - {("code",)} <= before.elements.keys()
    assert all(each.isprintable() or each in "\n\t" for text in after.texts for each in text)
    assert not hostile or TEXTS[0] in "".join(after.texts)


@dataclass
class TextCluster(FixedCluster):
    """A cluster with one topic and given texts. Reading its offsets fails.

    Attributes:
        texts: Texts of brokers, settings and errors.
    """

    texts: Sequence[str] = ()

    def describe(self, topics: Sequence[str] | None = None) -> ClusterDescription:  # noqa: ARG002
        joined = "".join(self.texts)
        broker = BrokerDescription(id=1, host=joined, port=9092, rack=joined)
        topic = replace(CLUSTER.topics[-1], name="events", topic_id=joined, problem=self.problem())
        return replace(CLUSTER, cluster_id=joined, brokers=(broker,), topics=(topic,))

    def problem(self) -> KafkaUnavailable:
        return KafkaUnavailable(operation="".join(self.texts), reason="".join(self.texts))

    def topic_settings(self, topic: str) -> Settings:  # noqa: ARG002
        return Settings(
            values=tuple(
                Setting(name=text, value=text, source=text, is_default=False, is_sensitive=False)
                for text in self.texts
            )
        )

    def topic_watermarks(self, topic: str, isolation_level: object) -> NoReturn:  # noqa: ARG002
        raise self.problem()


HOSTILE_TEXTS = sorted(dict.fromkeys(TEXTS), key=lambda text: not text.startswith('">'))
"""The first text, which is also in addresses, ends the value of an attribute."""
USUAL_TEXTS = [f"text {number}" for number in range(len(HOSTILE_TEXTS))]
PAGES = (
    "/",
    "/pipelines/events",
    "/pipelines/events/plans",
    "/pipelines/events/plans/1",
    "/pipelines/events/plans/2",
    *(
        f"/pipelines/events/records?partition=0&offset={first}"
        for first in range(0, len(HOSTILE_TEXTS), COUNT)
    ),
    "/pipelines/events/records?partition=1",
    "/pipelines/events/quality",
    "/pipelines/events/quality/report",
    "/pipelines/events/quarantine",
    "/pipelines/events/backfills",
    "/cluster",
    "/cluster/kafka_default/topics/events",
    "/pipelines/events/backfill?offsets={text}&reason={text}&chunk={text}",
    "/dags/tidemark_events",
    "/dags/tidemark_events/runs/{text}",
    "/dags/tidemark_backfill/runs/{text}?pipeline=events",
)
"""Pages with hostile texts. `{text}` stands for a text in the address."""
PREVIEW = "/pipelines/events/backfill?offsets=0:0-1&replace=true&reason={text}"
"""A page that needs Kafka, which fails for the other pages."""


def text_home(home: Path, texts: Sequence[str]) -> Callable[[], MemoryApp]:
    """Return a loader of a home whose pipeline `events` has the texts in every place.

    They are in payloads, headers, the quarantine, reasons, check results and the description, and
    in the cluster's texts and errors.
    """
    home.mkdir()
    typed, joined = home_typed_lake(home), "".join(texts)
    spec = home / "pipelines" / "events.yaml"
    printable = "".join(text for text in texts if all(map(_is_printable, text)))
    spec.write_text(spec.read_text() + f"description: {json.dumps(printable)}\n")
    typed.rules = dict(enumerate(texts))
    typed.bronze.payloads |= {
        (0, offset): Payload(text.encode(), text.encode(), ((text, text.encode()),))
        for offset, text in enumerate(texts)
    }
    typed.bronze.run(len(texts))
    typed.run()
    typed.bronze.produce(1, 0)
    typed.bronze.planner.plan(joined)
    typed.bronze.abandon.abandon(2, "cli:ada:1", joined)
    typed.bronze.produce(1, 1)
    typed.bronze.kafka.delete_records("events", 1, 1)
    typed.bronze.decisions.accept_loss((1,), "cli:ada:1", joined)
    pipeline = memory_app(home, typed.bronze)().pipeline("events")
    (usual,) = REPORT.results
    result = replace(
        usual,
        check="expect_column_values_to_be_in_set",
        column=joined,
        passed=False,
        observed=joined,
        expectation=joined,
        unexpected_count=1,
        examples=tuple(Example(0, number, text) for number, text in enumerate(texts)),
    )
    pipeline.check_results.append(replace(REPORT, pipeline="events", results=(result,)))
    selection = select(offsets=["0:0-1"])
    preview = pipeline.backfills.preview(selection, None, readable_only=False, replaces=True)
    run = DagRunRequester(dag_id=BACKFILL_DAG, run_id=texts[0])
    for requester in ("cli:ada:7", str(run)):
        pipeline.backfills.request(preview, requester, approved=False, reason=joined)
    cluster: Any = TextCluster(texts=texts)
    loaded = replace(memory_app(home, typed.bronze)(), watermarks=cluster, cluster_reader=cluster)
    return lambda: loaded


def with_text(path: str, texts: Sequence[str]) -> str:
    """Return an address with the first text."""
    return path.format(text=quote(texts[0], safe=""))


def element_counts(page: str) -> Counter[tuple[str, ...]]:
    """Count the elements of a page, except `code`, which a hostile text may add."""
    elements = Structure(page).elements
    del elements["code",]
    return elements


def test_a_home_with_hostile_texts_in_every_place_has_the_pages_of_a_usual_one(
    tmp_path: Path,
) -> None:

    def pages(name: str, texts: Sequence[str]) -> dict[str, str]:
        load = text_home(tmp_path / name, texts)
        without_kafka = TestClient(memory_web(load))
        with_kafka = TestClient(memory_web(lambda: replace(load(), watermarks=None)))
        found = {path: without_kafka.get(with_text(path, texts)) for path in PAGES}
        found[PREVIEW] = with_kafka.get(with_text(PREVIEW, texts))
        assert {page.status_code for page in found.values()} == {200}
        return {path: page.text for path, page in found.items()}

    usual, hostile = pages("usual", USUAL_TEXTS), pages("hostile", HOSTILE_TEXTS)
    assert "tidemark backfill events" in usual[PREVIEW]
    for path, page in hostile.items():
        found = Structure(page)
        assert element_counts(page) == element_counts(usual[path]), path
        assert all(each.isprintable() or each in "\n\t" for text in found.texts for each in text)
        # The overview shows only the names of errors.
        assert path == "/" or HOSTILE_TEXTS[0] in "".join(found.texts), path


_ELEMENTS = """
JSON.stringify([...document.querySelectorAll("*")].map(
  element => [element.tagName, ...element.getAttributeNames().sort()].join(" ")
).map(each => each.replace(" class", "")).filter(each => each !== "CODE").sort())
"""
"""The elements of a page, except `code`, with the names of their attributes, except `class`."""


@pytest.mark.e2e
def test_a_browser_runs_no_script_of_a_hostile_text_and_adds_no_element(tmp_path: Path) -> None:
    """The test turns off the content security policy, which also blocks such scripts."""
    (tmp_path / "browser").mkdir()
    consoles = (
        memory_web(text_home(tmp_path / name, texts))
        for name, texts in (("usual", USUAL_TEXTS), ("hostile", HOSTILE_TEXTS))
    )
    with (
        served(next(consoles)) as usual,
        served(next(consoles)) as hostile,
        chromium_tab(tmp_path / "browser") as tab,
    ):
        tab.hurry(20)
        tab.send("Page.setBypassCSP", enabled=True)
        source = "window.ran = []; window.alert = text => ran.push(text)"
        tab.send("Page.addScriptToEvaluateOnNewDocument", source=source)
        for path in PAGES:
            tab.open(f"{usual}{with_text(path, USUAL_TEXTS)}")
            elements = tab.value(_ELEMENTS)
            assert elements.count('"SCRIPT') == 2
            address = f"{hostile}{with_text(path, HOSTILE_TEXTS)}"
            tab.open(address)
            if path == "/pipelines/events":
                tab.value("document.getElementById('content').isOld = true")
                tab.wait_for("!document.getElementById('content').isOld")
            assert (tab.value("ran"), tab.value("location.href")) == ([], address)
            assert tab.value(_ELEMENTS) == elements, path
        assert tab.problems == []


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `events` with three landed plans."""
    return home_lake(tmp_path)


def test_hostile_reasons_and_descriptions_are_text(lake: FileLake, tmp_path: Path) -> None:
    """YAML refuses some control characters, so the description has the others."""
    lake.undo.undo(2, "cli:ada:1", "benign")
    pages = ("/", "/pipelines/events", "/pipelines/events/plans", "/pipelines/events/plans/2")
    benign = [Structure(console_of(tmp_path).get(page).text) for page in pages]
    printable = "".join(text for text in TEXTS if all(map(_is_printable, text)))
    spec = tmp_path / "pipelines" / "events.yaml"
    spec.write_text(spec.read_text() + f"description: {json.dumps(printable)}\n")
    lake.plan(1)
    lake.abandon.abandon(4, "cli:ada:<script>alert(1)</script>", "".join(TEXTS))
    hostile = [Structure(console_of(tmp_path).get(page).text) for page in pages]
    assert visible(printable) in " ".join(hostile[1].texts)
    for before, after in zip(benign, hostile, strict=True):
        assert set(after.elements) <= set(before.elements)
    plan = Structure(console_of(tmp_path).get("/pipelines/events/plans/4").text)
    assert "<script>alert(1)</script>" in "".join(plan.texts)
    assert all(each.isprintable() or each in "\n\t" for text in plan.texts for each in text)
    assert set(plan.elements) <= set(benign[3].elements)


def _is_printable(character: str) -> bool:
    return not unicodedata.category(character).startswith("C")


def test_hostile_payloads_are_text_in_keys_values_and_headers(
    lake: FileLake, tmp_path: Path
) -> None:
    """The records are read from the table, because no Kafka connection is defined."""
    headers = [((name, name.encode()),) for name in TEXTS]
    lake.land_payloads([(b"key", b"value" * 20_000)], 0, headers=headers[0])
    lake.payloads |= {
        (1, offset): Payload(payload, payload, headers[offset % len(headers)])
        for offset, payload in enumerate(PAYLOADS)
    }
    lake.run(len(PAYLOADS), 1)
    client = console_of(tmp_path)
    elements: set[tuple[str, ...]] = set()
    # A page leaves out what follows large payloads, so each of these comes first on one page.
    large = [offset for offset, payload in enumerate(PAYLOADS) if len(payload) > 10_000]
    for first in (*range(0, len(PAYLOADS), COUNT), *large):
        response = client.get(f"/pipelines/events/records?partition=1&offset={first}")
        assert response.status_code == 200
        page = Structure(response.text)
        assert all(each.isprintable() or each in "\n\t" for text in page.texts for each in text)
        elements |= set(page.elements)
        # htmx ignores its attributes in such an element.
        rest = re.sub(r"<article [^>]*hx-disable>.*?</article>", "", response.text, flags=re.DOTALL)
        assert page.elements["pre", "tabindex"]
        assert not re.search("<pre|<dd", rest)
    usual = Structure(client.get("/pipelines/events/records?partition=0").text)
    assert elements <= set(usual.elements)
    without = console_of(tmp_path, viewer=SomeRights(payloads=False))
    hidden = Structure(without.get("/pipelines/events/records?partition=1").text)
    assert not any(element[0] == "pre" for element in hidden.elements)
