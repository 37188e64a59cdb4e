"""Settings, from arguments or `HARVEST_…` environment variables. A bad value fails the start and names the field."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from harvest.errors import ConfigError


class HubSettings(BaseSettings):
    """Where the hub is. `HARVEST_DATABASE_URL`, `HARVEST_DB_SCHEMA`."""

    model_config = SettingsConfigDict(env_prefix="HARVEST_", extra="ignore")

    database_url: str = ""
    db_schema: str = "harvest"


class WorkerConfig(BaseSettings):
    """How a worker works. Every field is also an environment variable, `HARVEST_<FIELD>`.

    Durations are timedeltas (or seconds). `resident_workflows` False replays every decision cold.
    """

    model_config = SettingsConfigDict(env_prefix="HARVEST_", extra="forbid", frozen=True)

    build_id: str = Field("default", min_length=1, max_length=200)
    resident_workflows: bool = True
    workflow_cache_size: int = Field(1000, ge=0, le=10_000_000)
    workflow_cache_bytes: int = Field(256 * 1024 * 1024, ge=0)
    max_activity_slots: int = Field(200, ge=0, le=100_000)
    activity_threads: int = Field(16, ge=1, le=1_000)
    commit_lanes: int = Field(2, ge=1, le=16)
    max_batch: int = Field(256, ge=1, le=10_000)
    scan_interval: timedelta = timedelta(seconds=1)
    lease_ttl: timedelta = timedelta(seconds=10)
    drain_timeout: timedelta = timedelta(seconds=10)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as exc:
            first = exc.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "config"
            raise ConfigError(
                field,
                f"{first['msg']} (got {first.get('input')!r})",
                hint=f"known settings: {', '.join(sorted(type(self).model_fields))}"
                if first["type"] == "extra_forbidden"
                else f"set by WorkerConfig({field}=…) or the environment variable HARVEST_{field.upper()}",
            ) from None


def seconds(span: timedelta) -> float:
    return span.total_seconds()
