-- table: dead_letters

-- name: listing
select d.execution_id, d.workflow_id, d.type, queue_of(d.pool) as queue, coalesce(e.state, 'GONE') as state, d.at, d.strikes, d.error
from dead_letters d left join executions e using (execution_id)
where (:type::text is null or d.type = :type) and (:queue::text is null or queue_of(d.pool) = :queue)
  and (:error::text is null or d.error ->> 'type' = :error) and (:workflow_id::text is null or d.workflow_id = :workflow_id)
  and (:cursor_at::timestamptz is null or (d.at, d.execution_id) < (:cursor_at, :cursor_id::uuid))
order by d.at desc, d.execution_id desc limit :size::int

-- name: one
select d.execution_id, d.workflow_id, d.type, queue_of(d.pool) as queue, coalesce(e.state, 'GONE') as state, d.at, d.strikes, d.error
from dead_letters d left join executions e using (execution_id) where d.execution_id = :execution_id::uuid

-- name: causes
select type, coalesce(error ->> 'type', '?') as error,
  regexp_replace(left(error ->> 'message', 300), '[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|[0-9]+', '#', 'g') as message,
  count(*) as count, min(at) as oldest, max(at) as newest, (array_agg(execution_id order by at desc))[1] as example
from dead_letters
where (:type::text is null or type = :type) and (:queue::text is null or queue_of(pool) = :queue)
group by 1, 2, 3 order by count(*) desc, 1, 2, 3

-- name: redrive
with due as (
  update workflow_tasks set strikes = 0, error = null, state = 'pending', due_at = hub_now(), wakes = wakes + 1
  where execution_id = :execution_id::uuid and worker_id is null and state <> 'paused'
  returning execution_id, pool, partition
), gone as (
  delete from dead_letters d using due where d.execution_id = due.execution_id
)
select due.pool, due.partition, e.workflow_id from due join executions e using (execution_id)

-- name: delete
delete from dead_letters where execution_id = :execution_id::uuid
