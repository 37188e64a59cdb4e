"""Settings, from arguments or `HARVEST_…` environment variables. A bad value fails the start and names the field."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from harvest.errors import ConfigError


def _number_of_seconds(value: Any) -> Any:
    """Environment variables are texts: `2.5` means seconds there, too."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


Span = Annotated[timedelta, BeforeValidator(_number_of_seconds)]


class HubSettings(BaseSettings):
    """Where the hub is. `HARVEST_DATABASE_URL`, `HARVEST_DB_SCHEMA`; `HARVEST_SHARDS` lists several, separated by commas."""

    model_config = SettingsConfigDict(env_prefix="HARVEST_", extra="ignore")

    database_url: str = ""
    db_schema: str = "harvest"
    shards: str = ""

    @property
    def shard_list(self) -> list[str]:
        return [url.strip() for url in self.shards.split(",") if url.strip()]


class WorkerConfig(BaseSettings):
    """How a worker works. Every field is also an environment variable, `HARVEST_<FIELD>`.

    Durations are timedeltas (or seconds). `resident_workflows` False replays every decision cold. With `owner_mode` False a
    worker owns nothing and stops nobody from it, but the hub cannot be switched to owner mode while it runs workflows.
    `sticky_timeout` is how long a suspended run is kept for the worker that has it in memory (sticky mode); zero turns off
    pins, residents and the warm cache. `owner_disk_cache` is a directory of this process's own for sealed
    histories of runs with at least `owner_disk_cache_min_events` events; with it `owner_entity_sql` answers SQL over entities,
    and over a whole type from tables of at most `entity_table_bytes` of JSON each.
    `max_workflow_attempts` is the ceiling over all retry policies of workflows; a handle follows 256 attempts at most.
    `max_workflow_slots` bounds the runs claimed at once; zero takes no workflows at all.
    """

    model_config = SettingsConfigDict(env_prefix="HARVEST_", extra="forbid", frozen=True)

    build_id: str = Field("default", max_length=200, pattern=r"^[^\s@]+$")
    owner_mode: bool = True
    sticky_timeout: Span = Field(timedelta(seconds=5), ge=timedelta(0), le=timedelta(hours=1))
    max_workflow_slots: int = Field(1000, ge=0, le=100_000)
    resident_workflows: bool = True
    workflow_cache_size: int = Field(1000, ge=0, le=10_000_000)
    workflow_cache_bytes: int = Field(256 * 1024 * 1024, ge=0)
    max_workflow_attempts: int = Field(256, ge=1, le=100_000)
    max_activity_slots: int = Field(200, ge=0, le=100_000)
    activity_threads: int = Field(16, ge=1, le=1_000)
    commit_lanes: int = Field(2, ge=1, le=16)
    max_batch: int = Field(256, ge=1, le=10_000)
    scan_interval: Span = Field(timedelta(seconds=1), ge=timedelta(milliseconds=10), le=timedelta(seconds=60))
    lease_ttl: Span = Field(timedelta(seconds=10), ge=timedelta(seconds=1), le=timedelta(hours=1))
    metrics_port: int | None = Field(None, ge=0, le=65_535)
    metrics_host: str = Field("127.0.0.1", min_length=1)
    owner_disk_cache: Path | None = None
    owner_disk_cache_min_events: int = Field(100, ge=1, le=51_200)
    owner_entity_sql: bool = False
    entity_table_bytes: int = Field(128 * 1024 * 1024, ge=0)
    drain_timeout: Span = Field(timedelta(seconds=10), ge=timedelta(0))

    @property
    def keeps_residents(self) -> bool:
        """Suspended runs stay in memory, and are pinned to it in sticky mode (S-1)."""
        return self.resident_workflows and self.sticky_timeout > timedelta(0)

    def shown(self) -> dict[str, Any]:
        """All settings as people may see them: of the disk cache that it is on, not where (D-6)."""
        return {**self.model_dump(mode="json"), "owner_disk_cache": self.owner_disk_cache is not None}

    def _check(self) -> None:
        """Settings that need each other."""
        if self.owner_entity_sql and self.owner_disk_cache is None:
            raise ConfigError(
                "owner_entity_sql", "needs owner_disk_cache", hint="set owner_disk_cache to a directory of this process's own"
            )
        if self.owner_disk_cache is not None and not self.owner_mode:
            raise ConfigError("owner_disk_cache", "needs owner_mode: only an owner keeps what is cached")
        if self.owner_disk_cache is not None and not self.keeps_residents:
            raise ConfigError("owner_disk_cache", "needs resident_workflows and a sticky_timeout above zero")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
            self._check()
        except ValidationError as exc:
            raise _named(exc, type(self), "HARVEST_") from None


class ServerConfig(BaseSettings):
    """How the server serves. Every field is also an environment variable, `HARVEST_SERVER_<FIELD>`.

    `host` may be another than loopback only once a token exists. `max_body` in bytes. `rate_limit` is per token (per address
    where nobody is asked for one), `failure_limit` of wrong tokens per address; both as `N/second`, `N/minute` or `N/hour`.
    `max_wait` is the longest that a request waits for an answer, whatever it asks for.
    `audit_keep` is how long rows of the audit are kept, for good where it is zero.
    `dashboard` False serves the API alone. `secure_cookies` belongs to a server behind TLS.
    """

    model_config = SettingsConfigDict(env_prefix="HARVEST_SERVER_", extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8088, ge=0, le=65_535)
    max_body: int = Field(4 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    rate_limit: str = Field("2000/second", pattern=r"^[1-9][0-9]{0,8} ?(/|per) ?(second|minute|hour)$")
    failure_limit: str = Field("30/minute", pattern=r"^[1-9][0-9]{0,8} ?(/|per) ?(second|minute|hour)$")
    max_wait: Span = Field(timedelta(seconds=60), gt=timedelta(0), le=timedelta(minutes=10))
    audit_keep: Span = Field(timedelta(days=90), ge=timedelta(0), le=timedelta(days=36_500))
    dashboard: bool = True
    secure_cookies: bool = False

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as exc:
            raise _named(exc, type(self), "HARVEST_SERVER_") from None


def _named(exc: ValidationError, settings: type[BaseSettings], prefix: str) -> ConfigError:
    """The first thing that is wrong, as an error that names the field, the value and the remedy."""
    first = exc.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "config"
    unknown = first["type"] == "extra_forbidden"
    known = f"known settings: {', '.join(sorted(settings.model_fields))}"
    hint = known if unknown else f"set by {settings.__name__}({field}=…) or the environment variable {prefix}{field.upper()}"
    return ConfigError(field, f"{first['msg']} (got {first.get('input')!r})", hint=hint)


def seconds(span: timedelta) -> float:
    return span.total_seconds()
