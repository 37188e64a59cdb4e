-- table: entity_state

-- name: listing
select s.type, s.key, s.execution_id, queue_of(s.pool) as queue, s.partition, s.event_id, s.version, s.updated_at,
       octet_length(s.state::text) as bytes, e.created_at
from entity_state s join executions e using (execution_id)
where s.type = :type::text and s.key > :after::text and starts_with(s.key, :prefix::text)
order by s.key limit :size::int

-- name: types
select type, count(*) as entities from entity_state group by type order by type

-- name: find
select s.type, s.key, s.execution_id, s.pool, queue_of(s.pool) as queue, s.partition, s.decision, s.event_id, s.version, s.updated_at,
       octet_length(s.state::text) as bytes, e.created_at
from entity_state s join executions e using (execution_id)
where s.type = :type::text and s.key = :key::text

-- name: of_partitions
-- Live entities of some types in some partitions, for an owner that builds its table of them.
select execution_id, key, type, partition from entity_state
where pool = :pool::text and partition = any(:partitions::int2[]) and type = any(:types::text[])

-- name: pools
-- Which pools have entities of a type, and how many partitions of each.
select pool, array_agg(distinct partition) as partitions, count(*) as entities from entity_state
where type = :type::text group by pool order by pool

-- name: head
-- The open run of an entity and its last decision.
select e.execution_id, e.pool, (select max(d.decision) from decisions d where d.execution_id = e.execution_id) as decision
from executions e where e.workflow_id = :workflow_id::text and e.closed_at is null

-- name: token
-- How far the history of an entity goes.
select e.execution_id, d.first_event_id + json_array_length(d.events) - 1 as event_id from executions e
cross join lateral (select * from decisions d where d.execution_id = e.execution_id order by d.decision desc limit 1) d
where e.workflow_id = :workflow_id::text and e.closed_at is null

-- name: owners
-- Who owns the partitions of some pools and answers SQL over a type.
select p.pool, p.partition, p.worker_id from partitions p join workers w using (worker_id)
where p.pool = any(:pools::text[]) and w.state = 'active' and w.definitions -> 'sql' is not null
  and exists (select from json_array_elements_text(w.definitions -> 'sql') t where t = :type::text)

-- name: served
-- Pools that some living worker serves.
select distinct p.pool from workers w, unnest(w.pools) as p(pool) where w.state = 'active' and w.lease_until > hub_now()

-- name: responder
-- The owner of a partition if it answers SQL over a type, else any worker of the pool that does (E-7).
select w.worker_id from workers w
left join partitions p on p.worker_id = w.worker_id and p.pool = :pool::text and p.partition = :partition::int2
where w.state = 'active' and w.lease_until > hub_now() and w.definitions -> 'sql' is not null
  and exists (select from json_array_elements_text(w.definitions -> 'sql') t where t = :type::text)
order by p.partition is null limit 1

-- name: prune
-- What a cold load does not read any more: everything before the state that was recorded before the last one. Some seconds'
-- worth stays: whoever lost its owner looks there for its answer.
delete from decisions d using unnest(:execution_ids::uuid[], :belows::int[]) as t(execution_id, below)
where d.execution_id = t.execution_id and d.decision < t.below and d.at < hub_now() - :keep::float8 * interval '1 second'

-- name: put_away
-- Answers that nobody can ask for any more.
delete from messages where ctid = any(array(
  select ctid from messages where kind = 'update' and key like '~%' and consumed_at < hub_now() - interval '1 hour' limit 10000))
