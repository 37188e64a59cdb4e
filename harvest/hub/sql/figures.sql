-- table: figures

-- name: record
insert into figures (at, worker_id, seconds, figures)
values (hub_now(), :worker_id::uuid, :seconds::float8, :figures::json)
on conflict do nothing

-- name: survey
-- What the hub holds, counted by whoever comes first in an interval, up to a bound in each place that is looked at.
insert into figures (at, worker_id, seconds, figures)
select to_timestamp(floor(extract(epoch from hub_now()) / :every::float8) * :every), '00000000-0000-0000-0000-000000000000', :every,
  json_build_object(
    'workflow_backlog', (select count(*) from partitions p cross join lateral (
      select from workflow_tasks t where t.pool = p.pool and t.partition = p.partition and t.state <> 'running' and t.due_at <= hub_now()
      limit 1000) due),
    'activity_backlog', (select count(*) from (
      select from activity_tasks where state = 'pending' and due_at <= hub_now() limit 100000) due),
    'dead_letters', (select count(*) from (select from dead_letters limit 100000) d),
    'open_runs', (select count(*) from (select from workflow_tasks limit 1000000) o),
    'unowned_partitions', (select count(*) from partitions p where p.worker_id is null
      and exists (select from workflow_tasks t where t.pool = p.pool and t.partition = p.partition and t.state <> 'running' and t.due_at <= hub_now())))
where not exists (select from figures where worker_id = '00000000-0000-0000-0000-000000000000'
  and at = to_timestamp(floor(extract(epoch from hub_now()) / :every) * :every))
on conflict do nothing

-- name: now
select extract(epoch from hub_now())::float8 as now

-- name: since
select extract(epoch from at)::float8 as at, worker_id, seconds, figures from figures
where at > hub_now() - :seconds::float8 * interval '1 second' order by at

-- name: forget
delete from figures where at < hub_now() - :seconds::float8 * interval '1 second'
