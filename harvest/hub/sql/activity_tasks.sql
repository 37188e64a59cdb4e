-- table: activity_tasks

-- name: claim
with picked as (
  select execution_id, seq, extract(epoch from hub_now() - due_at)::float8 as waited from activity_tasks
  where queue = :queue and state = 'pending' and due_at <= hub_now() and name = any(:names::text[])
    and exists (select from workers w where w.worker_id = :worker_id::uuid and w.state in ('active', 'draining'))
  order by priority, due_at limit :size::int for update skip locked
)
update activity_tasks t set state = 'running', worker_id = :worker_id::uuid,
  expires_at = least(hub_now() + least(t.start_to_close, t.heartbeat_timeout) * interval '1 second', t.close_at)
               + interval '5 seconds'
from picked p where t.execution_id = p.execution_id and t.seq = p.seq
returning t.execution_id, t.seq, t.workflow_id, t.name, t.queue, t.attempt, t.input, t.options, t.heartbeat,
          t.pool, t.partition, (extract(epoch from t.close_at) * 1000000)::int8 as close_us, p.waited

-- name: next_due
-- Seconds until the next waiting task of the queue is due; null when none waits.
select extract(epoch from min(due_at) - hub_now())::float8 from activity_tasks
where queue = :queue and state = 'pending' and name = any(:names::text[])

-- name: complete
-- Lands only for the attempt that holds the task; a cancelled, re-tried or closed one has no such row.
update activity_tasks t set state = 'done', result = u.result, failure = u.failure, expires_at = null
from unnest(:execution_ids::uuid[], :seqs::int[], :attempts::int[], :results::json[], :failures::json[])
  as u(execution_id, seq, attempt, result, failure)
where t.execution_id = u.execution_id and t.seq = u.seq and t.attempt = u.attempt and t.state = 'running'
  and t.worker_id = :worker_id::uuid
returning t.execution_id, t.seq, t.pool, t.partition

-- name: retry
-- Back to the queue for another try, unless its run is paused.
update activity_tasks t set state = case when exists (select from workflow_tasks w where w.execution_id = t.execution_id and w.state = 'paused') then 'held' else 'pending' end, attempt = u.attempt + 1, worker_id = null, failure = u.failure,
  due_at = hub_now() + u.delay * interval '1 second', expires_at = t.close_at
from unnest(:execution_ids::uuid[], :seqs::int[], :attempts::int[], :delays::float8[], :failures::json[])
  as u(execution_id, seq, attempt, delay, failure)
where t.execution_id = u.execution_id and t.seq = u.seq and t.attempt = u.attempt and t.state = 'running'
  and (:worker_id::uuid is null or t.worker_id = :worker_id)
returning t.execution_id, t.seq

-- name: beat
-- Answers which attempts still hold their task: the others are to be cancelled.
update activity_tasks t set heartbeat = coalesce(u.details, t.heartbeat),
  expires_at = least(hub_now() + t.heartbeat_timeout * interval '1 second', t.close_at) + interval '5 seconds'
from unnest(:execution_ids::uuid[], :seqs::int[], :attempts::int[], :details::json[])
  as u(execution_id, seq, attempt, details)
where t.execution_id = u.execution_id and t.seq = u.seq and t.attempt = u.attempt and t.state = 'running'
  and t.worker_id = :worker_id::uuid
returning t.execution_id, t.seq

-- name: expired
select t.execution_id, t.seq, t.name, t.state, t.attempt, t.options, t.worker_id,
       (t.close_at is not null and t.close_at <= hub_now()) as closed
from activity_tasks t
where t.expires_at <= hub_now() and t.state not in ('done', 'held')
order by t.expires_at limit :size::int

-- name: expire
-- Gives an overdue task its final failure, whoever held it.
update activity_tasks t set state = 'done', failure = u.failure, result = null, expires_at = null
from unnest(:execution_ids::uuid[], :seqs::int[], :attempts::int[], :failures::json[])
  as u(execution_id, seq, attempt, failure)
where t.execution_id = u.execution_id and t.seq = u.seq and t.attempt = u.attempt and t.state <> 'done'
returning t.execution_id, t.seq, t.pool, t.partition

-- name: release
-- Tasks of workers that died or stopped go back to their queue, the attempt not counted. A row that is locked belongs to a
-- transaction that still runs, and is left to the sweep.
update activity_tasks t set state = case when exists (select from workflow_tasks w where w.execution_id = t.execution_id and w.state = 'paused') then 'held' else 'pending' end,
  worker_id = null, due_at = hub_now(), crashes = crashes + 1, expires_at = t.close_at
from (select execution_id, seq from activity_tasks
      where state = 'running' and worker_id = any(:worker_ids::uuid[]) for update skip locked) held
where t.execution_id = held.execution_id and t.seq = held.seq
returning t.queue

-- name: release_lost
-- Tasks held by workers that are no more, whoever noticed.
update activity_tasks t set state = case when exists (select from workflow_tasks w where w.execution_id = t.execution_id and w.state = 'paused') then 'held' else 'pending' end,
  worker_id = null, due_at = hub_now(), crashes = crashes + 1, expires_at = t.close_at
from (select execution_id, seq from activity_tasks a
      where a.state = 'running'
        and not exists (select from workers w where w.worker_id = a.worker_id and w.state in ('active', 'draining'))
      for update skip locked) held
where t.execution_id = held.execution_id and t.seq = held.seq
returning t.queue

-- name: held
select execution_id, seq from activity_tasks where state = 'running' and worker_id = :worker_id::uuid

-- name: give_back
update activity_tasks t set state = case when exists (select from workflow_tasks w where w.execution_id = t.execution_id and w.state = 'paused') then 'held' else 'pending' end,
  worker_id = null, due_at = hub_now(), expires_at = t.close_at
from unnest(:execution_ids::uuid[], :seqs::int[]) as u(execution_id, seq)
where t.execution_id = u.execution_id and t.seq = u.seq and t.state = 'running' and t.worker_id = :worker_id::uuid
returning t.queue

-- name: done
select execution_id, seq, attempt, result, failure, name from activity_tasks
where execution_id = any(:execution_ids::uuid[]) and state = 'done' order by execution_id, seq

-- name: retry_now
update activity_tasks set due_at = hub_now() where execution_id = :execution_id::uuid and seq = :seq::int and state = 'pending'
returning queue

-- name: fail_now
update activity_tasks set state = 'done', failure = :failure::json, result = null, expires_at = null
where execution_id = :execution_id::uuid and seq = :seq::int and state <> 'done'
returning pool, partition
