-- table: partitions, settings

-- name: ensure
insert into partitions (pool, partition)
select pool, n from unnest(:pools::text[]) as pool, generate_series(0, 511) n on conflict do nothing

-- name: look
-- All that a scan needs to know, in one row: the mode, this worker, what is free, and the other workers of its pools.
-- `locked`: a session holds the worker's lock. Right after a start of the database nobody has had the time to take it again.
select (select mode from settings) as mode,
  (select state from workers where worker_id = :worker_id::uuid) as state,
  (select json_object_agg(pool, n) from (
     select pool, count(*) as n from partitions where pool = any(:pools::text[]) and worker_id is null group by pool) f) as free,
  (select json_agg(json_build_object(
     'worker_id', w.worker_id, 'state', w.state, 'grants', w.grants, 'lapsed', w.lease_until < hub_now(),
     'scanning', coalesce(w.scanned_at > hub_now() - interval '3 seconds', false),
     'locked', not pg_try_advisory_xact_lock_shared(w.lock_key)
               or statement_timestamp() < pg_postmaster_start_time() + interval '3 seconds'))
   from workers w
   where w.state in ('active', 'draining', 'fenced') and w.worker_id <> :worker_id
     and (w.pools && :pools or w.pool = any(:pools))) as peers

-- name: acquire
-- Takes up to `size` partitions that nobody holds; each acquisition is a new epoch. Only a worker that is not fenced may,
-- and it hears of all that is its own, also of what an answer that got lost had given it.
with me as materialized (
  select 1 from tenures where worker_id = :worker_id::uuid and connection = -1 and not fenced and mode = 'owner' for share
), free as materialized (
  select p.partition from partitions p, me
  where p.pool = :pool and p.worker_id is null order by p.partition limit :size::int for update of p skip locked
), taken as (
  update partitions p set worker_id = :worker_id, epoch = epoch + 1, since = hub_now() from free f
  where p.pool = :pool and p.partition = f.partition
  returning p.partition, p.epoch
)
select partition, epoch from taken
union all
select p.partition, p.epoch from partitions p, me where p.pool = :pool and p.worker_id = :worker_id

-- name: release
update partitions set worker_id = null, since = hub_now()
where worker_id = :worker_id::uuid and pool = :pool and partition = any(:partitions::int2[])

-- name: free_of
update partitions set worker_id = null, since = hub_now() where worker_id = any(:worker_ids::uuid[])

-- name: free_orphans
-- Partitions of workers that are no more, however that came about.
update partitions p set worker_id = null, since = hub_now()
where p.pool = any(:pools::text[]) and p.worker_id is not null
  and not exists (select from workers w where w.worker_id = p.worker_id and w.state in ('active', 'draining', 'fenced'))
returning p.partition

-- name: owned
select partition, worker_id, epoch, since from partitions where pool = :pool order by partition

-- name: shares
-- Pools with the share of each owner.
select pool, worker_id, count(*)::int as partitions, min(epoch) as least_epoch, max(epoch) as greatest_epoch
from partitions where (:pool::text is null or pool = :pool) group by pool, worker_id order by pool, worker_id
