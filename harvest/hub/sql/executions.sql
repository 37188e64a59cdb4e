-- table: executions

-- name: start
with incoming as (
  select * from unnest(:execution_ids::uuid[], :workflow_ids::text[], :types::text[], :pools::text[], :seeds::int8[],
                       :inputs::json[], :reuses::text[], :priorities::int2[], :timeouts::float8[], :delays::float8[],
                       :memos::json[], :attributes::jsonb[])
    as t(execution_id, workflow_id, type, pool, seed, input, reuse, priority, timeout, delay, memo, attributes)
), created as (
  insert into executions (execution_id, workflow_id, type, pool, partition, seed, input, priority, created_at, deadline,
                          memo, search_attributes)
  select execution_id, workflow_id, type, pool, partition_of(workflow_id), seed, input, priority, hub_now(),
         hub_now() + timeout * interval '1 second', memo, attributes
  from incoming i
  where i.reuse = 'allow_duplicate' or not exists (
    select from executions e
    where e.workflow_id = i.workflow_id and (i.reuse = 'reject_duplicate' or e.state = 'COMPLETED'))
  on conflict (workflow_id) where closed_at is null do nothing
  returning execution_id, pool, partition, priority
), tasks as (
  insert into workflow_tasks (execution_id, pool, partition, state, due_at, priority)
  select c.execution_id, c.pool, c.partition, 'pending', hub_now() + i.delay * interval '1 second', c.priority
  from created c join incoming i using (execution_id)
)
select execution_id from created

-- name: latest
select distinct on (workflow_id) workflow_id, execution_id, type, pool, state
from executions where workflow_id = any(:workflow_ids::text[])
order by workflow_id, created_at desc, execution_id desc

-- name: outcomes
select execution_id, workflow_id, type, state, result, failure, continued_to
from executions where execution_id = any(:execution_ids::uuid[]) and closed_at is not null

-- name: load
select e.execution_id, e.workflow_id, e.type, e.pool, e.partition, e.state, e.seed, e.attempt, e.priority, e.input,
       e.parent_execution_id, e.parent_workflow_id, e.parent_pool, e.parent_seq, e.parent_close, e.continued_from, e.continued_to,
       (extract(epoch from e.created_at) * 1000000)::int8 as created_us,
       (extract(epoch from e.deadline) * 1000000)::int8 as deadline_us,
       t.state as task_state, t.strikes, t.error is not null as failing,
       case when isfinite(t.due_at) then (extract(epoch from t.due_at) * 1000000)::int8 end as due_us
from executions e left join workflow_tasks t using (execution_id)
where e.execution_id = any(:execution_ids::uuid[])

-- name: describe
select e.execution_id, e.workflow_id, e.type, queue_of(e.pool) as queue, e.pool, e.partition, e.state, e.created_at, e.closed_at, e.deadline,
       e.attempt, e.priority, e.input, e.result, e.failure, e.memo, e.search_attributes, e.parent_workflow_id,
       e.continued_from, e.continued_to, t.state as task_state, nullif(t.due_at, 'infinity') as due_at, t.strikes, t.error,
       coalesce(d.decision, 0) as decisions,
       coalesce(d.first_event_id + json_array_length(d.events) - 1, 0) as events,
       (select count(*) from messages m where m.execution_id = e.execution_id and m.consumed_at is null) as unread_messages,
       (select coalesce(json_agg(json_build_object('seq', a.seq, 'name', a.name, 'queue', a.queue, 'state', a.state,
                'attempt', a.attempt, 'failure', a.failure) order by a.seq), '[]')
        from activity_tasks a where a.execution_id = e.execution_id) as activities
from executions e
left join workflow_tasks t using (execution_id)
left join lateral (select * from decisions d where d.execution_id = e.execution_id order by decision desc limit 1) d on true
where e.execution_id = coalesce(:execution_id::uuid,
  (select execution_id from executions where workflow_id = :workflow_id::text order by created_at desc, execution_id desc limit 1))

-- name: listing
select execution_id, workflow_id, type, queue_of(pool) as queue, state, created_at, closed_at, parent_workflow_id, search_attributes
from executions
where (:state::text is null or state = :state) and (:type::text is null or type = :type)
  and (:queue::text is null or queue_of(pool) = :queue)
  and (:prefix::text is null or starts_with(workflow_id, :prefix))
  and (:entities::bool or :type is not null or not starts_with(workflow_id, '@'))
  and (:attributes::jsonb is null or search_attributes @> :attributes)
  and (:after::timestamptz is null or created_at >= :after) and (:before::timestamptz is null or created_at < :before)
  and (:cursor_at::timestamptz is null or (created_at, execution_id) < (:cursor_at, :cursor_id::uuid))
order by created_at desc, execution_id desc
limit :size::int

-- name: counts
select state, count(*) as runs from executions
where (:type::text is null or type = :type) and (:entities::bool or :type is not null or not starts_with(workflow_id, '@'))
group by state order by state

-- name: open_runs
select execution_id, workflow_id, type from executions
where closed_at is null and (:pool::text is null or queue_of(pool) = :pool) order by created_at limit :size::int
