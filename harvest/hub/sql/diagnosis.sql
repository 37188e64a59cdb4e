-- What `harvest doctor` and the sticky report look at; run by people, not by loops.

-- name: open_by_pool
select pool, count(*) as runs, count(*) filter (where state <> 'running' and due_at < hub_now() - interval '5 seconds') as overdue,
  coalesce(extract(epoch from hub_now() - min(due_at) filter (where state <> 'running' and isfinite(due_at))), 0)::float8 as oldest,
  count(*) filter (where error is not null) as failing,
  count(*) filter (where partition is null) as unstamped
from workflow_tasks group by pool order by pool

-- name: activities_by_queue
select queue, count(*) as waiting, extract(epoch from hub_now() - min(due_at))::float8 as oldest, array_agg(distinct name) as names
from activity_tasks where state = 'pending' and due_at < hub_now() - interval '5 seconds' group by queue order by queue

-- name: dead_letters
select count(*) as n from dead_letters

-- name: lapsed
select worker_id, host, pid, pool, state, extract(epoch from hub_now() - lease_until)::float8 as seconds
from workers where state in ('active', 'draining', 'fenced') and lease_until < hub_now() order by lease_until

-- name: lost_claims
select count(*) as n from workflow_tasks t
where t.worker_id is not null
  and not exists (select from workers w where w.worker_id = t.worker_id and w.state in ('active', 'draining')
                    and w.lease_until > hub_now())

-- name: long_transactions
select pid, application_name, state, extract(epoch from now() - xact_start)::float8 as seconds
from pg_stat_activity
where datname = current_database() and xact_start < now() - interval '60 seconds' and pid <> pg_backend_pid()
  and backend_type = 'client backend'
order by xact_start

-- name: server
select current_setting('max_connections')::int as most,
  (select count(*) from pg_stat_activity where backend_type = 'client backend') as used,
  current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit

-- name: decisions
select d.decision, d.at, d.worker_id, d.replay_mode, d.scheduled, json_array_length(d.events) as events, w.host, w.pid, w.build_id
from decisions d left join workers w on w.worker_id = d.worker_id
where d.execution_id = :execution_id::uuid order by d.decision

-- name: task
select t.state, nullif(t.due_at, 'infinity') as due_at, t.worker_id, t.claim, t.sticky_worker_id, t.sticky_until,
  t.sticky_replay_mode, t.sticky_claimed_at, coalesce(t.sticky_until > hub_now(), false) as pinned
from workflow_tasks t where t.execution_id = :execution_id::uuid

-- name: waiting_on
-- What one run waits for outside of its own process: its activity tasks, its open children, its unread mail.
select 'activity' as kind, a.seq, a.name, a.queue, a.state, a.attempt, a.due_at, a.worker_id, a.failure, a.created_at as since
from activity_tasks a where a.execution_id = :execution_id::uuid
union all
(select 'child', e.parent_seq, e.workflow_id, queue_of(e.pool), e.state, e.attempt, null, null, null, e.created_at
 from executions e where e.parent_execution_id = :execution_id and e.closed_at is null order by e.created_at limit 20)
union all
(select 'mail', null, m.kind, null, null, null, null, null, null, min(m.created_at)
 from messages m where m.execution_id = :execution_id and m.consumed_at is null group by m.kind)

-- name: owner_of
select p.worker_id, p.epoch, w.host, w.pid, w.state, w.lease_until > hub_now() as leased, w.figures, w.definitions
from partitions p left join workers w on w.worker_id = p.worker_id where p.pool = :pool and p.partition = :partition::int2

-- name: now
select hub_now() as now

-- name: newest
-- What changes when a run is started or parked, or the hub switched: one descent each.
select (select execution_id from executions order by created_at desc limit 1) as run,
  (select execution_id from dead_letters order by at desc, execution_id desc limit 1) as letter, mode from settings

-- name: standing
-- Where these runs have got to.
select e.execution_id, e.workflow_id, e.type, e.state,
  coalesce((select d.decision from decisions d where d.execution_id = e.execution_id order by d.decision desc limit 1), 0) as decision
from executions e where e.execution_id = any(:execution_ids::uuid[])

-- name: timed_decisions
select decision, at, replay_mode, events from decisions where execution_id = :execution_id::uuid order by decision
