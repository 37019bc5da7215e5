"""The newest and oldest records of logs with gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from tests.support.plans import make_record
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.record import LogRecord
from tidemark.core.sampling import sampled_records, shares


@given(
    st.dictionaries(st.integers(0, 3), st.sets(st.integers(0, 199)), min_size=1),
    st.integers(1, 30),
    st.booleans(),
)
def test_a_sample_has_the_records_at_the_end_of_the_log(
    visible: dict[int, set[int]], count: int, oldest: bool
) -> None:
    """Offsets without a visible record are gaps."""

    def read(spans: Mapping[int, SpanSet]) -> Iterator[LogRecord]:
        for partition, some in spans.items():
            for span in some:
                for offset in range(span.start, span.end):
                    if offset in visible[partition]:
                        yield make_record(b"", None, offset, partition=partition)

    log = {partition: SpanSet((Span(0, 200),)) for partition in visible}
    found = sampled_records(log, dict.fromkeys(log, count), read, oldest=oldest)
    expected = []
    for partition in sorted(visible):
        offsets = sorted(visible[partition])
        expected += [
            (partition, each) for each in (offsets[:count] if oldest else offsets[-count:])
        ]
    assert [(each.partition, each.offset) for each in found] == expected


def test_small_partitions_leave_their_share_to_the_others() -> None:
    log = {0: SpanSet((Span(0, 2),)), 1: SpanSet((Span(0, 100),)), 2: SpanSet()}
    assert shares(log, 20) == {2: 0, 0: 2, 1: 18}
    assert shares(log, 1) == {2: 0, 0: 1, 1: 1}
