-- What people do to the record of a run: holds, notes, erasure.

-- name: hold
update executions set legal_hold = :hold::json where execution_id = :execution_id::uuid returning execution_id

-- name: note
insert into triage (note_id, execution_id, at, author, status, note)
values (:note_id::uuid, :execution_id::uuid, hub_now(), :author, :status, :note) on conflict do nothing

-- name: notes
select at, author, status, note from triage where execution_id = :execution_id::uuid order by at, note_id

-- name: begin_erasure
select state, closed_at, legal_hold, erased_at, failure from executions where execution_id = :execution_id::uuid for update

-- name: page
select decision, events from decisions
where execution_id = :execution_id::uuid and decision > :after::int order by decision limit :size::int

-- name: rewrite
update decisions d set events = u.events
from unnest(:decisions::int[], :events::json[]) as u(decision, events)
where d.execution_id = :execution_id::uuid and d.decision = u.decision

-- name: erase_rest
with run as (
  update executions set input = '"(erased)"', result = case when result is not null then '"(erased)"'::json end,
    failure = case when failure is not null then json_build_object('message', '(erased)', 'type', failure ->> 'type') end,
    memo = null, search_attributes = null, erased_at = hub_now()
  where execution_id = :execution_id::uuid
), mail as (
  update messages set event = json_build_object('type', event ->> 'type', 'name', name, 'input', '(erased)'),
    reply = case when reply is not null then '{"failure":{"message":"(erased)","type":"PayloadErased"}}'::json end
  where execution_id = :execution_id and consumed_at is not null
)
update dead_letters set error = json_build_object('message', '(erased)', 'type', error ->> 'type')
where execution_id = :execution_id
