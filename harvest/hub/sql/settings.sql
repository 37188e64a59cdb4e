-- table: settings

-- name: mode
select mode, mode_since, shard, shards from settings

-- name: shard
-- Which shard this hub is, of how many, of which set; nulls where it was never told.
select shard, shards, shard_set from settings

-- name: take_shard
-- A hub is told once.
update settings set shard = :shard::int, shards = :shards::int, shard_set = :shard_set::uuid where shard_set is null
returning shard

-- name: lock_timeout
select set_config('lock_timeout', :milliseconds::text, true)

-- name: lock
-- Statements acquire their tables before they wait for rows: who holds a tenure is ahead of us here, never behind.
lock table workflow_tasks in share row exclusive mode

-- name: guard_on
alter table workflow_tasks enable trigger workflow_tasks_guard

-- name: guard_off
alter table workflow_tasks disable trigger workflow_tasks_guard

-- name: set_mode
update settings set mode = :mode, mode_since = hub_now()

-- name: turn_tenures
-- Waits for the commits and claims in flight; none of the old mode can land afterwards.
with these as materialized (
  select worker_id, connection from tenures order by worker_id, connection for update
)
update tenures t set mode = :mode from these where t.worker_id = these.worker_id and t.connection = these.connection

-- name: end_claims
-- What was claimed or pinned is for its owner now.
update workflow_tasks set worker_id = null, sticky_worker_id = null, sticky_until = null, sticky_window = null,
  state = case when worker_id is not null then 'pending' else state end,
  due_at = case when worker_id is not null then hub_now() else due_at end
where worker_id is not null or sticky_worker_id is not null

-- name: end_ownership
update partitions set worker_id = null, since = hub_now() where worker_id is not null

-- name: end_running
-- Work that lived in the memory of an owner: whoever claims the run rebuilds it.
update workflow_tasks set state = 'pending', due_at = hub_now() where state = 'running'

-- name: stamp_all
update workflow_tasks t set partition = e.partition
from executions e where e.execution_id = t.execution_id and t.partition is null
