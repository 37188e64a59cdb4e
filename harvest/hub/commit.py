"""The commit of decisions: one statement that fences, appends decisions and writes all they caused.

A `Batch` collects columns; `statement` puts together just the sections that have rows, so that a batch of
local steps is one insert. See `sql/commit.sql`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import Any
from uuid import UUID

from harvest.errors import Fenced
from harvest.hub.database import Session
from harvest.hub.queries import Query, blocks


def columns(names: str) -> tuple[str, ...]:
    return tuple(names.split())


# Section, its columns as the parameters are named. The order is the order in the statement.
SECTIONS: dict[str, tuple[str, ...]] = {
    "decisions": ("d_execution_ids", "d_decisions", "d_first_event_ids", "d_at_us", "d_modes", "d_events"),
    "claimed_decisions": columns("cd_execution_ids cd_decisions cd_first_event_ids cd_at_us cd_modes cd_events cd_scheduled"),
    "launches": columns(
        "l_execution_ids l_workflow_ids l_types l_partitions l_seeds l_inputs l_priorities l_timeouts l_memos l_attributes"
        " l_states l_results l_failures l_task_states l_due_us l_retries"
    ),
    "tasks": ("t_execution_ids", "t_states", "t_due_us", "t_partitions"),
    "parks": columns("g_execution_ids g_due_us g_partitions g_wakes g_pins g_decisions"),
    "closes": ("c_execution_ids", "c_states", "c_results", "c_failures", "c_successors", "c_attributes"),
    "close_activities": ("ca_execution_ids",),
    "activities": columns(
        "a_execution_ids a_seqs a_partitions a_workflow_ids a_names a_queues a_states a_priorities a_expires"
        " a_schedule_to_close a_start_to_close a_heartbeats a_inputs a_options"
    ),
    "activity_ends": ("e_execution_ids", "e_seqs"),
    "pauses": ("b_execution_ids",),
    "reads": ("r_message_ids",),
    "marks": ("k_message_ids", "k_successors"),
    "rearms": ("j_message_ids", "j_successors", "j_positions"),
    "moves": ("v_execution_ids", "v_successors"),
    "replies": ("p_execution_ids", "p_keys", "p_replies", "p_successors"),
    "starts": columns(
        "s_execution_ids s_workflow_ids s_types s_pools s_seeds s_inputs s_priorities s_timeouts s_parent_execution_ids"
        " s_parent_workflow_ids s_parent_pools s_parent_seqs s_parent_closes"
        " s_continued_from s_attributes s_refusals s_retries"
    ),
    "forks": columns(
        "f_execution_ids f_successors f_links f_seeds f_delays f_decisions f_drops f_carried f_unresolved f_attributes"
    ),
    "opens": ("n_execution_ids", "n_workflow_ids", "n_types", "n_pools", "n_seeds"),
    "states": columns("z_execution_ids z_types z_keys z_partitions z_decisions z_event_ids z_versions z_states"),
    "state_ends": ("h_execution_ids",),
    "sends": ("m_message_ids", "m_execution_ids", "m_pools", "m_partitions", "m_kinds", "m_names", "m_events"),
    "carries": columns("y_message_ids y_execution_ids y_partitions y_names y_events y_positions y_kinds y_keys y_sources"),
    "posts": ("x_message_ids", "x_workflow_ids", "x_kinds", "x_names", "x_keys", "x_events"),
    "orphans": ("o_execution_ids",),
    "attributes": ("u_execution_ids", "u_attributes"),
}
_AFTER_CLOSES = {"starts", "opens", "forks"}
"""What may take a workflow id that the same statement frees."""
BITS = {name: 1 << n for n, name in enumerate(SECTIONS)}
_VERDICTS = {
    "launches": "verdict_launches",
    "pauses": "verdict_pauses",
    "starts": "verdict_started",
    "posts": "verdict_posted",
    "orphans": "verdict_orphans",
}


@cache
def statement(mask: int, by_claim: bool = False) -> Query:
    """The statement with the sections of `mask`, gated by ownership or by claims."""
    parts = blocks("commit")
    chosen = [name for name in SECTIONS if mask & BITS[name]]
    gate = "ok_launches" if "launches" in chosen else "ok"
    text = [parts["fence_claims"], parts["ok_claims"]] if by_claim else [parts["fence"], parts[gate]]
    for name in chosen:
        if name == "posts":
            text += [parts[part] for part in _addressees(chosen)]
        text.append(parts[name])
    text.append(parts["verdict"])
    text += [parts[_VERDICTS[name]] for name in chosen if name in _VERDICTS]
    return Query(f"commit.{'claims.' if by_claim else ''}{'+'.join(chosen) or 'fence'}", "\n".join(text))


def _addressees(chosen: list[str]) -> list[str]:
    """Who may be written to: open runs, and what this statement itself brings about."""
    extra = {
        "closes": "addressees_not_closing",
        "starts": "addressees_started",
        "forks": "addressees_forked",
        "opens": "addressees_opened",
    }
    return ["addressees", *(part for section, part in extra.items() if section in chosen), "addressees_end"]


def statements_to_prepare() -> list[Query]:
    """Each section alone, and all of them: what the test of all queries prepares."""
    alone = [statement(bit | (BITS["closes"] if name in _AFTER_CLOSES else 0)) for name, bit in BITS.items()]
    claimed = [statement(BITS[name], by_claim=True) for name in ("claimed_decisions", "parks")]
    return [*alone, statement(sum(BITS.values())), *claimed, fork_of_closed()]


@cache
def fork_of_closed() -> Query:
    """A closed run begins again from one of its decisions. It has no owner, so nothing has to be fenced."""
    parts = blocks("commit")
    text = "\n".join([parts["unfenced"], parts["forks"], "select execution_id from forked"])
    return Query("commit.fork_of_closed", text)


@dataclass(frozen=True, slots=True)
class Tenure:
    """Who writes: the worker, its commit connection, its pool."""

    worker_id: UUID
    connection: int
    pool: str


@dataclass(slots=True)
class Batch:
    """Rows by section, and what they rely on: the epoch of each partition, or in sticky mode the claim of each run."""

    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    claims: dict[UUID, int] = field(default_factory=dict)

    def add(self, section: str, row: tuple[Any, ...]) -> None:
        rows = self.rows.get(section)
        if rows is None:
            self.rows[section] = [row]
        else:
            rows.append(row)


@dataclass(frozen=True, slots=True)
class Committed:
    """What only the statement knows: which starts took their workflow id, and which posts found an open run.

    `posted` holds (message_id, execution_id, pool, partition, key).
    """

    started: frozenset[UUID]
    posted: tuple[tuple[UUID, UUID, str, int, str | None], ...]
    paused: frozenset[UUID] = frozenset()
    """The runs that stand still now: a pause that was taken back has no effect."""
    unsure: bool = False
    """The connection broke and the rest of the answer with it: which posts landed has to be asked again."""

    @property
    def keys(self) -> set[str]:
        """Keys of the posts that found an open run."""
        return {key for *_, key in self.posted if key is not None}


class Taken(Exception):
    """Nothing was written: these launches found their workflow id taken."""

    def __init__(self, execution_ids: Sequence[UUID]) -> None:
        super().__init__(f"{len(execution_ids)} workflow ids are taken")
        self.execution_ids = frozenset(execution_ids)


_NOTHING = Committed(frozenset(), ())


async def commit(session: Session, tenure: Tenure, batch: Batch) -> Committed:
    """Writes all of it or nothing. Raises `Fenced` when the tenure is over, `Taken`, else what Postgres raises."""
    mask = 0
    named: dict[str, Any] = {}
    rows = batch.rows
    if "closes" not in rows and not _AFTER_CLOSES.isdisjoint(rows):
        rows["closes"] = []
    if "parks" in rows:
        rows["parks"].sort(key=itemgetter(0))  # pokes lock in the same order: no deadlock
    for section, columns in SECTIONS.items():
        found = rows.get(section)
        if found is None:
            continue
        mask |= BITS[section]
        if found:
            named.update(zip(columns, zip(*found, strict=True), strict=True))
        else:
            named.update(dict.fromkeys(columns, ()))
    query = statement(mask, bool(batch.claims))
    named["worker_id"], named["connection"], named["pool"] = tenure.worker_id, tenure.connection, tenure.pool
    named["partitions"], named["epochs"] = list(batch.epochs), list(batch.epochs.values())
    named["claimed"], named["claims"] = list(batch.claims), list(batch.claims.values())
    if "moves" in rows or "forks" in rows:
        named["skip_messages"] = [row[0] for section in ("reads", "marks", "rearms") for row in rows.get(section, ())]
        named["skip_keys"] = [row[1] for row in rows.get("replies", ())]
    row = await session.fetch_one(query.sql, [named[name] for name in query.names])
    if not row["ok"]:
        if "launches" in rows and row["taken"]:
            raise Taken(row["taken"])
        raise Fenced(f"worker {tenure.worker_id} may no longer write for pool {tenure.pool!r}")
    if not _VERDICTS.keys() & rows.keys() - {"launches"}:
        return _NOTHING
    started: Sequence[UUID] = (row["started"] or ()) if "starts" in rows else ()
    posted = json.loads(row["posted"] or "[]") if "posts" in rows else []
    posted += json.loads(row["orphaned"] or "[]") if "orphans" in rows else []
    paused: Sequence[UUID] = (row["paused"] or ()) if "pauses" in rows else ()
    landed = tuple((UUID(m), UUID(e), pool, part, key) for m, e, pool, part, key in posted)
    return Committed(frozenset(started), landed, frozenset(paused))
