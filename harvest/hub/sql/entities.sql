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
select execution_id, key, type from entity_state
where pool = :pool::text and partition = any(:partitions::int2[]) and type = any(:types::text[])

-- name: pools
-- Which pools have entities of a type, and how many partitions of each.
select pool, array_agg(distinct partition) as partitions, count(*) as entities from entity_state
where type = :type::text group by pool order by pool

-- name: prune
-- What a cold load does not read any more: everything before the state that was recorded before the last one.
delete from decisions d using unnest(:execution_ids::uuid[], :belows::int[]) as t(execution_id, below)
where d.execution_id = t.execution_id and d.decision < t.below

-- name: put_away
-- Answers that nobody can ask for any more.
delete from messages where ctid = any(array(
  select ctid from messages where kind = 'update' and key like '~%' and consumed_at < hub_now() - interval '1 hour' limit 10000))
