-- table: audit

-- name: begin
-- Not flushed by itself: the log is in order, so the flush of the act that follows takes this row along.
insert into audit (audit_id, at, actor, token_id, address, method, route, target)
select t.audit_id, hub_now(), t.actor, t.token_id, t.address, t.method, t.route, t.target
from unnest(:audit_ids::uuid[], :actors::text[], :token_ids::uuid[], :addresses::text[], :methods::text[], :routes::text[], :targets::json[])
  as t(audit_id, actor, token_id, address, method, route, target)
on conflict do nothing
returning set_config('synchronous_commit', 'off', true)

-- name: finish
update audit a set status = t.status, ended_at = hub_now()
from unnest(:audit_ids::uuid[], :statuses::int[]) as t(audit_id, status) where a.audit_id = t.audit_id
returning set_config('synchronous_commit', 'off', true)

-- name: forget
with gone as (
  delete from audit where audit_id in (
    select audit_id from audit where at < hub_now() - :seconds::float8 * interval '1 second' order by at limit :most::int)
  returning 1)
select count(*) as gone from gone

-- name: listing
select audit_id, at, actor, token_id, address, method, route, target, status, ended_at from audit
where (:actor::text is null or actor = :actor) and (:workflow_id::text is null or :workflow_id in (target ->> 'workflow_id', target ->> 'id', '@' || (target ->> 'type') || ':' || (target ->> 'key'))
    or target ->> 'execution_id' in (select e.execution_id::text from executions e where e.workflow_id = :workflow_id))
  and (:cursor_at::timestamptz is null or (at, audit_id) < (:cursor_at, :cursor_id::uuid))
order by at desc, audit_id desc limit :size::int
