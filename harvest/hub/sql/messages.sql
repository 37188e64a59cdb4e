-- table: messages

-- name: send
-- Mail goes to the open run of the workflow id; `stored` is false where the key is known already.
with incoming as (
  select * from unnest(:message_ids::uuid[], :workflow_ids::text[], :kinds::text[], :names::text[], :keys::text[],
                       :events::json[])
    as t(message_id, workflow_id, kind, name, key, event)
), keyed as materialized (
  -- A key must meet its like: the run cannot close, and its keys move on, between here and the commit.
  select e.execution_id from executions e
  where e.workflow_id in (select workflow_id from incoming where key is not null) and e.closed_at is null
  for share
), target as (
  select i.*, e.execution_id, e.pool, e.partition
  from incoming i join executions e on e.workflow_id = i.workflow_id and e.closed_at is null
  where i.key is null or e.execution_id in (select execution_id from keyed)
), stored as (
  insert into messages (message_id, execution_id, pool, partition, kind, name, key, event)
  select message_id, execution_id, pool, partition, kind, name, key, event from target
  order by execution_id, kind, key nulls last, message_id  -- one order for all senders: no deadlock over the same keys
  on conflict do nothing
  returning message_id
)
select t.message_id, t.execution_id, t.pool, t.partition, s.message_id is not null as stored
from target t left join stored s using (message_id)

-- name: send_to
with target as materialized (
  select execution_id, pool, partition from executions where execution_id = :execution_id::uuid and closed_at is null for share
), stored as (
  insert into messages (message_id, execution_id, pool, partition, kind, name, key, event)
  select :message_id::uuid, execution_id, pool, partition, :kind, :name, :key::text, :event::json from target
  on conflict do nothing returning message_id
)
select t.execution_id, t.pool, t.partition, s.message_id is not null as stored from target t left join stored s on true

-- name: discard
delete from messages where message_id = :message_id::uuid

-- name: stored
select message_id, execution_id, pool, partition, true as stored from messages where message_id = any(:message_ids::uuid[])

-- name: load
select message_id, execution_id, kind, key, event from messages
where execution_id = any(:execution_ids::uuid[]) and consumed_at is null
order by execution_id, position

-- name: forward
-- Mail that reached a run just as it continued as new follows it, and so does its key.
update messages m set execution_id = :successor::uuid
where m.execution_id = :execution_id::uuid and (m.consumed_at is null or m.key is not null)
  and m.kind not in ('child', 'reset')
  and not exists (select from messages o where o.execution_id = :successor::uuid and o.kind = m.kind and o.key = m.key)
returning message_id

-- name: drop_stranded
-- What cannot follow to the next run: results of children, for which nobody waits, requests to reset that one, and keys it has already. (Other mail
-- may arrive at any moment, and is forwarded.)
update messages m set consumed_at = hub_now()
where m.execution_id = :execution_id::uuid and m.consumed_at is null
  and (m.kind in ('child', 'reset') or exists (
    select from messages o where o.execution_id = :successor::uuid and o.kind = m.kind and o.key = m.key))

-- name: drop_unread
-- Mail for a run that is closed for good: updates are answered, runs that called an operation are told, the rest is put away.
with dropped as (
  update messages set consumed_at = hub_now(), reply = case when kind in ('update', 'pause') then :reply::json end
  where execution_id = any(:execution_ids::uuid[]) and consumed_at is null returning kind, key, event -> 'caller' as caller
), callers as (
  select (caller ->> 'execution_id')::uuid as execution_id, caller ->> 'pool' as pool,
         partition_of(caller ->> 'workflow_id') as partition, (caller ->> 'seq')::int as seq
  from dropped where kind = 'operation'
), told as (
  insert into messages (message_id, execution_id, pool, partition, kind, event)
  select substr(encode(sha256(convert_to(execution_id || '/' || seq, 'UTF8')), 'hex'), 1, 32)::uuid,
         execution_id, pool, partition, 'child', json_build_object('type', 'CallFailed', 'seq', seq, 'failure', :failure::json)
  from callers on conflict (message_id) do nothing
)
select kind, key, null::uuid as execution_id, null as pool, null::int2 as partition from dropped where kind <> 'operation'
union all select 'operation', null, execution_id, pool, partition from callers

-- name: by_key
select m.message_id, m.name, m.reply, m.execution_id from messages m
join executions e on e.execution_id = m.execution_id
where e.workflow_id = :workflow_id and m.kind = :kind and m.key = :key
order by e.created_at desc, e.execution_id desc, m.position desc limit 1

-- name: by_key_of_run
-- Among an execution and all that its logical run goes on as (attempts, continuations, resets while it was open), the deepest first.
with recursive walk as (
  select :execution_id::uuid as execution_id, 1 as n
  union all
  select x.next, w.n + 1 from walk w join executions e on e.execution_id = w.execution_id cross join lateral (
    select coalesce(e.continued_to, case when e.state = 'FAILED' then
      (select r.execution_id from executions r where r.retry_of_exec_id = e.execution_id) end) as next) x
  where x.next is not null and w.n < :most::int
)
select m.message_id, m.name, m.reply, m.execution_id from walk w join messages m on m.execution_id = w.execution_id
where m.kind = :kind and m.key = :key
order by w.n desc, m.position desc limit 1

-- name: replies
select message_id, reply from messages where message_id = any(:message_ids::uuid[]) and reply is not null
