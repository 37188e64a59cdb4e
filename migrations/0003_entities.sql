-- Entities: the last recorded state of each live one, and where in its history it stands.

create table entity_state (
  type         text not null,
  key          text not null,
  execution_id uuid not null,
  pool         text not null,
  partition    smallint not null,
  decision     int not null,
  event_id     int not null,
  version      int not null,
  updated_at   timestamptz not null,
  state        json not null,
  primary key (type, key)
) with (fillfactor = 80);
create unique index entity_state_execution on entity_state (execution_id);
create index entity_state_partition on entity_state (pool, partition, type);

-- Answered requests without a key of their caller's are put away after a while.
create index messages_answered on messages (consumed_at) where kind = 'update' and key like '~%' and consumed_at is not null;

-- Answers to questions between processes that are too long for NOTIFY: fetched once, worth nothing after a crash.
create unlogged table answers (
  question   uuid primary key,
  created_at timestamptz not null,
  body       text not null
);
