-- table: decisions (view events)

-- name: load
select execution_id, decision, (extract(epoch from at) * 1000000)::int8 as at_us, events
from decisions where execution_id = any(:execution_ids::uuid[]) and decision > 0
order by execution_id, decision

-- name: landed
select count(*) from decisions d
join unnest(:execution_ids::uuid[], :decisions::int[]) as t(execution_id, decision) using (execution_id, decision)
where d.worker_id = :worker_id::uuid

-- name: events
select event_id, decision, at, type, event from events
where execution_id = :execution_id::uuid and event_id > :after::int order by event_id limit :size::int

-- name: of_update
select event from events
where execution_id = :execution_id::uuid and type in ('UpdateAdmitted', 'UpdateCompleted', 'UpdateFailed')
  and event ->> 'update_id' = :update_id::text
order by event_id
