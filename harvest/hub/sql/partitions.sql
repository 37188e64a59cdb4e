-- table: partitions

-- name: ensure
insert into partitions (pool, partition) select :pool, n from generate_series(0, 511) n on conflict do nothing

-- name: acquire
-- Takes what nobody holds, or what a fenced worker held; each acquisition is a new epoch.
update partitions set worker_id = :worker_id::uuid, epoch = epoch + 1
where pool = :pool and (worker_id is null or worker_id = any(:fenced::uuid[]))
returning partition, epoch

-- name: release
update partitions set worker_id = null where worker_id = :worker_id::uuid

-- name: owned
select partition, worker_id, epoch from partitions where pool = :pool order by partition
