"""Great Expectations without telemetry. Everything but its pages stays in memory."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidemark.quality.check_results import BatchRef
from tidemark.quality.data_docs import run_name

# The library reads this variable during its import.
os.environ["GX_ANALYTICS_ENABLED"] = "False"

import great_expectations as gx
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
)
from great_expectations.data_context.types.resource_identifiers import (
    ExpectationSuiteIdentifier,
    ValidationResultIdentifier,
)
from great_expectations.expectations.expectation_configuration import (
    ExpectationConfiguration,
)
from great_expectations.validator.validation_statistics import calc_validation_statistics

__all__ = [
    "ExpectationConfiguration",
    "calc_validation_statistics",
    "gx",
    "open_context",
    "publish",
]

_SITE = "data_docs"


def open_context(site: Path) -> gx.data_context.EphemeralDataContext:
    """Return a context in memory that writes only pages to disk.

    Each run reads its suite from the suite's file. The results table stores the results.

    Args:
        site: Folder of the pipeline's Data Docs.
    """
    config = DataContextConfig(
        analytics_enabled=False,
        progress_bars={"globally": False},
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        data_docs_sites={
            _SITE: {
                "module_name": "tidemark.quality.gx.site",
                "class_name": "OfflineSiteBuilder",
                "store_backend": {
                    "class_name": "TupleFilesystemStoreBackend",
                    "base_directory": str(site),
                },
                "site_section_builders": {"profiling": "none"},
            }
        },
    )
    return gx.get_context(mode="ephemeral", project_config=config)


def publish(
    context: gx.data_context.EphemeralDataContext,
    result: gx.core.ExpectationSuiteValidationResult,
    ref: BatchRef,
    run_at: datetime,
) -> Path:
    """Write the pages of a suite and of its validation. Replaces pages of the same run.

    Args:
        context: The context of the pages.
        result: The result of the validation.
        ref: The validated batch.
        run_at: Time of the run.

    Returns:
        The page of the validation.
    """
    run = gx.RunIdentifier(run_name=run_name(ref.plan_sequence), run_time=run_at)
    suite = ExpectationSuiteIdentifier(name=result.suite_name)
    validation = ValidationResultIdentifier(
        expectation_suite_identifier=suite, run_id=run, batch_identifier=result.batch_id
    )
    result.meta |= {
        "run_id": run,
        "validation_time": run.run_time,
        "batch_parameters": None,
        "batch_spec": {
            "data_asset_name": f"{ref.table}, plan {ref.plan_sequence}",
            "table": ref.table,
            "table_version": ref.table_version,
            "plan_sequence": ref.plan_sequence,
        },
    }
    context.validation_results_store.store_validation_results(
        suite_validation_result=result,
        suite_validation_result_identifier=validation,
        expectation_suite_identifier=suite,
    )
    context.build_data_docs(site_names=[_SITE], resource_identifiers=[suite, validation])
    (site,) = context.get_docs_sites_urls(
        resource_identifier=validation, site_name=_SITE, only_if_exists=True
    )
    return Path(unquote(urlsplit(site["site_url"]).path))
