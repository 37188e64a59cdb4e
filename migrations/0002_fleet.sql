-- The fleet: shares of ownership, the sticky claim loop, and the switch between the two.

-- One row: how decisions are taken on this hub, and which shard it is where there are several.
create table settings (
  single     boolean primary key default true check (single),
  mode       text not null default 'owner' check (mode in ('owner', 'sticky')),
  mode_since timestamptz not null default statement_timestamp(),
  shard      int,
  shards     int,
  shard_set  uuid
);
insert into settings default values;

-- A tenure may write in one mode only: the switch changes the row, and so waits for the commits in flight.
alter table tenures add column mode text not null default 'owner';

-- pools: what the worker serves; grants: where it may own (its types fit those of the other owners there).
alter table workers
  add column pools text[] not null default '{}',
  add column can_own boolean not null default false,
  add column grants text[] not null default '{}',
  add column refusals json,
  add column config json,
  add column scanned_at timestamptz,
  add column runtime text not null default 'python',
  add column sticky_cache_enabled boolean not null default false,
  add column sticky_cache_capacity int not null default 0;
create index workers_current on workers (worker_id) where state in ('active', 'draining', 'fenced');

alter table partitions add column since timestamptz;
create index partitions_free on partitions (pool) where worker_id is null;

-- Sticky mode: a claim is worker_id with its number; a pin is sticky_worker_id until sticky_until. `wakes` grows
-- with each poke, so that a decision which did not see the cause does not park the run; `decision` is the last one when it was parked. From
-- open_at anybody may claim.
alter table workflow_tasks
  add column fresh boolean not null default true,
  add column worker_id uuid,
  add column claim bigint not null default 0,
  add column wakes int not null default 0,
  add column decision int,
  add column sticky_worker_id uuid,
  add column sticky_until timestamptz,
  add column sticky_window float8,
  add column sticky_replay_mode text,
  add column sticky_claimed_at timestamptz,
  add column open_at timestamptz generated always as (greatest(due_at, sticky_until)) stored;
update workflow_tasks set fresh = false where state <> 'pending';

drop index workflow_tasks_due;
-- An owner's scan: one descent per partition, whatever the backlog of the others.
create index workflow_tasks_due on workflow_tasks (pool, partition, due_at) where state <> 'running';
-- A claim: the order of claiming is the order of the index.
create index workflow_tasks_claim on workflow_tasks (pool, fresh, priority, open_at) where state <> 'running';
create index workflow_tasks_pinned on workflow_tasks (sticky_worker_id, priority, due_at)
  where sticky_worker_id is not null and state <> 'running';
create index workflow_tasks_claimed on workflow_tasks (worker_id) where worker_id is not null;
create index workflow_tasks_unstamped on workflow_tasks (pool) where partition is null;

-- How a sticky decision was scheduled: sticky, normal or expired (a window ran out); null: by its owner.
alter table decisions add column scheduled text;

-- The guard: while owners decide, a claim takes nothing, whatever code sends it.
create function refuse_claim() returns trigger language plpgsql as $$ begin return null; end $$;
create trigger workflow_tasks_guard before update of worker_id on workflow_tasks for each row
  when (new.worker_id is not null and new.worker_id is distinct from old.worker_id) execute function refuse_claim();

-- A pool is a queue, and for pinned runs a build: queue@build.
create function queue_of(pool text) returns text language sql immutable strict as $$ select split_part(pool, '@', 1) $$;
