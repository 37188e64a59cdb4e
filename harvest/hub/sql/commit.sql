-- The owner's commit, put together from the sections that a batch needs. Every write is gated by `ok`:
-- the tenure's row is locked against a fence, and each partition still has this owner and epoch.

-- section: fence
with fence as materialized (
  select 1 from tenures where worker_id = :worker_id::uuid and connection = :connection::int2 and not fenced and mode = 'owner'
  for share
), held as materialized (
  -- One descent of the primary key per partition, whatever the planner knows: a join would read all 512 rows for each.
  select count(*) as n from unnest(:partitions::int2[], :epochs::int8[]) as h(partition, epoch)
  cross join lateral (
    select from partitions p
    where p.pool = :pool and p.partition = h.partition and p.epoch = h.epoch and p.worker_id = :worker_id offset 0
  ) as found
)

-- section: fence_claims
-- In sticky mode: each run is still claimed by this worker, under this claim.
with fence as materialized (
  select 1 from tenures where worker_id = :worker_id::uuid and connection = :connection::int2 and not fenced and mode = 'sticky'
  for share
), held as materialized (
  select count(*) as n from unnest(:claimed::uuid[], :claims::int8[]) as h(execution_id, claim)
  cross join lateral (
    select from workflow_tasks t where t.execution_id = h.execution_id and t.claim = h.claim and t.worker_id = :worker_id offset 0
  ) as found
)

-- section: unfenced
with ok as materialized (select 1 as yes), closed as (select 1 as none where false)

-- section: ok_claims
, ok as materialized (
  select 1 as yes where (select count(*) from fence) = 1 and (select n from held) = cardinality(:claimed)
)

-- section: ok
, ok as materialized (
  select 1 as yes where (select count(*) from fence) = 1 and (select n from held) = cardinality(:partitions)
)

-- section: ok_launches
, taken as materialized (
  select l.execution_id from unnest(:l_execution_ids::uuid[], :l_workflow_ids::text[]) as l(execution_id, workflow_id)
  join executions e on e.workflow_id = l.workflow_id and e.closed_at is null
), ok as materialized (
  select 1 as yes where (select count(*) from fence) = 1 and (select n from held) = cardinality(:partitions)
                    and not exists (select from taken)
)

-- section: decisions
, put_decisions as (
  insert into decisions (execution_id, decision, first_event_id, at, worker_id, replay_mode, events)
  select u.execution_id, u.decision, u.first_event_id, 'epoch'::timestamptz + u.at_us * interval '1 microsecond', :worker_id,
         u.mode, u.events
  from ok, unnest(:d_execution_ids::uuid[], :d_decisions::int[], :d_first_event_ids::int[], :d_at_us::int8[], :d_modes::text[],
                  :d_events::json[]) as u(execution_id, decision, first_event_id, at_us, mode, events)
)

-- section: claimed_decisions
, put_claimed_decisions as (
  insert into decisions (execution_id, decision, first_event_id, at, worker_id, replay_mode, events, scheduled)
  select u.execution_id, u.decision, u.first_event_id, 'epoch'::timestamptz + u.at_us * interval '1 microsecond', :worker_id,
         u.mode, u.events, u.scheduled
  from ok, unnest(:cd_execution_ids::uuid[], :cd_decisions::int[], :cd_first_event_ids::int[], :cd_at_us::int8[],
                  :cd_modes::text[], :cd_events::json[], :cd_scheduled::text[])
    as u(execution_id, decision, first_event_id, at_us, mode, events, scheduled)
)

-- section: launches
-- Runs whose start and first decision are one commit; a first decision may close the run.
, launched as (
  insert into executions (execution_id, workflow_id, type, pool, partition, seed, input, priority, created_at, deadline, memo,
                          search_attributes, state, result, failure, closed_at, retry)
  select u.execution_id, u.workflow_id, u.type, :pool, u.partition, u.seed, u.input, u.priority, hub_now(),
         hub_now() + u.timeout * interval '1 second', u.memo, u.attributes, u.state, u.result, u.failure,
         case when u.state <> 'RUNNING' then hub_now() end, u.retry
  from ok, unnest(:l_execution_ids::uuid[], :l_workflow_ids::text[], :l_types::text[], :l_partitions::int2[], :l_seeds::int8[],
                  :l_inputs::json[], :l_priorities::int2[], :l_timeouts::float8[], :l_memos::json[], :l_attributes::jsonb[],
                  :l_states::text[], :l_results::json[], :l_failures::json[], :l_task_states::text[], :l_due_us::int8[],
                  :l_retries::json[])
    as u(execution_id, workflow_id, type, partition, seed, input, priority, timeout, memo, attributes, state, result, failure,
         task_state, due_us, retry)
), launched_tasks as (
  insert into workflow_tasks (execution_id, pool, partition, state, due_at, priority, fresh)
  select u.execution_id, :pool, u.partition, u.task_state,
         coalesce('epoch'::timestamptz + u.due_us * interval '1 microsecond', 'infinity'), u.priority, false
  from ok, unnest(:l_execution_ids, :l_partitions, :l_task_states, :l_due_us, :l_priorities)
    as u(execution_id, partition, task_state, due_us, priority)
  where u.task_state is not null
)

-- section: tasks
, put_tasks as (
  update workflow_tasks t set state = u.state, fresh = false, partition = coalesce(t.partition, u.partition),
    due_at = coalesce('epoch'::timestamptz + u.due_us * interval '1 microsecond', 'infinity')
  from ok, unnest(:t_execution_ids::uuid[], :t_states::text[], :t_due_us::int8[], :t_partitions::int2[])
    as u(execution_id, state, due_us, partition)
  where t.execution_id = u.execution_id
)

-- section: parks
-- A claimed run suspends: its claim ends, its pin begins (S-2). What was poked since its mail was read is due at once.
, put_parks as (
  update workflow_tasks t set worker_id = null, fresh = false, decision = u.decision, partition = coalesce(t.partition, u.partition),
    state = case when t.wakes = u.wakes then 'parked' else 'pending' end,
    due_at = case when t.wakes = u.wakes then coalesce('epoch'::timestamptz + u.due_us * interval '1 microsecond', 'infinity')
                  else hub_now() end,
    sticky_worker_id = case when u.pin is null then null else :worker_id end,
    sticky_until = hub_now() + u.pin * interval '1 second', sticky_window = u.pin
  from ok, unnest(:g_execution_ids::uuid[], :g_due_us::int8[], :g_partitions::int2[], :g_wakes::int[], :g_pins::float8[],
                  :g_decisions::int[])
    as u(execution_id, due_us, partition, wakes, pin, decision)
  where t.execution_id = u.execution_id
)

-- section: closes
, closed as (
  update executions e set state = u.state, result = u.result, failure = u.failure, continued_to = u.continued_to,
    closed_at = hub_now(),
    search_attributes = case when u.attributes is null then e.search_attributes
                             else jsonb_strip_nulls(coalesce(e.search_attributes, '{}') || u.attributes) end
  from ok, unnest(:c_execution_ids::uuid[], :c_states::text[], :c_results::json[], :c_failures::json[], :c_successors::uuid[],
                  :c_attributes::jsonb[])
    as u(execution_id, state, result, failure, continued_to, attributes)
  where e.execution_id = u.execution_id
  returning e.execution_id
), drop_tasks as (
  delete from workflow_tasks t using ok where t.execution_id = any(:c_execution_ids)
)

-- section: close_activities
, drop_activities as (
  delete from activity_tasks a using ok where a.execution_id = any(:ca_execution_ids::uuid[])
)

-- section: activities
, put_activities as (
  insert into activity_tasks (execution_id, seq, pool, partition, workflow_id, name, queue, state, priority, worker_id,
                              created_at, due_at, expires_at, close_at, start_to_close, heartbeat_timeout, input, options)
  select u.execution_id, u.seq, :pool, u.partition, u.workflow_id, u.name, u.queue, u.state, u.priority,
         case when u.state = 'running' then :worker_id end, hub_now(), hub_now(),
         hub_now() + u.expires * interval '1 second', hub_now() + u.schedule_to_close * interval '1 second',
         u.start_to_close, u.heartbeat, u.input, u.options
  from ok, unnest(:a_execution_ids::uuid[], :a_seqs::int[], :a_partitions::int2[], :a_workflow_ids::text[], :a_names::text[],
                  :a_queues::text[], :a_states::text[], :a_priorities::int2[], :a_expires::float8[],
                  :a_schedule_to_close::float8[], :a_start_to_close::float8[], :a_heartbeats::float8[], :a_inputs::json[],
                  :a_options::json[])
    as u(execution_id, seq, partition, workflow_id, name, queue, state, priority, expires, schedule_to_close, start_to_close,
         heartbeat, input, options)
)

-- section: activity_ends
, end_activities as (
  delete from activity_tasks a
  using ok, unnest(:e_execution_ids::uuid[], :e_seqs::int[]) as u(execution_id, seq)
  where a.execution_id = u.execution_id and a.seq = u.seq
)

-- section: pauses
-- A run stands still: nobody's task, activities that wait stay where they are. A request that was taken back does nothing.
, asked as (
  update messages m set consumed_at = hub_now(), reply = '{"result": null}' from ok
  where m.execution_id = any(:b_execution_ids::uuid[]) and m.kind = 'pause' and m.consumed_at is null
  returning m.execution_id
), paused as (
  update executions e set state = 'PAUSED', paused_at = hub_now()
  where e.execution_id in (select execution_id from asked) and e.state = 'RUNNING'
), paused_tasks as (
  update workflow_tasks t set state = 'paused', paused_due = t.due_at, due_at = 'infinity', worker_id = null,
    sticky_worker_id = null, sticky_until = null, sticky_window = null
  where t.execution_id in (select execution_id from asked)
), held_activities as (
  update activity_tasks a set state = 'held' where a.execution_id in (select execution_id from asked) and a.state = 'pending'
)

-- section: reads
, read_messages as (
  delete from messages m using ok where m.message_id = any(:r_message_ids::uuid[])
)

-- section: marks
-- Keyed mail stays, so that its key keeps de-duplicating.
, mark_messages as (
  update messages m set consumed_at = hub_now(), execution_id = coalesce(u.successor, m.execution_id)
  from ok, unnest(:k_message_ids::uuid[], :k_successors::uuid[]) as u(message_id, successor)
  where m.message_id = u.message_id
)

-- section: rearms
-- Mail that a failed attempt ingested in its last decision: the next one has to see it again.
, rearm_messages as (
  update messages m set execution_id = u.successor, consumed_at = null, position = u.position
    + least(0, coalesce((select min(o.position) from messages o where o.execution_id = m.execution_id and o.consumed_at is null), 0))
  from ok, unnest(:j_message_ids::uuid[], :j_successors::uuid[], :j_positions::int8[]) as u(message_id, successor, position)
  where m.message_id = u.message_id
)

-- section: moves
-- A run continues as new: its unread mail follows, and so do the keys that keep de-duplicating (R-7). What this
-- very commit reads or answers is named in the skip lists: one statement may touch a row only once.
, move_messages as (
  update messages m set execution_id = u.successor,
    event = case when m.consumed_at is null then m.event else json_build_object('name', m.name) end  -- a key needs no payload
  from ok, unnest(:v_execution_ids::uuid[], :v_successors::uuid[]) as u(execution_id, successor)
  where m.execution_id = u.execution_id and (m.consumed_at is null or m.key is not null) and m.kind not in ('child', 'reset')
    and m.message_id <> all(:skip_messages::uuid[]) and (m.key is null or m.key <> all(:skip_keys::text[]))
)

-- section: replies
-- An update's answer; its row is found by the update id.
, reply_messages as (
  update messages m set consumed_at = hub_now(), reply = u.reply, execution_id = coalesce(u.successor, m.execution_id)
  from ok, unnest(:p_execution_ids::uuid[], :p_keys::text[], :p_replies::json[], :p_successors::uuid[])
    as u(execution_id, key, reply, successor)
  where m.execution_id = u.execution_id and m.kind = 'update' and m.key = u.key
)

-- section: starts
, started as (
  insert into executions (execution_id, workflow_id, type, pool, partition, seed, input, priority, created_at, deadline,
                          parent_execution_id, parent_workflow_id, parent_pool, parent_seq, parent_close, continued_from, memo,
                          search_attributes, retry, chain_deadline, chain_began)
  select u.execution_id, u.workflow_id, u.type, u.pool, partition_of(u.workflow_id), u.seed, u.input, u.priority, hub_now(),
         hub_now() + u.timeout * interval '1 second', u.parent_execution_id, u.parent_workflow_id, u.parent_pool, u.parent_seq,
         u.parent_close, u.continued_from, old.memo,
         nullif(jsonb_strip_nulls(coalesce(old.search_attributes, '{}') || coalesce(u.attributes, '{}')), '{}'),
         coalesce(u.retry, old.retry), old.chain_deadline,
         case when old.chain_deadline is not null then coalesce(old.chain_began, old.created_at) end
  from ok cross join unnest(:s_execution_ids::uuid[], :s_workflow_ids::text[], :s_types::text[], :s_pools::text[], :s_seeds::int8[],
                  :s_inputs::json[], :s_priorities::int2[], :s_timeouts::float8[], :s_parent_execution_ids::uuid[],
                  :s_parent_workflow_ids::text[], :s_parent_pools::text[], :s_parent_seqs::int[], :s_parent_closes::text[],
                  :s_continued_from::uuid[], :s_attributes::jsonb[], :s_retries::json[])
    as u(execution_id, workflow_id, type, pool, seed, input, priority, timeout, parent_execution_id, parent_workflow_id,
         parent_pool, parent_seq, parent_close, continued_from, attributes, retry)
  left join executions old on old.execution_id = u.continued_from
  where (select count(*) from closed) >= 0
  on conflict (workflow_id) where closed_at is null do nothing
  returning execution_id, workflow_id, pool, partition, priority
), refused_starts as (
  -- A child whose id is taken: its parent hears of it through a row, so that no crash can lose it.
  insert into messages (message_id, execution_id, pool, partition, kind, event)
  select u.execution_id, u.parent_execution_id, u.parent_pool, partition_of(u.parent_workflow_id), 'child', u.refusal
  from ok, unnest(:s_execution_ids, :s_parent_execution_ids, :s_parent_pools, :s_parent_workflow_ids, :s_refusals::json[])
    as u(execution_id, parent_execution_id, parent_pool, parent_workflow_id, refusal)
  where u.refusal is not null and not exists (select from started s where s.execution_id = u.execution_id)
), start_tasks as (
  insert into workflow_tasks (execution_id, pool, partition, state, due_at, priority)
  select execution_id, pool, partition, 'pending', hub_now(), priority from started
)

-- section: forks
-- A run begins again: from nothing (retry), or from the end of one of its decisions (reset). What it had ingested after that is
-- mail once more, in the order of its history and ahead of what is unread: positions below zero.
, forks as materialized (
  select u.* from ok, unnest(:f_execution_ids::uuid[], :f_successors::uuid[], :f_links::text[], :f_seeds::int8[],
                             :f_delays::float8[], :f_decisions::int[], :f_drops::bool[], :f_carried::int[], :f_unresolved::json[],
                             :f_attributes::jsonb[])
    as u(execution_id, successor, link, seed, delay, decision, drops, carried, unresolved, attributes)
), forked as (
  insert into executions (execution_id, workflow_id, type, pool, partition, seed, attempt, input, priority, created_at, backoff,
                          deadline, chain_deadline, chain_began, parent_execution_id, parent_workflow_id, parent_pool, parent_seq, parent_close, continued_from,
                          retry_of_exec_id, reset_of_exec_id, reset_decision, retry, memo, search_attributes)
  select f.successor, e.workflow_id, e.type, e.pool, e.partition, coalesce(f.seed, e.seed),
         case when f.link = 'retry' then e.attempt + 1 else e.attempt end, e.input, e.priority, hub_now(), f.delay * interval '1 second',
         hub_now() + f.delay * interval '1 second' + (e.deadline - e.created_at - e.backoff - e.paused_for),
         case when f.link = 'retry' then e.chain_deadline
              else hub_now() + (e.chain_deadline - coalesce(e.chain_began, e.created_at)) end,
         case when f.link = 'retry' then coalesce(e.chain_began, e.created_at) end,
         p.execution_id, p.workflow_id, p.pool, case when p.execution_id is not null then e.parent_seq end,
         case when p.execution_id is not null then e.parent_close end,
         case when f.link = 'reset' then e.continued_from end,
         case when f.link = 'retry' then e.execution_id end,
         case when f.link = 'reset' then e.execution_id end, case when f.link = 'reset' then f.decision end,
         e.retry, e.memo,
         nullif(jsonb_strip_nulls(coalesce(e.search_attributes, '{}') || coalesce(f.attributes, '{}')), '{}')
  from forks f join executions e using (execution_id)
  -- The parent of a run that was closed already has been told of its end.
  left join executions p on p.execution_id = e.parent_execution_id and e.closed_at is null
  where (select count(*) from closed) >= 0
  returning execution_id, workflow_id, pool, partition, priority
), forked_tasks as (
  insert into workflow_tasks (execution_id, pool, partition, state, due_at, priority, fresh, decision)
  select n.execution_id, n.pool, n.partition, 'pending', hub_now() + f.delay * interval '1 second', n.priority, f.link = 'retry',
         nullif(f.decision, 0)
  from forked n join forks f on f.successor = n.execution_id
), forked_history as (
  insert into decisions (execution_id, decision, first_event_id, at, worker_id, replay_mode, events, scheduled)
  select f.successor, d.decision, d.first_event_id, d.at, d.worker_id, d.replay_mode, d.events, d.scheduled
  from forks f join decisions d on d.execution_id = f.execution_id and d.decision <= f.decision
), ingested as materialized (
  select f.execution_id, f.successor, case e.event ->> 'type' when 'UpdateAdmitted' then 'update' else 'signal' end as kind,
         case e.event ->> 'type' when 'UpdateAdmitted' then e.event ->> 'update_id' else e.event ->> 'key' end as key, e.event,
         least(0, coalesce((select min(o.position) from messages o where o.execution_id = f.execution_id and o.consumed_at is null), 0))
           - f.carried - row_number() over (partition by f.execution_id order by d.decision desc, e.n desc) as position
  from forks f join decisions d on d.execution_id = f.execution_id and d.decision > f.decision
  cross join lateral json_array_elements(d.events) with ordinality as e(event, n)
  where not f.drops and e.event ->> 'type' = 'SignalReceived'
    or e.event ->> 'type' = 'UpdateAdmitted' and f.unresolved::jsonb ? (e.event ->> 'update_id')
), known as materialized (
  -- What the history of the fork has seen, so that keys act once, and updates that its code still works on are answered.
  select f.execution_id, f.successor, e.event ->> 'name' as name,
         case e.event ->> 'type' when 'UpdateAdmitted' then 'update' else 'signal' end as kind,
         case e.event ->> 'type' when 'UpdateAdmitted' then e.event ->> 'update_id' else e.event ->> 'key' end as key
  from forks f join decisions d on d.execution_id = f.execution_id and (d.decision <= f.decision or f.drops)
  cross join lateral json_array_elements(d.events) as e(event)
  where f.link = 'reset' and (e.event ->> 'type' = 'SignalReceived' and e.event ->> 'key' is not null
    or e.event ->> 'type' = 'UpdateAdmitted' and d.decision <= f.decision and f.unresolved::jsonb ? (e.event ->> 'update_id'))
), known_keys as (
  insert into messages (message_id, execution_id, pool, partition, kind, name, key, consumed_at, event)
  select distinct on (k.successor, k.kind, k.key)
         gen_random_uuid(), n.execution_id, n.pool, n.partition, k.kind, k.name, k.key, hub_now(), json_build_object('name', k.name)
  from known k join forked n on n.execution_id = k.successor
  where not exists (select from messages m where m.execution_id = k.execution_id and m.kind = k.kind and m.key = k.key)
), rearmed as (
  update messages m set execution_id = i.successor, consumed_at = null, position = i.position, event = i.event
  from ingested i where m.execution_id = i.execution_id and m.kind = i.kind and m.key = i.key
    and m.message_id <> all(:skip_messages::uuid[])
), remade as (
  insert into messages (message_id, execution_id, pool, partition, kind, name, key, event, position)
  select gen_random_uuid(), n.execution_id, n.pool, n.partition, i.kind, i.event ->> 'name', i.key, i.event, i.position
  from ingested i join forked n on n.execution_id = i.successor
  where not exists (select from messages m where m.execution_id = i.execution_id and m.kind = i.kind and m.key = i.key)
), followed as (
  update messages m set execution_id = f.successor,
    event = case when m.consumed_at is null then m.event else json_build_object('name', m.name) end  -- a key needs no payload
  from forks f
  where m.execution_id = f.execution_id and (m.consumed_at is null or m.key is not null) and m.kind not in ('child', 'reset')
    and m.message_id <> all(:skip_messages) and (m.key is null or m.key <> all(:skip_keys::text[]))
    and not exists (select from ingested i where i.execution_id = m.execution_id and i.kind = m.kind and i.key = m.key)
)

-- section: opens
-- Entities that are called and may not be there yet. One that came about meanwhile is taken as it is: its row is found
-- through the conflict, so that no call is lost between two snapshots.
, opened as (
  insert into executions (execution_id, workflow_id, type, pool, partition, seed, input, created_at)
  select distinct on (u.workflow_id) u.execution_id, u.workflow_id, u.type, u.pool, partition_of(u.workflow_id), u.seed, '[]',
         hub_now()
  from ok cross join unnest(:n_execution_ids::uuid[], :n_workflow_ids::text[], :n_types::text[], :n_pools::text[],
                            :n_seeds::int8[]) as u(execution_id, workflow_id, type, pool, seed)
  where (select count(*) from closed) >= 0 and not exists (
    select from executions e
    where e.workflow_id = u.workflow_id and e.closed_at is null and e.execution_id <> all(:c_execution_ids))
  order by u.workflow_id
  on conflict (workflow_id) where closed_at is null do update set workflow_id = excluded.workflow_id
  returning execution_id, workflow_id, pool, partition
), opened_tasks as (
  insert into workflow_tasks (execution_id, pool, partition, state, due_at)
  select execution_id, pool, partition, 'pending', hub_now() from opened where execution_id = any(:n_execution_ids)
)

-- section: states
-- The state of an entity, and from where on its history tells the rest.
, put_states as (
  insert into entity_state (type, key, execution_id, pool, partition, decision, event_id, version, updated_at, state)
  select u.type, u.key, u.execution_id, :pool, u.partition, u.decision, u.event_id, u.version, hub_now(), u.state
  from ok, unnest(:z_execution_ids::uuid[], :z_types::text[], :z_keys::text[], :z_partitions::int2[], :z_decisions::int[],
                  :z_event_ids::int[], :z_versions::int[], :z_states::json[])
    as u(execution_id, type, key, partition, decision, event_id, version, state)
  on conflict (type, key) do update set execution_id = excluded.execution_id, pool = excluded.pool,
    partition = excluded.partition, decision = excluded.decision, event_id = excluded.event_id, version = excluded.version,
    updated_at = excluded.updated_at, state = excluded.state
)

-- section: state_ends
, end_states as (
  delete from entity_state s using ok where s.execution_id = any(:h_execution_ids::uuid[])
)

-- section: sends
, send_messages as (
  insert into messages (message_id, execution_id, pool, partition, kind, name, event)
  select u.message_id, u.execution_id, u.pool, u.partition, u.kind, u.name, u.event
  from ok, unnest(:m_message_ids::uuid[], :m_execution_ids::uuid[], :m_pools::text[], :m_partitions::int2[], :m_kinds::text[],
                  :m_names::text[], :m_events::json[])
    with ordinality as u(message_id, execution_id, pool, partition, kind, name, event, n)
  order by u.n
  on conflict (message_id) do nothing  -- who waits for it has been told
)

-- section: carries
-- Signals that a run had ingested but not read follow it first: positions below zero, and below those of its unread mail.
, carry_messages as (
  insert into messages (message_id, execution_id, pool, partition, kind, name, key, event, position)
  select u.message_id, u.execution_id, :pool, u.partition, u.kind, u.name, u.key, u.event, u.position
         + least(0, coalesce((select min(o.position) from messages o where o.execution_id = u.source and o.consumed_at is null), 0))
  from ok, unnest(:y_message_ids::uuid[], :y_execution_ids::uuid[], :y_partitions::int2[], :y_names::text[], :y_events::json[],
                  :y_positions::int8[], :y_kinds::text[], :y_keys::text[], :y_sources::uuid[])
    as u(message_id, execution_id, partition, name, event, position, kind, key, source)
)

-- section: addressees
, addressees as (
  select workflow_id, execution_id, pool, partition from executions
  where workflow_id = any(:x_workflow_ids::text[]) and closed_at is null

-- section: addressees_not_closing
-- A run that ends here is written to no more: what it writes to itself is for its next run.
    and execution_id <> all(:c_execution_ids)

-- section: addressees_started
-- A run may write to a child that this very statement starts.
  union all select workflow_id, execution_id, pool, partition from started

-- section: addressees_forked
  union all select workflow_id, execution_id, pool, partition from forked

-- section: addressees_opened
  union all select workflow_id, execution_id, pool, partition from opened

-- section: addressees_end
)

-- section: posts
, posted as (
  insert into messages (message_id, execution_id, pool, partition, kind, name, key, event)
  select u.message_id, e.execution_id, e.pool, e.partition, u.kind, u.name, u.key, u.event
  from ok cross join unnest(:x_message_ids::uuid[], :x_workflow_ids::text[], :x_kinds::text[], :x_names::text[], :x_keys::text[],
                  :x_events::json[]) with ordinality as u(message_id, workflow_id, kind, name, key, event, n)
  join addressees e on e.workflow_id = u.workflow_id
  order by u.n
  on conflict (execution_id, kind, key) where key is not null do update set key = excluded.key
  returning message_id, execution_id, pool, partition, key
)

-- section: orphans
-- Open children of closing runs are ended as their parent-close policy says.
, orphaned as (
  insert into messages (message_id, execution_id, pool, partition, kind, event)
  select gen_random_uuid(), e.execution_id, e.pool, e.partition, e.parent_close,
         json_build_object('type', case e.parent_close when 'terminate' then 'TerminateRequested' else 'CancelRequested' end,
                           'reason', 'parent ' || e.parent_workflow_id || ' closed')
  from ok, executions e
  where e.parent_execution_id = any(:o_execution_ids::uuid[]) and e.closed_at is null and e.parent_close <> 'abandon'
  returning message_id, execution_id, pool, partition
)

-- section: attributes
, put_attributes as (
  update executions e set search_attributes = jsonb_strip_nulls(coalesce(e.search_attributes, '{}') || u.attributes)
  from ok, unnest(:u_execution_ids::uuid[], :u_attributes::jsonb[]) as u(execution_id, attributes)
  where e.execution_id = u.execution_id
)

-- section: verdict
select (select count(*) from ok) = 1 as ok

-- section: verdict_launches
, (select array_agg(execution_id) from taken) as taken

-- section: verdict_pauses
, (select array_agg(execution_id) from asked) as paused

-- section: verdict_started
, (select array_agg(execution_id) from started) as started

-- section: verdict_posted
, (select json_agg(json_build_array(message_id, execution_id, pool, partition, key)) from posted) as posted

-- section: verdict_orphans
, (select json_agg(json_build_array(message_id, execution_id, pool, partition, null)) from orphaned) as orphaned
