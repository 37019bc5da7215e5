"""Jobs of typed tables and upsert tables without Spark, with the arguments of real jobs.

The values at the offsets of the variable BROKEN cannot be decoded.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from tests.support.typed_lake import TypedLake
from tidemark.app.app import App
from tidemark.core.plan import PlanRef
from tidemark.spark.submit import RESULT_MARKER
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


def main() -> None:
    """Execute each plan, and print the results as a job does."""
    results = []
    for word, text in pairwise(sys.argv):
        if word != "--plan":
            continue
        plan = PlanRef.parse(text)
        if any(Path(each).name == "upsert.py" for each in sys.argv):
            uri = Path(os.environ["TIDEMARK_HOME"]) / "lakehouse/silver/events_latest"
            merge = (
                App.from_environment().pipeline(plan.pipeline).upsert.planner.execute(NoRows(uri))
            )
            assert merge is not None
            results.append({"pipeline": plan.pipeline, **merge.as_record()})
        else:
            broken = {int(each) for each in os.environ.get("BROKEN", "").split()}
            lake = TypedLake(Path(os.environ["TIDEMARK_HOME"]) / "lakehouse", broken=broken)
            lake.ingest.execute(plan.sequence)
            results.append({"pipeline": plan.pipeline, "plan": plan.sequence, "wrote": True})
    sys.stdout.write(f"{RESULT_MARKER}{json.dumps(results)}\n")


if __name__ == "__main__":
    main()
