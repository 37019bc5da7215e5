"""Descriptions of options that several commands, or a command and the form of a DAG, share.

A description names no option of the command line and no field of a form, so that it fits both. The
command or the form adds sentences about what only it has, such as the syntax of a list.
"""

from __future__ import annotations

from tidemark.ops.maintenance.rules import DEFAULT_KEEP_HOURS

PIPELINES = "Names of specs in include/pipelines."
ONE_PARTITION = "Only this partition."
LANDED_PLAN = "Number of a landed plan."
REASON = "Reason; stored with your user name."
PORT = "Port on 127.0.0.1."
LAST_PORT = "0 selects a free port. Default: the port of the last start, or for the first start"
DRY_RUN = "Show what would be done; write nothing."

# -- backfill --------------------------------------------------------------------------------------

BACKFILL = "Land offsets of your choice, chunk by chunk."
OFFSETS = (
    "PARTITION:START-END. END is exclusive: 1:0-100 selects the offsets 0 to 99 of partition 1."
)
FROM = "Start of a time window: in each partition, the first record at or after this time."
UNTIL = "End of the time window, exclusive: in each partition, the first record at or after it."
TIME = "A time such as 2026-03-01T12:00:00Z, or a date in UTC."
RETAINED = "All offsets that Kafka has now."
PLAN = (
    "The offset ranges of the plan with this number. A replacement includes offsets that another "
    "plan landed."
)
PARTITIONS = "Partitions of the time window or of the retained log; by default all."
REPLACE = (
    "Read landed offsets again. The new rows replace the old ones, each chunk in one commit. A "
    "chunk is refused if Kafka no longer has a record of an old row."
)
REASON_OF_REPLACEMENT = "Required for a replacement."
CHUNK = "Maximum offsets of a chunk; by default limits.records_per_chunk of the spec."
READABLE_ONLY = (
    "Skip offsets that Kafka has deleted. Otherwise the backfill is refused. A replacement keeps "
    "the old rows at deleted offsets."
)
APPROVED = "Allow more offsets than limits.records_per_backfill of the spec."

# -- maintenance -----------------------------------------------------------------------------------

MAINTAIN = "Compact tables, and remove unreferenced files, old Data Docs and old statuses."
KEEP_HOURS = (
    "Files of table versions from this many past hours stay. A table accepts less than "
    f"{DEFAULT_KEEP_HOURS} hours only if its own property allows it."
)
KEEP_DOCS_DAYS = "Data Docs of checks from this many past days stay."
