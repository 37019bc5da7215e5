"""A draft of a whole spec, from the newest records of a topic that no pipeline reads yet."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tidemark.core.plain import plain
from tidemark.core.texts import counted
from tidemark.delta.local_files import replace_text, translate_os_errors
from tidemark.draft.decode import Assumption, DecodeDraft, draft_decode
from tidemark.draft.profile import Profile
from tidemark.kafka.topics import TopicSample
from tidemark.silver.typed.errors import RegistryFailure
from tidemark.silver.typed.json_types import ENOUGH
from tidemark.silver.typed.registry_answers import Registry
from tidemark.spec.decode import Format
from tidemark.spec.errors import FileExists
from tidemark.spec.layout import Layout, spec_files
from tidemark.spec.loading import load_specs
from tidemark.spec.upsert import Envelope

DEFAULT_SCHEDULE = "*/15 * * * *"
"""Schedule of a drafted spec."""
_LONGEST_NAME = 64
"""See `PIPELINE_NAME`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecDraft:
    """A draft of a spec.

    Attributes:
        name: Name of the pipeline.
        topic: Topic name.
        connection: Connection id of the Kafka cluster.
        schedule: Cron expression or preset.
        decode: The draft of the section `decode`.
        envelope: The envelope of the upsert table; None without an upsert table.
        suite: Name of the quality suite; None without one.
        profile: The profile of the sampled records.
        assumptions: The values that the draft assumes, each with its evidence.
    """

    name: str
    topic: str
    connection: str
    schedule: str
    decode: DecodeDraft
    envelope: Envelope | None
    suite: str | None
    profile: Profile
    assumptions: Sequence[Assumption]

    @classmethod
    def of(
        cls,
        sample: TopicSample,
        *,
        name: str | None,
        connection: str,
        schedule: str,
        upsert: bool | None,
        registry: Registry,
        with_suite: bool = False,
        value_format: Format | None = None,
    ) -> Self:
        """Return a draft for the sampled records of a topic.

        Args:
            sample: Records of the topic.
            name: Name of the pipeline; None to derive it from the topic.
            connection: Connection id of the Kafka cluster.
            schedule: Cron expression or preset.
            upsert: Whether the spec has an upsert table; None if the records decide.
            registry: Returns the schemas of the ids that payloads begin with.
            with_suite: Whether the spec names a quality suite. The suite has the pipeline's name.
            value_format: The format of the values; None if the records decide.

        Raises:
            RegistryUnavailable, RegistryRefused: The registry is defined, and returned no schema.
            NoUsableField: No value fits the chosen format.
        """
        profile = Profile.of_sample(lambda: sample.records, registry)
        decode = draft_decode(profile, value_format)
        if isinstance(decode.registry_problem, RegistryFailure):
            raise decode.registry_problem
        keyed = f"{profile.with_key:,} of {profile.records:,} records have a key"
        has_upsert = _has_upsert(profile, decode) if upsert is None else upsert
        assumed = [
            Assumption(key="start", value="earliest", evidence="the first run reads the whole log"),
            *(decode.assumptions if decode.records else ()),
            Assumption(
                key="decode.upsert",
                value="one row for each key" if has_upsert else "no upsert table",
                evidence=f"{keyed}; {len(profile.keys):,} different" if profile.with_key else keyed,
            ),
        ]
        if name is None:
            name = pipeline_name(sample.topic)
            assumed.insert(0, Assumption(key="name", value=name, evidence="the topic's name"))
        # The rules of a suite need Spark in each check, so a spec gets a suite only on request.
        suite = name if with_suite else None
        evidence = (
            "its rules are warnings; edit them"
            if suite
            else f"after a run, tidemark suite init {name} drafts one"
        )
        assumed.append(
            Assumption(key="quality.suite", value=suite or "no suite", evidence=evidence)
        )
        return cls(
            name=name,
            topic=sample.topic,
            connection=connection,
            schedule=schedule,
            decode=decode,
            envelope=decode.envelope if has_upsert else None,
            suite=suite,
            profile=profile,
            assumptions=assumed,
        )

    @property
    def is_decoded(self) -> bool:
        """Whether the spec has a section `decode`."""
        return _is_decoded(self.decode) or self.envelope is not None

    @property
    def text(self) -> str:
        """The content of the spec's file."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"# Drafted from {counted(self.decode.records, 'record')} of the topic. Edit it."
        yield f"name: {_text(self.name)}"
        yield f"topic: {_text(self.topic)}"
        if self.connection != "kafka_default":
            yield f"connection: {_text(self.connection)}"
        yield f'schedule: "{self.schedule}"'
        yield "start: earliest  # the first run reads the whole log"
        if self.suite:
            yield f"quality: {{suite: {self.suite}}}"
        else:
            yield f"# No quality suite: after a run, `tidemark suite init {self.name}` drafts one."
        if not self.is_decoded:
            why = "the sample has no record" if not self.decode.records else "see the values above"
            for each in self.decode.assumptions if self.decode.records else ():
                yield f"# {each.key}: {each.value}: {each.evidence}"
            yield f"# No section `decode`: {why}. `tidemark schema init {self.name}` drafts one."
            return
        yield from self.decode.yaml_lines()
        match self.envelope:
            case None:
                return
            case Envelope.NONE:
                yield "  upsert: {}  # one row for each key, with its newest record"
            case _:
                yield f"  upsert: {{envelope: {self.envelope}}}"

    def as_record(self) -> dict[str, Any]:
        """Return the draft as plain values, for `--json`."""
        return {
            "pipeline": self.name,
            "topic": self.topic,
            "records": self.decode.records,
            "assumptions": plain(self.assumptions),
            "left_out": [{"field": path, "why": why} for path, why in self.decode.left_out],
            "unfit": self.decode.unfit,
            "spec": self.text,
        }

    def check(
        self,
        folder: Path,
        layout: Layout,
        recorded_pipelines: Callable[[], Collection[str]],
        table_owner: Callable[[str], str | None],
    ) -> Path:
        """Return the file of the spec, after the checks of every command.

        Args:
            folder: The folder of specs.
            layout: As for `load_specs`.
            recorded_pipelines: As for `load_specs`.
            table_owner: As for `load_specs`.

        Raises:
            FileExists: The folder has a spec of this name.
            SpecError: The draft is invalid, or contradicts another spec.
        """
        file = folder / f"{self.name}.yaml"
        existing = spec_files(folder) if folder.is_dir() else []
        if any(each.stem == self.name for each in existing):
            raise FileExists.of_spec(str(file), self.name)
        with tempfile.TemporaryDirectory() as copy:
            for each in existing:
                shutil.copy(each, copy)
            # The file of the suite does not exist yet.
            text = replace(self, suite=None).text
            (Path(copy) / file.name).write_text(text, encoding="utf-8")
            broken = load_specs(Path(copy), layout, recorded_pipelines, table_owner).broken
        if self.name in broken:
            raise broken[self.name]
        return file

    def write(self, file: Path) -> None:
        """Write the spec to the file that `check` has returned.

        Raises:
            StorageFailure: The file cannot be written.
        """
        with translate_os_errors(file, "writing the spec"):
            replace_text(file, self.text)


def pipeline_name(topic: str) -> str:
    """Return a valid pipeline name for a topic, such as `shop_orders_v2` for `Shop.orders-v2`."""
    name = re.sub(r"[^a-z0-9]+", "_", topic.lower()).strip("_")
    if not name[:1].isalpha():
        name = f"topic_{name}".rstrip("_")
    return name[:_LONGEST_NAME].rstrip("_")


def _is_decoded(decode: DecodeDraft) -> bool:
    return decode.value is not Format.BINARY


def _has_upsert(profile: Profile, decode: DecodeDraft) -> bool:
    """Whether nearly all records have a key, and some key repeats."""
    has_keys = 0 < ENOUGH * profile.records <= profile.with_key
    return _is_decoded(decode) and has_keys and len(profile.keys) < profile.with_key


def _text(value: str) -> str:
    """Return a name as a YAML text; YAML reads some names as other types."""
    return (
        value if re.fullmatch(r"[A-Za-z][\w.-]*", value) and not _is_word(value) else f'"{value}"'
    )


def _is_word(value: str) -> bool:
    return value.lower() in {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}
