-- The server: closed runs by type and state, tokens, who did what, figures over time, and how long failovers took.

-- A listing of closed runs by type and state reads its page and nothing else. Open runs are few.
create index executions_closed on executions (type, state, created_at desc, execution_id desc) where closed_at is not null;
-- What went wrong, of whatever type: the runs that an operator looks for first. Runs that end well cost it nothing.
create index executions_ended_badly on executions (state, created_at desc, execution_id desc)
  where closed_at is not null and state not in ('COMPLETED', 'CONTINUED_AS_NEW');

-- Tokens of the HTTP API. Only SHA-256 of them is here; what was rotated holds until previous_until.
create table tokens (
  token_id       uuid primary key,
  name           text not null unique,
  hash           bytea not null unique,
  scopes         text[] not null,
  created_at     timestamptz not null,
  created_by     text not null,
  expires_at     timestamptz,
  rotated_at     timestamptz,
  previous_hash  bytea unique,
  previous_until timestamptz,
  revoked_at     timestamptz,
  used_at        timestamptz
);

-- One row per mutating call of the HTTP API, written before it acts; status and ended_at follow, and are null where nobody lived to tell.
create table audit (
  audit_id uuid primary key,
  at       timestamptz not null,
  actor    text not null,
  token_id uuid,
  address  text,
  method   text not null,
  route    text not null,
  target   json not null,
  status   int,
  ended_at timestamptz
);
create index audit_at on audit (at desc, audit_id desc);

-- What each worker counted in an interval that ended at `at`, and (for the nil worker) what somebody saw of the whole hub.
create table figures (
  at        timestamptz not null,
  worker_id uuid not null,
  seconds   float8 not null,
  figures   json not null,
  primary key (at, worker_id)
);

-- When a dead worker was fenced, and when every partition that it could own had an owner again.
alter table workers
  add column fenced_at    timestamptz,
  add column recovered_at timestamptz;
create index workers_fenced on workers (fenced_at desc) where fenced_at is not null;

-- The type of an event without reading its payload, which may hold what Postgres cannot turn into text (NUL).
create or replace view events as
  select d.execution_id, d.first_event_id + (e.n - 1)::int as event_id, d.decision, d.at,
         substring(e.event::text from '"type"\s*:\s*"(\w+)"') as type, e.event
  from decisions d, json_array_elements(d.events) with ordinality as e(event, n);
