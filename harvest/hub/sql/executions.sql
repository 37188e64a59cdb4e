-- table: executions

-- name: start
with incoming as (
  select * from unnest(:execution_ids::uuid[], :workflow_ids::text[], :types::text[], :pools::text[], :seeds::int8[],
                       :inputs::json[], :reuses::text[], :priorities::int2[], :timeouts::float8[], :delays::float8[],
                       :memos::json[], :attributes::jsonb[], :retries::json[], :chain_timeouts::float8[], :reruns::uuid[])
    as t(execution_id, workflow_id, type, pool, seed, input, reuse, priority, timeout, delay, memo, attributes, retry,
         chain_timeout, rerun_of)
), created as (
  insert into executions (execution_id, workflow_id, type, pool, partition, seed, input, priority, created_at, deadline,
                          memo, search_attributes, retry, chain_deadline, rerun_of_exec_id)
  select execution_id, workflow_id, type, pool, partition_of(workflow_id), seed, input, priority, hub_now(),
         hub_now() + timeout * interval '1 second', memo, attributes, retry, hub_now() + chain_timeout * interval '1 second', rerun_of
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
select distinct on (workflow_id) workflow_id, execution_id, type, pool, state, closed_at is null as open
from executions where workflow_id = any(:workflow_ids::text[])
order by workflow_id, created_at desc, execution_id desc

-- name: outcomes
-- `successor`: the run that took over, also the next attempt of a failed one.
select e.execution_id, e.workflow_id, e.type, e.state, e.result, e.failure, e.erased_at,
  coalesce(e.continued_to, case when e.state = 'FAILED' then
    (select r.execution_id from executions r where r.retry_of_exec_id = e.execution_id) end) as successor
from executions e where e.execution_id = any(:execution_ids::uuid[]) and e.closed_at is not null

-- name: live_attempt
-- L-2: while FAILED and a successor exists, advance. One row more than `most` is read, so that a longer chain shows.
with recursive chain as (
  select e.execution_id, e.state, 1 as n from executions e where e.execution_id = :execution_id::uuid
  union all
  select r.execution_id, e.state, c.n + 1
  from chain c
  join executions r on r.retry_of_exec_id = c.execution_id
  join executions e on e.execution_id = r.execution_id
  where c.state = 'FAILED' and c.n <= :most::int
)
select e.execution_id, e.workflow_id, e.type, e.pool, e.partition, e.state, e.closed_at is null as open, e.continued_to, c.n
from chain c join executions e using (execution_id) order by c.n desc limit 1

-- name: chain
-- Every run that this one came from, and every run that came from it: continuations, attempts, resets and reruns, oldest first.
with recursive back as (
  select e.execution_id, coalesce(e.continued_from, e.retry_of_exec_id, e.reset_of_exec_id, e.rerun_of_exec_id) as before, 1 as n
  from executions e where e.execution_id = :execution_id::uuid
  union all
  select e.execution_id, coalesce(e.reset_of_exec_id, e.retry_of_exec_id, e.continued_from, e.rerun_of_exec_id), b.n + 1
  from back b join executions e on e.execution_id = b.before where b.n < :most::int
), forth as (
  (select b.execution_id, 1 as n from back b order by b.n desc limit 1)
  union all
  select x.execution_id, f.n + 1 from forth f cross join lateral (
    select execution_id from executions where continued_from = f.execution_id and reset_of_exec_id is null
    union all select execution_id from executions where retry_of_exec_id = f.execution_id
    union all select execution_id from executions where reset_of_exec_id = f.execution_id
    union all select execution_id from executions where rerun_of_exec_id = f.execution_id) x
  where f.n < :most
)
select e.execution_id, e.workflow_id, e.type, e.state, e.attempt, e.created_at, e.closed_at, e.failure, e.reset_decision, e.erased_at,
  case when e.reset_of_exec_id is not null then 'reset' when e.retry_of_exec_id is not null then 'retry'
       when e.continued_from is not null then 'continued' when e.rerun_of_exec_id is not null then 'rerun' else 'start' end as link,
  coalesce(e.reset_of_exec_id, e.retry_of_exec_id, e.continued_from, e.rerun_of_exec_id) as came_from
from (select distinct execution_id from forth) f join executions e using (execution_id)
order by e.created_at, e.execution_id limit :most

-- name: resume
-- The clocks of a paused run stood still; what waited is due. A pause that was only asked for is taken back.
with taken_back as (
  update messages set consumed_at = hub_now(), reply = :taken_back::json
  where execution_id = :execution_id::uuid and kind = 'pause' and consumed_at is null
  returning key
), resumed as (
  update executions e set state = 'RUNNING', paused_at = null, paused_for = e.paused_for + (hub_now() - e.paused_at),
    deadline = e.deadline + (hub_now() - e.paused_at), chain_deadline = e.chain_deadline + (hub_now() - e.paused_at),
    chain_began = coalesce(e.chain_began, e.created_at) + (hub_now() - e.paused_at)
  from executions o
  where e.execution_id = :execution_id and o.execution_id = e.execution_id and e.state = 'PAUSED'
  returning e.execution_id, hub_now() - o.paused_at as lasted
), tasks as (
  update workflow_tasks t set state = 'pending', paused_due = null, wakes = t.wakes + 1, strikes = 0, error = null,
    due_at = case when t.fresh then greatest(t.paused_due, hub_now()) else hub_now() end
  from resumed r where t.execution_id = r.execution_id and t.state = 'paused'
), letters as (
  delete from dead_letters d using resumed r where d.execution_id = r.execution_id  -- it gets a new chance
), activities as (
  update activity_tasks a set state = 'pending', expires_at = a.expires_at + r.lasted, close_at = a.close_at + r.lasted
  from resumed r where a.execution_id = r.execution_id and a.state = 'held' returning a.queue
)
select (select count(*) from resumed) as resumed, (select array_agg(key) from taken_back) as taken_back,
  (select array_agg(distinct queue) from activities) as queues

-- name: load
select e.execution_id, e.workflow_id, e.type, e.pool, e.partition, e.state, e.seed, e.attempt, e.priority, e.input,
       e.parent_execution_id, e.parent_workflow_id, e.parent_pool, e.parent_seq, e.parent_close, e.continued_from,
       coalesce(e.continued_from, e.retry_of_exec_id) as predecessor, e.retry, e.reset_decision, e.erased_at,
       coalesce(e.continued_to, case when e.state = 'FAILED' then
         (select r.execution_id from executions r where r.retry_of_exec_id = e.execution_id) end) as successor,
       (extract(epoch from e.created_at) * 1000000)::int8 as created_us,
       (extract(epoch from e.chain_deadline) * 1000000)::int8 as chain_deadline_us,
       (extract(epoch from e.deadline) * 1000000)::int8 as deadline_us,
       t.state as task_state, t.strikes, t.error is not null as failing,
       case when isfinite(t.due_at) then (extract(epoch from t.due_at) * 1000000)::int8 end as due_us
from executions e left join workflow_tasks t using (execution_id)
where e.execution_id = any(:execution_ids::uuid[])

-- name: describe
select e.execution_id, e.workflow_id, e.type, queue_of(e.pool) as queue, e.pool, e.partition, e.state, e.created_at, e.closed_at, e.deadline,
       e.attempt, e.priority, e.input, e.result, e.failure, e.memo, e.search_attributes, e.parent_workflow_id,
       e.continued_from, e.continued_to, e.retry_of_exec_id, e.reset_of_exec_id, e.reset_decision, e.rerun_of_exec_id,
       (select r.execution_id from executions r where r.retry_of_exec_id = e.execution_id) as retried_as,
       extract(epoch from e.deadline - e.created_at - e.backoff - e.paused_for)::float8 as timeout,
       extract(epoch from e.chain_deadline - coalesce(e.chain_began, e.created_at))::float8 as chain_timeout,
       e.retry, e.chain_deadline, e.paused_at, e.legal_hold, e.erased_at, t.state as task_state, nullif(t.due_at, 'infinity') as due_at, t.strikes, t.error,
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
select execution_id, workflow_id, type, queue_of(pool) as queue, state, attempt, created_at, closed_at, parent_workflow_id, search_attributes
from executions
where (not :open::bool or closed_at is null) and (not :closed::bool or closed_at is not null) and (:state::text is null or state = :state) and (:type::text is null or type = :type)
  and (:queue::text is null or queue_of(pool) = :queue)
  and (:prefix::text is null or starts_with(workflow_id, :prefix))
  and (:entities::bool or :type is not null or not starts_with(workflow_id, '@'))
  and (:attributes::jsonb is null or search_attributes @> :attributes)
  and (:after::timestamptz is null or created_at >= :after) and (:before::timestamptz is null or created_at < :before)
  and (:cursor_at::timestamptz is null or (created_at, execution_id) < (:cursor_at, :cursor_id::uuid))
order by created_at desc, execution_id desc
limit :size::int

-- name: home
select workflow_id from executions where execution_id = :execution_id::uuid

-- name: counts
select state, count(*) as runs from executions
where (:type::text is null or type = :type) and (:entities::bool or :type is not null or not starts_with(workflow_id, '@'))
group by state order by state

-- name: open_runs
select execution_id, workflow_id, type from executions
where closed_at is null and (:pool::text is null or queue_of(pool) = :pool) order by created_at limit :size::int
