-- table: decisions (view events)

-- name: load
-- Of an entity from the decision on that recorded its state last.
select d.* from unnest(:execution_ids::uuid[], :starts::int[]) as r(execution_id, start)
left join entity_state s using (execution_id)
cross join lateral (
  select d.execution_id, d.decision, (extract(epoch from d.at) * 1000000)::int8 as at_us, d.events, d.first_event_id
  from decisions d where d.execution_id = r.execution_id and d.decision >= greatest(r.start, s.decision) order by d.decision
) as d

-- name: landed
select count(*) from decisions d
join unnest(:execution_ids::uuid[], :decisions::int[]) as t(execution_id, decision) using (execution_id, decision)
where d.worker_id = :worker_id::uuid

-- name: events
select event_id, decision, at, type, event from events
where execution_id = :execution_id::uuid and event_id > :after::int order by event_id limit :size::int

-- name: of_update
select event from events
where execution_id = :execution_id::uuid and type in ('UpdateAdmitted', 'UpdateCompleted', 'UpdateFailed', 'OperationCalled', 'OperationCompleted', 'OperationFailed')
order by event_id
