-- table: workers, tenures

-- name: register
with me as (
  insert into workers (worker_id, pool, build_id, state, lock_key, started_at, heartbeat_at, lease_until, host, pid, definitions)
  values (:worker_id::uuid, :pool, :build_id, 'active', :lock_key::int8, hub_now(), hub_now(),
          hub_now() + :ttl::float8 * interval '1 second', :host, :pid::int, :definitions::json)
)
insert into tenures (worker_id, connection) select :worker_id, n from generate_series(-1, :connections::int - 1) n

-- name: renew
-- False when the worker was fenced or forgotten: it must stop writing.
update workers set heartbeat_at = hub_now(), lease_until = hub_now() + :ttl::float8 * interval '1 second', figures = :figures::json
where worker_id = :worker_id::uuid and state in ('active', 'draining')
returning (extract(epoch from hub_now()) * 1000000)::int8 as now_us

-- name: others
-- Workers of the pool that may still hold something. `locked`: a session holds the worker's advisory lock.
select worker_id, state, lease_until < hub_now() as lapsed,
  exists (select from pg_locks l where l.locktype = 'advisory' and l.granted and l.objsubid = 1
            and l.database = (select oid from pg_database where datname = current_database())
            and l.classid = (lock_key >> 32)::int8::oid and l.objid = (lock_key & 4294967295)::oid) as locked
from workers
where pool = :pool and worker_id <> :worker_id::uuid and state in ('active', 'draining', 'fenced')

-- name: fence
-- Waits for the commits in flight of these workers, then none of theirs can land any more.
with gone as (
  update tenures set fenced = true where worker_id = any(:worker_ids::uuid[]) and not fenced returning worker_id
)
update workers set state = 'fenced' where worker_id = any(:worker_ids::uuid[]) and (select count(*) from gone) >= 0
returning worker_id

-- name: forget
with t as (delete from tenures where worker_id = any(:worker_ids::uuid[]))
update workers set state = 'stopped' where worker_id = any(:worker_ids::uuid[])

-- name: live
select worker_id, pool, build_id, state, host, pid, started_at, heartbeat_at, lease_until, definitions from workers
where state in ('active', 'draining') and lease_until > hub_now() and (:pool::text is null or pool = :pool)
order by started_at

-- name: try_lock
select pg_try_advisory_lock(:key::int8)
