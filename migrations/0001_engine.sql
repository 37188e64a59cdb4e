-- The engine: runs, their history, their tasks, their mail, and who owns them.
-- Every name is unqualified: the schema is the first one of the connection's search path.

-- Time as the hub sees it. Tests replace this function to own the clock.
create function hub_now() returns timestamptz language sql stable as 'select statement_timestamp()';

-- The twin of harvest.ids.partition_of: the top nine bits of SHA-256.
create function partition_of(workflow_id text) returns smallint language sql immutable strict as $$
  select ((get_byte(sha256(convert_to(workflow_id, 'UTF8')), 0) << 1)
        | (get_byte(sha256(convert_to(workflow_id, 'UTF8')), 1) >> 7))::smallint
$$;

create table executions (
  execution_id        uuid primary key,
  workflow_id         text not null,
  type                text not null,
  pool                text not null,
  partition           smallint not null,
  state               text not null default 'RUNNING',
  seed                bigint not null,
  attempt             int not null default 1,
  priority            smallint not null default 0,
  parent_execution_id uuid,
  parent_workflow_id  text,
  parent_pool         text,
  parent_seq          int,
  continued_from      uuid,
  continued_to        uuid,
  retry_of_exec_id    uuid,
  created_at          timestamptz not null,
  deadline            timestamptz,
  closed_at           timestamptz,
  input               json not null,
  result              json,
  failure             json,
  memo                json,
  search_attributes   jsonb
);
-- One open run per workflow id (R-6).
create unique index executions_open on executions (workflow_id) where closed_at is null;
create index executions_by_id on executions (workflow_id, created_at desc);
create index executions_recent on executions (created_at desc);
create index executions_children on executions (parent_execution_id) where parent_execution_id is not null;
create index executions_attributes on executions using gin (search_attributes jsonb_path_ops)
  where search_attributes is not null;

-- One row per decision: the arrivals it ingested, then the commands its code issued.
create table decisions (
  execution_id   uuid not null,
  decision       int not null,
  first_event_id int not null,
  at             timestamptz not null,
  worker_id      uuid not null,
  replay_mode    text not null,
  events         json not null,
  primary key (execution_id, decision)
);

create view events as
  select d.execution_id, d.first_event_id + (e.n - 1)::int as event_id, d.decision, d.at,
         e.event ->> 'type' as type, e.event
  from decisions d, json_array_elements(d.events) with ordinality as e(event, n);

-- One row per open run. pending: somebody should look; parked: waits until due_at;
-- running: its owner holds work that exists nowhere else, so whoever takes over must load it.
create table workflow_tasks (
  execution_id uuid primary key,
  pool         text not null,
  partition    smallint,
  state        text not null,
  due_at       timestamptz not null,
  priority     smallint not null default 0,
  strikes      int not null default 0,
  error        json
) with (fillfactor = 80);
create index workflow_tasks_due on workflow_tasks (pool, due_at) where state <> 'running';
create index workflow_tasks_running on workflow_tasks (pool, partition) where state = 'running';

-- One row per queue or eager activity in flight; seq is its number in the run.
create table activity_tasks (
  execution_id   uuid not null,
  seq            int not null,
  pool           text not null,
  partition      smallint not null,
  workflow_id    text not null,
  name           text not null,
  queue          text not null,
  state          text not null,
  priority       smallint not null default 0,
  attempt        int not null default 1,
  crashes        int not null default 0,
  worker_id      uuid,
  created_at     timestamptz not null,
  due_at         timestamptz not null,
  expires_at     timestamptz,
  close_at       timestamptz,
  start_to_close float8,
  heartbeat_timeout float8,
  input          json not null,
  options        json,
  heartbeat      json,
  result         json,
  failure        json,
  primary key (execution_id, seq)
) with (fillfactor = 80);
create index activity_tasks_pending on activity_tasks (queue, priority, due_at) where state = 'pending';
create index activity_tasks_expiring on activity_tasks (expires_at) where expires_at is not null;
create index activity_tasks_done on activity_tasks (pool, partition) where state = 'done';

-- Mail for a run: signals, updates, cancel and terminate requests, results of children.
create table messages (
  message_id   uuid primary key,
  position     bigint generated always as identity,
  execution_id uuid not null,
  pool         text not null,
  partition    smallint not null,
  kind         text not null,
  name         text,
  key          text,
  created_at   timestamptz not null default statement_timestamp(),
  consumed_at  timestamptz,
  event        json not null,
  reply        json
);
create unique index messages_key on messages (execution_id, kind, key) where key is not null;
create index messages_unread on messages (execution_id, position) where consumed_at is null;
create index messages_unread_partition on messages (pool, partition) where consumed_at is null;

create table workers (
  worker_id    uuid primary key,
  pool         text not null,
  build_id     text not null,
  state        text not null,
  lock_key     bigint not null,
  started_at   timestamptz not null,
  heartbeat_at timestamptz not null,
  lease_until  timestamptz not null,
  host         text not null,
  pid          int not null,
  definitions  json not null,
  figures      json
);

-- A worker's right to write, one row per commit connection: two overlapping FOR SHARE lockers of one
-- row would make a multixact each time, and a heartbeat must not wait for a commit.
create table tenures (
  worker_id  uuid not null,
  connection smallint not null,
  fenced     boolean not null default false,
  primary key (worker_id, connection)
);

create table partitions (
  pool      text not null,
  partition smallint not null,
  worker_id uuid,
  epoch     bigint not null default 0,
  primary key (pool, partition)
);

create table dead_letters (
  execution_id uuid primary key,
  workflow_id  text not null,
  type         text not null,
  pool         text not null,
  at           timestamptz not null,
  strikes      int not null,
  error        json not null
);
