-- table: workers, tenures

-- name: register
with me as (
  insert into workers (worker_id, pool, build_id, state, lock_key, started_at, heartbeat_at, lease_until, host, pid, definitions,
                       pools, can_own, sticky_cache_enabled, sticky_cache_capacity, scanned_at, config)
  values (:worker_id::uuid, :pool, :build_id, 'active', :lock_key::int8, hub_now(), hub_now(),
          hub_now() + :ttl::float8 * interval '1 second', :host, :pid::int, :definitions::json, :pools::text[], :can_own::bool,
          :cache_capacity::int > 0, :cache_capacity, hub_now(), :config::json)
), way as materialized (
  select mode from settings for share  -- the switch changes this row first, and finds our tenures afterwards
), tenure as (
  insert into tenures (worker_id, connection, mode)
  select :worker_id, n, way.mode from way, generate_series(-1, :connections::int - 1) n
)
select mode, (extract(epoch from hub_now()) * 1000000)::int8 as now_us from way

-- name: renew
-- No row when the worker was fenced or forgotten: it must stop writing. A renewal that a crash of the database takes back
-- costs nothing, so it does not wait for the disk.
update workers set heartbeat_at = hub_now(), lease_until = hub_now() + :ttl::float8 * interval '1 second',
  figures = coalesce(:figures::json, figures), scanned_at = hub_now() - :scan_age::float8 * interval '1 second'
where worker_id = :worker_id::uuid and state in ('active', 'draining')
returning (extract(epoch from hub_now()) * 1000000)::int8 as now_us

-- name: turn
-- One worker of a queue at a time is admitted to ownership. Who is stopped in the middle of it keeps nobody waiting for long.
select set_config('lock_timeout', '1s', true), set_config('idle_in_transaction_session_timeout', '2s', true),
  pg_advisory_xact_lock(hashtextextended('harvest grant ' || :queue, 0))

-- name: owners
-- Workers that may own something in these pools and are alive.
select worker_id, host, pid, build_id, pools, grants, definitions from workers
where state = 'active' and lease_until > hub_now() and worker_id <> :worker_id::uuid and grants && :pools::text[]
  and (not pg_try_advisory_xact_lock_shared(lock_key) or statement_timestamp() < pg_postmaster_start_time() + interval '3 seconds')
order by started_at

-- name: grant
update workers set grants = :grants::text[], refusals = :refusals::json where worker_id = :worker_id::uuid

-- name: drain
-- From now on peers do not count it, and nothing is decided here any more: waits for the commits in flight.
with theirs as materialized (
  select worker_id, connection from tenures where worker_id = :worker_id::uuid and connection >= 0 order by connection for update
), lanes as (
  update tenures t set fenced = true from theirs where t.worker_id = theirs.worker_id and t.connection = theirs.connection
)
update workers set state = 'draining', grants = '{}' where worker_id = :worker_id and state = 'active'

-- name: fence
-- Waits for the commits and acquisitions in flight of these workers, then none of theirs can land any more. What they own is
-- freed by the next statement: this one does not see what an acquisition that it waited for has taken.
with theirs as materialized (
  select worker_id, connection from tenures where worker_id = any(:worker_ids::uuid[]) order by worker_id, connection for update
), gone as (
  update tenures t set fenced = true from theirs where t.worker_id = theirs.worker_id and t.connection = theirs.connection
  returning 1
)
update workers set state = 'fenced', grants = '{}', fenced_at = coalesce(fenced_at, hub_now())
where worker_id = any(:worker_ids) and state <> 'fenced' and (select count(*) from gone) >= 0
returning worker_id

-- name: forget
with t as (
  delete from tenures where worker_id = any(:worker_ids::uuid[])
), freed as (
  update partitions set worker_id = null, since = hub_now() where worker_id = any(:worker_ids)
)
update workers set state = 'stopped', grants = '{}' where worker_id = any(:worker_ids)

-- name: recovered
-- Every partition that they could own has an owner again.
update workers w set recovered_at = hub_now()
where worker_id = any(:worker_ids::uuid[]) and recovered_at is null
  and not exists (select from partitions p where p.pool = any(w.pools) and p.worker_id is null)
returning worker_id

-- name: failovers
select worker_id, host, pid, pool, build_id, heartbeat_at, fenced_at, recovered_at from workers
where fenced_at is not null order by fenced_at desc limit :size::int

-- name: is_live
select exists (select from workers where worker_id = :worker_id and state in ('active', 'draining') and lease_until > hub_now()) as live

-- name: failover_count
select count(*) as n from workers where fenced_at is not null

-- name: live
select worker_id, pool, build_id, state, host, pid, started_at, heartbeat_at, lease_until, scanned_at, definitions, pools, can_own,
       grants, refusals, config, figures, runtime, sticky_cache_enabled, sticky_cache_capacity
from workers
where state in ('active', 'draining') and lease_until > hub_now() and (:pool::text is null or pool = :pool or :pool = any(pools))
order by started_at

-- name: try_lock
select pg_try_advisory_lock(:key::int8)

-- name: sync_off
set synchronous_commit = off
