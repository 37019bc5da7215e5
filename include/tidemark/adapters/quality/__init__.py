"""The quality check of one landed slice, by Great Expectations on Spark.

Importing this package imports neither: the first check does, and takes seconds for it.
"""

from tidemark.adapters.quality.checker import GreatExpectationsQuality
from tidemark.adapters.quality.suite import BUILT_IN_SUITE, Suite, load_suite

__all__ = ["BUILT_IN_SUITE", "GreatExpectationsQuality", "Suite", "load_suite"]
