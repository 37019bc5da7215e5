"""Jobs of typed tables and upsert tables without Spark, with the arguments of real jobs.

The values at the offsets of the variable BROKEN cannot be decoded.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from tests.support.typed_lake import TypedLake, decode_with_files
from tidemark.app import run
from tidemark.app.app import App
from tidemark.spark.submit import RESULT_MARKER
from tidemark.spec.ref import MergeRef
from tidemark.spec.upsert import MergePlan


@dataclass(frozen=True)
class NoRows:
    """A merger that commits the metadata of its merge, without changes of rows.

    Attributes:
        uri: The upsert table.
    """

    uri: Path

    def merge(self, merge: MergePlan) -> None:
        table = DeltaTable(self.uri)
        properties = CommitProperties(custom_metadata={"userMetadata": merge.commit_metadata()})
        rows = pa.schema(table.schema().to_arrow()).empty_table()
        write_deltalake(table, rows, mode="append", commit_properties=properties)

    def compact(self) -> None:
        """Do nothing."""


def main() -> None:
    """Run a job, and print its results as the job does."""
    (script,) = (n for n, word in enumerate(sys.argv) if word.endswith(".py") and n)
    job, arguments = Path(sys.argv[script]).stem, sys.argv[script + 1 :]
    if job == "decode":
        broken = {int(each) for each in os.environ.get("BROKEN", "").split()}
        decode_with_files(TypedLake(Path(os.environ["TIDEMARK_HOME"]) / "lakehouse", broken=broken))
        sys.exit(run.main(job, "", arguments))
    results = []
    for text in arguments[1::2]:
        uri = Path(os.environ["TIDEMARK_HOME"]) / "lakehouse/silver/events_latest"
        pipeline = App.from_environment().pipeline(MergeRef.parse(text).pipeline)
        merge = pipeline.upsert.planner.execute(NoRows(uri))
        assert merge is not None
        results.append({"pipeline": pipeline.name, **merge.as_record()})
    sys.stdout.write(f"{RESULT_MARKER}{json.dumps(results)}\n")


if __name__ == "__main__":
    main()
