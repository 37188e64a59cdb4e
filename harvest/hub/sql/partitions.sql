-- table: partitions

-- name: ensure
insert into partitions (pool, partition) select :pool, n from generate_series(0, 511) n on conflict do nothing

-- name: acquire
-- Takes what nobody alive holds; each acquisition is a new epoch. Only a worker that is not fenced may, and it hears
-- of all that is its own, also of what an answer that got lost had given it.
with me as materialized (
  select 1 from tenures where worker_id = :worker_id::uuid and connection = -1 and not fenced for share
), taken as (
  update partitions p set worker_id = :worker_id, epoch = epoch + 1 from me
  where p.pool = :pool and p.worker_id is distinct from :worker_id
    and not exists (select from workers w where w.worker_id = p.worker_id and w.state in ('active', 'draining'))
  returning p.partition, p.epoch
)
select partition, epoch from taken
union all
select p.partition, p.epoch from partitions p, me where p.pool = :pool and p.worker_id = :worker_id

-- name: release
update partitions set worker_id = null where worker_id = :worker_id::uuid

-- name: owned
select partition, worker_id, epoch from partitions where pool = :pool order by partition
