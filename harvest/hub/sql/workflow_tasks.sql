-- table: workflow_tasks

-- name: scan
-- What is due now or within the look-ahead, in claim order: priority, then due time, new starts as if 30 s later.
select t.execution_id, t.partition, t.priority, t.state,
       case when isfinite(t.due_at) then (extract(epoch from t.due_at) * 1000000)::int8 end as due_us
from workflow_tasks t
where t.pool = :pool and t.state <> 'running' and t.due_at <= hub_now() + :ahead::float8 * interval '1 second'
order by t.due_at limit :size::int

-- name: running
-- Runs whose last owner held work in memory only: the new owner loads them.
select execution_id, partition, priority from workflow_tasks
where pool = :pool and state = 'running' and partition = any(:partitions::int2[])

-- name: strike
-- A decision failed: count it, say why, try again later (null: parked until a new worker comes).
update workflow_tasks set strikes = :strikes::int, error = :error::json, state = 'pending',
  due_at = coalesce(hub_now() + :delay::float8 * interval '1 second', 'infinity')
where execution_id = :execution_id::uuid

-- name: bury
insert into dead_letters (execution_id, workflow_id, type, pool, at, strikes, error)
values (:execution_id::uuid, :workflow_id, :type, :pool, hub_now(), :strikes::int, :error::json)
on conflict (execution_id) do update set at = excluded.at, strikes = excluded.strikes, error = excluded.error

-- name: retry_failed
-- A new worker may hold the fix: what was parked with an error is due again.
with due as (
  update workflow_tasks set strikes = 0, error = null, state = 'pending', due_at = hub_now()
  where pool = :pool and error is not null returning execution_id
), gone as (
  delete from dead_letters d using due where d.execution_id = due.execution_id
)
select count(*) from due

-- name: healed
with ok as (
  update workflow_tasks set strikes = 0, error = null where execution_id = any(:execution_ids::uuid[])
)
delete from dead_letters where execution_id = any(:execution_ids::uuid[])
