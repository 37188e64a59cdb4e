-- table: workflow_tasks

-- name: scan
-- One look for an owner: what is due in its partitions now or within the look-ahead, runs with unread mail or finished
-- activities, whether tasks of the pool have no partition yet, and when the next activity of its queue is due (for a worker
-- that asks with `names`). One descent of the index per partition: the backlog of others costs nothing.
select 'due' as kind, t.execution_id, p.partition, t.due_us
from unnest(:partitions::int2[]) as p(partition) cross join lateral (
  select execution_id, case when isfinite(due_at) then (extract(epoch from due_at) * 1000000)::int8 end as due_us
  from workflow_tasks t
  where t.pool = :pool and t.partition = p.partition and t.state <> 'running'
    and t.due_at <= hub_now() + :ahead::float8 * interval '1 second'
  order by t.due_at limit :each::int) t
union all
select distinct 'mail', m.execution_id, m.partition, null::int8 from messages m
where m.pool = :pool and m.consumed_at is null and m.partition = any(:partitions)
  and (m.kind in ('terminate', 'reset') or not exists (
    select from workflow_tasks t where t.execution_id = m.execution_id and t.state = 'paused'))
union all
select distinct 'mail', a.execution_id, a.partition, null::int8 from activity_tasks a
where a.pool = :pool and a.state = 'done' and a.partition = any(:partitions)
  and not exists (select from workflow_tasks t where t.execution_id = a.execution_id and t.state = 'paused')
union all
(select 'unstamped', execution_id, null, null::int8 from workflow_tasks where pool = :pool and partition is null limit 1)
union all
(select 'activity', null, null, (extract(epoch from due_at - hub_now()) * 1000000)::int8 from activity_tasks
 where queue = :queue and state = 'pending' and name = any(:names::text[]) order by due_at limit 1)

-- name: running
-- Runs whose last owner held work in memory only: the new owner loads them.
select execution_id, partition, priority from workflow_tasks
where pool = :pool and state = 'running' and partition = any(:partitions::int2[])

-- name: strike
-- A decision failed: count it, say why, try again later (null: parked until a new worker comes). Only who may decide the run
-- may strike it: its owner, or who holds this claim.
update workflow_tasks t set strikes = :strikes::int, error = coalesce(:error::json, error), state = 'pending', worker_id = null,
  fresh = false, sticky_until = null, sticky_window = null,
  due_at = coalesce(hub_now() + :delay::float8 * interval '1 second', 'infinity')
where t.execution_id = :execution_id::uuid and t.state <> 'paused'
  and exists (select from tenures n where n.worker_id = :worker_id::uuid and n.connection = -1 and not n.fenced)
  and case when :claim::int8 is null
           then t.worker_id is null and exists (select from partitions p where p.pool = t.pool and p.partition = t.partition
                                                  and p.worker_id = :worker_id)
           else t.worker_id = :worker_id and t.claim = :claim end
returning 1 as struck

-- name: bury
insert into dead_letters (execution_id, workflow_id, type, pool, at, strikes, error)
values (:execution_id::uuid, :workflow_id, :type, :pool, hub_now(), :strikes::int, :error::json)
on conflict (execution_id) do update set at = excluded.at, strikes = excluded.strikes, error = excluded.error

-- name: retry_failed
-- A new worker may hold the fix: what was parked with an error is due again.
with due as (
  update workflow_tasks set strikes = 0, error = null, state = 'pending', due_at = hub_now()
  where pool = :pool and error is not null and worker_id is null and state <> 'paused' returning execution_id
), gone as (
  delete from dead_letters d using due where d.execution_id = due.execution_id
)
select count(*) from due

-- name: healed
with ok as (
  update workflow_tasks set strikes = 0, error = null where execution_id = any(:execution_ids::uuid[])
)
delete from dead_letters where execution_id = any(:execution_ids::uuid[])

-- name: strike_stuck
-- The run whose code held its worker's loop for a whole lease; written from the lease thread.
with hit as (
  update workflow_tasks set strikes = strikes + 1, error = :error::json, state = 'pending', worker_id = null, sticky_until = null,
    due_at = case when strikes + 1 >= :most::int then 'infinity' else hub_now() + :delay::float8 * interval '1 second' end
  where execution_id = :execution_id::uuid and state <> 'paused'
    and exists (select from tenures n where n.worker_id = :worker_id::uuid and n.connection = -1 and not n.fenced)
  returning execution_id, strikes
)
insert into dead_letters (execution_id, workflow_id, type, pool, at, strikes, error)
select e.execution_id, e.workflow_id, e.type, e.pool, hub_now(), hit.strikes, :error::json
from hit join executions e using (execution_id) where hit.strikes >= :most
on conflict (execution_id) do update set at = excluded.at, strikes = excluded.strikes, error = excluded.error

-- name: stamp
-- O-2: rows without a partition get theirs, whoever finds them.
update workflow_tasks t set partition = e.partition
from executions e where e.execution_id = t.execution_id and t.partition is null and t.pool = :pool
returning t.execution_id, t.partition

-- name: claim
-- Own pins first, then priority, then due time, a new start as if due 30 s later (S-6). Each kind of row (fresh or not, by
-- priority) is read in the order of the index and no further than `size`, so the cost does not grow with the backlog.
with recursive me as materialized (
  select 1 from tenures where worker_id = :worker_id::uuid and connection = -1 and not fenced and mode = 'sticky' for share
), kinds as (
  (select fresh, priority from workflow_tasks where pool = :pool and state <> 'running' order by fresh, priority limit 1)
  union all
  select n.fresh, n.priority from kinds k cross join lateral (
    select fresh, priority from workflow_tasks
    where pool = :pool and state <> 'running' and (fresh, priority) > (k.fresh, k.priority) order by fresh, priority limit 1) n
), own as (
  select c.execution_id, true as mine, k.priority, c.due_at as at
  from (select distinct priority from kinds) k cross join me cross join lateral (
    select execution_id, due_at from workflow_tasks
    where sticky_worker_id = :worker_id and priority = k.priority and due_at <= hub_now() and state <> 'running' and pool = :pool
    order by due_at limit :size::int for update skip locked) c
), others as (
  select c.execution_id, false as mine, k.priority, c.open_at + case when k.fresh then interval '30 seconds' else '0' end as at
  from kinds k cross join me cross join lateral (
    select execution_id, open_at from workflow_tasks
    where pool = :pool and fresh = k.fresh and priority = k.priority and open_at <= hub_now() and state <> 'running'
    order by open_at limit :size for update skip locked) c
), picked as (
  select execution_id, bool_or(mine) as mine, min(priority) as priority, min(at) as at
  from (select * from own union all select * from others) c group by execution_id
  order by mine desc, priority, at limit :size
)
update workflow_tasks t set state = 'running', worker_id = :worker_id, claim = t.claim + 1, sticky_claimed_at = hub_now(),
  sticky_replay_mode = case when t.sticky_worker_id = :worker_id then 'sticky_hit_expected'
                            when t.sticky_worker_id is not null then 'forced_cold_replay' else 'cold_replay' end
from picked p where t.execution_id = p.execution_id and t.state <> 'running'
returning t.execution_id, t.partition, t.claim, t.wakes, t.sticky_worker_id, t.sticky_until, t.sticky_replay_mode,
  case when t.sticky_worker_id = :worker_id then 'sticky'
       when t.sticky_until > t.due_at then 'expired' else 'normal' end as scheduled,
  coalesce(t.decision, -1) as decision

-- name: claim_one
-- For a query: a run that nobody decides just now.
with me as materialized (
  select 1 from tenures where worker_id = :worker_id::uuid and connection = -1 and not fenced and mode = 'sticky' for share
)
update workflow_tasks t set state = 'running', worker_id = :worker_id, claim = t.claim + 1, sticky_claimed_at = hub_now(),
  sticky_replay_mode = case when t.sticky_worker_id = :worker_id then 'sticky_hit_expected'
                            when t.sticky_worker_id is not null then 'forced_cold_replay' else 'cold_replay' end
from me
where t.execution_id = :execution_id::uuid and (t.state = 'parked' or t.state = 'pending' and t.due_at <= hub_now())
returning t.execution_id, t.partition, t.claim, t.wakes, t.sticky_worker_id, t.sticky_until, t.sticky_replay_mode,
  case when t.sticky_worker_id = :worker_id then 'sticky' else 'normal' end as scheduled,
  coalesce(t.decision, -1) as decision

-- name: next_open
-- Seconds until this worker may claim the next task of the pool; null when none waits.
with recursive kinds as (
  (select fresh, priority from workflow_tasks where pool = :pool and state <> 'running' order by fresh, priority limit 1)
  union all
  select n.fresh, n.priority from kinds k cross join lateral (
    select fresh, priority from workflow_tasks
    where pool = :pool and state <> 'running' and (fresh, priority) > (k.fresh, k.priority) order by fresh, priority limit 1) n
)
select extract(epoch from min(c.at) - hub_now())::float8 as seconds from kinds k cross join lateral (
  (select open_at as at from workflow_tasks
   where pool = :pool and fresh = k.fresh and priority = k.priority and state <> 'running' order by open_at limit 1)
  union all
  (select due_at from workflow_tasks
   where sticky_worker_id = :worker_id::uuid and priority = k.priority and state <> 'running' and pool = :pool
   order by due_at limit 1)) c

-- name: poke
-- Something waits for these runs. A parked one is due; one that is being decided will look again; a delayed start and a
-- failed decision keep their time, and a paused run stays so, unless their end is asked for. Its pin is armed anew (S-2).
with these as materialized (
  select p.execution_id, (p.state = 'pending' and p.due_at > hub_now() or p.state = 'paused') and exists (
    select from messages m where m.execution_id = p.execution_id and m.consumed_at is null
      and (m.kind in ('terminate', 'reset') or p.state = 'pending' and (m.kind = 'pause' or m.kind = 'cancel' and p.fresh))) as ending
  from workflow_tasks p where p.execution_id = any(:execution_ids::uuid[]) order by p.execution_id for update
)
update workflow_tasks t set wakes = t.wakes + 1,
  state = case when t.state = 'parked' or these.ending then 'pending' else t.state end,
  due_at = case when t.state = 'parked' or these.ending then hub_now() else t.due_at end,
  sticky_until = case when t.state = 'parked' then hub_now() + t.sticky_window * interval '1 second' else t.sticky_until end
from these where t.execution_id = these.execution_id
returning t.execution_id

-- name: overlooked
-- Parked runs with something to read, whose wake was lost (F-5), and closed ones that got mail as they closed.
select distinct m.execution_id, m.partition, t.execution_id is not null as open from messages m left join workflow_tasks t using (execution_id)
where m.pool = :pool and m.consumed_at is null
  and (t.state = 'parked' or t.execution_id is null
       or t.state = 'pending' and t.due_at > hub_now() and (m.kind in ('terminate', 'reset', 'pause') or m.kind = 'cancel' and t.fresh)
       or t.state = 'paused' and m.kind in ('terminate', 'reset'))
union
select distinct a.execution_id, a.partition, true from activity_tasks a join workflow_tasks t using (execution_id)
where a.pool = :pool and a.state = 'done' and t.state = 'parked'
limit 1000

-- name: wakes
select execution_id, wakes from workflow_tasks where execution_id = any(:execution_ids::uuid[])

-- name: unclaim
-- Gives back claims without a decision; who gives one back keeps its pin.
update workflow_tasks t set state = 'pending', worker_id = null, due_at = least(t.due_at, hub_now())
from unnest(:execution_ids::uuid[], :claims::int8[]) as u(execution_id, claim)
where t.execution_id = u.execution_id and t.claim = u.claim and t.worker_id = :worker_id::uuid

-- name: unclaim_of
-- Claims and pins of workers that are no more, or stop (S-2, S-5).
with loose as (
  update workflow_tasks set state = 'pending', due_at = hub_now(), worker_id = null, fresh = false, wakes = wakes + 1,
    sticky_until = null, sticky_window = null
  where worker_id = any(:worker_ids::uuid[]) returning pool
), unpinned as (
  update workflow_tasks set sticky_until = null, sticky_window = null
  where sticky_worker_id = any(:worker_ids) and state <> 'running' and sticky_window is not null returning pool
)
select distinct pool from (select pool from loose union all select pool from unpinned) p

-- name: still_paused
-- A paused run was claimed for an end that did not come.
update workflow_tasks set state = 'paused', worker_id = null, due_at = 'infinity'
where execution_id = :execution_id::uuid and claim = :claim::int8 and worker_id is not null

-- name: claims_of
select execution_id, claim from workflow_tasks where worker_id = :worker_id::uuid and pool = :pool

-- name: unpin
update workflow_tasks set sticky_until = null, sticky_window = null
where sticky_worker_id = :worker_id::uuid and state <> 'running' and sticky_window is not null

-- name: responder
-- Who should answer a query in sticky mode: who decides the run now, else who has it in memory, else anyone who knows its type.
select (select mode from settings) as mode, coalesce(
  (select t.worker_id from workflow_tasks t where t.execution_id = :execution_id::uuid),
  (select w.worker_id from workflow_tasks t join workers w on w.worker_id = t.sticky_worker_id
   where t.execution_id = :execution_id and w.state = 'active' and w.lease_until > hub_now()),
  (select w.worker_id from workers w
   where w.state = 'active' and w.lease_until > hub_now() and :pool = any(w.pools)
     and (w.definitions -> 'workflows')::jsonb ? :type order by random() limit 1)) as worker_id

-- name: sticky_figures
-- W-4. A worker is under pressure when its cache is nine tenths full.
select count(*) filter (where t.sticky_until > hub_now()) as active_sticky_runs,
  count(*) filter (where t.sticky_until > hub_now() and t.state = 'pending' and t.due_at <= hub_now()) as ready_sticky_tasks,
  count(*) filter (where t.state = 'running' and t.sticky_replay_mode = 'sticky_hit_expected') as leased_sticky_tasks,
  count(*) filter (where t.sticky_until > hub_now() and w.sticky_cache_capacity > 0
                     and (w.figures ->> 'size')::int >= 0.9 * w.sticky_cache_capacity) as capacity_pressure_tasks
from workflow_tasks t left join workers w on w.worker_id = t.sticky_worker_id
where t.sticky_worker_id is not null and (:pool::text is null or t.pool = :pool)
